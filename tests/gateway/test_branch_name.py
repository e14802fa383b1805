"""`is_branch_name` answers as git does: git itself is asked about the same names."""

import random
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from string import ascii_letters

import pytest

from okf_mcp_gateway.branch_name import is_branch_name
from support.repositories import git, git_environment

TABLE = [
    *("main", "feature/x", "refs/heads/main", "v1.0", "007", "no", "1.10", "a" * 300, "ünï/日本"),
    *("0123456789abcdef0123456789abcdef01234567", "ABCDEF0123456789ABCDEF0123456789ABCDEF01"),
    *("@", "a@", "@a", "@/a", "a/@", "a@b", "{", "a{b", "@{", "a@{b", "@{-1}", "@{-1}/x", "@{u}"),
    *("", "HEAD", "head", "HEAD/a", "a/HEAD", "refs/heads/HEAD", "FETCH_HEAD"),
    *("-", "-x", "--branch", "--help", "a/-", "a-", "/", "/a", "a/", "a//b", "a/b/c"),
    *(".", "..", ".a", "a.", "a/.b", "a./b", "a/b.", "a..b", "a.b", "a/..", "...", "./a"),
    *(".lock", "a.lock", "a.lock/b", "a/b.lock", "a.lockb", "a.LOCK", "lock", "a.lock.", "a.locks"),
    *("a b", " a", "a ", "\t", "a\tb", "a\nb", "main\n", "\n", "a\x01b", "a\x1fb", "a\x7fb"),
    *("a~1", "a^", "a:b", "a?", "a*", "*", "a[", "a]", "a\\b", "a'b", 'a"b', "a!b", "a#b", "a$b"),
    *("a%b", "a&b", "a(b)", "a+b", "a,b", "a;b", "a<b>", "a=b", "a`b", "a|b", "a}b"),
    *("\x80", "a\x85b", "a\xa0b", "a\u2028b", "\ufeff", "\U0010ffff", "🦊/x"),
]
PIECES = [
    *("a", "b", "ab", "HEAD", "main", "0", "é", "日", "\x85", "\u2028", "\U0001f98a"),
    *("/", "/", "//", ".", ".", "..", "-", "@", "{", "@{", "}", ".lock", "lock", ".LOCK"),
    *(" ", "~", "^", ":", "?", "*", "[", "]", "\\", "\t", "\n", "\r", "\x01", "\x1f", "\x7f"),
]
GENERATED = 2_000
SEED = 20_260_717
DEADLINE_SECONDS = 30
GITS_AT_A_TIME = 4


def gits_answer(name: str, folder: Path) -> bool:
    asked = subprocess.run(
        ["git", "check-ref-format", "--branch", name.encode()],
        cwd=folder,
        env=git_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert asked.returncode in {0, 128, 129}, asked
    return asked.returncode == 0


def generated_names() -> Iterator[str]:
    choice = random.Random(SEED)  # noqa: S311 - the same names in each run
    for _ in range(GENERATED):
        # Mostly letters, so that about as many are taken as are refused.
        pieces = choice.choices(PIECES, k=choice.randrange(1, 7))
        yield "".join(
            piece if choice.random() < 0.3 else choice.choice(ascii_letters) for piece in pieces
        )


def differences(names: Iterable[str], folder: Path) -> tuple[dict[str, bool], int]:
    """Return git's answers where ours differ, and how many names git takes."""
    once = list(dict.fromkeys(names))
    with ThreadPoolExecutor(GITS_AT_A_TIME) as threads:
        answers = list(threads.map(partial(gits_answer, folder=folder), once))
    asked = dict(zip(once, answers, strict=True))
    different = {name: answer for name, answer in asked.items() if is_branch_name(name) != answer}
    return different, sum(answers)


@pytest.mark.row("G3")
def test_git_answers_the_same_about_every_odd_name_that_we_know(tmp_path: Path) -> None:
    different, taken = differences(TABLE, tmp_path)
    assert different == {}
    assert 0 < taken < len(TABLE)


@pytest.mark.row("G3")
def test_git_answers_the_same_about_every_character_of_ascii(tmp_path: Path) -> None:
    names = [f"a{chr(code)}b" for code in range(1, 128)]  # no argument can hold a NUL
    assert differences(names, tmp_path)[0] == {}


@pytest.mark.row("G3")
def test_git_answers_the_same_about_names_made_at_random(tmp_path: Path) -> None:
    different, taken = differences(generated_names(), tmp_path)
    assert different == {}
    assert GENERATED // 4 < taken < GENERATED * 3 // 4


@pytest.mark.row("G3")
@pytest.mark.parametrize("name", ["a\x00b", "\x00", "\ud800", "a\udfffb"], ids=ascii)
def test_what_can_not_be_an_argument_of_git_is_no_name(name: str) -> None:
    assert not is_branch_name(name)


@pytest.mark.row("G3")
def test_no_repository_has_a_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    for command in (
        ["init", "--quiet"],
        [*identity, "commit", "--quiet", "--allow-empty", "--message", "x"],
        ["checkout", "--quiet", "-b", "other"],
    ):
        git(*command, folder=tmp_path)
    assert gits_answer("@{-1}", tmp_path)  # there it is expanded to a branch
    monkeypatch.chdir(tmp_path)
    assert not is_branch_name("@{-1}")
