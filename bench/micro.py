"""The micro tier: calls of the applications in this process, without sockets, by its CPU time.

All applications take turns in each round, so that what disturbs one disturbs the others.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop
from starlette.types import ASGIApp

from bench.bare import Bare
from bench.calls import answer_bytes, cost
from bench.documents import Sample, registry, samples
from bench.figures import Effort, Figure, Findings, Table, cost_ratios, spread
from bench.gateway_app import gateway_app, until_serving
from bench.plain_sdk import PlainSdk
from bench.questions import LEGACY, MODERN, Era, Question, listing, reads
from bench.targets import BARE, OURS, PLAIN_SDK

HIT_GOAL: Final = 3.0
HIT_GATE: Final = 4.0
FIRST_GOAL: Final = 1.05
FIRST_GATE: Final = 1.2

_TURNS: Final = 8
"""How many turns each application takes in a round: short ones, so that one is undisturbed."""

_FAST_CALLS: Final = 100
"""How often what needs some microseconds is called in a turn."""

_SLOW_READS: Final = 20
"""How often what asks the SDK is; each a first read."""

_SLOW_LISTS: Final = 2

_FIRSTS: Final[Mapping[str, Era]] = {"first-2026": MODERN, "first-2025": LEGACY}
"""The owners whose documents are read once each, and how."""


@dataclass(frozen=True, slots=True)
class _Applications:
    bare: ASGIApp
    ours: ASGIApp
    sdk: ASGIApp
    documents: Mapping[str, Sequence[Sample]]


Costs = Mapping[tuple[str, str], list[float]]
"""By case and application: µs a call, a value a round."""


def measure(effort: Effort, folder: Path) -> Findings:
    """Measure hits against the bare application, and first reads against the plain SDK."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        costs, hits = runner.run(_measure(effort, folder))
    return Findings(tuple(_figures(costs, hits, is_brief=effort.is_brief)), (_table(costs),))


async def _measure(effort: Effort, folder: Path) -> tuple[Costs, Sequence[str]]:
    """Return all costs, and which of them are of hits."""
    firsts = dict.fromkeys(_FIRSTS, (effort.rounds * _TURNS + 1) * _SLOW_READS)
    counts = {"small": 50, "large": 500, **firsts}
    sdk = PlainSdk(documents := {owner: samples(count) for owner, count in counts.items()})
    servers = registry(folder / "sources", counts)
    costs: dict[tuple[str, str], list[float]] = defaultdict(list)
    async with gateway_app(folder / "gateway", servers) as (gateway, _), sdk.running():
        await until_serving(gateway)
        applications = _Applications(Bare(), gateway.app, sdk, documents)
        hits = _hits(documents)
        for name, question in hits.items():
            await _measure_hits(applications, name, question, effort, costs)
        for owner, era in _FIRSTS.items():
            asked = reads(owner, [each.uri(owner) for each in documents[owner]], era)
            await _measure_firsts(applications, asked, costs)
    return costs, list(hits)


def _hits(documents: Mapping[str, Sequence[Sample]]) -> Mapping[str, Question]:
    hot = documents["small"][7].uri("small")
    return {
        "read, 2026-07-28": reads("small", [hot], MODERN)[0],
        "read, 2025-11-25": reads("small", [hot], LEGACY)[0],
        "list of 50, 2026-07-28": listing("small", MODERN)[0],
        "list of 500, 2026-07-28": listing("large", MODERN)[0],
    }


async def _measure_hits(
    those: _Applications,
    name: str,
    question: Question,
    effort: Effort,
    costs: dict[tuple[str, str], list[float]],
) -> None:
    """Ask one question again and again."""
    path = f"/{question.owner}/mcp"
    size = await answer_bytes(those.ours, path, question)
    fast, slow = (
        [question] * _FAST_CALLS,
        [question] * (_SLOW_READS if question.uri else _SLOW_LISTS),
    )
    for _ in range(effort.rounds * _TURNS):
        costs[name, BARE].append(await cost(those.bare, f"/{size}", fast, those.documents))
        costs[name, OURS].append(await cost(those.ours, path, fast, those.documents))
        if not effort.is_brief:
            costs[name, PLAIN_SDK].append(await cost(those.sdk, path, slow, those.documents))


async def _measure_firsts(
    those: _Applications,
    questions: Sequence[Question],
    costs: dict[tuple[str, str], list[float]],
) -> None:
    """Ask each question once, a share of them a turn; the first turn only warms up."""
    name = f"first read, {questions[0].era}"
    path = f"/{questions[0].owner}/mcp"
    shares = [questions[at : at + _SLOW_READS] for at in range(0, len(questions), _SLOW_READS)]
    for number, share in enumerate(shares):
        pair = [(OURS, those.ours), (PLAIN_SDK, those.sdk)]
        # Each comes first in turn: the second finds the processor's caches warm.
        for server, app in pair if number % 2 else reversed(pair):
            spent = await cost(app, path, share, those.documents)
            if number:
                costs[name, server].append(spent)


def _figures(costs: Costs, hits: Sequence[str], *, is_brief: bool) -> list[Figure]:
    figures = [
        Figure(
            f"{name}, in process, cost of a hit to the bare application's",
            cost_ratios(costs[name, OURS], costs[name, BARE], is_brief=is_brief),
            "at most",
            HIT_GOAL,
            HIT_GATE,
        )
        for name in hits
    ]
    for era in _FIRSTS.values():
        name = f"first read, {era}"
        spent = cost_ratios(costs[name, OURS], costs[name, PLAIN_SDK], is_brief=is_brief)
        told = f"{name}, in process, cost to the plain SDK's"
        figures.append(Figure(told, spent, "at most", FIRST_GOAL, FIRST_GATE))
    return figures


def _table(costs: Costs) -> Table:
    rows = [(case, server, spread(spent, 1)) for (case, server), spent in costs.items()]
    return Table("In-process calls", ("call", "application", "CPU µs"), tuple(rows))
