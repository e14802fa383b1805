"""Never a mixture: each answer belongs to one commit, whole.

Clients of both eras list and read as fast as they can while 500 pushes arrive, among them forced
ones and new roots. Each page of a list, each cursor and each read is held against the commit that
it says it is of; and the commits that a client sees never go backwards.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from threading import Event
from typing import Any, Final

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from support.clients import Mode, mcp_client
from support.gateway_process import GatewayFactory, GatewayProcess
from support.histories import Planned, document_text, make_history, point
from support.in_process import LEGACY, MODERN, Era, mcp_headers, mcp_message
from support.repositories import Repository
from support.soak import soak_scale

PUSHES: Final = round(500 * soak_scale())
SECONDS_A_PUSH: Final = 0.03
"""How long a push is the newest at most: answers come more often than that."""

DEADLINE_SECONDS: Final = 120 * max(soak_scale(), 1.0)
PAGE_SIZE: Final = 1000
PATHS: Final = tuple(f"docs/d{number:04}.md" for number in range(PAGE_SIZE + 40))
"""What may be there: a few more than fit into a page."""

CHANGING: Final = (*PATHS[:8], *PATHS[-60:])
"""What is changed, added and removed: at the beginning, and about the end of the first page."""

NOT_FOUND: Final[Mapping[str, int]] = {
    "legacy": -32002,
    "2026-07-28": -32602,
    LEGACY: -32002,
    MODERN: -32602,
}

Hashes = Mapping[str, str]
"""The content hashes of a commit by URI, in served order."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list."""

    commit: str
    after: str | None
    """The last URI of the page before it; None for a first page."""
    hashes: Hashes
    has_more: bool


@dataclass(frozen=True, slots=True)
class Sight:
    """What one client was told, in order; `commits` has the served commit of each answer."""

    pages: list[Page] = field(default_factory=list[Page])
    reads: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """A commit, a URI, and the hash of the text that came."""
    misses: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """A URI that was not found, and how many `commits` were seen before that."""
    commits: list[str] = field(default_factory=list[str])

    def add_page(self, page: Page) -> None:
        self.commits.append(page.commit)
        self.pages.append(page)

    def add_read(self, commit: str, uri: str, text: str, content_hash: str) -> None:
        assert content_hash == hash_of(text)
        self.commits.append(commit)
        self.reads.append((commit, uri, content_hash))

    def add_miss(self, uri: str) -> None:
        self.misses.append((uri, len(self.commits)))


def uri_of(path: str) -> str:
    return f"knowledge://acme/note/{path.removeprefix('docs/').removesuffix('.md')}"


def hash_of(content: str) -> str:
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"


def plan() -> tuple[list[Planned], list[Hashes]]:
    """Plan a first commit and the pushes after it; return also what each of them holds."""
    random = Random(20260717)  # noqa: S311 - the same pushes in every run
    bodies = [{path: f"{path} at the start." for path in PATHS}]
    planned = [Planned(texts_of(bodies[0]), parent=None)]
    for number in range(1, PUSHES + 1):
        kind = random.choices(("on top", "rewrite", "start over"), (8, 2, 1))[0]
        base = max(number - (2 if kind == "rewrite" else 1), 0)
        body = dict(bodies[base])
        changed: dict[str, str | None] = {}
        for path in random.sample(CHANGING, 3):
            is_removed = path in body and random.random() < 0.4
            changed[path] = None if is_removed else f"Push {number} wrote {path}."
        body |= {path: text for path, text in changed.items() if text is not None}
        body = {path: body[path] for path in sorted(body) if changed.get(path, "") is not None}
        bodies.append(body)
        if kind == "start over":
            planned.append(Planned(texts_of(body), parent=None))
        else:
            planned.append(Planned(texts_of(changed), parent=base))
    return planned, [{uri_of(path): hash_of(text) for path, text in b.items()} for b in bodies]


def texts_of(bodies: Mapping[str, str | None]) -> dict[str, str | None]:
    return {path: None if body is None else document_text(body) for path, body in bodies.items()}


# Clients


def read_along_by_hand(gateway: GatewayProcess, era: Era, sight: Sight, is_over: Event) -> None:
    """List, page after page, and read, in plain requests; once more when the pushes are over."""
    random = Random(era)  # noqa: S311 - what is read need not be a secret
    while not is_over.is_set():
        list_by_hand(gateway, era, sight)
        for path in random.sample(CHANGING, 5):
            read_by_hand(gateway, era, uri_of(path), sight)
    # The first list may join a pull that began before the last push; the second can't.
    list_by_hand(gateway, era, sight)
    list_by_hand(gateway, era, sight)


def list_by_hand(gateway: GatewayProcess, era: Era, sight: Sight) -> None:
    cursor = after = None
    while True:
        answer = ask(gateway, era, "resources/list", {"cursor": cursor} if cursor else {})
        result = answer["result"]
        resources = result["resources"]
        hashes = {each["uri"]: each["_meta"]["content_hash"] for each in resources}
        cursor = result.get("nextCursor")
        sight.add_page(Page(result["_meta"]["served_commit"], after, hashes, cursor is not None))
        if cursor is None:
            return
        after = resources[-1]["uri"]


def read_by_hand(gateway: GatewayProcess, era: Era, uri: str, sight: Sight) -> None:
    answer = ask(gateway, era, "resources/read", {"uri": uri})
    if "error" in answer:
        assert answer["error"]["code"] == NOT_FOUND[era]
        sight.add_miss(uri)
        return
    result = answer["result"]
    (content,) = result["contents"]
    commit, content_hash = result["_meta"]["served_commit"], content["_meta"]["content_hash"]
    sight.add_read(commit, uri, content["text"], content_hash)


def ask(gateway: GatewayProcess, era: Era, method: str, params: Mapping[str, Any]) -> Any:
    message = mcp_message(method, params, era=era)
    return gateway.post("/acme/mcp", message, headers=mcp_headers(method, params, era=era)).json


async def read_along(gateway: GatewayProcess, mode: Mode, sight: Sight, is_over: Event) -> None:
    """Read with the SDK's client."""
    random = Random(mode)  # noqa: S311 - what is read need not be a secret
    async with mcp_client(gateway.mcp_url("acme"), gateway.token, mode) as client:
        while not is_over.is_set():
            for path in random.sample(CHANGING, 20):
                await read_once(client, mode, uri_of(path), sight)
            page = await client.list_resources()
            hashes = {each.uri: meta_of(each)["content_hash"] for each in page.resources}
            commit = meta_of(page)["served_commit"]
            sight.add_page(Page(commit, None, hashes, page.next_cursor is not None))


async def read_once(client: Client, mode: Mode, uri: str, sight: Sight) -> None:
    try:
        answer = await client.read_resource(uri)
    except MCPError as error:
        if (error.code, error.error.data) != (NOT_FOUND[mode], {"uri": uri}):
            raise
        sight.add_miss(uri)
        return
    (content,) = answer.contents
    text = content.model_dump()["text"]
    commit, content_hash = meta_of(answer)["served_commit"], meta_of(content)["content_hash"]
    sight.add_read(commit, uri, text, content_hash)


def meta_of(answer: Any) -> Mapping[str, Any]:
    """Return the `_meta` of a result, or of a part of one."""
    assert answer.meta is not None
    return answer.meta


def watch(gateway: GatewayProcess, push_all: Callable[[], None]) -> list[Sight]:
    """Push, and let clients of all kinds read meanwhile; return what they saw."""
    is_over = Event()
    modes: tuple[Mode, Mode] = ("legacy", "2026-07-28")
    eras: tuple[Era, Era] = (LEGACY, MODERN)
    sights = [Sight() for _ in (*modes, *eras)]
    with ThreadPoolExecutor(len(sights)) as pool:
        running = [
            *(
                pool.submit(anyio.run, read_along, gateway, mode, sight, is_over)
                for mode, sight in zip(modes, sights[:2], strict=True)
            ),
            *(
                pool.submit(read_along_by_hand, gateway, era, sight, is_over)
                for era, sight in zip(eras, sights[2:], strict=True)
            ),
        ]
        try:
            push_all()
        finally:
            is_over.set()
        for each in running:
            each.result(DEADLINE_SECONDS)
    return sights


@pytest.mark.row("P5", "P2", "D8", "D9", "D11", "H2")
def test_each_answer_belongs_to_one_commit_while_five_hundred_pushes_arrive(
    repository: Repository, gateway: GatewayFactory
) -> None:
    planned, contents = plan()
    order = make_history(repository.bare, planned)
    held = dict(zip(order, contents, strict=True))
    point(repository.bare, "refs/heads/main", order[0])
    process = gateway(f"owners: {{acme: {{url: '{repository.url}', ttl: 0}}}}")
    process.wait_for_state("acme", "serving")
    pause = Event()

    def push_all() -> None:
        for commit in order[1:]:
            point(repository.bare, "refs/heads/main", commit)
            pause.wait(SECONDS_A_PUSH)

    sights = watch(process, push_all)
    for sight in sights:
        assert_never_backwards(sight, order)
        for page in sight.pages:
            assert_is_the_page(page, held[page.commit])
        for commit, uri, content_hash in sight.reads:
            assert held[commit][uri] == content_hash
        assert_missed_rightly(sight, order, held)
    assert [sight.commits[-1] for sight in sights[2:]] == [order[-1]] * 2
    assert all(len(set(sight.commits)) > 10 for sight in sights)
    assert any(page.after for sight in sights for page in sight.pages)
    seen = (f"{len(sight.commits)} answers, {len(set(sight.commits))} commits" for sight in sights)
    print(*seen, sep="; ")  # noqa: T201 - a measurement, for who asks by -s
    assert "Traceback" not in process.log


def assert_never_backwards(sight: Sight, order: Sequence[str]) -> None:
    places = {commit: place for place, commit in enumerate(order)}
    seen = [places[commit] for commit in sight.commits]
    assert seen == sorted(seen)


def assert_is_the_page(page: Page, held: Hashes) -> None:
    """A cursor names a place, not a commit: a page is what stands after it in its own commit."""
    rest = [uri for uri in held if page.after is None or uri > page.after]
    expected = {uri: held[uri] for uri in rest[:PAGE_SIZE]}
    assert list(page.hashes.items()) == list(expected.items())
    assert page.has_more == (len(rest) > PAGE_SIZE)


def assert_missed_rightly(sight: Sight, order: Sequence[str], held: Mapping[str, Hashes]) -> None:
    """What wasn't found was not there at some moment between the answers before and after."""
    places = {commit: place for place, commit in enumerate(order)}
    for uri, seen_before in sight.misses:
        first = places[sight.commits[seen_before - 1]] if seen_before else 0
        later = sight.commits[seen_before:]
        last = places[later[0]] if later else len(order) - 1
        assert any(uri not in held[commit] for commit in order[first : last + 1])


@pytest.mark.row("P5", "H2")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
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
