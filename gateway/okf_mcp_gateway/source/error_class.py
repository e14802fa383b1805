"""What kind of trouble an error is: the one word that an operator looks for (H9)."""

import re
from collections.abc import Mapping
from typing import Final

from okf_mcp_gateway.source.git import GitError, GitTimeoutError
from okf_mcp_gateway.state import ErrorClass
from okf_mcp_server.errors import OkfError

_SENTENCES: Final[Mapping[ErrorClass, re.Pattern[str]]] = {
    "disk": re.compile(
        r"no space left on device|disk quota exceeded|read-only file system", re.IGNORECASE
    ),
    "policy": re.compile(r"transport '' not allowed|unable to update url base", re.IGNORECASE),
    "ref_missing": re.compile(
        r"has no branch and no tag|find remote ref|not our ref", re.IGNORECASE
    ),
    "auth": re.compile(
        r"authentication failed|could not read (username|password)|error: 40[13]|token of this",
        re.IGNORECASE,
    ),
    "dns": re.compile(r"could not resolve", re.IGNORECASE),
    "tls": re.compile(r"ssl|tls|certificate", re.IGNORECASE),
    "not_found": re.compile(r"not found|does not appear to be a git|does not exist", re.IGNORECASE),
    "connect": re.compile(
        r"connect|empty reply|timed out|hung up|transfer closed"
        r"|early eof|bad pack header|invalid index-pack|expected (flush|response end|'')",
        re.IGNORECASE,
    ),
}
"""git's and curl's own words, and ours; the first that fits wins. What they quote is left out."""

_QUOTED: Final = re.compile(r"'[^']*'")
"""A URL, a ref, a path: a name of somebody else's choice, which may hold any word."""


class SourceError(OkfError):
    """The source can't be reached, or doesn't have what we ask for."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        """Whether git ran into its deadline."""


def error_class(error: Exception) -> ErrorClass:
    """Return the class of what went wrong in a pull."""
    if isinstance(error, GitTimeoutError) or (isinstance(error, SourceError) and error.timed_out):
        return "timeout"
    if isinstance(error, OSError):
        return "disk"
    if not isinstance(error, SourceError | GitError):
        return "other"
    text = _QUOTED.sub("''", str(error))
    for name, sentence in _SENTENCES.items():
        if sentence.search(text):
            return name
    return "corrupt" if isinstance(error, GitError) else "other"
