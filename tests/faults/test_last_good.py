"""Last good is never lost.

A gateway that is killed by SIGKILL at any step of a probe, a fetch, a load, a publish, a repack or
the write of a file serves a whole commit when it starts again without its source: the last good
one, or the one that it was about to publish. With its source back it serves the tip, and what the
killed ones left behind does not pile up.

A step is whatever is done to the cache: a git command, a file that is opened for writing, renamed
or removed. To be killed after one is to be killed before the next.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Final

import pytest

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.snapshot_file import SnapshotFile
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.source.mirror import Mirror
from okf_mcp_gateway.source.packs import REPACK_WEAR
from okf_mcp_gateway.source.puller import Puller
from okf_mcp_server.snapshot import Snapshot
from support.deaths import CHECKSUM_KEY, MortalPulls, mortal_environment, mortal_gateway
from support.gateway_process import (
    GATEWAY_COMMAND,
    Answer,
    GatewayFactory,
    GatewayProcess,
    wait_until,
)
from support.git_http import Exchange, GitHttpServer, GitHttpServerFactory
from support.histories import Planned, document_text, make_history, point
from support.in_process import mcp_headers, mcp_message
from support.repositories import Repository, git_environment
from support.soak import soak_scale

KILLS: Final = round(50 * soak_scale())
MAX_FILES_MORE: Final = 12
"""How many files a copy may have more after any number of kills: some packs and locks."""

MAX_PUSHES: Final = 250
LARGE_BYTES: Final = 2_000
PARTED_BYTES: Final = 100_000
PART_BYTES: Final = 70_000
"""More than git sends in one packet, less than the pack."""

LEFTOVERS: Final = ("tmp_*", ".tmp-*", "*.lock", "*.keep")

Contents = dict[str, str]


class Stage:
    """A source, the cache that pulls of it die over, and what each commit holds."""

    def __init__(self, folder: Path, repository: Repository) -> None:
        self.repository = repository
        self.cache, self.home = folder / "cache", folder / "home"
        self.tools = folder / "tools"
        for each in (self.cache, self.home, self.tools):
            each.mkdir()
        self._git = Git(environ=os.environ, home=self.home, deadline_seconds=30)
        pushed, contents = plan()
        self._commits = make_history(repository.bare, pushed)
        self._contents = dict(zip(self._commits, contents, strict=True))
        # Written by `push` alone.
        self._pushes = 0

    @property
    def copy(self) -> Path:
        return self.cache / "acme"

    @property
    def tip(self) -> str:
        return self._commits[self._pushes - 1]

    @property
    def last_two(self) -> list[str]:
        """The tip, and what it was before the last push: one of them is the last good commit."""
        return self._commits[max(self._pushes - 2, 0) : self._pushes]

    def push(self) -> None:
        """Add a document, change one and remove one."""
        self._pushes += 1
        point(self.repository.bare, "refs/heads/main", self.tip)

    def restart(self) -> Snapshot | None:
        """Return what a gateway serves that starts without its source; None if it has nothing.

        It is checked to be a commit of the source, whole.
        """
        self.repository.take_away()
        try:
            restored = self._puller().restore()
        finally:
            self.repository.bring_back()
        return None if restored is None else self._checked(restored[0])

    def converge(self, served: Snapshot | None) -> None:
        """Let that gateway pull, with its source back: it serves the tip, as the next start does.

        That one needs no git.
        """
        puller = self._puller()
        pulled = puller.pull(served)
        assert self._checked(pulled).commit == self.tip
        puller.keep(pulled)
        started = self._git.started_processes
        stored = self._puller().restore()
        assert stored is not None
        assert self._checked(stored[0]).commit == self.tip
        assert self._git.started_processes == started
        assert list(self.cache.iterdir()) == [self.copy]

    def leftovers(self) -> list[Path]:
        """Return what killed processes left in the copy, once a push was pulled after them."""
        self.push()
        self.converge(self.restart())
        return [path for pattern in LEFTOVERS for path in self.copy.rglob(pattern)]

    def wear(self) -> float:
        """Return how near the copy is to what is repacked."""
        return self._mirror().packs.wear()

    def count_files(self) -> int:
        return sum(path.is_file() for path in self.cache.rglob("*"))

    def write_tool(self, name: str, script: str) -> str:
        """Make an executable, found first on the `PATH` that is returned."""
        path = self.tools / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return f"{self.tools}:{os.environ['PATH']}"

    def close(self) -> None:
        self._git.close()

    def _checked(self, snapshot: Snapshot) -> Snapshot:
        documents = {str(each.path): each.content for each in snapshot.documents}
        assert documents == self._contents[str(snapshot.commit)]
        return snapshot

    def _config(self) -> OwnerConfig:
        return OwnerConfig("acme", self.repository.url, "main", 0)

    def _mirror(self) -> Mirror:
        return Mirror(self._config(), self.cache, self._git)

    def _puller(self) -> Puller:
        """Return what a gateway has that was just started."""
        config, mirror = self._config(), self._mirror()
        snapshots = SnapshotFile(config, CHECKSUM_KEY)
        return Puller(config, mirror, snapshots, now=lambda: datetime.now(UTC), scrub=str)


def plan() -> tuple[list[Planned], list[Contents]]:
    """Plan all pushes: each adds a document, changes one, and removes one. Return what each holds.

    The texts are random: git can't make them small, so a pack is as large as what it holds.
    """
    pushed: list[Planned] = []
    contents: list[Contents] = []
    for number in range(MAX_PUSHES):
        text = os.urandom(LARGE_BYTES).hex()
        changed = {"always.md": f"Push {number}.", f"d{number}.md": text}
        gone = f"d{number - 3}.md"
        kept = {path: body for path, body in (contents or [{}])[-1].items() if path != gone}
        contents.append({**kept, **changed})
        texts = {path: document_text(body) for path, body in changed.items()}
        # The second push is so large that git gets its pack in parts.
        large = {1: os.urandom(PARTED_BYTES).hex(), 2: None}
        others = {"large.bin": large[number]} if number in large else {}
        changes = {**texts, **others, **({gone: None} if number >= 3 else {})}
        pushed.append(Planned(changes, parent=number - 1 if number else None))
    return pushed, contents


@pytest.fixture
def stage(tmp_path: Path, repository: Repository) -> Iterator[Stage]:
    """A source that was pushed to, and an empty cache."""
    with closing(Stage(tmp_path, repository)) as stage:
        stage.push()
        yield stage


@pytest.fixture
def mortal(stage: Stage) -> Iterator[MortalPulls]:
    """Pulls into the stage's cache that die where they are told to."""
    with MortalPulls(stage.cache, stage.home) as mortal:
        yield mortal


def forget_the_copy(stage: Stage) -> None:
    shutil.rmtree(stage.copy, ignore_errors=True)


def push_nothing(_: Stage) -> None:
    pass


def let_only_a_new_copy_do(stage: Stage) -> None:
    """Let a fetch into the copy fail, though what it holds is good."""
    (stage.copy / "shallow.lock").mkdir()
    stage.push()


def push_often(stage: Stage) -> None:
    """Let the next pull be followed by a repack."""
    while stage.wear() < REPACK_WEAR:
        stage.converge(stage.restart())
        stage.push()


SCENES: Final[dict[str, Callable[[Stage], object]]] = {
    "a first pull": forget_the_copy,
    "nothing new": push_nothing,
    "new content": Stage.push,
    "a new copy": let_only_a_new_copy_do,
    "a repack": push_often,
}


@pytest.mark.row("P4", "P5", "P7")
@pytest.mark.parametrize("scene", SCENES)
def test_a_pull_that_is_killed_at_any_of_its_steps_leaves_a_whole_commit(
    stage: Stage, mortal: MortalPulls, scene: str
) -> None:
    mortal.pull(stage.repository.url)
    step, is_killed = 0, True
    while is_killed:
        step += 1
        SCENES[scene](stage)
        is_killed = mortal.pull(stage.repository.url, step=step).is_killed
        served = stage.restart()
        if served is None:
            assert scene == "a first pull"
        else:
            assert served.commit in stage.last_two
        stage.converge(served)
    assert step > 6
    assert stage.leftovers() == []


@pytest.mark.row("P4", "P7")
@pytest.mark.parametrize("command", ["fetch", "repack"])
def test_a_pull_whose_git_is_killed_in_the_middle_of_a_file_leaves_a_whole_commit(
    stage: Stage, mortal: MortalPulls, command: str
) -> None:
    mortal.pull(stage.repository.url)
    for blocks in range(8):
        stage.push() if command == "fetch" else push_often(stage)
        path = let_git_die(stage, command, after_blocks=blocks)
        mortal.pull(stage.repository.url, path=path)
        served = stage.restart()
        assert served is not None
        assert served.commit in stage.last_two
        stage.converge(served)
    assert stage.leftovers() == []


def let_git_die(stage: Stage, command: str, *, after_blocks: int) -> str:
    """Let a git command be killed when a file of its grows too long, and the gateway with it."""
    git = shutil.which("git")
    return stage.write_tool(
        "git",
        f'[ "$1" = {command} ] || exec {git} "$@"\nulimit -f {after_blocks}\n'
        f'{git} "$@"\nstatus=$?\n[ $status = 0 ] || kill -9 $PPID\nexit $status',
    )


@pytest.mark.row("P4", "P7")
def test_fetches_that_are_killed_half_way_again_and_again_leave_nothing_that_piles_up(
    stage: Stage, mortal: MortalPulls
) -> None:
    mortal.pull(stage.repository.url)
    last_good, files = stage.tip, stage.count_files()
    stage.push()
    path = let_fetches_die(stage, after_bytes=PART_BYTES)
    for _ in range(KILLS):
        assert mortal.pull(stage.repository.url, path=path).is_killed
        wait_until(lambda: not processes_in(stage.copy))
        assert list(stage.copy.rglob("tmp_*"))
        assert stage.count_files() <= files + MAX_FILES_MORE
    served = stage.restart()
    assert served is not None
    assert served.commit == last_good
    stage.converge(served)
    assert stage.leftovers() == []


def processes_in(folder: Path) -> list[int]:
    """Return the ids of the processes that work in a git directory."""
    mark = f"GIT_DIR={folder}".encode()
    found: list[int] = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it ended meanwhile
            if mark in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return found


def let_fetches_die(stage: Stage, *, after_bytes: int) -> str:
    """Let the gateway and git both be killed once so much of a fetch has come."""
    git = shutil.which("git")
    half = stage.tools / "half"
    stage.write_tool(
        "half",
        f'git-upload-pack "$@" | {{ dd bs=1 count={after_bytes} 2>/dev/null; tries=0\n'
        f"until ls {stage.copy}/objects/pack/tmp_* || [ $tries = 500 ]; do\n"
        "tries=$((tries + 1)); sleep 0.01; done >/dev/null 2>&1\n"
        "kill -9 $OKF_GATEWAY; kill -9 0; }",
    )
    return stage.write_tool(
        "git",
        f'[ "$1" = fetch ] || exec {git} "$@"\nshift\n'
        f'OKF_GATEWAY=$PPID exec {git} fetch --upload-pack={half} "$@"',
    )


@pytest.mark.row("P4", "P7")
def test_contacts_that_are_killed_while_they_are_recorded_leave_one_file_at_most(
    stage: Stage, mortal: MortalPulls
) -> None:
    mortal.pull(stage.repository.url)
    files = stage.count_files()
    steps = mortal.pull(stage.repository.url).steps
    for _ in range(round(10 * soak_scale())):
        assert mortal.pull(stage.repository.url, step=len(steps)).is_killed
        assert stage.count_files() <= files + 1
    assert stage.restart() is not None


# The whole gateway


@pytest.fixture
def server(git_http_server: GitHttpServerFactory) -> GitHttpServer:
    """A git host that serves the repositories of the test."""
    return git_http_server()


def registry(url: str) -> str:
    return json.dumps({"owners": {"acme": {"url": url, "ttl": 0}}})


def read_a(gateway: GatewayProcess) -> str:
    """Read document `a`."""
    params = {"uri": "knowledge://acme/note/a"}
    message = mcp_message("resources/read", params)
    headers = mcp_headers("resources/read", params)
    answer = gateway.post("/acme/mcp", message, headers=headers)
    return str(answer.json["result"]["contents"][0]["text"])


def is_fetch(exchange: Exchange) -> bool:
    return exchange.is_fetch


def gateway_steps() -> range:
    """Return the steps that a gateway is killed at: all in a soak, for each start is dear."""
    return range(1, 60) if soak_scale() > 1 else range(9, 60, 8)


@pytest.mark.row("P1", "P4", "P5")
def test_a_gateway_that_is_killed_at_any_of_its_steps_serves_a_whole_commit_when_it_starts_again(
    repository: Repository, gateway: GatewayFactory
) -> None:
    last_good = repository.publish_document("Push 0.")
    process = gateway(registry(repository.url))
    process.wait_for_state("acme", "serving")
    process.stop()
    process.environment |= mortal_environment()
    deaths = 0
    for step in gateway_steps():
        newest = repository.publish_document(f"Push {step}.")
        process.command = mortal_gateway(step, process.cache)
        process.launch()
        if not dies(process, newest):
            break
        deaths += 1
        repository.take_away()
        process.command = GATEWAY_COMMAND
        process.start()
        served = process.wait_for_state("acme", "serving")["served_commit"]
        assert served in (last_good, newest)
        body = repository.show(served, "design/a.md").decode().split("---\n")[2]
        assert read_a(process) == body.strip()
        repository.bring_back()
        assert process.refresh("acme").json["commit"] == newest
        assert read_a(process) == f"Push {step}."
        process.stop()
        last_good = newest
    assert deaths > 1
    assert "Traceback" not in process.log


def dies(process: GatewayProcess, newest: str) -> bool:
    """Wait until a gateway has died, or serves the newest commit; say which."""

    def is_over() -> bool:
        with suppress(OSError, HTTPException):
            return process.owner("acme")["served_commit"] == newest
        return not process.is_running

    wait_until(is_over, 20)
    if process.is_running:
        return False
    assert process.returncode == -signal.SIGKILL, process.log
    return True


@pytest.mark.row("P4", "P5", "P7")
def test_a_gateway_killed_in_mid_pull_serves_last_good_when_it_starts_without_its_source(
    repository: Repository, server: GitHttpServer, gateway: GatewayFactory
) -> None:
    repository.publish_document("One.")
    process = gateway(registry(server.url_of(repository)))
    good = process.wait_for_state("acme", "serving")
    assert good["served_commit"] == repository.head
    repository.publish_document("Two.")
    server.hang(when=is_fetch)
    pending = at_the_same_time(lambda: process.refresh("acme"))
    server.wait_for_requests(2, when=is_fetch)
    process.kill()
    assert isinstance(pending.exception(10), OSError)
    server.refuse(503)
    process.start()
    wait_until(lambda: process.owner("acme")["stale"])
    assert read_a(process) == "One."
    row = process.owner("acme")
    kept = ("served_commit", "docs_loaded", "last_pulled_at")
    assert [row[key] for key in kept] == [good[key] for key in kept]
    server.release()
    assert process.refresh("acme").status == 200
    assert read_a(process) == "Two."


@pytest.mark.row("P4", "P7")
def test_a_gateway_killed_in_its_first_pull_starts_over(
    repository: Repository, server: GitHttpServer, gateway: GatewayFactory
) -> None:
    repository.publish_document("One.")
    server.hang(when=is_fetch)
    process = gateway(registry(server.url_of(repository)))
    server.wait_for_requests(1, when=is_fetch)
    process.kill()
    server.release()
    process.start()
    process.wait_for_state("acme", "serving")
    assert read_a(process) == "One."


@pytest.mark.row("P4", "P7")
def test_a_git_that_outlives_its_gateway_harms_nothing_of_the_next(
    repository: Repository, server: GitHttpServer, gateway: GatewayFactory
) -> None:
    repository.publish_document("One.")
    process = gateway(registry(server.url_of(repository)))
    process.wait_for_state("acme", "serving")
    process.stop()
    repository.publish_document("Two.")
    server.hang(when=is_of_the_orphan)
    with an_orphan(server.url_of(repository), process.cache / "acme") as orphan:
        server.wait_for_requests(1, when=is_of_the_orphan)
        process.start()
        for number in range(3):
            commit = repository.publish_document(f"Push {number}.")
            assert process.refresh("acme").json["commit"] == commit
            assert read_a(process) == f"Push {number}."
        server.release()
        orphan.wait(10)
    assert read_a(process) == "Push 2."
    commit = repository.publish_document("The last.")
    assert process.refresh("acme").json["commit"] == commit
    assert read_a(process) == "The last."


def is_of_the_orphan(exchange: Exchange) -> bool:
    return exchange.is_fetch and exchange.headers["x-orphan"] is not None


@contextmanager
def an_orphan(url: str, copy: Path) -> Generator["subprocess.Popen[bytes]"]:
    """Run what a gateway fetches by, without one; it ends with the block at the latest."""
    orphan = subprocess.Popen(
        [
            *("git", "-c", "http.extraHeader=X-Orphan: 1", "fetch", "--quiet", "--depth=1"),
            *("--no-tags", "--force", "--", url, "refs/heads/main:refs/okf/next"),
        ],
        env={**git_environment(), "GIT_DIR": str(copy)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield orphan
    finally:
        with suppress(ProcessLookupError):
            os.killpg(orphan.pid, signal.SIGKILL)
        orphan.wait(10)


def at_the_same_time(call: Callable[[], Answer]) -> "Future[Answer]":
    """Run a call in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future
