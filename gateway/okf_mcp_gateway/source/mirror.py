"""One owner's bare, shallow copy of its source: probe, fetch, verify, publish.

Nothing replaces the served commit before `publish`, and nothing on disk is deleted before what
replaces it is whole (P4). A copy is updated in place; a new one, or one for a broken copy, is made
beside it and moved there. `HEAD` names the served commit.
"""

import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.source.commit_tree import CommitTree
from okf_mcp_gateway.source.error_class import SourceError, error_class
from okf_mcp_gateway.source.git import Git, GitError, GitTimeoutError
from okf_mcp_gateway.source.login import Login

MAX_FETCHES: Final = 200
"""How often new commits are fetched into one copy before it is replaced by a new one."""

_NEXT: Final = "refs/okf/next"
"""Our private ref, at what the last fetch brought."""

_RECORD: Final = "okf.json"
"""The file in the copy that says which source it is of, and when that was last reached."""

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
    """The copy of one owner; used by one thread at a time."""

    def __init__(self, config: OwnerConfig, cache_dir: Path, git: Git) -> None:
        self._config = config
        self._git = git
        self._path = cache_dir / config.name
        # An owner's name never begins with a dot, so these are nobody's copy.
        self._new_path = cache_dir / f".{config.name}.new"
        self._old_path = cache_dir / f".{config.name}.old"

    def open(self) -> StoredCopy | None:
        """Return the copy on disk; None if there is none, a broken one, or another source's.

        The gate is that git finds the commit that `HEAD` names in this very repository (P4, P6).
        """
        if not os.path.lexists(self._path) and (self._new_path / _RECORD).exists():
            self._new_path.rename(self._path)  # `publish` was cut off between its two renames
        pulled_at = None if self._path.is_symlink() else self._read_record()
        if pulled_at is None:
            return None
        try:
            commit = self._resolve(self._path, "HEAD")
        except GitError:
            return None
        return StoredCopy(Copy(self._path, commit), pulled_at)

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
        raise SourceError(f"the source has no branch and no tag {ref!r}")

    def is_worn(self) -> bool:
        """Say whether so much was fetched into the copy on disk that a new one is cheaper.

        A shallow fetch leaves what came before behind, and tells the source of each commit it had.
        """
        try:
            return (self._path / "shallow").read_bytes().count(b"\n") > MAX_FETCHES
        except OSError:
            return False

    def fetch(self, tip: Tip) -> Copy:
        """Bring the tip into the copy on disk, which `open` found. Raises `SourceError`."""
        return self._fetch_into(self._path, tip)

    def clone(self, tip: Tip) -> Copy:
        """Bring the tip into a new copy beside the one on disk. Raises `SourceError`."""
        _remove(self._new_path)
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
        if copy.git_dir == self._path:
            return
        _remove(self._old_path)
        if os.path.lexists(self._path):
            self._path.rename(self._old_path)
        self._new_path.rename(self._path)
        _remove(self._old_path)

    def record_contact(self, pulled_at: datetime) -> None:
        """Remember that the source was reached, and had nothing new.

        Raises `FileNotFoundError` or `IsADirectoryError` if the copy is gone, or not one of ours.
        """
        self._write_record(self._path, pulled_at)

    def _fetch_into(self, git_dir: Path, tip: Tip) -> Copy:
        _remove_leftovers(git_dir)
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
            raise SourceError(message) from None

    def _ask_source(self, arguments: list[str], git_dir: Path | None = None) -> bytes:
        """Run a command that contacts the source: if it fails, that is a `SourceError`."""
        try:
            return self._git.run(arguments, git_dir=git_dir, login=self._login())
        except GitError as error:
            if error_class(error) == "disk":
                raise  # ours, whatever git was doing
            raise SourceError(str(error), timed_out=isinstance(error, GitTimeoutError)) from None

    def _login(self) -> Login | None:
        credential = self._config.credential
        if credential is None:
            return None
        token = credential.token.reveal()
        if token is None:
            raise SourceError(f"the token of this host is not set: {credential.token_env}")
        try:
            return Login(self._config.url, credential.token_user, token)
        except ValueError as error:
            raise SourceError(str(error)) from None

    def _resolve(self, git_dir: Path, name: str) -> str:
        arguments = ["rev-parse", "--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}"]
        return self._git.run(arguments, git_dir=git_dir).decode().strip()

    def _read_record(self) -> datetime | None:
        """Return when the copy's source was last reached; None for a copy of another source."""
        path = self._path / _RECORD
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
        descriptor, written = tempfile.mkstemp(prefix="tmp_", dir=git_dir)
        with os.fdopen(descriptor, "w") as file:
            json.dump(record, file)
        Path(written).replace(git_dir / _RECORD)


def _parse_refs(listing: bytes) -> dict[str, str]:
    """Return the ids by ref of what `git ls-remote` wrote."""
    refs: dict[str, str] = {}
    for line in listing.decode(errors="replace").split("\n"):
        object_id, _, name = line.partition("\t")
        if _OBJECT_ID.fullmatch(object_id):
            refs[name] = object_id
    return refs


def _remove(path: Path) -> None:
    """Remove what is at `path`, be it a folder, a file or a link, or nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_leftovers(git_dir: Path) -> None:
    """Remove the locks and half-written files of a git that was killed: no other one runs here."""
    for folder, _, files in os.walk(git_dir):
        for name in files:
            if name.endswith(".lock") or name.startswith("tmp_"):
                Path(folder, name).unlink(missing_ok=True)
