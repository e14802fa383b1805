"""The MCP server of one owner, as clients of both eras see it (D7, D8, D11)."""

from collections.abc import Callable
from functools import partial

import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from okf_mcp_server import Snapshot, build_server

Load = Callable[..., Snapshot]

COMMIT = "c" * 40
MODES = ["legacy", "auto"]

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("mode", MODES)]


def note(*lines: str, body: str = "Body.") -> str:
    return "\n".join(["---", "export: true", "type: Note", *lines, "---", body, ""])


def connect(current: Callable[[], Snapshot], mode: str) -> Client:
    return Client(build_server("acme", current), mode=mode, cache=None, read_timeout_seconds=30)


@pytest.mark.row("T3")
async def test_a_client_learns_who_answers_and_what_it_can_do(load: Load, mode: str) -> None:
    snapshot = load({})
    async with connect(lambda: snapshot, mode) as client:
        assert client.protocol_version == ("2025-11-25" if mode == "legacy" else "2026-07-28")
        assert client.server_info is not None
        assert client.server_info.name == "okf-mcp-server"
        assert client.server_info.version
        capabilities = client.server_capabilities.model_dump(exclude_none=True)
        assert set(capabilities) == {"resources", "tools"}
        assert client.instructions is not None
        assert "acme" in client.instructions
        assert (await client.list_tools()).tools == []


@pytest.mark.row("D7", "D8", "D9")
async def test_every_resource_that_is_listed_reads_back(load: Load, mode: str) -> None:
    characters = [chr(code_point) for code_point in [*range(1, 0x180), 0x1F642, 0x10FFFF]]
    files = {
        f"{number}.md": note(f'id: "a\\U{ord(character):08x}b"', body=f"Body {number}.")
        for number, character in enumerate(characters)
    }
    snapshot = load(files, commit=COMMIT)

    async with connect(lambda: snapshot, mode) as client:
        listed = await client.list_resources()
        assert (listed.meta or {})["served_commit"] == COMMIT
        assert len({resource.uri for resource in listed.resources}) == len(files)
        for resource in listed.resources:
            result = await client.read_resource(resource.uri)
            (contents,) = result.contents
            assert contents == types.TextResourceContents(
                uri=resource.uri,
                mime_type="text/markdown",
                text=f"Body {resource.name}.",
                _meta=resource.meta,
            )
            assert (result.meta or {})["served_commit"] == COMMIT


@pytest.mark.row("D8")
async def test_a_resource_arrives_as_it_was_built(load: Load, mode: str) -> None:
    lines = ["id: x", "title: Größe 🙂", "description: About it"]
    snapshot = load({"a.md": note(*lines, body="é")})
    (document,) = snapshot.documents
    async with connect(lambda: snapshot, mode) as client:
        listed = await client.list_resources()
        assert listed.resources == [
            types.Resource(
                uri="knowledge://acme/note/x",
                name="Größe 🙂",
                title="Größe 🙂",
                description="About it",
                mime_type="text/markdown",
                size=2,
                _meta={"content_hash": document.content_hash},
            )
        ]
        assert "served_commit" not in (listed.meta or {})


@pytest.mark.row("D11")
async def test_pages_continue_after_the_snapshot_was_swapped(load: Load, mode: str) -> None:
    files = {f"{number:05}.md": note() for number in range(2_345)}
    current = load(files, commit="1" * 40)
    async with connect(lambda: current, mode) as client:
        first = await client.list_resources()
        kept = {path: text for path, text in files.items() if path > "00999.md"}
        current = load({**kept, "01000a.md": note()}, commit="2" * 40, previous=current)
        second = await client.list_resources(cursor=first.next_cursor)
        third = await client.list_resources(cursor=second.next_cursor)

    results = (first, second, third)
    assert [len(result.resources) for result in results] == [1_000, 1_000, 346]
    assert [(result.meta or {})["served_commit"][0] for result in results] == ["1", "2", "2"]
    names = [resource.name for result in results for resource in result.resources]
    assert names[998:1_003] == ["00998", "00999", "01000", "01000a", "01001"]
    assert (names[-1], third.next_cursor) == ("02344", None)


@pytest.mark.row("D11")
@pytest.mark.parametrize("cursor", ["", "garbage", "1000", "bnVsbA==", "\x00", "[0, 1]"], ids=ascii)
async def test_a_bad_cursor_is_invalid_params(load: Load, mode: str, cursor: str) -> None:
    snapshot = load({"a.md": note()})
    async with connect(lambda: snapshot, mode) as client:
        for request in (client.list_resources, client.list_tools):
            with pytest.raises(MCPError) as caught:
                await request(cursor=cursor)
            assert (caught.value.code, caught.value.message) == (-32602, "Invalid cursor")


async def test_a_resource_that_is_not_there_has_the_code_of_its_era(load: Load, mode: str) -> None:
    snapshot = load({"a.md": note()})
    uri = "knowledge://acme/note/missing"
    async with connect(lambda: snapshot, mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.read_resource(uri)
    code = -32002 if mode == "legacy" else -32602
    assert (caught.value.code, caught.value.data) == (code, {"uri": uri})


async def test_a_request_reads_the_current_snapshot_once(load: Load, mode: str) -> None:
    snapshot = load({"a.md": note()})
    reads: list[str] = []

    def current() -> Snapshot:
        reads.append("read")
        return snapshot

    async with connect(current, mode) as client:
        assert reads == []
        await client.list_tools()
        assert reads == []
        await client.list_resources()
        assert reads == ["read"]
        await client.read_resource("knowledge://acme/note/a")
        assert reads == ["read", "read"]


class Strict(BaseModel):
    """What can't be made of the secret below."""

    number: int


def fail_by_hand() -> Snapshot:
    raise RuntimeError("secret /srv/path")


def fail_by_operating_system() -> Snapshot:
    raise FileNotFoundError(2, "secret", "/srv/path")


def fail_by_validation() -> Snapshot:
    Strict.model_validate({"number": "secret /srv/path"})
    raise AssertionError


def fail_by_group() -> Snapshot:
    raise ExceptionGroup("secret", [ValueError("/srv/path")])


@pytest.mark.parametrize(
    ("current", "code"),
    [
        (fail_by_hand, -32603),
        (fail_by_operating_system, -32603),
        (fail_by_group, -32603),
        # The SDK's own checks of a request raise the same error: it stays the client's.
        (fail_by_validation, -32602),
    ],
)
async def test_an_unexpected_error_tells_the_client_nothing(
    current: Callable[[], Snapshot], code: int, mode: str
) -> None:
    async with connect(current, mode) as client:
        for request in (client.list_resources, partial(client.read_resource, "knowledge://a/b/c")):
            with pytest.raises(MCPError) as caught:
                await request()
            error = caught.value
            text = f"{error.message} {error.data}"
            assert ("secret" in text, "/srv" in text, error.code) == (False, False, code)
        assert (await client.list_tools()).tools == []


async def test_an_unexpected_error_stands_in_the_log_with_its_traceback(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(fail_by_hand, mode) as client:
        with pytest.raises(MCPError):
            await client.list_resources()
    (record,) = [found for found in caplog.records if found.name == "okf_mcp_server.server"]
    assert (record.levelname, record.getMessage()) == (
        "ERROR",
        "Request failed: method=resources/list",
    )
    assert record.exc_info is not None


async def test_a_method_that_we_do_not_have_is_not_found(load: Load, mode: str) -> None:
    snapshot = load({})
    async with connect(lambda: snapshot, mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.list_prompts()
    assert caught.value.code == -32601
