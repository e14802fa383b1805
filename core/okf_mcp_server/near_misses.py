"""Files that seem to opt in and don't: what an author meant, and what is in the way (D1, D2).

Nothing here makes a file a document. It only tells an author why one isn't.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from okf_mcp_server.frontmatter import Frontmatter
from okf_mcp_server.yaml_text import Text

_KEYS: Final = ("export", "exported", "exports")
_TRUE: Final = ("true", "yes", "on", "y", "t", "1")
"""What people write for `export` and for true, in lower case."""

_HEAD_LINES: Final = 20
"""How much of a file is searched for what was meant as frontmatter."""

_EXPORT_LINE: Final = re.compile(r"\s*(?:- )?export\s*[:=]\s*(?:true|yes|on)\s*$", re.IGNORECASE)
_FENCE: Final = re.compile(r"^---[ \t]*$", re.MULTILINE)
_NEARLY_FENCE: Final = re.compile(r"[^\w#>*]*?(?:--|\+{3}|—)")
_CODE: Final = re.compile(r" {0,3}(?:```|~~~)| {4}|\t")


@dataclass(frozen=True, slots=True)
class NearMiss:
    """What keeps a file from opting in."""

    message: str
    line: int
    """The line of the file, counted from 1."""


def find_near_miss(text: str, frontmatter: Frontmatter | None) -> NearMiss | None:
    """Return why a decoded file that seems to opt in doesn't; None if it doesn't seem to."""
    if frontmatter is None:
        return _bad_fence(text)
    if "export" in frontmatter.keys:
        return _bad_value(frontmatter)
    return _bad_key(frontmatter)


def is_meant_as_export(key: str) -> bool:
    """Say whether a key is `export`, or what somebody writes who means it."""
    word = key.strip().lower()
    return word in _KEYS or _is_slip(word, "export")


def _bad_value(frontmatter: Frontmatter) -> NearMiss | None:
    written = frontmatter.fields.get("export", "")
    if not _means_true(written):
        return None
    shown = repr(written.strip()) if isinstance(written, str) else "a list"
    message = f"not exported: {shown} is not the boolean true; write 'export: true' and no more"
    return NearMiss(message, frontmatter.lines["export"])


def _bad_key(frontmatter: Frontmatter) -> NearMiss | None:
    for key, line in zip(frontmatter.keys, frontmatter.key_lines, strict=True):
        if is_meant_as_export(key) and _means_true(frontmatter.fields.get(key, "")):
            return NearMiss(f"not exported: the key is {key!r}; write 'export: true'", line)
    return None


def _means_true(written: Text) -> bool:
    """Say whether a value stands for true, also as text, misspelt, or alone in a list."""
    if isinstance(written, str):
        word = written.strip().strip(".,;!").lower()
        return word in _TRUE or _is_slip(word, "true")
    return not isinstance(written, Mapping) and len(written) == 1 and _means_true(written[0])


def _is_slip(word: str, right: str) -> bool:
    """Say whether a word is the right one with its letters mixed, one too many or one too few."""
    return abs(len(word) - len(right)) <= 1 and _differs_by_a_slip(word, right)


@lru_cache(maxsize=1024)
def _differs_by_a_slip(word: str, right: str) -> bool:
    if sorted(word) == sorted(right):
        return True
    shorter, longer = sorted((word, right), key=len)
    return len(longer) > len(shorter) and any(
        longer[:index] + longer[index + 1 :] == shorter for index in range(len(longer))
    )


def _bad_fence(text: str) -> NearMiss | None:
    """Judge a file without frontmatter by its first lines, but for what stands in code."""
    head = text.split("\n", _HEAD_LINES)[:_HEAD_LINES]
    code = next((index for index, line in enumerate(head) if _CODE.match(line)), len(head))
    export = next((i for i, line in enumerate(head[:code]) if _EXPORT_LINE.match(line)), None)
    if export is None:
        return None
    fence = next((index for index, line in enumerate(head[:export]) if _FENCE.match(line)), None)
    if fence == 0 and _FENCE.search(text, len(head[0])):
        message = "the frontmatter must be lines such as 'type: Note', with a blank after the colon"
    elif fence == 0:
        message = "no second line '---' closes the frontmatter"
    elif fence is not None:
        message = "the frontmatter must begin on line 1, with nothing before its '---'"
    elif _NEARLY_FENCE.match(next(filter(None, head))):
        message = "line 1 must be '---' and nothing else"
    else:
        message = "there is no frontmatter; write '---' as line 1, and once more below the last key"
    return NearMiss(f"not exported: {message}", (fence or 0) + 1)
