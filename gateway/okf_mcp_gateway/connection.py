"""A client's connection: how its requests are framed, how much and how long they may take (H10).

uvicorn leaves these bounds to whoever stands in front, and nobody may stand there. What is refused
here never became a request, so it is answered before any token is asked for.
"""

import asyncio
import json
import logging
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final

import httptools
import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from okf_mcp_gateway.descriptors import max_connections

REQUEST_SECONDS: Final = 30
"""How long a request may take to come in, and a new connection to begin one."""

ANSWER_SECONDS: Final = 60
"""How long a client may take nothing of an answer that waits for it."""

MAX_TARGET_BYTES: Final = 16 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 256

_MAX_PIECES: Final = 16_384
"""How many pieces a body may come in: each costs as much as a small request."""

_MAX_WAITING: Final = 64
"""How many requests may wait on one connection for the answer to an earlier one."""

_MAX_WAITING_BYTES: Final = 128 * 1024
"""How much of the last one's body is taken meanwhile."""

_OF_FRAMING: Final = frozenset({b"expect", b"host", b"transfer-encoding"})

_LINGER_SECONDS: Final = 2
"""How long a client may go on sending what is thrown away: broken off, it never reads why."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a client is told before its connection is closed."""

    status: int
    sentence: str


_MALFORMED: Final = Refusal(400, "this is no HTTP/1.1 request, or a malformed one")
_VERSION: Final = Refusal(400, "only HTTP/1.1 and HTTP/1.0 are spoken here")
_HOST: Final = Refusal(400, "a request needs one Host header, and no more than one")
_CODING: Final = Refusal(400, "the only transfer coding that is taken is chunked")
_CONNECT: Final = Refusal(400, "this is no proxy: CONNECT leads nowhere")
_PIECES: Final = Refusal(400, "the body comes in too many small pieces")
_SLOW: Final = Refusal(408, f"a request must be whole within {REQUEST_SECONDS} s")
_LONG_TARGET: Final = Refusal(414, f"path and query take {MAX_TARGET_BYTES // 1024} KiB at most")
_LARGE_HEAD: Final = Refusal(
    431, f"the headers take {MAX_HEAD_BYTES // 1024} KiB and {MAX_HEADERS} lines at most"
)
_WAITING: Final = Refusal(503, "too much is asked on one connection before it is answered")


class _RefusedError(Exception):
    """Ends the parsing; the reason is kept by the connection, as the parser hides this error."""


class Connection(HttpToolsProtocol):
    """uvicorn's, with the bounds of this module.

    Every attribute of its own is written on the event loop: by its callbacks and `check_deadlines`.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # The request that is being answered; uvicorn's `cycle` is the one that came in last.
        self._running: RequestResponseCycle | None = None
        self.idle_since = 0.0
        """When it began, or its last answer ended (the loop's time)."""
        # Since when the client owes us the rest of a request; None while it owes nothing.
        self._owed_since: float | None = None
        self._is_whole = False
        self._is_head_whole = False
        self._is_upgrade = False
        self._headers_bytes = 0
        self._hosts = 0
        self._pieces = 0
        # What came since the parser last had something to tell.
        self._untold_bytes = 0
        self._unsent_bytes = 0
        self._untaken_since = 0.0
        self._reason: Refusal | None = None
        self._refusal: Refusal | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request of it is being answered."""
        return self._running is None

    @property
    def owes_request(self) -> bool:
        """Whether the request that came in last isn't whole."""
        return not self._is_whole

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as uvicorn's
        """Begin; where there are too many, those that were idle longest make room."""
        super().connection_made(transport)
        self._owed_since = self.idle_since = self._untaken_since = self.loop.time()
        if len(self.connections) > max_connections():
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being answered, which uvicorn does for the last one only."""
        self.pipeline.clear()
        self._abandon_running()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if self._refusal is not None:
            return
        self._untold_bytes += len(data)
        self._parse(data)
        if self._is_whole:
            self._owed_since = None
        elif self._untold_bytes > MAX_HEAD_BYTES:
            # One header, or what stands between two pieces of a body: nothing else bounds it.
            self._refuse(_LARGE_HEAD)
        elif self._owed_since is None:
            self._owed_since = self.loop.time()

    def check_deadlines(self, now: float) -> None:
        """Refuse a request that is late, leave who takes nothing or is idle; `now`: the loop's."""
        if self.is_idle and now - self.idle_since > self.timeout_keep_alive and self._is_whole:
            self.transport.close()
        if self._owed_since is not None and now - self._owed_since > REQUEST_SECONDS:
            self._refuse(_SLOW)
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent < self._unsent_bytes:
            self._untaken_since = now
        elif now - self._untaken_since > ANSWER_SECONDS:
            self.transport.abort()
        self._unsent_bytes = unsent

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Begin a request; only now the connection is no longer idle."""
        self._is_whole = self._is_head_whole = self._is_upgrade = False
        self._owed_since = None
        self._headers_bytes = self._hosts = self._pieces = self._untold_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            self._stop_parsing(_LONG_TARGET)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one that trails a body counts, but is none of the request's."""
        self._headers_bytes += len(name) + len(value)
        headers = self.headers
        if self._headers_bytes > MAX_HEAD_BYTES or len(headers) == MAX_HEADERS:
            self._stop_parsing(_LARGE_HEAD)
        if self._is_head_whole:
            return
        name = name.lower()
        headers.append((name, value))
        if name in _OF_FRAMING:
            self._check_framing(name, value.strip().lower())

    def on_headers_complete(self) -> None:
        """Let the request be answered, once those before it are (RFC 9112, 3.2 for `Host`)."""
        version = self.parser.get_http_version()
        if version not in {"1.1", "1.0"}:
            self._stop_parsing(_VERSION)
        if self._hosts > 1 or (self._hosts == 0 and version == "1.1"):
            self._stop_parsing(_HOST)
        if self.parser.get_method() == b"CONNECT":
            self._stop_parsing(_CONNECT)
        if len(self.pipeline) == _MAX_WAITING:
            self._stop_parsing(_WAITING)
        self._is_upgrade = self.parser.should_upgrade()
        if not self._is_upgrade:
            super().on_headers_complete()
            self._is_head_whole = True

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._untold_bytes = 0
        self._pieces += 1
        if self._pieces > _MAX_PIECES:
            self._stop_parsing(_PIECES)
        super().on_body(body)
        if self.pipeline and len(self.cycle.body) > _MAX_WAITING_BYTES:
            self._stop_parsing(_WAITING)

    def on_message_complete(self) -> None:
        """End a request, but not one that the parser takes for the end of HTTP."""
        if not self._is_upgrade:
            super().on_message_complete()
            self._is_whole = True

    def _check_framing(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self._hosts += 1
        elif name == b"expect":
            self.expect_100_continue = value == b"100-continue"
        elif value != b"chunked":
            self._stop_parsing(_CODING)

    # What uvicorn calls.

    def on_response_complete(self) -> None:
        """Go on with the next request, or with what is wrong with it.

        uvicorn also sets a timer for each pause between two requests; ours is `check_deadlines`.
        """
        self._running = None
        self.idle_since = self.loop.time()
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._refusal is not None:
            self._send(self._refusal)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    # What is ours.

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_on(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(self._reason or _MALFORMED)

    def _parse_on(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 with a request that offers another protocol (RFC 9110, 7.8).

        Java's client offers HTTP/2 in each of its first requests. The parser takes the offer for
        accepted and has skipped the body, so that it gets the head again, without the offer.
        """
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % pair for pair in self.headers if pair[0] != b"upgrade"]
        # uvicorn's own way to a parser; a connection has one at a time.
        self.parser = httptools.HttpRequestParser(self)
        self._parse(b"\r\n".join([*lines, b"", rest]))

    def _stop_parsing(self, reason: Refusal) -> None:
        self._reason = reason
        raise _RefusedError

    def _refuse(self, refusal: Refusal) -> None:
        """Take no more, and say why, once all is answered that was asked before."""
        self._refusal = refusal
        self._owed_since = None
        if not self._is_whole and self._is_head_whole:
            # Its body will never be whole. It waits for its turn, or else is being answered.
            if self.pipeline and self.pipeline[0][0] is self.cycle:
                self.pipeline.popleft()
            elif self._running is self.cycle:
                self._abandon_running()
        if self._running is None:
            self._send(refusal)

    def _send(self, refusal: Refusal) -> None:
        """Say why, unless that request has an answer, and close.

        What the client still sends is thrown away for a moment.
        """
        log.debug("Refused: status=%s reason=%s", refusal.status, refusal.sentence)
        if self.transport.is_closing():
            return
        if self._is_whole or not self._is_head_whole or not self.cycle.response_started:
            self.transport.write(self._answer(refusal))
        self.flow.resume_reading()
        self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _answer(self, refusal: Refusal) -> bytes:
        body = json.dumps({"error": refusal.sentence}).encode()
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        lines = b"".join(b"%s: %s\r\n" % pair for pair in headers)
        return b"%s%s\r\n%s" % (STATUS_LINE[refusal.status], lines, body)

    def _abandon_running(self) -> None:
        """Let what is being answered see that nobody waits for it."""
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()
            self._running = None

    def _make_room(self) -> None:
        """Leave the connections that were idle longest, a few at a time: finding them costs."""
        share = len(self.connections) // 16 + 1
        ours: list[Connection] = [each for each in self.connections if isinstance(each, Connection)]
        idle = [each for each in ours if each.is_idle]
        for each in nsmallest(share, idle, key=lambda each: each.idle_since):
            self.connections.discard(each)  # now: it is lost only in the loop's next turn
            each.transport.abort()
