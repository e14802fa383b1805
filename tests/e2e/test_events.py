"""Clients that listen: what they are told of which publish, and how their streams end."""

import json
import socket
import statistics
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any, Final

import mcp_types as types
import pytest
from anyio import fail_after, move_on_after, to_thread
from mcp import Client
from mcp.client.subscriptions import Subscription
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated, ServerEvent

from support.clients import mcp_client
from support.gateway_process import GatewayFactory, GatewayProcess
from support.git_http import GitHttpServer, GitHttpServerFactory
from support.in_process import mcp_headers, mcp_message
from support.repositories import Repository, RepositoryFactory

pytestmark = pytest.mark.anyio

DEADLINE_SECONDS: Final = 60
STOP_SECONDS: Final = 5.0
PUSHES: Final = 25
LIST: Final = ResourcesListChanged()
A: Final = ResourceUpdated("knowledge://acme/note/a")
B: Final = ResourceUpdated("knowledge://acme/note/b")
LISTEN: Final = "subscriptions/listen"
FORCED: Final = "timeout graceful shutdown exceeded"
"""What the log says if a stop had to break requests off."""


@pytest.fixture
def repository(new_repository: RepositoryFactory) -> Repository:
    """A repository with one commit of one document, pushed."""
    repository = new_repository()
    repository.publish_document("One.")
    return repository


@pytest.fixture
def server(git_http_server: GitHttpServerFactory) -> GitHttpServer:
    """A git host that serves the repositories of the test."""
    return git_http_server()


@pytest.fixture
def process(repository: Repository, gateway: GatewayFactory) -> GatewayProcess:
    """A gateway that serves it as `acme`, and pulls when it is told to."""
    process = gateway(registry({"acme": repository.url}))
    process.wait_for_state("acme", "serving")
    return process


def registry(urls: Mapping[str, str], ttl: int = 3600) -> str:
    return json.dumps({"owners": {name: {"url": url, "ttl": ttl} for name, url in urls.items()}})


@asynccontextmanager
async def connected(process: GatewayProcess, owner: str = "acme") -> AsyncGenerator[Client]:
    """Connect the SDK's client; the test's body has a deadline."""
    with fail_after(DEADLINE_SECONDS):
        async with mcp_client(process.mcp_url(owner), process.token) as client:
            yield client


async def refresh(process: GatewayProcess, owner: str = "acme") -> None:
    answer = await to_thread.run_sync(process.refresh, owner)
    assert answer.status == 200, answer


async def take(stream: Subscription, count: int) -> list[ServerEvent]:
    return [await anext(stream) for _ in range(count)]


async def rest(stream: Subscription) -> list[ServerEvent]:
    """Return what still comes until the gateway ends the stream, as it does when it stops."""
    return [event async for event in stream]


async def read(client: Client, uri: str = A.uri) -> tuple[str, str]:
    """Return a document's text, and the commit that it belongs to."""
    answer = await client.read_resource(uri)
    (contents,) = answer.contents
    assert isinstance(contents, types.TextResourceContents)
    return contents.text, (answer.meta or {})["served_commit"]


# What is told


@pytest.mark.row("H2", "P5")
async def test_who_listens_is_told_of_a_push_and_then_reads_it(
    process: GatewayProcess, repository: Repository
) -> None:
    async with (
        connected(process) as client,
        client.listen(resources_list_changed=True, resource_subscriptions=[A.uri]) as stream,
    ):
        assert stream.honored == types.SubscriptionFilter(
            resources_list_changed=True, resource_subscriptions=[A.uri]
        )
        commit = repository.publish_document("Two.")
        await refresh(process)
        assert set(await take(stream, 2)) == {LIST, A}
        assert await read(client) == ("Two.", commit)
        listing = await client.list_resources()
        assert [each.description for each in listing.resources] == ["Two."]


@pytest.mark.row("H2")
async def test_an_event_follows_a_push_within_moments(
    process: GatewayProcess, repository: Repository
) -> None:
    seconds: list[float] = []
    async with (
        connected(process) as client,
        client.listen(resource_subscriptions=[A.uri]) as stream,
    ):
        for number in range(PUSHES):
            commit = repository.publish_document(f"Push {number}.")
            pushed = time.perf_counter()
            await refresh(process)
            assert await anext(stream) == A
            seconds.append(time.perf_counter() - pushed)
            assert await read(client) == (f"Push {number}.", commit)
    median = statistics.median(seconds)
    print(f"push to event: median {median * 1000:.0f} ms, most {max(seconds) * 1000:.0f} ms")  # noqa: T201 - a measurement, for who asks by -s
    assert median < 2


@pytest.mark.row("H2")
async def test_what_was_not_asked_for_never_comes(
    process: GatewayProcess, repository: Repository
) -> None:
    repository.document("b.md", id="b", fields={"description": "Words."}, body="One.\n")
    repository.publish()
    await refresh(process)
    async with connected(process) as client, AsyncExitStack() as stack:
        listing, reading, other = [
            await stack.enter_async_context(opened)
            for opened in (
                client.listen(resources_list_changed=True),
                client.listen(resource_subscriptions=[B.uri]),
                client.listen(tools_list_changed=True, prompts_list_changed=True),
            )
        ]
        repository.document("b.md", id="b", fields={"description": "Words."}, body="Two.\n")
        repository.publish()
        await refresh(process)
        assert await take(reading, 1) == [B]
        repository.document("c.md", id="c")
        repository.publish()
        await refresh(process)
        assert await take(listing, 1) == [LIST]
        assert await to_thread.run_sync(process.stop) == 0
        assert [await rest(each) for each in (listing, reading, other)] == [[], [], []]


@pytest.mark.row("H2")
async def test_a_pull_that_finds_nothing_new_tells_nothing(
    process: GatewayProcess, repository: Repository
) -> None:
    async with (
        connected(process) as client,
        client.listen(resources_list_changed=True, resource_subscriptions=[A.uri]) as stream,
    ):
        await refresh(process)
        repository.write("code.py", "print()\n")
        commit = repository.publish()
        await refresh(process)
        assert await read(client) == ("One.", commit)
        assert await to_thread.run_sync(process.stop) == 0
        assert await rest(stream) == []


@pytest.mark.row("H2", "P5")
async def test_a_forced_push_is_told_and_so_is_a_document_that_goes(
    process: GatewayProcess, repository: Repository
) -> None:
    first = repository.head
    async with (
        connected(process) as client,
        client.listen(resource_subscriptions=[A.uri, B.uri]) as stream,
    ):
        repository.document("b.md", id="b")
        repository.publish()
        await refresh(process)
        assert await take(stream, 1) == [B]
        repository.reset(first)
        repository.start_over()
        repository.document("design/a.md", id="a", body="Rewritten.\n")
        commit = repository.publish(force=True)
        await refresh(process)
        assert set(await take(stream, 2)) == {A, B}
        assert await read(client) == ("Rewritten.", commit)
        with pytest.raises(MCPError, match="Resource not found"):
            await read(client, B.uri)


@pytest.mark.row("H2")
async def test_of_many_publishes_in_a_row_the_last_is_told_too(
    process: GatewayProcess, repository: Repository
) -> None:
    commit = ""
    async with (
        connected(process) as client,
        client.listen(resource_subscriptions=[A.uri]) as stream,
    ):
        for number in range(10):
            commit = repository.publish_document(f"Push {number}.")
            await refresh(process)
        seen = ("One.", "")
        while seen != ("Push 9.", commit):
            assert await anext(stream) == A
            seen = await read(client)


@pytest.mark.row("H2")
async def test_who_listens_to_one_owner_is_told_nothing_of_another(
    repository: Repository, new_repository: RepositoryFactory, gateway: GatewayFactory
) -> None:
    other = new_repository("other")
    other.publish_document("One.")
    process = gateway(registry({"acme": repository.url, "beta": other.url}))
    for owner in ("acme", "beta"):
        process.wait_for_state(owner, "serving")
    of_beta = ResourceUpdated("knowledge://beta/note/a")
    wanted = [A.uri, of_beta.uri]
    async with (
        connected(process) as client,
        client.listen(resources_list_changed=True, resource_subscriptions=wanted) as stream,
        connected(process, "beta") as other_client,
        other_client.listen(
            resources_list_changed=True, resource_subscriptions=wanted
        ) as other_stream,
    ):
        other.publish_document("Two.")
        await refresh(process, "beta")
        assert set(await take(other_stream, 2)) == {LIST, of_beta}
        assert await to_thread.run_sync(process.stop) == 0
        assert await rest(stream) == []


@pytest.mark.row("H2")
async def test_a_client_may_listen_while_its_owner_loads(
    repository: Repository, server: GitHttpServer, gateway: GatewayFactory
) -> None:
    server.hang()
    process = gateway(registry({"acme": server.url_of(repository)}))
    await to_thread.run_sync(server.wait_for_requests, 1)
    async with (
        connected(process) as client,
        client.listen(resources_list_changed=True, resource_subscriptions=[A.uri, B.uri]) as stream,
    ):
        assert process.owner("acme")["state"] == "loading"
        templates = await client.list_resource_templates()
        assert len(templates.resource_templates) == 1
        server.release()
        assert set(await take(stream, 2)) == {LIST, A}
        assert await read(client) == ("One.", repository.head)


@pytest.mark.row("P3")
async def test_an_open_stream_pulls_nothing(
    repository: Repository, server: GitHttpServer, gateway: GatewayFactory
) -> None:
    process = gateway(registry({"acme": server.url_of(repository)}, ttl=0))
    process.wait_for_state("acme", "serving")
    async with (
        connected(process) as client,
        client.listen(resource_subscriptions=[A.uri]) as stream,
    ):
        repository.publish_document("Two.")
        asked = len(server.exchanges)
        with move_on_after(1) as silence:
            await anext(stream)
        assert silence.cancelled_caught
        assert len(server.exchanges) == asked
        await client.list_resources()
        assert await anext(stream) == A


@pytest.mark.row("H1")
def test_who_has_no_token_can_not_listen(process: GatewayProcess) -> None:
    body = mcp_message(LISTEN, wanting([A.uri]))
    for token in (False, "wrong"):
        answer = process.post("/acme/mcp", body, token=token, headers=mcp_headers(LISTEN))
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


# How streams end


def wanting(uris: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return the parameters of a request to listen to the list, and to some URIs."""
    return {"notifications": {"resourcesListChanged": True, "resourceSubscriptions": list(uris)}}


class RawRequest:
    """A request by hand: what comes is read when the test says so."""

    def __init__(
        self,
        process: GatewayProcess,
        params: Mapping[str, Any],
        *,
        method: str = LISTEN,
        buffer_bytes: int = 0,
    ) -> None:
        body = mcp_message(method, params)
        self._socket = socket.socket()
        if buffer_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self._socket.settimeout(DEADLINE_SECONDS)
        self._socket.connect((process.host, process.port))
        sent = {
            "Host": "gateway.example",
            "Authorization": f"Bearer {process.token}",
            "Content-Length": str(len(body)),
            **mcp_headers(method, params),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        self._socket.sendall(f"POST /acme/mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
        self._text = b""

    def wait_for(self, text: bytes = b"acknowledged") -> None:
        """Read until this has come."""
        while text not in self._text:
            piece = self._socket.recv(4096)
            assert piece, self._text
            self._text += piece

    def read_to_its_end(self, pause_seconds: float = 0) -> bytes:
        """Read until the gateway closes the connection, and return all that ever came."""
        while piece := self._socket.recv(65536):
            self._text += piece
            time.sleep(pause_seconds)
        return self._text

    def close(self) -> None:
        self._socket.close()


def last_message(text: bytes) -> dict[str, Any]:
    """Return the last message of a stream."""
    lines = [line for line in text.split(b"\r\n") if line.startswith(b"data: ")]
    return json.loads(lines[-1].removeprefix(b"data: "))


def seconds_of_a_stop(process: GatewayProcess) -> float:
    begin = time.monotonic()
    assert process.stop() == 0
    return time.monotonic() - begin


@pytest.mark.row("P8")
async def test_a_stop_ends_the_streams_of_the_sdks_client_by_a_result(
    process: GatewayProcess,
) -> None:
    async with connected(process) as client, AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(client.listen(resources_list_changed=True))
            for _ in range(2)
        ]
        seconds = await to_thread.run_sync(seconds_of_a_stop, process)
        # Without a result, this raises.
        assert [await rest(stream) for stream in streams] == [[], []]
    assert seconds < STOP_SECONDS
    assert FORCED not in process.log
    assert "Traceback" not in process.log


@pytest.mark.row("P8")
def test_a_stop_ends_two_hundred_streams_each_by_a_result(process: GatewayProcess) -> None:
    with ExitStack() as stack:
        streams = [RawRequest(process, wanting([A.uri])) for _ in range(200)]
        for stream in streams:
            stack.callback(stream.close)
            stream.wait_for()
        seconds = seconds_of_a_stop(process)
        ends = [last_message(stream.read_to_its_end()) for stream in streams]
    print(f"stop with 200 streams: {seconds * 1000:.0f} ms")  # noqa: T201 - a measurement, for who asks by -s
    assert all("result" in end for end in ends)
    assert seconds < STOP_SECONDS
    assert FORCED not in process.log
    assert "Traceback" not in process.log


@pytest.mark.row("P8")
def test_a_client_that_stopped_reading_does_not_hold_up_a_stop(
    process: GatewayProcess, repository: Repository
) -> None:
    ids = [f"{number}{'x' * 3900}" for number in range(1000)]
    uris = [f"knowledge://acme/note/{each}" for each in ids]
    with ExitStack() as stack:
        stuck = RawRequest(process, wanting(uris), buffer_bytes=4096)
        stack.callback(stuck.close)
        reading = RawRequest(process, wanting())
        stack.callback(reading.close)
        reading.wait_for()
        for number, each in enumerate(ids):
            repository.document(f"many/{number}.md", id=each)
        repository.publish()
        assert process.refresh("acme").status == 200
        seconds = seconds_of_a_stop(process)
        end = last_message(reading.read_to_its_end())
    print(f"stop with a client that doesn't read: {seconds * 1000:.0f} ms")  # noqa: T201 - a measurement, for who asks by -s
    assert "result" in end
    assert seconds < STOP_SECONDS
    assert FORCED not in process.log
    assert "Traceback" not in process.log


@pytest.mark.row("P8")
def test_a_client_that_reads_slowly_gets_its_whole_answer_before_a_stop(
    process: GatewayProcess, repository: Repository
) -> None:
    content = "é" * 1_500_000  # which JSON makes 9 MB of: more than the kernel's buffers take
    repository.publish_document(content)
    assert process.refresh("acme").status == 200
    slow = RawRequest(process, {"uri": A.uri}, method="resources/read", buffer_bytes=262144)
    slow.wait_for(b"200 OK")
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(seconds_of_a_stop, process)
        # All of it in about 1.5 s: more than a client that reads nothing has, less than a stop.
        answer = slow.read_to_its_end(pause_seconds=0.01)
        assert stopping.result(10) < STOP_SECONDS
    slow.close()
    assert json.dumps(content).encode() in answer


@pytest.mark.row("P8")
def test_a_request_to_listen_that_comes_during_a_stop_is_told_so(
    repository: Repository, server: GitHttpServer, gateway: GatewayFactory
) -> None:
    process = gateway(
        registry({"acme": server.url_of(repository)}, ttl=0),
        environment={"OKF_GATEWAY_PULL_WAIT": "60"},
    )
    process.wait_for_state("acme", "serving")
    server.forget()
    server.hang()
    body = mcp_message(LISTEN, wanting())
    with ThreadPoolExecutor(1) as pool:
        # It waits for the pull, and goes on when the stop has killed git.
        waiting = pool.submit(process.post, "/acme/mcp", body, headers=mcp_headers(LISTEN))
        server.wait_for_requests(1)
        assert seconds_of_a_stop(process) < STOP_SECONDS
        answer = waiting.result(10)
    assert answer.json["error"] == {"code": -32603, "message": "The server is stopping"}
    assert FORCED not in process.log


@pytest.mark.row("H2")
def test_clients_that_go_away_leave_their_places_to_others(process: GatewayProcess) -> None:
    for _ in range(1100):
        gone = RawRequest(process, wanting())
        gone.wait_for()
        gone.close()
    last = RawRequest(process, wanting())
    last.wait_for()
    last.close()
