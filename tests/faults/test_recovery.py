"""Owners recover by themselves: within one step of the back-off, and at once by `/refresh`.

The steps themselves, and that an owner with content is asked for by requests alone, are proven in
tests/gateway/test_owners.py.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from support.gateway_process import GatewayFactory, GatewayProcess, find_free_port, wait_until
from support.git_http import GitHttpServer, GitHttpServerFactory
from support.in_process import running, servers
from support.repositories import Repository, RepositoryFactory, git

HOUR: Final = 3600.0
AT_ONCE_SECONDS: Final = 4.0
"""Less than an owner would wait by itself, and enough for a pull on a busy machine."""

TOKEN: Final = "south-token-of-the-tests"
OLD_TOKEN: Final = "what-it-was-before"

Mend = Callable[[], None]


class Road:
    """A port of this machine that refuses every connection until it leads to a git host."""

    def __init__(self) -> None:
        self.port = find_free_port()
        self._listener: socket.socket | None = None

    def open(self, server: GitHttpServer) -> None:
        """Lead there from now on, one connection a thread."""
        host, _, port = server.authority.rpartition(":")
        self._listener = socket.create_server(("127.0.0.1", self.port))
        target = (host, int(port))
        threading.Thread(target=self._lead, args=(self._listener, target), daemon=True).start()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _lead(self, listener: socket.socket, target: tuple[str, int]) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(target, 10)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=_carry, args=pair, daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError), source:
        while chunk := source.recv(65_536):
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)


@dataclass(frozen=True, slots=True)
class Troubles:
    """A registry whose owners all have a trouble of their own, and what mends each."""

    registry: str
    environment: Mapping[str, str]
    mends: Mapping[str, Mend]
    """By owner."""

    def mend(self) -> None:
        for each in self.mends.values():
            each()


@pytest.fixture
def troubles(
    new_repository: RepositoryFactory, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> Iterator[Troubles]:
    """One owner for each way in which a source can be away at the start."""
    names = ("absent", "broken", "down", "hanging", "refused", "token", "branch")
    repositories = {name: new_repository(name) for name in names}
    for each in repositories.values():
        each.publish_document("One.")
    with ExitStack() as stack:
        road = Road()
        stack.callback(road.close)
        plain, down, hanging = git_http_server(), git_http_server(), git_http_server()
        locked = git_http_server(user="x-access-token", password=TOKEN)
        token_file = tmp_path / "token"
        token_file.write_text(OLD_TOKEN)
        repositories["absent"].take_away()
        repositories["broken"].take_away()
        repositories["branch"].delete_branch("main")
        down.refuse(503)
        hanging.hang()
        urls = {
            "absent": plain.url_of("absent.git"),
            "broken": plain.url_of("broken.git"),
            "down": down.url_of("down.git"),
            "hanging": hanging.url_of("hanging.git"),
            "refused": f"http://127.0.0.1:{road.port}/refused.git",
            "token": locked.url_of("token.git"),
            "branch": plain.url_of("branch.git"),
        }
        yield Troubles(
            json.dumps(
                {
                    "owners": {name: {"url": url, "ttl": 3600} for name, url in urls.items()},
                    "credentials": {locked.authority: {"token_env": "OKF_GIT_TOKEN_A"}},
                }
            ),
            {"OKF_GIT_TOKEN_A_FILE": str(token_file), "OKF_GATEWAY_GIT_TIMEOUT": "1"},
            {
                "absent": repositories["absent"].bring_back,
                "broken": repositories["broken"].bring_back,
                "down": down.release,
                "hanging": hanging.release,
                "refused": lambda: road.open(plain),
                "token": lambda: void(token_file.write_text(TOKEN)),
                "branch": lambda: repositories["branch"].push("main"),
            },
        )


def void(_: object) -> None:
    """Forget a value."""


def start(gateway: GatewayFactory, troubles: Troubles) -> GatewayProcess:
    """Start a gateway that finds a broken copy of `broken`, and no other."""
    process = gateway(troubles.registry, environment=troubles.environment, is_started=False)
    copy = process.cache / "broken"
    git("init", "--quiet", "--bare", str(copy), folder=process.folder)
    (copy / "HEAD").write_bytes(b"\0garbage")
    process.start()
    return process


def rows_if_all_failed(process: GatewayProcess) -> Mapping[str, Mapping[str, Any]]:
    """Return what `/status` says of all owners once each waits for its next attempt."""
    rows = process.status("diagnostics=true")["owners"]
    return rows if all(row["diagnostics"]["next_attempt_at"] for row in rows.values()) else {}


def seconds_until_the_next_attempt(row: Mapping[str, Any]) -> float:
    at = datetime.fromisoformat(row["diagnostics"]["next_attempt_at"])
    return (at - datetime.now(UTC)).total_seconds()


@pytest.mark.row("P3", "S1")
def test_whatever_was_wrong_at_the_start_an_owner_serves_within_one_step_of_the_back_off(
    troubles: Troubles, gateway: GatewayFactory
) -> None:
    process = start(gateway, troubles)
    failed = wait_until(lambda: rows_if_all_failed(process), 20)
    assert {name: row["diagnostics"]["error_class"] for name, row in failed.items()} == {
        "absent": "not_found",
        "broken": "not_found",
        "down": "connect",
        "hanging": "timeout",
        "refused": "connect",
        "token": "auth",
        "branch": "ref_missing",
    }
    # As whole seconds, the next attempts are told up to one too early.
    step = max(map(seconds_until_the_next_attempt, failed.values())) + 1
    assert step < 10  # The fourth is the first of eight seconds.
    troubles.mend()
    # One that was under way may have failed once more; each step is twice the one before.
    wait_until(lambda: process.status()["summary"]["serving"] == len(failed), 2 * step + 3)


@pytest.mark.row("P3", "H3")
def test_whatever_was_wrong_at_the_start_an_owner_serves_at_once_when_it_is_refreshed(
    troubles: Troubles, gateway: GatewayFactory
) -> None:
    process = start(gateway, troubles)
    wait_until(lambda: rows_if_all_failed(process), 20)
    for name, mend in troubles.mends.items():
        # After so many in a row its own next attempt is eight seconds away, or more.
        assert [process.refresh(name).status for _ in range(3)] == [502, 502, 502]
        mend()
        begun = time.monotonic()
        # A secret's file is looked at again at most once a second.
        wait_until(lambda name=name: process.refresh(name).status == 200, 3, interval=0.2)
        assert time.monotonic() - begun < AT_ONCE_SECONDS
        assert process.owner(name)["state"] == "serving"


@pytest.mark.anyio
@pytest.mark.row("P3", "P4")
async def test_a_host_that_is_back_after_an_hour_is_asked_by_the_next_request(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    registry = servers(acme={"url": server.url_of(published), "ttl": 60})
    async with running(tmp_path / "gateway", registry) as process:
        await process.wait_for_state("acme", "serving")
        server.refuse(503)
        assert (await process.refresh("acme")).status_code == 502
        process.clock.advance(HOUR)
        server.release()
        server.forget()
        newest = published.publish_document("Two.")
        assert (await process.row("acme"))["stale"]
        assert server.exchanges == ()
        answer = await process.mcp("acme", "resources/list")
        assert answer.json()["result"]["_meta"]["served_commit"] == newest
        row = await process.row("acme")
        assert (row["freshness"], row["last_pulled_age_seconds"]) == ("fresh", 0)
