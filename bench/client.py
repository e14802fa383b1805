"""The load: some connections, each of which asks again as soon as it is answered.

A process of its own, so that its work is not the server's; it asks with no library in between.
Nothing that isn't a whole, successful answer of the expected length is counted: it stops the run.
"""

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count, cycle
from statistics import quantiles
from types import TracebackType
from typing import Any, Final, Self

from bench.answers import WrongAnswerError
from bench.processes import cpu_seconds
from bench.questions import FIRST_ID

DEADLINE_SECONDS: Final = 20.0
"""How long one answer may take."""

_CHUNK_BYTES: Final = 64 * 1024
_OK: Final = b"HTTP/1.1 200 "
_LENGTH: Final = b"\r\ncontent-length: "


@dataclass(frozen=True, slots=True)
class Load:
    """What a client does; all of it fits into a line of JSON."""

    port: int
    server_pid: int
    requests: tuple[tuple[str, str], ...]
    """Each up to its id, and from behind it."""
    body_bytes: int
    """How long each answer's body is."""
    connections: int
    warm_up: int
    """How many requests come before those that count."""
    seconds: float
    """For how long new requests are sent, if `total` is 0."""
    total: int = 0
    """How many requests are sent that count."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a load found."""

    answers: int
    per_second: float
    cpu_microseconds: float
    """What the server's process spent on one answer, user and system time."""
    p50_milliseconds: float
    p99_milliseconds: float


class LoadClient:
    """The client's process, as a context manager; one load at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Start the process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        if self._process:
            self._process.kill()
            self._process.communicate()

    def run(self, load: Load) -> Outcome:
        """Run a load to its end. Raises `WrongAnswerError`."""
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the client was not started")
        self._process.stdin.write(json.dumps(asdict(load)) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(
            self._process.stdout.readline() or '{"error": "it died"}'
        )
        if "error" in found:
            raise WrongAnswerError(found["error"])
        return Outcome(**found)


class _Connection:
    """One socket, and the answer that it waits for."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.chunks: list[bytes] = []
        self.received = 0
        self.is_begun = False
        self.asked_at = 0.0

    def ask(self, request: bytes) -> None:
        self.chunks.clear()
        self.received = 0
        self.is_begun = False
        self.asked_at = time.perf_counter()
        self.socket.sendall(request)

    def take(self) -> None:
        chunk = self.socket.recv(_CHUNK_BYTES)
        if not chunk:
            raise WrongAnswerError("the server closed a connection")
        self.chunks.append(chunk)
        self.received += len(chunk)


class _Client:
    """All connections of one load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._requests = _in_turn(load.requests)
        self._connections = [_Connection(load.port) for _ in range(load.connections)]
        self._by_descriptor = {each.socket.fileno(): each for each in self._connections}
        self._poll = select.epoll()
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.EPOLLIN)
        # How long a whole answer is, head and all, and the line of its head that says so; nothing
        # until the first has come, and no line where answers come in chunks.
        self._answer_bytes = 0
        self._told = b""

    def run(self) -> Outcome:
        self._ask_while(_fewer_than(self._load.warm_up))
        spent = cpu_seconds(self._load.server_pid)
        began = time.perf_counter()
        ends = began + self._load.seconds
        more = (
            _fewer_than(self._load.total)
            if self._load.total
            else lambda: time.perf_counter() < ends
        )
        waits = self._ask_while(more)
        seconds = time.perf_counter() - began
        spent = cpu_seconds(self._load.server_pid) - spent
        percents = quantiles([each * 1e3 for each in waits], n=100, method="inclusive")
        return Outcome(
            len(waits), len(waits) / seconds, spent / len(waits) * 1e6, percents[49], percents[98]
        )

    def close(self) -> None:
        self._poll.close()
        for each in self._connections:
            each.socket.close()

    def _ask_while(self, more: Callable[[], bool]) -> list[float]:
        """Ask as long as `more` says so, wait for all answers, and return how long each took."""
        waits: list[float] = []
        busy = 0
        for each in self._connections:
            if more():
                each.ask(next(self._requests))
                busy += 1
        while busy:
            ready = self._poll.poll(DEADLINE_SECONDS)
            if not ready:
                raise WrongAnswerError(f"no whole answer within {DEADLINE_SECONDS} s")
            for descriptor, _ in ready:
                connection = self._by_descriptor[descriptor]
                connection.take()
                if not self._is_whole(connection):
                    continue
                waits.append(time.perf_counter() - connection.asked_at)
                if more():
                    connection.ask(next(self._requests))
                else:
                    busy -= 1
        return waits

    def _is_whole(self, connection: _Connection) -> bool:
        """Say whether the answer is there. Raises `WrongAnswerError` if it isn't the right one."""
        if not connection.is_begun:
            connection.is_begun = self._is_begun(b"".join(connection.chunks))
        if connection.received < (self._answer_bytes or sys.maxsize):
            return False
        answer = b"".join(connection.chunks)
        if connection.received > self._answer_bytes or b'"result"' not in answer:
            raise WrongAnswerError(f"not the expected answer: {answer[:300]!r}")
        return True

    def _is_begun(self, begin: bytes) -> bool:
        """Look at the head of an answer, once it is whole; that of the first sets the measure."""
        head, end, body = begin.partition(b"\r\n\r\n")
        if not end:
            return False
        if self._answer_bytes == 0:
            if _LENGTH not in head.lower():  # in chunks: it is whole with the last of them
                if not body.endswith(b"\r\n0\r\n\r\n"):
                    return False
                self._answer_bytes = len(begin)
            else:
                self._told = b"%s%d\r\n" % (_LENGTH, self._load.body_bytes)
                self._answer_bytes = len(head) + len(end) + self._load.body_bytes
        if not head.startswith(_OK) or self._told not in head.lower() + b"\r\n":
            raise WrongAnswerError(
                f"not an answer of {self._load.body_bytes} bytes: {begin[:300]!r}"
            )
        return True


def _in_turn(requests: tuple[tuple[str, str], ...]) -> Iterator[bytes]:
    """Yield requests without end, each with an id that no other has."""
    around = cycle([(before.encode(), after.encode()) for before, after in requests])
    for number in count(FIRST_ID):
        before, after = next(around)
        yield b"%s%d%s" % (before, number, after)


def _fewer_than(total: int) -> Callable[[], bool]:
    left = iter(range(total))
    return lambda: next(left, None) is not None


def main() -> None:
    """Run the loads that come in, a line each; answer each by a line."""
    for line in sys.stdin:
        load = json.loads(line)
        load["requests"] = tuple(tuple(each) for each in load["requests"])
        try:
            client = _Client(Load(**load))
            try:
                print(json.dumps(asdict(client.run())), flush=True)
            finally:
                client.close()
        except (WrongAnswerError, OSError) as error:
            print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
