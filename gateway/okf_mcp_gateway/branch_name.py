"""What git takes for the name of a branch: the rule of git-check-ref-format(1), without a process.

It is the answer of `git check-ref-format --branch` outside any repository, where `@{-1}` can't be
expanded to a branch and so be accepted (G3).
"""

import re
from typing import Final

_FORBIDDEN: Final = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]"
    r"|\.\.|@\{|//"
    r"|(?:\A|/)\."  # a part that begins with a dot
    r"|\.lock(?:/|\Z)"  # a part that ends so
    r"|\A[-/]|[/.]\Z"
    r"|[\ud800-\udfff]"  # not text that can be handed to git
)


def is_branch_name(text: str) -> bool:
    """Say whether git takes `text` for a branch's name; a full commit id is one, `HEAD` is none."""
    return text not in {"", "HEAD"} and _FORBIDDEN.search(text) is None
