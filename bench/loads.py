"""The load tier: files in memory to a snapshot, against the C loader on their blocks alone."""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

from bench.documents import Sample, sample, samples
from bench.figures import Effort, Figure, Findings, Table, cost_ratios, spread
from okf_mcp_server.incremental import Change, Changes, find_listing, load_changes
from okf_mcp_server.snapshot import Snapshot, load_docs
from okf_mcp_server.tree import NO_MARKDOWN, FileTree, TreeEntry

BODY_BYTES: Final = 3_000
FILES: Final = 2_500
OWNER: Final = "acme"

LOAD_GOAL: Final = 1.15
LOAD_GATE: Final = 1.3

_PERCENTS: Final = (80, 10)
"""How many in a hundred are exported."""


@dataclass(frozen=True, slots=True)
class _Memory:
    """The `FileTree` of some documents; the key of a file is its path and what it holds."""

    by_key: dict[str, tuple[TreeEntry, bytes]]

    def entries(self, roots: Sequence[PurePosixPath]) -> Iterable[TreeEntry]:  # noqa: ARG002 - the whole
        return [entry for entry, _ in self.by_key.values()]

    def read(self, entries: Iterable[TreeEntry]) -> Iterator[tuple[TreeEntry, bytes | OSError]]:
        for entry in entries:
            yield self.by_key[entry.key]

    def why_empty(self, root: PurePosixPath) -> str:  # noqa: ARG002 - none is
        return NO_MARKDOWN


def measure(effort: Effort, folder: Path) -> Findings:  # noqa: ARG001 - nothing goes to the disk
    """Measure full loads, and one of a single changed file."""
    figures: list[Figure] = []
    rows: list[tuple[str, str]] = []
    for percent in (100,) if effort.is_brief else (100, *_PERCENTS):
        documents = samples(FILES, body_bytes=BODY_BYTES, exported_percent=percent)
        ours, theirs = _full_loads(documents, effort.rounds)
        name = f"full load of {FILES:,} files, {percent} % exported"
        told = f"{name}, to the C loader on their blocks"
        gate = LOAD_GATE if percent == 100 else None  # noqa: PLR2004 - where the pre-scan skips none
        spent = cost_ratios(ours, theirs, is_brief=effort.is_brief)
        figures.append(Figure(told, spent, "at most", LOAD_GOAL, gate))
        rows += [(name, spread(ours, 1)), (f"{name}: the C loader", spread(theirs, 1))]
    if not effort.is_brief:
        for some in (1, 10):
            spent = _reloads(some, effort.rounds)
            name = f"reload of {some} changed of {FILES:,} documents, without git"
            rows.append((name, spread(spent, 2)))
            if some == 1:
                figures.append(Figure(name, tuple(spent), "at most", 1, None, "ms"))
    return Findings(tuple(figures), (Table("Loads", ("load", "CPU ms"), tuple(rows)),))


def _full_loads(documents: Sequence[Sample], rounds: int) -> tuple[list[float], list[float]]:
    """Return what ours and the C loader cost in each round."""
    tree = _memory(documents)
    blocks = [each.block for each in documents]

    def ours() -> None:
        loaded = load_docs(tree, owner=OWNER, commit="0" * 40)
        if len(loaded.documents) != sum(each.is_exported for each in documents):
            raise AssertionError("not all documents were loaded")

    def theirs() -> None:
        for block in blocks:
            loader: Any = yaml.CSafeLoader(block)
            try:
                loader.get_single_data()
            finally:
                loader.dispose()

    _milliseconds(ours)
    spent = [(_milliseconds(ours), _milliseconds(theirs)) for _ in range(rounds)]
    return [each for each, _ in spent], [each for _, each in spent]


def _reloads(some: int, rounds: int) -> list[float]:
    """Return what it costs to load so many changed files, in each round."""
    documents = samples(FILES, body_bytes=BODY_BYTES)
    before = load_docs(_memory(documents), owner=OWNER, commit="0" * 40)
    spent: list[float] = []
    for seed in range(1, rounds + 1):
        numbers = [(seed * 1_009 + each * 97) % FILES for each in range(some)]
        new = [sample(number, body_bytes=BODY_BYTES, seed=seed) for number in numbers]
        changes = [Change(each.path, _entry(documents[each.number]), _entry(each)) for each in new]
        reload = partial(_reload, before, _memory(new), changes)
        spent.append(_milliseconds(reload))
        if (after := reload()).parsed_files != some or len(after.documents) != FILES:
            raise AssertionError("not what was changed was loaded")
    return spent


def _reload(before: Snapshot, tree: FileTree, changes: Sequence[Change]) -> Snapshot:
    listing = find_listing(before.listing, changes) if before.listing else None
    if listing is None:
        raise AssertionError("the changes don't fit what was there before")
    found = Changes(changes, listing)
    return load_changes(tree, found, owner=OWNER, commit="1" * 40, previous=before)


def _memory(documents: Sequence[Sample]) -> _Memory:
    return _Memory({_entry(each).key: (_entry(each), each.text.encode()) for each in documents})


def _entry(document: Sample) -> TreeEntry:
    key = f"{document.number:020}{hash(document.body) & 0xFFFFFFFF:020}"
    return TreeEntry(document.path, key, len(document.text))


def _milliseconds(work: Callable[[], object]) -> float:
    """Return the CPU time of some work, from a heap that holds no garbage of what came before."""
    gc.collect()
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3
