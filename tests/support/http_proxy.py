"""A loopback proxy in front of a gateway: it remembers what clients ask, and may add a token.

The token is for clients that can't send a header of their own.

Invariant: each connection carries one request. All but its head goes through as it comes, in both
directions at once, so a stream of events arrives while it is being written, and a client that
leaves is seen to leave.
"""

import asyncio
import json
from collections.abc import Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from http import HTTPMethod
from typing import Any

from anyio.from_thread import start_blocking_portal

HEAD_DEADLINE_SECONDS = 30.0
CONNECT_DEADLINE_SECONDS = 10.0
CHUNK_BYTES = 65_536

_HOST = "127.0.0.1"
_END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """One request, as the client sent it."""

    method: str
    target: str
    headers: Message
    """Looked up in any case; None if absent."""
    body: bytes

    @property
    def rpc_method(self) -> str | None:
        """The JSON-RPC method; None if the body is no JSON-RPC message."""
        return self._message.get("method")

    @property
    def rpc_params(self) -> dict[str, Any]:
        """The parameters of the JSON-RPC message; empty without."""
        return self._message.get("params") or {}

    @property
    def protocol_version(self) -> str | None:
        """The version that the head names, else the one that an `initialize` asks for."""
        return self.headers["MCP-Protocol-Version"] or self.rpc_params.get("protocolVersion")

    @property
    def _message(self) -> dict[str, Any]:
        return json.loads(self.body) if self.body[:1] == b"{" else {}


class HttpProxy:
    """Hands requests on to `port` of this machine, with `token` if it isn't None.

    `Host` and `Origin` stay as the client sent them.
    """

    def __init__(self, port: int, token: str | None) -> None:
        """Keep where to, and what to add; listen to nothing yet."""
        self.url = ""
        """The base URL, without a slash at its end; written by `start`."""
        self._port = port
        self._token = token
        # These are written on the event loop alone: by `start`, and by the connections' tasks.
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: list[tuple[bytes, bytearray]] = []

    @property
    def requests(self) -> Sequence[AskedRequest]:
        """What was asked so far, in order."""
        return [_parse(head, bytes(body)) for head, body in tuple(self._asked)]

    async def start(self) -> None:
        """Listen, on a free port of the loopback address."""
        self._server = await asyncio.start_server(self._accept, _HOST, 0)
        self.url = f"http://{_HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Cut the connections that are open, and listen no more."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that leaves, or a gateway that ends, is a normal end of a connection.
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            try:
                async with asyncio.timeout(HEAD_DEADLINE_SECONDS):
                    head = await reader.readuntil(_END_OF_HEAD)
                body = bytearray()
                self._asked.append((head, body))
                await self._hand_on(head, body, reader, writer)
            finally:
                writer.close()

    async def _hand_on(
        self,
        head: bytes,
        body: bytearray,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        async with asyncio.timeout(CONNECT_DEADLINE_SECONDS):
            answers, upstream = await asyncio.open_connection(_HOST, self._port)
        try:
            upstream.write(self._rewrite(head))
            await _until_one_ends(_copy(reader, upstream, body), _copy(answers, writer))
        finally:
            upstream.close()

    def _rewrite(self, head: bytes) -> bytes:
        """Return the head as it is sent on: the next request has a connection of its own."""
        replaced, added = [b"connection:"], [b"Connection: close"]
        if self._token is not None:
            replaced.append(b"authorization:")
            added.append(b"Authorization: Bearer " + self._token.encode())
        request, *lines = head.removesuffix(_END_OF_HEAD).split(b"\r\n")
        kept = [line for line in lines if not line.lower().startswith(tuple(replaced))]
        return b"\r\n".join([request, *kept, *added]) + _END_OF_HEAD


@contextmanager
def http_proxy(port: int, *, token: str | None = None) -> Generator[HttpProxy]:
    """Run a proxy before `port` of this machine until the block ends; see `HttpProxy`."""
    proxy = HttpProxy(port, token)
    with start_blocking_portal() as portal:
        portal.call(proxy.start)
        try:
            yield proxy
        finally:
            portal.call(proxy.stop)


def _parse(head: bytes, body: bytes) -> AskedRequest:
    request, _, lines = head.partition(b"\r\n")
    method, target, _ = request.decode("latin-1").split(" ", 2)
    headers = BytesHeaderParser().parsebytes(lines)
    return AskedRequest(HTTPMethod(method), target, headers, body)


async def _until_one_ends(*copies: Coroutine[None, None, None]) -> None:
    tasks = [asyncio.ensure_future(copy) for copy in copies]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray | None = None
) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        if kept is not None:
            kept += chunk
        writer.write(chunk)
        await writer.drain()
