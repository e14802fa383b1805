"""A process that outlives the gateway by a moment, and kills the git that would outlive it (P7).

A gateway that is killed can't end its git processes. They would go on writing into copies that the
next gateway holds by then, until their hosts have been silent for as long as git bears it.
"""

import logging
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

_SCRIPT: Final = Path(__file__).parent / "watchdog.sh"

_END_SECONDS: Final = 1.0
"""How long it may take to end once it is told to; it needs milliseconds."""

log = logging.getLogger(__name__)


class Watchdog:
    """Kills the process groups that still run when this process ends, however it ends.

    One small shell for all of them, which sleeps unless one comes or goes. If it is lost, the log
    says so, and git works all the same. To be used by one thread at a time.
    """

    def __init__(self) -> None:
        # None once it is closed, or lost.
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(  # noqa: S603 - no word of it comes from outside
                ["/bin/sh", str(_SCRIPT)],
                env={},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Out of reach of the terminal, and of a signal to the gateway's own group.
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            _tell_loss(error)

    @property
    def is_lost(self) -> bool:
        """Whether it watches nothing any more."""
        return self._process is None

    def watch(self, group: int) -> None:
        """Have this process group killed if it runs when the gateway ends."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Leave a group alone; to be called before it is reaped, for then its id is free."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End it; what it still watches is killed."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _tell(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        descriptor = self._process.stdin.fileno()
        try:
            # A full pipe is a watchdog that hangs: git waits for nobody.
            os.set_blocking(descriptor, False)
            os.write(descriptor, line.encode())
        except OSError as error:
            _tell_loss(error)
            # First of all: what it has of the list is out of date.
            self._process.kill()
            self.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)


def _tell_loss(error: OSError) -> None:
    log.warning("Watchdog lost, git may outlive a gateway that is killed: reason=%s", error)
