"""What a tier finds: figures with a goal and a gate, tables without, and sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

Sense = Literal["at least", "at most", "exactly"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of interest: a sample a round, and what their median has to reach."""

    name: str
    samples: tuple[float, ...]
    sense: Sense
    goal: float
    gate: float | None
    unit: str = ""

    @property
    def value(self) -> float:
        """The median of all rounds: one round in a neighbour's shadow moves it little."""
        return median(self.samples)

    @property
    def low(self) -> float:
        """The least of all rounds."""
        return min(self.samples)

    @property
    def high(self) -> float:
        """The greatest of all rounds."""
        return max(self.samples)

    @property
    def is_reached(self) -> bool:
        """Whether the goal is."""
        return self._holds(self.goal)

    @property
    def is_through(self) -> bool:
        """Whether the gate lets it pass; one that is only reported always does."""
        return self.gate is None or self._holds(self.gate)

    @property
    def is_far_off(self) -> bool:
        """Whether it misses its gate by more than neighbours explain; a counter by anything."""
        slack = {"at least": 0.5, "at most": 2.0, "exactly": 1.0}[self.sense]
        return self.gate is not None and not self._holds(self.gate * slack)

    def _holds(self, bound: float) -> bool:
        if self.sense == "exactly":  # a counter: each sample counts
            return self.low == self.high == bound
        return self.value >= bound if self.sense == "at least" else self.value <= bound


@dataclass(frozen=True, slots=True)
class Table:
    """What is reported beside the figures: cells as they are to be printed."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a tier found."""

    figures: tuple[Figure, ...]
    tables: tuple[Table, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Effort:
    """How much time a tier may take."""

    rounds: int
    seconds: float
    """How long one measurement of a round lasts, where time bounds it."""
    is_brief: bool
    """Whether only what has a gate is wanted, as cheaply as it can be had."""
    with_peers: bool = False
    """Whether other people's servers are measured, too; they come from PyPI and npm."""


FULL: Final = Effort(rounds=5, seconds=0.7, is_brief=False)
BRIEF: Final = Effort(rounds=3, seconds=0.1, is_brief=True)


def ratios(above: Sequence[float], below: Sequence[float]) -> tuple[float, ...]:
    """Return the ratio of each round: what disturbs a round disturbs both of its halves."""
    return tuple(a / b for a, b in zip(above, below, strict=True))


def cost_ratios(
    above: Sequence[float], below: Sequence[float], *, is_brief: bool
) -> tuple[float, ...]:
    """Return the ratio of each round; in a brief run only that of the least costs of all rounds.

    What disturbs only adds to CPU time, and a brief run has too few rounds for a median.
    """
    return (min(above) / min(below),) if is_brief else ratios(above, below)


def spread(samples: Sequence[float], digits: int = 2) -> str:
    """Return the median and the range of some samples, to be printed."""
    return f"{median(samples):.{digits}f} ({min(samples):.{digits}f}..{max(samples):.{digits}f})"
