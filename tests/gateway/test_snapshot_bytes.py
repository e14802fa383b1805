"""Snapshots as bytes: whatever is in one comes back as it was, and nothing else does."""

from pathlib import PurePosixPath
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from okf_mcp_gateway.snapshot_bytes import SnapshotBytesError, decode, encode
from okf_mcp_server.snapshot import Snapshot, load_docs
from support.memory_tree import Files, MemoryTree
from support.snapshots import everything

COMMIT: Final = "c0" * 20


def note(*lines: str, body: str = "Words.") -> str:
    return "\n".join(("---", "export: true", "type: Note", *lines, "---", body))


ALL_KINDS: Final[Files] = {
    "a/plain.md": note("id: plain", "title: Plain"),
    "a/nested.md": note("tags: [a, [b, c], {d: e}]", "empty:", "map: {a: {b: [1, 2]}}", "none: {}"),
    "a/same one.md": note("id: same"),
    "a/same two.md": note("id: same", body="Not served."),
    "a/the same.md": note("id: plain", "title: Plain"),
    "a/words.md": note("title: Wörter 漢字 😀", body="Größe 漢字 😀\n\nMehr\x0b\x1f\u2028."),
    "a/nothing.md": "# Not ours",
    "a/broken.md": "---\nexport: true\ntype: [\n---\n",
    "a/near.md": '---\nexport: "true"\ntype: Note\n---\n',
    "a/unreadable.md": OSError(5, "Input/output error"),
    "a/not-utf-8-\udcff.md": note("id: named"),
    "b/last.md": note("id: last", body=""),
}


def loaded(files: Files, *roots: str, commit: str = COMMIT) -> Snapshot:
    paths = [PurePosixPath(root) for root in roots or (".",)]
    return load_docs(MemoryTree(files), owner="acme", roots=paths, commit=commit)


@pytest.mark.row("P1", "P5")
@pytest.mark.parametrize("roots", [(), ("b", "a"), ("none", "a")], ids=["all", "two", "empty root"])
def test_a_snapshot_comes_back_as_it_was(roots: tuple[str, ...]) -> None:
    snapshot = loaded(ALL_KINDS, *roots)
    assert snapshot.documents
    assert snapshot.shadowed
    assert snapshot.diagnostics
    read = decode(encode(snapshot))
    assert everything(read) == everything(snapshot)
    assert read.parsed_files == 0
    pages = {id(verdict) for verdict in read.verdicts.values()}
    assert all(id(document.page) in pages for document in (*read.documents, *read.shadowed))


@pytest.mark.row("P5")
def test_a_snapshot_without_documents_comes_back_as_it_was() -> None:
    snapshot = loaded({})
    assert everything(decode(encode(snapshot))) == everything(snapshot)


@pytest.mark.row("P5")
def test_what_a_snapshot_came_back_for_is_not_parsed_again() -> None:
    snapshot = decode(encode(loaded(ALL_KINDS)))
    files = {**ALL_KINDS, "b/new.md": note("id: new")}
    tree = MemoryTree(files)
    newer = load_docs(tree, owner="acme", commit="newer", previous=snapshot)
    assert newer.parsed_files == 1
    assert everything(newer) == everything(loaded(files, commit="newer"))


@pytest.mark.row("P5")
def test_texts_that_are_equal_are_one_object() -> None:
    read = decode(encode(loaded({f"{n}.md": note(f"id: n{n}") for n in range(3)})))
    assert len({id(document.type) for document in read.documents}) == 1
    assert all(document.id is document.page.id for document in read.documents)


@pytest.mark.row("P5")
@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=4, unique=True), st.text())
def test_whatever_authors_write_comes_back(bodies: list[str], title: str) -> None:
    files: Files = {
        f"{number}.md": note(f"title: {title!r}", body=body).encode(errors="replace")
        for number, body in enumerate(bodies)
    }
    snapshot = loaded(files)
    assert everything(decode(encode(snapshot))) == everything(snapshot)


@pytest.mark.row("P4")
def test_bytes_that_are_cut_or_go_on_are_no_snapshot() -> None:
    raw = encode(loaded(ALL_KINDS))
    for length in range(0, len(raw), 7):
        with pytest.raises(SnapshotBytesError):
            decode(raw[:length])
    with pytest.raises(SnapshotBytesError):
        decode(raw + b"x")


@pytest.mark.row("P4")
@pytest.mark.parametrize(
    "raw",
    [b"", b"\n", b"null\n", b"[]\n", b"{}\n", b"[" * 100_000 + b"\n", b"\x80\x04N.\n"],
    ids=["nothing", "a line", "null", "a list", "an object", "a deep list", "a pickle"],
)
def test_other_bytes_are_no_snapshot(raw: bytes) -> None:
    with pytest.raises(SnapshotBytesError):
        decode(raw)
