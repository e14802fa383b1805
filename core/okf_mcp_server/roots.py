"""Which repository is read, which of its folders, and what its owner is called (D12, D13).

For the stdio server and the linter; the gateway's registry names owners and roots itself.
"""

import logging
import os
import subprocess
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from okf_mcp_server.errors import OkfError

DEFAULT_ROOTS: Final = (
    PurePosixPath("design"),
    PurePosixPath("backlog/docs"),
    PurePosixPath("backlog/decisions"),
)

ROOTS_VARIABLE: Final = "OKF_MCP_ROOTS"
OWNER_VARIABLE: Final = "OKF_MCP_OWNER"

_GIT_SECONDS: Final = 10

log = logging.getLogger(__name__)


class RootsError(OkfError):
    """There is no folder to search: a scan root or the repository itself can't be one."""


class OwnerError(OkfError):
    """The owner's name can't stand in a URI."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is read of one repository, and under which name."""

    top: Path
    """The top level of the git work tree; of no repository, the folder itself."""
    owner: str
    roots: tuple[PurePosixPath, ...]
    """Relative to `top`."""
    has_chosen_roots: bool
    """Whether somebody named the roots: they are not `DEFAULT_ROOTS` for want of others."""


def choose_scope(
    folder: Path,
    *,
    roots: str | Sequence[str] | None,
    owner: str | None,
    environ: Mapping[str, str],
) -> Scope:
    """Return what is read for `folder`, which lies anywhere in the repository.

    `roots` and `owner` are the flags. A folder outside of git stands for itself, with a warning in
    the log. Raises `RootsError` for a folder that isn't there, a bare repository, or a root that
    leaves the repository, and `OwnerError` for a name that no URI can hold.
    """
    name = "the working directory" if folder == Path() else folder
    try:
        folder = folder.resolve(strict=True)
    except (OSError, ValueError) as error:  # ValueError: a name that no folder can have
        reason = error.strerror if isinstance(error, OSError) else error
        raise RootsError(f"{name} can't be read: {reason}") from None
    if not folder.is_dir():
        raise RootsError(f"{name} is not a folder")
    top = find_top(folder, environ)
    if top is None:
        log.warning("No git repository found: folder=%s", folder.name)
    chosen = choose_roots(roots, environ)
    return Scope(
        top=top or folder,
        owner=choose_owner(owner, environ, top, folder),
        roots=chosen or DEFAULT_ROOTS,
        has_chosen_roots=bool(chosen),
    )


def add_scope_flags(parser: ArgumentParser) -> None:
    """Add `--roots` and `--owner`, which `choose_scope` takes."""
    *folders, last = map(str, DEFAULT_ROOTS)
    parser.add_argument(
        "--roots",
        help="folders to search, from the repository's top, comma-separated; '.' is all of it "
        f"({ROOTS_VARIABLE}, colon-separated; {', '.join(folders)} and {last})",
    )
    parser.add_argument(
        "--owner", help=f"the owner's name in URIs ({OWNER_VARIABLE}; the name of the folder)"
    )


def find_top(folder: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the top level of the git work tree that `folder` is in; None if there is none.

    git is found in the `PATH` of `environ`; what else is there for git, as in a hook, is left out,
    for it would name another repository. Raises `RootsError` in a bare repository, which has no
    files to read, and where the files of a repository lie elsewhere.
    """
    # A repository of another user is none to git, unless it is told not to mind. Nothing of the
    # repository is run here, and in a container its files are often another user's.
    command = ["git", "-c", "safe.directory=*", "rev-parse", "--is-bare-repository"]
    try:
        found = subprocess.run(  # noqa: S603 - the command is a constant
            [*command, "--show-toplevel"],
            cwd=folder,
            env={name: value for name, value in environ.items() if not name.startswith("GIT_")},
            capture_output=True,
            check=False,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    is_bare, _, top = found.stdout.decode(errors="surrogateescape").partition("\n")
    if is_bare == "true":
        raise RootsError(
            f"{folder.name} is a bare git repository, which has no files to read; "
            "clone it, and run this in the clone"
        )
    if found.returncode != 0 or not top:
        return None
    path = Path(top.removesuffix("\n"))
    # A work tree that the configuration names may be anything, above the folder, too.
    if not (folder.resolve().is_relative_to(path) and os.path.lexists(path / ".git")):
        raise RootsError(
            f"{folder.name} lies outside of its git repository's files (core.worktree); "
            "nothing outside of a repository is read"
        )
    return path


def choose_roots(
    flag: str | Sequence[str] | None, environ: Mapping[str, str]
) -> tuple[PurePosixPath, ...]:
    """Return the scan roots: the flag, else `OKF_MCP_ROOTS`, else none.

    The flag is comma-separated text or a sequence, the variable is colon-separated; the first that
    names a folder wins, and nothing is merged. Raises `RootsError` for a path that leaves the
    repository.
    """
    named = flag.split(",") if isinstance(flag, str) else list(flag or ())
    for candidates in (named, environ.get(ROOTS_VARIABLE, "").split(":")):
        roots = tuple(_root(text.strip()) for text in candidates if text.strip())
        if roots:
            return tuple(dict.fromkeys(roots))
    return ()


def choose_owner(flag: str | None, environ: Mapping[str, str], top: Path | None, cwd: Path) -> str:
    """Return the owner's name: the flag, else `OKF_MCP_OWNER`, else the name of a folder.

    The folder is the repository's top level, or the working directory where there is none. Raises
    `OwnerError` for a name that no URI can hold.
    """
    named = (flag or "").strip() or environ.get(OWNER_VARIABLE, "").strip()
    name = named or (top or cwd.resolve()).name or "owner"
    if name in {".", ".."} or any("\ud800" <= character <= "\udfff" for character in name):
        message = f"the owner's name {name!r} can't stand in a URI; give another one with --owner"
        raise OwnerError(message)
    return name


def _root(text: str) -> PurePosixPath:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not _may_be_a_name(text):
        message = f"the scan root {text!r} must be a relative path inside the repository"
        raise RootsError(message)
    return path


def _may_be_a_name(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
