"""What an author most likely did where the YAML parser gave up, and what mends it.

The parser says what it had expected, which helps who knows its grammar. It often gives up on the
line after the mistake, so that the line before is looked at, too.
"""

import re
from dataclasses import dataclass
from typing import Final

_VALUE: Final = r"^\s*(?:- +)?[^\s:'\"#][^:]*:[ \t]+"
"""How a line begins that gives a key a value."""

_JUDGED_CHARACTERS: Final = 1000
"""How long a line may be to be looked at: some patterns take time that grows as its square."""

_NO_ESCAPE: Final = (
    r"(?:[^\"\\/abefnrtvNLPxuU0 _]|x(?![0-9A-Fa-f]{2})|u(?![0-9A-Fa-f]{4})|U(?![0-9A-Fa-f]{8}))"
)
"""What follows a backslash that begins no escape of YAML."""

_MISTAKES: Final = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (r"^(?:<{7}|={7}|>{7})", "a merge conflict is left in it; settle it"),
        (r"^ *\t", "indent with blanks, not with a tab"),
        (r"^[^'\"]*(?:\{\{|\{%)", "put what the template fills in into quotes"),
        (r"^\s*[\w-]+:[^\s:/]", "write a blank after the colon"),
        (
            _VALUE + r"(?:'[^']*'[^\s'#]|\"(?:[^\"\\]|\\.)*\"[^\s#])",
            "a value in quotes ends too early; use the other kind of quotes",
        ),
        (
            _VALUE + r"\"(?:[^\"\\]|\\.)*\\" + _NO_ESCAPE,
            "a backslash in double quotes begins an escape; use single quotes",
        ),
        (_VALUE + r"(?:'[^']*|\"[^\"]*)$", "a value in quotes has no end"),
        (
            _VALUE + r"[\[{][^\]}]*$",
            "a list or a mapping has no end; a text that begins with [ or { needs quotes",
        ),
        (
            _VALUE + r"(?:[@`*&%!|>\[{]|.*:(?:[ \t]|$))",
            "a value that holds ': ' or begins with one of @ ` * & % ! | > { [ needs quotes",
        ),
        (
            r"^[^\s:#.%-][^:]*$",
            "a line without a key; indent it if it goes on with the value above",
        ),
    )
)
"""A pattern of a line, and what mends such a line; the first that fits is told."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """What to do about a line."""

    advice: str
    line: int
    """Counted from 1."""


def find_mistake(text: str, line: int) -> Mistake | None:
    """Return what is wrong where the parser gave up, on `line` or on the one before it."""
    lines = text.split("\n")
    for number in (line, line - 1):
        if not 0 < number <= len(lines) or len(lines[number - 1]) > _JUDGED_CHARACTERS:
            continue
        for pattern, advice in _MISTAKES:
            if pattern.search(lines[number - 1]):
                return Mistake(advice, number)
    return None
