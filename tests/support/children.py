"""Run a command to its end, in a process group of its own.

Invariant: when `run_child` returns or raises, nothing of that group runs any more.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it said."""

    status: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """All that it said: stdout, then stderr."""
        return f"{self.stdout}\n{self.stderr}"


def run_child(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], deadline: float
) -> Ended:
    """Run `command` in `folder`, its stdin empty, its environment no more than `environment`.

    Raises `TimeoutError` after `deadline` seconds, with what it had said.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    is_late = False
    try:
        stdout, stderr = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        is_late = True
        _kill_group(process)
        stdout, stderr = process.communicate(timeout=deadline)
    finally:
        _kill_group(process)
    ended = Ended(process.returncode, _text(stdout), _text(stderr))
    if is_late:
        raise TimeoutError(f"{command[0]} ran on after {deadline} s:\n{ended.output}")
    return ended


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _text(said: bytes) -> str:
    return said.decode(errors="replace")
