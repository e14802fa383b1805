import gc
import re
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import mcp
import pytest
from anyio import fail_after
from starlette.types import Message

from okf_mcp_gateway import answers
from okf_mcp_gateway.answers import (
    COUNTED_HEADERS,
    KEPT_METHODS,
    MAX_ANSWER_BYTES,
    MAX_BYTES,
    MAX_QUESTION_BYTES,
    AnswerCache,
    Question,
    Recorder,
    Shelf,
    may_be_kept,
    read_question,
)
from okf_mcp_server.snapshot import Snapshot, load_docs
from support.memory_tree import MemoryTree

pytestmark = pytest.mark.anyio

HEADERS: Final = {b"accept": b"*/*", b"content-type": b"application/json"}
ASKED: Final = b'{"jsonrpc":"2.0","id":%s,"method":"resources/read","params":{"uri":"%s"}}'


def snapshot_of(text: str) -> Snapshot:
    files = {"a.md": f"---\nexport: true\ntype: Note\n---\n{text}\n"}
    return load_docs(MemoryTree(files), owner="acme", commit="0" * 40)


class Content:
    """What an owner serves; changed by the test."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = snapshot_of("One.")
        self.is_due = False

    def ready(self) -> Snapshot | None:
        return None if self.is_due else self.snapshot

    def served(self) -> Snapshot | None:
        return self.snapshot


def shelf_of(content: Content, cache: AnswerCache | None = None) -> Shelf:
    return (cache or AnswerCache()).add_shelf(content.ready, content.served)


def question_of(uri: bytes, headers: Mapping[bytes, bytes] = HEADERS) -> Question:
    asked = read_question(headers, ASKED % (b"1", uri))
    assert asked
    return asked[0]


async def answer(
    shelf: Shelf, question: Question, result: bytes, *pieces: bytes, status: int = 200
) -> Sequence[Message]:
    """Ask, answer as the SDK does, and return what was sent."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    recorder = Recorder(shelf, question, b"1", send)
    await say(recorder, result, *pieces, status=status)
    recorder.close()
    return sent


async def say(recorder: Recorder, result: bytes, *pieces: bytes, status: int = 200) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":{"text":"%s"}}' % result
    # Written anew for each answer, as the SDK does.
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await recorder({"type": "http.response.start", "status": status, "headers": headers})
    for piece in pieces:
        body = body.removesuffix(piece)
    parts = [body, *pieces]
    for at, part in enumerate(parts, 1):
        await recorder({"type": "http.response.body", "body": part, "more_body": at < len(parts)})


# What is a question.


@pytest.mark.row("H11")
@pytest.mark.parametrize("method", KEPT_METHODS)
def test_the_id_is_no_part_of_a_question(method: str) -> None:
    body = b'{"id":%s,"jsonrpc":"2.0","method":"%s"}'
    ids = [b"0", b"7", b"-12", b"9" * 15]
    found = [read_question(HEADERS, body % (each, method.encode())) for each in ids]
    assert [each and each[1] for each in found] == ids
    questions = {each[0] for each in found if each}
    assert len(questions) == 1
    assert may_be_kept(questions.pop())


@pytest.mark.row("H11")
def test_a_number_and_a_text_are_two_questions_and_other_headers_make_another() -> None:
    body = b'{"id":%s,"method":"tools/list"}'
    number, text = (read_question(HEADERS, body % each) for each in (b"1", b'"1"'))
    assert number
    assert text
    assert number[1] == text[1]
    assert number[0] != text[0]
    other = read_question({**HEADERS, b"accept": b"application/json"}, body % b"1")
    assert other
    assert other[0] != number[0]
    assert read_question({**HEADERS, b"user-agent": b"x"}, body % b"1") == number


@pytest.mark.row("H11")
def test_a_body_over_the_bound_is_no_question() -> None:
    room = MAX_QUESTION_BYTES - len(ASKED % (b"1", b""))
    assert read_question(HEADERS, ASKED % (b"1", b"x" * room))
    assert read_question(HEADERS, ASKED % (b"1", b"x" * (room + 1))) is None


@pytest.mark.row("H11")
@pytest.mark.parametrize("method", ["tools/call", "completion/complete", "initialize", "ping"])
def test_no_answer_is_kept_for_other_methods(method: str) -> None:
    asked = read_question(HEADERS, b'{"id":1,"method":"%s"}' % method.encode())
    assert asked
    assert not may_be_kept(asked[0])


NOT_COUNTED: Final = {
    "content-length": "it bounds the body, which is in the question",
    "host": "any works (H2)",
    "mcp-param-": "only of tools/call, which is never kept",
    "x-mcp-header": "no header: a key in the schema of a tool",
}
"""Headers that the SDK names, and why an answer doesn't depend on them."""


@pytest.mark.row("H11")
def test_every_header_that_the_sdk_reads_is_in_a_question_or_has_a_reason_not_to_be() -> None:
    folder = Path(mcp.__file__).parent
    files = [each for name in ("server", "shared") for each in (folder / name).rglob("*.py")]
    files = [each for each in files if "auth" not in each.parts]  # the SDK's own, which isn't used
    text = "\n".join(each.read_text() for each in files)
    constants = dict(re.findall(r'^([A-Z_]+)(?:: Final)? *= *"([^"]+)"', text, re.MULTILINE))
    read = re.findall(r"\bheaders(?:\.get(?:list)?\(|\[) *(?!\.\.\.)([^,)\]\s]+)", text)
    named = {constants.get(each, each).strip("\"'") for each in read}
    named |= {value for name, value in constants.items() if "HEADER" in name}
    assert {"accept", "mcp-name", "mcp-method", "mcp-protocol-version"} <= named
    counted = {name.decode() for name in COUNTED_HEADERS}
    unknown = {each for each in named if each.lower() not in counted | set(NOT_COUNTED)}
    assert unknown == {'f"{MCP_PARAM_HEADER_PREFIX}{token}'}


# What is kept, and for how long.


@pytest.mark.row("H11")
async def test_what_was_asked_under_another_snapshot_is_not_kept_for_this_one() -> None:
    content = Content()
    shelf, question, other = shelf_of(content), question_of(b"a"), question_of(b"b")
    assert shelf.find(question) is None
    recorder = Recorder(shelf, question, b"1", _drop)
    content.snapshot = snapshot_of("Two.")
    assert shelf.find(other) is None  # somebody else's, so that the shelf knows the new one
    await say(recorder, b"One.")
    assert shelf.find(question) is None


async def _drop(_: Message) -> None:
    pass


@pytest.mark.row("H11")
async def test_an_answer_is_for_its_snapshot_alone_and_for_nobody_who_has_to_wait() -> None:
    content = Content()
    shelf, question = shelf_of(content), question_of(b"a")
    shelf.find(question)
    await answer(shelf, question, b"One.")
    kept = shelf.find(question)
    assert kept
    content.is_due = True
    assert shelf.find(question) is None
    content.is_due = False
    assert shelf.find(question) is kept
    content.snapshot = snapshot_of("One.")
    assert shelf.find(question) is None


@pytest.mark.row("H11")
@pytest.mark.parametrize("status", [202, 400, 404])
async def test_only_a_result_is_kept(status: int) -> None:
    shelf, question = shelf_of(Content()), question_of(b"a")
    shelf.find(question)
    sent = await answer(shelf, question, b"One.", status=status)
    assert [each["type"] for each in sent] == ["http.response.start", "http.response.body"]
    assert shelf.find(question) is None


@pytest.mark.row("H11")
async def test_an_answer_in_pieces_is_kept_whole_and_sent_whole() -> None:
    shelf, question = shelf_of(Content()), question_of(b"a")
    shelf.find(question)
    sent = await answer(shelf, question, b"One.", b'."}', b"}")
    body = b"".join(each.get("body", b"") for each in sent)
    kept = shelf.find(question)
    assert kept
    headers, pieces = kept.reply(b"12345")
    assert b"".join(pieces) == body.replace(b'"id":1', b'"id":12345')
    assert dict(headers)[b"content-length"] == b"%d" % len(b"".join(pieces))


@pytest.mark.row("H11")
async def test_who_asks_the_same_is_told_before_the_answer_is_sent() -> None:
    """The client that it is sent to may take nothing of it."""
    shelf, question = shelf_of(Content()), question_of(b"a")
    shelf.find(question)
    found: list[object] = []

    async def send(_: Message) -> None:
        with fail_after(5):
            found.append(await shelf.wait_and_find(question) or shelf.find(question))

    await say(Recorder(shelf, question, b"1", send), b"One.")
    assert found
    assert all(found)


@pytest.mark.row("H11")
async def test_an_answer_over_the_bound_is_not_kept() -> None:
    shelf, question = shelf_of(Content()), question_of(b"a")
    shelf.find(question)
    await answer(shelf, question, b"x" * MAX_ANSWER_BYTES)
    assert shelf.find(question) is None


@pytest.mark.row("H11")
@pytest.mark.parametrize(
    ("size", "header"),
    [(20_000, 2), (0, 2), (0, 20_000)],
    ids=["of long answers", "of short ones", "of questions with long headers"],
)
async def test_kept_answers_take_no_more_memory_than_they_may(
    size: int, header: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small or odd they are; and what was asked for just now stays."""
    bound = MAX_BYTES // 16  # the same rule, in a second instead of many
    monkeypatch.setattr(answers, "MAX_BYTES", bound)
    cache = AnswerCache()
    shelves = [shelf_of(Content(), cache) for _ in range(3)]
    favourite = question_of(b"favourite")
    shelves[0].find(favourite)
    await answer(shelves[0], favourite, b"x")
    gc.collect()
    tracemalloc.start()
    try:
        made = number = 0
        question = favourite
        while made <= 3 * bound:
            number += 1
            shelf = shelves[number % 3]
            # A header's bytes are new in each request.
            asked_by = {
                name: b"%0*d%d" % (header // len(COUNTED_HEADERS), number, at)
                for at, name in enumerate(COUNTED_HEADERS)
            }
            question = question_of(b"%d" % number, asked_by)
            shelf.find(question)
            await answer(shelf, question, b"%0*d" % (size, number))
            assert shelves[0].find(favourite)
            made += size + header + 1000
        assert shelves[number % 3].find(question)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert bound // 8 < held <= bound
