"""What the linter's rules look at: what the server would serve, and what lies around it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from stat import S_ISLNK, S_ISREG
from typing import Final

from okf_mcp_server.documents import Diagnostic, Document, printable
from okf_mcp_server.roots import Scope
from okf_mcp_server.snapshot import WHOLE_REPOSITORY, Snapshot, load_docs
from okf_mcp_server.tree import SUFFIX, WorkingTree, is_markdown

_SPELLINGS: Final = frozenset(
    {SUFFIX, ".markdown", ".mdown", ".mdwn", ".mkdn", ".mkd", ".mdtxt", ".mdtext", ".mdx", ".rmd"}
)
"""How the names of Markdown files end, in lower case."""

_MAX_PATH_CHARACTERS: Final = 1024
"""How long a link's path may be to be looked for: each of its folders is."""


@dataclass(frozen=True, slots=True)
class Survey:
    """One repository as the rules see it."""

    owner: str
    roots: tuple[PurePosixPath, ...]
    snapshot: Snapshot
    """What the server would serve."""
    diagnostics: tuple[Diagnostic, ...]
    """The loader's, without those of default roots: hardly a repository has all of these."""
    misnamed: tuple[Document, ...]
    """What it would serve but for the end of a file's name."""
    outside: tuple[Document, ...]
    """What opts in beyond the scan roots; empty where somebody chose them."""
    why_missing: Callable[[PurePosixPath], str | None]
    """Why there is no file at a path of the repository, as the end of a sentence; None if there is
    one, or a link."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule finds: a diagnostic without the rule's name and severity."""

    path: str
    message: str
    line: int = 1
    paths: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, document: Document, message: str, line: int = 1, paths: tuple[str, ...] = ()
    ) -> "Found":
        """Return what is found in a document."""
        return cls(printable(document.path), message, line, paths)


def survey(scope: Scope) -> Survey:
    """Read a repository: the scan roots as the server does, then all else that a rule asks for."""
    snapshot = load_docs(WorkingTree(scope.top), owner=scope.owner, roots=scope.roots)
    wider = load_docs(
        WorkingTree(scope.top, accepts=_is_markdown_somehow),
        owner=scope.owner,
        roots=scope.roots if scope.has_chosen_roots else WHOLE_REPOSITORY,
        previous=snapshot,
    )
    opted_in = sorted((*wider.documents, *wider.shadowed), key=lambda document: str(document.path))
    return Survey(
        owner=scope.owner,
        roots=scope.roots,
        snapshot=snapshot,
        diagnostics=tuple(
            each
            for each in snapshot.diagnostics
            if scope.has_chosen_roots or each.rule != "empty-root"
        ),
        misnamed=tuple(each for each in opted_in if not is_markdown(each.path.name)),
        outside=tuple(
            each
            for each in opted_in
            if is_markdown(each.path.name)
            and not any(each.path.is_relative_to(root) for root in scope.roots)
        ),
        why_missing=lambda path: _why_missing(scope.top, path),
    )


def _is_markdown_somehow(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in _SPELLINGS or is_markdown(name)


def _why_missing(top: Path, path: PurePosixPath) -> str | None:
    """Look for a file, and never out of the repository (D10)."""
    if path.is_absolute() or ".." in path.parts:
        return "lies outside of the repository"
    if len(str(path)) > _MAX_PATH_CHARACTERS:
        return "doesn't exist"
    try:
        if any((top / folder).is_symlink() for folder in list(path.parents)[:-1]):
            return "lies behind a symbolic link, which is not followed"
        mode = (top / path).lstat().st_mode
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return "doesn't exist"
    return None if S_ISREG(mode) or S_ISLNK(mode) else "is no file"
