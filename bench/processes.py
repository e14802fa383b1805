"""Processes that are measured: which processor they run on, what they spend, when they answer."""

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

START_SECONDS: Final = 30.0

SERVER_CPU: Final = 0
CLIENT_CPU: Final = 1


@contextmanager
def pinned(cpu: int) -> Generator[None]:
    """Let what is started in the block run on one processor, if there is more than one."""
    allowed = os.sched_getaffinity(0)
    if {SERVER_CPU, CLIENT_CPU} <= allowed:
        os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time that a process has spent so far, all threads together.

    By its own clock, as clock_getcpuclockid(3) names it: to the nanosecond, where `/proc` counts
    hundredths of a second.
    """
    return time.clock_gettime((~pid << 3) | 2)


def children_seconds() -> float:
    """Return the user and system time of all children that have ended, and of theirs."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def resident_kibibytes(pid: int) -> int:
    """Return how much memory a process has in use (VmRSS)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise ProcessLookupError(pid)


@contextmanager
def serving(module: str, port: int, *arguments: str) -> Generator[int]:
    """Run a server of ours, a module that takes a port first; yield its process id."""
    with running([sys.executable, "-m", module, str(port), *arguments], port) as pid:
        yield pid


@contextmanager
def running(command: Sequence[str], port: int, *, folder: Path | None = None) -> Generator[int]:
    """Run a server, wait until it listens, yield its process id, and end it.

    Raises `RuntimeError` if it ends by itself, `TimeoutError` if it doesn't listen.
    """
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL)
    try:
        _wait_for(process, port)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"a server ended with {process.returncode} before it listened")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on port {port}")
