"""Run the benchmark: `python -m bench [TIER] [--peers]`, in the project's folder.

Without a tier all of them run, and what they find is written to `bench/RESULTS.md`.
"""

import argparse
import inspect
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from bench import loads, meanwhile, memory, micro, pulls, start, wire
from bench.answers import WrongAnswerError
from bench.figures import FULL, Effort, Findings
from bench.report import render, write_results

Measure = Callable[[Effort, Path], Findings]

TIERS: Final[Mapping[str, Measure]] = {
    "micro": micro.measure,
    "wire": wire.measure,
    "load": loads.measure,
    "git": pulls.measure,
    "reads": meanwhile.measure,
    "start": start.measure,
    "memory": memory.measure,
}
"""What can be measured, in the order of the report; each gets an empty folder of its own."""


def run_tier(name: str, effort: Effort) -> Findings:
    """Run one tier to its end, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return TIERS[name](effort, Path(folder))


def _about(measure: Measure) -> str:
    return inspect.getdoc(sys.modules[measure.__module__]) or ""


def _first(error: BaseException) -> BaseException:
    """Return the error that a group is about."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    return _first(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])


def main() -> None:
    """Run what is asked for, and print it."""
    parser = argparse.ArgumentParser(prog="bench", allow_abbrev=False)
    parser.add_argument("tier", nargs="?", choices=("", *TIERS), default="")
    parser.add_argument("--peers", action="store_true", help="measure other people's servers, too")
    arguments = parser.parse_args()
    effort = replace(FULL, with_peers=arguments.peers)
    load_before = os.getloadavg()[0]
    found: dict[str, Findings] = {}
    for name in [arguments.tier] if arguments.tier else TIERS:
        began = time.monotonic()
        try:
            found[name] = run_tier(name, effort)
        except* WrongAnswerError as wrong:
            sys.exit(f"bench: {name} stopped at a wrong answer: {_first(wrong)}")
        print(render(name, found[name]))
        print(f"{name} took {time.monotonic() - began:.0f} s", file=sys.stderr)
    if not arguments.tier:
        about = {name: _about(measure) for name, measure in TIERS.items()}
        write_results(found, about, load_before)


if __name__ == "__main__":
    main()
