"""`POST /{owner}/mcp`: what is answered in which state of the owner, and what waits."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anyio import Event, create_task_group, current_time, fail_after, to_thread
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from okf_mcp_gateway.routes.mcp import CONTENT_FREE_METHODS
from support.git_http import GitHttpServer, GitHttpServerFactory
from support.in_process import (
    LEGACY,
    MODERN,
    NEVER_SECONDS,
    Era,
    InProcess,
    mcp_headers,
    mcp_message,
    running,
    servers,
    until,
)
from support.repositories import Repository

pytestmark = pytest.mark.anyio

AT_ONCE_SECONDS = 20.0
"""Less than any wait for a pull in these tests, and enough for a busy machine."""

MAX_BODY_BYTES = 4 * 1024 * 1024
URI = "knowledge://acme/note/a"
READ = {"uri": URI}
COMPLETE = {
    "ref": {"type": "ref/resource", "uri": "knowledge://acme/{type}/{id}"},
    "argument": {"name": "id", "value": ""},
}
LOADING = {"error": "acme has nothing to serve: it is loading, see /status"}
FAILED = {"error": "acme has nothing to serve: it is failed, see /status"}
ERAS: list[Era] = [MODERN, LEGACY]


@pytest.fixture
def published(repository: Repository) -> Repository:
    """A repository with one document, pushed."""
    repository.document("a.md", id="a", body="Words.")
    repository.publish()
    return repository


@pytest.fixture
def server(published: Repository, git_http_server: GitHttpServerFactory) -> GitHttpServer:
    """A git host with that repository."""
    assert published.bare.exists()
    return git_http_server()


@asynccontextmanager
async def loading(
    folder: Path, server: GitHttpServer, *, pull_wait: str = NEVER_SECONDS
) -> AsyncGenerator[InProcess]:
    """Run a gateway whose owner `acme` is loading, as long as the source hangs."""
    server.hang()
    environment = {"OKF_GATEWAY_PULL_WAIT": pull_wait}
    registry = servers(acme=server.url_of("origin.git"))
    async with running(folder / "gateway", registry, environment=environment) as gateway:
        await to_thread.run_sync(server.wait_for_requests, 1)
        assert (await gateway.row("acme"))["state"] == "loading"
        yield gateway


@asynccontextmanager
async def failed(folder: Path) -> AsyncGenerator[InProcess]:
    """Run a gateway whose owner `acme` is failed, and patient otherwise."""
    environment = {"OKF_GATEWAY_PULL_WAIT": NEVER_SECONDS}
    registry = servers(acme="file:///nonexistent")
    async with running(folder / "gateway", registry, environment=environment) as gateway:
        await gateway.wait_for_state("acme", "failed")
        yield gateway


def listed(answer: httpx2.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [resource["uri"] for resource in answer.json()["result"]["resources"]]


@pytest.mark.row("H2")
@pytest.mark.parametrize("path", ["/acme/mcp", "/acme/mcp/"])
@pytest.mark.parametrize("era", ERAS)
async def test_both_eras_are_served_on_one_endpoint_with_and_without_a_slash(
    era: Era, path: str, published: Repository, tmp_path: Path
) -> None:
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        await gateway.refresh("acme")
        answer = await gateway.client.post(
            path,
            content=mcp_message("resources/list", era=era),
            headers=mcp_headers("resources/list", era=era),
        )
        assert listed(answer) == [URI]
        result = answer.json()["result"]
        hints = {key: result.get(key) for key in ("ttlMs", "cacheScope")}
        assert hints == (
            {"ttlMs": 0, "cacheScope": "private"}
            if era == MODERN
            else {"ttlMs": None, "cacheScope": None}
        )
        assert result["_meta"]["served_commit"] == published.head


@pytest.mark.row("H2")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_legacy_client_of_any_version_is_answered_without_a_session(
    version: str, published: Repository, tmp_path: Path
) -> None:
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        await gateway.refresh("acme")
        content = mcp_message("initialize").replace(LEGACY.encode(), version.encode())
        answer = await gateway.client.post(
            "/acme/mcp", content=content, headers=mcp_headers("initialize")
        )
        assert answer.status_code == 200
        assert answer.json()["result"]["protocolVersion"] == version
        assert "mcp-session-id" not in answer.headers
        headers = {
            **mcp_headers("resources/list", era=LEGACY),
            "MCP-Protocol-Version": version,
            "Mcp-Session-Id": "of-another-process",
        }
        listing = mcp_message("resources/list", era=LEGACY)
        answer = await gateway.client.post("/acme/mcp", content=listing, headers=headers)
        assert listed(answer) == [URI]


@pytest.mark.row("H2")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdks_own_client_lists_and_reads(
    mode: Any, published: Repository, tmp_path: Path
) -> None:
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        await gateway.refresh("acme")
        transport = streamable_http_client(
            "http://gateway.example/acme/mcp", http_client=gateway.client
        )
        async with Client(transport, mode=mode, cache=None) as client:
            listing = await client.list_resources()
            assert [each.uri for each in listing.resources] == [URI]
            read = await client.read_resource(URI)
            assert [getattr(each, "text", None) for each in read.contents] == ["Words."]


@pytest.mark.row("H2")
@pytest.mark.parametrize(
    ("method", "era"),
    [
        ("initialize", LEGACY),
        ("ping", LEGACY),
        ("tools/list", LEGACY),
        ("resources/templates/list", LEGACY),
        ("tools/list", MODERN),
        ("resources/templates/list", MODERN),
        ("server/discover", MODERN),
    ],
)
async def test_while_loading_what_needs_no_content_is_answered_at_once(
    method: str, era: Era, server: GitHttpServer, tmp_path: Path
) -> None:
    async with loading(tmp_path, server) as gateway:
        with fail_after(AT_ONCE_SECONDS):
            answer = await gateway.mcp("acme", method, era=era)
        assert answer.status_code == 200
        assert "result" in answer.json()


@pytest.mark.row("H2")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_no_legacy_client_is_told_that_it_can_listen(
    version: str, server: GitHttpServer, tmp_path: Path
) -> None:
    async with loading(tmp_path, server) as gateway:
        content = mcp_message("initialize").replace(LEGACY.encode(), version.encode())
        answer = await gateway.client.post(
            "/acme/mcp", content=content, headers=mcp_headers("initialize")
        )
        capabilities = answer.json()["result"]["capabilities"]
        assert capabilities["resources"] == {"subscribe": False, "listChanged": False}
        assert capabilities["tools"] == {"listChanged": False}
        listen = {"notifications": {"resourcesListChanged": True}}
        for method, params in [("subscriptions/listen", listen), ("resources/subscribe", READ)]:
            headers = {**mcp_headers(method, era=LEGACY), "MCP-Protocol-Version": version}
            server.release()
            await gateway.wait_for_state("acme", "serving")
            answer = await gateway.client.post(
                "/acme/mcp", content=mcp_message(method, params, era=LEGACY), headers=headers
            )
            assert answer.json()["error"]["code"] == -32601


@pytest.mark.row("H2")
@pytest.mark.parametrize(
    ("method", "era"),
    [
        ("notifications/initialized", LEGACY),
        ("notifications/cancelled", LEGACY),
        ("notifications/cancelled", MODERN),
        ("resources/list", LEGACY),
    ],
)
async def test_while_loading_a_notification_is_accepted_at_once(
    method: str, era: Era, server: GitHttpServer, tmp_path: Path
) -> None:
    params = {"requestId": 7} if "cancelled" in method else None
    async with loading(tmp_path, server) as gateway:
        with fail_after(AT_ONCE_SECONDS):
            answer = await gateway.mcp("acme", method, params, era=era, is_notification=True)
        assert (answer.status_code, answer.content) == (202, b"")


@pytest.mark.row("H2", "P2", "H8")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("method", "params"),
    [("resources/list", None), ("resources/read", READ), ("completion/complete", COMPLETE)],
)
async def test_while_loading_content_is_waited_for_and_then_unavailable(
    method: str, params: Any, era: Era, server: GitHttpServer, tmp_path: Path
) -> None:
    async with loading(tmp_path, server, pull_wait="0.4") as gateway:
        started = current_time()
        answer = await gateway.mcp("acme", method, params, era=era)
        assert 0.3 < current_time() - started < AT_ONCE_SECONDS
        assert (answer.status_code, answer.json()) == (503, LOADING)
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.row("H2", "P2")
async def test_the_wait_counts_from_the_start_of_the_pull(
    server: GitHttpServer, tmp_path: Path
) -> None:
    async with loading(tmp_path, server) as gateway:
        gateway.clock.advance(float(NEVER_SECONDS))
        with fail_after(AT_ONCE_SECONDS):
            answer = await gateway.mcp("acme", "resources/list")
        assert (answer.status_code, answer.json()) == (503, LOADING)


@pytest.mark.row("H2", "P2")
@pytest.mark.parametrize("era", ERAS)
async def test_when_the_pull_succeeds_meanwhile_those_who_wait_are_answered(
    era: Era, server: GitHttpServer, tmp_path: Path
) -> None:
    answers: list[httpx2.Response] = []
    async with loading(tmp_path, server) as gateway:

        async def ask(method: str, params: Any) -> None:
            answers.append(await gateway.mcp("acme", method, params, era=era))

        async with create_task_group() as tasks:
            tasks.start_soon(ask, "resources/list", None)
            tasks.start_soon(ask, "resources/read", READ)
            # Both have come as far as they can once a later request is through.
            await gateway.mcp("acme", "tools/list", era=era)
            assert answers == []
            server.release()
        assert [answer.status_code for answer in answers] == [200, 200]
        assert {"resources" in answer.json()["result"] for answer in answers} == {True, False}


@pytest.mark.row("H2", "P2", "S1")
async def test_when_the_pull_fails_meanwhile_those_who_wait_are_told_so(
    server: GitHttpServer, tmp_path: Path
) -> None:
    async with loading(tmp_path, server) as gateway:
        answers: list[httpx2.Response] = []

        async def ask() -> None:
            answers.append(await gateway.mcp("acme", "resources/list"))

        async with create_task_group() as tasks:
            tasks.start_soon(ask)
            await gateway.mcp("acme", "tools/list")
            server.refuse(500)
        assert [(answer.status_code, answer.json()) for answer in answers] == [(503, FAILED)]


@pytest.mark.row("H2")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "method",
    [*sorted(CONTENT_FREE_METHODS), "resources/list", "resources/read", "completion/complete"],
)
async def test_failed_is_unavailable_at_once_for_everything(
    method: str, era: Era, tmp_path: Path
) -> None:
    params = READ if method == "resources/read" else None
    async with failed(tmp_path) as gateway:
        with fail_after(AT_ONCE_SECONDS):
            answer = await gateway.mcp("acme", method, params, era=era)
        assert (answer.status_code, answer.json()) == (503, FAILED)
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.row("H2")
@pytest.mark.parametrize("content", [b"", b"not JSON", b"[]", b"x" * MAX_BODY_BYTES])
async def test_failed_is_unavailable_whatever_the_body(content: bytes, tmp_path: Path) -> None:
    async with failed(tmp_path) as gateway:
        with fail_after(AT_ONCE_SECONDS):
            answer = await gateway.client.post(
                "/acme/mcp", content=content, headers=mcp_headers("ping")
            )
        assert (answer.status_code, answer.json()) == (503, FAILED)


@pytest.mark.row("H2", "P3")
async def test_retry_after_tells_how_long_it_is_to_the_next_attempt(tmp_path: Path) -> None:
    async with failed(tmp_path) as gateway:

        async def is_second_pause() -> bool:
            row = await gateway.row("acme", "diagnostics=true")
            return row["diagnostics"]["next_attempt_at"] == "2026-07-17T12:00:02Z"

        await until(is_second_pause)
        for seconds, retry_after in [(0.0, "2"), (0.5, "2"), (1.0, "1"), (10.0, "1")]:
            gateway.clock.advance(seconds)
            answer = await gateway.mcp("acme", "ping", era=LEGACY)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, retry_after)


@pytest.mark.row("H2", "P3")
async def test_retry_after_is_1_while_a_failed_owner_is_tried_again(
    server: GitHttpServer, tmp_path: Path
) -> None:
    server.refuse(500)
    async with running(tmp_path / "gateway", servers(acme=server.url_of("origin.git"))) as gateway:
        await gateway.wait_for_state("acme", "failed")
        server.hang()
        server.forget()
        await to_thread.run_sync(server.wait_for_requests, 1)
        with fail_after(AT_ONCE_SECONDS):
            answer = await gateway.mcp("acme", "resources/list")
        assert (answer.status_code, answer.json()) == (503, FAILED)
        assert answer.headers["retry-after"] == "1"
        server.release()


async def in_pieces(content: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


@pytest.mark.row("H2")
@pytest.mark.parametrize("size", [1, 7, 100])
async def test_while_loading_a_body_in_pieces_is_put_together_and_handed_on_whole(
    size: int, server: GitHttpServer, tmp_path: Path
) -> None:
    async with loading(tmp_path, server) as gateway:
        with fail_after(AT_ONCE_SECONDS):
            answer = await gateway.client.post(
                "/acme/mcp",
                content=in_pieces(mcp_message("tools/list"), size),
                headers=mcp_headers("tools/list"),
            )
        assert answer.status_code == 200
        assert answer.json()["result"]["tools"] == []
        asked = Event()
        answers: list[httpx2.Response] = []

        async def listing() -> AsyncIterator[bytes]:
            async for piece in in_pieces(mcp_message("resources/list"), size):
                yield piece
            asked.set()

        async def ask() -> None:
            headers = mcp_headers("resources/list")
            answers.append(
                await gateway.client.post("/acme/mcp", content=listing(), headers=headers)
            )

        async with create_task_group() as tasks:
            tasks.start_soon(ask)
            await asked.wait()
            server.release()
        assert [listed(answer) for answer in answers] == [[URI]]


@pytest.mark.row("H2")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not JSON",
        b"\xff\xfe",
        b"null",
        b"7",
        b"{}",
        b"[]",
        b'[{"jsonrpc": "2.0", "id": 1, "method": "resources/list"}]',
        b'{"jsonrpc": "2.0", "id": 1}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda content: content[:20].decode(errors="replace"),
)
@pytest.mark.parametrize("era", ERAS)
async def test_while_loading_a_body_that_is_no_request_is_400_at_once(
    era: Era, content: bytes, server: GitHttpServer, tmp_path: Path
) -> None:
    async with loading(tmp_path, server) as gateway:
        headers = mcp_headers("ping", era=era)
        with fail_after(AT_ONCE_SECONDS):
            answer = await gateway.client.post("/acme/mcp", content=content, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] in {-32700, -32600, -32020, -32602}


@pytest.mark.row("H2")
@pytest.mark.parametrize("method", [["resources/list"], {"a": 1}, 7, None, ""])
async def test_while_loading_a_method_that_is_no_text_is_no_crash(
    method: object, server: GitHttpServer, tmp_path: Path
) -> None:
    async with loading(tmp_path, server, pull_wait="0") as gateway:
        content = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method}).encode()
        answer = await gateway.client.post(
            "/acme/mcp", content=content, headers=mcp_headers("ping", era=LEGACY)
        )
        assert answer.status_code in {400, 503}


@pytest.mark.row("H2")
@pytest.mark.parametrize("sent", ["with a length", "in chunks"])
@pytest.mark.parametrize("kind", ["junk", "a request"])
@pytest.mark.parametrize("state", ["loading", "serving"])
async def test_a_body_over_4_mib_is_413_at_once(
    state: str, kind: str, sent: str, server: GitHttpServer, tmp_path: Path
) -> None:
    request = mcp_message("resources/list") if kind == "a request" else b""
    content = request + b" " * (MAX_BODY_BYTES + 1 - len(request))
    body = in_pieces(content, len(content)) if sent == "in chunks" else content
    async with loading(tmp_path, server) as gateway:
        if state == "serving":
            server.release()
            await gateway.wait_for_state("acme", "serving")
        with fail_after(AT_ONCE_SECONDS):
            answer = await gateway.client.post(
                "/acme/mcp", content=body, headers=mcp_headers("resources/list")
            )
        sentence = "a request's body takes 4 MiB at most"
        assert (answer.status_code, answer.json()) == (413, {"error": sentence})


@pytest.mark.row("H2")
async def test_while_loading_a_body_of_4_mib_is_taken(
    server: GitHttpServer, tmp_path: Path
) -> None:
    request = mcp_message("tools/list")
    content = request + b" " * (MAX_BODY_BYTES - len(request))
    async with loading(tmp_path, server) as gateway:
        answer = await gateway.client.post(
            "/acme/mcp", content=content, headers=mcp_headers("tools/list")
        )
        assert answer.status_code == 200


@pytest.mark.row("H2")
async def test_while_loading_other_methods_are_405_and_strangers_404(
    server: GitHttpServer, tmp_path: Path
) -> None:
    async with loading(tmp_path, server) as gateway:
        with fail_after(AT_ONCE_SECONDS):
            answer = await gateway.get("/acme/mcp")
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
            answer = await gateway.mcp("ghost", "resources/list")
            assert (answer.status_code, answer.json()) == (404, {"error": "unknown owner"})


@pytest.mark.row("H8")
async def test_an_error_that_the_sdk_writes_as_text_is_a_json_sentence(
    server: GitHttpServer, tmp_path: Path
) -> None:
    async with loading(tmp_path, server) as gateway:
        server.release()
        await gateway.wait_for_state("acme", "serving")
        headers = mcp_headers("resources/list", era=LEGACY) | {"Content-Type": "text/plain"}
        answer = await gateway.client.post(
            "/acme/mcp", content=mcp_message("resources/list", era=LEGACY), headers=headers
        )
    assert answer.headers["content-type"] == "application/json"
    assert (answer.status_code, answer.json()) == (400, {"error": "Invalid Content-Type header"})
