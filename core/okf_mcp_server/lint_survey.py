"""What the linter's rules look at: what the server would serve, and what lies around it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import Final

from okf_mcp_server.documents import Document
from okf_mcp_server.roots import DEFAULT_ROOTS, Scope
from okf_mcp_server.snapshot import WHOLE_REPOSITORY, Snapshot, load_docs
from okf_mcp_server.tree import SUFFIX, WorkingTree, is_markdown

_SPELLINGS: Final = frozenset(
    {SUFFIX, ".markdown", ".mdown", ".mdwn", ".mkdn", ".mkd", ".mdtxt", ".mdtext", ".mdx", ".rmd"}
)
"""How the names of Markdown files end, in lower case."""


@dataclass(frozen=True, slots=True)
class Survey:
    """One repository as the rules see it."""

    owner: str
    roots: tuple[PurePosixPath, ...]
    snapshot: Snapshot
    """What the server would serve."""
    misnamed: tuple[Document, ...]
    """What it would serve but for the end of a file's name."""
    outside: tuple[Document, ...]
    """What opts in beyond the scan roots; empty where somebody chose them."""
    has_file: Callable[[PurePosixPath], bool]
    """Whether there is a file, or a link, at a path of the repository; false behind a link."""


def survey(scope: Scope) -> Survey:
    """Read a repository: the scan roots as the server does, then all else that a rule asks for."""
    snapshot = load_docs(WorkingTree(scope.top), owner=scope.owner, roots=scope.roots)
    is_chosen = scope.roots is not DEFAULT_ROOTS
    wider = load_docs(
        WorkingTree(scope.top, accepts=_is_markdown_somehow),
        owner=scope.owner,
        roots=scope.roots if is_chosen else WHOLE_REPOSITORY,
        previous=snapshot,
    )
    opted_in = sorted((*wider.documents, *wider.shadowed), key=lambda document: str(document.path))
    misnamed = tuple(each for each in opted_in if not is_markdown(each.path.name))
    outside = tuple(
        each
        for each in opted_in
        if is_markdown(each.path.name)
        and not any(each.path.is_relative_to(root) for root in scope.roots)
    )
    return Survey(
        owner=scope.owner,
        roots=scope.roots,
        snapshot=snapshot,
        misnamed=misnamed,
        outside=outside,
        has_file=lambda path: _has_file(scope.top, path),
    )


def _is_markdown_somehow(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in _SPELLINGS or is_markdown(name)


def _has_file(top: Path, path: PurePosixPath) -> bool:
    """Say whether there is a file, without a look out of the repository (D10)."""
    if path.is_absolute() or ".." in path.parts:
        return False
    folders = [top / folder for folder in path.parents][:-1]
    try:
        if any(folder.is_symlink() for folder in folders):
            return False
        status = (top / path).lstat()
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return False
    return S_ISREG(status.st_mode) or (top / path).is_symlink()
