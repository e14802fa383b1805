"""Claude Code, without an account and in an empty HOME: the entries that we give away connect."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from support.children import Ended, run_child
from support.entries import Entries, printed_entries, readme_entries, shipped_entries
from support.example import EXAMPLE, PROJECT, copy_example
from support.gateway_process import GatewayProcess, find_free_port, wait_until
from support.http_proxy import HttpProxy, http_proxy
from support.npm import CLAUDE_CODE, NpmFolder
from support.repositories import Repository
from support.scripted_model import scripted_model

pytestmark = pytest.mark.npm

RUN_DEADLINE_SECONDS = 60.0
SHIPPED_PORT = 8080
UV = str(Path(sys.executable).with_name("uv"))
CONNECTED = "✔ Connected"
NOT_CONNECTED = "✘ Failed to connect"
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
}

STDIO_ENTRIES: Mapping[str, Callable[[], Entries]] = {"the README's": readme_entries}
"""Entries that serve the repository that the client is started in; a new one is one more line."""

Claude = Callable[..., Ended]


@pytest.fixture
def claude(npm: NpmFolder, tmp_path: Path) -> Claude:
    """Run Claude Code in a folder with these entries as its `.mcp.json`, which the user trusts."""
    home = tmp_path / "home"
    settings = home / ".claude" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"enableAllProjectMcpServers": True}))

    def run(
        *arguments: str,
        entries: Entries,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        project = folder or tmp_path / "project"
        project.mkdir(exist_ok=True)
        (project / ".mcp.json").write_text(json.dumps({"mcpServers": entries}))
        return run_child(
            [npm.program(CLAUDE_CODE, "claude"), *arguments],
            folder=project,
            environment=npm.environment(home, {**QUIET, **(environment or {})}),
            deadline=RUN_DEADLINE_SECONDS,
        )

    return run


@pytest.fixture
def proxy(acme: GatewayProcess) -> Iterator[HttpProxy]:
    """The way to the gateway, which remembers what was asked."""
    with http_proxy(acme.port) as proxy:
        yield proxy


def is_free(port: int) -> bool:
    """Say whether nobody listens on a port of this machine, on whatever address."""
    try:
        with socket.create_server(("", port)):
            return True
    except OSError:
        return False


def on_port(entries: Entries, port: int) -> Entries:
    """Return the shipped entries with another port in their URL, all else as it stands."""
    (name,) = entries
    url = entries[name]["url"].replace(f":{SHIPPED_PORT}/", f":{port}/")
    return {name: {**entries[name], "url": url}}


@pytest.mark.parametrize("host", ["127.0.0.1", None], ids=["a host that is set", "the default"])
def test_the_shipped_entry_connects(
    claude: Claude, knowledge: Repository, tmp_path: Path, host: str | None
) -> None:
    servers = json.dumps({"owners": {"acme": {"url": knowledge.url}}})
    port = SHIPPED_PORT if is_free(SHIPPED_PORT) else find_free_port()
    with GatewayProcess(tmp_path / "shipped", servers, port=port) as gateway:
        environment = {"MCP_GATEWAY_TOKEN": gateway.token}
        if host is not None:
            environment["MCP_GATEWAY_HOST"] = host
        entries = on_port(shipped_entries(), port)
        listed = claude("mcp", "list", entries=entries, environment=environment)
    assert CONNECTED in listed.stdout, listed.output


def test_a_wrong_token_does_not_connect(claude: Claude, acme: GatewayProcess) -> None:
    entries = on_port(shipped_entries(), acme.port)
    environment = {"MCP_GATEWAY_TOKEN": "a-wrong-one", "MCP_GATEWAY_HOST": "127.0.0.1"}
    listed = claude("mcp", "list", entries=entries, environment=environment)
    assert NOT_CONNECTED in listed.stdout, listed.output
    assert CONNECTED not in listed.stdout


def test_the_entry_that_the_demo_prints_connects(claude: Claude, tmp_path: Path) -> None:
    demo = GatewayProcess(
        tmp_path / "demo",
        servers="",
        environment={"OKF_GATEWAY_TOKEN": None, "OKF_GATEWAY_SERVERS": None},
        arguments=["demo"],
    )
    with demo:
        wait_until(lambda: "curl" in demo.stdout)
        entries = printed_entries(demo.stdout)
        listed = claude("mcp", "list", entries=entries)
    assert CONNECTED in listed.stdout, listed.output


@pytest.mark.row("T3")
@pytest.mark.parametrize("entries", STDIO_ENTRIES.values(), ids=STDIO_ENTRIES)
def test_an_entry_for_one_repository_connects(
    claude: Claude, knowledge: Repository, entries: Callable[[], Entries]
) -> None:
    listed = claude("mcp", "list", entries=entries(), folder=knowledge.clone)
    assert CONNECTED in listed.stdout, listed.output


@pytest.mark.row("T1", "T3")
def test_the_entry_of_the_example_repository_connects(claude: Claude, tmp_path: Path) -> None:
    top = copy_example(tmp_path, f'path = "{PROJECT}"')
    cache = subprocess.run(
        [UV, "cache", "dir"], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()
    environment = {"PATH": f"{Path(UV).parent}:{os.environ['PATH']}", "UV_CACHE_DIR": cache}
    # As the README says: try it once. A client doesn't wait for what may have to be fetched.
    subprocess.run(
        [UV, "run", "--script", "mcp/server.py"],
        cwd=top,
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )
    entries = json.loads((EXAMPLE / ".mcp.json").read_text())["mcpServers"]
    listed = claude("mcp", "list", entries=entries, folder=top, environment=environment)
    assert CONNECTED in listed.stdout, listed.output


@pytest.mark.row("H2")
def test_it_speaks_the_newest_version_and_listens_for_changes(
    claude: Claude, acme: GatewayProcess, proxy: HttpProxy
) -> None:
    entries = on_port(shipped_entries(), int(proxy.url.rpartition(":")[2]))
    environment = {"MCP_GATEWAY_TOKEN": acme.token, "MCP_GATEWAY_HOST": "127.0.0.1"}
    listed = claude("mcp", "list", entries=entries, environment=environment)
    assert CONNECTED in listed.stdout, listed.output
    asked = proxy.requests
    assert {each.protocol_version for each in asked} == {"2026-07-28"}
    assert asked[0].rpc_method == "server/discover"
    assert {"subscriptions/listen", "tools/list"} <= {each.rpc_method for each in asked}


@pytest.mark.row("D9", "H2")
def test_it_hands_its_model_the_document_that_the_model_asks_for(
    claude: Claude, acme: GatewayProcess, proxy: HttpProxy
) -> None:
    uri = "knowledge://acme/guide/carrier"
    (server,) = shipped_entries()
    with scripted_model("ReadMcpResourceTool", {"server": server, "uri": uri}) as model:
        ended = claude(
            *("-p", "--allowedTools", "ReadMcpResourceTool", "--", "How do I add a carrier?"),
            entries=on_port(shipped_entries(), int(proxy.url.rpartition(":")[2])),
            environment={
                "MCP_GATEWAY_TOKEN": acme.token,
                "MCP_GATEWAY_HOST": "127.0.0.1",
                "ANTHROPIC_API_KEY": "no-account",
                "ANTHROPIC_BASE_URL": model.url,
            },
        )
    assert (ended.status, ended.stdout) == (0, "Done.\n"), ended.output
    (result,) = model.results
    assert json.loads(result["content"])["contents"] == [
        {"uri": uri, "mimeType": "text/markdown", "text": "Some words."}
    ]
    reads = [each.rpc_params for each in proxy.requests if each.rpc_method == "resources/read"]
    assert [each["uri"] for each in reads] == [uri]
