"""The links of a Markdown text, each with the line that it stands on, and what they mean.

What is a link is CommonMark's say, so that nothing in code, comments or escapes counts. Images are
no links.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote_to_bytes

from okf_mcp_server.snapshot import Snapshot
from okf_mcp_server.tree import is_markdown

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.rules_inline import StateInline

    InlineRule: TypeAlias = Callable[[StateInline, bool], bool]

MAX_CHARACTERS: Final = 128 * 1024
"""How long a text may be to be searched: one of short lines takes the parser ten seconds then."""

MAX_BRACKETS: Final = 10_000
"""How many `[` and `<` it may hold: each takes up to a millisecond in a text that means harm."""

_NESTING: Final = 30
"""How deep lists and quotes may nest in which links are found, as CommonMark sets no limit."""

_MAY_HOLD_LINK: Final = re.compile(r"\]\(|\]:|<[^\s<>]*[:@]")
"""What every text with a link holds: `[](…)`, a definition `[]: …`, or `<scheme:…>`."""

_ELSEWHERE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//")
"""How a destination begins that is no path of the repository: a scheme, or a host."""

_NOT_NEEDED: Final = ("emphasis", "entity", "balance_pairs", "fragments_join", "text_join")
"""Rules of the parser that no link depends on."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link of a text."""

    destination: str
    """As the author wrote it, escapes and entities resolved."""
    line: int
    """The line of the text on which the link begins, counted from 1."""


def links_by_path(snapshot: Snapshot) -> Mapping[PurePosixPath, tuple[Link, ...] | None]:
    """Return the links of each served document: a view for `Snapshot.derive`.

    It holds only documents with links, and None for one that `find_links` doesn't search.
    """
    found = ((each.path, find_links(each.content)) for each in snapshot.documents)
    return MappingProxyType({path: links for path, links in found if links != ()})


def find_links(text: str) -> tuple[Link, ...] | None:
    """Return the links of a Markdown text in their order; None for one that passes a bound.

    The bounds are `MAX_CHARACTERS` and `MAX_BRACKETS`; a text that can't hold a link passes none.
    Reference links stand where they are used, and definitions that nothing uses are no links.
    """
    if not _MAY_HOLD_LINK.search(text):
        return ()
    if len(text) > MAX_CHARACTERS or text.count("[") + text.count("<") > MAX_BRACKETS:
        return None
    links: list[Link] = []
    for block in _parser().parse(text):
        first_line = block.map[0] + 1 if block.map else 1
        links.extend(
            Link(str(token.attrs["href"]), first_line + token.meta["line"])
            for token in block.children or ()
            if token.type == "link_open"
        )
    return tuple(links)


def markdown_target(destination: str, folder: PurePosixPath) -> PurePosixPath | None:
    """Return the Markdown file that a link in a document of `folder` leads to, from the top.

    None for what is no Markdown file of the repository by its name. A path that leads out of the
    repository begins with `..`.
    """
    if _ELSEWHERE.match(destination):
        return None
    path = _decoded(destination.partition("#")[0].partition("?")[0])
    if not is_markdown(path):
        return None
    parts = [] if path.startswith("/") else list(folder.parts)
    for part in path.split("/"):
        if part == ".." and parts[-1:] not in ([], [".."]):
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    return PurePosixPath(*parts)


def _decoded(text: str) -> str:
    """Undo percent-encoding; bytes that are not UTF-8 become lone surrogates, as in paths."""
    return unquote_to_bytes(text).decode(errors="surrogateescape")


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt  # noqa: PLC0415 - only a text with links needs it
    from markdown_it.rules_inline import autolink, link  # noqa: PLC0415 - the same

    parser = MarkdownIt("commonmark", {"maxNesting": _NESTING}).disable(_NOT_NEEDED)
    # As it was written: to encode a long destination for HTML takes time that grows as its square.
    parser.normalizeLink = _as_written
    parser.core.ruler.at("inline", _parse_inline)
    parser.inline.ruler.at("link", _noting_lines(link))
    parser.inline.ruler.at("autolink", _noting_lines(autolink))
    return parser


def _as_written(url: str) -> str:
    return url


def _parse_inline(state: "StateCore") -> None:
    """Do what the parser's own rule does, but for the blocks without a bracket."""
    for token in state.tokens:
        if token.type == "inline" and ("[" in token.content or "<" in token.content):
            token.children = []
            state.md.inline.parse(token.content, state.md, state.env, token.children)


def _noting_lines(rule: "InlineRule") -> "InlineRule":
    """Return a rule that also notes on which line of its block a link begins, counted from 0."""

    def note(state: "StateInline", silent: bool) -> bool:  # noqa: FBT001 - the parser's signature
        start, before = state.pos, len(state.tokens)
        if not rule(state, silent):
            return False
        for token in state.tokens[before:]:
            if token.type == "link_open":
                token.meta["line"] = state.src.count("\n", 0, start)
                break
        return True

    return note
