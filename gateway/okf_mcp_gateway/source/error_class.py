"""What kind of trouble an error is: the one word that an operator looks for (H9)."""

import errno
import re
from pathlib import Path
from typing import Final

from okf_mcp_gateway.source.git import GitError, GitTimeoutError
from okf_mcp_gateway.state import ErrorClass
from okf_mcp_server.errors import OkfError


def _any_of(*phrases: str) -> re.Pattern[str]:
    return re.compile("|".join(phrases), re.IGNORECASE)


_NO_ROOM: Final = _any_of(
    *("no space left on device", "disk quota exceeded", "read-only file system", "file too large"),
    "out of diskspace",
)

_DISK: Final = _any_of(
    *(_NO_ROOM.pattern, "input/output error", "insufficient permission for adding an object"),
    *("could not set '' to ''", "could not write config file"),
    "(unable to create|cannot mkdir|could not create).*: (permission denied|not a directory)",
)

_SENTENCES: Final[tuple[tuple[ErrorClass, re.Pattern[str]], ...]] = (
    ("disk", _DISK),
    (
        "policy",
        _any_of(
            *("transport '' not allowed", r"protocol \S+ (not supported|disabled)"),
            *("unable to update url base", r"url returned error: 30\d", "redirects followed"),
        ),
    ),
    ("ref_missing", _any_of("find remote ref", "not our ref", "unadvertised object")),
    (
        "auth",
        _any_of(
            *("authentication failed", "could not read (username|password)", "access denied"),
            "url returned error: 40[13]",
        ),
    ),
    ("dns", _any_of("could not resolve", "resolving timed out")),
    ("connect", _any_of("failed to connect to", "tunnel failed", "from proxy after connect")),
    ("tls", _any_of("ssl", "tls", "certificate")),
    (
        "not_found",
        _any_of(
            *("not found", "does not appear to be a git", "does not exist"),
            *("is this a git repository", "url returned error: 410"),
        ),
    ),
    ("timeout", _any_of("operation too slow", "operation timed out")),
    (
        "corrupt",
        _any_of(
            *("corrupt", "bad object", "bad tree", "missing (blob|tree|commit)", "inflate"),
            *("unresolved delta", "did not send all necessary", "(hash|sha1) mismatch"),
            *("object file .* is empty", "unable to read"),
        ),
    ),
    (
        "connect",
        _any_of(
            *("connect", "empty reply", "timed out", "hung up", "transfer closed", "early eof"),
            *("rpc failed", "invalid index-pack", "expected (flush|response end|'')"),
            *("not closed cleanly", "protocol error", r"url returned error: (407|429|5\d\d)"),
        ),
    ),
)
"""git's and curl's own words; the first that fit any line win, so the vaguest stand last.

What the lines quote is left out. A host that answers 429 or 5xx is as good as not reached.
"""

_QUOTED: Final = re.compile(r"'[^']*'")
"""A URL, a ref, a path: a name of somebody else's choice, which may hold any word."""

_OF_GIT: Final = ("fatal:", "error:")
"""How the lines begin that git says itself; those of the host begin with `remote:`."""

_OF_HOST: Final = "fatal: remote error:"
"""How git repeats what the host says for a reason."""

_HOST_MAY_SAY: Final = frozenset({"auth", "not_found", "ref_missing"})
"""What we believe the host in its own words: its full disk isn't ours."""

_NO_ROOM_ERRORS: Final = frozenset({errno.EDQUOT, errno.EFBIG, errno.ENOSPC, errno.EROFS})

_NOT_THE_DISK: Final = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What the system says of a shortage that isn't the disk's."""


class SourceError(OkfError):
    """The source can't be reached, or doesn't have what we ask for."""

    def __init__(
        self, message: str, error_class: ErrorClass, *, said: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.error_class: ErrorClass = error_class
        self.said = said
        """All lines of git's, if they are git's."""


def error_class(error: Exception) -> ErrorClass:
    """Return the class of what went wrong in a pull."""
    if isinstance(error, SourceError):
        return error.error_class
    if isinstance(error, GitTimeoutError):
        return "timeout"
    if isinstance(error, GitError):
        # git works on the copy; where it asks the source, `git_class` decides.
        return git_class(error) or "corrupt"
    if isinstance(error, OSError):
        is_disk = error.errno not in _NOT_THE_DISK and error.filename != "git"
        return "disk" if is_disk else "other"
    return "other"


def git_class(error: GitError) -> ErrorClass | None:
    """Return the class that git's own sentences tell; None if they tell none."""
    if isinstance(error, GitTimeoutError):
        return "timeout"
    lines = _lines(error)
    for name, words in _SENTENCES:
        if any(_tells(line, name, words) for line in lines):
            return name
    return None


def lacks_room(error: Exception) -> bool:
    """Say whether the disk takes nothing more, so that a new copy has no place either."""
    if isinstance(error, GitError):
        return any(_tells(line, "disk", _NO_ROOM) for line in _lines(error))
    return isinstance(error, OSError) and error.errno in _NO_ROOM_ERRORS


def disk_sentence(error: GitError, git_dir: Path) -> str:
    """Return git's sentence on a fault of the disk, and what it lacks: why, and in which folder."""
    text = str(error)
    reason = next((line for line in _lines(error) if _tells(line, "disk", _NO_ROOM)), "")
    if reason not in text:
        text = f"{text} ({reason})"
    return text if str(git_dir.parent) in text else f"{text} (in {git_dir})"


def _lines(error: GitError) -> list[str]:
    """Return the lines of git's own, its sentence first; that is the host's if git has none."""
    sentence = str(error)
    said = (line for line in error.said if line.startswith(_OF_GIT) and line != sentence)
    return [_OF_HOST + sentence if sentence.startswith("remote:") else sentence, *said]


def _tells(line: str, name: ErrorClass, words: re.Pattern[str]) -> bool:
    is_trusted = not line.startswith(_OF_HOST) or name in _HOST_MAY_SAY
    return is_trusted and words.search(_QUOTED.sub("''", line)) is not None
