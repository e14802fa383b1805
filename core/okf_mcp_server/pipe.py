"""MCP over stdin and stdout, until stdin ends and all that was asked before is answered (T3)."""

import os
import sys
from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Final, NoReturn

import anyio
import mcp_types as types
from anyio.abc import ObjectSendStream
from mcp.server.stdio import stdio_server
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from okf_mcp_server.server import build_server
from okf_mcp_server.snapshot import Snapshot

_LAST_ANSWERS_SECONDS: Final = 5
"""How long each of the requests that are running when stdin ends may take, after another."""

_NO_MESSAGE: Final = SessionMessage(
    types.JSONRPCError(
        jsonrpc="2.0",
        id=None,
        error=types.ErrorData(
            code=types.INVALID_REQUEST, message="The line is no JSON-RPC message"
        ),
    )
)


def serve(owner: str, snapshot: Snapshot) -> None:
    """Serve one snapshot to the client at the other end of stdin and stdout.

    If stdout can't be written, it ends the process with a sentence and status 1.
    """
    if sys.stdin is None or sys.stdout is None:  # closed before we began: there is no client
        return
    try:
        anyio.run(_serve, owner, snapshot)
    except* anyio.BrokenResourceError:
        _leave()  # the client has gone, and nobody is left to be answered


class _Stdout(TextIOWrapper):
    """stdout, which ends the process when it can't be written: nobody is left to be answered."""

    def write(self, text: str, /) -> int:
        with _leaving_at_faults():
            return super().write(text)

    def flush(self) -> None:
        with _leaving_at_faults():
            super().flush()


@contextmanager
def _leaving_at_faults() -> Generator[None]:
    try:
        yield
    except BrokenPipeError:
        _leave()  # the client has gone
    except OSError:
        _leave("okf-mcp-server: the answers can't be written to stdout\n")


def _leave(fault: str = "") -> NoReturn:
    """End the process though a thread of the SDK's waits, for a line or for room in a pipe."""
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(fault)
            sys.stderr.flush()
    os._exit(1 if fault else 0)


async def _serve(owner: str, snapshot: Snapshot) -> None:
    """Serve until stdin ends, and then until all requests before its end are answered.

    The SDK drops what is still running at the end, and a pipe ends right after its last request.
    So it sees the end later, by streams of ours.
    """
    server = build_server(owner, lambda: snapshot)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception]()
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage]()
    requests = _Requests()
    written = _Stdout(os.fdopen(os.dup(sys.stdout.fileno()), "wb"), encoding="utf-8")
    if sys.stderr is not None:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # where stray output does no harm (T2)
    async with (
        stdio_server(stdout=anyio.wrap_file(written)) as (stdin, stdout),
        stdout,
        from_client,
        from_server,  # these outlive the tasks, which take from them to the last answer
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(requests.pass_questions, stdin, to_server, stdout.send)
        tasks.start_soon(requests.pass_answers, from_server, stdout.send)
        await server.run(from_client, to_client, server.create_initialization_options())


def _is_blank(fault: Exception) -> bool:
    """Say whether what is no message is an empty line."""
    return isinstance(fault, ValidationError) and not str(fault.errors()[0]["input"]).strip()


class _Requests:
    """The requests that wait for an answer, told from the messages that pass by."""

    def __init__(self) -> None:
        # Written by the two methods, each in its task: how many wait under each id, as a client may
        # use one twice; None is the id of an answer to no request.
        self._pending: Counter[types.RequestId | None] = Counter()
        self._answered = anyio.Condition()

    async def pass_questions(
        self,
        stdin: AsyncIterable[SessionMessage | Exception],
        to_server: ObjectSendStream[SessionMessage | Exception],
        answer: Callable[[SessionMessage], Awaitable[None]],
    ) -> None:
        """Hand on what the client says; hold its end back until all is answered.

        A line that is no message is answered here, without an id: the SDK would drop it, and the
        client wait for an answer that never comes.
        """
        async with to_server:
            async for received in stdin:
                if isinstance(received, Exception):
                    if not _is_blank(received):
                        await answer(_NO_MESSAGE)
                else:
                    self._note(received.message)
                    await to_server.send(received)
            while self._pending.total():
                with anyio.move_on_after(_LAST_ANSWERS_SECONDS) as waiting:
                    async with self._answered:
                        await self._answered.wait()
                if waiting.cancelled_caught:
                    _leave()  # nobody takes the answers

    async def pass_answers(
        self,
        from_server: AsyncIterable[SessionMessage],
        send: Callable[[SessionMessage], Awaitable[None]],
    ) -> None:
        """Hand on what the server says."""
        async for answer in from_server:
            await send(answer)
            if isinstance(answer.message, types.JSONRPCResponse | types.JSONRPCError):
                await self._forget(answer.message.id)

    def _note(self, message: types.JSONRPCMessage) -> None:
        if isinstance(message, types.JSONRPCRequest):
            self._pending[message.id] += 1
        elif (
            isinstance(message, types.JSONRPCNotification)
            and message.method == "notifications/cancelled"  # what it cancels is never answered
        ):
            self._pending.pop(cancelled_request_id_from_params(message.params), None)

    async def _forget(self, request_id: types.RequestId | None) -> None:
        async with self._answered:
            if self._pending[request_id] > 1:
                self._pending[request_id] -= 1
            else:
                del self._pending[request_id]
            self._answered.notify_all()
