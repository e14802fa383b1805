"""MCP Inspector, over HTTP in both eras of the protocol and over stdio: it shows the repository."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from support.children import Ended, run_child
from support.clients import mcp_client
from support.gateway_process import GatewayProcess
from support.npm import INSPECTOR, NpmFolder
from support.repositories import Repository

pytestmark = pytest.mark.npm

RUN_DEADLINE_SECONDS = 60.0
SIGN_IN_NEEDED = 3
"""The status of Inspector when the server refuses what it sent to identify itself."""

ERAS = ("legacy", "modern")
VERSIONS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
STDIO_SERVER = Path(sys.executable).with_name("okf-mcp-server")

Ask = Callable[..., Ended]


@pytest.fixture
def inspect(npm: NpmFolder, tmp_path: Path) -> Ask:
    """Run Inspector without its window, in an empty HOME; it never asks a person to sign in."""
    home = tmp_path / "home"

    def ask(*arguments: str) -> Ended:
        options = ("--cli", "--format", "json", "--quiet", "--stored-auth-only")
        return run_child(
            [npm.program(INSPECTOR, "mcp-inspector"), *options, *arguments],
            folder=tmp_path,
            environment=npm.environment(home),
            deadline=RUN_DEADLINE_SECONDS,
        )

    return ask


@pytest.fixture(params=[*ERAS, "stdio"])
def served(
    request: pytest.FixtureRequest, acme: GatewayProcess, knowledge: Repository
) -> Sequence[str]:
    """The last arguments, which lead to owner `acme`: over each transport and era."""
    if request.param == "stdio":
        options = ("--transport", "stdio", "--cwd", str(knowledge.clone))
        return (*options, str(STDIO_SERVER), "--", "--roots", ".", "--owner", "acme")
    return over_http(acme, request.param, acme.token)


def over_http(gateway: GatewayProcess, era: str, token: str) -> Sequence[str]:
    """Return the arguments that lead to owner `acme` of a gateway."""
    header = f"Authorization: Bearer {token}"
    address = (gateway.mcp_url("acme"), "--transport", "http", "--header", header)
    return (*address, "--protocol-era", era)


def result(ended: Ended) -> dict[str, Any]:
    """Return what was answered, without what the protocol adds around it."""
    assert ended.status == 0, ended.output
    answer = json.loads(ended.stdout)["result"]
    return {key: value for key, value in answer.items() if key not in {"ttlMs", "cacheScope"}}


def content_of(repository: Repository, path: str) -> str:
    """Return the body that the pushed commit holds at `path`, trimmed."""
    raw = repository.show(repository.head, path).decode()
    return raw.split("---\n", 2)[2].strip()


def as_listed(content: str, uri: str, title: str, description: str) -> Mapping[str, Any]:
    """Return a document as a list shows it (D8)."""
    return {
        "uri": uri,
        "name": title,
        "title": title,
        "description": description,
        "mimeType": "text/markdown",
        "size": len(content.encode()),
        "_meta": meta_of(content),
    }


def meta_of(content: str) -> Mapping[str, str]:
    return {"content_hash": f"sha256:{sha256(content.encode()).hexdigest()}"}


@pytest.mark.row("D7", "D8", "D9", "T3")
def test_it_lists_the_documents_of_the_repository(
    inspect: Ask, served: Sequence[str], knowledge: Repository
) -> None:
    listed = result(inspect("--method", "resources/list", *served))
    decision = content_of(knowledge, "adr/adr-1 - One queue.md")
    guide = content_of(knowledge, "guides/carrier.md")
    assert listed["resources"] == [
        as_listed(decision, "knowledge://acme/decision/adr-1", "adr-1 - One queue", "One is less."),
        as_listed(guide, "knowledge://acme/guide/carrier", "Add a carrier", "Some words."),
    ]


@pytest.mark.row("D8", "D9")
def test_it_reads_what_the_repository_holds(
    inspect: Ask, served: Sequence[str], knowledge: Repository
) -> None:
    uri = "knowledge://acme/decision/adr-1"
    read = result(inspect("--method", "resources/read", "--uri", uri, *served))
    content = content_of(knowledge, "adr/adr-1 - One queue.md")
    assert read["contents"] == [
        {"uri": uri, "mimeType": "text/markdown", "text": content, "_meta": meta_of(content)}
    ]
    is_gateway = "http" in served
    served_commit = read.get("_meta", {}).get("served_commit")
    assert served_commit == (knowledge.head if is_gateway else None)


@pytest.mark.row("H2")
@pytest.mark.parametrize("era", ERAS)
def test_it_meets_the_gateway_in_either_era(inspect: Ask, acme: GatewayProcess, era: str) -> None:
    met = result(inspect(*over_http(acme, era, acme.token), "--method", "initialize"))
    assert met["protocolVersion"] == VERSIONS[era]
    assert met["serverInfo"]["title"] == "Knowledge of acme"
    assert {"resources", "tools"} <= met["capabilities"].keys()


def test_it_lists_one_template_which_fits_every_document(
    inspect: Ask, served: Sequence[str]
) -> None:
    listed = result(inspect("--method", "resources/templates/list", *served))
    assert [each["uriTemplate"] for each in listed["resourceTemplates"]] == [
        "knowledge://acme/{type}/{id}"
    ]


@pytest.mark.anyio
async def test_it_finds_no_fault_with_the_tools(inspect: Ask, acme: GatewayProcess) -> None:
    arguments = over_http(acme, "modern", acme.token)
    listed = result(inspect(*arguments, "--method", "tools/list", "--strict"))
    async with mcp_client(acme.mcp_url("acme"), acme.token) as client:
        tools = (await client.list_tools()).tools
    assert [each["name"] for each in listed["tools"]] == [each.name for each in tools]


@pytest.mark.row("H1")
@pytest.mark.parametrize("era", ERAS)
def test_a_wrong_token_shows_it_nothing(inspect: Ask, acme: GatewayProcess, era: str) -> None:
    ended = inspect(*over_http(acme, era, "a-wrong-one"), "--method", "resources/list")
    assert (ended.status, ended.stdout) == (SIGN_IN_NEEDED, "")
    assert json.loads(ended.stderr)["error"]["code"] == "auth_required"
