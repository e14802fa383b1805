"""A process that judges contents for the gateway, so that its readers don't share an interpreter.

It takes contents from stdin and writes verdicts to stdout, a part at a time, until stdin ends. It
knows no path, no owner and no secret.
"""

import os
import resource
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

from okf_mcp_gateway.snapshot_bytes import decode, encode
from okf_mcp_server.snapshot import Snapshot, Verdict, judge

HEAD: Final = struct.Struct("!I")
"""How many contents, or how many bytes of verdicts, follow."""

_MEMORY_BYTES: Final = 1024 * 1024 * 1024
_NICENESS: Final = 5
_SIZE: Final = "I"


def main() -> None:
    """Judge until stdin ends, or nobody reads the verdicts."""
    with suppress(OSError, ValueError):  # a lower bound is there already; macOS has none
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICENESS)  # readers go first
    with suppress(BrokenPipeError):
        answer(sys.stdin.buffer, sys.stdout.buffer)


def answer(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Judge each part of contents; one that isn't whole is the end."""
    while (contents := _read(questions)) is not None:
        answers.write(_verdict_bytes([judge(content) for content in contents]))
        answers.flush()


def content_bytes(contents: Sequence[bytes]) -> bytes:
    """Return the bytes of a part."""
    sizes = array(_SIZE, map(len, contents))
    return b"".join((HEAD.pack(len(contents)), sizes.tobytes(), *contents))


def verdicts_of(raw: bytes) -> Mapping[str, Verdict]:
    """Return the verdicts on a part by the number of each content.

    `raw` is what follows the head. Raises `SnapshotBytesError`.
    """
    return decode(raw).verdicts


def _read(questions: IO[bytes]) -> list[bytes] | None:
    try:
        (count,) = HEAD.unpack(_take(questions, HEAD.size))
        sizes = array(_SIZE)
        sizes.frombytes(_take(questions, count * sizes.itemsize))
        return [_take(questions, size) for size in sizes]
    except EOFError:
        return None


def _take(questions: IO[bytes], size: int) -> bytes:
    taken = questions.read(size)
    if len(taken) < size:
        raise EOFError
    return taken


def _verdict_bytes(verdicts: Sequence[Verdict]) -> bytes:
    snapshot = Snapshot(
        commit=None,
        roots=(),
        documents=(),
        starts=(),
        shadowed=(),
        diagnostics=(),
        verdicts={str(number): verdict for number, verdict in enumerate(verdicts)},
        listing=None,
        parsed_files=0,
    )
    raw = encode(snapshot)
    return HEAD.pack(len(raw)) + raw


if __name__ == "__main__":
    main()
