"""The reads tier: how long the slowest reads take while a pull loads documents, against idle."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from itertools import cycle
from pathlib import Path
from typing import Final

from bench.answers import ask_once
from bench.client import Load, LoadClient
from bench.documents import MAIN, files, make_bare, make_commits, other_files, sample, samples
from bench.figures import Effort, Figure, Findings, Table, ratios, spread
from bench.questions import MODERN, reads
from bench.targets import gateway
from support.gateway_process import GatewayProcess
from support.histories import point

BODY_BYTES: Final = 3_000
FILES: Final = 2_500
"""How many documents are loaded, of twice as many files."""

CONNECTIONS: Final = 4

ONE_GOAL: Final = 1.5
ALL_GOAL: Final = 10.0

_IDLE: Final = "nothing"
_ONE: Final = "one document is loaded"
_ALL: Final = "all are loaded"

_CHAIN: Final = 50
"""After how many pulls the changes of one document begin anew."""

_SECONDS: Final = 1.5
"""How long a round is at least: some pulls."""


def measure(effort: Effort, folder: Path) -> Findings:
    """Measure reads of one owner while nothing, one document, or all of another owner's change."""
    still = make_bare(folder / "still.git")
    make_commits(still, [files(samples(50))])
    moving, one, everything = _make_moving(folder / "moving.git")
    owners = {"still": {"url": still.as_uri()}, "moving": {"url": moving.as_uri()}}
    waits: dict[str, list[float]] = {_IDLE: [], _ONE: [], _ALL: []}
    pulls = dict.fromkeys(waits, 0)
    with (
        gateway(folder / "gateway", json.dumps({"owners": owners})) as process,
        LoadClient() as client,
    ):
        load = _load(process, max(effort.seconds, _SECONDS))
        for _ in range(effort.rounds):
            for name, commits in ((_IDLE, None), (_ONE, one), (_ALL, everything)):
                with ThreadPoolExecutor(1) as thread:
                    outcome = thread.submit(client.run, load)
                    while commits is not None and not outcome.done():
                        point(moving, MAIN, next(commits))
                        _pull(process)
                        pulls[name] += 1
                    waits[name].append(outcome.result().p99_milliseconds)
    figures = [
        Figure(f"{told}, p99 to idle", ratios(waits[name], waits[_IDLE]), "at most", goal, None)
        for name, told, goal in (
            (_ONE, f"reads while 1 of {FILES:,} documents is loaded again and again", ONE_GOAL),
            (_ALL, f"reads while all of {FILES:,} documents are", ALL_GOAL),
        )
    ]
    rows = tuple((name, str(pulls[name]), spread(waits[name])) for name in waits)
    table = Table(f"Reads over {CONNECTIONS} connections", ("meanwhile", "pulls", "p99 ms"), rows)
    return Findings(tuple(figures), (table,))


def _make_moving(bare: Path) -> tuple[Path, Iterator[str], Iterator[str]]:
    """Make the repository that is pulled; return the commits that change one document, and all.

    The former go on from each other; the latter two differ in every document.
    """
    make_bare(bare)
    first, second = (files(samples(FILES, body_bytes=BODY_BYTES, seed=seed)) for seed in (1, 2))
    ones = [files([sample(seed, body_bytes=BODY_BYTES, seed=seed)]) for seed in range(_CHAIN)]
    one_way = make_commits(bare, [{**first, **dict(other_files(FILES))}, *ones])
    other = make_commits(bare, [{**second, **dict(other_files(FILES))}])
    point(bare, MAIN, one_way[0])
    return bare, cycle(one_way), cycle((*other, one_way[0]))


def _pull(process: GatewayProcess) -> None:
    answer = process.refresh("moving")
    if answer.status != HTTPStatus.OK:
        raise RuntimeError(f"a pull failed: {answer.text}")


def _load(process: GatewayProcess, seconds: float) -> Load:
    documents = samples(50)
    question = reads("still", [documents[0].uri("still")], MODERN)[0]
    before, after = question.request(f"127.0.0.1:{process.port}", "/still/mcp")
    return Load(
        port=process.port,
        server_pid=process.pid,
        requests=((before.decode(), after.decode()),),
        body_bytes=ask_once(process.port, "/still/mcp", question, documents),
        connections=CONNECTIONS,
        warm_up=100,
        seconds=seconds,
    )
