"""A snapshot as bytes, and back: for a file, or for another process, and without a parse.

Nothing in them can execute. Every text stands once, in a JSON array; columns of numbers, one a
field, point there; the contents follow as one run of UTF-8. So C does most of the work of `decode`,
and texts that are equal are one object.
"""

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, islice, pairwise
from operator import attrgetter
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from okf_mcp_server.documents import Diagnostic, Document, Fault, Page
from okf_mcp_server.snapshot import Listing, Snapshot, Verdict
from okf_mcp_server.yaml_text import frozen, shared

_NUMBER: Final = "I"
_TABLE_TYPES: Final = frozenset({str, type(None), tuple, MappingProxyType})


class SnapshotBytesError(ValueError):
    """The bytes are no snapshot."""


class _Frame(NamedTuple):
    """How the rest is read, and what there is little of."""

    table_bytes: int
    others_than_texts: list[int]
    """Where the table has None, or a value that holds others."""
    numbers: int
    pages: int
    values: int
    """How many values the frontmatters of all pages have."""
    documents: int
    shadowed: int
    files: int
    files_size: int | None
    """The size of the listing; None if there is no listing."""
    commit: str | None
    roots: list[str]
    starts: list[int]
    keys: list[list[str]]
    """What pages have as `keys`, each once."""
    key_lines: list[list[int]]
    faults: list[list[Any]]
    """The key of a content, then the fields of its `Fault`."""
    not_ours: list[str]
    """The keys of contents whose verdict is None."""
    diagnostics: list[list[Any]]


def encode(snapshot: Snapshot) -> bytes:
    """Return the bytes of which `decode` makes an equal snapshot."""
    verdicts = snapshot.verdicts.items()
    pages = {key: verdict for key, verdict in verdicts if isinstance(verdict, Page)}
    values = [value for page in pages.values() for value in page.values]
    documents = (*snapshot.documents, *snapshot.shadowed)
    number_of = {id(page): number for number, page in enumerate(pages.values())}
    files: Mapping[str, str] = snapshot.listing.files if snapshot.listing else {}
    texts, keys, key_lines = _Table(), _Table(), _Table()
    numbers = array(_NUMBER)
    for column in (
        # Each in its turn in `decode`.
        texts.numbers(pages),
        _field("size", pages.values()),
        texts.numbers(_field("id", pages.values())),
        texts.numbers(_field("type", pages.values())),
        texts.numbers(_field("type_slug", pages.values())),
        texts.numbers(_field("title", pages.values())),
        texts.numbers(_field("description", pages.values())),
        texts.numbers(_field("content_hash", pages.values())),
        keys.numbers(_field("keys", pages.values())),
        texts.numbers(values),
        key_lines.numbers(_field("key_lines", pages.values())),
        _field("content_line", pages.values()),
        (number_of[id(document.page)] for document in documents),
        texts.numbers(_field("uri", documents)),
        texts.numbers(_field("id", documents)),
        texts.numbers(_field("title", documents)),
        texts.numbers(_field("path_text", documents)),
        texts.numbers(files),
        texts.numbers(files.values()),
    ):
        numbers.extend(column)
    table = _json(texts.values)
    frame = _Frame(
        table_bytes=len(table),
        others_than_texts=[n for n, value in enumerate(texts.values) if not isinstance(value, str)],
        numbers=len(numbers),
        pages=len(pages),
        values=len(values),
        documents=len(snapshot.documents),
        shadowed=len(snapshot.shadowed),
        files=len(files),
        files_size=snapshot.listing.size if snapshot.listing else None,
        commit=snapshot.commit,
        roots=[str(root) for root in snapshot.roots],
        starts=list(snapshot.starts),
        keys=keys.values,
        key_lines=key_lines.values,
        faults=[[key, *verdict] for key, verdict in verdicts if isinstance(verdict, Fault)],
        not_ours=[key for key, verdict in verdicts if verdict is None],
        diagnostics=[
            [each.rule, each.severity, each.path, each.line, each.message, each.paths]
            for each in snapshot.diagnostics
        ],
    )
    contents = [page.content.encode() for page in pages.values()]
    return b"".join([_json(frame), b"\n", table, numbers.tobytes(), *contents])


def decode(raw: bytes, start: int = 0) -> Snapshot:
    """Return the snapshot that `encode` was given, with no file parsed for it.

    It is read from `start` to the end. Raises `SnapshotBytesError` for anything else.
    """
    try:
        return _decode(raw, start)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise SnapshotBytesError(f"{type(error).__name__}: {error}") from None


def _decode(raw: bytes, start: int) -> Snapshot:
    end = raw.index(b"\n", start) + 1
    frame = _Frame(*json.loads(raw[start:end]))
    start, end = end, end + frame.table_bytes
    table = json.loads(raw[start:end])
    texts: dict[str, str] = {}
    for number in frame.others_than_texts:
        table[number] = None if table[number] is None else frozen(table[number], texts)
    if not {*map(type, table)} <= _TABLE_TYPES:
        raise TypeError("a text is something else")
    start, end = end, end + frame.numbers * array(_NUMBER).itemsize
    columns = _Columns(memoryview(raw)[start:end].cast(_NUMBER), table)
    keys_of_pages = columns.texts(frame.pages)
    pages = _pages(columns, frame, raw, end)
    verdicts: dict[str, Verdict] = dict(zip(keys_of_pages, pages, strict=True))
    verdicts |= dict.fromkeys(frame.not_ours)
    verdicts |= {key: Fault(*fields) for key, *fields in frame.faults}
    documents = _documents(columns, frame.documents + frame.shadowed, pages)
    listed, keys = columns.texts(frame.files), columns.texts(frame.files)
    files = MappingProxyType(dict(zip(listed, keys, strict=True)))
    return Snapshot(
        commit=frame.commit,
        roots=[PurePosixPath(root) for root in frame.roots],
        documents=documents[: frame.documents],
        starts=frame.starts,
        shadowed=documents[frame.documents :],
        diagnostics=[
            Diagnostic(rule, severity, path, line, message, tuple(paths))
            for rule, severity, path, line, message, paths in frame.diagnostics
        ],
        verdicts=MappingProxyType(verdicts),
        listing=None if frame.files_size is None else Listing(files, frame.files_size),
        parsed_files=0,
    )


def _pages(columns: "_Columns", frame: _Frame, raw: bytes, start: int) -> list[Page]:
    """Return the pages, whose contents run from `start` to the end."""
    count = frame.pages
    sizes = columns.numbers(count)
    ids, types, slugs, titles, descriptions, hashes = (columns.texts(count) for _ in range(6))
    keys = columns.of([shared(tuple(each)) for each in frame.keys], count)
    all_values = iter(columns.texts(frame.values))
    values = [tuple(islice(all_values, len(each))) for each in keys]
    key_lines = columns.of([shared(tuple(each)) for each in frame.key_lines], count)
    content_lines = columns.numbers(count)
    ends = list(accumulate(sizes, initial=start))
    if ends[-1] != len(raw):
        raise ValueError("the contents are not as long as their pages say")
    view = memoryview(raw)
    contents = [str(view[begin:end], "utf-8") for begin, end in pairwise(ends)]
    fields = (ids, types, slugs, titles, descriptions, contents, hashes, sizes, keys, values)
    return list(map(Page._make, zip(*fields, key_lines, content_lines, strict=True)))


def _documents(columns: "_Columns", count: int, pages: Sequence[Page]) -> list[Document]:
    pages_of_documents = columns.of(pages, count)
    fields = (columns.texts(count) for _ in range(4))
    return list(map(Document._make, zip(pages_of_documents, *fields, strict=True)))


def _field(name: str, rows: Iterable[object]) -> Iterable[Any]:
    return map(attrgetter(name), rows)


def _json(value: object) -> bytes:
    # Paths that are not UTF-8 hold lone surrogates, which JSON takes as escapes.
    return json.dumps(value, separators=(",", ":"), default=dict).encode()


class _Table:
    """Values by number, each once; grows with what is asked for."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def numbers(self, values: Iterable[Any]) -> Iterable[int]:
        """Yield the number of each value: equal values, equal numbers."""
        known = self._numbers
        for value in values:
            try:
                number = known.get(value)
                known_as = value
            except TypeError:  # it holds a mapping
                known_as = _json(value)
                number = known.get(known_as)
            if number is None:
                number = known[known_as] = len(self.values)
                self.values.append(value)
            yield number


class _Columns:
    """Columns of numbers, and what they point to; each is taken in its turn."""

    def __init__(self, numbers: memoryview, table: Sequence[Any]) -> None:
        self._numbers = numbers
        self._table = table
        self._taken = 0

    def numbers(self, count: int) -> list[int]:
        """Return the next column."""
        start = self._taken
        self._taken += count
        return self._numbers[start : self._taken].tolist()

    def of(self, values: Sequence[Any], count: int) -> list[Any]:
        """Return the values that the next column points to."""
        return list(map(values.__getitem__, self.numbers(count)))

    def texts(self, count: int) -> list[Any]:
        """Return what the next column points to in the table."""
        return self.of(self._table, count)
