"""The MCP server of one owner, as clients of both eras see it (D7, D8, D11)."""

from collections.abc import Callable
from functools import partial
from typing import NoReturn

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.subscriptions import ListenNotSupportedError
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.uri_template import UriTemplate
from pydantic import BaseModel

from okf_mcp_server import Snapshot, build_server
from okf_mcp_server.changes import Changes

Load = Callable[..., Snapshot]

COMMIT = "c" * 40
MODES = ["legacy", "auto"]
TEMPLATE = types.ResourceTemplateReference(uri="knowledge://acme/{type}/{id}")

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("mode", MODES)]


def note(*lines: str, body: str = "Body.") -> str:
    return "\n".join(["---", "export: true", "type: Note", *lines, "---", body, ""])


def connect(current: Callable[[], Snapshot], mode: str, changes: Changes | None = None) -> Client:
    server = build_server("acme", current, changes)
    return Client(server, mode=mode, cache=None, read_timeout_seconds=30)


@pytest.mark.row("T3")
async def test_a_client_learns_who_answers_and_what_it_can_do(load: Load, mode: str) -> None:
    snapshot = load({})
    async with connect(lambda: snapshot, mode) as client:
        assert client.protocol_version == ("2025-11-25" if mode == "legacy" else "2026-07-28")
        assert client.server_info is not None
        assert client.server_info.name == "okf-mcp-server"
        assert client.server_info.version
        capabilities = client.server_capabilities.model_dump(exclude_none=True)
        assert capabilities == {
            "completions": {},
            "resources": {"list_changed": False, "subscribe": False},
            "tools": {"list_changed": False},
        }
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
        for request in (
            client.list_resources,
            client.list_tools,
            client.list_resource_templates,
        ):
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
        await client.list_resource_templates()
        assert reads == []
        await client.list_resources()
        assert reads == ["read"]
        await client.read_resource("knowledge://acme/note/a")
        assert reads == ["read", "read"]
        await client.complete(TEMPLATE, {"name": "id", "value": ""})
        assert reads == ["read", "read", "read"]


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
        for request in (
            client.list_resources,
            partial(client.read_resource, "knowledge://a/b/c"),
            partial(client.complete, TEMPLATE, {"name": "id", "value": ""}),
        ):
            with pytest.raises(MCPError) as caught:
                await request()
            error = caught.value
            text = f"{error.message} {error.data}"
            assert ("secret" in text, "/srv" in text, error.code) == (False, False, code)
        assert (await client.list_tools()).tools == []


class BrokenChanges(Changes):
    """Streams that break at once."""

    async def listen(self, context: object, params: object) -> NoReturn:
        raise RuntimeError(f"secret /srv/path {context} {params}")


async def test_an_unexpected_error_of_a_stream_tells_the_client_nothing(
    load: Load, mode: str
) -> None:
    async with connect(lambda: load({}), mode, BrokenChanges("acme")) as client:
        if mode == "legacy":
            with pytest.raises(ListenNotSupportedError):
                await open_stream(client)
        else:
            with pytest.raises(MCPError) as caught:
                await open_stream(client)
            error = caught.value.error
            assert (error.code, error.message, error.data) == (
                -32603,
                "Internal server error",
                None,
            )
        assert (await client.list_tools()).tools == []


async def open_stream(client: Client) -> None:
    async with client.listen(resources_list_changed=True):
        pass


async def test_only_clients_that_can_listen_are_told_that_they_can(load: Load, mode: str) -> None:
    async with connect(lambda: load({}), mode, Changes("acme")) as client:
        resources = client.server_capabilities.resources
        can_listen = mode != "legacy"
        assert resources == types.ResourcesCapability(list_changed=can_listen, subscribe=can_listen)


async def test_where_nothing_changes_nobody_can_listen(load: Load, mode: str) -> None:
    async with connect(lambda: load({}), mode) as client:
        if mode == "legacy":
            with pytest.raises(MCPError) as caught, pytest.warns(MCPDeprecationWarning):
                await client.subscribe_resource("knowledge://acme/note/a")  # pyright: ignore[reportDeprecated]
        else:
            with pytest.raises(MCPError) as caught:
                await open_stream(client)
        assert caught.value.code == -32601


async def test_a_template_is_listed_completed_and_read(load: Load, mode: str) -> None:
    snapshot = load({"a.md": note("id: a/b c")})
    async with connect(lambda: snapshot, mode) as client:
        (template,) = (await client.list_resource_templates()).resource_templates
        ref = types.ResourceTemplateReference(uri=template.uri_template)
        (slug,) = (await client.complete(ref, {"name": "type", "value": ""})).completion.values
        answer = await client.complete(
            ref, {"name": "id", "value": "b"}, context_arguments={"type": slug}
        )
        completion = types.Completion(values=["a/b c"], total=1, has_more=False)
        assert answer.completion == completion
        uri = UriTemplate.parse(template.uri_template).expand({"type": slug, "id": "a/b c"})
        (contents,) = (await client.read_resource(uri)).contents
        assert contents.uri == "knowledge://acme/note/a%2Fb%20c"


async def test_what_can_not_be_completed_is_invalid_params(load: Load, mode: str) -> None:
    async with connect(lambda: load({}), mode) as client:
        for ref, name in [(TEMPLATE, "title"), (types.PromptReference(name="x"), "id")]:
            with pytest.raises(MCPError) as caught:
                await client.complete(ref, {"name": name, "value": ""})
            assert caught.value.code == -32602


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
