"""One owner's pull, from asking the source to publishing on disk; it blocks, so it has a thread."""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.source.error_class import SourceError, error_class
from okf_mcp_gateway.source.git import GitError
from okf_mcp_gateway.source.mirror import Copy, Mirror, Tip
from okf_mcp_server.snapshot import Snapshot, load_docs

_NOT_THE_COPY: Final = frozenset({"auth", "connect", "disk", "dns", "policy", "tls"})
"""What a new copy doesn't mend. A deadline isn't here: a damaged copy may be what runs into it."""

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

    def restore(self) -> tuple[Snapshot, datetime] | None:
        """Return what the copy on disk holds, and when its source was last reached.

        None if there is no copy that works.
        """
        try:
            stored = self._mirror.open()
            return (self._load(stored.copy, None), stored.pulled_at) if stored else None
        except GitError as error:
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
            except (FileNotFoundError, IsADirectoryError):
                log.warning("Copy on disk gone, cloning anew: owner=%s", self._config.name)
            except OSError as error:
                # What is served is the source's; only the next start won't know when we asked.
                self._warn("Contact not recorded", error)
                return previous
            else:
                return previous
        copy, snapshot = self._fetch(tip, previous)
        self._mirror.publish(copy, self._now())
        return snapshot

    def _fetch(self, tip: Tip, previous: Snapshot | None) -> tuple[Copy, Snapshot]:
        """Bring the tip into the copy on disk, or into a new one if none works (P4)."""
        if self._mirror.open() is not None and not self._mirror.is_worn():
            try:
                copy = self._mirror.fetch(tip)
                return copy, self._load(copy, previous)
            except (GitError, SourceError) as error:
                if error_class(error) in _NOT_THE_COPY:
                    raise
                self._warn("Cloning anew", error)
        copy = self._mirror.clone(tip)
        return copy, self._load(copy, previous)

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
