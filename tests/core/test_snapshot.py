"""All documents of one owner at one commit: what is in, in which order, and what a load costs."""

import gc
import tracemalloc
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from threading import Barrier, Thread

import pytest

from okf_mcp_server import Diagnostic, Document, Snapshot, load_docs
from okf_mcp_server.tree import TreeEntry, WorkingTree
from support.memory_tree import MemoryTree

Load = Callable[..., Snapshot]

DEADLINE_SECONDS = 10


def note(*lines: str, body: str = "Body.") -> str:
    return "\n".join(["---", "export: true", "type: Note", *lines, "---", body, ""])


def paths(snapshot: Snapshot) -> list[str]:
    return [str(document.path) for document in snapshot.documents]


def order(snapshot: Snapshot) -> list[tuple[int, str]]:
    return [snapshot.key_at(index) for index in range(len(snapshot.documents))]


def uris(snapshot: Snapshot) -> list[str]:
    return [document.uri.removeprefix("knowledge://acme/") for document in snapshot.documents]


class UnreadableTree:
    """A `FileTree` whose files must not be read again."""

    def __init__(self, *entries: TreeEntry) -> None:
        self._entries = entries

    def entries(self, roots: Sequence[PurePosixPath]) -> Iterable[TreeEntry]:
        return self._entries

    def read(self, entries: Iterable[TreeEntry]) -> Iterator[tuple[TreeEntry, bytes | OSError]]:
        if wanted := list(entries):
            raise AssertionError(wanted)
        return iter(())

    def why_empty(self, root: PurePosixPath) -> str:
        raise AssertionError(root)


@pytest.mark.row("D1", "D4")
def test_files_that_can_not_be_served_are_diagnostics_and_all_others_are_served(load: Load) -> None:
    snapshot = load(
        {
            "good.md": note(),
            "also good.md": note(),
            "plain.md": "# Words\n",
            "closed.md": "---\ntype: Note\n---\n",
            "untyped.md": "---\nexport: true\n---\n",
            "broken.md": note("title: a: b"),
            "latin1.md": b"one\n\xe9\n",
            "surrogate.md": b"\xed\xa0\x80",
            "large.md": b"x" * (4 * 1024 * 1024 + 1),
            "locked.md": PermissionError(13, "Permission denied"),
            "vanished.md": OSError(),
            "dots.md": note("id: .."),
            "\udcff.md": note(),
            "not exported \udcff.md": "# Words\n",
        }
    )

    unreadable = "the frontmatter can't be read: "
    assert paths(snapshot) == ["also good.md", "good.md"]
    assert snapshot.diagnostics == (
        Diagnostic(
            "unreadable",
            "warning",
            "broken.md",
            4,
            f"{unreadable}a value that holds ': ' or begins with one of @ ` * & % ! | > {{ [ needs "
            "quotes (mapping values are not allowed in this context)",
        ),
        Diagnostic(
            "invalid-id",
            "warning",
            "dots.md",
            4,
            "the id '..' can't stand in a URI; give the file another id",
        ),
        Diagnostic(
            "unreadable", "warning", "large.md", 1, "4194305 bytes; a document has 4 MiB at most"
        ),
        Diagnostic("unreadable", "warning", "latin1.md", 2, "not UTF-8; save the file as UTF-8"),
        Diagnostic("unreadable", "warning", "locked.md", 1, "can't be read: Permission denied"),
        Diagnostic("unreadable", "warning", "surrogate.md", 1, "not UTF-8; save the file as UTF-8"),
        Diagnostic(
            "missing-type",
            "error",
            "untyped.md",
            2,
            "export is true, but there is no type; write one such as 'type: Note'",
        ),
        Diagnostic("unreadable", "warning", "vanished.md", 1, "can't be read: OSError"),
        Diagnostic(
            "unreadable",
            "warning",
            "\\xff.md",
            1,
            "the file's name is not UTF-8; rename the file",
        ),
    )


@pytest.mark.row("D4")
def test_diagnostics_can_be_printed_and_encoded_whatever_the_files_are_called(load: Load) -> None:
    name = "\x1b[2J\n\u2028\udcffé.md"
    snapshot = load({f"a/{name}": note(), f"b{name}": b"\xff", "c.md": note("a: !<x%0Ay> z")})
    for diagnostic in snapshot.diagnostics:
        text = f"{diagnostic.path}: {diagnostic.message}"
        assert text.isprintable()
        assert text.encode()


@pytest.mark.row("D1")
def test_index_and_log_are_ordinary_files(load: Load) -> None:
    snapshot = load({"index.md": note(), "log.md": note(), "a/index.md": note("id: other")})
    assert uris(snapshot) == ["note/other", "note/index", "note/log"]


@pytest.mark.row("D11")
def test_documents_stand_in_the_order_of_the_code_points_of_their_paths(load: Load) -> None:
    names = [
        "a-b/x",
        "a.md",
        "a/x",
        "aB",
        "ab",
        "a\u00e9",
        "a\uffee",
        "a\U0001f600",
        "B",
        "10",
        "9",
    ]
    expected = ["10", "9", "B", "a-b/x", "a.md", "a/x", "aB", "ab", "a\u00e9"]
    expected += ["a\uffee", "a\U0001f600"]
    for arrangement in (names, names[::-1]):
        snapshot = load(
            {f"{name}.md": note(f"id: n{ord(name[-1])}{len(name)}") for name in arrangement}
        )
        assert paths(snapshot) == [f"{name}.md" for name in expected]
        assert order(snapshot) == sorted(order(snapshot))


@pytest.mark.row("D11")
def test_scan_roots_come_in_their_order_before_paths_do(load: Load) -> None:
    files = {f"{name}.md": note() for name in ["a/1", "b/2", "c/3", "b/0", "4"]}
    assert paths(load(files, roots=["c", "b", "a"])) == ["c/3.md", "b/0.md", "b/2.md", "a/1.md"]


@pytest.mark.row("D11")
@pytest.mark.parametrize(
    ("roots", "expected"),
    [
        (["a", "a/b"], ["a/0.md", "a/b/1.md", "a/c.md"]),
        (["a/b", "a"], ["a/b/1.md", "a/0.md", "a/c.md"]),
        (["a/b", "."], ["a/b/1.md", "a/0.md", "a/c.md", "z.md"]),
        ([".", "a/b"], ["a/0.md", "a/b/1.md", "a/c.md", "z.md"]),
        (["a", "a"], ["a/0.md", "a/b/1.md", "a/c.md"]),
    ],
    ids=str,
)
def test_a_file_below_two_roots_is_one_document_in_the_place_of_the_first(
    load: Load, roots: list[str], expected: list[str]
) -> None:
    files = {f"{name}.md": note() for name in ["a/0", "a/b/1", "a/c", "z"]}
    snapshot = load(files, roots=roots)
    assert (paths(snapshot), snapshot.diagnostics) == (expected, ())


@pytest.mark.row("D11")
def test_every_place_has_documents_before_it_and_after_it(load: Load) -> None:
    files = {f"{name}.md": note() for name in ["a/1", "a/3", "b/2", "b/2x/4", "c/5"]}
    for roots in (["a", "b", "c"], ["gone", "c", "b/2x", "a", "b", "gone too"], ["."]):
        snapshot = load(files, roots=roots)
        places = order(snapshot)
        assert places == sorted(places)
        assert len(places) == len(files)
        names = ["", "a", *files, "a/2.md", "c/6", "\U0010ffff"]
        for place in [(root, name) for root in range(len(roots) + 2) for name in names]:
            assert snapshot.index_after(place) == bisect_right(places, place)


@pytest.mark.row("D12")
def test_a_root_without_markdown_is_a_warning(load: Load) -> None:
    snapshot = load({"ab/1.md": note(), "b/2.txt": "x"}, roots=["a", "ab", "b"])
    assert snapshot.diagnostics == (
        Diagnostic("empty-root", "warning", "a", 1, "nothing is under a"),
        Diagnostic("empty-root", "warning", "b", 1, "nothing is under b"),
    )


@pytest.mark.row("D10", "D11")
def test_of_two_documents_with_one_uri_the_first_in_order_is_served(load: Load) -> None:
    files = {
        "b/x.md": note("title: from b"),
        "a/x y.md": note("title: from a"),
        "a/z.md": "---\ntype: NOTE\nexport: true\nid: x\n---\n",
        "c/x.md": note("title: other type").replace("Note", "Guide"),
    }

    snapshot = load(files, roots=["b", "a", "c"])

    assert uris(snapshot) == ["note/x", "guide/x"]
    assert snapshot.by_uri["knowledge://acme/note/x"].title == "from b"
    assert [str(document.path) for document in snapshot.shadowed] == ["a/x y.md", "a/z.md"]
    taken = "knowledge://acme/note/x is already the URI of b/x.md;"
    derived = "add an id to one of the two: here it is the first word of the file's name"
    assert snapshot.diagnostics == (
        Diagnostic("duplicate-uri", "warning", "a/x y.md", 1, f"{taken} {derived}"),
        Diagnostic(
            "duplicate-uri", "warning", "a/z.md", 4, f"{taken} give one of the two another id"
        ),
    )


@pytest.mark.row("D10")
def test_copies_of_one_file_are_told_apart_by_their_names(load: Load) -> None:
    snapshot = load({"a.md": note(), "b.md": note(), "c/a.md": note()})
    assert uris(snapshot) == ["note/a", "note/b"]
    assert [(found.rule, found.path) for found in snapshot.diagnostics] == [
        ("duplicate-uri", "c/a.md")
    ]


@pytest.mark.row("D7")
def test_every_document_is_found_by_its_uri(load: Load) -> None:
    snapshot = load({f"a{chr(code_point)}b.md": note() for code_point in range(0x21, 0x600)})
    assert len(snapshot.documents) > 1_400
    assert list(snapshot.by_uri.values()) == list(snapshot.documents)
    assert all(snapshot.by_uri[found.uri] is found for found in snapshot.documents)
    with pytest.raises(TypeError):
        snapshot.by_uri["x"] = snapshot.documents[0]  # pyright: ignore[reportIndexIssue]


def test_a_snapshot_knows_its_commit(load: Load) -> None:
    assert (load({}, commit="c" * 40).commit, load({}).commit) == ("c" * 40, None)


def test_one_changed_file_of_2500_is_one_parse_and_an_equal_snapshot(load: Load) -> None:
    files = {f"{number:04}.md": note(f"title: {number}") for number in range(2_500)}
    first = load(files)
    changed = {**files, "0007.md": note("title: changed")}

    second = load(changed, previous=first)

    whole = load(changed)
    assert (first.parsed_files, second.parsed_files, whole.parsed_files) == (2_500, 1, 2_500)
    assert (second.documents, order(second)) == (whole.documents, order(whole))
    assert second.documents[7].title == "changed"


def test_nothing_changed_is_nothing_parsed(load: Load) -> None:
    files = {"a.md": note(), "b.md": "# Words", "c.md": note("a: b: c"), "d.md": b"\xff"}
    first = load(files)
    second = load(files, previous=first)
    assert (second.parsed_files, second.documents) == (0, first.documents)
    assert second.diagnostics == first.diagnostics


@pytest.mark.row("D5")
def test_a_moved_file_is_not_parsed_again_and_has_the_id_of_its_new_name(load: Load) -> None:
    first = load({"a/old name.md": note(), "kept.md": note("id: kept")})

    second = load({"b/new name.md": note(), "moved.md": note("id: kept")}, previous=first)

    assert second.parsed_files == 0
    assert [(found.uri, found.title) for found in second.documents] == [
        ("knowledge://acme/note/new", "new name"),
        ("knowledge://acme/note/kept", "moved"),
    ]


def test_equal_files_are_parsed_once(load: Load) -> None:
    assert load({f"{name}.md": note() for name in "abc"}).parsed_files == 1


@pytest.mark.row("D4")
@pytest.mark.parametrize("raw", [b"\xff", note("a: b: c").encode(), b"---\nexport: on\n---\n"])
def test_what_was_a_fault_stays_one_without_being_read_again(load: Load, raw: bytes) -> None:
    first = load({"a.md": raw})
    entry = TreeEntry("b.md", repr(raw), len(raw))

    second = load_docs(UnreadableTree(entry), owner="acme", previous=first)

    (before,), (after,) = first.diagnostics, second.diagnostics
    assert (after.path, after.rule, after.line) == ("b.md", before.rule, before.line)


@pytest.mark.row("D4")
def test_a_file_that_is_too_large_is_never_read() -> None:
    entry = TreeEntry("a.md", "key", 4 * 1024 * 1024 + 1)
    snapshot = load_docs(UnreadableTree(entry), owner="acme")
    assert [(found.rule, found.path) for found in snapshot.diagnostics] == [("unreadable", "a.md")]


def test_a_mended_file_is_served_and_a_removed_one_is_forgotten(load: Load) -> None:
    first = load({"a.md": b"\xff", "b.md": note()})
    second = load({"a.md": note()}, previous=first)
    assert (paths(second), second.diagnostics) == (["a.md"], ())
    assert len(second.verdicts) == 1


def test_a_snapshot_of_another_commit_does_not_change_the_previous_one(load: Load) -> None:
    first = load({"a.md": note("title: one")}, commit="1" * 40)
    before = (first.commit, first.documents, order(first), dict(first.by_uri))
    load({"a.md": note("title: two")}, commit="2" * 40, previous=first)
    assert (first.commit, first.documents, order(first), dict(first.by_uri)) == before


def test_a_view_is_built_once_in_the_life_of_a_snapshot(load: Load) -> None:
    builds: list[Snapshot] = []

    def build(snapshot: Snapshot) -> list[str]:
        builds.append(snapshot)
        return paths(snapshot)

    first, second = load({"a.md": note()}), load({"b.md": note()})
    assert first.derive(build) is first.derive(build)
    assert second.derive(build) == ["b.md"]
    assert builds == [first, second]


def test_a_view_may_be_built_of_another_view(load: Load) -> None:
    def count(snapshot: Snapshot) -> int:
        return len(snapshot.derive(paths))

    # In a thread, so that a lock that waits for itself fails the test instead of hanging it.
    snapshot = load({"a.md": note()})
    found: list[int] = []
    thread = Thread(target=lambda: found.append(snapshot.derive(count)), daemon=True)
    thread.start()
    thread.join(DEADLINE_SECONDS)
    assert found == [1]


def test_readers_in_many_threads_share_one_view(load: Load) -> None:
    snapshot = load({"a.md": note()})
    start = Barrier(8)

    def build(snapshot: Snapshot) -> list[str]:
        return paths(snapshot)

    def read(_: int) -> int:
        start.wait(DEADLINE_SECONDS)
        return id(snapshot.derive(build))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(read, range(8)))) == 1


def test_a_view_that_could_not_be_built_is_built_anew(load: Load) -> None:
    attempts: list[int] = []

    def build(_: Snapshot) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError("first")
        return "built"

    snapshot = load({})
    with pytest.raises(RuntimeError, match="first"):
        snapshot.derive(build)
    assert snapshot.derive(build) == "built"


@pytest.mark.row("D1", "D4", "D10")
def test_a_work_tree_is_loaded_without_its_links_and_with_what_is_wrong_with_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "design").mkdir()
    (tmp_path / "design/a.md").write_text(note())
    (tmp_path / "design/b.md").symlink_to("a.md")
    (tmp_path / "design/c.md").write_bytes(b"\xff")
    (tmp_path / "linked").symlink_to("design")

    roots = [PurePosixPath("design"), PurePosixPath("linked"), PurePosixPath("missing")]
    snapshot = load_docs(WorkingTree(tmp_path), owner="acme", roots=roots)

    assert uris(snapshot) == ["note/a"]
    assert [(found.rule, found.path) for found in snapshot.diagnostics] == [
        ("empty-root", "linked"),
        ("empty-root", "missing"),
        ("unreadable", "design/c.md"),
    ]


class MalformedTree:
    """What only a forged commit can hold: one path twice, and paths out of the repository."""

    def entries(self, roots: Sequence[PurePosixPath]) -> Iterable[TreeEntry]:
        for path, key in [("x.md", "1"), ("x.md", "2"), ("../up.md", "3"), ("/etc/root.md", "4")]:
            yield TreeEntry(path, key, 100)

    def read(self, entries: Iterable[TreeEntry]) -> Iterator[tuple[TreeEntry, bytes | OSError]]:
        for entry in entries:
            yield entry, note(f"title: number {entry.key}").encode()

    def why_empty(self, root: PurePosixPath) -> str:
        raise AssertionError(root)


@pytest.mark.row("D10", "D4")
def test_of_one_path_twice_the_first_is_served_and_no_path_leads_out() -> None:
    snapshot = load_docs(MalformedTree(), owner="acme")
    assert [document.title for document in snapshot.documents] == ["number 1"]
    assert [(found.rule, found.path) for found in snapshot.diagnostics] == [
        ("unreadable", "../up.md"),
        ("unreadable", "/etc/root.md"),
        ("duplicate-uri", "x.md"),
    ]


class OddBytes(bytes):
    """Bytes that break in our hands, as no rule foresaw."""

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise ZeroDivisionError("a fault of ours")


class OddTree(MalformedTree):
    """A tree with a file of such bytes, and a good one."""

    def entries(self, roots: Sequence[PurePosixPath]) -> Iterable[TreeEntry]:
        for path in ("good.md", "odd.md"):
            yield TreeEntry(path, path, 100)

    def read(self, entries: Iterable[TreeEntry]) -> Iterator[tuple[TreeEntry, bytes | OSError]]:
        for entry in entries:
            content = note().encode()
            yield entry, OddBytes(content) if entry.key == "odd.md" else content


@pytest.mark.row("D4")
def test_a_file_that_no_rule_foresaw_costs_nobody_else() -> None:
    snapshot = load_docs(OddTree(), owner="acme")
    assert paths(snapshot) == ["good.md"]
    assert snapshot.diagnostics == (
        Diagnostic("unreadable", "warning", "odd.md", 1, "internal error; the log has the rest"),
    )


def test_a_document_takes_less_than_a_kilobyte_beside_its_text() -> None:
    count = 1_000

    class LazyTree(MemoryTree):
        """A tree that holds nothing of what a snapshot does."""

        def entries(self, roots: Sequence[PurePosixPath]) -> Iterable[TreeEntry]:
            for number in range(count):
                yield TreeEntry(f"docs/{number} - page.md", f"{number:040}", 2_000)

        def read(self, entries: Iterable[TreeEntry]) -> Iterator[tuple[TreeEntry, bytes | OSError]]:
            for entry in entries:
                fields = [f"id: doc-{entry.key}", "tags: [one, two]", "date: 2026-05-01"]
                title = f"title: The page of {entry.key}"
                yield entry, note(*fields, title, "owner: Us", body=entry.key * 50).encode()

    def texts(document: Document) -> Iterator[str]:
        yield from (document.content, document.description, document.id, document.title)
        yield from (document.uri, document.path_text, document.content_hash)

    load_docs(LazyTree({}), owner="acme", commit="1")  # what stays in caches
    tracemalloc.start()
    try:
        snapshot = load_docs(LazyTree({}), owner="acme", commit="1")
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    text = sum(len(each) for document in snapshot.documents for each in texts(document))
    assert len(snapshot.documents) == count
    assert (taken - text) / count < 1024
