"""The start tier: from imports done to all cached owners serving, and from exec to an answer."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final

from bench.answers import WrongAnswerError, ask_once
from bench.documents import files, make_bare, make_commits, samples
from bench.figures import Effort, Figure, Findings, Table, spread
from bench.processes import children_seconds, cpu_seconds
from bench.questions import MODERN, TOKEN, reads
from bench.targets import gateway, wait_until_kept
from okf_mcp_gateway.snapshot_file import NAME
from support.gateway_process import GatewayProcess, wait_until

OWNERS: Final = 100
DOCUMENTS: Final = 80
BODY_BYTES: Final = 3_000

READY_GOAL: Final = 50
READY_GATE: Final = 200
ANSWER_GOAL: Final = 0.6
ANSWER_GATE: Final = 1.0

_DEADLINE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.002


@dataclass(frozen=True, slots=True)
class Span:
    """How long something took."""

    wall: float
    cpu: float


def measure(effort: Effort, folder: Path) -> Findings:
    """Measure starts with a cache, all sources gone."""
    bare = make_bare(folder / "source.git")
    make_commits(bare, [files(samples(DOCUMENTS, body_bytes=BODY_BYTES))])
    one, many = (_registry(bare, owners) for owners in (1, OWNERS))
    _fill(folder / "gateway", one, many)
    bare.rename(folder / "gone.git")
    ready = [_time_ready(folder / "gateway", many) for _ in range(effort.rounds)]
    answers = [_time_answer(folder / "gateway", one) for _ in range(effort.rounds)]
    imports = [] if effort.is_brief else [_time_imports() for _ in range(effort.rounds)]
    return Findings(
        tuple(_figures(ready, answers, is_brief=effort.is_brief)),
        (_table(ready, answers, imports),),
    )


def _registry(bare: Path, owners: int) -> str:
    names = [_owner(number) for number in range(owners)]
    return json.dumps({"owners": {name: {"url": bare.as_uri()} for name in names}})


def _owner(number: int) -> str:
    return f"owner-{number:03}"


def _fill(folder: Path, one: str, many: str) -> None:
    """Let a gateway put all owners into its cache."""
    with gateway(folder, one):
        pass
    # They have one source, so that one copy is as good as another; to clone it takes longer.
    for number in range(1, OWNERS):
        copy = folder / "cache" / _owner(number)
        shutil.copytree(copy.with_name(_owner(0)), copy, ignore=shutil.ignore_patterns(NAME))
    with gateway(folder, many) as process:
        wait_until_kept(process)


def _time_ready(folder: Path, servers: str) -> Span:
    """Return how long it took from imports done until all owners served: ms of time, and of CPU."""
    process = GatewayProcess(
        folder,
        servers,
        token=TOKEN,
        environment={"PYTHONPATH": os.pathsep.join(sys.path)},
        command=(sys.executable, "-m", "bench.timed_start", str(OWNERS)),
    )
    before = len(process.stdout)
    process.launch()
    try:
        wait_until(lambda: process.stdout[before:].endswith("\n"), _DEADLINE_SECONDS)
        return Span(**json.loads(process.stdout[before:]))
    finally:
        process.close()


def _time_answer(folder: Path, servers: str) -> Span:
    """Return how long it took from exec to the first read's answer: seconds of time, and of CPU."""
    process = GatewayProcess(folder, servers, token=TOKEN)
    documents = samples(DOCUMENTS, body_bytes=BODY_BYTES)
    question = reads(_owner(0), [documents[0].uri(_owner(0))], MODERN)[0]

    def has_answered() -> bool:
        with suppress(OSError, HTTPException, WrongAnswerError):
            return ask_once(process.port, f"/{_owner(0)}/mcp", question, documents) > 0
        return False

    began = time.monotonic()
    process.launch()
    try:
        wait_until(has_answered, _DEADLINE_SECONDS, interval=_POLL_SECONDS)
        return Span(time.monotonic() - began, cpu_seconds(process.pid))
    finally:
        process.close()


def _time_imports() -> tuple[Span, Span]:
    """Return how long a process takes that only imports the gateway, and one that does nothing."""
    code = "import okf_mcp_gateway.__main__, okf_mcp_gateway.serving"
    return _time_python(code), _time_python("pass")


def _time_python(code: str) -> Span:
    began, spent = time.monotonic(), children_seconds()
    # At once: to take all down again in order takes a while, and no start waits for it.
    code = f"{code}; import os; os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=_DEADLINE_SECONDS)
    return Span(time.monotonic() - began, children_seconds() - spent)


def _figures(ready: list[Span], answers: list[Span], *, is_brief: bool) -> list[Figure]:
    owners = f"{OWNERS} cached owners of {DOCUMENTS} documents, sources down, ready"
    answer = "start to first answer"
    if is_brief:
        # The least of all: others' work only ever adds to it, and no ratio takes that out again.
        cpu_ready, cpu_answer = (min(each.cpu for each in spans) for spans in (ready, answers))
        return [
            _ready(f"{owners}, CPU", (cpu_ready,)),
            _answer(f"{answer}, CPU", (cpu_answer,)),
        ]
    return [
        _ready(owners, tuple(each.wall for each in ready)),
        _ready(f"{owners}, CPU", tuple(each.cpu for each in ready)),
        _answer(answer, tuple(each.wall for each in answers)),
        _answer(f"{answer}, CPU", tuple(each.cpu for each in answers)),
    ]


def _ready(name: str, spent: tuple[float, ...]) -> Figure:
    return Figure(name, spent, "at most", READY_GOAL, READY_GATE, "ms")


def _answer(name: str, spent: tuple[float, ...]) -> Figure:
    return Figure(name, spent, "at most", ANSWER_GOAL, ANSWER_GATE, "s")


def _table(
    ready: list[Span],
    answers: list[Span],
    imports: list[tuple[Span, Span]],
) -> Table:
    rows = [
        (f"imports done to {OWNERS} owners serving", *_both(ready, 1e-3)),
        ("exec to the first answer", *_both(answers, 1)),
    ]
    if imports:
        rows += [
            ("a process that only imports the gateway", *_both([each[0] for each in imports], 1)),
            ("a process that does nothing", *_both([each[1] for each in imports], 1)),
        ]
    return Table("Starts", ("from, to", "s", "CPU s"), tuple(rows))


def _both(spans: list[Span], unit: float) -> tuple[str, str]:
    walls, cpus = zip(*((each.wall * unit, each.cpu * unit) for each in spans), strict=True)
    return spread(walls, 3), spread(cpus, 3)
