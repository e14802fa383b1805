"""Real repositories' Markdown, from a git host behind a login to the SDK's own client."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

import anyio
import pytest
from mcp import Client
from mcp_types import TextResourceContents

from support.clients import Mode, mcp_client
from support.corpora import find_corpora, generate_corpus, opt_in, publish_corpus, read_corpus
from support.gateway_process import GatewayFactory, GatewayProcess, wait_until
from support.git_http import GitHttpServerFactory
from support.repositories import RepositoryFactory

SOUTH_TOKEN = "south-token-of-the-corpora"
DEADLINE_SECONDS = 120
MODES: tuple[Mode, ...] = ("legacy", "2026-07-28")


@dataclass(frozen=True, slots=True)
class Figures:
    """What one client saw of one owner, and how long that took."""

    owner: str
    mode: Mode
    documents: int
    first_answer_seconds: float
    all_read_seconds: float


def hash_of(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def body_of(content: bytes) -> str:
    """Return what is served of a file, by the short way that these files allow."""
    text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    return text.removeprefix("---\n").partition("\n---\n")[2].strip()


def corpora() -> Mapping[str, Mapping[str, bytes]]:
    """Return the corpora of this machine, or one that is made up."""
    found = {name: read_corpus(folder) for name, folder in find_corpora().items()}
    return found or {"generated": generate_corpus()}


async def list_all(client: Client) -> dict[str, str]:
    """Return the content hashes of all resources by URI."""
    hashes: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page = await client.list_resources(cursor=cursor)
        hashes |= {each.uri: (each.meta or {})["content_hash"] for each in page.resources}
        cursor = page.next_cursor
        if cursor is None:
            return hashes


async def read_all(url: str, token: str, mode: Mode, commit: str) -> tuple[list[str], float, float]:
    """List all, read all, compare; return the hashes and the times of the first and the last."""
    begin = time.monotonic()
    with anyio.fail_after(DEADLINE_SECONDS):
        async with mcp_client(url, token, mode) as client:
            hashes = await list_all(client)
            first_answer = time.monotonic() - begin
            for uri, content_hash in hashes.items():
                answer = await client.read_resource(uri)
                (content,) = answer.contents
                assert isinstance(content, TextResourceContents)
                found = (content.uri, hash_of(content.text), content.meta, answer.meta)
                assert found[:2] == (uri, content_hash)
                assert content.meta == {"content_hash": content_hash}
                assert (answer.meta or {})["served_commit"] == commit
    return sorted(hashes.values()), first_answer, time.monotonic() - begin


def read_owner(
    process: GatewayProcess, owner: str, commit: str, files: Mapping[str, bytes]
) -> list[Figures]:
    """Read an owner with each client; every file must have come, with its own content."""
    expected = sorted(hash_of(body_of(opt_in(*file))) for file in files.items())
    figures: list[Figures] = []
    for mode in MODES:
        hashes, first, whole = anyio.run(
            read_all, process.mcp_url(owner), process.token, mode, commit
        )
        assert hashes == expected
        figures.append(Figures(owner, mode, len(hashes), first, whole))
    return figures


@pytest.mark.row("D8", "D9", "D11", "G4", "H2", "P1")
@pytest.mark.parametrize("is_generated", [False, True], ids=["real if there", "generated"])
def test_every_document_of_a_corpus_is_listed_and_reads_back_with_its_hash(
    is_generated: bool,
    new_repository: RepositoryFactory,
    git_http_server: GitHttpServerFactory,
    gateway: GatewayFactory,
) -> None:
    served = {"generated": generate_corpus()} if is_generated else corpora()
    commits = {name: publish_corpus(new_repository(name), files) for name, files in served.items()}
    host = git_http_server(user="reader", password=SOUTH_TOKEN)
    servers = {
        "owners": {name: {"url": host.url_of(f"{name}.git"), "ttl": 3600} for name in served},
        "credentials": {
            host.authority: {"token_env": "OKF_GIT_TOKEN_CORPORA", "token_user": "reader"}
        },
    }
    process = gateway(
        json.dumps(servers),
        environment={"OKF_GIT_TOKEN_CORPORA": SOUTH_TOKEN},
        is_started=False,
    )
    begin = time.monotonic()
    process.start()
    healthy = time.monotonic() - begin
    wait_until(lambda: process.status()["summary"]["serving"] == len(served), DEADLINE_SECONDS)
    serving = time.monotonic() - begin
    for name, files in served.items():
        row = process.status("diagnostics=true")["owners"][name]
        assert (row["docs_loaded"], row["diagnostics"]["items"]) == (len(files), [])
        assert row["served_commit"] == commits[name]
        for each in read_owner(process, name, commits[name], files):
            print(each)  # noqa: T201 - a measurement, for who asks by -s
    took = f"healthy {healthy:.2f} s, all {len(served)} serving {serving:.2f} s"
    print(f"from a cold start: {took}")  # noqa: T201 - a measurement, for who asks by -s
    assert SOUTH_TOKEN not in process.log


def test_opting_in_adds_what_is_missing_and_nothing_else() -> None:
    assert opt_in("a b/c.md", b"# Hi\n") == b'---\nexport: true\ntype: "a b"\n---\n# Hi\n'
    assert opt_in("c.md", b"---\ntype: x\n---\nHi") == b"---\nexport: true\ntype: x\n---\nHi"
    assert opt_in("c.md", b"\xef\xbb\xbf---\r\ntitle: x\r\n---\r\n") == (
        b'\xef\xbb\xbf---\r\nexport: true\r\ntype: "Page"\r\ntitle: x\r\n---\r\n'
    )
