"""Hold the tests against the contract: every row of the reference has a test that passed.

A test says what it proves by `@pytest.mark.row("D6", ...)`. The reference says what there is to
prove: a table row or a heading that begins with an id, such as `| D6 |` or `### D6`. Both are
compared at the end of a full run only, for a part of the tests proves a part of the rows. The
reports carry what a test claims, so that it doesn't matter which process ran it.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

_ROW = re.compile(r"(?:\|\s*|#{1,6}\s+)(?:<a [^>]*></a>)?\s*[*_`\[]*([A-Z]\d{1,3})\b")
_FENCE = re.compile(r"\s*(```|~~~)")

_CLAIM = "row"
"""The name of the property of a report that holds a row."""

_LEFT_OUT = "npm"
"""The marker of tests that a full run leaves out; what they prove beside it doesn't count."""

_NARROWING = ("keyword", "deselect", "ignore", "ignore_glob", "collectonly", "lf", "stepwise")
"""The options by which less than every test runs."""


def read_row_ids(reference: str) -> frozenset[str]:
    """Return the ids of all rows in a Markdown text; blocks of code are passed over."""
    return frozenset(match[1] for line in _lines_of_prose(reference) if (match := _ROW.match(line)))


class RowLedger:
    """A pytest plugin: register it with the path of the reference.

    Without a reference there is nothing to compare with: then it only says so.
    """

    def __init__(self, reference: Path) -> None:
        """Start with an empty ledger."""
        self._reference = reference
        # Written by the hooks below, in the order of a run.
        self._tests_by_row: dict[str, list[str]] = {}
        self._passed: set[str] = set()
        self._remarks: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Let the reports of each test carry the rows that it claims."""
        for each in items:
            for marker in each.iter_markers("row"):
                each.user_properties.extend((_CLAIM, str(row)) for row in marker.args)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note who claims what and who passed; one that is skipped or may fail proves nothing."""
        if report.when == "setup":
            for name, row in report.user_properties:
                if name == _CLAIM:
                    self._tests_by_row.setdefault(str(row), []).append(report.nodeid)
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compare, and let the session fail if the two differ."""
        if _is_one_of_several(session.config) or not self._is_full(session):
            return
        if not self._reference.exists():
            self._remarks = [f"{self._reference} is not there: no row was checked"]
            return
        known = read_row_ids(self._reference.read_text(encoding="utf-8"))
        self._remarks = [*self._find_unproven(known), *self._find_unknown(known)]
        if self._remarks and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say where they differ."""
        if self._remarks:
            terminalreporter.section("rows of the contract")
            for remark in self._remarks:
                terminalreporter.line(remark)

    def _is_full(self, session: pytest.Session) -> bool:
        ended = session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.TESTS_FAILED,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        )
        config = session.config
        is_cut_short = bool(session.shouldstop or session.shouldfail)
        is_narrowed = any(config.getoption(name, default=None) for name in _NARROWING)
        is_narrowed = is_narrowed or config.getoption("markexpr") not in {"", f"not {_LEFT_OUT}"}
        return ended and not is_cut_short and not is_narrowed and not _selects_paths(config)

    def _find_unproven(self, known: frozenset[str]) -> Iterator[str]:
        for row in sorted(known, key=_by_number):
            claims = self._tests_by_row.get(row, [])
            if not claims:
                yield f"{row}: no test claims it"
            elif not self._passed.intersection(claims):
                yield f"{row}: no test that claims it ran and passed: {_names(claims)}"

    def _find_unknown(self, known: frozenset[str]) -> Iterator[str]:
        for row in sorted(self._tests_by_row.keys() - known, key=_by_number):
            yield f"{row}: the reference knows no such row: {_names(self._tests_by_row[row])}"


def _is_one_of_several(config: pytest.Config) -> bool:
    """Whether this is a worker of pytest-xdist: the process that started it compares."""
    return hasattr(config, "workerinput")


def _selects_paths(config: pytest.Config) -> bool:
    """Whether the command line names less than what a bare `pytest` would run."""
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return False
    whole = {config.rootpath / each for each in config.getini("testpaths")} or {config.rootpath}
    named = {config.invocation_params.dir / each for each in config.args}
    return not (whole <= named or config.rootpath in named)


def _lines_of_prose(text: str) -> Iterator[str]:
    opened_by: str | None = None
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if fence and opened_by in (None, fence[1]):
            opened_by = None if opened_by else fence[1]
        elif opened_by is None:
            yield line


def _names(tests: Sequence[str]) -> str:
    """Name each test once, whatever its parameters."""
    return ", ".join(dict.fromkeys(each.partition("[")[0] for each in tests))


def _by_number(row: str) -> tuple[str, int, str]:
    number = row[1:]
    return (row[:1], int(number) if number.isdecimal() else 0, row)
