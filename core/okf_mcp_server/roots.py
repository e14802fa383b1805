"""Which folders of a repository are searched, and what its owner is called (D12, D13).

For the stdio server only; the gateway's registry names owners and roots itself.
"""

import subprocess
from collections.abc import Mapping, Sequence
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


class RootsError(OkfError):
    """A scan root lies outside the repository, or isn't a relative path."""


class OwnerError(OkfError):
    """The owner's name can't stand in a URI."""


def find_top(folder: Path) -> Path | None:
    """Return the top level of the git work tree that `folder` is in; None if there is none."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--show-toplevel"],  # noqa: S607 - git comes from the user's PATH
            cwd=folder,
            capture_output=True,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    top = found.stdout.decode(errors="surrogateescape").removesuffix("\n")
    return Path(top) if found.returncode == 0 and top else None


def choose_roots(
    flag: str | Sequence[str] | None, environ: Mapping[str, str]
) -> tuple[PurePosixPath, ...]:
    """Return the scan roots: the flag, else `OKF_MCP_ROOTS`, else `DEFAULT_ROOTS`.

    The flag is comma-separated text or a sequence, the variable is colon-separated; the first that
    names a folder wins, and nothing is merged. Raises `RootsError` for a path that leaves the
    repository.
    """
    named = flag.split(",") if isinstance(flag, str) else list(flag or ())
    for candidates in (named, environ.get(ROOTS_VARIABLE, "").split(":")):
        roots = tuple(_root(text.strip()) for text in candidates if text.strip())
        if roots:
            return tuple(dict.fromkeys(roots))
    return DEFAULT_ROOTS


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
    if path.is_absolute() or ".." in path.parts:
        message = f"the scan root {text!r} must be a relative path inside the repository"
        raise RootsError(message)
    return path
