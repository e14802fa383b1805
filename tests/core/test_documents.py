"""What one exported file is to its readers (D1, D4 to D9)."""

import subprocess
import sys
import unicodedata
from hashlib import sha256
from itertools import pairwise
from pathlib import PurePosixPath
from urllib.parse import unquote

import pytest

from okf_mcp_server import Diagnostic, Document, extract_id, slugify_type
from okf_mcp_server.documents import (
    MAX_DOCUMENT_BYTES,
    DocumentError,
    Fault,
    Page,
    place,
    printable,
    read_page,
)

PAGE_ATTRIBUTES = (
    *("type", "type_slug", "description", "content", "content_hash", "size"),
    *("fields", "lines", "content_line"),
)
"""What a document has from its page."""


def written(*lines: str, body: str = "Body.\n") -> bytes:
    """Return an exported file of the type Note with more lines in its frontmatter."""
    return "\n".join(["---", "export: true", "type: Note", *lines, "---", body]).encode()


def page(*lines: str, body: str = "Body.\n") -> Page:
    found = read_page(written(*lines, body=body))
    assert found is not None
    return found


def document(*lines: str, path: str = "design/file.md", owner: str = "acme") -> Document:
    return place(page(*lines), path, owner)


def fault(raw: bytes) -> Fault:
    with pytest.raises(DocumentError) as caught:
        read_page(raw)
    return caught.value.fault


def quoted(text: str) -> str:
    """Return any text as a YAML scalar."""
    return '"' + "".join(f"\\U{ord(character):08x}" for character in text) + '"'


@pytest.mark.row("D1", "D5", "D6", "D7", "D8", "D9")
def test_a_file_that_opts_in_is_a_document() -> None:
    raw = (
        b"\xef\xbb\xbf---\r\nexport: true\r\ntype: Architecture  Decision\r\nid: 010\r\n"
        b"title: ' A title '\r\ndescription: About it\r\ntags: [a, 1]\r\nempty:\r\n---\r\n"
        b"\r\n# Gr\xc3\xb6\xc3\x9fe\r\n\r\nText.\r\n"
    )
    content = "# Größe\n\nText."

    found = read_page(raw)

    assert found is not None
    placed = place(found, "design/a b.md", "acme")
    assert placed == Document(
        found, "knowledge://acme/architecture-decision/010", "010", "A title", "design/a b.md"
    )
    assert placed.path == PurePosixPath("design/a b.md")
    assert {name: getattr(placed, name) for name in PAGE_ATTRIBUTES} == {
        "type": "Architecture  Decision",
        "type_slug": "architecture-decision",
        "description": "About it",
        "content": content,
        "content_hash": "sha256:" + sha256(content.encode()).hexdigest(),
        "size": 16,
        "fields": {
            "export": "true",
            "type": "Architecture  Decision",
            "id": "010",
            "title": " A title ",
            "description": "About it",
            "tags": ("a", "1"),
        },
        "lines": {
            "export": 2,
            "type": 3,
            "id": 4,
            "title": 5,
            "description": 6,
            "tags": 7,
            "empty": 8,
        },
        "content_line": 11,
    }


@pytest.mark.parametrize(
    ("body", "line"), [("Text.", 5), ("\n\r\n\rText.", 8), (" \n\x0b\nText.\n", 7), ("", 5)]
)
def test_a_page_knows_the_line_on_which_its_content_begins(body: str, line: int) -> None:
    found = read_page(f"---\ntype: Note\nexport: true\n---\n{body}".encode())
    assert found is not None
    assert found.content_line == line


@pytest.mark.row("D1")
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xef\xbb\xbf",
        b"# Words\n",
        b"---\ntype: Note\n---\n",
        b"---\ntype: Note\nexport: false\n---\n",
        b"---\ntype: Note\nexport: ~\n---\n",
        b"---\n- type\n---\n",
        b"\xef\xbb\xbf\xef\xbb\xbf---\ntype: Note\nexport: false\n---\n",
    ],
    ids=ascii,
)
def test_a_file_that_does_not_opt_in_is_nothing(raw: bytes) -> None:
    assert read_page(raw) is None


@pytest.mark.row("D1", "D4")
def test_a_file_that_seems_to_opt_in_says_why_it_is_none() -> None:
    with pytest.raises(DocumentError) as caught:
        read_page(b'---\ntype: Note\nexport: "true"\n---\n')
    message = "not exported: 'true' is not the boolean true; write 'export: true' and no more"
    assert caught.value.fault == Fault("near-miss", message, 3)


@pytest.mark.row("D1", "D3")
@pytest.mark.parametrize(
    ("lines", "line", "what"),
    [
        (["export: true"], 2, "there is no type"),
        (["# first", "export: true"], 3, "there is no type"),
        (["export: true", "type:"], 3, "there is no type"),
        (["type: ~", "export: true"], 2, "there is no type"),
        (["export: true", "type: '  '"], 3, "there is no type"),
        (["<<: {export: true}"], 2, "there is no type"),
        (["export: true", "type: '---'"], 3, "the type has no letter and no digit"),
        (["export: true", "type: '~'"], 3, "the type has no letter and no digit"),
        (["export: true", "type: 🙂"], 3, "the type has no letter and no digit"),
        (["export: true", "type: [Note]"], 3, "the type is not a text"),
        (["export: true", "type: {a: b}"], 3, "the type is not a text"),
    ],
    ids=str,
)
def test_an_export_without_a_usable_type_is_an_error(
    lines: list[str], line: int, what: str
) -> None:
    message = f"export is true, but {what}; write one such as 'type: Note'"
    raw = "\n".join(["---", *lines, "---", ""]).encode()
    assert fault(raw) == Fault("missing-type", message, line, "error")


@pytest.mark.row("D4")
@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (written(body="caf\xe9").replace(b"\xc3\xa9", b"\xe9"), 5),
        (b"\xff\xfe-\x00-\x00", 1),
        (b"---\nexport: true\ntype: \x80\n---\n", 3),
        (b"\xef\xbb\xbfab\n\xff", 2),
        (b"a\rb\r\nc\n\xc0\xaf", 4),
        (b"surrogate\n\xed\xa0\x80", 2),
        (b"cut short\n\xf0\x9f\x99", 2),
        (b"above U+10FFFF \xf4\x90\x80\x80", 1),
    ],
    ids=ascii,
)
def test_a_file_that_is_not_utf_8_is_unreadable_at_its_line(raw: bytes, line: int) -> None:
    assert fault(raw) == Fault("unreadable", "not UTF-8; save the file as UTF-8", line, "warning")


@pytest.mark.row("D4")
def test_a_block_that_is_not_yaml_is_unreadable_at_its_line() -> None:
    message = (
        "the frontmatter can't be read: a value that holds ': ' or begins with one of "
        "@ ` * & % ! | > { [ needs quotes (mapping values are not allowed in this context)"
    )
    assert fault(written("title: a: b")) == Fault("unreadable", message, 4, "warning")


@pytest.mark.row("D4")
def test_a_file_of_4_mib_is_served_and_one_byte_more_is_not() -> None:
    assert MAX_DOCUMENT_BYTES == 4_194_304
    largest = written(body="x" * (MAX_DOCUMENT_BYTES - len(written(body=""))))

    found = read_page(largest)

    assert found is not None
    assert found.size == MAX_DOCUMENT_BYTES - len(written(body=""))
    message = "4194305 bytes; a document has 4 MiB at most"
    assert fault(largest + b"x") == Fault("unreadable", message, 1, "warning")


@pytest.mark.row("D4")
def test_a_fault_has_a_path_that_can_be_printed() -> None:
    diagnostic = Fault("unreadable", "why", 3).at(PurePosixPath("a\n\udcff\x1b[31mé.md"))
    assert diagnostic == Diagnostic("unreadable", "warning", "a\\n\\xff\\x1b[31mé.md", 3, "why")


def test_a_printable_path_is_the_path_itself() -> None:
    assert printable(PurePosixPath("design/Größe — 図 \\n.md")) == "design/Größe — 図 \\n.md"


@pytest.mark.row("D3", "D5")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("id: 010", "010"),
        ("id: 1.10", "1.10"),
        ("id: 12:30", "12:30"),
        ("id: 2026-05-01", "2026-05-01"),
        ("id: '  x  '", "x"),
        ("id: two words", "two words"),
        ("id: no", "no"),
        ("id: '~'", "~"),
        ("id:", "doc-7"),
        ("id: ~", "doc-7"),
        ("id: null", "doc-7"),
        ("id: ' '", "doc-7"),
        ("id: [x]", "doc-7"),
        ("id: {x: y}", "doc-7"),
        ("other: x", "doc-7"),
    ],
)
def test_the_id_is_the_text_of_the_frontmatter_else_the_first_token_of_the_stem(
    line: str, expected: str
) -> None:
    assert document(line, path="docs/doc-7 - Partner.md").id == expected


@pytest.mark.row("D3", "D8")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("title: 2026-05-01", "2026-05-01"),
        ("title: ' x '", "x"),
        ("title: |\n  two\n  lines", "two\nlines"),
        ("title:", "doc-7 - Partner"),
        ("title: ~", "doc-7 - Partner"),
        ("title: ''", "doc-7 - Partner"),
        ("title: [x]", "doc-7 - Partner"),
        ("title: {x: y}", "doc-7 - Partner"),
        ("other: x", "doc-7 - Partner"),
    ],
)
def test_the_title_is_the_text_of_the_frontmatter_else_the_stem(line: str, expected: str) -> None:
    assert document(line, path="docs/doc-7 - Partner.md").title == expected


@pytest.mark.row("D3", "D6")
@pytest.mark.parametrize(
    ("line", "type_as_written", "slug"),
    [
        ("type: 010", "010", "010"),
        ("type: 2026-05-01", "2026-05-01", "2026-05-01"),
        ("type: true", "true", "true"),
        ("type: ' ADR '", "ADR", "adr"),
    ],
)
def test_the_type_is_the_text_as_written_and_its_slug(
    line: str, type_as_written: str, slug: str
) -> None:
    found = read_page(f"---\nexport: true\n{line}\n---\n".encode())
    assert found is not None
    assert (found.type, found.type_slug) == (type_as_written, slug)


@pytest.mark.row("D5")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("doc-7 - Partner.md", "doc-7"),
        ("a/b/plain.md", "plain"),
        ("dotted.v1.2.md", "dotted.v1.2"),
        ("index.md", "index"),
        ("  lead  trail .md", "lead"),
        ("tab\tbed.md", "tab"),
        ("new\nline.md", "new"),
        ("nbsp\u00a0x.md", "nbsp"),
        ("   .md", "   "),
        (".md", ".md"),
        (".hidden.md", ".hidden"),
        ("x.md.md", "x.md"),
        ("100%.md", "100%"),
        ("Größe 1.md", "Größe"),
    ],
)
def test_an_id_is_the_first_token_of_the_stem_else_the_stem(path: str, expected: str) -> None:
    assert extract_id(PurePosixPath(path)) == expected


@pytest.mark.row("D6")
@pytest.mark.parametrize(
    ("type_as_written", "slug"),
    [
        ("Architecture Decision", "architecture-decision"),
        ("  Spaced   out  ", "spaced-out"),
        ("C++ / C# notes", "c-c-notes"),
        ("--dashed--", "dashed"),
        ("snake_case__x", "snake-case-x"),
        ("ADR 2024.v2", "adr-2024-v2"),
        ("a\nb\tc\u00a0d\u2028e", "a-b-c-d-e"),
        ("Guía", "guía"),
        ("GRÖSSE", "grösse"),
        ("Straße", "straße"),
        ("ẞ", "ß"),
        ("ΑΣ Σ", "ας-σ"),  # noqa: RUF001 - letters that look like others are the subject
        ("Решение 7", "решение-7"),
        ("設計 メモ", "設計-メモ"),
        ("٣ ३", "٣-३"),
        ("x² ½", "x²-½"),
        ("Ⅷ ﬁ", "ⅷ-ﬁ"),
        ("𝔘𝔫𝔦 𐐀", "𝔘𝔫𝔦-𐐨"),  # noqa: RUF001 - letters that look like others are the subject
        ("İ", "i"),
        ("I ı", "i-ı"),  # noqa: RUF001 - letters that look like others are the subject
        ("हिन्दी", "ह-न-द"),
        ("", ""),
        ("-", ""),
        ("__", ""),
        (" \t", ""),
        ("!?🙂", ""),
        ("\u0301", ""),
    ],
    ids=ascii,
)
def test_a_slug_keeps_letters_and_digits_of_any_script(type_as_written: str, slug: str) -> None:
    assert slugify_type(type_as_written) == slug


@pytest.mark.row("D6")
def test_composed_and_decomposed_types_have_one_slug() -> None:
    # Every letter that NFC composes, and the Hangul syllables that it composes by rule.
    for code_point in [*range(0xC0, 0x250), *range(0x370, 0x530), *range(0x1E00, 0x2000), 0xAC01]:
        letter = chr(code_point)
        slugs = {
            slugify_type(f"x{unicodedata.normalize(form, letter)}y")  # pyright: ignore[reportArgumentType]
            for form in ("NFC", "NFD")
        }
        assert len(slugs) == 1, hex(code_point)


@pytest.mark.row("D6")
def test_the_slug_of_a_slug_is_itself_and_has_single_inner_dashes_only() -> None:
    for code_point in [*range(0x3000), *range(0x10400, 0x10450), 0x1F642]:
        slug = slugify_type(f" {chr(code_point)}A_-Z{chr(code_point)}")
        assert slugify_type(slug) == slug, hex(code_point)
        assert "" not in slug.split("-"), hex(code_point)


@pytest.mark.row("D7")
@pytest.mark.parametrize(
    ("document_id", "segment"),
    [
        ("a-b.c_d~e", "a-b.c_d~e"),
        ("!$&'()*+,;=:@", "!$&'()*+,;=:@"),
        ("a/b", "a%2Fb"),
        ("a?b#c", "a%3Fb%23c"),
        ("50%25", "50%2525"),
        ("a b", "a%20b"),
        ('<>"\\^`{|}[]', "%3C%3E%22%5C%5E%60%7B%7C%7D%5B%5D"),
        ("設計-1", "%E8%A8%AD%E8%A8%88-1"),
        ("🙂", "%F0%9F%99%82"),
        ("a\nb\x00c\x7f", "a%0Ab%00c%7F"),
        ("okf://x/y", "okf:%2F%2Fx%2Fy"),
        ("../up", "..%2Fup"),
        ("...", "..."),
        (".a", ".a"),
        ("e\u0301", "e%CC%81"),
    ],
    ids=ascii,
)
def test_an_id_is_one_segment_of_the_uri(document_id: str, segment: str) -> None:
    found = document(f"id: {quoted(document_id)}")
    assert (found.id, found.uri) == (document_id, f"knowledge://acme/note/{segment}")


@pytest.mark.row("D7")
def test_owner_and_type_are_segments_too() -> None:
    found = read_page("---\nexport: true\ntype: Guía\nid: x\n---\n".encode())
    assert found is not None
    placed = place(found, "x.md", "the team/größe")
    assert placed.uri == "knowledge://the%20team%2Fgr%C3%B6%C3%9Fe/gu%C3%ADa/x"


@pytest.mark.row("D7")
def test_different_ids_have_different_ascii_uris_that_unquote_to_the_id() -> None:
    alphabet = [chr(code_point) for code_point in range(0x600) if chr(code_point).strip()]
    ids = [*alphabet, *map("".join, pairwise(alphabet)), "%", "%2", "%25", "a%2Fb", "a/b"]
    placed = [document(f"id: {quoted(text)}") for text in ids if text not in {".", ".."}]

    assert len({found.uri for found in placed}) == len({found.id for found in placed})
    for found in placed:
        scheme, owner, slug, segment = found.uri.replace("://", "/").split("/")
        assert (scheme, owner, slug, unquote(segment)) == ("knowledge", "acme", "note", found.id)
        assert found.uri.isascii()
        assert found.uri.isprintable()
        assert not set(segment) & set(' "#/<>?[\\]^`{|}')


@pytest.mark.row("D7")
@pytest.mark.parametrize(
    ("line", "path", "document_id", "fault_line"),
    [
        ("id: .", "a.md", ".", 4),
        ("id: '..'", "a.md", "..", 4),
        ("id: ' . '", "a.md", ".", 4),
        ("x: y", "..md", ".", 1),
        ("x: y", "...md", "..", 1),
        ("x: y", "... x.md", None, 1),
        ("x: y", ".. x.md", "..", 1),
    ],
)
def test_an_id_of_dots_is_a_fault(
    line: str, path: str, document_id: str | None, fault_line: int
) -> None:
    if document_id is None:
        assert document(line, path=path).id == "..."
        return
    with pytest.raises(DocumentError) as caught:
        document(line, path=path)
    message = f"the id {document_id!r} can't stand in a URI; give the file another id"
    assert caught.value.fault == Fault("invalid-id", message, fault_line, "warning")


@pytest.mark.row("D7")
def test_a_uri_has_4096_characters_at_most() -> None:
    room = 4096 - len("knowledge://acme/note/")
    assert len(document(f"id: {'x' * room}").uri) == 4096
    with pytest.raises(DocumentError) as caught:
        document(f"id: {'x' * (room + 1)}")
    message = "the URI would be longer than 4096 characters; shorten the id"
    assert caught.value.fault == Fault("invalid-id", message, 4, "warning")


@pytest.mark.row("D9")
@pytest.mark.parametrize(
    ("body", "content"),
    [
        ("\n\n  text  \n\n", "text"),
        ("text", "text"),
        ("", ""),
        (" \t\n\x0b\x0c\x1c\x1f\x85\u00a0\u2003\u2028\u2029\u3000", ""),
        ("\u200btext\ufeff", "\u200btext\ufeff"),
        ("\x00text\x00", "\x00text\x00"),
        ("a  \n\n\n  b", "a  \n\n\n  b"),
        ("a\u2028b\x85c\x0bd", "a\u2028b\x85c\x0bd"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("---\nexport: false\n---", "---\nexport: false\n---"),
    ],
    ids=ascii,
)
def test_the_content_is_the_body_trimmed_and_its_hash_that_of_its_bytes(
    body: str, content: str
) -> None:
    found = page(body=body)
    digest = "sha256:" + sha256(content.encode()).hexdigest()
    size = len(content.encode())
    assert (found.content, found.content_hash, found.size) == (content, digest, size)


@pytest.mark.row("D9")
def test_the_hash_is_the_same_however_the_file_was_checked_out() -> None:
    lf = written("id: x", body="\nOne.\n\nTwo.\n")
    same = [lf, lf.replace(b"\n", b"\r\n"), lf.replace(b"\n", b"\r"), b"\xef\xbb\xbf" + lf]
    assert len({found.content_hash for raw in same if (found := read_page(raw))}) == 1


@pytest.mark.row("D9")
def test_the_frontmatter_is_no_part_of_the_hash() -> None:
    assert page("id: a").content_hash == page("id: b", "title: other").content_hash
    assert page(body="a").content_hash != page(body="A").content_hash


@pytest.mark.row("D3", "D8")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("description: About it", "About it"),
        ("description: 2026-05-01", "2026-05-01"),
        ("description: ' About it '", "About it"),
        ("description: >\n  folded\n  text", "folded text"),
        ("description: |\n  two\n  lines", "two\nlines"),
        ("description: '# no heading'", "# no heading"),
        ("description:", "The body."),
        ("description: ~", "The body."),
        ("description: null", "The body."),
        ("description: '  '", "The body."),
        ("description: [a]", "The body."),
        ("description: {a: b}", "The body."),
    ],
)
def test_the_description_is_the_text_of_the_frontmatter_else_of_the_body(
    line: str, expected: str
) -> None:
    assert page(line, body="The body.").description == expected


@pytest.mark.row("D8")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("One.\n\nTwo.", "One."),
        ("One\n  line  \ntwo.\n\nTwo.", "One line two."),
        ("One.\r\nStill one.\r\n\r\nTwo.", "One. Still one."),
        ("# Title\n\nText.", "Text."),
        ("# Title\nText.", "Text."),
        ("#\n\n## Two ##\n###### Six\nText.", "Text."),
        ("   # Title\nText.", "Text."),
        ("Text.\n# Title", "Text."),
        ("#NoTitle\n\nText.", "#NoTitle"),
        ("####### seven\n\nText.", "####### seven"),
        ("Title\n=====\nText.", "Text."),
        ("Title\n---\n\nText.", "Text."),
        ("Title\nof two lines\n-\nText.", "Text."),
        ("---\n***\n___\n- - -\nText.", "Text."),
        ("Text.\n***\nMore.", "Text."),
        ("- one\n- two\n\nText.", "- one - two"),
        ("1. one\n\nText.", "1. one"),
        ("> quoted\n\nText.", "> quoted"),
        ("| a | b |\n|---|---|\n\nText.", "| a | b | |---|---|"),
        ("```\ncode\n```\nText.", "Text."),
        ("# Title\n\n```python\n# comment\n\nx\n```\n\nText.", "Text."),
        ("~~~\n```\n~~~\nText.", "Text."),
        ("````\n```\n````\nText.", "Text."),
        ("```\n```python\ncode\n```\nText.", "Text."),
        ("```\ncode\n`````\nText.", "Text."),
        ("Text.\n```\ncode\n```\nMore.", "Text."),
        ("```\ncode\n```\n```\ncode\n```\nText.", "Text."),
        ("```\nnever closed\n\nText.", ""),
        ("```one``` word\n\nText.", "```one``` word"),
        ("<!-- comment -->\nText.", "Text."),
        ("<!--\n# comment\n\nmore\n-->\n\nText.", "Text."),
        ("Some <!-- hidden --> text.", "Some  text."),
        ("Some <!-- hidden\n\nhidden --> text.", "Some  text."),
        ("<!-- never closed\n\nText.", ""),
        ("Write `<!--` first.\n\nText.", "Write `<!--` first."),
        ("```html\n<!-- open\n```\nText.", "Text."),
        ("<!--\n```\n-->\nText.", "Text."),
        ("one\u2028two\x85three", "one\u2028two\x85three"),
        ("# Only a heading", ""),
        ("", ""),
    ],
    ids=ascii,
)
def test_the_first_paragraph_that_is_not_a_heading_describes_a_file(
    body: str, expected: str
) -> None:
    assert page(body=body).description == expected


@pytest.mark.row("D8")
@pytest.mark.parametrize("character", ["x", "é", "🙂"])
def test_a_description_is_cut_after_500_characters(character: str) -> None:
    assert page(body=character * 500).description == character * 500
    assert page(body=character * 501).description == character * 500
    assert page(f"description: {character * 501}").description == character * 500


@pytest.mark.row("D8")
def test_a_paragraph_of_many_lines_is_cut_like_one_line() -> None:
    assert page(body="word\n" * 400).description == ("word " * 100)[:500]


@pytest.mark.row("D4")
def test_no_file_makes_reading_slow() -> None:
    # Read in a process of its own: what is quadratic here would take hours, not seconds.
    heads = ["", "---\nexport: true\ntype: Note\n---\n"]
    units = ["<!--", "a <!--", "<!---->", "`", "```\n", "```a`", "~~~\n", "- ", "* ", "# \n"]
    units += ["a\n=\n", " ", "=", "---", "--- \n", "---\n---x\n", "\r", "a\r\n", "\u2028"]
    reading = (
        "from okf_mcp_server.documents import DocumentError, read_page\n"
        f"for head in {heads!r}:\n"
        f"    for unit in {units!r}:\n"
        "        raw = (head + '---\\n' + unit * (1_000_000 // len(unit)) + 'x').encode()\n"
        "        try: read_page(raw)\n"
        "        except DocumentError: pass\n"
    )
    subprocess.run([sys.executable, "-c", reading], check=True, timeout=60)
