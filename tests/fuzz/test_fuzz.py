"""The fuzzer's own parts work, without the fuzzer: it is no dependency of the tests."""

import re
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import pytest

from fuzz import targets
from fuzz.__main__ import as_test, main
from fuzz.corpus import dictionary, seeds
from fuzz.targets import MAX_BYTES, MAX_GROWTH_KIB, TARGETS, Attempt, BrokenError, bounded


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_each_of_its_seeds(name: str) -> None:
    taken = list(seeds(name))
    assert len(taken) > 20
    with TARGETS[name]() as attempt:
        for seed in taken:
            bounded(attempt)(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_a_dictionary_is_one_that_libfuzzer_reads(name: str) -> None:
    lines = dictionary(name).splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r'"(\\x[0-9a-f]{2})+"', line)] == []


def grow(_: bytes) -> None:
    # More than the process ever had: what it has given back doesn't count as growth.
    assert len(b"x" * (1024 * (getrusage(RUSAGE_SELF).ru_maxrss + MAX_GROWTH_KIB + 2**14)))


def count(_: bytes) -> None:
    assert sum(range(10**7))


def fail(_: bytes) -> None:
    raise RecursionError


@pytest.mark.parametrize(
    ("attempt", "error"), [(grow, BrokenError), (fail, RecursionError)], ids=["memory", "exception"]
)
def test_what_costs_too_much_or_raises_is_a_crash(attempt: Attempt, error: type[Exception]) -> None:
    with pytest.raises(error):
        bounded(attempt)(b"x")


def test_what_takes_too_long_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "MAX_CPU_SECONDS", 0.01)
    with pytest.raises(BrokenError, match="processor time"):
        bounded(count)(b"x")


def test_what_is_longer_than_the_bounds_hold_for_is_left_out() -> None:
    bounded(fail)(b"x" * (MAX_BYTES + 1))


def test_a_broken_promise_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "STATUSES", frozenset({202}))
    with TARGETS["requests"]() as attempt, pytest.raises(BrokenError, match="status 400"):
        attempt(b"\0[]")


def test_a_crash_is_printed_as_a_test_that_runs(tmp_path: Path) -> None:
    crash = tmp_path / "crash-1"
    crash.write_bytes(b"\xff\n'\"")
    text = as_test("frontmatter", crash)
    found: dict[str, object] = {"TARGETS": TARGETS, "bounded": bounded}
    exec(text, found)  # noqa: S102 - our own text
    test = found["test_name_what_is_right"]
    assert callable(test)
    test()
    assert repr(crash.read_bytes()) in text


@pytest.mark.parametrize(("name", "seconds"), [("nothing", 60), ("all", 2)])
def test_who_asks_for_what_there_is_not_is_told_what_there_is(
    capsys: pytest.CaptureFixture[str], name: str, seconds: int
) -> None:
    assert main(name, seconds) == 2
    assert ", ".join(["all", *TARGETS]) in capsys.readouterr().err
