"""How a process and all of its group end, without a doubt whose ids are meant."""

import os
import signal
import time
from contextlib import suppress
from typing import Final

_TERM_SECONDS: Final = 0.5
"""How long git may take to remove its temporary files once its deadline has passed."""

_POLL_SECONDS: Final = 0.001

_REAP_SECONDS: Final = 0.5
"""How long the processes of a group that was killed may take to end."""


def await_end(pid: int, deadline: float) -> None:
    """Wait for a child without reaping it; raises `TimeoutError` at the deadline.

    As long as it isn't reaped, its id can't become another group's, and a signal is safe.
    """
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            raise TimeoutError
        time.sleep(_POLL_SECONDS)


def end_group(pid: int) -> None:
    """Kill a child's process group, which may outlive the child; one that still runs gently first.

    The child isn't reaped here, so the group is still its own.
    """
    try:
        await_end(pid, deadline=0)
    except TimeoutError:
        signal_group(pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await_end(pid, time.monotonic() + _TERM_SECONDS)
    signal_group(pid, signal.SIGKILL)


def reap_group(group: int) -> None:
    """Reap what a killed git left behind, where the system hands orphans to us.

    It does so if we are process 1, as in a container: they would stay zombies.
    """
    deadline = time.monotonic() + _REAP_SECONDS
    with suppress(ChildProcessError):  # no child of ours is in that group
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG) == (0, 0):
                time.sleep(_POLL_SECONDS)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a group, if there is one still."""
    with suppress(ProcessLookupError, PermissionError):  # the latter: macOS, of a dead process
        os.killpg(pid, number)
