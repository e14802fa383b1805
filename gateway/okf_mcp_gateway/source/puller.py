"""One owner's pull, from asking the source to publishing on disk; it blocks, so it has a thread."""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.snapshot_file import SnapshotFile
from okf_mcp_gateway.source.error_class import SourceError, error_class, lacks_room
from okf_mcp_gateway.source.git import GitError
from okf_mcp_gateway.source.mirror import Copy, Mirror, Tip
from okf_mcp_server.incremental import load_changes
from okf_mcp_server.snapshot import Judging, Snapshot, judge_here, load_docs

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

    def __init__(  # noqa: PLR0913 - the parts that a pull is made of, by their names
        self,
        config: OwnerConfig,
        mirror: Mirror,
        snapshots: SnapshotFile,
        *,
        now: Callable[[], datetime],
        scrub: Callable[[str], str],
        judging: Judging = judge_here,
    ) -> None:
        """`now` is the wall clock, `scrub` takes what is private out of git's sentences.

        `judging` judges the files that no earlier snapshot knows.
        """
        self._config = config
        self._mirror = mirror
        self._snapshots = snapshots
        self._now = now
        self._scrub = scrub
        self._judging = judging
        self.wear = 0.0
        """How near the copy is to its bounds; written by a pull, and by the repack that follows."""
        # Whether a repack failed, so that only a new copy is small; written by the same two.
        self._is_worn = False
        # Whether git found the served commit in the copy, in the life of this process; written by
        # what looks for it.
        self._is_sound = False
        # What the snapshot file holds, or can't; written by `restore_snapshot` and `keep`.
        self._kept: Snapshot | None = None

    def snapshot_bytes(self) -> int | None:
        """Return how large the snapshot file is; None if there is none."""
        return self._snapshots.size(self._mirror.path)

    def stored_bytes(self) -> int:
        """Return how large the copy on disk is; 0 if there is none."""
        return sum(self._mirror.packs.sizes())

    def restore(self) -> tuple[Snapshot, datetime] | None:
        """Return what the copy on disk holds, and when its source was last reached.

        None if there is no copy that works.
        """
        return self.restore_snapshot() or self._restore_copy()

    def restore_snapshot(self) -> tuple[Snapshot, datetime] | None:
        """Return the same without git or a parse; None if the copy has no good snapshot file.

        Whether the copy itself is sound, which the next `pull` needs, is looked at by then.
        """
        stored = self._mirror.peek()
        if stored is None:
            return None
        self._kept = self._snapshots.read(stored.copy.git_dir, stored.copy.commit)
        return (self._kept, stored.pulled_at) if self._kept else None

    def has_sound_copy(self, commit: str) -> bool:
        """Say whether git finds the commit in the copy, as the one that is served (P4).

        Once it did, it isn't asked again.
        """
        if not self._is_sound:
            stored = self._mirror.open()
            self._is_sound = stored is not None and stored.copy.commit == commit
        return self._is_sound

    def pull(self, previous: Snapshot | None) -> Snapshot:
        """Return the content of the source's tip, and keep it on disk.

        It is `previous` itself if the source has nothing new: then nothing is fetched or parsed.
        """
        tip = self._mirror.probe()
        if previous is not None and previous.commit == tip.commit:
            try:
                if self.has_sound_copy(tip.commit):
                    self._mirror.record_contact(self._now())
                    return previous
                log.warning("Copy on disk broken, cloning anew: owner=%s", self._config.name)
            except FileNotFoundError:
                log.warning("Copy on disk gone, cloning anew: owner=%s", self._config.name)
            except OSError as error:
                # What is served is the source's; only the next start won't know when we asked.
                self._warn("Contact not recorded", error)
                return previous
        try:
            with self._mirror.packs.hold(), self._mirror.changing():
                copy, snapshot = self._fetch(tip, previous)
                self._mirror.publish(copy, self._now())
                self._is_sound = True
        finally:
            # Also what is refused after all was fetched, and takes its place on disk.
            self.wear = self._mirror.packs.wear()
        return snapshot

    def is_kept(self, snapshot: Snapshot) -> bool:
        """Say whether `keep` has nothing to do for a snapshot."""
        return snapshot is self._kept

    def keep(self, snapshot: Snapshot) -> None:
        """Write the snapshot file for the next start, of what the copy has by now.

        One that can't be written costs that start a parse, and nothing else: a file of another
        commit counts for nothing.
        """
        self._kept = snapshot
        try:
            self._snapshots.write(self._mirror.path, snapshot)
        except OSError as error:
            self._warn("Snapshot file not written", error)

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
            if self._has_copy() and not self._is_worn:
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

    def _has_copy(self) -> bool:
        """Say whether there is a copy to fetch into; one that git looked at once fails later."""
        return (self._mirror.peek() if self._is_sound else self._mirror.open()) is not None

    def _restore_copy(self) -> tuple[Snapshot, datetime] | None:
        try:
            stored = self._mirror.open()
            if stored is None:
                return None
            snapshot = self._load(stored.copy, None)
        except (GitError, SourceError, OSError) as error:
            self._warn("Cached copy not loaded", error)
            return None
        self._is_sound = True
        return snapshot, stored.pulled_at

    def _load(self, copy: Copy, previous: Snapshot | None) -> Snapshot:
        tree, commit, owner = self._mirror.tree(copy), copy.commit, self._config.name
        roots = tuple(self._config.roots)
        if previous is not None and previous.roots == roots:
            changes = tree.changes(previous)
            if changes is not None:
                return load_changes(
                    tree,
                    changes,
                    owner=owner,
                    commit=commit,
                    previous=previous,
                    judging=self._judging,
                )
        return load_docs(
            tree,
            owner=owner,
            roots=roots,
            commit=commit,
            previous=previous,
            judging=self._judging,
        )

    def _warn(self, event: str, error: Exception) -> None:
        reason = self._scrub(str(error))
        log.warning("%s: owner=%s reason=%s", event, self._config.name, reason)
