"""What the tiers found, as Markdown."""

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.figures import Figure, Findings

RESULTS: Final = Path(__file__).with_name("RESULTS.md")

README: Final = RESULTS.parents[1] / "README.md"

NOTES: Final = Path(__file__).with_name("NOTES.md")
"""What is written by hand, on what was not reached and why; the results take it in."""

_ROW: Final = re.compile(
    r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| (?:not )?reached \|$", re.MULTILINE
)
"""A figure in the results: name, goal, gate, what was measured."""

_HOW: Final = """\
Written by `make bench`. A ratio is taken in each round, in which all that is compared takes turns;
shown are the median and, in brackets, the least and the most of all rounds. A goal is what we want;
a gate is what `make test` insists on, by CPU time and counters, since requests per second say more
about a machine's neighbours than about the server."""

_PARTS: Final = (
    "mcp",
    "starlette",
    "uvicorn",
    "uvloop",
    "httptools",
    "pydantic",
    "anyio",
    "PyYAML",
)

_SIGNS: Final = {"at least": "≥", "at most": "≤", "exactly": "="}


def write_results(
    found: Mapping[str, Findings], about: Mapping[str, str], load_before: float
) -> None:
    """Write the whole report, over the one before, and let the README quote it.

    `about` says of each tier how it measures; `load_before` is how busy the machine was with other
    work when it began.
    """
    figures = [figure for findings in found.values() for figure in findings.figures]
    details = "\n".join(
        f"## {name}\n\n{about[name]}\n\n{_details(findings)}" for name, findings in found.items()
    )
    RESULTS.write_text(
        f"# Results of the benchmark\n\n{_HOW}\n\n{_machine()}\n"
        f"Its load was {load_before:.2f} before the first tier.\n\n{_table_of(figures)}\n"
        f"## What was not reached, and why\n\n{NOTES.read_text()}\n{details}"
    )
    README.write_text(quoted(README.read_text(), RESULTS.read_text()))


def quoted(readme: str, results: str) -> str:
    """Return the README with its figures as they stand in the results.

    Each row of its section `Speed` that begins with a figure's name has that figure's goal and what
    was measured.
    """
    measured = {row[1]: row for row in _ROW.finditer(results)}

    def quote(row: re.Match[str]) -> str:
        found = measured.get(row[1])
        return f"| {found[1]} | {found[2]} | {found[4]} |" if found else row[0]

    before, heading, rest = readme.partition("\n## Speed\n")
    section, following, after = rest.partition("\n## ")
    section = re.sub(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \|$", quote, section, flags=re.MULTILINE)
    return before + heading + section + following + after


def render(name: str, findings: Findings) -> str:
    """Return what one tier found, to be read on a terminal."""
    return f"## {name}\n\n{_table_of(findings.figures)}\n{_details(findings)}"


def _table_of(figures: Sequence[Figure]) -> str:
    return _markdown(("figure", "goal", "gate", "measured", ""), map(_row, figures))


def _details(findings: Findings) -> str:
    parts = [
        f"{table.title}:\n\n{_markdown(table.columns, table.rows)}" for table in findings.tables
    ]
    return "\n".join([*parts, *(f"{remark}\n" for remark in findings.remarks)])


def _row(figure: Figure) -> Sequence[str]:
    sign = _SIGNS[figure.sense]
    return (
        figure.name,
        f"{sign} {_number(figure.goal, figure.unit)}",
        "reported" if figure.gate is None else f"{sign} {_number(figure.gate, figure.unit)}",
        f"{_number(figure.value, figure.unit)} ({figure.low:.3g}..{figure.high:.3g})",
        "reached" if figure.is_reached else "not reached",
    )


def _number(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}".rstrip()


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _machine() -> str:
    """Say what it was measured on, without a name or a path of the machine."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    git = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout
    parts = [f"Python {platform.python_version()}", git.strip()]
    parts += [f"{name} {version(name)}" for name in _PARTS]
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, on {os.cpu_count()} processors"
        f" ({model[1] if model else platform.machine()}), {platform.system()}.\n"
        f"{', '.join(parts)}."
    )
