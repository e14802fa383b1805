"""How many requests run at once, and what a body may be; the edge itself is in `tests/faults`."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpx2
import pytest
from anyio import Event, create_task_group, fail_after
from anyio.lowlevel import checkpoint
from starlette.types import Receive, Scope, Send

from okf_mcp_gateway.limits import (
    MAX_BODY_BYTES,
    MAX_HELD_BYTES,
    SMALL_BODY_BYTES,
    RequestLimits,
)
from okf_mcp_gateway.places import Places, waiting

pytestmark = pytest.mark.anyio

DEADLINE_SECONDS = 10.0


class Application:
    """Answers each request with its body; a POST to `/held` waits until the test lets go."""

    def __init__(self) -> None:
        self.held = 0
        self.go = Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        message = await receive()
        assert scope["path"] == "/healthz" or not message.get("more_body", False)
        if scope["path"] == "/held":
            self.held += 1
            await self.go.wait()
        kind = b"text/event-stream" if scope["path"] == "/stream" else b"text/plain"
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        )
        if scope["path"] == "/stream":
            self.held += 1
            await self.go.wait()
        if scope["path"] == "/crash":
            raise ZeroDivisionError
        await send({"type": "http.response.body", "body": message["body"]})


@asynccontextmanager
async def limited(
    max_requests: int = 1,
) -> AsyncGenerator[tuple[Application, httpx2.AsyncClient]]:
    """Ask an application behind the limits."""
    application = Application()
    transport = httpx2.ASGITransport(app=RequestLimits(application, max_requests))
    with fail_after(DEADLINE_SECONDS):
        async with httpx2.AsyncClient(transport=transport, base_url="http://x.example") as client:
            yield application, client


async def until_held(application: Application, count: int) -> None:
    while application.held < count:
        await checkpoint()


@pytest.mark.row("H10")
async def test_a_body_that_comes_in_parts_is_handed_on_whole() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * (MAX_BODY_BYTES // 4)

    async with limited() as (_, client):
        answer = await client.post("/", content=parts())
        assert (answer.status_code, len(answer.content)) == (200, MAX_BODY_BYTES)
        answer = await client.post("/", content=b"short")
        assert (answer.status_code, answer.content) == (200, b"short")


@pytest.mark.row("H10")
async def test_a_body_over_4_mib_is_413_with_and_without_a_length() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"x" * MAX_BODY_BYTES
        yield b"x"

    async with limited() as (_, client):
        for content in (parts(), b"x" * (MAX_BODY_BYTES + 1)):
            answer = await client.post("/", content=content)
            assert (answer.status_code, answer.json()) == (
                413,
                {"error": "a request's body takes 4 MiB at most"},
            )


@pytest.mark.row("H10")
@pytest.mark.parametrize("coding", ["gzip", "br", "Identity, gzip", "x"])
async def test_a_compressed_body_is_415_and_told_what_is_taken(coding: str) -> None:
    async with limited() as (_, client):
        answer = await client.post("/", content=b"x", headers={"Content-Encoding": coding})
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
        answer = await client.post("/", content=b"x", headers={"Content-Encoding": "Identity"})
        assert answer.status_code == 200


@pytest.mark.row("H10")
async def test_one_too_many_is_503_with_retry_after_and_health_is_not_counted() -> None:
    async with limited(2) as (application, client), create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(client.post, "/held")
        await until_held(application, 2)
        answer = await client.get("/")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json() == {"error": "too many requests at once: try again"}
        assert (await client.get("/healthz")).status_code == 200
        application.go.set()


@pytest.mark.row("H10")
async def test_a_stream_that_has_begun_and_a_request_that_crashed_take_no_place() -> None:
    async with limited() as (application, client), create_task_group() as tasks:
        for count in (1, 2):
            tasks.start_soon(client.get, "/stream")
            await until_held(application, count)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await client.get("/crash")
        assert (await client.get("/")).status_code == 200
        application.go.set()


@pytest.mark.row("H10")
async def test_large_bodies_are_held_up_to_a_bound_and_small_ones_always_pass() -> None:
    async def large() -> AsyncIterator[bytes]:
        for _ in range(2):
            yield b"x" * (MAX_BODY_BYTES // 2)

    count = MAX_HELD_BYTES // MAX_BODY_BYTES
    async with limited(count + 1) as (application, client):
        for path in ("/held", "/stream"):
            application.held, application.go = 0, Event()
            async with create_task_group() as tasks:
                for _ in range(count):
                    tasks.start_soon(partial(client.post, path, content=large()))
                await until_held(application, count)
                answer = await client.post("/", content=large())
                # A stream has done with what it was asked by.
                assert answer.status_code == (503 if path == "/held" else 200)
                assert (await client.post("/", content=b"x" * SMALL_BODY_BYTES)).status_code == 200
                application.go.set()
        assert (await client.post("/", content=large())).status_code == 200


@pytest.mark.row("H10")
async def test_who_waits_for_a_pull_leaves_its_place_to_others_and_has_it_again() -> None:
    places = Places(1)
    place = places.take()
    assert place is not None
    assert places.take() is None
    with waiting(place.give_to({"type": "http"})):
        other = places.take()
        assert other is not None
    # Both run now, which is one too many for a moment.
    assert places.take() is None
    other.leave()
    assert places.take() is None
    place.leave()
    place.leave()
    assert places.take() is not None
