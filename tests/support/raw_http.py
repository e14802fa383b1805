"""HTTP as bytes: what was sent comes out as it stands, and every wait has a deadline."""

import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

DEADLINE_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An answer as it came, without its date."""

    head: tuple[bytes, ...]
    """The status line and the headers, in their order; those of an interim answer come first."""
    body: bytes
    is_last: bool
    """Whether the connection was closed behind it."""

    @property
    def status(self) -> int:
        return int(self.head[0].split()[1])


class RawClient:
    """A connection on which any bytes can be sent; opened anew once it is closed."""

    def __init__(self, address: tuple[str, int], deadline: float = DEADLINE_SECONDS) -> None:
        self._address = address
        self._deadline = deadline
        self._socket: socket.socket | None = None
        self._received = b""

    def send(self, sent: bytes) -> None:
        """Send as much as is taken."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, self._deadline)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._received = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(sent)

    def answer(self, *, is_bodiless: bool = False) -> RawAnswer:
        """Return the next answer; `is_bodiless` for one to a HEAD."""
        head = self._head()
        while head[-1].startswith(b"HTTP/1.1 100"):
            head += self._head()
        lines = [line.lower() for line in head]
        lengths = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
        is_last = b"connection: close" in lines
        body = b""
        if not is_bodiless and lengths:
            while len(self._received) < lengths[0]:
                assert self._receive(), "closed within an answer"
            body, self._received = self._received[: lengths[0]], self._received[lengths[0] :]
        if is_last:
            while self._receive():
                pass
            body += self._received
            self.close()
        return RawAnswer(tuple(head), body, is_last)

    def ask(self, sent: bytes) -> RawAnswer:
        """Send a request and return its answer."""
        self.send(sent)
        return self.answer(is_bodiless=sent.startswith(b"HEAD "))

    def wait_for_answer(self) -> None:
        """Wait until the next answer begins, and take nothing of it."""
        assert self._socket is not None
        assert self._received or self._socket.recv(1, socket.MSG_PEEK)

    def is_closed(self, within: float) -> bool:
        """Whether the other side closes in that time; what it says before is thrown away."""
        deadline = time.monotonic() + within
        try:
            while (left := deadline - time.monotonic()) > 0:
                assert self._socket
                self._socket.settimeout(left)
                if not self._receive():
                    return True
        except TimeoutError:
            return False
        return False

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _head(self) -> list[bytes]:
        while b"\r\n\r\n" not in self._received:
            assert self._receive(), f"closed without an answer: {self._received!r}"
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        return [line for line in head.split(b"\r\n") if not line.lower().startswith(b"date:")]

    def _receive(self) -> bool:
        assert self._socket is not None
        try:
            received = self._socket.recv(1 << 20)
        except ConnectionResetError:
            return False
        self._received += received
        return bool(received)
