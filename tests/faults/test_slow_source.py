"""A slow source costs `pull_wait` once: until it is back, no second request waits for it.

The waits of a request, one by one and to the moment, are proven in tests/gateway/test_owners.py;
that a source which says nothing costs no more, in tests/e2e/test_pulling.py.
"""

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from support.gateway_process import GatewayFactory, GatewayProcess, wait_until
from support.git_http import GitHttpServer, GitHttpServerFactory
from support.in_process import mcp_headers, mcp_message
from support.repositories import Repository

PULL_WAIT_SECONDS: Final = 1.0
GIT_SECONDS: Final = 5.0
"""git's deadline: longer than a request waits, so that the slow source is what it waits for."""

SECONDS_PER_BYTE: Final = 0.5
"""Slow enough to last, and not so silent that git gives up by itself."""

TOGETHER: Final = 50

ENVIRONMENT: Final[Mapping[str, str]] = {
    "OKF_GATEWAY_PULL_WAIT": f"{PULL_WAIT_SECONDS:g}",
    "OKF_GATEWAY_GIT_TIMEOUT": f"{GIT_SECONDS:g}",
}


@pytest.fixture
def server(git_http_server: GitHttpServerFactory) -> GitHttpServer:
    """A git host that serves the repositories of the test."""
    return git_http_server()


def registry(url: str) -> str:
    return json.dumps({"owners": {"acme": {"url": url, "ttl": 0}}})


def seconds_of_a_read(process: GatewayProcess) -> float:
    """Read, and return how long that took."""
    begun = time.monotonic()
    answer = process.post(
        "/acme/mcp", mcp_message("resources/list"), headers=mcp_headers("resources/list")
    )
    assert answer.status == 200, answer
    assert [each["uri"] for each in answer.json["result"]["resources"]] == [
        "knowledge://acme/note/a"
    ]
    return time.monotonic() - begun


@pytest.mark.row("P2")
def test_a_slow_source_costs_fifty_requests_at_once_one_wait_and_all_later_ones_nothing(
    published: Repository, server: GitHttpServer, gateway: GatewayFactory
) -> None:
    process = gateway(registry(server.url_of(published)), environment=ENVIRONMENT)
    process.wait_for_state("acme", "serving")
    server.forget()
    server.trickle(SECONDS_PER_BYTE)
    begun = time.monotonic()
    with ThreadPoolExecutor(TOGETHER) as pool:
        firsts = [pool.submit(seconds_of_a_read, process) for _ in range(TOGETHER)]
        longest = max(each.result(20) for each in firsts)
    assert longest > PULL_WAIT_SECONDS - 0.1
    # Fifty waits one after the other would be most of a minute.
    assert time.monotonic() - begun < 10 * PULL_WAIT_SECONDS
    # The second request of each client, while the same pull goes on.
    assert sum(seconds_of_a_read(process) for _ in range(3)) < PULL_WAIT_SECONDS
    assert len(server.exchanges) == 1
    # That pull ends, others begin: the outage has been paid for.
    wait_until(lambda: process.owner("acme")["stale"], 3 * GIT_SECONDS)

    def is_tried_again() -> bool:
        assert seconds_of_a_read(process) < PULL_WAIT_SECONDS / 2
        return len(server.exchanges) > 1

    wait_until(is_tried_again, interval=0.1)
    server.release()
    newest = published.publish_document("Two.")

    def is_back() -> bool:
        seconds_of_a_read(process)
        return process.owner("acme")["served_commit"] == newest

    wait_until(is_back)
    # The next outage is another one.
    server.trickle(SECONDS_PER_BYTE)
    assert seconds_of_a_read(process) > PULL_WAIT_SECONDS - 0.1
