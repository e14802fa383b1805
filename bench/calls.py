"""Calls of an ASGI application as a server makes them, and what they cost this process."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final

from starlette.types import ASGIApp, Message, Scope

from bench.answers import WrongAnswerError, check_answer
from bench.documents import Sample
from bench.questions import FIRST_ID, Question

Headers = Sequence[tuple[bytes, bytes]]

_OK: Final = 200


class _Call:
    """One request: what uvicorn hands over, and what came back."""

    __slots__ = ("_request", "length", "pieces", "scope", "status")

    def __init__(self, path: str, headers: Headers, body: bytes) -> None:
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 50_000),
            "scheme": "http",
            "method": "POST",
            "root_path": "",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": list(headers),
            "state": {},
        }
        self._request: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self.status = 0
        self.length = 0
        self.pieces: list[bytes] = []

    async def receive(self) -> Message:
        request, self._request = self._request, None
        if request is None:
            await asyncio.Event().wait()  # nobody hangs up
            raise AssertionError
        return request

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            piece = message.get("body", b"")
            self.pieces.append(piece)
            self.length += len(piece)


async def cost(
    app: ASGIApp,
    path: str,
    questions: Sequence[Question],
    documents: Mapping[str, Sequence[Sample]],
) -> float:
    """Return the CPU time (µs) of one call, of all these; each has an id that no other has.

    Raises `WrongAnswerError` unless all are answered alike, with 200, and the last one rightly; the
    bare application, whose path names a size, is held to that size.
    """
    asked = [(_headers(each), *each.envelope()) for each in questions]
    call, number, failed = None, FIRST_ID, 0
    lengths: set[int] = set()
    began = time.process_time()
    for number, (headers, before, after) in enumerate(asked, start=FIRST_ID):
        call = _Call(path, headers, b"%s%d%s" % (before, number, after))
        await app(call.scope, call.receive, call.send)
        failed += call.status != _OK
        lengths.add(call.length)
    spent = time.process_time() - began
    if call is None or failed or len(lengths) != 1:
        raise WrongAnswerError(f"{path}: {failed} calls failed, lengths {sorted(lengths)}")
    if path != f"/{call.length}":
        body = b"".join(call.pieces)
        check_answer(body, questions[-1], documents[questions[-1].owner], number)
    return spent / len(asked) * 1e6


async def answer_bytes(app: ASGIApp, path: str, question: Question) -> int:
    """Return how long the answer to a question is."""
    before, after = question.envelope()
    call = _Call(path, _headers(question), b"%s%d%s" % (before, FIRST_ID, after))
    await app(call.scope, call.receive, call.send)
    return call.length


def _headers(question: Question) -> Headers:
    """Return the headers as a server hands them on."""
    own = [
        ("host", "127.0.0.1:80"),
        *question.headers(),
        ("content-length", str(question.length())),
    ]
    return [(name.encode(), value.encode()) for name, value in own]
