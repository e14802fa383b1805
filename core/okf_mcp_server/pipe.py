"""MCP over stdin and stdout, until stdin ends and all that was asked before is answered (T3)."""

from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Final

import anyio
import mcp_types as types
from anyio.abc import ObjectSendStream
from mcp.server.stdio import stdio_server
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import SessionMessage

from okf_mcp_server.server import build_server
from okf_mcp_server.snapshot import Snapshot

_LAST_ANSWERS_SECONDS: Final = 5
"""How long the requests that are running when stdin ends may take."""


def serve(owner: str, snapshot: Snapshot) -> None:
    """Serve one snapshot to the client at the other end of stdin and stdout."""
    anyio.run(_serve, owner, snapshot)


async def _serve(owner: str, snapshot: Snapshot) -> None:
    """Serve until stdin ends, and then until all requests before its end are answered.

    The SDK drops what is still running at the end, and a pipe ends right after its last request.
    So it sees the end later, by streams of ours.
    """
    server = build_server(owner, lambda: snapshot)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception]()
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage]()
    requests = _Requests()
    async with (
        stdio_server() as (stdin, stdout),
        stdout,
        anyio.create_task_group() as tasks,
        from_client,
        from_server,
    ):
        tasks.start_soon(requests.pass_questions, stdin, to_server)
        tasks.start_soon(requests.pass_answers, from_server, stdout.send)
        await server.run(from_client, to_client, server.create_initialization_options())


class _Requests:
    """The requests that wait for an answer, told from the messages that pass by."""

    def __init__(self) -> None:
        # Written by the two methods, each in its task; None is the id of an answer to no request.
        self._pending: set[types.RequestId | None] = set()
        self._answered = anyio.Condition()

    async def pass_questions(
        self,
        stdin: AsyncIterable[SessionMessage | Exception],
        to_server: ObjectSendStream[SessionMessage | Exception],
    ) -> None:
        """Hand on what the client says; hold its end back until all is answered."""
        async with to_server:
            async for item in stdin:
                self._note(item)
                await to_server.send(item)
            with anyio.move_on_after(_LAST_ANSWERS_SECONDS):
                async with self._answered:
                    while self._pending:
                        await self._answered.wait()

    async def pass_answers(
        self,
        from_server: AsyncIterable[SessionMessage],
        send: Callable[[SessionMessage], Awaitable[None]],
    ) -> None:
        """Hand on what the server says."""
        async for item in from_server:
            await send(item)
            if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError):
                async with self._answered:
                    self._pending.discard(item.message.id)
                    self._answered.notify_all()

    def _note(self, item: SessionMessage | Exception) -> None:
        if isinstance(item, Exception):
            return
        message = item.message
        if isinstance(message, types.JSONRPCRequest):
            self._pending.add(message.id)
        elif (
            isinstance(message, types.JSONRPCNotification)
            and message.method == "notifications/cancelled"  # what it cancels is never answered
        ):
            self._pending.discard(cancelled_request_id_from_params(message.params))
