"""The block of YAML at the head of a file, and the body below it (D2, D3).

Line ends are made one kind before anything else happens, so that a file has the same body and the
same hash however it was checked out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from okf_mcp_server.errors import OkfError
from okf_mcp_server.yaml_text import (
    Text,
    YamlTextError,
    compose_mapping,
    entries,
    is_null,
    is_true,
    line_of,
    to_text,
)

MAX_BLOCK_BYTES: Final = 64 * 1024
"""How long the YAML between the fences may be, as UTF-8."""

_OPENING_FENCE: Final = re.compile(r"---[ \t]*(?:\n|\Z)")
_CLOSING_FENCE: Final = re.compile(r"^---[ \t]*(?:\n|\Z)", re.MULTILINE)


class FrontmatterError(OkfError):
    """The block can't be read; `line` is the line of the file, counted from 1."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


@dataclass(frozen=True, slots=True)
class Frontmatter:
    """A file's frontmatter, and the body that follows it."""

    export: bool
    """Whether `export` is true as YAML 1.1 reads a boolean; the text "true" is not."""
    fields: Mapping[str, Text]
    """Every key with what the author wrote: text, tuples and read-only mappings of text. A key
    without a value (nothing, `~`, `null`) is absent."""
    lines: Mapping[str, int]
    """The line of the file on which each key stands, counted from 1; also of keys without a value.
    """
    body: str
    """All that follows the closing fence, untrimmed."""
    body_line: int
    """The line of the file on which `body` begins, counted from 1."""

    def scalar(self, key: str) -> str | None:
        """Return a key's text, trimmed; None if it is absent, blank, or not a scalar."""
        value = self.fields.get(key)
        return value.strip() or None if isinstance(value, str) else None


def decode(raw: bytes) -> str:
    """Return a file's text: UTF-8 without its byte order mark, each line ended by LF.

    CRLF and a lone CR become LF; no other character ends a line. Raises `UnicodeDecodeError`.
    """
    return raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


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
    return Frontmatter(
        export=export is not None and is_true(export[1]),
        fields=MappingProxyType(
            {key: to_text(value) for key, (_, value) in found.items() if not is_null(value)}
        ),
        lines=MappingProxyType({key: line_of(node) + 1 for key, (node, _) in found.items()}),
        body=text[closing.end() :],
        body_line=text.count("\n", 0, closing.end()) + 1,
    )
