"""Files that surely don't opt in, told by their looks: the YAML parser needn't see them.

Most files of a site are such. Only what is plain in every way is recognised: whatever might be a
document, a near miss or a fault is left to those who judge that, so that no verdict changes.
"""

import re
from typing import Final

from okf_mcp_server.near_misses import is_meant_as_export

_MAX_CHARACTERS: Final = 8 * 1024
"""How long a plain block may be: so it passes no bound of D3."""

_WORDS: Final = r"\w[\w .,/()'&;!?+-]*+"
_ENTRY: Final = (
    r"(?!export:(?! false\n))[A-Za-z_][A-Za-z0-9_-]{0,63}+:"
    r"(?: (?:"
    + _WORDS
    + r"(?:://?[\w./?+-]*+)?"  # an address
    + r'|"[\w .,:/()\'&;!?+#@-]*+"'
    + r"|\[(?:\w[\w .-]*+(?:, \w[\w .-]*+)*+)?\]"
    + r")|(?:\n- "
    + _WORDS
    + r")++|(?:\n  - "
    + _WORDS
    + r")++)? *+\n"
)
"""A key with plain words, with words in quotes, with a list of them on one line or on several, or
with nothing. A `-` or a `'` means nothing in or after a word, and a letter nowhere."""

_PLAIN_BLOCK: Final = re.compile(rf"---\n(?>(?:{_ENTRY})++)---[ \t]*+(?:\n|\Z)")
_KEY: Final = re.compile(r"^([A-Za-z_][A-Za-z0-9_-]*+):", re.MULTILINE)


def is_surely_nothing(text: str) -> bool:
    """Say whether a decoded file is no document, and nothing that an author must hear of (D1).

    False says nothing.
    """
    block = _PLAIN_BLOCK.match(text)
    if block is None or block.end() > _MAX_CHARACTERS:
        return False
    keys = _KEY.findall(block[0])
    return len(set(keys)) == len(keys) and not any(
        key != "export" and is_meant_as_export(key) for key in keys
    )
