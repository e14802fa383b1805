"""Documents as MCP resources: list, find and read (D7, D8, D11)."""

import base64
import json
from collections.abc import Callable
from itertools import chain

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import UriTemplate
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from okf_mcp_server import Snapshot
from okf_mcp_server.resources import PAGE_SIZE, find_document, list_resources, read_resource
from okf_mcp_server.templates import template_uri

Load = Callable[..., Snapshot]

COMMIT = "c" * 40


def note(*lines: str, body: str = "Body.") -> str:
    return "\n".join(["---", "export: true", "type: Note", *lines, "---", body, ""])


def numbered(count: int) -> dict[str, str]:
    return {f"{number:05}.md": note() for number in range(count)}


def page(snapshot: Snapshot, cursor: str | None) -> tuple[list[str], str | None]:
    """Return the names of a page's resources, and the cursor of the next page."""
    result = list_resources(snapshot, cursor)
    return [resource.name for resource in result.resources], result.next_cursor


def pages(snapshot: Snapshot) -> list[list[str]]:
    names, cursor = page(snapshot, None)
    found = [names]
    while cursor is not None:
        names, cursor = page(snapshot, cursor)
        found.append(names)
    return found


def encoded(value: str | bytes) -> str:
    raw = value.encode() if isinstance(value, str) else value
    return base64.urlsafe_b64encode(raw).decode()


@pytest.mark.row("D8", "D9")
def test_a_document_is_listed_as_a_resource(load: Load) -> None:
    lines = ["id: x", "title: Größe", "description: About it"]
    snapshot = load({"a/b.md": note(*lines, body="é")}, commit=COMMIT)
    (document,) = snapshot.documents

    result = list_resources(snapshot, None)

    assert result == types.ListResourcesResult(
        resources=[
            types.Resource(
                uri="knowledge://acme/note/x",
                name="Größe",
                title="Größe",
                description="About it",
                mime_type="text/markdown",
                size=2,
                _meta={"content_hash": document.content_hash},
            )
        ],
        _meta={"served_commit": COMMIT},
    )


@pytest.mark.row("D8", "D9")
def test_a_document_is_read_by_its_uri(load: Load) -> None:
    snapshot = load({"x.md": note(body="# Größe\n\nText.")}, commit=COMMIT)
    (document,) = snapshot.documents

    result = read_resource(snapshot, "acme", "knowledge://acme/note/x", "2026-07-28")

    assert result == types.ReadResourceResult(
        contents=[
            types.TextResourceContents(
                uri="knowledge://acme/note/x",
                mime_type="text/markdown",
                text="# Größe\n\nText.",
                _meta={"content_hash": document.content_hash},
            )
        ],
        _meta={"served_commit": COMMIT},
    )


@pytest.mark.row("D8")
def test_files_that_come_from_no_commit_are_served_without_one(load: Load) -> None:
    snapshot = load({"x.md": note()})
    assert list_resources(snapshot, None).meta is None
    assert read_resource(snapshot, "acme", "knowledge://acme/note/x", "2026-07-28").meta is None


@pytest.mark.row("D8")
def test_a_document_without_words_is_a_resource_without_a_description(load: Load) -> None:
    (resource,) = list_resources(load({"x.md": note(body="")}), None).resources
    assert (resource.description, resource.size, resource.name) == (None, 0, "x")


@pytest.mark.row("D7")
@pytest.mark.parametrize("version", [HANDSHAKE_PROTOCOL_VERSIONS[0], MODERN_PROTOCOL_VERSIONS[0]])
def test_every_uri_that_is_listed_reads_back(load: Load, version: str) -> None:
    characters = [chr(code_point) for code_point in [*range(1, 0x600), 0x1F642, 0x10FFFF]]
    files = {
        f"{number}.md": note(f'id: "a\\U{ord(character):08x}b"', body=f"Body {number}.")
        for number, character in enumerate(characters)
    }
    snapshot = load(files)
    assert len(snapshot.documents) == len(files)

    for resource in list_resources(snapshot, None).resources:
        (contents,) = read_resource(snapshot, "acme", resource.uri, version).contents
        assert isinstance(contents, types.TextResourceContents)
        assert contents.text == f"Body {resource.name}."
        assert (contents.uri, contents.meta) == (resource.uri, resource.meta)


@pytest.mark.parametrize(
    "uri",
    [
        "knowledge://acme/note/missing",
        "knowledge://acme/note/X",
        "knowledge://acme/note/x/",
        "knowledge://acme/NOTE/x",
        "knowledge://other/note/x",
        "knowledge:///note/x",
        "knowledge://acme/note",
        "knowledge://acme/note/x/y",
        "knowledge://acme/note//x",
        "knowledge://acme//x",
        "knowledge://acme/note/x?y",
        "knowledge://acme/note/x#y",
        "knowledge://acme/note/../note/x",
        "knowledge://acme/other/../note/x",
        "knowledge://acme/note/./x",
        "knowledge://acme/note/%2e%2e",
        "knowledge://acme/note/..%2Fnote%2Fx",
        "knowledge://acme/note%2Fx",
        "knowledge:/acme/note/x",
        "https://acme/note/x",
        " knowledge://acme/note/x",
        "knowledge://acme/note/x\n",
        "knowledge://acme/note/x%",
        "knowledge://acme/note/%7",
        "knowledge://acme/note/%zz",
        "knowledge://acme/note/%ff",
        "knowledge://acme/note/%ed%a0%80",
        "knowledge://acme/note/\ud800",
        "x.md",
        "",
        "\ud800",
    ],
    ids=ascii,
)
def test_any_other_uri_is_not_found_with_the_code_of_the_version(load: Load, uri: str) -> None:
    # What a reader that mends a URI would find at some of them.
    ids = ("x", "x%", "%7", "%zz", "\ufffd", "\ufffd" * 3, "x?y", "x#y", "/x", "x/y", "x/")
    snapshot = load({f"{number}.md": note(f'id: "{each}"') for number, each in enumerate(ids)})
    assert len(snapshot.documents) == len(ids)
    codes = {
        **dict.fromkeys(HANDSHAKE_PROTOCOL_VERSIONS, -32002),
        **dict.fromkeys(MODERN_PROTOCOL_VERSIONS, -32602),
    }
    for version, code in codes.items():
        with pytest.raises(MCPError) as caught:
            read_resource(snapshot, "acme", uri, version)
        assert (caught.value.code, caught.value.data) == (code, {"uri": uri})


@pytest.mark.row("D7")
@pytest.mark.parametrize(
    "uri",
    [
        "knowledge://Acme/note/x",
        "knowledge://acme/note/x",
        "KNOWLEDGE://ACME/note/x",
        "Knowledge://%41cme/%6eote/%78",
    ],
)
def test_scheme_and_owner_are_found_in_any_case_and_in_any_encoding(load: Load, uri: str) -> None:
    snapshot = load({"x.md": note()}, owner="Acme")
    (contents,) = read_resource(snapshot, "Acme", uri, "2026-07-28").contents
    assert contents.uri == "knowledge://Acme/note/x"


@pytest.mark.row("D7")
@pytest.mark.parametrize("version", [HANDSHAKE_PROTOCOL_VERSIONS[0], MODERN_PROTOCOL_VERSIONS[0]])
def test_whatever_a_client_makes_of_the_template_reads_back(load: Load, version: str) -> None:
    ids = [f"a{chr(code_point)}b" for code_point in [*range(1, 0x300), 0x1F642, 0x10FFFF]]
    ids += ["...", "%41", "%", "a%2Fb", "~", "größe"]
    escaped = ["".join(f"\\U{ord(character):08x}" for character in each) for each in ids]
    files = {f"{number}.md": note(f'id: "{each}"') for number, each in enumerate(escaped)}
    snapshot = load(files, owner="Ä b")
    assert len(snapshot.documents) == len(ids)
    template = UriTemplate.parse(template_uri("Ä b"))
    for document in snapshot.documents:
        expanded = template.expand({"type": document.type_slug, "id": document.id})
        for uri in (expanded, expanded.replace("//%C3%84", "//%c3%a4")):
            (contents,) = read_resource(snapshot, "Ä b", uri, version).contents
            assert contents.uri == document.uri


def test_a_uri_is_taken_as_it_stands_before_it_is_read_in_another_way(load: Load) -> None:
    snapshot = load({"a.md": note('id: "%78"', body="As written."), "b.md": note("id: x")})
    for uri, document_id in {
        "knowledge://acme/note/%2578": "%78",
        "knowledge://acme/note/%78": "x",
        "knowledge://acme/note/x": "x",
    }.items():
        document = find_document(snapshot, "acme", uri)
        assert document is not None
        assert document.id == document_id


@pytest.mark.row("D11")
@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (0, [0]),
        (1, [1]),
        (999, [999]),
        (1_000, [1_000]),
        (1_001, [1_000, 1]),
        (2_000, [1_000, 1_000]),
        (2_345, [1_000, 1_000, 345]),
    ],
)
def test_a_list_has_pages_of_a_thousand(load: Load, count: int, sizes: list[int]) -> None:
    found = pages(load(numbered(count)))
    assert PAGE_SIZE == 1_000
    assert [len(names) for names in found] == sizes
    assert list(chain.from_iterable(found)) == [f"{number:05}" for number in range(count)]


@pytest.mark.row("D11")
def test_a_cursor_continues_in_whatever_snapshot_is_current(load: Load) -> None:
    files = numbered(2_345)
    first, cursor = page(load(files), None)
    assert cursor is not None

    removed = {f"{number:05}.md" for number in [*range(500), 999, 1_000]}
    kept = {path: text for path, text in files.items() if path not in removed}
    swapped = load({**kept, "00000a.md": note(), "01001a.md": note()})
    second, last_cursor = page(swapped, cursor)
    assert last_cursor is not None
    third, end = page(load(numbered(3_000)), last_cursor)

    assert (first[0], first[-1]) == ("00000", "00999")
    assert second[:3] == ["01001", "01001a", "01002"]
    assert (len(second), second[-1]) == (1_000, "01999")
    assert (third[0], third[-1], end) == ("02000", "02999", None)


@pytest.mark.row("D11")
def test_a_cursor_that_lies_behind_the_last_document_continues_with_nothing(load: Load) -> None:
    _, cursor = page(load(numbered(1_001)), None)
    for snapshot in (load({}), load(numbered(10)), load(numbered(1_000))):
        assert page(snapshot, cursor) == ([], None)


@pytest.mark.row("D11")
def test_pages_follow_the_scan_roots_and_any_name(load: Load) -> None:
    names = [f'{root}/{root}{number:04}"é🙂\n' for root in ("b", "a") for number in range(700)]
    snapshot = load({f"{name}.md": note() for name in names}, roots=["b", "a"])
    first = list_resources(snapshot, None)
    second = list_resources(snapshot, first.next_cursor)
    listed = [resource.uri for resource in [*first.resources, *second.resources]]
    assert listed == [document.uri for document in snapshot.documents]
    assert first.next_cursor is not None
    assert first.next_cursor.isascii()


@pytest.mark.row("D11")
@pytest.mark.parametrize(
    "cursor",
    [
        "",
        " ",
        "0",
        "1000",
        "null",
        "garbage",
        "====",
        "\x00",
        "é",
        "\ud800",
        '[0, "a.md"]',
        encoded(""),
        encoded(b"\xff\xfe\xfd"),
        encoded("null"),
        encoded("0"),
        encoded('"a.md"'),
        encoded('{"0": "a.md"}'),
        encoded("[]"),
        encoded("[0]"),
        encoded('["a.md", 0]'),
        encoded('[0, "a.md", 1]'),
        encoded('["0", "a.md"]'),
        encoded('[true, "a.md"]'),
        encoded('[0.0, "a.md"]'),
        encoded('[NaN, "a.md"]'),
        encoded('[-1, "a.md"]'),
        encoded("[0, null]"),
        encoded('[0, ["a.md"]]'),
        encoded("[" * 100_000),
        encoded(f'[{"9" * 5_000}, "a.md"]'),
        encoded('[0, "a.md"]') + "!",
        encoded('[0, "a.md"]').rstrip("=")[:-1],
        "A" * 1_000_000,
    ],
    ids=lambda cursor: ascii(cursor[:24]),
)
def test_a_cursor_that_is_not_ours_is_refused(load: Load, cursor: str) -> None:
    with pytest.raises(MCPError) as caught:
        list_resources(load({"a.md": note()}), cursor)
    assert (caught.value.code, caught.value.message) == (-32602, "Invalid cursor")


def test_a_cursor_holds_the_place_of_the_last_document_of_its_page(load: Load) -> None:
    cursor = list_resources(load(numbered(1_001)), None).next_cursor
    assert cursor is not None
    assert json.loads(base64.urlsafe_b64decode(cursor)) == [0, "00999.md"]
