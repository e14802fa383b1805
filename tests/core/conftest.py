"""What the tests of the core share: snapshots of files in memory."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import pytest

from okf_mcp_server import Snapshot, load_docs
from okf_mcp_server.snapshot import WHOLE_REPOSITORY
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
                yield TreeEntry(PurePosixPath(path), repr(content), size)

    def read(self, entries: Iterable[TreeEntry]) -> Iterator[tuple[TreeEntry, bytes | OSError]]:
        for entry in entries:
            yield entry, self._files[str(entry.path)]

    def why_empty(self, root: PurePosixPath) -> str:
        return f"nothing is under {root}"


_NOBODY = 65534


@pytest.fixture
def plain_user_folder() -> Iterator[Path]:
    """A folder of a user whom permissions bind, not root, and who this process is meanwhile."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        if user == 0:
            os.chown(folder, _NOBODY, -1)
            os.seteuid(_NOBODY)
        try:
            yield folder
        finally:
            os.seteuid(user)


@pytest.fixture
def load() -> Callable[..., Snapshot]:
    """Load files in memory: `load(files, roots=, commit=, previous=, owner=)`."""

    def load(
        files: Files,
        *,
        owner: str = "acme",
        roots: Sequence[str] | None = None,
        commit: str | None = None,
        previous: Snapshot | None = None,
    ) -> Snapshot:
        return load_docs(
            MemoryTree(files),
            owner=owner,
            roots=[PurePosixPath(root) for root in roots] if roots else WHOLE_REPOSITORY,
            commit=commit,
            previous=previous,
        )

    return load
