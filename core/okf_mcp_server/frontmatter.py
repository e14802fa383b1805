"""The block of YAML at the head of a file, and the body below it (D2, D3).

Line ends are made one kind before anything else happens, so that a file has the same body and the
same hash however it was checked out.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from okf_mcp_server.errors import OkfError
from okf_mcp_server.yaml_text import (
    Text,
    YamlTextError,
    compose_mapping,
    entries,
    is_null,
    is_true,
    line_of,
    shared,
    to_text,
)

MAX_BLOCK_BYTES: Final = 64 * 1024
"""How long the YAML between the fences may be, as UTF-8."""

_SHARED_BLOCK_CHARACTERS: Final = 4096
"""How long a block may be that its keys are looked for in other files."""

_OPENING_FENCE: Final = re.compile(r"---[ \t]*(?:\n|\Z)")
_CLOSING_FENCE: Final = re.compile(r"^---[ \t]*(?:\n|\Z)", re.MULTILINE)


class FrontmatterError(OkfError):
    """The block can't be read; `line` is the line of the file, counted from 1."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


class Frontmatter(NamedTuple):
    """A file's frontmatter, and the body that follows it."""

    export: bool
    """Whether `export` is true as YAML 1.1 reads a boolean; the text "true" is not."""
    keys: tuple[str, ...]
    """In the author's order."""
    values: tuple["Text | None", ...]
    """What the author wrote for each key: text, tuples and read-only mappings of text. None for no
    value (nothing, `~`, `null`)."""
    key_lines: tuple[int, ...]
    """The line of the file on which each key stands, counted from 1."""
    body: str
    """All that follows the closing fence, untrimmed."""
    body_line: int
    """The line of the file on which `body` begins, counted from 1."""

    @property
    def fields(self) -> Mapping[str, Text]:
        """Every key that has a value, with that."""
        return fields_of(self.keys, self.values)

    @property
    def lines(self) -> Mapping[str, int]:
        """The line of each key."""
        return lines_of(self.keys, self.key_lines)

    def scalar(self, key: str) -> str | None:
        """Return a key's text, trimmed; None if it is absent, blank, or not a scalar."""
        value = self.values[self.keys.index(key)] if key in self.keys else None
        return value.strip() or None if isinstance(value, str) else None


def fields_of(keys: Sequence[str], values: "Sequence[Text | None]") -> Mapping[str, Text]:
    """Return the keys that have a value, with that."""
    pairs = zip(keys, values, strict=True)
    return MappingProxyType({key: value for key, value in pairs if value is not None})


def lines_of(keys: Sequence[str], key_lines: Sequence[int]) -> Mapping[str, int]:
    """Return the keys, each with its line."""
    return MappingProxyType(dict(zip(keys, key_lines, strict=True)))


def decode(raw: bytes) -> str:
    """Return a file's text: UTF-8 without its byte order mark, each line ended by LF.

    CRLF and a lone CR become LF; no other character ends a line. Raises `UnicodeDecodeError`.
    """
    text = raw.decode("utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def read_frontmatter(text: str) -> Frontmatter | None:
    """Read the frontmatter of a decoded file; None if it has none.

    A block that is not closed, or that is not a mapping, is no frontmatter. Raises
    `FrontmatterError` for a block that is not YAML or that passes a bound of D3.
    """
    opening = _OPENING_FENCE.match(text)
    closing = _CLOSING_FENCE.search(text, opening.end()) if opening else None
    if opening is None or closing is None:
        return None
    block = text[opening.end() : closing.start()]
    if len(block.encode()) > MAX_BLOCK_BYTES:
        raise FrontmatterError(f"the frontmatter is longer than {MAX_BLOCK_BYTES // 1024} KiB", 1)
    try:
        root = compose_mapping(block)
    except YamlTextError as error:
        # The block's line 1 is the file's line 2; without a line, the fence must do.
        raise FrontmatterError(error.reason, (error.line or 0) + 1) from None
    if root is None:
        return None
    found = entries(root)
    export = found.get("export")
    keys = tuple(found)
    key_lines = tuple([line_of(node) + 1 for node, _ in found.values()])
    if len(block) <= _SHARED_BLOCK_CHARACTERS:
        keys, key_lines = shared(keys), shared(key_lines)
    return Frontmatter(
        export=export is not None and is_true(export[1]),
        keys=keys,
        values=tuple([None if is_null(value) else to_text(value) for _, value in found.values()]),
        key_lines=key_lines,
        body=text[closing.end() :],
        body_line=text.count("\n", 0, closing.end()) + 1,
    )
