"""The first that a request meets: where its answer is kept, it gets that, and no framework runs.

It decides nothing else. Whoever has no valid token, asks for something else or has to wait for a
pull is handed on, and so is whatever has no kept answer: the application behind it answers as if
there were no front.
"""

from collections.abc import Iterable
from functools import partial
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from okf_mcp_gateway.answers import (
    MAX_QUESTION_BYTES,
    Answer,
    Question,
    Recorder,
    Reply,
    Shelf,
    may_be_kept,
    read_question,
)
from okf_mcp_gateway.auth import holds_token
from okf_mcp_gateway.owners import Owner
from okf_mcp_gateway.routes.mcp import mcp_paths
from okf_mcp_gateway.scrub import Secret
from okf_mcp_server.snapshot import Snapshot


class Front:
    """Stands before an application that answers for owners at `/{owner}/mcp`."""

    def __init__(self, app: ASGIApp, owners: Iterable[tuple[Owner, Shelf]], token: Secret) -> None:
        self._app = app
        self._token = token
        self._owners = {
            path: (owner, shelf) for owner, shelf in owners for path in mcp_paths(owner.config.name)
        }

    def find(self, scope: Scope, body: bytes) -> Reply | None:
        """Return the kept answer to a request that is whole; None if the application has to.

        Nothing is waited for, and of a request without a kept answer no trace is left.
        """
        found = self._owner_of(scope)
        asked = read_question(scope["headers"], body) if found else None
        if found is None or asked is None:
            return None
        owner, shelf = found
        question, request_id = asked
        snapshot = owner.ready_snapshot()
        answer = shelf.find(snapshot, question) if snapshot else None
        return answer.reply(request_id) if answer else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a kept answer, or hand the request on and keep what it gets."""
        found = self._owner_of(scope)
        if found is None:
            await self._app(scope, receive, send)
            return
        owner, shelf = found
        message = await _read(receive)
        asked = read_question(scope["headers"], message.get("body", b""))
        snapshot = owner.ready_snapshot() if asked else None
        if asked and snapshot:
            question, request_id = asked
            if answer := shelf.find(snapshot, question):
                await _send(answer.reply(request_id), send)
                return
            if may_be_kept(question):
                shelf.misses += 1
                keep = partial(_keep, owner, shelf, snapshot, question)
                record = Recorder(send, question, request_id, keep)
                await self._app(scope, _replay(message, receive), record)
                return
        shelf.passed_on += 1
        await self._app(scope, _replay(message, receive), send)

    def _owner_of(self, scope: Scope) -> tuple[Owner, Shelf] | None:
        """Return whom a request asks; None if it is not one for here, or has no valid token."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return None
        found = self._owners.get(scope["path"])
        return found if found and holds_token(scope, self._token) else None


async def _send(reply: Reply, send: Send) -> None:
    headers, (*pieces, last) = reply
    await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": last})


def _keep(
    owner: Owner, shelf: Shelf, snapshot: Snapshot, question: Question, answer: Answer
) -> None:
    """Keep an answer, if the snapshot that it was looked for in is the one that it came from.

    An owner never serves again what it has replaced: so it is, if that is served before and after.
    """
    if owner.state.snapshot is snapshot:
        shelf.keep(snapshot, question, answer)


async def _read(receive: Receive) -> Message:
    """Return the body of a request as one message, or as much of it as a question may have."""
    message = await receive()
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
