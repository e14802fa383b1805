"""What one exported file is to its readers: the rules D1 and D4 to D9.

Reading is in two steps. `read_page` judges a file's bytes alone, so that its result can be kept for
as long as the same bytes are found anywhere; `place` adds what depends on where the file lies: the
fallback id and title, and the URI.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final, Literal, NamedTuple

from okf_mcp_server.errors import OkfError
from okf_mcp_server.frontmatter import (
    Frontmatter,
    FrontmatterError,
    decode,
    fields_of,
    lines_of,
    read_frontmatter,
)
from okf_mcp_server.near_misses import find_near_miss
from okf_mcp_server.prescan import is_surely_nothing
from okf_mcp_server.uris import document_uri, encode_segment
from okf_mcp_server.yaml_text import Text

MAX_DOCUMENT_BYTES: Final = 4 * 1024 * 1024
"""How large a file may be (D4)."""

MAX_DESCRIPTION_CHARACTERS: Final = 500
"""Where a description is cut (D8)."""

MAX_SEARCHED_CHARACTERS: Final = 64 * 1024
"""How much of a body is searched for its first paragraph: all else waits while a pattern looks."""

MAX_URI_CHARACTERS: Final = 4096
"""How long a URI may be: clients of 2026-07-28 send it in a request header."""

_NOT_ALPHANUMERIC: Final = re.compile(r"[\W_]+")
_HEADING: Final = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")
_UNDERLINE: Final = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")
_RULE: Final = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$")
_NOT_PROSE: Final = re.compile(
    r"\n {0,3}(?P<fence>`{3,}(?=[^`\n]*$)|~{3,}).*?(?:\n {0,3}(?P=fence)[`~]*[ \t]*$|\Z)"
    r"|<!--.*?(?P<closing>-->|\Z)",
    re.DOTALL | re.MULTILINE,
)
"""A fenced code block or a comment, to its end or the text's: the `\\Z` keeps it linear."""

Severity = Literal["error", "warning"]


class Page(NamedTuple):
    """What the bytes of an exported file say, wherever the file lies.

    A tuple, as all that there are thousands of: small, and made in no time.
    """

    id: str | None
    type: str
    type_slug: str
    title: str | None
    description: str
    content: str
    content_hash: str
    size: int
    keys: tuple[str, ...]
    """The keys of the frontmatter in the author's order, also of those without a value."""
    values: tuple["Text | None", ...]
    """What each key has as its value; None for no value."""
    key_lines: tuple[int, ...]
    """The line of the file on which each key stands, counted from 1."""
    content_line: int

    @property
    def fields(self) -> Mapping[str, Text]:
        """The frontmatter, as text."""
        return fields_of(self.keys, self.values)

    @property
    def lines(self) -> Mapping[str, int]:
        """The line of the file on which each key of the frontmatter stands, counted from 1."""
        return lines_of(self.keys, self.key_lines)


class Document(NamedTuple):
    """An exported Markdown file: a page, and what it has from where it lies."""

    page: Page
    uri: str
    """`knowledge://{owner}/{type-slug}/{id}`, ASCII."""
    id: str
    """The stable name of the document within its owner."""
    title: str
    """The frontmatter's `title`, else the file's stem."""
    path_text: str
    """Relative to the repository's top level."""

    @property
    def type(self) -> str:
        """As the author wrote it, trimmed."""
        return self.page.type

    @property
    def type_slug(self) -> str:
        """The type as a URI shows it."""
        return self.page.type_slug

    @property
    def description(self) -> str:
        """At most `MAX_DESCRIPTION_CHARACTERS` characters; empty if there is nothing to take."""
        return self.page.description

    @property
    def path(self) -> PurePosixPath:
        """Relative to the repository's top level."""
        return PurePosixPath(self.path_text)

    @property
    def content(self) -> str:
        """The body: no frontmatter, no white space at either end."""
        return self.page.content

    @property
    def content_hash(self) -> str:
        """`sha256:` and the hexadecimal digest of `content` as UTF-8."""
        return self.page.content_hash

    @property
    def size(self) -> int:
        """The length of `content` as UTF-8, in bytes."""
        return self.page.size

    @property
    def fields(self) -> Mapping[str, Text]:
        """The frontmatter, as text."""
        return self.page.fields

    @property
    def lines(self) -> Mapping[str, int]:
        """The line of the file on which each key of the frontmatter stands, counted from 1."""
        return self.page.lines

    @property
    def content_line(self) -> int:
        """The line of the file on which `content` begins."""
        return self.page.content_line


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What is wrong with a file or a scan root, for the person who can mend it."""

    rule: str
    severity: Severity
    path: str
    """Relative to the repository's top level, safe to print and to encode."""
    line: int
    """Counted from 1; 1 where the fault is the whole file's."""
    message: str
    paths: tuple[str, ...] = ()
    """All files that it is about, where it is about more than one: `path` is the first."""


class Fault(NamedTuple):
    """Why a file can't be served, wherever it lies: a diagnostic without its path."""

    rule: str
    message: str
    line: int = 1
    severity: Severity = "warning"

    def at(self, path: PurePosixPath | str) -> Diagnostic:
        """Return the diagnostic of the file at `path`."""
        return Diagnostic(self.rule, self.severity, printable(path), self.line, self.message)


class DocumentError(OkfError):
    """A file can't be served because of `fault`."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def read_page(raw: bytes) -> Page | None:
    """Read a file's bytes; None if the file doesn't opt in (D1).

    Raises `DocumentError`: `unreadable` (D4), `missing-type` for a file that says `export: true`
    without a usable type, or `near-miss` for one that seems to opt in and doesn't.
    """
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise DocumentError(too_large(len(raw)))
    try:
        text = decode(raw)
        if is_surely_nothing(text):
            return None
        frontmatter = read_frontmatter(text)
    except UnicodeDecodeError as error:
        line = decode(error.object[: error.start]).count("\n") + 1
        fault = Fault("unreadable", "not UTF-8; save the file as UTF-8", line)
        raise DocumentError(fault) from None
    except FrontmatterError as error:
        message = f"the frontmatter can't be read: {error.reason}"
        raise DocumentError(Fault("unreadable", message, error.line)) from None
    if frontmatter is not None and frontmatter.export:
        return _page(frontmatter)
    if near_miss := find_near_miss(text, frontmatter):
        raise DocumentError(Fault("near-miss", near_miss.message, near_miss.line))
    return None


def too_large(size: int) -> Fault:
    """Return the fault of a file of `size` bytes, which is over `MAX_DOCUMENT_BYTES`."""
    limit = MAX_DOCUMENT_BYTES // 1024 // 1024
    return Fault("unreadable", f"{size} bytes; a document has {limit} MiB at most")


def place(page: Page, path: str, owner: str) -> Document:
    """Return the document that a page is at `path` of `owner`.

    Raises `DocumentError` if no URI can be made of its id (D7).
    """
    document_id = page.id or extract_id(PurePosixPath(path))
    if document_id in {".", ".."}:
        message = f"the id {document_id!r} can't stand in a URI; give the file another id"
        raise DocumentError(Fault("invalid-id", message, page.lines.get("id", 1)))
    uri = _uri_of_no_id(owner, page.type_slug) + encode_segment(document_id)
    if len(uri) > MAX_URI_CHARACTERS:
        message = f"the URI would be longer than {MAX_URI_CHARACTERS} characters; shorten the id"
        raise DocumentError(Fault("invalid-id", message, page.lines.get("id", 1)))
    return Document(page, uri, document_id, page.title or PurePosixPath(path).stem, path)


@lru_cache(maxsize=32)
def _uri_of_no_id(owner: str, type_slug: str) -> str:
    return document_uri(owner, type_slug, "")


def extract_id(path: PurePosixPath) -> str:
    """Return the id that a file without one in its frontmatter has (D5).

    It is the first token of the stem: `doc-7 - Partner.md` is `doc-7`.
    """
    return next(iter(path.stem.split()), path.stem)


@lru_cache(maxsize=32)
def slugify_type(document_type: str) -> str:
    """Return a type as a URI shows it; empty if it has no letter and no digit (D6).

    Lower case, each run of other characters one `-`, none at either end. Letters and digits of any
    script count, after NFC: `Architecture Decision` is `architecture-decision`.
    """
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", document_type).lower())
    return _NOT_ALPHANUMERIC.sub("-", folded).strip("-")


def printable(path: PurePosixPath | str) -> str:
    """Return a path as text that can be printed on one line and encoded as UTF-8.

    A byte that is not UTF-8 and a control character are shown as escapes.
    """
    text = str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _page(frontmatter: Frontmatter) -> Page:
    document_type = frontmatter.scalar("type")
    slug = slugify_type(document_type) if document_type else ""
    if document_type is None or not slug:
        line = frontmatter.lines.get("type") or frontmatter.lines["export"]
        message = f"export is true, but {_type_fault(frontmatter)}; write one such as 'type: Note'"
        raise DocumentError(Fault("missing-type", message, line, severity="error"))
    body = frontmatter.body
    begun = body.lstrip()
    content = begun.rstrip()
    encoded = content.encode()
    declared = frontmatter.scalar("description")
    return Page(
        id=frontmatter.scalar("id"),
        type=document_type,
        type_slug=slug,
        title=frontmatter.scalar("title"),
        description=(declared or first_paragraph(content))[:MAX_DESCRIPTION_CHARACTERS],
        content=content,
        content_hash=f"sha256:{sha256(encoded).hexdigest()}",
        size=len(encoded),
        keys=frontmatter.keys,
        values=frontmatter.values,
        key_lines=frontmatter.key_lines,
        content_line=frontmatter.body_line + body.count("\n", 0, len(body) - len(begun)),
    )


def _type_fault(frontmatter: Frontmatter) -> str:
    if frontmatter.scalar("type"):
        return "the type has no letter and no digit"
    if isinstance(frontmatter.fields.get("type"), str | None):
        meant = next((key for key in frontmatter.fields if _is_nearly_type(key)), None)
        return f"there is no type; the key is {meant!r}" if meant else "there is no type"
    return "the type is not a text"


def _is_nearly_type(key: str) -> bool:
    return key != "type" and sorted(key.strip().lower()) == sorted("type")


def first_paragraph(content: str) -> str:
    """Return the first paragraph that is not a heading, its lines joined by a space (D8).

    Comments, thematic breaks and fenced code blocks are no paragraphs either. One that is longer
    than a description may be ends soon after that length. One that begins after
    `MAX_SEARCHED_CHARACTERS` isn't found.
    """
    paragraph: list[str] = []
    for line in _NOT_PROSE.sub(_without, f"\n{content[:MAX_SEARCHED_CHARACTERS]}").split("\n"):
        if paragraph and _UNDERLINE.match(line):
            paragraph.clear()  # what stood above was a heading
            continue
        if not line.strip() or _HEADING.match(line) or _RULE.match(line):
            if paragraph:
                break
            continue
        paragraph.append(line.strip())
        if sum(map(len, paragraph)) > MAX_DESCRIPTION_CHARACTERS:
            break
    return " ".join(paragraph)


def _without(found: re.Match[str]) -> str:
    """Return what stays of a code block or a comment.

    That is an empty line, or nothing; but all of it if it only looks like a comment, for one that
    is not closed stands at the head of a line, as in CommonMark.
    """
    if found["fence"]:
        return "\n"
    is_text = not found["closing"] and found.string[found.start() - 1] != "\n"
    return found[0] if is_text else ""
