"""Files that seem to opt in and don't: what an author meant, and what is in the way (D1, D2).

Nothing here makes a file a document. It only tells an author why one isn't.
"""

import re
from dataclasses import dataclass
from typing import Final

from okf_mcp_server.frontmatter import Frontmatter

_KEYS: Final = frozenset({"export", "exported", "exports"})
"""What people write for `export`, in lower case."""

_TRUE: Final = frozenset({"true", "yes", "on", "y", "t", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "n", "f", "0"})
"""What people write for true and for false, in lower case."""

_HEAD_CHARACTERS: Final = 64 * 1024
"""How much of a file is searched for what looks like frontmatter."""

_SHOWN_CHARACTERS: Final = 40

_EXPORT_LINE: Final = re.compile(r"^[ \t]*export[ \t]*:[ \t]*(?:true|yes|on)[ \t]*$", re.MULTILINE)
_HEAD: Final = re.compile(
    r"(?P<before>\s*)(?P<fence>-{3,}[^\n]*)\n(?P<block>(?:[^\n]*\S[^\n]*\n?)*)"
)
"""What looks like frontmatter to a person: a line of dashes, and the lines up to an empty one."""


@dataclass(frozen=True, slots=True)
class NearMiss:
    """What keeps a file from opting in."""

    message: str
    line: int
    """The line of the file, counted from 1."""


def find_near_miss(text: str, frontmatter: Frontmatter | None) -> NearMiss | None:
    """Return why a decoded file that seems to opt in doesn't; None if it doesn't seem to."""
    if frontmatter is None:
        return _bad_fence(text[:_HEAD_CHARACTERS])
    if "export" in frontmatter.lines:
        return _bad_value(frontmatter)
    return _bad_key(frontmatter)


def _bad_value(frontmatter: Frontmatter) -> NearMiss | None:
    value = frontmatter.fields.get("export", "")
    if isinstance(value, str) and (not value.strip() or value.strip().lower() in _FALSE):
        return None
    shown = repr(value.strip()[:_SHOWN_CHARACTERS]) if isinstance(value, str) else "its value"
    message = f"not exported: {shown} is not the boolean true; write 'export: true', without quotes"
    return NearMiss(message, frontmatter.lines["export"])


def _bad_key(frontmatter: Frontmatter) -> NearMiss | None:
    for key, line in frontmatter.lines.items():
        if key.strip().lower() in _KEYS and (frontmatter.scalar(key) or "").lower() in _TRUE:
            return NearMiss(f"not exported: the key is {key!r}; write 'export: true'", line)
    return None


def _bad_fence(text: str) -> NearMiss | None:
    head = _HEAD.match(text)
    if head is None or not _EXPORT_LINE.search(head["block"]):
        return None
    line = head["before"].count("\n") + 1
    if head["before"]:
        message = (
            "not exported: the frontmatter must begin on line 1, with nothing before its '---'"
        )
    elif head["fence"].strip("- \t") or len(head["fence"].rstrip()) != len("---"):
        message = "not exported: line 1 must be '---' and nothing else"
    else:
        message = "not exported: no second line '---' closes the frontmatter"
    return NearMiss(message, line)
