"""Many new contents are judged in a process of their own: a thread would slow all readers down.

Whatever becomes of that process, nothing is lost: what it didn't judge, the caller's thread does.
"""

import logging
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from threading import Semaphore
from typing import Final, TypeAlias

from okf_mcp_gateway.snapshot_bytes import SnapshotBytesError
from okf_mcp_gateway.source.git import Git, GitStoppedError
from okf_mcp_gateway.source.judge_process import HEAD, content_bytes, verdicts_of
from okf_mcp_server.errors import OkfError
from okf_mcp_server.snapshot import UNEXPECTED, Contents, Verdict, judge, judge_here
from okf_mcp_server.tree import TreeEntry

MIN_CONTENTS: Final = 500
"""How many contents are worth a process: about as many as a thread judges while one starts."""

MAX_PROCESSES: Final = 2
"""How many there are at a time; others wait, and judge in a thread if that takes too long."""

_PART_CONTENTS: Final = 50
"""How many contents go there and come back at a time: no reader waits for one part's verdicts."""

_PART_BYTES: Final = 512 * 1024
"""How many bytes are enough for a part, though there are fewer contents."""

_PARTS_AHEAD: Final = 4
"""How many parts it may have to judge: it needn't wait for us."""

_MAX_VERDICT_BYTES: Final = 64 * 1024 * 1024
"""How long the verdicts on a part may be; a few files can stand for more by YAML's aliases."""

_CHUNK_BYTES: Final = 64 * 1024

_MODULE: Final = "okf_mcp_gateway.source.judge_process"

_Part: TypeAlias = Sequence[tuple[TreeEntry, bytes | OSError]]

log = logging.getLogger(__name__)


class Judges:
    """Judges the contents of all owners, in any thread; one for the process."""

    def __init__(self, git: Git, *, deadline_seconds: float) -> None:
        """`git` ends what runs at a stop.

        `deadline_seconds` is how long a load waits for room, and for its process in all.
        """
        self._git = git
        self._deadline_seconds = deadline_seconds
        self._room = Semaphore(MAX_PROCESSES)

    def judge(self, contents: Contents, count: int) -> Iterator[tuple[TreeEntry, Verdict]]:
        """Judge contents, of which there are `count`; what they raise passes through.

        Raises `GitStoppedError` once the gateway stops.
        """
        # Who waits here holds nothing yet, and readers are better off than with one more thread
        # that parses. At a stop those before us end at once, and we after them.
        if count < MIN_CONTENTS or not self._room.acquire(timeout=self._deadline_seconds):
            yield from judge_here(contents, count)
            return
        try:
            yield from self._judge_elsewhere(contents)
        finally:
            self._room.release()

    def _judge_elsewhere(self, contents: Contents) -> Iterator[tuple[TreeEntry, Verdict]]:
        parts = _parts(contents)
        sent: deque[_Part] = deque()
        try:
            with self._git.guard(_start) as process:
                talk = _Talk(process, self._deadline_seconds)
                for part in parts:
                    sent.append(part)
                    talk.send(part)
                    if len(sent) > _PARTS_AHEAD:
                        yield from _judged(sent[0], talk.take())
                        sent.popleft()
                while sent:
                    yield from _judged(sent[0], talk.take())
                    sent.popleft()
        except _LostError as error:
            if self._git.is_closed:
                raise GitStoppedError("the gateway stops") from None
            log.warning("Process that judges files lost, a thread goes on: reason=%s", error)
            for part in chain(sent, parts):
                yield from judge_here(iter(part), len(part))


class _LostError(OkfError):
    """The process is of no use any more."""


class _Talk:
    """What we send to the process, and what comes back."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        """`seconds` is how long all waits together may be."""
        if process.stdin is None or process.stdout is None:
            raise TypeError("a process without pipes")
        self._stdin, self._stdout = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._seconds = self._seconds_left = seconds
        self._unsent, self._received = bytearray(), bytearray()

    def send(self, part: _Part) -> None:
        """Send contents; what can't be read of them is judged by who sends."""
        self._unsent += content_bytes([raw if isinstance(raw, bytes) else b"" for _, raw in part])
        while self._unsent:
            self._step()

    def take(self) -> bytes:
        """Return the verdicts on the part that is the next in turn."""
        while len(self._received) < HEAD.size:
            self._step()
        (size,) = HEAD.unpack_from(self._received)
        if size > _MAX_VERDICT_BYTES:
            raise _LostError("its verdicts are too long")
        end = HEAD.size + size
        while len(self._received) < end:
            self._step()
        taken = bytes(self._received[HEAD.size : end])
        del self._received[:end]
        return taken

    def _step(self) -> None:
        """Wait until some bytes can go or come, and let them."""
        poll = select.poll()
        poll.register(self._stdout, select.POLLIN)
        if self._unsent:
            poll.register(self._stdin, select.POLLOUT)
        begun = time.monotonic()
        ready = poll.poll(max(self._seconds_left, 0.0) * 1000)
        self._seconds_left -= time.monotonic() - begun
        if not ready:
            raise _LostError(f"it took longer than {self._seconds:g} s")
        try:
            for descriptor, _ in ready:
                if descriptor == self._stdout:
                    self._receive()
                else:
                    del self._unsent[: os.write(self._stdin, self._unsent[:_CHUNK_BYTES])]
        except OSError as error:
            raise _LostError(f"it takes nothing: {error.strerror}") from None

    def _receive(self) -> None:
        chunk = os.read(self._stdout, _CHUNK_BYTES)
        if not chunk:
            raise _LostError("it ended")
        self._received += chunk


def _start() -> subprocess.Popen[bytes]:
    """Start the process, which gets nothing from us but where Python finds its modules."""
    places = [each for each in sys.path if os.path.isabs(each) and os.pathsep not in each]  # noqa: PTH117 - no path, but a text that may be one
    try:
        return subprocess.Popen(  # noqa: S603 - no word of it comes from outside
            [sys.executable, "-P", "-s", "-m", _MODULE],
            env={"PYTHONPATH": os.pathsep.join(places)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
            cwd="/",
        )
    except OSError as error:
        raise _LostError(f"it can't be started: {error.strerror}") from None


def _parts(contents: Contents) -> Iterator[_Part]:
    """Yield contents in parts."""
    part: list[tuple[TreeEntry, bytes | OSError]] = []
    size = 0
    for content in contents:
        part.append(content)
        size += content[0].size
        if len(part) >= _PART_CONTENTS or size >= _PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _judged(part: _Part, answer: bytes) -> list[tuple[TreeEntry, Verdict]]:
    """Return the verdicts on a part; where the process failed at a content, we judge it."""
    try:
        verdicts = verdicts_of(answer)
        found = [verdicts[str(number)] for number in range(len(part))]
    except (SnapshotBytesError, KeyError):
        raise _LostError("its verdicts can't be read") from None
    return [
        (entry, judge(raw) if isinstance(raw, OSError) or verdict == UNEXPECTED else verdict)
        for (entry, raw), verdict in zip(part, found, strict=True)
    ]
