"""The processes that outlive a test whose protection was taken away."""

import os
import signal
from contextlib import suppress
from pathlib import Path


def end_leftovers(folder: Path) -> None:
    """Kill each process whose command, variables or working directory names `folder`.

    Linux only; elsewhere there is nothing to look into, and they stay.
    """
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) != os.getpid() and _names(process, os.fsencode(folder)):
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)


def _names(process: Path, folder: bytes) -> bool:
    with suppress(OSError):  # it is gone, or another user's
        told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        return folder in told + os.fsencode((process / "cwd").readlink())
    return False
