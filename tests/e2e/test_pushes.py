"""Clients read while two hundred pushes arrive: each answer belongs to one commit, whole.

What a commit holds is asked of git itself, after the run.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeAlias

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from support.clients import Mode, mcp_client
from support.gateway_process import GatewayFactory, GatewayProcess
from support.repositories import Repository, git

PUSHES: Final = 210
DEADLINE_SECONDS: Final = 150
PATHS: Final = tuple(f"docs/d{number}.md" for number in range(16))
NOT_FOUND: Final[Mapping[Mode, int]] = {"legacy": -32002, "2026-07-28": -32602}


Listing: TypeAlias = tuple[str, dict[str, str]]
"""A commit, and the content hashes by URI that it was listed with."""

Reading: TypeAlias = tuple[str, str, str]
"""A commit, a URI, and the hash of the text that came."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What one client was told, in order; `commits` has the served commit of each answer."""

    lists: list[Listing] = field(default_factory=list[Listing])
    reads: list[Reading] = field(default_factory=list[Reading])
    misses: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """A URI that was not found, and how many `commits` were seen before that."""
    commits: list[str] = field(default_factory=list[str])


def uri_of(path: str) -> str:
    return f"knowledge://acme/note/{path.removeprefix('docs/').removesuffix('.md')}"


def hash_of(content: str) -> str:
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"


def meta_of(answer: Any) -> Mapping[str, Any]:
    """Return the `_meta` of a result, or of a part of one."""
    assert answer.meta is not None
    return answer.meta


def push_along(repository: Repository) -> list[str]:
    """Push again and again: documents added, changed, removed, and history rewritten.

    Returns the commits in the order in which the branch stood on them.
    """
    random = Random(20260717)  # noqa: S311 - the same pushes in every run
    commits: list[str] = []
    for number in range(PUSHES):
        there = [path for path in PATHS if (repository.clone / path).exists()]
        kind = random.choice(("add", "change", "change", "remove", "rewrite", "start over"))
        if kind == "rewrite" and _has_parent(repository):
            repository.reset("HEAD~1")
        elif kind == "start over":
            repository.start_over()
        elif kind == "remove" and len(there) > 4:
            for path in random.sample(there, 2):
                repository.remove(path)
        for path in random.sample(PATHS, 3 if kind == "add" else 1):
            repository.document(path, body=f"Push {number} wrote this.\n")
        is_forced = kind in ("rewrite", "start over")
        commits.append(repository.publish(f"{number}: {kind}", force=is_forced))
    return commits


def _has_parent(repository: Repository) -> bool:
    return repository.git("rev-list", "--max-count=2", "HEAD").count("\n") == 1


async def read_along(client: Client, sight: Sight, is_over: anyio.Event) -> None:
    """List, and read what may be there or not, until the pushes are over."""
    random = Random(4711)  # noqa: S311 - what is read need not be a secret
    while not is_over.is_set():
        await list_once(client, sight)
        for path in random.sample(PATHS, 3):
            await read_once(client, uri_of(path), sight)


async def list_once(client: Client, sight: Sight) -> None:
    page = await client.list_resources()
    assert page.next_cursor is None
    commit = meta_of(page)["served_commit"]
    hashes = {each.uri: meta_of(each)["content_hash"] for each in page.resources}
    sight.commits.append(commit)
    sight.lists.append((commit, hashes))


async def read_once(client: Client, uri: str, sight: Sight) -> None:
    try:
        answer = await client.read_resource(uri)
    except MCPError as error:
        if error.code not in NOT_FOUND.values() or error.error.data != {"uri": uri}:
            raise
        sight.misses.append((uri, len(sight.commits)))
        return
    commit = meta_of(answer)["served_commit"]
    (content,) = answer.contents
    text = content.model_dump()["text"]
    assert meta_of(content)["content_hash"] == hash_of(text)
    sight.commits.append(commit)
    sight.reads.append((commit, uri, hash_of(text)))


async def run_all(gateway: GatewayProcess, repository: Repository) -> tuple[list[str], list[Sight]]:
    """Push and read at the same time."""
    commits: list[str] = []
    sights: list[Sight] = []
    is_over = anyio.Event()

    async def read(mode: Mode) -> None:
        sight = Sight()
        sights.append(sight)
        async with mcp_client(gateway.mcp_url("acme"), gateway.token, mode) as client:
            await read_along(client, sight, is_over)
            # The first list may join a pull that began before the last push; the second can't.
            await list_once(client, sight)
            await list_once(client, sight)

    with anyio.fail_after(DEADLINE_SECONDS):
        async with anyio.create_task_group() as tasks:
            for mode in NOT_FOUND:
                tasks.start_soon(read, mode)
            commits += await anyio.to_thread.run_sync(push_along, repository)
            is_over.set()
    return commits, sights


def contents_by_commit(repository: Repository, commits: list[str]) -> dict[str, dict[str, str]]:
    """Ask git what each commit holds: the content hashes by URI."""
    questions = [(commit, path) for commit in commits for path in PATHS]
    stdin = "".join(f"{commit}:{path}\n" for commit, path in questions).encode()
    said = git("cat-file", "--batch", folder=repository.clone, stdin=stdin)
    held: dict[str, dict[str, str]] = {commit: {} for commit in commits}
    for commit, path in questions:
        head, _, said = said.partition(b"\n")
        if head.endswith(b" missing"):
            continue
        size = int(head.split()[-1])
        blob, said = said[:size].decode(), said[size + 1 :]
        held[commit][uri_of(path)] = hash_of(blob.split("---\n", 2)[2].strip())
    assert said == b""
    return held


@pytest.mark.row("P5", "P2", "D8", "D9", "H2")
def test_each_answer_belongs_to_one_commit_while_two_hundred_pushes_arrive(
    repository: Repository, gateway: GatewayFactory
) -> None:
    for path in PATHS[:8]:
        repository.document(path, body="At the start.\n")
    first = repository.publish()
    process = gateway(f"owners: {{acme: {{url: '{repository.url}', ttl: 0}}}}")
    process.wait_for_state("acme", "serving")
    pushed, sights = anyio.run(run_all, process, repository)
    order = [first, *pushed]
    held = contents_by_commit(repository, order)
    assert len(set(order)) == PUSHES + 1
    for sight in sights:
        indices = [order.index(commit) for commit in sight.commits]
        assert indices == sorted(indices)
        for commit, hashes in sight.lists:
            assert hashes == held[commit]
        for commit, uri, content_hash in sight.reads:
            assert held[commit][uri] == content_hash
        for uri, seen_before in sight.misses:
            window = order[indices[seen_before - 1] : indices[seen_before] + 1]
            assert any(uri not in held[commit] for commit in window)
        assert sight.commits[-1] == pushed[-1]
        assert len(set(sight.commits)) > PUSHES // 10
        assert sight.reads
        assert sight.misses
    seen = (f"{len(sight.commits)} answers, {len(set(sight.commits))} commits" for sight in sights)
    print(*seen, sep="; ")  # noqa: T201 - a measurement, for who asks by -s
    assert "Traceback" not in process.log


@pytest.mark.row("P5", "H2")
@pytest.mark.parametrize("mode", NOT_FOUND)
def test_a_removed_document_is_a_clean_not_found(
    mode: Mode, repository: Repository, gateway: GatewayFactory
) -> None:
    for path in PATHS[:2]:
        repository.document(path)
    repository.publish()
    process = gateway(f"owners: {{acme: {{url: '{repository.url}', ttl: 0}}}}")
    process.wait_for_state("acme", "serving")

    async def read_before_and_after() -> MCPError:
        async with mcp_client(process.mcp_url("acme"), process.token, mode) as client:
            await client.read_resource(uri_of(PATHS[0]))
            repository.remove(PATHS[0])
            commit = repository.publish()
            with pytest.raises(MCPError) as caught:
                await client.read_resource(uri_of(PATHS[0]))
            page = await client.list_resources()
            assert meta_of(page)["served_commit"] == commit
            assert [each.uri for each in page.resources] == [uri_of(PATHS[1])]
            return caught.value

    refused = anyio.run(read_before_and_after)
    assert (refused.code, refused.error.data) == (NOT_FOUND[mode], {"uri": uri_of(PATHS[0])})
    assert refused.message == "Resource not found"
