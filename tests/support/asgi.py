"""One request to an ASGI application, message by message: no socket, no client of ours between."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import anyio
from starlette.types import ASGIApp, Message, Scope, Send


@dataclass(frozen=True, slots=True)
class AsgiAnswer:
    """What an application sent: pieces of a body count as one."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass(slots=True)
class _Exchange:
    """What goes in and comes out; written by the application under test."""

    pieces: list[bytes]
    start: Message = field(default_factory=dict[str, Any])
    body: bytes = b""

    async def receive(self) -> Message:
        if not self.pieces:
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()
        piece = self.pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert not self.start
            self.start = message
        else:
            self.body += message.get("body", b"")


async def ask(
    app: ASGIApp,
    headers: Sequence[tuple[bytes, bytes]],
    *pieces: bytes,
    method: bytes = b"POST",
    target: bytes = b"/acme/mcp",
    send: Send | None = None,
) -> AsgiAnswer:
    """Send a request whose body comes in these pieces, and return the answer.

    `send` takes that instead, if there is one.
    """
    path, _, query = target.removeprefix(b"http://gateway.example").partition(b"?")
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method.decode(),
        "scheme": "http",
        "path": unquote(path.decode()),
        "raw_path": path,
        "root_path": "",
        "query_string": query,
        "headers": [(name.lower(), value.strip()) for name, value in headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "state": {},
    }
    exchange = _Exchange(list(pieces) or [b""])
    await app(scope, exchange.receive, send or exchange.send)
    return AsgiAnswer(exchange.start["status"], tuple(exchange.start["headers"]), exchange.body)
