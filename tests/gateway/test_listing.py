"""Pages of `resources/list` that the SDK wrote a part of: nobody can tell them from whole ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from okf_mcp_gateway.listing import MAX_PAGES, MIN_DOCUMENTS, Listing
from okf_mcp_server import resources
from support.in_process import MODERN, InProcess, mcp_headers, mcp_message, running, servers
from support.repositories import Repository

pytestmark = pytest.mark.anyio

VERSIONS = (*HANDSHAKE_PROTOCOL_VERSIONS, MODERN)

MARK = '"resources":["\\\u2028é'
"""What looks like the begin of a list, and what JSON escapes."""


async def listed(gateway: InProcess, version: str, cursor: str | None = None) -> tuple[Any, ...]:
    """Return status, headers and text of one page."""
    params = {} if cursor is None else {"cursor": cursor}
    body = mcp_message("resources/list", params)
    headers = mcp_headers("resources/list", params)
    if version != MODERN:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "resources/list", "params": params})
        del headers["Mcp-Method"]
    asked = {**headers, "MCP-Protocol-Version": version}
    answer = await gateway.client.post("/acme/mcp", content=body, headers=asked)
    return answer.status_code, list(answer.headers.multi_items()), answer.text


async def pages(gateway: InProcess, version: str) -> list[tuple[Any, ...]]:
    """Return all pages of the list."""
    found = [await listed(gateway, version)]
    while cursor := json.loads(found[-1][2])["result"].get("nextCursor"):
        found.append(await listed(gateway, version, cursor))
    return found


def write(repository: Repository, documents: Mapping[str, str]) -> None:
    for name, title in documents.items():
        text = f"---\nexport: true\ntype: Note\ntitle: '{title}'\n---\n{title} {MARK}\n"
        repository.write(f"{name}.md", text)
    repository.publish()


@pytest.mark.row("D8", "D11", "H11")
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_page_that_was_joined_is_the_page_that_the_sdk_writes(
    version: str, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "PAGE_SIZE", MIN_DOCUMENTS + 10)
    registry = servers(acme={"url": repository.url, "ttl": 3600})
    count = 2 * MIN_DOCUMENTS + 30
    write(repository, {f"n{i:03}": f"Note {i} {MARK}" for i in range(count)})
    off = {"OKF_GATEWAY_ANSWER_CACHE": "off"}
    async with (
        running(tmp_path / "on", registry) as joined,
        running(tmp_path / "off", registry, environment=off) as whole,
    ):
        for step in range(4):
            for gateway in (joined, whole):
                assert (await gateway.refresh("acme")).status_code == 200
            expected = await pages(whole, version)
            assert len(expected) > 1
            assert await pages(joined, version) == expected
            assert await pages(joined, version) == expected
            changed = {f"n{7 + step:03}": f"Changed {step}", f"a{step}": "New, at the head"}
            repository.remove(f"n{90 + step:03}.md")
            write(repository, changed)


@pytest.mark.row("H11")
async def test_the_sdk_writes_only_what_it_has_not_written_yet(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    class Counting(Listing):
        def select(self, context: Any, documents: Any) -> Any:
            chosen = super().select(context, documents)
            written.append(len(chosen))
            return chosen

    monkeypatch.setattr("okf_mcp_gateway.app.Listing", Counting)
    write(repository, {f"n{i:03}": f"Note {i}" for i in range(MIN_DOCUMENTS)})
    registry = servers(acme={"url": repository.url, "ttl": 3600})
    async with running(tmp_path / "gateway", registry) as gateway:
        await gateway.refresh("acme")
        await gateway.mcp("acme", "resources/list")
        write(repository, {"n007": "Changed"})
        await gateway.refresh("acme")
        answer = await gateway.mcp("acme", "resources/list")
        assert answer.json()["result"]["resources"][7]["title"] == "Changed"
    assert written == [MIN_DOCUMENTS, 1]


def test_of_more_pages_than_the_bound_those_asked_for_last_are_kept() -> None:
    listing = Listing(MAX_PAGES)
    page = {"knowledge://acme/note/a": (("A", "", 1, "sha256:"), "{}")}
    for number in range(MAX_PAGES):
        listing.keep((MODERN, str(number)), page)
    listing.keep((MODERN, "0"), page)
    listing.keep((MODERN, "new"), page)
    assert listing.find((MODERN, "0")) == page
    assert not listing.find((MODERN, "1"))
