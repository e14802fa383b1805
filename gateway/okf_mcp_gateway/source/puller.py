"""One owner's pull, from asking the source to publishing on disk; it blocks, so it has a thread."""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.source.error_class import SourceError, error_class, lacks_room
from okf_mcp_gateway.source.git import GitError
from okf_mcp_gateway.source.mirror import Copy, Mirror, Tip
from okf_mcp_server.snapshot import Snapshot, load_docs

_NOT_THE_COPY: Final = frozenset({"auth", "connect", "dns", "policy", "tls"})
"""What a new copy doesn't mend. A deadline isn't here: a damaged copy may be what runs into it.

Nor is the disk, unless it takes nothing more: rights may be missing in the old copy alone.
"""

log = logging.getLogger(__name__)


class Puller:
    """Brings the content of one owner; used by one thread at a time.

    Its methods raise `SourceError` for the source's faults, `GitError` and `OSError` for ours, and
    `GitStoppedError` once the gateway stops.
    """

    def __init__(
        self,
        config: OwnerConfig,
        mirror: Mirror,
        *,
        now: Callable[[], datetime],
        scrub: Callable[[str], str],
    ) -> None:
        """`now` is the wall clock, `scrub` takes what is private out of git's sentences."""
        self._config = config
        self._mirror = mirror
        self._now = now
        self._scrub = scrub
        self.wear = 0.0
        """How near the copy is to its bounds; written by a pull, and by the repack that follows."""
        # Whether a repack failed, so that only a new copy is small; written by the same two.
        self._is_worn = False

    def stored_bytes(self) -> int:
        """Return how large the copy on disk is; 0 if there is none."""
        return sum(self._mirror.packs.sizes())

    def restore(self) -> tuple[Snapshot, datetime] | None:
        """Return what the copy on disk holds, and when its source was last reached.

        None if there is no copy that works.
        """
        try:
            stored = self._mirror.open()
            return (self._load(stored.copy, None), stored.pulled_at) if stored else None
        except (GitError, SourceError, OSError) as error:
            self._warn("Cached copy not loaded", error)
            return None

    def pull(self, previous: Snapshot | None) -> Snapshot:
        """Return the content of the source's tip, and keep it on disk.

        It is `previous` itself if the source has nothing new: then nothing is fetched or parsed.
        """
        tip = self._mirror.probe()
        if previous is not None and previous.commit == tip.commit:
            try:
                self._mirror.record_contact(self._now())
            except FileNotFoundError:
                log.warning("Copy on disk gone, cloning anew: owner=%s", self._config.name)
            except OSError as error:
                # What is served is the source's; only the next start won't know when we asked.
                self._warn("Contact not recorded", error)
                return previous
            else:
                return previous
        try:
            with self._mirror.packs.hold(), self._mirror.changing():
                copy, snapshot = self._fetch(tip, previous)
                self._mirror.publish(copy, self._now())
        finally:
            # Also what is refused after all was fetched, and takes its place on disk.
            self.wear = self._mirror.packs.wear()
        return snapshot

    def repack(self) -> None:
        """Make the copy on disk smaller, in any thread; a pull that fetches breaks it off."""
        self.wear = 0.0
        try:
            self._mirror.packs.repack()
        except (GitError, OSError) as error:
            self._warn("Copy not repacked", error)
            is_disk = error_class(error) == "disk" or lacks_room(error)
            self._is_worn = isinstance(error, GitError) and not is_disk

    def _fetch(self, tip: Tip, previous: Snapshot | None) -> tuple[Copy, Snapshot]:
        """Bring the tip into the copy on disk, or into a new one if none works (P4)."""
        try:
            if self._mirror.open() is not None and not self._is_worn:
                copy = self._mirror.fetch(tip)
                return copy, self._load(copy, previous)
        except (GitError, SourceError, OSError) as error:
            if error_class(error) in _NOT_THE_COPY or lacks_room(error):
                raise
            self._warn("Cloning anew", error)
        copy = self._mirror.clone(tip)
        snapshot = self._load(copy, previous)
        self._is_worn = False
        return copy, snapshot

    def _load(self, copy: Copy, previous: Snapshot | None) -> Snapshot:
        return load_docs(
            self._mirror.tree(copy),
            owner=self._config.name,
            roots=self._config.roots,
            commit=copy.commit,
            previous=previous,
        )

    def _warn(self, event: str, error: Exception) -> None:
        reason = self._scrub(str(error))
        log.warning("%s: owner=%s reason=%s", event, self._config.name, reason)
