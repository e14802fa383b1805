"""The first that a request meets: where its answer is kept, it gets that, and no framework runs.

It decides nothing else. Whoever has no valid token, asks for something else or has to wait for a
pull is handed on, and so is whatever has no kept answer: the application behind it answers as if
there were no front.
"""

from collections.abc import Mapping
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from okf_mcp_gateway.answers import (
    MAX_QUESTION_BYTES,
    Question,
    Recorder,
    Reply,
    Shelf,
    may_be_kept,
    read_question,
)
from okf_mcp_gateway.auth import holds_token
from okf_mcp_gateway.routes.mcp import mcp_paths
from okf_mcp_gateway.scrub import Secret


class Front:
    """Stands before an application that answers for owners at `/{owner}/mcp`."""

    def __init__(
        self, app: ASGIApp, admitted: ASGIApp, shelves: Mapping[str, Shelf], token: Secret
    ) -> None:
        """`admitted` is the part of `app` behind those that ask for a token and an origin.

        `shelves` has one for each owner.
        """
        self._app = app
        self._admitted = admitted
        self._token = token
        self._shelves = {path: each for name, each in shelves.items() for path in mcp_paths(name)}

    def find(self, scope: Scope, body: bytes) -> Reply | None:
        """Return the kept answer to a request that is whole; None if it isn't kept.

        Nothing is waited for, and a request without a kept answer leaves no trace.
        """
        shelf = self._shelf_for(scope)
        asked = read_question(scope["headers"], body) if shelf else None
        answer = shelf.find(asked[0]) if shelf and asked else None
        return answer.reply(asked[1]) if answer and asked else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a kept answer, or hand the request on and keep what it gets."""
        shelf = self._shelf_for(scope)
        if shelf is None or not _is_body_awaited(scope):
            if shelf:
                shelf.pass_on()
            await self._app(scope, receive, send)
            return
        message = await receive()
        if message.get("more_body", False):
            message = await _read_on(message, receive)
        asked = read_question(scope["headers"], message.get("body", b""))
        answer = shelf.find(asked[0]) if asked else None
        if asked and answer is None:
            answer = await shelf.wait_and_find(asked[0])
        if asked and answer:
            await _send(answer.reply(asked[1]), send)
        elif asked and may_be_kept(asked[0]):
            recorder = Recorder(shelf, *asked, send)
            try:
                await self._app_for(asked[0])(scope, _replay(message, receive), recorder)
            finally:
                recorder.close()
        else:
            shelf.pass_on()
            await self._app(scope, _replay(message, receive), send)

    def _app_for(self, question: Question) -> ASGIApp:
        """Return what answers a question that was asked with a valid token."""
        is_browsers = b"origin" in [name for name, _ in question[2]]
        return self._app if is_browsers else self._admitted

    def _shelf_for(self, scope: Scope) -> Shelf | None:
        """Return where an answer is kept; None if a request asks for something else.

        Nor is one kept for whoever has no valid token.
        """
        if scope["type"] != "http" or scope["method"] != "POST":
            return None
        shelf = self._shelves.get(scope["path"])
        return shelf if shelf and holds_token(scope, self._token) else None


def _is_body_awaited(scope: Scope) -> bool:
    """Whether a body is worth waiting for: its head alone may be what is refused."""
    return not any(
        (name == b"content-length" and int(value) > MAX_QUESTION_BYTES)
        or name in {b"content-encoding", b"expect"}
        for name, value in scope["headers"]
    )


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
