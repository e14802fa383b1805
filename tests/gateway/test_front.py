from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import pytest
from anyio import create_task_group, fail_after, to_thread
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message

from okf_mcp_gateway.answers import MAX_QUESTION_BYTES
from okf_mcp_gateway.front import Front
from support.asgi import AsgiAnswer, ask
from support.git_http import GitHttpServerFactory
from support.in_process import NEVER_SECONDS, InProcess, running, servers
from support.odd_requests import ALLOWED_ORIGIN, ROUNDS, OddRequest, fill, odd_requests
from support.repositories import Repository
from support.soak import soak_scale

pytestmark = pytest.mark.anyio

EXAMPLES: Final = int(150 * soak_scale())


@dataclass(frozen=True, slots=True)
class Pair:
    """Two gateways in this process, on one source: one keeps answers, one doesn't."""

    kept: InProcess
    asked: InProcess

    async def ask(
        self, request: OddRequest, turn: int, cuts: int = 0
    ) -> tuple[AsgiAnswer, AsgiAnswer]:
        """Send a request to both, to the first one with its body cut so often."""
        body = request.body_of(turn)
        size = len(body) // (cuts + 1) + 1
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        send = partial(ask, method=request.verb, target=request.target)
        return (
            await send(self.kept.entry, request.headers, *pieces),
            await send(self.asked.entry, request.headers, body),
        )


@asynccontextmanager
async def pair(folder: Path) -> AsyncGenerator[Pair]:
    """Run both."""
    repository = Repository(folder / "repositories")
    fill(repository)
    registry = servers(acme=repository.url)
    origins = {"OKF_GATEWAY_ALLOWED_ORIGINS": ALLOWED_ORIGIN}
    off = {"OKF_GATEWAY_ANSWER_CACHE": "off"}
    async with (
        running(folder / "on", registry, environment=origins) as kept,
        running(folder / "off", registry, environment=origins | off) as asked,
    ):
        assert isinstance(kept.entry, Front)
        assert not isinstance(asked.entry, Front)
        for each in (kept, asked):
            await each.wait_for_state("acme", "serving")
        yield Pair(kept, asked)


async def counts(gateway: InProcess, owner: str = "acme") -> Counter[str]:
    """Return how an owner's requests were answered so far."""
    row = await gateway.row(owner, "diagnostics=true")
    return Counter(row["diagnostics"]["answer_cache"])


# The same answer as from the application behind.


@pytest.mark.row("H11")
async def test_every_request_gets_the_same_answer_whole_or_in_pieces(tmp_path: Path) -> None:
    """And those that are expected to, from the second time on from memory."""
    async with pair(tmp_path) as both:
        for request in odd_requests():
            if request.http != b"HTTP/1.1":
                continue
            before = await counts(both.kept) if request.is_hot else Counter[str]()
            for turn in range(ROUNDS):
                kept, asked = await both.ask(request, turn, cuts=turn)
                assert kept == asked, (request.name, turn)
            if request.is_hot:
                more = await counts(both.kept) - before
                assert more["hits"] >= ROUNDS - 1, request.name
        assert not any((await counts(both.asked)).values())


def test_changed_requests_get_the_same_answer_each_time(tmp_path: Path) -> None:
    good = [each for each in odd_requests() if each.is_hot]
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(pair(tmp_path)) as both,
    ):

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        )
        @given(changed(good), st.integers(0, 2))
        def compare(request: OddRequest, cuts: int) -> None:
            for turn in range(ROUNDS):
                kept, asked = portal.call(both.ask, request, turn, cuts)
                assert kept == asked

        compare()
        assert portal.call(counts, both.kept)["hits"]


@st.composite
def changed(draw: st.DrawFn, requests: Sequence[OddRequest]) -> OddRequest:
    """Return one of the requests with a few changes to its body and its headers."""
    request = draw(st.sampled_from(requests))
    body, headers = bytearray(request.body), list(request.headers)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(body) - 1))
        end = at + draw(st.integers(0, 3))
        body[at:end] = draw(st.one_of(st.binary(max_size=3), st.sampled_from(_SNIPPETS)))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(headers) - 1))
        name, value = headers[at]
        other = draw(st.sampled_from(requests)).headers
        headers[at : at + draw(st.integers(0, 1))] = draw(
            st.sampled_from(
                [
                    [],
                    [(name, value)],
                    [(name, value.swapcase())],
                    [(name, value[:-1])],
                    [(name, value + b", */*")],
                    [(name, b"")],
                    list(other),
                ]
            )
        )
    return replace(request, body=bytes(body), headers=tuple(headers))


_SNIPPETS: Final = (
    b'"id":1,',
    b'"id"',
    b'"method":"ping",',
    b'"params":{},',
    b"\\u0069",
    b"@ID@",
    b"[",
    b"}",
    b"\xef\xbb\xbf",
    b"\r\n",
)


# What no answer is kept for.


def read(uri: str, padding: int = 0) -> OddRequest:
    """Return a read that names its URI behind so many other bytes."""
    good = next(each for each in odd_requests() if each.name == "legacy resources/read")
    body = good.body.replace(b'"uri"', b'"x":"%s","uri"' % (b"x" * padding))
    return replace(good, body=body.replace(b"knowledge://acme/note/a", uri.encode()))


@pytest.mark.row("H11")
async def test_a_long_body_is_no_question_however_it_comes(tmp_path: Path) -> None:
    """What comes first may be the same, and the URI may stand behind it."""
    padding = MAX_QUESTION_BYTES + 1
    async with pair(tmp_path) as both:
        for uri in ("knowledge://acme/note/a", "knowledge://acme/note/large"):
            request = read(uri, padding)
            body = request.body_of(0)
            for pieces in ([body], [body[:padding], body[padding:]]):
                kept = await ask(both.kept.entry, request.headers, *pieces)
                assert kept == await ask(both.asked.entry, request.headers, body)
                assert kept.status == 200
        assert (await counts(both.kept))["passed_on"] == 4


@pytest.mark.row("H11")
async def test_owners_share_no_answer(tmp_path: Path) -> None:
    one, other = (Repository(tmp_path / "repositories", name) for name in ("one", "other"))
    one.publish_document("One.")
    other.publish_document("Other.")
    async with running(tmp_path / "on", servers(acme=one.url, beta=other.url)) as gateway:
        for name in ("acme", "beta"):
            await gateway.wait_for_state(name, "serving")
        for _ in range(2):
            texts = [(await gateway.mcp(name, "resources/list")).text for name in ("acme", "beta")]
            assert ["//acme/" in text for text in texts] == [True, False]
        assert (await counts(gateway, "acme"))["hits"] == 1
        assert (await counts(gateway, "beta"))["hits"] == 1


@pytest.mark.row("H11")
async def test_an_owner_that_serves_nothing_has_no_kept_answer(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    server.hang()
    registry = servers(acme=server.url_of(published), beta=(tmp_path / "nowhere").as_uri())
    async with running(tmp_path / "on", registry) as gateway:
        await gateway.wait_for_state("beta", "failed")
        for name, status in (("acme", 200), ("beta", 503)):
            for _ in range(3):
                assert (await gateway.mcp(name, "tools/list")).status_code == status
            assert (await counts(gateway, name))["hits"] == 0
        assert (await gateway.row("acme"))["state"] == "loading"


# What changes with the content.


@pytest.mark.row("H11")
async def test_a_publish_changes_the_next_answer_be_it_only_the_commit(
    repository: Repository, tmp_path: Path
) -> None:
    commit = repository.publish_document("One.")
    async with running(tmp_path / "on", servers(acme=repository.url)) as gateway:
        await gateway.wait_for_state("acme", "serving")
        for change in (lambda: repository.publish_document("Two."), repository.publish, None):
            texts = [await text_of(gateway) for _ in range(3)]
            assert len(set(texts)) == 1
            assert commit in texts[0]
            if change:
                commit = change()
                await gateway.refresh("acme")
        assert "Two." in texts[0]
        assert await counts(gateway) == Counter(hits=6, misses=3)


async def text_of(gateway: InProcess) -> str:
    """Return what a read of document `a` is answered with."""
    answer = await gateway.mcp("acme", "resources/read", {"uri": "knowledge://acme/note/a"})
    assert answer.status_code == 200
    return answer.text


@pytest.mark.row("H11", "P2")
async def test_a_request_that_is_due_pulls_before_it_is_answered(
    repository: Repository, tmp_path: Path
) -> None:
    repository.publish_document("One.")
    registry = servers(acme={"url": repository.url, "ttl": 60})
    environment = {"OKF_GATEWAY_PULL_WAIT": NEVER_SECONDS}
    async with running(tmp_path / "on", registry, environment=environment) as gateway:
        await gateway.wait_for_state("acme", "serving")
        assert [("One." in await text_of(gateway)) for _ in range(2)] == [True, True]
        repository.publish_document("Two.")
        gateway.clock.advance(60)
        assert "One." in await text_of(gateway)
        gateway.clock.advance(1)
        assert "Two." in await text_of(gateway)


@pytest.mark.row("H11", "P2")
async def test_an_answer_that_waited_for_a_publish_is_not_kept_for_what_was_before(
    repository: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    repository.publish_document("One.")
    registry = servers(acme={"url": server.url_of(repository), "ttl": 60})
    environment = {"OKF_GATEWAY_PULL_WAIT": NEVER_SECONDS}
    texts: list[str] = []

    async def read_once() -> None:
        texts.append(await text_of(gateway))

    async with running(tmp_path / "on", registry, environment=environment) as gateway:
        await gateway.wait_for_state("acme", "serving")
        before = [await text_of(gateway) for _ in range(2)]
        repository.publish_document("Two.")
        server.hang()
        gateway.clock.advance(61)
        async with create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(read_once)
            await to_thread.run_sync(server.wait_for_requests, 1)
            assert not texts
            server.release()
        texts.append(await text_of(gateway))
        assert all("One." in text for text in before)
        assert len(texts) == 4
        assert all("Two." in text for text in texts)


@pytest.mark.row("H11", "P3")
async def test_kept_answers_go_on_without_a_wait_while_the_source_hangs(
    repository: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    repository.publish_document("One.")
    registry = servers(acme={"url": server.url_of(repository), "ttl": 60})
    environment = {"OKF_GATEWAY_PULL_WAIT": "0"}
    async with running(tmp_path / "on", registry, environment=environment) as gateway:
        await gateway.wait_for_state("acme", "serving")
        first = await text_of(gateway)
        server.hang()
        gateway.clock.advance(61)
        assert [await text_of(gateway) for _ in range(3)] == [first] * 3
        assert (await counts(gateway))["hits"] == 3
        await to_thread.run_sync(server.wait_for_requests, 1)


# Who asks the same at the same time.


@pytest.mark.row("H11")
async def test_who_asks_the_same_does_not_wait_for_a_client_that_reads_nothing(
    tmp_path: Path,
) -> None:
    """Its answer is for all of them, but only its own is held back by it."""
    request = read("knowledge://acme/note/a")
    is_stuck = anyio.Event()

    async def stick(_: Message) -> None:
        is_stuck.set()
        await anyio.sleep_forever()

    async def never_read(app: ASGIApp) -> None:
        await ask(app, request.headers, request.body_of(0), send=stick)

    async with pair(tmp_path) as both, create_task_group() as tasks:
        tasks.start_soon(never_read, both.kept.entry)
        with fail_after(10):
            await is_stuck.wait()
            answer = await ask(both.kept.entry, request.headers, request.body_of(1))
        assert answer.status == 200
        tasks.cancel_scope.cancel()


@pytest.mark.row("H11")
async def test_who_asks_the_same_at_the_same_time_asks_once(tmp_path: Path) -> None:
    request = read("knowledge://acme/note/a")
    answers: list[AsgiAnswer] = []

    async def ask_once(turn: int) -> None:
        answers.append(await ask(both.kept.entry, request.headers, request.body_of(turn)))

    async with pair(tmp_path) as both:
        async with create_task_group() as tasks:
            for turn in range(9):
                tasks.start_soon(ask_once, turn)
        assert {each.status for each in answers} == {200}
        assert await counts(both.kept) == Counter(hits=8, misses=1)
