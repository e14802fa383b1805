"""The Markdown files of one commit, read from git's objects: there are no links to follow.

What a commit may hold is bounded: a few kilobytes of objects can stand for more files, or for more
text, than any memory holds.
"""

import os
import tempfile
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence, Set
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, Final

from okf_mcp_gateway.source.error_class import SourceError
from okf_mcp_gateway.source.git import Git, GitError
from okf_mcp_server.documents import MAX_DOCUMENT_BYTES
from okf_mcp_server.incremental import Change, Changes, find_listing
from okf_mcp_server.snapshot import Listing, Snapshot
from okf_mcp_server.tree import NO_MARKDOWN, SUFFIX, TreeEntry

MAX_LISTING_BYTES: Final = 256 * 1024 * 1024
"""How long git's list of a commit's files may be: some million files."""

MAX_MARKDOWN_FILES: Final = 250_000
"""How many of them may be Markdown."""

MAX_MARKDOWN_BYTES: Final = 1024 * 1024 * 1024
"""How large those may be together that are small enough to be documents."""

MAX_CHANGES: Final = 1000
"""How many of them may have changed since an earlier commit, that not all are listed."""

_REGULAR_FILES: Final = frozenset({b"100644", b"100755"})

_SUFFIX: Final = SUFFIX.encode()


class CommitTree:
    """The `FileTree` of a commit: the key of an entry is its blob's id.

    Its methods raise `GitError` where the repository has lost an object, and `SourceError` where
    the commit passes a bound.
    """

    def __init__(self, git: Git, git_dir: Path, commit: str) -> None:
        self._git = git
        self._git_dir = git_dir
        self._commit = commit

    def entries(self, roots: Sequence[PurePosixPath]) -> Iterator[TreeEntry]:
        """Yield the regular Markdown files under the roots; links and submodules are left out."""
        # All are counted before the first is made use of, which costs more.
        for path, blob, size in list(self._files(roots)):
            yield TreeEntry(path.decode(errors="surrogateescape"), blob.decode(), size)

    def read(self, entries: Iterable[TreeEntry]) -> Iterator[tuple[TreeEntry, bytes | OSError]]:
        """Yield each entry with the bytes of its blob, all by one git process."""
        wanted = list(entries)
        answers = self._answers("--batch", [entry.key for entry in wanted])
        with closing(answers):
            for entry, answer in zip(wanted, answers, strict=True):
                _, size = _blob_and_size(answer)
                content = answer.take(size)
                answer.take(1)  # the line end that follows each blob
                yield entry, content

    def changes(self, previous: Snapshot) -> Changes | None:
        """Return what changed under the roots of an earlier snapshot of the same copy since then.

        It costs git what changed, and not what there is. None where that can't be said or trusted:
        git has the earlier commit no more, one of the two is malformed, so much changed that a list
        of all costs little more, or there may be too much for one commit. `entries` decides then.
        """
        if previous.commit is None or previous.listing is None:
            return None
        try:
            found = self._changes(previous.commit, previous.roots)
        except (GitError, SourceError):
            return None
        listing = find_listing(previous.listing, found) if found is not None else None
        if found is None or listing is None or _is_too_much(listing):
            return None
        return Changes(found, listing)

    def why_empty(self, root: PurePosixPath) -> str:  # noqa: ARG002 - git names all faults the same
        """Return a sentence that says why there is no file under a root."""
        return NO_MARKDOWN

    def _files(self, roots: Sequence[PurePosixPath]) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield path, blob and size of each regular Markdown file under the roots."""
        files = content_bytes = 0
        for line in self._listing(roots):
            if not line.endswith(_SUFFIX):
                continue
            fields, _, path = line.partition(b"\t")
            mode, _, blob, digits = fields.split()
            if mode not in _REGULAR_FILES:
                continue
            if not digits.isdigit():  # git writes BAD for an object that it doesn't find
                raise _lost(blob)
            size = int(digits)
            files += 1
            content_bytes += size if size <= MAX_DOCUMENT_BYTES else 0
            if files > MAX_MARKDOWN_FILES:
                raise _too_much(f"{MAX_MARKDOWN_FILES} Markdown files")
            if content_bytes > MAX_MARKDOWN_BYTES:
                raise _too_much(f"{MAX_MARKDOWN_BYTES // 1024 // 1024} MiB of Markdown")
            yield path, blob, size

    def _changes(self, commit: str, roots: Sequence[PurePosixPath]) -> list[Change] | None:
        """Return what changed since a commit; None for more than `MAX_CHANGES`."""
        blobs: list[tuple[str, str | None, str | None]] = []
        arguments = ["diff-tree", "-r", "-z", "--no-renames", commit, self._commit]
        with closing(self._lines(arguments, roots)) as lines:
            for line, path in zip(lines, lines, strict=True):
                old_mode, new_mode, old, new, _ = line.removeprefix(b":").split()
                before = old.decode() if old_mode in _REGULAR_FILES else None
                after = new.decode() if new_mode in _REGULAR_FILES else None
                if not path.endswith(_SUFFIX) or (before is None and after is None):
                    continue
                if len(blobs) == MAX_CHANGES:
                    return None
                blobs.append((path.decode(errors="surrogateescape"), before, after))
        sizes = self._sizes({blob for _, *pair in blobs for blob in pair if blob})

        def entry(path: str, blob: str | None) -> TreeEntry | None:
            return TreeEntry(path, blob, sizes[blob]) if blob else None

        return [Change(path, entry(path, old), entry(path, new)) for path, old, new in blobs]

    def _sizes(self, blobs: Set[str]) -> dict[str, int]:
        """Return how large blobs are; none of them is read."""
        sizes: dict[str, int] = {}
        for answer in self._answers("--batch-check", blobs):
            blob, size = _blob_and_size(answer)
            sizes[blob] = size
        return sizes

    def _listing(self, roots: Sequence[PurePosixPath]) -> Iterator[bytes]:
        """Yield the line of each file under the roots, as `git ls-tree` writes it."""
        arguments = ["ls-tree", "-r", "-z", "-l", "--full-tree", self._commit]
        return self._lines(arguments, roots)

    def _answers(self, mode: str, questions: Collection[str]) -> Generator["_Reader"]:
        """Ask one `git cat-file` about many objects; yield its output once for each question."""
        if not questions:
            return
        with _scratch_file(self._git_dir) as stdin:
            stdin.writelines(f"{question}\n".encode() for question in questions)
            stdin.seek(0)
            with closing(
                self._git.stream(["cat-file", mode], git_dir=self._git_dir, stdin=stdin)
            ) as chunks:
                reader = _Reader(chunks)
                for _ in questions:
                    yield reader

    def _lines(self, arguments: Sequence[str], roots: Sequence[PurePosixPath]) -> Generator[bytes]:
        """Yield what a command writes about the files under the roots, by its NULs."""
        whole = PurePosixPath(".") in roots
        paths = [] if whole else [f"{root}/" for root in roots]
        listed_bytes = 0
        line = bytearray()
        with closing(self._git.stream([*arguments, "--", *paths], git_dir=self._git_dir)) as chunks:
            for chunk in chunks:
                listed_bytes += len(chunk)
                if listed_bytes > MAX_LISTING_BYTES:
                    raise _too_much(f"{MAX_LISTING_BYTES // 1024 // 1024} MiB of file names")
                end, *others = chunk.split(b"\0")
                line += end
                for other in others:
                    yield bytes(line)
                    line = bytearray(other)


def _is_too_much(listing: Listing) -> bool:
    return len(listing.files) > MAX_MARKDOWN_FILES or listing.size > MAX_MARKDOWN_BYTES


def _scratch_file(folder: Path) -> IO[bytes]:
    """Return a file that goes when it is closed; in memory where the system has such files.

    So a copy on a full or a read-only disk can be read.
    """
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("questions"), "w+b")
    return tempfile.TemporaryFile(dir=folder)


def _blob_and_size(answer: "_Reader") -> tuple[str, int]:
    """Read the line with which `git cat-file` begins its answer about a blob."""
    blob, *rest = answer.line().split()
    if rest[:1] != [b"blob"]:
        raise _lost(blob)
    return blob.decode(), int(rest[1])


def _lost(blob: bytes) -> GitError:
    return GitError(f"the copy has lost the blob {blob.decode()}")


def _too_much(what: str) -> SourceError:
    sentence = f"the commit has more than {what}; name the folders to serve by `roots`"
    return SourceError(sentence, "policy")


class _Reader:
    """Takes lines and counted bytes from chunks; raises `GitError` where they end too soon."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._buffer = bytearray()

    def line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            self._fill()
        return self.take(end + 1)[:-1]

    def take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _fill(self) -> None:
        chunk = next(self._chunks, None)
        if chunk is None:
            raise GitError("git ended before it had answered")
        self._buffer += chunk
