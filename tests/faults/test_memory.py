"""Memory is flat: what clients ask for, abandon or break off leaves nothing behind in the gateway.

And whoever asks gets the answer to that very request, whatever ids others use at the same time.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from support.gateway_process import NORTH_TOKEN, GatewayFactory, GatewayProcess
from support.in_process import MODERN, Era, mcp_headers, mcp_message
from support.repositories import Repository
from support.soak import soak_scale

pytestmark = pytest.mark.anyio

CLIENTS: Final = 64
KINDS: Final = 5
"""How many requests a client sends in a round: one of each kind."""

REQUESTS: Final = 10_000
SPANS: Final = 3
"""How often growth is measured, after a warm-up as long: a leak is there each time, noise isn't."""

LEAK_BYTES: Final = 1024
"""A leak of so much a request has to be seen, if only one kind of request has it."""

DEADLINE_SECONDS: Final = 30.0
"""Of each single answer."""


async def test_memory_is_flat_and_each_caller_gets_its_own_answer(
    repository: Repository, gateway: GatewayFactory
) -> None:
    for number in range(CLIENTS):
        repository.document(f"{number}.md", id=str(number), body=f"This is {number}.")
    repository.publish()
    process = gateway(json.dumps({"owners": {"acme": {"url": repository.url}}}))
    process.wait_for_state("acme", "serving")
    rounds = int(REQUESTS * soak_scale()) // (CLIENTS * KINDS * (1 + SPANS)) + 1
    await visit_often(process, rounds)
    grown: list[int] = []
    for _ in range(SPANS):
        before = resident_bytes(process)
        await visit_often(process, rounds)
        grown.append(resident_bytes(process) - before)
    requests = rounds * CLIENTS * KINDS
    print(f"grown by {grown} bytes in {requests} requests each")  # noqa: T201 - for `make soak`
    assert min(grown) < requests / KINDS * LEAK_BYTES / 2
    assert "Traceback" not in process.log


def resident_bytes(process: GatewayProcess) -> int:
    """Return how much memory the gateway holds."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


async def visit_often(process: GatewayProcess, rounds: int) -> None:
    """Let all clients visit so often, each time all at once."""
    for _ in range(rounds):
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(visit(process, number))


async def visit(process: GatewayProcess, number: int) -> None:
    """Send a request of each kind, as one client of many; all of them have the same id."""
    uri = f"knowledge://acme/note/{number}"
    read, read_in_session, initialize = requests_for(uri)
    async with connected(process) as client:
        for sent in (read, read_in_session):
            content = (await client.ask(sent))["result"]["contents"][0]
            assert (content["uri"], content["text"]) == (uri, f"This is {number}.")
        # Nobody ever says `notifications/initialized`, nor anything else.
        answer = await client.ask(initialize)
        assert answer["result"]["protocolVersion"] == "2025-11-25"
    for sent in (read[:-5], read):
        async with connected(process) as client:
            client.writer.write(sent)  # and leaves: in mid-body, or before the answer
            await client.writer.drain()


class Client:
    """A connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, sent: bytes) -> dict[str, Any]:
        """Send a request and return the content of its answer, which must be 200."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            self.writer.write(sent)
            head = await self.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            (length,) = (
                line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
            )
            return json.loads(await self.reader.readexactly(int(length.split()[1])))


@asynccontextmanager
async def connected(process: GatewayProcess) -> AsyncGenerator[Client]:
    """Connect, and leave without a word."""
    reader, writer = await asyncio.open_connection(process.host, process.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):  # what was sent last may have nobody to take it
            await writer.wait_closed()


def request(
    method: str,
    params: dict[str, Any] | None = None,
    *,
    era: Era = MODERN,
    more: dict[str, str] | None = None,
) -> bytes:
    """Return the bytes of one request."""
    body = mcp_message(method, params, era=era)
    headers = {
        "Host": "gateway.example",
        "Authorization": f"Bearer {NORTH_TOKEN}",
        "Content-Length": str(len(body)),
        **mcp_headers(method, params, era=era),
        **(more or {}),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /acme/mcp HTTP/1.1\r\n{lines}\r\n".encode() + body


@cache
def requests_for(uri: str) -> tuple[bytes, bytes, bytes]:
    """Return two reads of a document, the second in a session that nobody knows; `initialize`."""
    params = {"uri": uri}
    session = {"Mcp-Session-Id": "0123456789abcdef"}
    return (
        request("resources/read", params),
        request("resources/read", params, era="2025-11-25", more=session),
        request("initialize"),
    )
