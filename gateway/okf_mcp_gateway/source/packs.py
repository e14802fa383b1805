"""The packs of one copy: each fetch adds one, and a repack makes them one again.

A repack takes its time, so it is never part of a pull: it runs between two, and is broken off by
the next one that wants to fetch. Only a copy that is over its bounds has it run to its end.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final

from okf_mcp_gateway.source.git import Git, GitError
from okf_mcp_gateway.source.leftovers import remove_leftovers

MAX_PACKS: Final = 8
"""How many packs a copy may have."""

MAX_SURPLUS: Final = 1.0
"""How much the others may hold, as a part of the largest: most of it isn't served any more."""

REPACK_WEAR: Final = 0.5
"""How near a copy comes to its bounds before it is repacked as soon as there is time."""

_SMALL_BYTES: Final = 64 * 1024
"""A largest pack below this counts as this: nobody minds."""

_POLL_SECONDS: Final = 0.01

log = logging.getLogger(__name__)


class Packs:
    """The packs of the copy in `git_dir`; from any thread."""

    def __init__(self, git: Git, git_dir: Path) -> None:
        self._git = git
        self._git_dir = git_dir
        # Held by a pull that works in the copy, or by a repack.
        self._lock = Lock()
        # Written by whoever asks for the copy during a repack, and by the repack at its start.
        self._is_wanted = False

    @contextmanager
    def hold(self) -> Generator[None]:
        """Have the copy for a pull; a repack that runs is broken off, which harms nothing."""
        while not self._lock.acquire(timeout=_POLL_SECONDS):
            self._is_wanted = True
            self._git.kill(self._git_dir)
        try:
            yield
        finally:
            self._lock.release()

    def sizes(self) -> list[int]:
        """Return how many bytes each pack has; none if there is no copy, or none that can be read.

        The order is the file system's.
        """
        try:
            return [path.stat().st_size for path in self._folder.glob("pack-*.pack")]
        except OSError:
            return []

    def wear(self) -> float:
        """Return how near the copy is to its bounds: at 1 it has reached one."""
        sizes = self.sizes()
        largest = max(sizes, default=0)
        surplus = (sum(sizes) - largest) / max(largest, _SMALL_BYTES)
        return max(len(sizes) / MAX_PACKS, surplus / MAX_SURPLUS)

    def repack(self) -> None:
        """Make the packs one, without what is no longer served, unless a pull has the copy.

        Raises `GitError` if that fails; a repack that a pull broke off isn't a failure.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._is_wanted = False
            if self.wear() >= REPACK_WEAR:
                self._git.run(
                    ["repack", "-a", "-d", "-n", "--quiet", "--no-write-bitmap-index"],
                    git_dir=self._git_dir,
                )
        except GitError:
            remove_leftovers(self._git_dir)  # of a full disk, which it would keep full
            if not self._is_wanted:
                raise
        finally:
            self._lock.release()

    @property
    def _folder(self) -> Path:
        return self._git_dir / "objects" / "pack"
