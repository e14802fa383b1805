"""The speed that we promise, as far as a noisy machine can tell: CPU time and counters alone.

Each tier runs in a process of its own, which coverage doesn't follow: it would measure that.
"""

import os
import sys
from pathlib import Path

import pytest
from bench.__main__ import TIERS

from support.children import run_child

PROJECT = Path(__file__).parent.parent
DEADLINE_SECONDS = 300.0
ONLY_REPORTED = {"reads"}
PASSED_ON = ("PATH", "PYTEST_XDIST_WORKER", "TMPDIR")


@pytest.mark.parametrize("tier", sorted(TIERS.keys() - ONLY_REPORTED))
def test_the_figures_of_a_tier_pass_their_gates(tier: str) -> None:
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    ended = run_child(
        [sys.executable, "-m", "bench.gates", tier],
        folder=PROJECT,
        environment={**environment, "PYTHONPATH": f"{PROJECT}:{PROJECT / 'tests'}"},
        deadline=DEADLINE_SECONDS,
    )
    assert ended.status == 0, ended.output
