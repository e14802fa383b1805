"""The git tier: what a pull costs, and what it does: processes, requests, parses, bytes on disk.

The counters are exact and gate; times are reported. The host is another process, so that only our
own side of git is counted.
"""

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio
import uvloop

from bench.documents import MAIN, files, make_bare, make_commits, other_files, sample, samples
from bench.figures import Effort, Figure, Findings, Table, ratios, spread
from bench.gateway_app import ask, gateway_app, until_serving
from bench.git_host import GitHost, git_host
from bench.processes import children_seconds
from okf_mcp_gateway.app import Gateway
from okf_mcp_gateway.snapshot_file import NAME
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.source.mirror import RECORD
from support.histories import point

BODY_BYTES: Final = 3_000

_SMALL: Final = "files-100"
_MIDDLE: Final = "files-5000"
_LARGE: Final = "files-50000"

_KEEP_SECONDS: Final = 30.0

_NEVER_DUE: Final = 31_536_000

_PULLS: Final = 4
"""How many pulls without news a sample is made of."""

_MANY: Final = 10
"""How many files change where some do."""


Stamp = tuple[int, int, int]
"""What tells whether a file was written since: inode, time, size."""


@dataclass(frozen=True, slots=True)
class Pull:
    """What one pull did."""

    processes: int
    """How many git commands it started."""
    requests: int
    """How many the host got."""
    parsed_files: int
    """0 if nothing was published: then git was asked for no content either."""
    git_milliseconds: float
    """CPU time of git and all that it started."""
    own_milliseconds: float
    """CPU time of ours until the pull was answered."""
    written: frozenset[str]
    """The files of the copy that are not what they were."""


@dataclass(frozen=True, slots=True)
class _History:
    """A repository whose `main` moves from commit to commit."""

    bare: Path
    commits: tuple[str, ...]
    changed: tuple[int, ...]
    """How many documents each of them changes, but the first, which brings them all."""


def measure(effort: Effort, folder: Path) -> Findings:
    """Measure pulls of repositories of three sizes: without news, and with some."""
    sources = folder / "sources"
    changed = [1] * (effort.rounds + 1)
    if not effort.is_brief:
        changed += [_MANY] * effort.rounds
    large = (100, 49_900) if effort.is_brief else (25_000, 25_000)
    _make_history(sources / f"{_SMALL}.git", 50, 50)
    _make_history(sources / f"{_LARGE}.git", *large)
    middle = _make_history(sources / f"{_MIDDLE}.git", 2_500, 2_500, changed)
    with git_host(sources) as host, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(effort, folder, middle, host))


def _make_history(bare: Path, documents: int, others: int, changed: Sequence[int] = ()) -> _History:
    """Make a repository; each commit after the first changes the next so many documents."""
    make_bare(bare)
    first = files(samples(documents, body_bytes=BODY_BYTES)) | dict(other_files(others))
    steps: list[Mapping[str, str | None]] = [first]
    numbers = count(1)
    for seed, some in enumerate(changed, start=1):
        again = [
            sample(next(numbers) * 37 % documents, body_bytes=BODY_BYTES, seed=seed)
            for _ in range(some)
        ]
        steps.append(files(again))
    return _History(bare, tuple(make_commits(bare, steps)), tuple(changed))


async def _measure(effort: Effort, folder: Path, middle: _History, host: GitHost) -> Findings:
    urls = {name: f"{host.url}/{name}.git" for name in (_SMALL, _MIDDLE, _LARGE)}
    owners = {name: {"url": url, "ttl": _NEVER_DUE} for name, url in urls.items()}
    cache = folder / "gateway" / "cache"
    async with gateway_app(folder / "gateway", json.dumps({"owners": owners})) as (gateway, git):
        await until_serving(gateway)
        site = _Site(gateway, git, host, cache)
        for name in owners:
            await site.until_kept(name)
        idle: dict[str, list[Pull]] = {_SMALL: [], _LARGE: []}
        for _ in range(effort.rounds * _PULLS):
            for name, pulls in idle.items():
                pulls.append(await site.pull(name))
        moved: dict[int, list[Pull]] = {1: [], _MANY: []}
        for commit, changed in zip(middle.commits[1:], middle.changed, strict=True):
            point(middle.bare, MAIN, commit)
            moved[changed].append(await site.pull(_MIDDLE))
    moved[1] = moved[1][1:]  # the first one of all loads what it needs for that
    return Findings(tuple(_figures(idle, moved, is_brief=effort.is_brief)), (_table(idle, moved),))


@dataclass(frozen=True, slots=True)
class _Site:
    """A gateway and its git host."""

    gateway: Gateway
    git: Git
    host: GitHost
    cache: Path

    async def pull(self, owner: str) -> Pull:
        """Let an owner be pulled, and tell what that did."""
        before = await self._row(owner)
        files_before = _stamps(self.cache / owner)
        processes = self.git.started_processes
        self.host.count_requests()
        spent = children_seconds(), time.process_time()
        await ask(self.gateway.app, "POST", f"/{owner}/refresh")
        of_git, own = children_seconds() - spent[0], time.process_time() - spent[1]
        after = await self._row(owner)
        is_new = after["served_commit"] != before["served_commit"]
        stamps = _stamps(self.cache / owner)
        every = {*stamps, *files_before}
        return Pull(
            processes=self.git.started_processes - processes,
            requests=self.host.count_requests(),
            parsed_files=after["diagnostics"]["parsed_files"] if is_new else 0,
            git_milliseconds=of_git * 1e3,
            own_milliseconds=own * 1e3,
            written=frozenset(path for path in every if stamps.get(path) != files_before.get(path)),
        )

    async def until_kept(self, owner: str) -> None:
        """Wait until an owner's snapshot file is there, which is written after its first pull."""
        with anyio.fail_after(_KEEP_SECONDS):
            while NAME not in _stamps(self.cache / owner):  # noqa: ASYNC110 - a file
                await anyio.sleep(0.01)

    async def _row(self, owner: str) -> dict[str, Any]:
        return (await ask(self.gateway.app, "GET", "/status", "diagnostics=true"))["owners"][owner]


def _stamps(folder: Path) -> Mapping[str, Stamp]:
    """Return what tells of each file below a folder whether it was written since."""
    found = {
        str(each.relative_to(folder)): each.stat() for each in folder.rglob("*") if each.is_file()
    }
    return {path: (stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}


def _cpu(pulls: Sequence[Pull]) -> list[float]:
    """Return what pulls cost, git and ours together: a median a round."""
    spent = [each.git_milliseconds + each.own_milliseconds for each in pulls]
    return [median(spent[at : at + _PULLS]) for at in range(0, len(spent), _PULLS)]


def _figures(
    idle: Mapping[str, Sequence[Pull]], moved: Mapping[int, Sequence[Pull]], *, is_brief: bool
) -> list[Figure]:
    quiet = [pull for pulls in idle.values() for pull in pulls]
    one = moved[1]

    def counted(name: str, numbers: Iterable[float], goal: float) -> Figure:
        return Figure(name, tuple(numbers), "exactly", goal, goal, "")

    figures = [
        counted("pull without news, git processes", (each.processes for each in quiet), 1),
        counted("pull without news, parses", (each.parsed_files for each in quiet), 0),
        counted(
            "pull without news, files of the copy written beside our record",
            (len(each.written - {RECORD}) for each in quiet),
            0,
        ),
        Figure(
            "pull without news of 50,000 files to one of 100, CPU",
            ratios(_cpu(idle[_LARGE]), _cpu(idle[_SMALL])),
            "at most",
            1.2,
            1.2,
        ),
        counted("1 changed file of 5,000, parses", (each.parsed_files for each in one), 1),
    ]
    if not is_brief:
        git_spent = tuple(each.git_milliseconds for each in one)
        name = "1 changed file of 5,000, CPU of git"
        figures.append(Figure(name, git_spent, "at most", 30, None, "ms"))
        many = (each.parsed_files for each in moved[_MANY])
        figures.append(counted(f"{_MANY} changed files of 5,000, parses", many, _MANY))
    return figures


def _table(idle: Mapping[str, Sequence[Pull]], moved: Mapping[int, Sequence[Pull]]) -> Table:
    named = {
        "without news, 100 files": idle[_SMALL],
        "without news, 50,000 files": idle[_LARGE],
        "1 changed file of 5,000": moved[1],
        f"{_MANY} changed files of 5,000": moved[_MANY],
    }
    rows = [
        (
            name,
            spread([each.processes for each in pulls], 0),
            spread([each.requests for each in pulls], 0),
            spread([each.parsed_files for each in pulls], 0),
            spread([each.git_milliseconds for each in pulls], 1),
            spread([each.own_milliseconds for each in pulls], 1),
        )
        for name, pulls in named.items()
        if pulls
    ]
    columns = ("pull", "git processes", "requests", "parses", "CPU of git, ms", "CPU of ours, ms")
    return Table("Pulls over HTTP", columns, tuple(rows))
