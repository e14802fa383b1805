"""A stop: no answer is lost, the gateway ends within 5 s with status 0, and leaves no process.

All that may be under way at once: reads that run, reads that wait for a hanging fetch, a stream of
the SDK's client. One by one they are proven in tests/e2e/test_start.py and test_events.py there.
"""

import json
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event
from typing import Final

import pytest
from anyio import fail_after, to_thread

from support.clients import mcp_client
from support.descendants import command_line, is_alive, processes_below
from support.gateway_process import GatewayFactory, GatewayProcess, wait_until
from support.git_http import Exchange, GitHttpServer, GitHttpServerFactory
from support.in_process import mcp_headers, mcp_message
from support.repositories import RepositoryFactory

STOP_SECONDS: Final = 5.0
READERS: Final = 4
WAITERS: Final = 8
TEXT: Final = "é" * 100_000
"""What is read: 600 KB as JSON, so that a stop comes amid answers."""

READ: Final = {"uri": "knowledge://acme/note/a"}


def is_fetch(exchange: Exchange) -> bool:
    return exchange.is_fetch


@pytest.fixture
def server(git_http_server: GitHttpServerFactory) -> GitHttpServer:
    """A git host that serves the repositories of the test."""
    return git_http_server()


@pytest.fixture
def process(
    new_repository: RepositoryFactory, server: GitHttpServer, gateway: GatewayFactory
) -> GatewayProcess:
    """A gateway with one owner at rest, and one that each request pulls and whose fetch hangs."""
    acme, slow = new_repository("acme"), new_repository("slow")
    acme.publish_document(TEXT)
    slow.publish_document("One.")
    owners = {
        "acme": {"url": server.url_of(acme), "ttl": 3600},
        "slow": {"url": server.url_of(slow), "ttl": 0},
    }
    process = gateway(
        json.dumps({"owners": owners}),
        environment={"OKF_GATEWAY_PULL_WAIT": "3600", "OKF_GATEWAY_GIT_TIMEOUT": "3600"},
    )
    for name in owners:
        process.wait_for_state(name, "serving")
    slow.publish_document("Two.")
    server.forget()
    server.hang(when=is_fetch)
    return process


class Client:
    """A client with one connection."""

    def __init__(self, process: GatewayProcess) -> None:
        self._connection = HTTPConnection(process.host, process.port, timeout=30)
        self._token = process.token

    def ask(self, owner: str, method: str, params: dict[str, str] | None = None) -> None:
        headers = mcp_headers(method, params) | {"Authorization": f"Bearer {self._token}"}
        self._connection.request("POST", f"/{owner}/mcp", mcp_message(method, params), headers)

    def is_answered(self) -> bool:
        """Whether the request was let in; the answer that begins must be a whole one."""
        try:
            answer = self._connection.getresponse()
        except (OSError, HTTPException):
            return False
        assert answer.status == 200
        content = answer.read()
        assert json.loads(content)["result"]
        return True

    def close(self) -> None:
        self._connection.close()


def read_until_refused(process: GatewayProcess, is_reading: Event) -> int:
    """Read again and again until the gateway lets no request in; return how many it answered."""
    answers, deadline = 0, time.monotonic() + 30
    with closing(Client(process)) as client:
        while time.monotonic() < deadline:
            try:
                client.ask("acme", "resources/read", READ)
            except OSError:
                return answers
            if not client.is_answered():
                return answers
            answers += 1
            is_reading.set()
    raise TimeoutError("it answers all along")


def wait_until_all_is_read(process: GatewayProcess, connections: int) -> None:
    """Wait until so many connections are open and the gateway has taken all their bytes."""

    def is_so() -> bool:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        rows = [line.split() for line in lines]
        mine = [row for row in rows if row[1] == f"0100007F:{process.port:04X}" and row[3] == "01"]
        return len(mine) >= connections and all(row[4].endswith(":00000000") for row in mine)

    wait_until(is_so)
    assert process.get("/healthz", token=False).status == 200


def send(process: GatewayProcess, numbers: Sequence[signal.Signals]) -> float:
    """Send signals, one after the other, and return how long the gateway takes to end."""
    begun = time.monotonic()
    for number in numbers:
        os.kill(process.pid, number)
        soon = time.monotonic() + 0.1
        wait_until(lambda soon=soon: time.monotonic() > soon, interval=0.01)
    assert process.wait_for_exit() == 0, process.log
    return time.monotonic() - begun


@pytest.mark.anyio
@pytest.mark.row("P8", "P7")
@pytest.mark.parametrize(
    "numbers",
    [[signal.SIGTERM] * 2, [signal.SIGINT] * 2, [signal.SIGHUP]],
    ids=["SIGTERM twice", "SIGINT twice", "SIGHUP"],
)
async def test_a_stop_amid_all_kinds_of_work_loses_no_answer_and_leaves_no_process(
    numbers: list[signal.Signals], process: GatewayProcess, server: GitHttpServer
) -> None:
    is_reading = [Event() for _ in range(READERS)]
    with fail_after(60), ThreadPoolExecutor(READERS) as pool:
        async with (
            mcp_client(process.mcp_url("acme"), process.token, "2026-07-28") as listener,
            listener.listen(resources_list_changed=True) as stream,
        ):
            waiters = [Client(process) for _ in range(WAITERS)]
            for each in waiters:
                each.ask("slow", "resources/list")
            await to_thread.run_sync(lambda: server.wait_for_requests(1, when=is_fetch))
            await to_thread.run_sync(wait_until_all_is_read, process, WAITERS)
            readers: list[Future[int]] = [
                pool.submit(read_until_refused, process, each) for each in is_reading
            ]
            for each in is_reading:
                assert await to_thread.run_sync(each.wait, 20)
            below = processes_below(process.pid)
            commands = [command_line(pid) for pid in below]
            assert any("git-remote-http " in each for each in commands)
            assert any("watchdog.sh" in each for each in commands)
            seconds = await to_thread.run_sync(send, process, numbers)
            assert [event async for event in stream] == []
        assert seconds < STOP_SECONDS
        assert all(each.is_answered() for each in waiters)
        for each in waiters:
            each.close()
        assert all(each.result(20) > 0 for each in readers)
    assert not any(map(is_alive, below))
    assert "Traceback" not in process.log
    assert process.log.splitlines()[-1].endswith("Stopped")
