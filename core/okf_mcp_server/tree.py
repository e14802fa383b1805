"""What a loader reads from: the Markdown files of a work tree, or of a commit."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

SUFFIX: Final = ".md"
"""What the name of a Markdown file ends with, in lower case (D1)."""

NO_MARKDOWN: Final = "this scan root holds no Markdown file; is its name right?"


def is_markdown(name: str) -> bool:
    """Say whether a file of this name may be a document (D1)."""
    return name.endswith(SUFFIX)


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A regular Markdown file of a tree."""

    path: str
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

    def why_empty(self, root: PurePosixPath) -> str:
        """Return a sentence that says why there is no file under a root."""
        ...


class WorkingTree:
    """The files below a folder, as they are now; links are not followed, `.git` is left out."""

    def __init__(self, top: Path, *, accepts: Callable[[str], bool] = is_markdown) -> None:
        """`accepts` says by its name whether a file is listed."""
        self._top = top
        self._accepts = accepts

    def entries(self, roots: Sequence[PurePosixPath]) -> Iterable[TreeEntry]:
        """Return the regular Markdown files, and each folder below a root that can't be listed.

        Such a folder can't be read either: its fault is told as a file's is.
        """
        for root in roots:
            if not self._leads_through_link(root):
                yield from self._walk(self._top / root)

    def read(self, entries: Iterable[TreeEntry]) -> Iterator[tuple[TreeEntry, bytes | OSError]]:
        """Read each file; one that became a link since it was listed is an error."""
        for entry in entries:
            try:
                yield entry, self._read(entry.path)
            except OSError as error:
                yield entry, error

    def why_empty(self, root: PurePosixPath) -> str:
        """Return a sentence that says why there is no file under a root."""
        if self._leads_through_link(root):
            return "this scan root is a symbolic link, or behind one, and links are not followed"
        path = self._top / root
        if not path.exists():
            return "this scan root doesn't exist; is its name right?"
        if not path.is_dir():
            return "this scan root is a file; name the folder that holds it"
        return NO_MARKDOWN

    def _leads_through_link(self, root: PurePosixPath) -> bool:
        below_top = [root, *root.parents][:-1]
        try:
            return any((self._top / path).is_symlink() for path in below_top)
        except OSError:  # it can't be looked at, which a look into it will tell
            return False

    def _walk(self, root: Path) -> Iterator[TreeEntry]:
        # No recursion, which os.walk does before Python 3.12: folders may nest as they like.
        folders = [root]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(folder) as listing:
                    listed = [(each, each.is_dir(follow_symlinks=False)) for each in listing]
            except (FileNotFoundError, NotADirectoryError):  # a root that is none; or it has gone
                continue
            except OSError:
                yield self._unknown(folder)
                continue
            for each, is_folder in listed:
                if is_folder:
                    if each.name != ".git":
                        folders.append(Path(each.path))
                elif self._accepts(each.name) and (entry := self._entry(Path(each.path))):
                    yield entry

    def _entry(self, path: Path) -> TreeEntry | None:
        """Return the entry of a file; None for what is none, such as a link."""
        try:
            status = path.lstat()
        except OSError:  # a folder that may only be listed: let `read` say so
            return self._unknown(path)
        if not stat.S_ISREG(status.st_mode):
            return None
        key = f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}:{status.st_size}"
        return TreeEntry(str(self._relative(path)), key, status.st_size)

    def _unknown(self, path: Path) -> TreeEntry:
        relative = self._relative(path)
        return TreeEntry(str(relative), f"unknown:{relative}", 0)

    def _relative(self, path: Path) -> PurePosixPath:
        return PurePosixPath(path.relative_to(self._top).as_posix())

    def _read(self, path: str) -> bytes:
        descriptor = os.open(self._top / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            return file.read()
