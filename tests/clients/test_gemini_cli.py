"""Gemini CLI, without an account and in an empty HOME: it connects over HTTP and over stdio."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.children import Ended, run_child
from support.entries import Entries, readme_entries
from support.gateway_process import GatewayProcess
from support.http_proxy import http_proxy
from support.npm import GEMINI_CLI, NpmFolder
from support.repositories import Repository

pytestmark = pytest.mark.npm

RUN_DEADLINE_SECONDS = 60.0
QUIET = {"GEMINI_CLI_TRUST_WORKSPACE": "true", "GEMINI_TELEMETRY_ENABLED": "false"}

ListServers = Callable[[Entries], Ended]


@pytest.fixture
def list_servers(npm: NpmFolder, knowledge: Repository, tmp_path: Path) -> ListServers:
    """Run `gemini mcp list` in the repository, with these servers in the user's settings."""
    home = tmp_path / "home"
    settings = home / ".gemini" / "settings.json"
    settings.parent.mkdir(parents=True)

    def run(entries: Entries) -> Ended:
        quiet = {"privacy": {"usageStatisticsEnabled": False}}
        settings.write_text(json.dumps({"mcpServers": entries, **quiet}))
        return run_child(
            [npm.program(GEMINI_CLI, "gemini"), "mcp", "list"],
            folder=knowledge.clone,
            environment=npm.environment(home, QUIET),
            deadline=RUN_DEADLINE_SECONDS,
        )

    return run


def over_http(gateway: GatewayProcess, token: str) -> Entries:
    """Return the entry for owner `acme` of a gateway."""
    headers = {"Authorization": f"Bearer {token}"}
    return {"acme": {"httpUrl": gateway.mcp_url("acme"), "headers": headers}}


def test_it_connects_to_the_gateway(list_servers: ListServers, acme: GatewayProcess) -> None:
    ended = list_servers(over_http(acme, acme.token))
    assert "✓ acme:" in ended.output
    assert "(http) - Connected" in ended.output


def test_a_wrong_token_does_not_connect(list_servers: ListServers, acme: GatewayProcess) -> None:
    ended = list_servers(over_http(acme, "a-wrong-one"))
    assert "✗ acme:" in ended.output
    assert "(http) - Disconnected" in ended.output


@pytest.mark.row("T3")
def test_the_readme_s_entry_for_one_repository_connects(list_servers: ListServers) -> None:
    ended = list_servers(readme_entries())
    assert "✓ knowledge:" in ended.output
    assert "(stdio) - Connected" in ended.output


@pytest.mark.row("H2")
def test_it_begins_with_the_handshake_and_does_without_a_stream(
    list_servers: ListServers, acme: GatewayProcess
) -> None:
    """It asks for a stream by GET, and takes the 405 for an answer."""
    with http_proxy(acme.port) as proxy:
        entry = {**over_http(acme, acme.token)["acme"], "httpUrl": f"{proxy.url}/acme/mcp"}
        ended = list_servers({"acme": entry})
    assert "(http) - Connected" in ended.output
    asked = [(each.method, each.rpc_method) for each in proxy.requests]
    assert asked[0] == ("POST", "initialize")
    assert asked.count(("GET", None)) <= 1
