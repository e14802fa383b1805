"""`POST /{owner}/mcp`: MCP Streamable HTTP, one SDK server an owner (H2)."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, cast

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from okf_mcp_gateway.listing import Listing, Page
from okf_mcp_gateway.owners import Owner
from okf_mcp_gateway.places import waiting
from okf_mcp_gateway.routes.rendering import crash_response, error_response
from okf_mcp_gateway.state import Clock

CONTENT_FREE_METHODS: Final = frozenset(
    {
        "initialize",
        "ping",
        "resources/templates/list",
        "server/discover",
        "subscriptions/listen",
        "tools/list",
    }
)
"""What is answered while an owner's first pull is under way."""

_LOADING_RETRY_SECONDS: Final = 1


@dataclass(frozen=True, slots=True)
class ServedOwner:
    """An owner, and what answers for it."""

    owner: Owner
    sessions: StreamableHTTPSessionManager
    listing: Listing


def unknown_owner_routes() -> list[Route]:
    """Return what the paths of the endpoint are to a router, for owners that nobody knows."""
    return [Route("/{owner}/mcp", _Unknown()), Route("/{owner}/mcp/", _Unknown())]


class _Unknown:
    """Plain ASGI, so that a route takes it for every method."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await error_response(404, "unknown owner")(scope, receive, send)


def mcp_paths(owner: str) -> tuple[str, str]:
    """Return the paths of an owner's endpoint: with a trailing slash it is served, too."""
    return f"/{owner}/mcp", f"/{owner}/mcp/"


class McpEndpoint:
    """The endpoint of all owners; plain ASGI, as the SDK's is, and no router is asked for it."""

    def __init__(self, owners: Mapping[str, ServedOwner], clock: Clock, rest: ASGIApp) -> None:
        """`rest` has all other paths."""
        self._owners = {path: each for name, each in owners.items() for path in mcp_paths(name)}
        self._clock = clock
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make the owner fresh, then let the SDK answer; an error of ours is JSON."""
        served = self._owners.get(scope["path"]) if scope["type"] == "http" else None
        if served is None:
            await self._rest(scope, receive, send)
        elif scope["method"] != "POST":
            response = error_response(405, "this endpoint takes POST only", {"Allow": "POST"})
            await response(scope, receive, send)
        else:
            errors = _ErrorsAsJson(send)
            try:
                await self._answer(served, scope, receive, errors)
            except Exception as error:
                if not errors.is_begun:
                    await crash_response(Request(scope), error)(scope, receive, send)
                raise

    async def _answer(
        self, served: ServedOwner, scope: Scope, receive: Receive, send: "_ErrorsAsJson"
    ) -> None:
        if served.owner.state.snapshot is None:
            await self._answer_without_content(served, scope, receive, send)
            return
        if served.owner.ready_snapshot() is None:
            with waiting(scope):
                await served.owner.ensure_fresh()
        page = Page(served.listing, scope, send)
        await served.sessions.handle_request(scope, receive, page)

    async def _answer_without_content(
        self, served: ServedOwner, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer for an owner that had nothing to serve when the request came.

        While it loads, what needs no content is answered, and the rest waits for the pull.
        """
        owner = served.owner
        if owner.state.name == "loading":
            body = _Body(receive, served.sessions.max_request_body_size)
            needs_content = await body.needs_content()
            if needs_content:
                with waiting(scope):
                    await owner.ensure_fresh()
            if not needs_content or owner.state.snapshot is not None:
                await served.sessions.handle_request(scope, body.replay, send)
                return
        await self._unavailable(owner)(scope, receive, send)

    def _unavailable(self, owner: Owner) -> Response:
        seconds = _LOADING_RETRY_SECONDS
        if owner.next_attempt_at is not None:
            wait = owner.next_attempt_at.since(self._clock.now())
            seconds = max(math.ceil(wait), _LOADING_RETRY_SECONDS)
        sentence = (
            f"{owner.config.name} has nothing to serve: it is {owner.state.name}, see /status"
        )
        return error_response(503, sentence, {"Retry-After": str(seconds)})


class _Body:
    """A request's body, looked into and then handed on as if it had not been read."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._messages: list[Message] = []

    async def needs_content(self) -> bool:
        """Say whether this is a JSON-RPC request that is answered from the owner's content.

        Whatever is no request (a notification, too much, not JSON at all) needs none: what it
        gets is for the SDK to say.
        """
        content = await self._read()
        if not isinstance(content, dict) or not {"id", "method"} <= content.keys():
            return False
        method = cast("dict[str, object]", content)["method"]
        return not isinstance(method, str) or method not in CONTENT_FREE_METHODS

    async def _read(self) -> object:
        """Return the body, parsed; None if it isn't JSON, or longer than it may be."""
        size, more = 0, True
        while more and size <= self._limit:
            message = await self._receive()
            self._messages.append(message)
            size += len(message.get("body", b""))
            more = message["type"] == "http.request" and message.get("more_body", False)
        if size > self._limit:
            return None
        try:
            return json.loads(b"".join(message.get("body", b"") for message in self._messages))
        except (ValueError, RecursionError):
            return None

    async def replay(self) -> Message:
        """Return the next message, first those that were looked into."""
        return self._messages.pop(0) if self._messages else await self._receive()


class _ErrorsAsJson:
    """Sends an answer on; an error that the SDK writes as plain text becomes JSON (H8)."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_begun = False
        """Whether anything was sent; written as the answer comes by, like what follows."""
        # The start of a plain error, held back until its text is whole.
        self._start: Message | None = None
        self._text = b""

    async def __call__(self, message: Message) -> None:
        """Take the next message of the answer."""
        if message["type"] == "http.response.start" and _is_plain_error(message):
            self._start = message
        elif self._start is None:
            self.is_begun = True
            await self._send(message)
        else:
            self._text += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_json(self._start)

    async def _send_json(self, start: Message) -> None:
        sentence = self._text.decode(errors="replace") or HTTPStatus(start["status"]).phrase
        response = error_response(start["status"], sentence)
        kept = [pair for pair in start["headers"] if not pair[0].startswith(b"content-")]
        await self._send({**start, "headers": kept + response.raw_headers})
        await self._send({"type": "http.response.body", "body": response.body})


def _is_plain_error(start: Message) -> bool:
    if start["status"] < HTTPStatus.BAD_REQUEST:
        return False
    types = [value for name, value in start["headers"] if name == b"content-type"]
    return not any(b"json" in value for value in types)
