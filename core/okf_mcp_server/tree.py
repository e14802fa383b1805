"""What a loader reads from: the Markdown files of a work tree, or of a commit."""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

SUFFIX: Final = ".md"
"""What the name of a Markdown file ends with, in lower case (D1)."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A regular Markdown file of a tree."""

    path: PurePosixPath
    """Relative to the repository's top level; bytes that are not UTF-8 are lone surrogates."""
    key: str
    """The identity of the content: equal keys, equal bytes."""
    size: int
    """In bytes."""


class FileTree(Protocol):
    """The Markdown files of one repository at one moment, none of them reached through a link."""

    def entries(self, roots: Sequence[PurePosixPath]) -> Iterable[TreeEntry]:
        """Return the regular Markdown files under the roots, in any order.

        A root is relative to the top level; `.` is all of it. One that isn't there has no files.
        """
        ...

    def read(self, entries: Iterable[TreeEntry]) -> Iterator[tuple[TreeEntry, bytes | OSError]]:
        """Yield each entry with its bytes, or with the error that keeps them from us."""
        ...


class WorkingTree:
    """The files below a folder, as they are now; links are not followed, `.git` is left out."""

    def __init__(self, top: Path) -> None:
        self._top = top

    def entries(self, roots: Sequence[PurePosixPath]) -> Iterable[TreeEntry]:
        """Return the regular Markdown files; a folder that can't be listed has none."""
        for root in roots:
            if not self._holds_link(root):
                yield from self._walk(self._top / root)

    def read(self, entries: Iterable[TreeEntry]) -> Iterator[tuple[TreeEntry, bytes | OSError]]:
        """Read each file; one that became a link since it was listed is an error."""
        for entry in entries:
            try:
                yield entry, self._read(entry.path)
            except OSError as error:
                yield entry, error

    def _holds_link(self, root: PurePosixPath) -> bool:
        below_top = [root, *root.parents][:-1]
        return any(os.path.islink(self._top / path) for path in below_top)

    def _walk(self, root: Path) -> Iterator[TreeEntry]:
        for folder, folders, files in os.walk(root, followlinks=False):
            folders[:] = [name for name in folders if name != ".git"]
            for name in files:
                if not name.endswith(SUFFIX):
                    continue
                path = Path(folder, name)
                relative = PurePosixPath(path.relative_to(self._top).as_posix())
                try:
                    status = path.lstat()
                except OSError:  # a folder that may only be listed: let `read` say so
                    yield TreeEntry(relative, f"unknown:{relative}", 0)
                    continue
                if stat.S_ISREG(status.st_mode):
                    key = f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}:{status.st_size}"
                    yield TreeEntry(relative, key, status.st_size)

    def _read(self, path: PurePosixPath) -> bytes:
        descriptor = os.open(self._top / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            return file.read()
