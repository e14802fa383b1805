"""Files in memory, for a loader to read from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TypeAlias

from okf_mcp_server.tree import SUFFIX, TreeEntry

Files: TypeAlias = Mapping[str, str | bytes | OSError]
"""By path, what a file holds, or why it can't be read."""


class MemoryTree:
    """A `FileTree` of files in memory; equal contents have equal keys, as blobs have."""

    def __init__(self, files: Files) -> None:
        self._files = {
            path: content.encode() if isinstance(content, str) else content
            for path, content in files.items()
        }

    def entries(self, roots: Sequence[PurePosixPath]) -> Iterable[TreeEntry]:
        for path, content in self._files.items():
            is_below = any(PurePosixPath(path).is_relative_to(root) for root in roots)
            if is_below and path.endswith(SUFFIX):
                size = len(content) if isinstance(content, bytes) else 0
                yield TreeEntry(path, repr(content), size)

    def read(self, entries: Iterable[TreeEntry]) -> Iterator[tuple[TreeEntry, bytes | OSError]]:
        for entry in entries:
            yield entry, self._files[entry.path]

    def why_empty(self, root: PurePosixPath) -> str:
        return f"nothing is under {root}"
