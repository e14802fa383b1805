"""The snapshot that follows another is the one that a full load makes, and costs what changed."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from okf_mcp_server import Snapshot, load_docs
from okf_mcp_server.incremental import Change, Changes, find_listing, load_changes
from okf_mcp_server.snapshot import Listing
from okf_mcp_server.tree import TreeEntry
from support.memory_tree import MemoryTree
from support.soak import soak_scale

Load = Callable[..., Snapshot]
Files = Mapping[str, bytes]


def note(*lines: str, body: str = "Body.") -> bytes:
    return "\n".join(["---", "export: true", "type: Note", *lines, "---", body, ""]).encode()


def find_changes(before: Files, after: Files, roots: Sequence[PurePosixPath]) -> list[Change]:
    """Return what differs between two sets of files."""
    old, new = (
        {entry.path: entry for entry in MemoryTree(files).entries(roots)}
        for files in (before, after)
    )
    return [
        Change(path, old.get(path), new.get(path))
        for path in sorted({*old, *new})
        if old.get(path) != new.get(path)
    ]


def load_next(before: Files, after: Files, previous: Snapshot, *, commit: str) -> Snapshot:
    """Load files as what changed since the snapshot of others."""
    changes = find_changes(before, after, previous.roots)
    assert previous.listing is not None
    listing = find_listing(previous.listing, changes)
    assert listing is not None
    tree = MemoryTree(after)
    return load_changes(
        tree, Changes(changes, listing), owner="acme", commit=commit, previous=previous
    )


def everything(snapshot: Snapshot) -> dict[str, Any]:
    """Return all that a snapshot is, but for what it cost."""
    parts = ("commit", "roots", "documents", "starts", "shadowed", "diagnostics", "listing")
    return {
        **{name: getattr(snapshot, name) for name in parts},
        "verdicts": dict(snapshot.verdicts),
        "by_uri": list(snapshot.by_uri.items()),
    }


CONTENTS: Final = (
    note(),
    note("title: one"),
    note("id: same"),
    note("id: same", "title: other"),
    note("id: b"),
    note("id: .."),
    note("title: a: b"),
    b"---\nexport: true\n---\n",
    b'---\nexport: "true"\n---\n',
    b"---\ntype: Note\n---\n",
    b"# Words\n",
    b"",
    b"\xff",
)
"""Documents, twice two of one URI; faults of all kinds; what is nothing of ours."""

LARGE: Final = b"x" * (4 * 1024 * 1024 + 1)
PATHS: Final = tuple(
    f"{folder}{name}"
    for folder in ("", "a/", "a/b/", "a-b/", "c/")
    for name in ("a.md", "b b.md", "same.md", "\udcff.md", "x.txt")
)
ROOTS: Final = [
    *(["."], ["a"], ["a", "c"], ["c", "a"], ["a/b", "a"], ["a", "a/b"], ["a/b", "."]),
    *(["gone", "a", "c"], ["a", "a"]),
]
TREES: Final = st.dictionaries(st.sampled_from(PATHS), st.sampled_from(CONTENTS), max_size=9)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, bytes]]:
    """Return some trees, each the one before it with a few edits."""
    trees = [draw(TREES)]
    for _ in range(draw(st.integers(1, 4))):
        files = dict(trees[-1])
        for _ in range(draw(st.integers(0, 3))):
            path = draw(st.sampled_from(sorted(files) or PATHS) | st.sampled_from(PATHS))
            kind = draw(st.sampled_from(["write", "remove", "move", "copy"]))
            content = files.pop(path, None) if kind in {"remove", "move"} else files.get(path)
            if kind == "write" or content is None:
                content = draw(st.sampled_from(CONTENTS))
            if kind != "remove":
                files[path if kind == "write" else draw(st.sampled_from(PATHS))] = content
        trees.append(files)
    return trees


@pytest.mark.row("P5", "D4", "D10", "D11", "D12")
@given(histories(), st.sampled_from(ROOTS))
@example([{"a/a.md": note("id: x"), "a/b.md": note("id: x")}, {"a/b.md": note("id: x")}], ["a"])
@example([{}, {"z.md": b""}, {"z.md": b"", "b.md": note("id: a"), "a.md": note()}], ["."])
@example([{"a.md": LARGE}, {"a.md": LARGE, "b.md": LARGE}, {"b.md": note()}], ["."])
@example([{"a/a.md": note()}, {"c/a.md": note()}, {"a/a.md": note()}], ["a", "c"])
@settings(
    max_examples=int(400 * soak_scale()),
    derandomize=soak_scale() <= 1,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_after_any_edits_it_equals_what_a_full_load_makes(
    load: Load, trees: list[dict[str, bytes]], roots: list[str]
) -> None:
    snapshot = load(trees[0], roots=roots, commit="0")
    for number, (before, after) in enumerate(pairwise(trees), start=1):
        commit = str(number)
        full = load(after, roots=roots, commit=commit, previous=snapshot)
        snapshot = load_next(before, after, snapshot, commit=commit)
        assert everything(snapshot) == everything(full)
        assert everything(snapshot) == everything(load(after, roots=roots, commit=commit))
        assert snapshot.parsed_files == full.parsed_files


@pytest.mark.row("P5")
def test_only_what_changed_is_looked_at(load: Load) -> None:
    before = {f"{number:03}.md": note(f"title: {number}") for number in range(500)}
    after = {**before, "007.md": note("title: changed"), "0071.md": note()}
    del after["300.md"]
    first = load(before, commit="1")

    second = load_next(before, after, first, commit="2")

    assert second.parsed_files == 2
    old = {document.path_text: document for document in first.documents}
    looked_at = [each.path_text for each in second.documents if each is not old.get(each.path_text)]
    assert looked_at == ["007.md", "0071.md"]
    assert second.diagnostics is first.diagnostics


def test_the_previous_snapshot_stays_as_it_is(load: Load) -> None:
    before = {"a.md": note(), "b.md": note("id: other"), "c.md": b"\xff"}
    first = load(before, commit="1")
    was = everything(first)
    load_next(before, {"a.md": note("title: new"), "d.md": note()}, first, commit="2")
    assert everything(first) == was


@pytest.mark.parametrize(
    "changes",
    [
        [Change("a.md", None, TreeEntry("a.md", "2", 1))],
        [Change("a.md", TreeEntry("a.md", "2", 1), None)],
        [Change("b.md", TreeEntry("b.md", "1", 1), None)],
        [
            Change("b.md", None, TreeEntry("b.md", "2", 1)),
            Change("b.md", TreeEntry("b.md", "2", 1), TreeEntry("b.md", "3", 1)),
        ],
    ],
    ids=["there already", "another content", "not there", "twice"],
)
def test_changes_that_do_not_fit_what_was_there_are_not_trusted(changes: list[Change]) -> None:
    assert find_listing(Listing({"a.md": "1"}, 1), changes) is None


def test_what_is_listed_is_counted_without_what_is_too_large() -> None:
    large = len(LARGE)
    changes = [
        Change("a.md", TreeEntry("a.md", "1", 10), TreeEntry("a.md", "2", 30)),
        Change("b.md", TreeEntry("b.md", "3", large), None),
        Change("c.md", None, TreeEntry("c.md", "4", large)),
        Change("d.md", TreeEntry("d.md", "5", 5), None),
    ]
    listing = find_listing(Listing({"a.md": "1", "b.md": "3", "d.md": "5"}, 15), changes)
    assert listing == Listing({"a.md": "2", "c.md": "4"}, 30)


def test_a_malformed_commit_is_no_basis_for_the_next_load() -> None:
    class TwiceOnePath(MemoryTree):
        def entries(self, roots: Sequence[PurePosixPath]) -> list[TreeEntry]:
            first, *_ = super().entries(roots)
            return [first, TreeEntry(first.path, "another", 1)]

        def read(self, entries: Any) -> Any:
            return ((entry, b"") for entry in entries)

    assert load_docs(TwiceOnePath({"a.md": note()}), owner="acme", commit="1").listing is None
