"""Whether an answer is the right one: a wrong one is often the fastest."""

import json
from collections.abc import Sequence
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any, Final

from bench.documents import Sample
from bench.questions import FIRST_ID, Question

_DEADLINE_SECONDS: Final = 20.0


class WrongAnswerError(Exception):
    """A server's answer is not what was asked for: what it costs means nothing."""


def ask_once(port: int, path: str, question: Question, documents: Sequence[Sample]) -> int:
    """Ask a server on this machine one question; return how long the body of the answer is.

    Raises `WrongAnswerError` if it isn't the right one, `OSError` if there is none.
    """
    before, after = question.envelope()
    connection = HTTPConnection("127.0.0.1", port, timeout=_DEADLINE_SECONDS)
    try:
        body = before + b"%d" % FIRST_ID + after
        connection.request("POST", path, body, dict(question.headers()))
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    if response.status != HTTPStatus.OK:
        raise WrongAnswerError(f"{path} is answered by {response.status}: {answer[:300]!r}")
    check_answer(answer, question, documents, FIRST_ID)
    return len(answer)


def check_answer(
    body: bytes, question: Question, documents: Sequence[Sample], request_id: int
) -> None:
    """Raise `WrongAnswerError` unless this answers the question, of the owner's documents."""
    if body.startswith(b"event: "):  # a stream of a single event
        body = body.partition(b"\ndata: ")[2]
    try:
        answer: dict[str, Any] = json.loads(body)
    except ValueError:
        raise WrongAnswerError(f"no JSON to {question}: {body[:300]!r}") from None
    result: dict[str, Any] = answer.get("result", {}) if answer.get("id") == request_id else {}
    if question.uri is None:
        found = [each["uri"] for each in result.get("resources", ())]
        expected = [each.uri(question.owner) for each in documents]
        is_right = sorted(found) == sorted(expected)
    else:
        texts = [each["text"] for each in result.get("contents", ())]
        is_right = texts == [
            each.body for each in documents if each.uri(question.owner) == question.uri
        ]
    if not is_right:
        raise WrongAnswerError(f"not the answer to {question}: {body[:300]!r}")
