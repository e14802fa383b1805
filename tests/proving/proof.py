"""Take each protection away in a copy of the project, and see its tests fail."""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from proving.copies import copy_again, copy_project, python_of
from proving.leftovers import end_leftovers
from proving.protections import ListError, Protection, read_protections
from support.children import Ended, run_child

AT_A_TIME = 2
DEADLINE_SECONDS = 60.0
"""For the tests of one protection, which are meant to fail within half of that."""

_PASSED_ON = ("HOME", "LANG", "LC_ALL", "PATH", "TZ")
_COMPARABLE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


def prove(
    project: Path, protections: Path, *, only: str = "", deadline: float = DEADLINE_SECONDS
) -> bool:
    """Print of each protection whose name holds `only` if it is proven; return whether all are.

    `deadline` is for the tests of one protection, once that is taken away.
    Raises `ListError` if the list can't be read, or holds no such name.
    """
    chosen = [each for each in read_protections(protections) if only in each.name]
    if not chosen:
        raise ListError(f"{protections.name}: no protection has {only!r} in its name")
    started_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="prove-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # some tests run what they test as another user
        proof = _Proof(Path(folder).resolve(), deadline)
        proven = proof.run(project, chosen)
    seconds = time.monotonic() - started_at
    _say(f"{proven} of {len(chosen)} protections proven in {seconds:.0f} s")
    return proven == len(chosen)


@dataclass(frozen=True, slots=True)
class _Proof:
    folder: Path
    """Where all copies are; empty at first."""
    deadline: float

    def run(self, project: Path, chosen: Sequence[Protection]) -> int:
        """Return how many of the protections are proven."""
        unchanged = self._copy_of(0)
        copy_project(project, unchanged)
        fitting = [each for each in chosen if _fits(each, unchanged)]
        tests = list(dict.fromkeys(test for each in fitting for test in each.tests))
        if not tests:
            return 0
        workers = str(AT_A_TIME if len(tests) > 1 else 0)
        _say(f"{len(tests)} tests that must pass as long as nothing is taken away ...")
        try:
            before = _run(unchanged, tests, DEADLINE_SECONDS * len(tests), "-n", workers)
        except TimeoutError as error:
            _say(str(error))
            return 0
        if before.status:
            _say(before.output)
        if before.status not in _COMPARABLE:
            return 0
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            try:
                jobs = [
                    pool.submit(self._judge, number, each, before)
                    for number, each in enumerate(fitting, start=1)
                ]
                return sum(job.result() for job in jobs)
            finally:
                pool.shutdown(cancel_futures=True)

    def _judge(self, number: int, protection: Protection, before: Ended) -> bool:
        """Print whether the protection is proven, and why not."""
        started_at = time.monotonic()
        copy = self._copy_of(number)
        objection = self._objection(copy, protection, before)
        shutil.rmtree(copy.parent, ignore_errors=True)
        seconds = time.monotonic() - started_at
        if objection is None:
            _say(f"proven      {protection.name} ({seconds:.1f} s)")
        else:
            _say(f"NOT PROVEN  {protection.name} ({seconds:.1f} s): {objection}")
        return objection is None

    def _objection(self, copy: Path, protection: Protection, before: Ended) -> str | None:
        """Say why a protection isn't proven; None if it is."""
        for test in protection.tests:
            if _has_failed(test, before):
                return f"{test} fails before it is taken away"
        copy_again(self._copy_of(0), copy)
        protection.remove_from(copy)
        try:
            after = _run(copy, protection.tests, self.deadline)
        except TimeoutError as error:
            return f"its tests don't fail, they don't end\n{error}"
        if after.status not in _COMPARABLE:
            return f"its tests don't fail, they don't run\n{after.output}"
        for test in protection.tests:
            if not _has_failed(test, after):
                return f"{test} does not fail without it\n{after.output}"
        return None

    def _copy_of(self, number: int) -> Path:
        return self.folder / str(number) / "project"


def _fits(protection: Protection, project: Path) -> bool:
    """Print why a protection doesn't fit the project, if it doesn't."""
    faults = list(protection.faults(project))
    if faults:
        _say(f"NOT PROVEN  {protection.name}: {'; '.join(faults)}")
    return not faults


def _run(copy: Path, tests: Sequence[str], deadline: float, *options: str) -> Ended:
    """Run tests in a copy, and leave no process of theirs behind. Raises `TimeoutError`."""
    temporary = copy.parent / "tmp"
    temporary.mkdir()
    telling = ["-q", "-rfE", "--tb=short", "-p", "no:cacheprovider"]
    variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    try:
        return run_child(
            [python_of(copy), "-m", "pytest", *telling, *options, *tests],
            folder=copy,
            environment={**variables, "TMPDIR": str(temporary)},
            deadline=deadline,
        )
    finally:
        end_leftovers(copy.parent)


def _has_failed(test: str, ended: Ended) -> bool:
    """Whether pytest's summary says that the test failed: one that met an error didn't even run."""
    line = f"FAILED {test}"
    return any(
        each == line or each.startswith((f"{line}[", f"{line} - "))
        for each in ended.stdout.splitlines()
    )


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the report of a command
