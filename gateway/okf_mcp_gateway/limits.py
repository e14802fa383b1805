"""How many requests are answered at once, and what a request's body may be (H10).

It stands behind the token: a stranger is refused before anything is counted or read.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from okf_mcp_gateway.auth import is_health
from okf_mcp_gateway.places import Places
from okf_mcp_gateway.routes.rendering import error_response

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""The SDK's own bound for a message; here it holds on every route."""

SMALL_BODY_BYTES: Final = 64 * 1024
MAX_HELD_BYTES: Final = 128 * 1024 * 1024
"""How much of bodies larger than `SMALL_BODY_BYTES` is held at a time: they are read whole."""

_ON_BODIES: Final = frozenset({b"content-encoding", b"content-length", b"content-type"})
_RETRY: Final = {"Retry-After": "1"}


class RequestLimits:
    """Hands a request on once its body is whole, and there is a place among those that run.

    So a slow body takes no place, nor does an event stream once it has begun: those have bounds of
    their own. Whoever waits for a pull leaves its place meanwhile, see `places`. A plain answer
    takes one until it is handed over.
    """

    def __init__(self, app: ASGIApp, max_requests: int) -> None:
        self._app = app
        self._places = Places(max_requests)
        # Written by the requests, on the event loop, as their bodies come in and are done with.
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 413, 415 or 503, or hand the request on."""
        if scope["type"] != "http" or is_health(scope):
            await self._app(scope, receive, send)
        elif refusal := _refuse_head(scope):
            await refusal(scope, receive, send)
        else:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            if message.get("more_body", False):
                await self._collect(message, scope, receive, send)
            else:
                await self.answer(message, scope, receive, send)

    async def _collect(self, message: Message, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the rest of a body that comes in parts, then go on."""
        body, held = bytearray(message["body"]), 0

        def free_body() -> None:
            nonlocal held
            self._held_bytes -= held
            held = 0

        try:
            while message.get("more_body", False):
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                body += message.get("body", b"")
                if len(body) > MAX_BODY_BYTES:
                    await _too_large()(scope, receive, send)
                    return
                if len(body) > SMALL_BODY_BYTES:
                    self._held_bytes += len(body) - held
                    held = len(body)
                    if self._held_bytes > MAX_HELD_BYTES:
                        await _busy("too many large requests")(scope, receive, send)
                        return
            whole = {"type": "http.request", "body": bytes(body), "more_body": False}
            body.clear()
            await self.answer(whole, scope, receive, send, free_body)
        finally:
            free_body()

    async def answer(
        self,
        message: Message,
        scope: Scope,
        receive: Receive,
        send: Send,
        on_stream: Callable[[], None] = lambda: None,
    ) -> None:
        """Hand a request on whose body is whole, and nothing is wrong with its head.

        `on_stream` is called if its answer is an event stream.
        """
        place = self._places.take()
        if place is None:
            await _busy("too many requests at once")(scope, receive, send)
            return
        first: list[Message] = [message]

        async def replay() -> Message:
            return first.pop() if first else await receive()

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_stream(message):
                place.leave()
                on_stream()
            await send(message)

        try:
            await self._app(place.give_to(scope), replay, watch)
        finally:
            place.leave()


def _refuse_head(scope: Scope) -> Response | None:
    """Return what is wrong with a body by its headers alone; None if nothing is."""
    types = 0
    for name, value in [header for header in scope["headers"] if header[0] in _ON_BODIES]:
        if name == b"content-length" and int(value) > MAX_BODY_BYTES:
            return _too_large()
        if name == b"content-encoding" and value.strip().lower() != b"identity":
            return error_response(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "the body must not be compressed: send it without Content-Encoding",
                {"Accept-Encoding": "identity"},
            )
        types += name == b"content-type"
    if types > 1:
        return error_response(HTTPStatus.BAD_REQUEST, "the header Content-Type stands twice")
    return None


def _too_large() -> Response:
    return error_response(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"a request's body takes {MAX_BODY_BYTES // 1024 // 1024} MiB at most",
    )


def _busy(why: str) -> Response:
    return error_response(HTTPStatus.SERVICE_UNAVAILABLE, f"{why}: try again", _RETRY)


def _is_stream(start: Message) -> bool:
    types = [value for name, value in start["headers"] if name == b"content-type"]
    return any(value.startswith(b"text/event-stream") for value in types)
