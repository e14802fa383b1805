"""Hold one tier against its gates, as briefly as can be: `python -m bench.gates TIER`.

Ends with status 1 if a figure doesn't pass, twice: the second time with more rounds, for a
neighbour may have had the processor. What is far off gets no second try.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from bench.__main__ import run_tier
from bench.figures import BRIEF, Effort, Findings
from bench.report import render

MORE_ROUNDS: Final = 3
"""How many times as many the second try has."""


def hold(name: str, measure: Callable[[Effort], Findings]) -> bool:
    """Print what a tier finds, and say whether its figures pass their gates within two tries."""
    for effort in (BRIEF, replace(BRIEF, rounds=BRIEF.rounds * MORE_ROUNDS)):
        found = measure(effort)
        print(render(name, found), flush=True)
        if all(figure.is_through for figure in found.figures):
            return True
        if any(figure.is_far_off for figure in found.figures):
            return False
    return False


if __name__ == "__main__":
    tier = sys.argv[1]
    sys.exit(0 if hold(tier, partial(run_tier, tier)) else 1)
