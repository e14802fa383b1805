"""The shortest way to a kept answer: from the parser to the socket, without a task between.

A request is looked at once all that came with it is parsed. If it is whole by then, and the front
has an answer to it, that is written at once; else it becomes an ASGI request like any other.
"""

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.server import ServerState

from okf_mcp_gateway.answers import Reply
from okf_mcp_gateway.connection import Connection
from okf_mcp_gateway.front import Front

if TYPE_CHECKING:
    from starlette.types import Scope


class DirectConnection(Connection):
    """A connection that asks the front itself, where the application has one."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._front = config.app if isinstance(config.app, Front) else None
        # The request whose turn it is, until it is answered or begun; and whether that is decided.
        self._next: tuple[RequestResponseCycle, ASGI3Application] | None = None
        self._is_deciding = False

    def data_received(self, data: bytes) -> None:
        """Take what came, and answer what can be answered at once."""
        self._is_deciding = True
        super().data_received(data)
        self._decide()

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        super().on_response_complete()
        if not self._is_deciding:
            self._decide()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        self._next = cycle, app

    def _decide(self) -> None:
        """Answer or begin the requests whose turn it is, one after the other."""
        self._is_deciding = True
        while self._next is not None:
            (cycle, app), self._next = self._next, None
            reply = None
            is_whole = not cycle.more_body and not cycle.waiting_for_100_continue
            if self._front and is_whole and not self.flow.write_paused:
                reply = self._front.find(cast("Scope", cycle.scope), bytes(cycle.body))
            if reply is None:
                super()._start_asgi_task(cycle, app)
            else:
                self._write(cycle, reply)
        self._is_deciding = False

    def _write(self, cycle: RequestResponseCycle, reply: Reply) -> None:
        """Answer a request as uvicorn would write it."""
        headers, (first, *rest) = reply
        lines = [b"%s: %s\r\n" % header for header in (*cycle.default_headers, *headers)]
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        self.transport.write(b"".join((STATUS_LINE[HTTPStatus.OK], *lines, b"\r\n", first)))
        for piece in rest:
            self.transport.write(piece)
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()
