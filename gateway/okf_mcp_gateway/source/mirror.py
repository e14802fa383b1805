"""One owner's bare, shallow copy of its source: probe, fetch, verify, publish.

Nothing replaces the served commit before `publish`, and nothing on disk is deleted before what
replaces it is whole (P4). A copy is updated in place; a new one, or one for a broken copy, is made
beside it and moved there. `HEAD` names the served commit. Each fetch leaves a pack: see `packs`.
What else is kept in the copy has to name its commit, for it is written later, if at all.
"""

import errno
import json
import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.regular_file import read_regular_file
from okf_mcp_gateway.source.commit_tree import CommitTree
from okf_mcp_gateway.source.error_class import SourceError, disk_sentence, git_class
from okf_mcp_gateway.source.git import Git, GitError, GitOutputError, GitTimeoutError
from okf_mcp_gateway.source.leftovers import remove, remove_leftovers, restore_configuration
from okf_mcp_gateway.source.login import Login
from okf_mcp_gateway.source.packs import Packs

_NEXT: Final = "refs/okf/next"
"""Our private ref, at what the last fetch brought."""

RECORD: Final = "okf.json"
"""The file in the copy that says which source it is of, and when that was last reached."""

_MAX_HEAD_BYTES: Final = 1024
_SHA1_DIGITS: Final = 40
_OBJECT_ID: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, slots=True)
class Tip:
    """What the owner's ref names in the source."""

    ref: str
    """In full, such as `refs/heads/main`; a commit id for an owner that is pinned to one."""
    commit: str
    """The full id; for a tag, of what it points to."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A commit, whole, in a repository on disk."""

    git_dir: Path
    commit: str


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """What an earlier run left behind."""

    copy: Copy
    pulled_at: datetime
    """When the source was last reached (UTC)."""


class Mirror:
    """The copy of one owner; used by one thread at a time, but for its packs."""

    def __init__(self, config: OwnerConfig, cache_dir: Path, git: Git) -> None:
        self._config = config
        self._git = git
        self._path = cache_dir / config.name
        self.packs = Packs(git, self._path)
        # An owner's name never begins with a dot, so these are nobody's copy.
        self._new_path = cache_dir / f".{config.name}.new"
        self._old_path = cache_dir / f".{config.name}.old"

    @property
    def path(self) -> Path:
        """Where the copy is."""
        return self._path

    def peek(self) -> StoredCopy | None:
        """Return the copy on disk as its own files tell it, without asking git; None as `open`.

        It may be broken in a way that only `open` finds out.
        """
        pulled_at = None if self._path.is_symlink() else self._read_record(self._path)
        commit = self._read_head() if pulled_at else None
        return StoredCopy(Copy(self._path, commit), pulled_at) if pulled_at and commit else None

    def open(self) -> StoredCopy | None:
        """Return the copy on disk; None if there is none, a broken one, or another source's.

        The gate is that git finds the commit that `HEAD` names in this very repository (P4, P6).
        """
        stored = self._open(self._path)
        if stored is not None:
            for half_made in (self._new_path, self._old_path):
                remove(half_made)  # `publish` was cut off before its renames, or after them
            return stored
        stored = self._open(self._new_path)
        if stored is None:
            return None
        self._move_into_place()  # `publish` was cut off before, or between them
        return replace(stored, copy=Copy(self._path, stored.copy.commit))

    def probe(self) -> Tip:
        """Ask the source what the ref names now. Raises `SourceError`."""
        if self._config.is_pinned:
            self._ask_source(["ls-remote", "--quiet", "--", self._config.url, "HEAD"])
            commit = self._config.ref.lower()
            return Tip(commit, commit)
        ref = self._config.ref
        names = [f"refs/heads/{ref}", f"refs/tags/{ref}"]  # a branch wins over a tag of its name
        if ref.startswith("refs/"):
            names.insert(0, ref)
        patterns = [*names, *(f"{name}^{{}}" for name in names)]  # ^{}: what a tag points to
        listing = self._ask_source(["ls-remote", "--quiet", "--", self._config.url, *patterns])
        found = _parse_refs(listing)
        for name in names:
            if name in found:
                return Tip(name, found.get(f"{name}^{{}}", found[name]))
        raise SourceError(f"the source has no branch and no tag {ref!r}", "ref_missing")

    def fetch(self, tip: Tip) -> Copy:
        """Bring the tip into the copy on disk, which `open` found. Raises `SourceError`."""
        return self._fetch_into(self._path, tip)

    def clone(self, tip: Tip) -> Copy:
        """Bring the tip into a new copy beside the one on disk. Raises `SourceError`."""
        remove(self._new_path)
        object_format = "sha1" if len(tip.commit) == _SHA1_DIGITS else "sha256"
        self._git.run(
            [
                *("init", "--quiet", "--bare", "--template="),
                *(f"--object-format={object_format}", "--", str(self._new_path)),
            ]
        )
        return self._fetch_into(self._new_path, tip)

    def tree(self, copy: Copy) -> CommitTree:
        """Return the files of a copy's commit."""
        return CommitTree(self._git, copy.git_dir, copy.commit)

    def publish(self, copy: Copy, pulled_at: datetime) -> None:
        """Make the copy the one that is served, also by the next process."""
        self._git.run(["update-ref", "--no-deref", "HEAD", copy.commit], git_dir=copy.git_dir)
        self._write_record(copy.git_dir, pulled_at)
        if copy.git_dir != self._path:
            self._move_into_place()

    def record_contact(self, pulled_at: datetime) -> None:
        """Remember that the source was reached, and had nothing new.

        Raises `FileNotFoundError` if the copy is gone, or not one of ours.
        """
        if self._path.is_symlink() or self._read_record(self._path) is None:
            raise FileNotFoundError(errno.ENOENT, "no copy of ours", str(self._path))
        self._write_record(self._path, pulled_at)

    @contextmanager
    def changing(self) -> Generator[None]:
        """Leave nothing half-made behind if the block fails; a disk's fault names the folder.

        What a fetch leaves on a full disk would keep it full.
        """
        try:
            yield
        except (GitError, SourceError, OSError) as error:
            with suppress(OSError):
                self._remove_half_made()
            if isinstance(error, GitError) and git_class(error) == "disk":
                raise GitError(disk_sentence(error, self._path), error.said) from None
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(self._path)
            raise

    def _remove_half_made(self) -> None:
        if not self._path.is_symlink() and self._read_record(self._path) is not None:
            remove_leftovers(self._path)
        if self._read_record(self._new_path) is None:  # else it is whole: `publish` was cut off
            remove(self._new_path)

    def _open(self, git_dir: Path) -> StoredCopy | None:
        pulled_at = None if git_dir.is_symlink() else self._read_record(git_dir)
        if pulled_at is None:
            return None
        restore_configuration(git_dir)
        try:
            commit = self._resolve(git_dir, "HEAD")
        except GitError:
            return None
        return StoredCopy(Copy(git_dir, commit), pulled_at)

    def _move_into_place(self) -> None:
        """Let the new copy take the place of the old one, which is deleted last."""
        remove(self._old_path)
        if os.path.lexists(self._path):
            self._path.rename(self._old_path)
        self._new_path.rename(self._path)
        remove(self._old_path)

    def _fetch_into(self, git_dir: Path, tip: Tip) -> Copy:
        remove_leftovers(git_dir)
        restore_configuration(git_dir)
        self._ask_source(
            [
                *("fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--force"),
                *("--", self._config.url, f"{tip.ref}:{_NEXT}"),
            ],
            git_dir,
        )
        try:
            return Copy(git_dir, self._resolve(git_dir, _NEXT))
        except GitTimeoutError:
            raise
        except GitError:
            message = f"what the source calls {self._config.ref!r} is not a commit"
            raise SourceError(message, "ref_missing") from None

    def _ask_source(self, arguments: list[str], git_dir: Path | None = None) -> bytes:
        """Run a command that contacts the source: if it fails, that is a `SourceError`."""
        try:
            return self._git.run(arguments, git_dir=git_dir, login=self._login())
        except GitError as error:
            name = "policy" if isinstance(error, GitOutputError) else git_class(error)
            if name == "disk":
                raise  # ours, whatever git was doing
            raise SourceError(str(error), name or "other", said=error.said) from None

    def _login(self) -> Login | None:
        credential = self._config.credential
        if credential is None:
            return None
        token = credential.token.reveal()
        if token is None:
            message = f"the token of this host is not set: {credential.token_env}"
            raise SourceError(message, "auth")
        try:
            return Login(self._config.url, credential.token_user, token)
        except ValueError as error:
            raise SourceError(str(error), "auth") from None

    def _resolve(self, git_dir: Path, name: str) -> str:
        arguments = ["rev-parse", "--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}"]
        return self._git.run(arguments, git_dir=git_dir).decode().strip()

    def _read_head(self) -> str | None:
        """Return the commit id that `publish` wrote; None if that isn't what is there."""
        try:
            head = read_regular_file(self._path / "HEAD", _MAX_HEAD_BYTES).decode()
        except (OSError, UnicodeDecodeError):
            return None
        commit = head.removesuffix("\n")
        return commit if _OBJECT_ID.fullmatch(commit) else None

    def _read_record(self, git_dir: Path) -> datetime | None:
        """Return when the copy's source was last reached; None for a copy of another source."""
        path = git_dir / RECORD
        try:
            # Only a regular file: a pipe in its place would never end.
            record: Any = json.loads(path.read_bytes()) if path.is_file() else None
            source = (record["url"], record["ref"])
            pulled_at = datetime.fromisoformat(record["pulled_at"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        is_ours = source == (self._config.url, self._config.ref) and pulled_at.tzinfo is not None
        return pulled_at if is_ours else None

    def _write_record(self, git_dir: Path, pulled_at: datetime) -> None:
        record = {
            "url": self._config.url,
            "ref": self._config.ref,
            "pulled_at": pulled_at.isoformat(),
        }
        # Always one name: what those leave that are killed here doesn't pile up.
        written = git_dir / f"tmp_{RECORD}"
        remove(written)
        with written.open("x") as file:
            json.dump(record, file)
        written.replace(git_dir / RECORD)


def _parse_refs(listing: bytes) -> dict[str, str]:
    """Return the ids by ref of what `git ls-remote` wrote."""
    refs: dict[str, str] = {}
    for line in listing.decode(errors="replace").split("\n"):
        object_id, _, name = line.partition("\t")
        if _OBJECT_ID.fullmatch(object_id):
            refs[name] = object_id
    return refs
