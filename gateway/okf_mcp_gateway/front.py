"""The first that a request meets: where its answer is kept, it gets that, and no framework runs.

It decides nothing else. Whoever has no valid token, asks for something else or has to wait for a
pull is handed on, and so is whatever has no kept answer: the application behind it answers as if
there were no front.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from okf_mcp_gateway.answers import (
    MAX_QUESTION_BYTES,
    Header,
    Recorder,
    Reply,
    Shelf,
    may_be_kept,
    read_question,
)
from okf_mcp_gateway.auth import bears_token
from okf_mcp_gateway.limits import RequestLimits
from okf_mcp_gateway.routes.mcp import mcp_paths
from okf_mcp_gateway.scrub import Secret


class Front:
    """Stands before an application that answers for owners at `/{owner}/mcp`."""

    def __init__(
        self, app: ASGIApp, limits: RequestLimits, shelves: Mapping[str, Shelf], token: Secret
    ) -> None:
        """`limits` is the part of `app` behind those that ask for a token and an origin.

        `shelves` has one for each owner.
        """
        self._app = app
        self._limits = limits
        self._token = token
        self._shelves = {path: each for name, each in shelves.items() for path in mcp_paths(name)}
        self._targets = {path.encode(): each for path, each in self._shelves.items()}

    def shelf_at(self, target: bytes) -> Shelf | None:
        """Return where answers to requests to a raw target are kept; None if none are."""
        return self._targets.get(target)

    def find(self, shelf: Shelf, headers: Sequence[Header], body: bytes) -> Reply | None:
        """Return the kept answer to a POST request that is whole; None if it isn't kept.

        Nor is one kept for whoever has no valid token. Nothing is waited for, and a request without
        a kept answer leaves no trace.
        """
        named = dict(headers)
        is_plain = len(named) == len(headers) and self._bears_token(named)
        asked = read_question(named, body) if is_plain else None
        answer = shelf.find(asked[0]) if asked else None
        return answer.reply(asked[1]) if answer and asked else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a kept answer, or hand the request on and keep what it gets."""
        shelf = self._shelves.get(scope["path"]) if scope["type"] == "http" else None
        if shelf is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        named: dict[bytes, bytes] = dict(scope["headers"])
        is_plain = len(named) == len(scope["headers"]) and _is_body_awaited(named)
        if is_plain and self._bears_token(named):
            await self._answer(shelf, named, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _answer(
        self,
        shelf: Shelf,
        named: Mapping[bytes, bytes],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request with a valid token, none of whose headers stands twice."""
        message = await receive()
        if message.get("more_body", False):
            message = await _read_on(message, receive)
        asked = read_question(named, message.get("body", b""))
        answer = shelf.find(asked[0]) if asked else None
        if asked and answer is None:
            answer = await shelf.wait_and_find(asked[0])
        if asked and answer:
            await _send(answer.reply(asked[1]), send)
        elif asked and may_be_kept(asked[0]):
            recorder = Recorder(shelf, *asked, send)
            try:
                if b"origin" in named:
                    await self._app(scope, _replay(message, receive), recorder)
                else:
                    await self._limits.answer(message, scope, receive, recorder)
            finally:
                recorder.close()
        else:
            shelf.pass_on()
            await self._app(scope, _replay(message, receive), send)

    def _bears_token(self, headers: Mapping[bytes, bytes]) -> bool:
        return bears_token(headers.get(b"authorization", b""), self._token)


def _is_body_awaited(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a body is worth waiting for: its head alone may be what is refused."""
    is_odd = b"expect" in headers or b"content-encoding" in headers
    return not is_odd and int(headers.get(b"content-length", 0)) <= MAX_QUESTION_BYTES


async def _send(reply: Reply, send: Send) -> None:
    headers, (*pieces, last) = reply
    await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": last})


async def _read_on(message: Message, receive: Receive) -> Message:
    """Return a body that comes in parts as one message, or as much as a question may have."""
    while message.get("more_body", False) and len(message["body"]) <= MAX_QUESTION_BYTES:
        following = await receive()
        if following["type"] == "http.disconnect":
            return following
        message = {**following, "body": message["body"] + following.get("body", b"")}
    return message


def _replay(message: Message, receive: Receive) -> Receive:
    """Return what gives `message` first, as if it had not been taken."""
    first = [message]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay
