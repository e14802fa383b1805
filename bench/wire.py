"""The wire tier: real processes and sockets, every server against the bare one in each round.

What gates is the time that the server's own process spends: neighbours move it by some percent,
where they may halve what is answered a second.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.answers import ask_once
from bench.client import Load, LoadClient, Outcome
from bench.documents import Sample, samples
from bench.figures import Effort, Figure, Findings, Table, cost_ratios, ratios, spread
from bench.processes import CLIENT_CPU, pinned
from bench.questions import LEGACY, MODERN, Question, Workload, listing, reads
from bench.targets import (
    BARE,
    OURS,
    OWNERS,
    PLAIN_SDK,
    Target,
    targets,
)

HOT_2026: Final = "read, hot, 2026-07-28"
HOT_2025: Final = "read, hot, 2025-11-25"
LIST_50_2026: Final = "list of 50, 2026-07-28"
LIST_50_2025: Final = "list of 50, 2025-11-25"
LIST_500_2026: Final = "list of 500, 2026-07-28"
LIST_500_2025: Final = "list of 500, 2025-11-25"

OF_BARE: Final[Mapping[str, tuple[float, float]]] = {
    HOT_2026: (0.85, 0.70),
    HOT_2025: (0.85, 0.70),
    LIST_50_2026: (0.85, 0.70),
    LIST_50_2025: (0.85, 0.70),
    LIST_500_2026: (0.80, 0.60),
    LIST_500_2025: (0.80, 0.60),
}
"""Goal and gate of what ours may take more than the bare application."""

OF_SDK: Final[Mapping[str, tuple[float, float]]] = {HOT_2026: (6, 5), HOT_2025: (13, 10)}
"""Goal and gate of how often ours answers while the plain SDK answers once."""


@dataclass(frozen=True, slots=True)
class _Series:
    """What was measured: by workload and server, an outcome a round."""

    outcomes: Mapping[tuple[str, str], Sequence[Outcome]]

    def take(self, workload: str, target: str, value: Callable[[Outcome], float]) -> list[float]:
        return [value(each) for each in self.outcomes[workload, target]]

    def rate(self, workload: str, target: str) -> list[float]:
        return self.take(workload, target, lambda each: each.per_second)

    def cost(self, workload: str, target: str) -> list[float]:
        return self.take(workload, target, lambda each: each.cpu_microseconds)


def measure(effort: Effort, folder: Path) -> Findings:
    """Measure every workload on every server; the owners' repositories go to `folder`."""
    owners = {name: OWNERS[name] for name in ("small", "large")} if effort.is_brief else OWNERS
    documents = {owner: samples(count) for owner, count in owners.items()}
    workloads = _gated(documents) + ([] if effort.is_brief else _reported(documents))
    outcomes: dict[tuple[str, str], Sequence[Outcome]] = {}
    with targets(folder, owners, effort) as (servers, left_out):
        with pinned(CLIENT_CPU), LoadClient() as client:
            stand = _Stand(servers, documents, client, effort)
            for workload in workloads:
                outcomes |= stand.run(workload)
        (counts,) = (each.counts() for each in servers if each.name == OURS)
    series = _Series(outcomes)
    told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return Findings(
        tuple(_figures(series, is_brief=effort.is_brief)),
        (_table(series),),
        (f"Requests to ours, as its own counters tell: {told}.", *left_out),
    )


@dataclass(frozen=True, slots=True)
class _Stand:
    """All that a workload needs."""

    servers: Sequence[Target]
    documents: Mapping[str, Sequence[Sample]]
    client: LoadClient
    effort: Effort

    def run(self, workload: Workload) -> Mapping[tuple[str, str], Sequence[Outcome]]:
        """Run all rounds of a workload: the bare server, the first, sends as much as ours."""
        servers = [each for each in self.servers if self._is_asked(each, workload)]
        lengths = {
            each.name: self._ask(each, workload.questions[-1])
            for each in servers
            if each.name != BARE
        }
        lengths[BARE] = lengths[OURS]
        outcomes: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
        for number in range(self.effort.rounds):
            asked = workload.of_round(number, self.effort.rounds)
            for target in servers:
                load = _load(asked, target, lengths[target.name], self.effort.seconds)
                outcomes[workload.name, target.name].append(self.client.run(load))
        for each in servers:
            if each.name != BARE:  # it still says what it said before
                self._ask(each, workload.questions[0])
        return outcomes

    def _is_asked(self, server: Target, workload: Workload) -> bool:
        is_needed = server.name != PLAIN_SDK or workload.name in OF_SDK
        return is_needed or not self.effort.is_brief

    def _ask(self, server: Target, question: Question) -> int:
        path = server.path(question.owner, 0)
        return ask_once(server.port, path, question, self.documents[question.owner])


def _gated(documents: Mapping[str, Sequence[Sample]]) -> list[Workload]:
    hot = documents["small"][7].uri("small")
    return [
        Workload(HOT_2026, reads("small", [hot], MODERN)),
        Workload(HOT_2025, reads("small", [hot], LEGACY)),
        Workload(LIST_50_2026, listing("small", MODERN)),
        Workload(LIST_50_2025, listing("small", LEGACY)),
        Workload(LIST_500_2026, listing("large", MODERN), warm_up=20),
        Workload(LIST_500_2025, listing("large", LEGACY), warm_up=20),
    ]


def _reported(documents: Mapping[str, Sequence[Sample]]) -> list[Workload]:
    hot = documents["small"][7].uri("small")
    spread_uris = [each.uri("spread") for each in documents["spread"]]
    cold = [each.uri("cold") for each in documents["cold"]]  # the last is in no round
    spread_reads = reads("spread", spread_uris, MODERN)
    return [
        Workload(f"{HOT_2026}, 1 connection", reads("small", [hot], MODERN), 1),
        Workload(f"{HOT_2026}, 64 connections", reads("small", [hot], MODERN), 64),
        Workload("read, 1,000 URIs, 2026-07-28", spread_reads, warm_up=len(spread_reads)),
        Workload(
            "read, each URI once, 2026-07-28", reads("cold", cold, MODERN), warm_up=0, is_cold=True
        ),
    ]


def _load(workload: Workload, target: Target, body_bytes: int, seconds: float) -> Load:
    requests = [
        question.request(target.host, target.path(question.owner, body_bytes))
        for question in workload.questions
    ]
    return Load(
        port=target.port,
        server_pid=target.pid,
        requests=tuple((before.decode(), after.decode()) for before, after in requests),
        body_bytes=body_bytes,
        connections=workload.connections,
        warm_up=workload.warm_up,
        seconds=seconds,
        total=len(requests) if workload.is_cold else 0,
    )


def _figures(series: _Series, *, is_brief: bool) -> list[Figure]:
    figures: list[Figure] = []
    for workload, (goal, gate) in OF_BARE.items():
        spent = cost_ratios(
            series.cost(workload, BARE), series.cost(workload, OURS), is_brief=is_brief
        )
        figures.append(Figure(f"{workload}, of bare ASGI, by CPU", spent, "at least", goal, gate))
        if not is_brief:
            rates = ratios(series.rate(workload, OURS), series.rate(workload, BARE))
            name = f"{workload}, of bare ASGI, by requests/s"
            figures.append(Figure(name, rates, "at least", goal, None))
    for workload, (goal, gate) in OF_SDK.items():
        spent = cost_ratios(
            series.cost(workload, PLAIN_SDK), series.cost(workload, OURS), is_brief=is_brief
        )
        figures.append(
            Figure(f"{workload}, of the plain SDK, by CPU", spent, "at least", goal, gate)
        )
        if not is_brief:
            rates = ratios(series.rate(workload, OURS), series.rate(workload, PLAIN_SDK))
            name = f"{workload}, of the plain SDK, by requests/s"
            figures.append(Figure(name, rates, "at least", goal, None))
    return figures


def _table(series: _Series) -> Table:
    """Return every workload on every server, in ratios to the bare one."""
    rows: list[tuple[str, ...]] = []
    for workload, name in series.outcomes:
        rates = series.rate(workload, name)
        p50 = series.take(workload, name, lambda each: each.p50_milliseconds)
        p99 = series.take(workload, name, lambda each: each.p99_milliseconds)
        rows.append(
            (
                workload,
                name,
                spread(ratios(rates, series.rate(workload, BARE)), 3),
                spread(rates, 0),
                spread(series.cost(workload, name), 1),
                spread(p50),
                spread(p99),
            )
        )
    columns = ("workload", "server", "of bare", "requests/s", "CPU µs", "p50 ms", "p99 ms")
    return Table("Every workload on every server", columns, tuple(rows))
