"""The gateway as a process between its sources and its clients: starts, stops, outages."""

import json
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from support.clients import mcp_client
from support.gateway_process import Answer, GatewayFactory, GatewayProcess, wait_until
from support.git_http import GitHttpServer, GitHttpServerFactory
from support.repositories import Repository, RepositoryFactory

STOP_SECONDS = 5.0
LIST_RESOURCES = {"jsonrpc": "2.0", "id": 1, "method": "resources/list"}
ACCEPT = {"Accept": "application/json, text/event-stream"}

T = TypeVar("T")


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


def registry(urls: Mapping[str, str], ttl: int = 0) -> str:
    owners = {name: {"url": url, "ttl": ttl} for name, url in urls.items()}
    return json.dumps({"owners": owners})


def read_a(gateway: GatewayProcess, owner: str = "acme") -> str:
    """Read document `a` with the SDK's client."""

    async def read() -> str:
        with anyio.fail_after(30):
            async with mcp_client(gateway.mcp_url(owner), gateway.token) as client:
                answer = await client.read_resource(f"knowledge://{owner}/note/a")
        return str(answer.contents[0].model_dump()["text"])

    return anyio.run(read)


def list_by_hand(gateway: GatewayProcess, owner: str = "acme") -> Answer:
    """Ask for the resources in one plain request."""
    return gateway.post(f"/{owner}/mcp", LIST_RESOURCES, headers=ACCEPT)


def uris_of(answer: Answer) -> list[str]:
    assert answer.status == 200, answer
    return [each["uri"] for each in answer.json["result"]["resources"]]


def at_the_same_time(call: Callable[[], T]) -> "Future[T]":
    """Run a call in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future


def commands_with(text: str) -> list[str]:
    """Return the command lines of the processes of this machine that hold `text`."""
    if Path("/proc/self/cmdline").exists():
        lines = [read_command_line(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    else:
        listing = ["ps", "-A", "-ww", "-o", "args="]
        lines = subprocess.check_output(listing, text=True, timeout=30).splitlines()
    return [line for line in lines if text in line]


def read_command_line(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""  # It ended meanwhile.


# Outages


@pytest.mark.row("P1", "P4", "S2")
def test_a_gateway_that_starts_offline_serves_its_cached_copies(
    new_repository: RepositoryFactory, server: GitHttpServer, gateway: GatewayFactory
) -> None:
    names = ("acme", "beta", "gamma")
    repositories = {name: new_repository(name) for name in names}
    for name, each in repositories.items():
        each.publish_document(f"Of {name}.")
    process = gateway(
        registry({name: server.url_of(each) for name, each in repositories.items()}, ttl=3600)
    )
    for name in names:
        process.wait_for_state(name, "serving")
    assert process.stop() == 0
    server.close()
    process.start()
    for name in names:
        assert read_a(process, name) == f"Of {name}."
    wait_until(lambda: all(process.owner(name)["stale"] for name in names))
    assert process.status()["summary"] == {"total": 3, "serving": 3, "loading": 0, "failed": 0}


@pytest.mark.row("P1", "P2")
def test_a_cached_copy_within_its_ttl_is_served_while_its_source_hangs(
    repository: Repository, server: GitHttpServer, gateway: GatewayFactory
) -> None:
    process = gateway(registry({"acme": server.url_of(repository)}, ttl=3600))
    process.wait_for_state("acme", "serving")
    process.stop()
    server.forget()
    server.hang()
    process.environment["OKF_GATEWAY_PULL_WAIT"] = "60"
    process.start()
    begin = time.monotonic()
    assert read_a(process) == "One."
    assert time.monotonic() - begin < 30
    server.wait_for_requests(1)
    row = process.owner("acme")
    assert (row["state"], row["source_available"], row["freshness"]) == ("serving", True, "fresh")


@pytest.mark.row("P2", "P4")
def test_an_owner_whose_source_is_away_or_hangs_does_not_concern_another(
    new_repository: RepositoryFactory,
    git_http_server: GitHttpServerFactory,
    gateway: GatewayFactory,
) -> None:
    acme, beta = new_repository("acme"), new_repository("beta")
    acme.publish_document("Of acme.")
    beta.publish_document("Of beta.")
    slow = git_http_server()
    process = gateway(
        registry({"acme": slow.url_of(acme), "beta": beta.url}),
        environment={"OKF_GATEWAY_PULL_WAIT": "1"},
    )
    for name in ("acme", "beta"):
        process.wait_for_state(name, "serving")

    def is_only_beta_fresh() -> None:
        newest = beta.publish_document(f"Push {time.monotonic_ns()}.")
        assert uris_of(list_by_hand(process, "acme")) == ["knowledge://acme/note/a"]
        assert list_by_hand(process, "beta").json["result"]["_meta"]["served_commit"] == newest
        assert process.owner("beta")["freshness"] == "fresh"

    slow.hang()
    is_only_beta_fresh()
    assert process.owner("acme")["stale"] is False
    slow.refuse(500)
    wait_until(lambda: process.owner("acme")["stale"])
    is_only_beta_fresh()
    answer = process.refresh("acme")
    assert answer.status == 502
    assert answer.json["served_commit"] == acme.head
    assert process.refresh("beta").status == 200


@pytest.mark.row("P2")
def test_a_hanging_source_costs_the_first_requests_once_and_later_ones_nothing(
    repository: Repository, server: GitHttpServer, gateway: GatewayFactory
) -> None:
    process = gateway(
        registry({"acme": server.url_of(repository)}), environment={"OKF_GATEWAY_PULL_WAIT": "3"}
    )
    process.wait_for_state("acme", "serving")
    server.forget()
    server.hang()

    def timed() -> float:
        begin = time.monotonic()
        assert uris_of(list_by_hand(process)) == ["knowledge://acme/note/a"]
        return time.monotonic() - begin

    together = [at_the_same_time(timed) for _ in range(8)]
    firsts = [each.result(20) for each in together]
    assert 2.9 < max(firsts) < 10
    assert sum(timed() for _ in range(10)) < 2.9
    assert len(server.exchanges) == 1


# Starts


@pytest.mark.row("P1", "H1", "H2")
def test_twenty_owners_wait_for_their_turn_while_the_gateway_answers_from_the_first_moment(
    repository: Repository, server: GitHttpServer, gateway: GatewayFactory
) -> None:
    names = [f"owner{number}" for number in range(20)]
    server.hang()
    process = gateway(
        registry(dict.fromkeys(names, server.url_of(repository))),
        environment={"OKF_GATEWAY_PULL_WAIT": "0.5"},
    )
    summary = {"total": 20, "serving": 0, "loading": 20, "failed": 0}
    server.wait_for_requests(4)
    for _ in range(5):
        begin = time.monotonic()
        health = process.get("/healthz", token=False)
        assert (health.status, health.text) == (200, "ok")
        assert process.status()["summary"] == summary
        assert time.monotonic() - begin < 5
    ping = process.post(
        "/owner19/mcp", {"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=ACCEPT
    )
    assert (ping.status, ping.json["result"]) == (200, {})
    refused = list_by_hand(process, "owner19")
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert len(server.exchanges) == 4
    server.release()
    wait_until(lambda: process.status()["summary"]["serving"] == 20, 40)
    assert process.stop() == 0
    # Twenty cached copies, none of which can be checked.
    server.forget()
    server.hang()
    process.start()
    wait_until(lambda: process.status()["summary"]["serving"] == 20, 20)
    assert {process.owner(name)["docs_loaded"] for name in names} == {1}


# Stops


@pytest.mark.row("P8")
def test_a_stop_answers_who_waits_kills_git_and_ends_in_time(
    repository: Repository, server: GitHttpServer, gateway: GatewayFactory
) -> None:
    url = server.url_of(repository)
    process = gateway(registry({"acme": url}), environment={"OKF_GATEWAY_PULL_WAIT": "60"})
    process.wait_for_state("acme", "serving")
    server.forget()
    server.hang()
    reading = at_the_same_time(lambda: list_by_hand(process))
    server.wait_for_requests(1)
    refreshing = at_the_same_time(lambda: process.refresh("acme"))
    wait_until(lambda: commands_with(url))
    begin = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - begin < STOP_SECONDS
    assert uris_of(reading.result(10)) == ["knowledge://acme/note/a"]
    assert_answered_or_refused(refreshing)
    assert commands_with(url) == []
    assert "Traceback" not in process.log
    assert len(server.exchanges) == 1


def assert_answered_or_refused(refreshing: "Future[Answer]") -> None:
    """A refresh that came before the stop is told so; one that came after it, not let in."""
    error = refreshing.exception(10)
    if error is None:
        answer = refreshing.result()
        assert (answer.status, list(answer.json)) == (
            503,
            ["owner", "served_commit", "source_available", "error"],
        )
    else:
        assert isinstance(error, OSError)


@pytest.mark.row("P8")
def test_a_stop_during_the_first_pulls_ends_in_time_too(
    repository: Repository, server: GitHttpServer, gateway: GatewayFactory
) -> None:
    server.hang()
    url = server.url_of(repository)
    process = gateway(registry({f"owner{number}": url for number in range(20)}))
    server.wait_for_requests(4)
    begin = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - begin < STOP_SECONDS
    assert commands_with(url) == []
    assert "Traceback" not in process.log


@pytest.mark.row("P8")
def test_connections_that_idle_and_requests_that_never_end_dont_hold_up_a_stop(
    repository: Repository, gateway: GatewayFactory
) -> None:
    process = gateway(registry({"acme": repository.url}))
    process.wait_for_state("acme", "serving")
    idle = HTTPConnection(process.host, process.port, timeout=10)
    idle.request("GET", "/healthz")
    assert idle.getresponse().read() == b"ok"
    with closing(idle), socket.create_connection((process.host, process.port), 10) as half_sent:
        half_sent.sendall(
            b"POST /acme/mcp HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Accept: application/json, text/event-stream\r\nContent-Length: 100\r\n"
            b"Authorization: Bearer %s\r\n\r\n{" % process.token.encode()
        )
        assert process.get("/status").status == 200
        begin = time.monotonic()
        assert process.stop() == 0
        assert time.monotonic() - begin < STOP_SECONDS


def test_a_cache_of_a_stopped_gateway_holds_its_owners_and_nothing_half_made(
    repository: Repository, gateway: GatewayFactory, tmp_path: Path
) -> None:
    cache = tmp_path / "cache of its own"
    process = gateway(registry({"acme": repository.url}), cache=cache)
    process.wait_for_state("acme", "serving")
    repository.publish_document("Two.")
    assert process.refresh("acme").status == 200
    process.stop()
    assert sorted(path.name for path in cache.iterdir()) == [".home", ".lock", "acme"]
