"""Answers of the SDK, kept as bytes for as long as their snapshot is served.

What is kept is the answer to one question: all bytes of a request's body but those of its id, and
every header that an answer depends on. An answer repeats the id and has no other trace of it, so
requests that differ in nothing else get answers that differ in nothing else. Nothing is parsed for
that, and no rule of the protocol is known here: what is odd about a request is in its question,
and what the SDK refuses is never kept.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeAlias

from starlette.types import Message, Send

from okf_mcp_server.snapshot import Snapshot

MAX_BYTES: Final = 64 * 1024 * 1024
"""How much memory all kept answers take at most, with their questions."""

MAX_ANSWER_BYTES: Final = MAX_BYTES // 8
"""A longer answer is not kept."""

MAX_QUESTION_BYTES: Final = 16 * 1024
"""A longer body is no question."""

KEPT_METHODS: Final = (
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "server/discover",
    "tools/list",
)
"""What is answered from the snapshot alone, whoever asks and how often."""

Header: TypeAlias = tuple[bytes, bytes]

Question: TypeAlias = tuple[bytes, bytes, tuple[Header, ...]]
"""The body up to the id and from behind it, and the headers that count, in their order.

The quotes of an id that is a text stay on both sides.
"""

_HEADERS: Final = frozenset(
    {
        b"accept",
        b"content-encoding",
        b"content-type",
        b"last-event-id",
        b"mcp-method",
        b"mcp-name",
        b"mcp-protocol-version",
        b"mcp-session-id",
        b"origin",
    }
)
"""What an answer depends on; no other header is looked at, by us or by the SDK."""

Reply: TypeAlias = tuple[Sequence[Header], Sequence[bytes]]
"""The headers of an answer with status 200, and its body in one piece or more."""

_UTF_8: Final = (b'{"', b"{ ", b"{\n", b"{\r", b"{\t")
"""How an object begins that no JSON parser takes for UTF-16 or UTF-32 (RFC 4627, 3)."""

_AROUND_ID: Final = 2
"""How many parts a body has that names an id once."""

_ID: Final = re.compile(
    rb'[ \t\r\n]*:[ \t\r\n]*(?:(0|-?[1-9][0-9]{0,14})|"([ !#-\[\]-~]{0,128})")[ \t\r\n]*[,}]'
)
"""An id that an answer repeats byte by byte: nothing to round, to escape or to decode."""

_METHOD: Final = re.compile(
    rb'"method"[ \t\r\n]*:[ \t\r\n]*"(?:%s)"'
    % b"|".join(re.escape(method.encode()) for method in KEPT_METHODS)
)

_ASKED_ONCE: Final = (b'"progressToken"', b'"traceparent"')
"""What differs in each request of a client that sends it."""

_LENGTH: Final = b"content-length"

_OVERHEAD_BYTES: Final = 1024
"""What it takes to keep one answer, beside its bytes and those of its question."""

_JOINED_BYTES: Final = 64 * 1024
"""A longer body is sent in two pieces: copying it would cost more."""


def read_question(headers: Iterable[Header], body: bytes) -> tuple[Question, bytes] | None:
    """Return what a request asks, and its id; None for one that the SDK has to look at.

    The body has one `"id"`, no escape that could spell another, and no other encoding: if there is
    an id in it at all, for a JSON parser, it is this one.
    """
    parts = body.split(b'"id"', 2)
    if len(parts) != _AROUND_ID or not body.startswith(_UTF_8) or b"\\" in body:
        return None
    found = _ID.match(parts[1])
    if found is None:
        return None
    start, end = found.span(found.lastindex or 0)
    counted = tuple([header for header in headers if header[0] in _HEADERS])
    return (parts[0] + parts[1][:start], parts[1][end:], counted), parts[1][start:end]


def may_be_kept(question: Question) -> bool:
    """Say whether the answer may be kept: by the method, which the body names once."""
    body = question[0] + question[1]
    is_named_once = body.count(b'"method"') == 1 and _METHOD.search(body) is not None
    return is_named_once and not any(each in body for each in _ASKED_ONCE)


class Answer:
    """A result of the SDK's, for any id; it never changes."""

    __slots__ = ("_after", "_before", "_headers", "_length", "_length_at")

    def __init__(self, headers: Sequence[Header], before: bytes, after: bytes) -> None:
        """`before` and `after` are the body up to the id and from behind it."""
        self._headers = headers
        self._before = before
        self._after = after
        self._length = len(before) + len(after)
        self._length_at = [name for name, _ in headers].index(_LENGTH)

    @property
    def size(self) -> int:
        """How many bytes its body has without the id."""
        return self._length

    def reply(self, request_id: bytes) -> Reply:
        """Return what the request of this id gets."""
        headers = list(self._headers)
        headers[self._length_at] = (_LENGTH, b"%d" % (self._length + len(request_id)))
        if self._length > _JOINED_BYTES:
            return headers, (self._before + request_id, self._after)
        return headers, (self._before + request_id + self._after,)


class Shelf:
    """The answers of one owner, all from one snapshot; on the event loop alone."""

    def __init__(self, cache: "AnswerCache") -> None:
        self.hits = 0
        """How many requests a kept answer was for."""
        self.misses = 0
        """How many could have had one, and were the SDK's."""
        self.passed_on = 0
        """How many were the SDK's, whatever is kept: odd ones, other methods, those that wait."""
        self._cache = cache
        self._snapshot: Snapshot | None = None
        # What was asked for since the cache was half full, and before that.
        self._young: dict[Question, Answer] = {}
        self._old: dict[Question, Answer] = {}

    def counts(self) -> Mapping[str, int]:
        """Return how the owner's requests were answered so far."""
        return {"hits": self.hits, "misses": self.misses, "passed_on": self.passed_on}

    def find(self, snapshot: Snapshot, question: Question) -> Answer | None:
        """Return the answer that `snapshot` has to a question, if it is kept."""
        if snapshot is not self._snapshot:
            self._snapshot, self._young, self._old = snapshot, {}, {}
        answer = self._young.get(question)
        if answer is None and (answer := self._old.pop(question, None)) is not None:
            self._put(question, answer)
        if answer is not None:
            self.hits += 1
        return answer

    def keep(self, snapshot: Snapshot, question: Question, answer: Answer) -> None:
        """Keep an answer, unless another snapshot has been asked since."""
        if snapshot is self._snapshot and answer.size <= MAX_ANSWER_BYTES:
            self._put(question, answer)

    def grow_old(self) -> None:
        """Forget what wasn't asked for since the last time."""
        self._young, self._old = {}, self._young

    def _put(self, question: Question, answer: Answer) -> None:
        before, after, headers = question
        size = len(before) + len(after) + sum(len(name) + len(value) for name, value in headers)
        self._cache.make_room(size + answer.size + _OVERHEAD_BYTES)
        self._young[question] = answer


class AnswerCache:
    """The shelves of all owners, which share `MAX_BYTES`; on the event loop alone."""

    def __init__(self) -> None:
        self._shelves: list[Shelf] = []
        self._young_bytes = 0

    def add_shelf(self) -> Shelf:
        """Return the shelf of one more owner."""
        shelf = Shelf(self)
        self._shelves.append(shelf)
        return shelf

    def make_room(self, size: int) -> None:
        """Let what nobody asks for go, if `size` more bytes are one half of all or more."""
        self._young_bytes += size
        if self._young_bytes > MAX_BYTES // 2:
            self._young_bytes = size
            for shelf in self._shelves:
                shelf.grow_old()


class Recorder:
    """Sends an answer of the SDK's on, and keeps it if it is a result."""

    def __init__(
        self, send: Send, question: Question, request_id: bytes, keep: Callable[[Answer], None]
    ) -> None:
        quote = b'"' if question[0].endswith(b'"') else b""
        self._send = send
        self._before = b'{"jsonrpc":"2.0","id":' + quote
        self._begin = self._before + request_id + quote + b',"result":{'
        self._after_at = len(self._before) + len(request_id)
        self._keep = keep
        # Written as the answer comes by: the headers of one that may be kept, and its body.
        self._headers: Sequence[Header] | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        """Take the next message of the answer."""
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            if message["status"] == HTTPStatus.OK and any(name == _LENGTH for name, _ in headers):
                self._headers = headers
        elif self._headers is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False) and self._body.startswith(self._begin):
                self._keep(Answer(self._headers, self._before, self._body[self._after_at :]))
        await self._send(message)
