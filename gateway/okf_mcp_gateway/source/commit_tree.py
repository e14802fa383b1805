"""The Markdown files of one commit, read from git's objects: there are no links to follow."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Final

from okf_mcp_gateway.source.git import Git, GitError
from okf_mcp_server.tree import NO_MARKDOWN, SUFFIX, TreeEntry

_REGULAR_FILES: Final = frozenset({b"100644", b"100755"})

_SUFFIX: Final = SUFFIX.encode()


class CommitTree:
    """The `FileTree` of a commit: the key of an entry is its blob's id.

    Its methods raise `GitError` where the repository has lost an object.
    """

    def __init__(self, git: Git, git_dir: Path, commit: str) -> None:
        self._git = git
        self._git_dir = git_dir
        self._commit = commit

    def entries(self, roots: Sequence[PurePosixPath]) -> Iterator[TreeEntry]:
        """Yield the regular Markdown files under the roots; links and submodules are left out."""
        whole = PurePosixPath(".") in roots
        paths = [] if whole else [f"{root}/" for root in roots]
        arguments = ["ls-tree", "-r", "-z", "-l", "--full-tree", self._commit, "--", *paths]
        for line in self._git.run(arguments, git_dir=self._git_dir).split(b"\0"):
            if not line.endswith(_SUFFIX):
                continue
            fields, _, path = line.partition(b"\t")
            mode, _, blob, size = fields.split()
            if mode in _REGULAR_FILES:
                if not size.isdigit():  # git writes BAD for an object that it doesn't find
                    raise _lost(blob)
                name = PurePosixPath(path.decode(errors="surrogateescape"))
                yield TreeEntry(name, blob.decode(), int(size))

    def read(self, entries: Iterable[TreeEntry]) -> Iterator[tuple[TreeEntry, bytes | OSError]]:
        """Yield each entry with the bytes of its blob, all by one git process."""
        wanted = list(entries)
        with tempfile.TemporaryFile(dir=self._git_dir) as questions:
            questions.writelines(f"{entry.key}\n".encode() for entry in wanted)
            questions.seek(0)
            arguments = ["cat-file", "--batch"]
            with closing(
                self._git.stream(arguments, git_dir=self._git_dir, stdin=questions)
            ) as chunks:
                answers = _Reader(chunks)
                for entry in wanted:
                    blob, *rest = answers.line().split()
                    if rest[:1] != [b"blob"]:
                        raise _lost(blob)
                    content = answers.take(int(rest[1]))
                    answers.take(1)  # the line end that follows each blob
                    yield entry, content

    def why_empty(self, root: PurePosixPath) -> str:  # noqa: ARG002 - git names all faults the same
        """Return a sentence that says why there is no file under a root."""
        return NO_MARKDOWN


def _lost(blob: bytes) -> GitError:
    return GitError(f"the copy has lost the blob {blob.decode()}")


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
