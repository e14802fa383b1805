"""Scan roots and owner name of the stdio server and the linter (D12, D13)."""

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest

from okf_mcp_server.roots import (
    OwnerError,
    RootsError,
    choose_owner,
    choose_roots,
    choose_scope,
    find_top,
)
from support.repositories import git

ENVIRON = {"PATH": os.environ["PATH"]}


@pytest.mark.row("D12")
@pytest.mark.parametrize(
    ("flag", "variable", "expected"),
    [
        (None, None, []),
        ("", "", []),
        (" , ", " : ", []),
        ([], None, []),
        ("a,b", "c:d", ["a", "b"]),
        (" a/ ,, ./b ", None, ["a", "b"]),
        ("a:b", None, ["a:b"]),
        (None, "c:d", ["c", "d"]),
        ("", "c:d", ["c", "d"]),
        (",", "::c:", ["c"]),
        (None, "c,d", ["c,d"]),
        (["a", "b,c"], "d", ["a", "b,c"]),
        (("", " "), "d", ["d"]),
        (".", None, ["."]),
        ("a,a/,./a,b", None, ["a", "b"]),
        ("b,a", None, ["b", "a"]),
        ("..a,b..,...", None, ["..a", "b..", "..."]),
        ("größe — x", None, ["größe — x"]),
    ],
    ids=repr,
)
def test_the_first_source_that_names_a_root_wins(
    flag: str | Sequence[str] | None, variable: str | None, expected: list[str]
) -> None:
    environ = {} if variable is None else {"OKF_MCP_ROOTS": variable}
    assert choose_roots(flag, environ) == tuple(map(PurePosixPath, expected))


@pytest.mark.row("D12")
@pytest.mark.parametrize("variable", ["", "design:backlog/docs:backlog/decisions"])
def test_who_names_no_root_gets_those_of_the_contract(tmp_path: Path, variable: str) -> None:
    environ = {**ENVIRON, "OKF_MCP_ROOTS": variable}
    scope = choose_scope(tmp_path, roots=None, owner=None, environ=environ)
    assert list(map(str, scope.roots)) == ["design", "backlog/docs", "backlog/decisions"]
    assert scope.has_chosen_roots is bool(variable)


@pytest.mark.row("D10", "D12")
@pytest.mark.parametrize(
    "root", ["/", "/etc", "..", "../x", "a/../..", "a/../b", "//a", "a\0b", "\ud800"]
)
@pytest.mark.parametrize("source", ["flag", "sequence", "variable"])
def test_a_root_that_may_leave_the_repository_is_refused(root: str, source: str) -> None:
    environ = {"OKF_MCP_ROOTS": f"a:{root}"} if source == "variable" else {}
    flag = {"flag": f"a,{root}", "sequence": ["a", root], "variable": None}[source]
    with pytest.raises(RootsError) as caught:
        choose_roots(flag, environ)
    expected = f"the scan root {root!r} must be a relative path inside the repository"
    assert str(caught.value) == expected


@pytest.mark.row("D13")
@pytest.mark.parametrize(
    ("flag", "variable", "top", "expected"),
    [
        ("flag", "variable", "/x/top", "flag"),
        (" flag ", None, "/x/top", "flag"),
        ("", "variable", "/x/top", "variable"),
        (None, " variable ", "/x/top", "variable"),
        (" ", " ", "/x/top", "top"),
        (None, None, "/x/top", "top"),
        (None, None, None, "folder"),
        (None, "variable", None, "variable"),
        (None, None, "/", "owner"),
        ("two words/größe", None, None, "two words/größe"),
    ],
)
def test_the_owner_is_the_first_name_that_is_given(
    tmp_path: Path, flag: str | None, variable: str | None, top: str | None, expected: str
) -> None:
    environ = {} if variable is None else {"OKF_MCP_OWNER": variable}
    cwd = tmp_path / "folder"
    assert choose_owner(flag, environ, Path(top) if top else None, cwd) == expected


@pytest.mark.row("D13")
def test_the_working_directory_has_a_name_however_it_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    assert choose_owner(None, {}, None, Path()) == "folder"


@pytest.mark.row("D7", "D13")
@pytest.mark.parametrize("name", [".", "..", os.fsdecode(b"\xff")], ids=ascii)
def test_an_owner_whose_name_no_uri_can_hold_is_refused(name: str) -> None:
    message = f"the owner's name {name!r} can't stand in a URI; give another one with --owner"
    with pytest.raises(OwnerError) as caught:
        choose_owner(name, {}, None, Path("/"))
    assert str(caught.value) == message


@pytest.mark.row("D13")
def test_the_top_is_found_from_a_folder_of_the_repository(tmp_path: Path) -> None:
    top = tmp_path / "a b\n"
    (top / "deep/er").mkdir(parents=True)
    git("init", "--quiet", folder=top)
    assert find_top(top, ENVIRON) == top.resolve()
    assert find_top(top / "deep/er", ENVIRON) == top.resolve()


@pytest.mark.row("D13")
def test_what_a_hook_tells_git_names_no_other_repository(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name / "deep").mkdir(parents=True)
        git("init", "--quiet", folder=tmp_path / name)
    hook = {**ENVIRON, "GIT_DIR": str(tmp_path / "other/.git"), "GIT_WORK_TREE": "."}
    assert find_top(tmp_path / "mine/deep", hook) == (tmp_path / "mine").resolve()


def test_there_is_no_top_outside_a_repository(tmp_path: Path) -> None:
    assert (find_top(tmp_path, ENVIRON), find_top(tmp_path / "missing", ENVIRON)) == (None, None)


@pytest.mark.row("D13")
def test_a_bare_repository_is_refused(tmp_path: Path) -> None:
    top = tmp_path / "acme.git"
    top.mkdir()
    git("init", "--quiet", "--bare", folder=top)
    with pytest.raises(RootsError) as caught:
        find_top(top, ENVIRON)
    assert str(caught.value) == (
        "acme.git is a bare git repository, which has no files to read; "
        "clone it, and run this in the clone"
    )


@pytest.mark.row("D10", "D13")
@pytest.mark.parametrize("elsewhere", ["elsewhere", "."])
def test_a_repository_whose_files_lie_elsewhere_is_refused(tmp_path: Path, elsewhere: str) -> None:
    for name in ("acme", "elsewhere"):
        (tmp_path / name).mkdir()
    git("init", "--quiet", folder=tmp_path / "acme")
    git("config", "core.worktree", str(tmp_path / elsewhere), folder=tmp_path / "acme")
    with pytest.raises(RootsError) as caught:
        find_top(tmp_path / "acme", ENVIRON)
    assert str(caught.value) == (
        "acme lies outside of its git repository's files (core.worktree); "
        "nothing outside of a repository is read"
    )


@pytest.mark.row("D13")
def test_a_repository_of_another_user_has_its_top(tmp_path: Path) -> None:
    git("init", "--quiet", folder=tmp_path)
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, -1)
    assert find_top(tmp_path, ENVIRON) == tmp_path.resolve()


def test_there_is_no_top_without_git(tmp_path: Path) -> None:
    git("init", "--quiet", folder=tmp_path)
    assert find_top(tmp_path, {"PATH": str(tmp_path)}) is None
