"""The shortest way to a kept answer: from the parser to the socket, with no ASGI request between.

Where nothing else is being answered on the connection, a request to an owner is held back until its
body is there. If the front has an answer to it, that is written at once; else it becomes an ASGI
request like any other, as if it had just come in.
"""

import asyncio
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from okf_mcp_gateway.answers import Reply, Shelf
from okf_mcp_gateway.connection import Connection, Refusal
from okf_mcp_gateway.front import Front


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
        # What may have the answer to the request that is held back, and what came of its body.
        self._shelf: Shelf | None = None
        self._body = b""

    def data_received(self, data: bytes) -> None:
        """Take what came; of a request, not more than that is waited for."""
        super().data_received(data)
        self._begin()

    def on_headers_complete(self) -> None:
        """Hold the request back, if there may be a kept answer to it."""
        shelf = self._front.shelf_at(self.url) if self._front else None
        if shelf and self._may_be_held():
            self._shelf, self._is_head_whole = shelf, True
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body; one that comes in several is not waited for."""
        if self._shelf is None:
            super().on_body(body)
        elif self._body:
            self._begin()
            super().on_body(body)
        else:
            self._untold_bytes = 0
            self._body = body

    def on_message_complete(self) -> None:
        """Answer the request, or let it become one for the application."""
        shelf, reply = self._shelf, None
        if shelf and self._front:
            reply = self._front.find(shelf, self.headers, self._body)
        if reply is None:
            self._begin()
            super().on_message_complete()
        else:
            self._shelf, self._body, self._is_whole = None, b"", True
            self._write(reply)

    def _refuse(self, refusal: Refusal) -> None:
        self._begin()
        super()._refuse(refusal)

    def _may_be_held(self) -> bool:
        """Whether a request is such that nothing but its answer has to be decided."""
        return (
            self._running is None
            and self._hosts == 1
            and not self.expect_100_continue
            and not self.flow.write_paused
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and not self.parser.should_upgrade()
        )

    def _begin(self) -> None:
        """Let the request that is held back, if there is one, go the usual way."""
        if self._shelf is not None:
            body, self._shelf, self._body = self._body, None, b""
            super().on_headers_complete()
            if body:
                super().on_body(body)

    def _write(self, reply: Reply) -> None:
        """Answer a request as uvicorn would write it."""
        headers, (first, *rest) = reply
        is_kept_alive = self.parser.should_keep_alive()
        lines = [
            b"%s: %s\r\n" % header for header in (*self.server_state.default_headers, *headers)
        ]
        if not is_kept_alive:
            lines.append(b"connection: close\r\n")
        self.transport.write(b"".join((STATUS_LINE[HTTPStatus.OK], *lines, b"\r\n", first)))
        for piece in rest:
            self.transport.write(piece)
        if not is_kept_alive:
            self.transport.close()
        self.on_response_complete()
