"""The files of a work tree: regular Markdown files below the roots, and nothing else (D1, D10)."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from okf_mcp_server import Diagnostic, load_docs
from okf_mcp_server.tree import TreeEntry, WorkingTree

TOP = PurePosixPath(".")


@pytest.fixture
def deep_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed by what doesn't recurse, which pytest does."""
    folder = tmp_path / "deep"
    folder.mkdir()
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True, timeout=60)


def write(path: Path, content: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def listed(top: Path, *roots: str) -> list[str]:
    entries = WorkingTree(top).entries([PurePosixPath(root) for root in roots or (".",)])
    return sorted(entry.path for entry in entries)


@pytest.mark.row("D1")
def test_a_markdown_file_ends_with_md_in_lower_case(tmp_path: Path) -> None:
    served = ["a.md", ".hidden.md", ".md", ".dot/b.md", "deep/er/c d.md", "x.MD.md", "%41.md"]
    others = ["a.MD", "a.Md", "a.markdown", "a.md.txt", "md", "a.md~", "a.mdx"]
    for name in [*served, *others]:
        write(tmp_path / name)
    assert listed(tmp_path) == sorted(served)


@pytest.mark.row("D1")
def test_a_file_name_may_hold_any_byte(tmp_path: Path) -> None:
    names = [
        b"new\nline.md",
        b"\xff\xfe.md",
        b"back\\slash.md",
        b"\x1b[31m.md",
        "é\u2028.md".encode(),
    ]
    for name in names:
        write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)))
    entries = list(WorkingTree(tmp_path).entries([TOP]))
    assert {os.fsencode(entry.path) for entry in entries} == set(names)
    assert [raw for _, raw in WorkingTree(tmp_path).read(entries)] == [b"x"] * len(names)


def test_only_what_lies_below_a_root_is_listed(tmp_path: Path) -> None:
    for name in ["a/1.md", "a/b/2.md", "ab/3.md", "c/4.md", "5.md"]:
        write(tmp_path / name)
    assert listed(tmp_path, "a", "c") == ["a/1.md", "a/b/2.md", "c/4.md"]
    assert listed(tmp_path, "a/b") == ["a/b/2.md"]
    assert listed(tmp_path, "./a/", "missing") == ["a/1.md", "a/b/2.md"]


def test_a_root_that_is_a_file_has_no_files(tmp_path: Path) -> None:
    write(tmp_path / "a.md")
    assert listed(tmp_path, "a.md") == []


@pytest.mark.row("D10")
def test_links_to_files_are_not_followed_wherever_they_lead(tmp_path: Path) -> None:
    write(tmp_path / "outside.md")
    top = tmp_path / "repository"
    write(top / "a.md")
    (top / "inside.md").symlink_to("a.md")
    (top / "outside.md").symlink_to(tmp_path / "outside.md")
    (top / "broken.md").symlink_to("nothing")
    (top / "loop.md").symlink_to("loop.md")
    (top / "device.md").symlink_to("/dev/zero")
    assert listed(top) == ["a.md"]


@pytest.mark.row("D10")
def test_links_to_folders_are_not_followed_wherever_they_lead(tmp_path: Path) -> None:
    write(tmp_path / "outside/x.md")
    top = tmp_path / "repository"
    write(top / "a/1.md")
    (top / "inside").symlink_to("a")
    (top / "outside").symlink_to(tmp_path / "outside")
    (top / "a/loop").symlink_to(".")
    (top / "named.md").symlink_to("a")
    assert listed(top) == ["a/1.md"]


@pytest.mark.row("D10")
@pytest.mark.parametrize("root", ["link", "link/deeper", "a/link", "a/link/deeper"])
def test_a_root_that_leads_through_a_link_has_no_files(tmp_path: Path, root: str) -> None:
    write(tmp_path / "outside/deeper/x.md")
    write(tmp_path / "repository/a/1.md")
    (tmp_path / "repository/link").symlink_to(tmp_path / "outside")
    (tmp_path / "repository/a/link").symlink_to(tmp_path / "outside")
    assert listed(tmp_path / "repository", root) == []


def test_the_top_itself_may_be_reached_through_a_link(tmp_path: Path) -> None:
    write(tmp_path / "repository/a.md")
    (tmp_path / "link").symlink_to("repository")
    assert listed(tmp_path / "link") == ["a.md"]


@pytest.mark.row("D10")
def test_what_git_keeps_for_itself_is_not_read(tmp_path: Path) -> None:
    for name in [".git/x.md", "nested/.git/x.md", "nested/1.md", ".github/2.md", "git/3.md"]:
        write(tmp_path / name)
    write(tmp_path / "module/.git", b"gitdir: ../x")
    assert listed(tmp_path) == [".github/2.md", "git/3.md", "nested/1.md"]


@pytest.mark.row("D10")
def test_what_is_not_a_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "folder.md").mkdir()
    write(tmp_path / "folder.md/a.md")
    assert listed(tmp_path) == ["folder.md/a.md"]


def test_an_entry_says_where_a_file_lies_and_how_large_it_is(tmp_path: Path) -> None:
    write(tmp_path / "a/b.md", b"four")
    status = (tmp_path / "a/b.md").stat()
    key = f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}:4"
    assert list(WorkingTree(tmp_path).entries([TOP])) == [TreeEntry("a/b.md", key, 4)]


def test_a_moved_file_keeps_its_key_and_a_changed_one_has_another(tmp_path: Path) -> None:
    write(tmp_path / "a.md")
    (before,) = WorkingTree(tmp_path).entries([TOP])
    (tmp_path / "a.md").rename(tmp_path / "b.md")
    (moved,) = WorkingTree(tmp_path).entries([TOP])
    write(tmp_path / "b.md", b"longer")
    (changed,) = WorkingTree(tmp_path).entries([TOP])
    assert (moved.key == before.key, changed.key == before.key) == (True, False)


@pytest.mark.row("D4", "D10")
def test_a_file_that_turned_into_something_else_is_an_error_of_that_file(tmp_path: Path) -> None:
    for name in ["gone.md", "link.md", "good.md", "folder.md"]:
        write(tmp_path / name)
    write(tmp_path / "secret", b"secret")
    tree = WorkingTree(tmp_path)
    entries = sorted(tree.entries([TOP]), key=lambda entry: entry.path)
    for name in ["gone.md", "link.md", "folder.md"]:
        (tmp_path / name).unlink()
    (tmp_path / "link.md").symlink_to("secret")
    (tmp_path / "folder.md").mkdir()

    found = {
        entry.path: raw if isinstance(raw, bytes) else raw.errno
        for entry, raw in tree.read(entries)
    }

    assert found == {
        "folder.md": errno.EISDIR,
        "gone.md": errno.ENOENT,
        "good.md": b"x",
        "link.md": errno.ELOOP,
    }


@pytest.mark.row("D4")
def test_a_file_that_vanishes_while_its_folder_is_listed_is_an_error_of_that_file(
    tmp_path: Path,
) -> None:
    for name in ["a.md", "b.md"]:
        write(tmp_path / name)
    tree = WorkingTree(tmp_path)
    listing = iter(tree.entries([TOP]))
    first = next(listing)
    other = ({"a.md", "b.md"} - {str(first.path)}).pop()
    (tmp_path / other).unlink()

    (second,) = listing

    ((_, error),) = tree.read([second])
    assert (str(second.path), isinstance(error, FileNotFoundError)) == (other, True)


@pytest.mark.row("D4")
def test_what_may_not_be_read_is_an_error_of_that_file_or_folder(plain_user_folder: Path) -> None:
    top = plain_user_folder
    for name in ["good.md", "locked.md", "listed-only/1.md", "shut/2.md"]:
        write(top / name)
    (top / "locked.md").chmod(0)
    (top / "listed-only").chmod(0o400)
    (top / "shut").chmod(0)
    tree = WorkingTree(top)

    found = {entry.path: type(raw) for entry, raw in tree.read(tree.entries([TOP]))}

    for name in ["listed-only", "shut"]:
        (top / name).chmod(0o700)
    assert found == {
        "good.md": bytes,
        "locked.md": PermissionError,
        "listed-only/1.md": PermissionError,
        "shut": PermissionError,
    }


@pytest.mark.row("D12")
def test_a_root_without_files_says_why(tmp_path: Path) -> None:
    top = tmp_path
    write(top / "a.md")
    write(top / "folder/b.txt")
    (top / "link").symlink_to("folder")
    tree = WorkingTree(top)

    found = {
        root: (list(tree.entries([PurePosixPath(root)])), tree.why_empty(PurePosixPath(root)))
        for root in ["gone", "a.md", "a.md/x", "folder", "link", "link/x"]
    }

    is_link = "this scan root is a symbolic link, or behind one, and links are not followed"
    is_file = "this scan root is a file; name the folder that holds it"
    assert found == {
        "gone": ([], "this scan root doesn't exist; is its name right?"),
        "a.md": ([], is_file),
        "a.md/x": ([], "this scan root doesn't exist; is its name right?"),
        "folder": ([], "this scan root holds no Markdown file; is its name right?"),
        "link": ([], is_link),
        "link/x": ([], is_link),
    }


@pytest.mark.row("D4")
def test_a_root_that_may_not_be_read_is_an_error_of_its_own(plain_user_folder: Path) -> None:
    write(plain_user_folder / "shut/a.md")
    (plain_user_folder / "shut").chmod(0)

    snapshot = load_docs(
        WorkingTree(plain_user_folder),
        owner="acme",
        roots=[PurePosixPath(name) for name in ("shut", "shut/deep", "x" * 300)],
    )

    (plain_user_folder / "shut").chmod(0o700)
    assert snapshot.diagnostics == (
        Diagnostic("unreadable", "warning", "shut", 1, "can't be read: Permission denied"),
        Diagnostic("unreadable", "warning", "shut/deep", 1, "can't be read: Permission denied"),
        Diagnostic("unreadable", "warning", "x" * 300, 1, "can't be read: File name too long"),
    )


@pytest.mark.row("D4")
def test_folders_may_nest_deeper_than_python_recurses(deep_folder: Path) -> None:
    here = os.open(deep_folder, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 100):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("a.md", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)
    assert [path.count("/") for path in listed(deep_folder)] == [sys.getrecursionlimit() + 100]


def test_a_tree_lists_the_names_that_it_accepts(tmp_path: Path) -> None:
    for name in ["a.md", "b.MD", "c.txt"]:
        write(tmp_path / name)
    tree = WorkingTree(tmp_path, accepts=lambda name: name.endswith(".MD"))
    assert [entry.path for entry in tree.entries([TOP])] == ["b.MD"]
