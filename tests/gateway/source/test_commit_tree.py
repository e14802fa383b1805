"""The files of a commit, read from git's objects (P4, P5, D10)."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from okf_mcp_gateway.source.commit_tree import (
    MAX_CHANGES,
    MAX_MARKDOWN_BYTES,
    MAX_MARKDOWN_FILES,
    CommitTree,
)
from okf_mcp_gateway.source.error_class import SourceError, error_class
from okf_mcp_gateway.source.git import Git, GitError, GitStoppedError
from okf_mcp_server.documents import MAX_DOCUMENT_BYTES
from okf_mcp_server.incremental import load_changes
from okf_mcp_server.snapshot import Listing, Snapshot, load_docs
from okf_mcp_server.tree import TreeEntry
from support.hostile_host import id_of, tree_of
from support.repositories import Repository
from support.repositories import git as run_git
from support.soak import soak_scale

WHOLE = (PurePosixPath("."),)

OpenTree = Callable[[], CommitTree]


def note(*lines: str, body: str = "Body.") -> bytes:
    return "\n".join(["---", "export: true", "type: Note", *lines, "---", body, ""]).encode()


@pytest.fixture
def open_tree(git: Git, repository: Repository) -> OpenTree:
    """Commit what was written, push it, and return its tree in the bare repository."""

    def commit() -> CommitTree:
        return CommitTree(git, repository.bare, repository.publish())

    return commit


def paths(tree: CommitTree, *roots: str) -> list[str]:
    wanted = [PurePosixPath(root) for root in roots] or WHOLE
    return sorted(entry.path for entry in tree.entries(wanted))


def contents(tree: CommitTree) -> dict[str, bytes]:
    read: dict[str, bytes] = {}
    for entry, raw in tree.read(tree.entries(WHOLE)):
        assert isinstance(raw, bytes)
        assert entry.size == len(raw)
        read[entry.path] = raw
    return read


def object_path(repository: Path, object_id: str) -> Path:
    return repository / "objects" / object_id[:2] / object_id[2:]


@pytest.mark.row("P5", "D10")
def test_regular_markdown_files_are_read_and_nothing_else(
    repository: Repository, open_tree: OpenTree
) -> None:
    repository.write("plain.md", "plain")
    repository.write("a/b/c/deep.md", "deep")
    repository.write(".hidden/.dot.md", "dot")
    repository.write("tool.md", "executable")
    repository.write("upper.MD", "another suffix")
    repository.write("words.txt", "no Markdown")
    repository.write("md", "no suffix")
    repository.link("link.md", "plain.md")
    repository.link("outside.md", "/etc/passwd")
    repository.link("folder", "a")
    repository.commit()
    repository.git("update-index", "--chmod=+x", "tool.md")
    repository.git(*("update-index", "--add", "--cacheinfo", f"160000,{repository.head},module.md"))
    assert contents(open_tree()) == {
        ".hidden/.dot.md": b"dot",
        "a/b/c/deep.md": b"deep",
        "plain.md": b"plain",
        "tool.md": b"executable",
    }


def test_a_file_that_git_of_the_first_years_wrote_is_read(git: Git, repository: Repository) -> None:
    blob = repository.git("hash-object", "-w", "--stdin", stdin=b"old")
    tree = run_git(
        *("hash-object", "-t", "tree", "-w", "--literally", "--stdin"),
        folder=repository.clone,
        stdin=b"100664 old.md\0" + bytes.fromhex(blob),
    )
    commit = repository.git("commit-tree", "-m", "old", tree.decode().strip())
    old = CommitTree(git, repository.clone / ".git", commit)
    assert contents(old) == {"old.md": b"old"}


def test_an_entry_is_keyed_by_its_blob(repository: Repository, open_tree: OpenTree) -> None:
    repository.write("a.md", "same")
    repository.write("b.md", "same")
    blob = repository.git("hash-object", "a.md")
    assert list(open_tree().entries(WHOLE)) == [
        TreeEntry("a.md", blob, 4),
        TreeEntry("b.md", blob, 4),
    ]


@pytest.mark.row("G2")
@pytest.mark.parametrize(
    ("roots", "found"),
    [
        (["docs"], ["docs/a.md", "docs/sub/b.md"]),
        (["docs/sub"], ["docs/sub/b.md"]),
        (["docs/sub", "docs"], ["docs/a.md", "docs/sub/b.md"]),
        (["docs-2", "docs/sub"], ["docs-2/c.md", "docs/sub/b.md"]),
        (["docs.md"], []),
        (["docs/a.md"], []),
        (["link"], []),
        (["link.md"], []),
        (["module"], []),
        (["nowhere"], []),
        (["DOCS"], []),
        ([":odd"], [":odd/d.md"]),
        ([":(top)docs"], []),
        (["*"], ["*/e.md"]),
        (["d?cs"], []),
        (["-x"], ["-x/f.md"]),
        (["ü"], ["ü/g.md"]),
        ([".", "docs"], None),
    ],
    ids=str,
)
def test_a_root_is_a_folder_by_its_very_name(
    repository: Repository, open_tree: OpenTree, roots: list[str], found: list[str] | None
) -> None:
    files = ["docs/a.md", "docs/sub/b.md", "docs-2/c.md", ":odd/d.md", "*/e.md", "-x/f.md"]
    files += ["ü/g.md", "docs.md"]
    for path in files:
        repository.write(path, path)
    repository.link("link", "docs")
    repository.link("link.md", "docs/a.md")
    repository.commit()
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{repository.head},module")
    assert paths(open_tree(), *roots) == sorted(files if found is None else found)


@pytest.mark.row("P5")
def test_any_name_of_a_file_is_read_as_it_stands(
    repository: Repository, open_tree: OpenTree
) -> None:
    files = {
        "line\nend.md": b"1",
        "tab\tand space .md": b"2",
        "double \" single ' back \\ slash.md": b"3",
        "céß-☃.md": b"4",
        os.fsdecode(b"latin-\xe9.md"): b"5",
        "\r.md": b"6",
        " 100644 blob 0123 7\t.md": b"7",
        ".md": b"8",
    }
    for path, content in files.items():
        repository.write(path, content)
    assert contents(open_tree()) == files


@pytest.mark.row("P5")
def test_bytes_come_out_as_they_were_committed(repository: Repository, open_tree: OpenTree) -> None:
    files = {
        "empty.md": b"",
        "no-end.md": b"no line end",
        "crlf.md": b"a\r\nb\rc\n\r\n",
        "nul.md": bytes(range(256)) * 3,
        "header.md": b"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391 blob 5\nwords\n",
        "big.md": os.urandom(1024) * 6 * 1024,
        "z.md": b"after the big one",
    }
    repository.write(".gitattributes", "*.md text eol=lf ident filter=lfs working-tree-encoding=x")
    repository.commit()
    for path, content in files.items():
        blob = repository.git("hash-object", "-w", "--no-filters", "--stdin", stdin=content)
        repository.git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
    assert contents(open_tree()) == files


def test_thousands_of_files_cost_two_processes(git: Git, repository: Repository) -> None:
    files = {f"{n % 50}/{n}.md": f"words {n}\n".encode() * (n % 100) for n in range(5000)}
    commit = repository.fast_import(files)
    tree = CommitTree(git, repository.clone / ".git", commit)
    before = git.started_processes
    assert contents(tree) == files
    assert git.started_processes - before == 2


def test_nothing_is_started_where_nothing_is_wanted(git: Git, open_tree: OpenTree) -> None:
    tree = open_tree()
    before = git.started_processes
    assert list(tree.read([])) == []
    assert git.started_processes == before


def test_a_repository_without_a_file_has_no_entries(open_tree: OpenTree) -> None:
    tree = open_tree()
    assert paths(tree) == paths(tree, "docs") == []


@pytest.mark.row("P4")
def test_a_lost_blob_is_a_fault_of_the_copy_when_it_is_listed_and_when_it_is_read(
    repository: Repository, open_tree: OpenTree
) -> None:
    for name in "abc":
        repository.write(f"{name}.md", name)
    tree = open_tree()
    entries = list(tree.entries(WHOLE))
    object_path(repository.bare, entries[1].key).unlink()
    message = f"the copy has lost the blob {entries[1].key}"
    with pytest.raises(GitError) as caught:
        list(tree.entries(WHOLE))
    assert (str(caught.value), error_class(caught.value)) == (message, "corrupt")
    reading = tree.read(entries)
    assert next(reading) == (entries[0], b"a")
    with pytest.raises(GitError) as caught:
        next(reading)
    assert (str(caught.value), error_class(caught.value)) == (message, "corrupt")


@pytest.mark.row("P4")
@pytest.mark.parametrize("lost", ["HEAD^{tree}", "HEAD:docs", "HEAD"])
@pytest.mark.parametrize("is_cut", [False, True], ids=["gone", "cut"])
def test_a_lost_tree_or_commit_is_a_fault_of_the_copy(
    repository: Repository, open_tree: OpenTree, lost: str, is_cut: bool
) -> None:
    for number in range(50):
        repository.write(f"docs/{number}.md", str(number))
    tree = open_tree()
    path = object_path(repository.bare, repository.git("rev-parse", lost))
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.unlink()
    if is_cut:
        path.write_bytes(half)
    with pytest.raises(GitError) as caught:
        list(tree.entries(WHOLE))
    assert error_class(caught.value) == "corrupt"


@pytest.mark.row("P4")
def test_a_cut_blob_is_a_fault_of_the_copy(repository: Repository, open_tree: OpenTree) -> None:
    repository.write("a.md", os.urandom(100_000))
    tree = open_tree()
    entries = list(tree.entries(WHOLE))
    path = object_path(repository.bare, entries[0].key)
    half = path.read_bytes()[:50_000]
    path.unlink()
    path.write_bytes(half)
    with pytest.raises(GitError):
        list(tree.read(entries))


def test_an_object_that_is_no_blob_is_never_content(
    repository: Repository, open_tree: OpenTree
) -> None:
    tree = open_tree()
    with pytest.raises(GitError):
        list(tree.read([TreeEntry("a.md", repository.head, 1)]))


@pytest.mark.row("P8")
def test_reading_ends_when_the_gateway_stops(
    git: Git, repository: Repository, open_tree: OpenTree
) -> None:
    for number in range(20):
        repository.write(f"{number}.md", os.urandom(100_000))
    tree = open_tree()
    reading = tree.read(list(tree.entries(WHOLE)))
    next(reading)
    git.close()
    with pytest.raises(GitStoppedError):
        list(reading)


def test_a_reader_that_stops_early_leaves_no_file_behind(
    repository: Repository, open_tree: OpenTree
) -> None:
    for number in range(20):
        repository.write(f"{number}.md", os.urandom(100_000))
    tree = open_tree()
    before = sorted(repository.bare.rglob("*"))
    reading = tree.read(list(tree.entries(WHOLE)))
    next(reading)
    del reading
    assert sorted(repository.bare.rglob("*")) == before


def test_a_repository_of_sha256_is_read_too(git: Git, tmp_path: Path) -> None:
    folder = tmp_path / "sha256"
    run_git("init", "--quiet", "--object-format=sha256", str(folder), folder=tmp_path)
    (folder / "a.md").write_text("words")
    run_git("add", "a.md", folder=folder)
    author = ("-c", "user.name=A Writer", "-c", "user.email=writer@example.com")
    run_git(*author, "commit", "--quiet", "--message", "Add", folder=folder)
    commit = run_git("rev-parse", "HEAD", folder=folder).decode().strip()
    assert len(commit) == 64
    assert contents(CommitTree(git, folder / ".git", commit)) == {"a.md": b"words"}


@pytest.mark.row("P4")
def test_a_listing_that_no_memory_should_hold_is_refused(git: Git, repository: Repository) -> None:
    repository.write("a.txt", "words")
    commit = repository.publish()
    blob = repository.git("rev-parse", "HEAD:a.txt")
    # Both trees have 300 entries: 90,000 names, which are 350 MB.
    names = [b"%03d" % number + b"x" * 3_900 for number in range(300)]
    files = tree_of(("100644", name, blob) for name in names)
    folders = tree_of(("40000", name[:3], id_of("tree", files)) for name in names)
    for each in (files, folders):
        run_git("hash-object", "-wt", "tree", "--stdin", stdin=each, folder=repository.bare)
    tree = CommitTree(git, repository.bare, id_of("tree", folders))
    assert tree.changes(load(CommitTree(git, repository.bare, commit), commit)) is None
    with pytest.raises(SourceError) as caught:
        list(tree.entries(WHOLE))
    sentence = (
        "the commit has more than 256 MiB of file names; name the folders to serve by `roots`"
    )
    assert (str(caught.value), error_class(caught.value)) == (sentence, "policy")


# What changed since an earlier commit

ENTRIES: Final = st.sampled_from(
    [
        *(("100644", note(f"id: {name}")) for name in "abb"),
        ("100644", note()),
        ("100755", note()),
        ("100644", note("title: a: b")),
        ("100644", b"# Words\n"),
        ("120000", b"a.md"),
        ("160000", b""),
    ]
)
"""A mode and a content: documents, some of one URI; a fault; nothing of ours; links, submodules."""

NAMES: Final = ("a.md", "a", "a/b.md", "a/c.md", "b/ö x.md", "b/\udce9.md", "b.txt", ":odd/a.md")


def stream(trees: Sequence[Mapping[str, tuple[str, bytes]]]) -> bytes:
    """Return the commits of these trees as `git fast-import` reads them."""
    lines: list[bytes] = []
    for files in trees:
        lines += [b"commit refs/heads/main\ncommitter A <a@example.com> 1 +0000\ndata 0\ndeleteall"]
        for path, (mode, content) in files.items():
            name = os.fsencode(path)
            if mode == "160000":
                lines.append(b"M 160000 %s %s" % (b"1" * 40, name))
            else:
                lines.append(b"M %s inline %s\ndata %d" % (mode.encode(), name, len(content)))
                lines.append(content)
    return b"\n".join([*lines, b""])


def everything(snapshot: Snapshot) -> dict[str, Any]:
    parts = ("commit", "roots", "documents", "starts", "shadowed", "diagnostics", "listing")
    found = {name: getattr(snapshot, name) for name in parts}
    return {**found, "verdicts": dict(snapshot.verdicts), "by_uri": list(snapshot.by_uri.items())}


def load(tree: CommitTree, commit: str, roots: Sequence[PurePosixPath] = WHOLE) -> Snapshot:
    return load_docs(tree, owner="acme", roots=roots, commit=commit)


@pytest.mark.row("P5", "D10")
@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES), ENTRIES, max_size=6), min_size=3, max_size=5),
    st.sampled_from([["."], ["a", "b"], ["b", ":odd", "."], ["a", "gone"], ["a.md", "a"]]),
)
@settings(
    max_examples=int(25 * soak_scale()),
    derandomize=soak_scale() <= 1,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_what_changed_makes_the_snapshot_that_all_files_make(
    git: Git, repository: Repository, trees: list[dict[str, tuple[str, bytes]]], roots: list[str]
) -> None:
    # A file and a folder of one name can't both be there: the later one wins, as in fast-import.
    repository.git("fast-import", "--quiet", "--force", stdin=stream(trees))
    commits = repository.git("rev-list", "--reverse", "refs/heads/main").split()[-len(trees) :]
    paths = [PurePosixPath(root) for root in roots]
    snapshot: Snapshot | None = None
    for commit in commits:
        tree = CommitTree(git, repository.clone / ".git", commit)
        whole = load(tree, commit, paths)
        if snapshot is None:
            snapshot = whole
            continue
        changes = tree.changes(snapshot)
        assert changes is not None
        snapshot = load_changes(tree, changes, owner="acme", commit=commit, previous=snapshot)
        assert everything(snapshot) == everything(whole)


@pytest.mark.row("P5")
def test_what_changed_costs_what_changed(git: Git, repository: Repository) -> None:
    files = {f"{number % 50}/{number}.md": note(f"title: {number}") for number in range(3000)}
    first = repository.fast_import(files)
    snapshot = load(CommitTree(git, repository.clone / ".git", first), first)
    git_dir = repository.clone / ".git"

    second = repository.fast_import({"7/7.md": note("title: new"), "other.txt": b"x"})
    tree = CommitTree(git, git_dir, second)
    before = git.started_processes
    changes = tree.changes(snapshot)
    assert changes is not None
    assert [change.path for change in changes.changes] == ["7/7.md"]
    after = load_changes(tree, changes, owner="acme", commit=second, previous=snapshot)
    assert (after.parsed_files, git.started_processes - before) == (1, 3)

    third = repository.fast_import({"other.txt": b"y"})
    tree = CommitTree(git, git_dir, third)
    before = git.started_processes
    changes = tree.changes(after)
    assert changes is not None
    assert changes.changes == []
    last = load_changes(tree, changes, owner="acme", commit=third, previous=after)
    assert (last.parsed_files, git.started_processes - before) == (0, 1)


@pytest.mark.row("P5")
def test_what_changed_since_another_repositorys_commit_is_not_said(
    git: Git, repository: Repository
) -> None:
    repository.write("a.md", note())
    commit = repository.publish()
    tree = CommitTree(git, repository.bare, commit)
    assert tree.changes(load(tree, commit)) is not None
    assert tree.changes(load(tree, "1" * 40)) is None
    assert tree.changes(load_docs(tree, owner="acme")) is None


@pytest.mark.row("P5", "D10")
def test_what_changed_to_or_from_a_malformed_commit_is_not_said(
    git: Git, repository: Repository
) -> None:
    repository.write("a.md", note())
    good = repository.publish()
    one, two = (repository.git("hash-object", "-w", "--stdin", stdin=each) for each in (b"1", b"2"))
    for blobs in ([one, two], [repository.git("rev-parse", "HEAD:a.md"), one]):
        tree = repository.git(
            *("hash-object", "-t", "tree", "-w", "--literally", "--stdin"),
            stdin=tree_of(("100644", b"a.md", blob) for blob in blobs),
        )
        bad = repository.git("commit-tree", "-m", "Malformed", tree)
        git_dir = repository.clone / ".git"
        good_tree, bad_tree = (CommitTree(git, git_dir, commit) for commit in (good, bad))
        assert bad_tree.changes(load(good_tree, good)) is None
        assert good_tree.changes(load(bad_tree, bad)) is None


@pytest.mark.row("P5")
def test_more_changes_than_are_worth_it_are_not_said(git: Git, repository: Repository) -> None:
    first = repository.fast_import({"a.md": note()})
    git_dir = repository.clone / ".git"
    snapshot = load(CommitTree(git, git_dir, first), first)
    most = repository.fast_import({f"{number}.md": b"x" for number in range(MAX_CHANGES)})
    changes = CommitTree(git, git_dir, most).changes(snapshot)
    assert changes is not None
    assert len(changes.changes) == MAX_CHANGES
    assert (
        CommitTree(git, git_dir, repository.fast_import({"b.md": b"y"})).changes(snapshot) is None
    )


@pytest.mark.parametrize("growth", ["files", "bytes"])
def test_the_bounds_of_a_commit_hold_for_what_changed(
    git: Git, repository: Repository, growth: str
) -> None:
    first = repository.fast_import({"a.md": note()})
    git_dir = repository.clone / ".git"
    snapshot = load(CommitTree(git, git_dir, first), first)
    assert snapshot.listing is not None
    files, size = snapshot.listing
    if growth == "files":
        files = {**files, **dict.fromkeys(map(str, range(MAX_MARKDOWN_FILES - 1)), "1" * 40)}
    else:
        size = MAX_MARKDOWN_BYTES
    full = Snapshot(
        commit=first,
        roots=WHOLE,
        documents=(),
        starts=(0,),
        shadowed=(),
        diagnostics=(),
        verdicts={},
        listing=Listing(files, size),
        parsed_files=0,
    )
    same = repository.fast_import({"a.md": note(body="body.")})
    assert CommitTree(git, git_dir, same).changes(full) is not None
    more = repository.fast_import({"b.md": b"1"})
    assert CommitTree(git, git_dir, more).changes(full) is None


@pytest.mark.row("D4")
def test_a_changed_file_that_is_too_large_is_not_read(git: Git, repository: Repository) -> None:
    first = repository.fast_import({"a.md": note()})
    git_dir = repository.clone / ".git"
    snapshot = load(CommitTree(git, git_dir, first), first)
    second = repository.fast_import({"a.md": bytes(MAX_DOCUMENT_BYTES + 1)})
    tree = CommitTree(git, git_dir, second)
    before = git.started_processes
    changes = tree.changes(snapshot)
    assert changes is not None
    after = load_changes(tree, changes, owner="acme", commit=second, previous=snapshot)
    assert git.started_processes - before == 2
    assert everything(after) == everything(load(tree, second))
    assert [found.message for found in after.diagnostics] == [
        "4194305 bytes; a document has 4 MiB at most"
    ]
