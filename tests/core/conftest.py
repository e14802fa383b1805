"""What the tests of the core share: snapshots of files in memory."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import pytest

from okf_mcp_server import Snapshot, load_docs
from okf_mcp_server.snapshot import WHOLE_REPOSITORY
from support.memory_tree import Files, MemoryTree

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
