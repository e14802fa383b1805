"""Answers of the SDK, kept as bytes for as long as their snapshot is served.

What is kept is the answer to one question: all bytes of a request's body but those of its id, and
every header that an answer depends on. An answer repeats the id and has no other trace of it, so
requests that differ in nothing else get answers that differ in nothing else. Nothing is parsed for
that, and no rule of the protocol is known here: what is odd about a request is in its question,
and what the SDK refuses is never kept.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeAlias
from weakref import ref

from anyio import Event
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

Question: TypeAlias = tuple[bytes, bytes, tuple[bytes | None, ...]]
"""The body up to the id and from behind it, and the values of the headers that count.

The quotes of an id that is a text stay on both sides; a header that isn't there is None.
"""

COUNTED_HEADERS: Final[tuple[bytes, ...]] = (
    b"accept",
    b"content-encoding",
    b"content-type",
    b"last-event-id",
    b"mcp-method",
    b"mcp-name",
    b"mcp-protocol-version",
    b"mcp-session-id",
    b"origin",
)
"""What an answer depends on; no other header is looked at, by us or by the SDK."""

Reply: TypeAlias = tuple[Sequence[Header], Sequence[bytes]]
"""The headers of an answer with status 200, and its body in one piece or more."""

_UTF_8: Final = (b'{"', b"{ ", b"{\n", b"{\r", b"{\t")
"""How an object begins that no JSON parser takes for UTF-16 or UTF-32 (RFC 4627, 3)."""

_ESCAPE: Final = ord("\\")

_AROUND_ID: Final = 2
"""How many parts a body has that names an id once."""

_ID: Final = re.compile(
    rb'[ \t\r\n]*:[ \t\r\n]*(?:(0|-?[1-9][0-9]{0,14})|"([ !#-\[\]-~]{0,128})")[ \t\r\n]*[,}]'
)
"""An id that an answer repeats byte by byte: nothing to round, to escape or to decode."""

_METHOD_KEY: Final = b'"method"'

_METHOD: Final = re.compile(
    _METHOD_KEY
    + rb'[ \t\r\n]*:[ \t\r\n]*"(?:%s)"'
    % b"|".join(re.escape(method.encode()) for method in KEPT_METHODS)
)

_ASKED_ONCE: Final = b'"progressToken"'
"""What differs in each request of a client that sends it."""

_LENGTH: Final = b"content-length"
_OK: Final = HTTPStatus.OK.value

_OVERHEAD_BYTES: Final = 1024
"""What it takes to keep one answer, beside its bytes and those of its question."""

_JOINED_BYTES: Final = 64 * 1024
"""A longer body is sent in two pieces: copying it would cost more."""


def read_question(headers: Mapping[bytes, bytes], body: bytes) -> tuple[Question, bytes] | None:
    """Return what a request asks, and its id; None for one that the SDK has to look at.

    `headers` are all of its headers, none of which stands twice.

    The body has one `"id"`, no escape that could spell another, and no other encoding: if there is
    an id in it at all, for a JSON parser, it is this one.
    """
    if len(body) > MAX_QUESTION_BYTES:
        return None  # nor is it known to be whole
    parts = body.split(b'"id"', 2)
    if len(parts) != _AROUND_ID or not body.startswith(_UTF_8) or _ESCAPE in body:
        return None
    found = _ID.match(parts[1])
    if found is None:
        return None
    start, end = found.span(found.lastindex or 0)
    counted = tuple(map(headers.get, COUNTED_HEADERS))
    return (parts[0] + parts[1][:start], parts[1][end:], counted), parts[1][start:end]


def may_be_kept(question: Question) -> bool:
    """Say whether the answer may be kept: by the method, which the body names once."""
    body = question[0] + question[1]
    at = body.find(_METHOD_KEY)
    is_named_once = at >= 0 and body.find(_METHOD_KEY, at + 1) < 0
    return is_named_once and _METHOD.match(body, at) is not None and _ASKED_ONCE not in body


class Answer:
    """A result of the SDK's, for any id; it never changes."""

    __slots__ = ("_after", "_before", "_headers", "_length", "_length_at")

    def __init__(self, headers: Sequence[Header], body: bytes, start: int, end: int) -> None:
        """The id of the request that it was the answer to stands in `body` at `start` to `end`."""
        self._headers = headers
        self._before = body[:start]
        # What is joined anyway needs no copy of its own.
        self._after = memoryview(body)[end:] if len(body) <= _JOINED_BYTES else body[end:]
        self._length = len(body) - (end - start)
        self._length_at = [name for name, _ in headers].index(_LENGTH)

    @property
    def size(self) -> int:
        """How many bytes its body has without the id."""
        return self._length

    def reply(self, request_id: bytes) -> Reply:
        """Return what the request of this id gets."""
        headers = list(self._headers)
        headers[self._length_at] = (_LENGTH, b"%d" % (self._length + len(request_id)))
        if isinstance(self._after, bytes):
            return headers, (self._before + request_id, self._after)
        return headers, (b"".join((self._before, request_id, self._after)),)


def _none() -> None: ...


Served: TypeAlias = Callable[[], Snapshot | None]


class Shelf:
    """The answers of one owner, all from one snapshot; on the event loop alone."""

    def __init__(self, cache: "AnswerCache", ready: Served, served: Served) -> None:
        self._cache = cache
        self._ready = ready
        self._served = served
        self._hits = self._misses = self._passed_on = 0
        # Whose answers these are. It is not held: nobody may ask for long after a publish.
        self._snapshot: Callable[[], Snapshot | None] = _none
        # What was asked for since the cache was half full, and before that.
        self._young: dict[Question, Answer] = {}
        self._old: dict[Question, Answer] = {}
        # What the SDK is asked now, and what is set once it has answered, if somebody waits.
        self._asked: dict[Question, Event | None] = {}

    def counts(self) -> Mapping[str, int]:
        """Return how the owner's requests were answered so far."""
        return {"hits": self._hits, "misses": self._misses, "passed_on": self._passed_on}

    def find(self, question: Question) -> Answer | None:
        """Return the answer to a question that comes now, if it is kept and nothing is due."""
        snapshot = self._ready()
        if snapshot is None:
            return None
        if snapshot is not self._snapshot():
            self._snapshot, self._young, self._old = ref(snapshot), {}, {}
        answer = self._young.get(question)
        if answer is None and (answer := self._old.pop(question, None)) is not None:
            self._put(question, answer)
        if answer is not None:
            self._hits += 1
        return answer

    async def wait_and_find(self, question: Question) -> Answer | None:
        """Return what `find` will, once the SDK has answered somebody who asks the same now.

        None at once if nobody does, or if a pull has to be waited for.
        """
        if question not in self._asked or self._ready() is None:
            return None
        answered = self._asked[question] = self._asked[question] or Event()
        await answered.wait()
        return self.find(question)

    def pass_on(self) -> None:
        """Count a request that has no kept answer, whatever is kept."""
        self._passed_on += 1

    def ask(self, question: Question) -> Snapshot | None:
        """Note that the SDK is asked now, and return what is served while it begins."""
        self._misses += 1
        self._asked.setdefault(question, None)
        return self._served()

    def keep(self, question: Question, snapshot: Snapshot | None, answer: Answer | None) -> None:
        """Keep the SDK's answer, if there is one, and tell those who wait for it.

        `snapshot` is what `ask` returned. If it is served now, it was all the time, since none is
        served again that was replaced: so it is the one that the answer is made of.
        """
        is_current = snapshot is self._snapshot() and snapshot is self._served()
        if answer and snapshot and is_current and answer.size <= MAX_ANSWER_BYTES:
            self._put(question, answer)
        if answered := self._asked.pop(question, None):
            answered.set()

    def grow_old(self) -> None:
        """Forget what wasn't asked for since the last time."""
        self._young, self._old = {}, self._young

    def _put(self, question: Question, answer: Answer) -> None:
        before, after, headers = question
        size = len(before) + len(after)
        size += sum([len(value) for value in headers if value])
        self._cache.make_room(size + answer.size + _OVERHEAD_BYTES)
        self._young[question] = answer


class AnswerCache:
    """The shelves of all owners, which share `MAX_BYTES`; on the event loop alone."""

    def __init__(self) -> None:
        self._shelves: list[Shelf] = []
        self._young_bytes = 0

    def add_shelf(self, ready: Served, served: Served) -> Shelf:
        """Return the shelf of one more owner.

        `ready` returns what a request is answered from that comes now; None if it has to wait.
        `served` returns what is served, whatever is due; None if nothing is.
        """
        shelf = Shelf(self, ready, served)
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
    """Sends an answer of the SDK's on, and keeps it if it is a result; to be closed after that."""

    def __init__(self, shelf: Shelf, question: Question, request_id: bytes, send: Send) -> None:
        quote = b'"' if question[0].endswith(b'"') else b""
        self._shelf = shelf
        self._question = question
        before = b'{"jsonrpc":"2.0","id":' + quote
        self._begin = before + request_id + quote + b',"result":{'
        self._id_at = len(before), len(before) + len(request_id)
        self._send = send
        # Written as the answer comes by: the start of one that may be kept, and its body.
        self._start: Message | None = None
        self._body = b""
        self._is_closed = False
        self._snapshot = shelf.ask(question)

    async def __call__(self, message: Message) -> None:
        """Take the next message of the answer.

        Nothing is sent before it is whole: others wait for it, and this client may take nothing.
        """
        if message["type"] == "http.response.start":
            has_length = _LENGTH in [name for name, _ in message["headers"]]
            if message["status"] == _OK and has_length:
                self._start = message
                return
            self.close()
        elif self._start is not None:
            self._body += message.get("body", b"")
            if message.get("more_body", False):
                return
            self.close(self._answer(self._start["headers"]))
            await self._send(self._start)
            message = {"type": "http.response.body", "body": self._body}
        await self._send(message)

    def close(self, answer: Answer | None = None) -> None:
        """Keep an answer, or say that there is none to be kept."""
        if not self._is_closed:
            self._is_closed = True
            self._shelf.keep(self._question, self._snapshot, answer)

    def _answer(self, headers: Sequence[Header]) -> Answer | None:
        """Return what came as an answer for any id; None if it is an error."""
        if not self._body.startswith(self._begin):
            return None
        return Answer(headers, self._body, *self._id_at)
