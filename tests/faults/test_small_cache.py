"""The cache stays small, however often is pushed; and what nobody needs any more leaves it.

2,000 pushes leave at most 20 packs and 3 times the disk of a fresh clone (a normal run makes
a part of them, `OKF_SOAK=10` all). A repack never delays a read. Copies of owners that left the
registry go after a grace time.
"""

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from anyio import sleep, to_thread

from okf_mcp_gateway.snapshot_file import NAME as SNAPSHOT
from okf_mcp_gateway.source.removed_copies import GRACE_DAYS, MARK, sweep
from support.gateway_process import wait_until
from support.in_process import NOON, InProcess, running, until
from support.repositories import Repository, RepositoryFactory
from support.repositories import git as run_git
from support.soak import soak_scale

MAX_PACKS = 20
MAX_DISK = 3.0
PUSHES = round(200 * soak_scale())
DOCUMENTS = 40
SLOW_REPACK_SECONDS = 30
READ_SECONDS = 2.0
"""For a read with its pull, which takes a tenth of a second where nothing is in its way."""
TEN_YEARS = timedelta(days=3652)


def servers(repository: Repository) -> str:
    return json.dumps({"owners": {"acme": {"url": repository.url, "ttl": 0}}})


def disk_bytes(folder: Path) -> int:
    """Return what the folder takes on disk, as du(1) counts it, its snapshot file apart."""
    paths = (path for path in [folder, *folder.rglob("*")] if SNAPSHOT not in path.name)
    return sum(os.lstat(path).st_blocks * 512 for path in paths)


def count_packs(copy: Path) -> int:
    return len(list(copy.glob("objects/pack/*.pack")))


async def until_repacked(copy: Path) -> None:
    """Wait until the copy is one pack."""

    async def is_one_pack() -> bool:
        return count_packs(copy) == 1

    await until(is_one_pack)


async def push_until(
    gateway: InProcess, repository: Repository, predicate: Callable[[], bool]
) -> None:
    """Push, and pull each push, until `predicate` holds; 20 times at most."""
    for number in range(20):
        if predicate():
            return
        repository.document("pushed.md", id="pushed", body=f"{number}\n")
        repository.publish()
        assert (await gateway.refresh("acme")).status_code == 200
        await sleep(0.05)
    raise AssertionError("20 pushes were not enough")


@pytest.fixture
def slow_repack(tmp_path: Path) -> Path:
    """Put a `git` into the folder of this file whose repack takes long; it writes its id here."""
    started = tmp_path / "tools" / "started"
    started.parent.mkdir()
    write_tool(started.parent, f'echo $$ >> "{started}"; exec sleep {SLOW_REPACK_SECONDS}')
    return started


@pytest.fixture
def broken_repack(tmp_path: Path) -> Path:
    """Return a folder with a `git` whose repack fails."""
    folder = tmp_path / "tools"
    folder.mkdir()
    write_tool(folder, "echo 'fatal: unable to read a tree' >&2; exit 128")
    return folder


def write_tool(folder: Path, repack: str) -> None:
    real = shutil.which("git")
    tool = folder / "git"
    tool.write_text(f'#!/bin/sh\n[ "$1" = repack ] && {{ {repack}; }}\nexec {real} "$@"\n')
    tool.chmod(0o755)


def read_ids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


def is_alive(process_id: int) -> bool:
    return Path(f"/proc/{process_id}/cmdline").exists()


def push_many(repository: Repository, pushes: int) -> Iterator[str]:
    """Let the source's branch name one commit after the other; each changes one document."""
    source = repository.bare
    for number in range(DOCUMENTS):
        repository.document(f"{number}.md", id=f"d{number}", body=f"{number} words.\n" * 300)
    repository.publish()
    run_git("update-ref", "refs/heads/all", "main", folder=source)
    stream = b"".join(
        b"commit refs/heads/all\ncommitter a <a@example.com> %d +0000\ndata 0\n%s"
        b"M 100644 inline %d.md\ndata <<END\n---\nexport: true\ntype: Note\nid: d%d\n---\n%s\nEND\n"
        % (
            1_800_000_000 + number,
            b"from refs/heads/all^0\n" if number == 0 else b"",
            number % DOCUMENTS,
            number % DOCUMENTS,
            b"%d other words.\n" % number * 300,
        )
        for number in range(pushes)
    )
    run_git("fast-import", "--quiet", folder=source, stdin=stream)
    commits = run_git("rev-list", "--reverse", "main..all", folder=source).decode().split()
    assert len(commits) == pushes
    for commit in commits:
        run_git("update-ref", "refs/heads/main", commit, folder=source)
        yield commit


@pytest.mark.anyio
@pytest.mark.row("P4")
async def test_many_pushes_leave_few_packs_and_little_more_than_a_fresh_clone(
    repository: Repository, tmp_path: Path
) -> None:
    pushes = push_many(repository, PUSHES)
    next(pushes)
    async with running(tmp_path / "gateway", servers(repository)) as gateway:
        await gateway.wait_for_state("acme", "serving")
        copy = gateway.cache / "acme"
        most_packs, most_disk = 0, 0
        for number, commit in enumerate(pushes):
            assert (await gateway.refresh("acme")).json()["commit"] == commit
            most_packs = max(most_packs, count_packs(copy))
            if number % 10 == 0:
                most_disk = max(most_disk, await to_thread.run_sync(disk_bytes, copy))
    fresh = tmp_path / "fresh"
    run_git(
        *("clone", "--quiet", "--bare", "--template=", "--depth=1", "--branch=main"),
        *(repository.url, str(fresh)),
        folder=tmp_path,
    )
    assert most_packs <= MAX_PACKS
    assert most_disk <= MAX_DISK * disk_bytes(fresh)
    # Whole, after all these repacks.
    run_git("fsck", "--full", "--strict", folder=copy)
    assert (copy / "shallow").read_text().count("\n") <= MAX_PACKS


@pytest.mark.anyio
@pytest.mark.row("P4")
async def test_a_copy_that_has_no_time_between_two_pulls_has_few_packs_too(
    published: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the next pull were always asked for when one ends.
    monkeypatch.setattr("okf_mcp_gateway.owners.REPACK_WEAR", math.inf)
    async with running(tmp_path / "gateway", servers(published)) as gateway:
        await gateway.wait_for_state("acme", "serving")
        most_packs = 0
        for number in range(MAX_PACKS + 4):
            commit = published.publish_document(f"{number}.")
            assert (await gateway.refresh("acme")).json()["commit"] == commit
            most_packs = max(most_packs, count_packs(gateway.cache / "acme"))
    assert most_packs <= MAX_PACKS


@pytest.mark.anyio
@pytest.mark.row("P4")
async def test_pushes_that_replace_everything_leave_one_copy_of_it_once_there_is_time(
    published: Repository, tmp_path: Path
) -> None:
    async with running(tmp_path / "gateway", servers(published)) as gateway:
        await gateway.wait_for_state("acme", "serving")
        copy = gateway.cache / "acme"
        for _ in range(5):
            published.write("large.bin", os.urandom(1024 * 1024))
            published.publish()
            assert (await gateway.refresh("acme")).status_code == 200
        await until_repacked(copy)
        assert disk_bytes(copy) < 1.5 * 1024 * 1024


@pytest.mark.anyio
@pytest.mark.row("P4", "P2")
async def test_a_repack_delays_no_read_and_is_broken_off_by_the_next_push(
    published: Repository, tmp_path: Path, slow_repack: Path
) -> None:
    path = f"{slow_repack.parent}{os.pathsep}{os.environ['PATH']}"
    async with running(
        tmp_path / "gateway", servers(published), environment={"PATH": path}
    ) as gateway:
        await gateway.wait_for_state("acme", "serving")
        await push_until(gateway, published, slow_repack.exists)
        # With a ttl of 0 each read asks the source: the repack isn't in its way, nor ended by it.
        (repack,) = read_ids(slow_repack)
        begun = time.monotonic()
        assert (await gateway.mcp("acme", "resources/list")).status_code == 200
        assert time.monotonic() - begun < READ_SECONDS
        assert is_alive(repack)
        published.document("news.md", id="news")
        commit = published.publish()
        begun = time.monotonic()
        answer = await gateway.mcp("acme", "resources/read", {"uri": "knowledge://acme/note/news"})
        assert answer.status_code == 200, answer.text
        assert (await gateway.row("acme"))["served_commit"] == commit
        assert time.monotonic() - begun < READ_SECONDS
        assert not is_alive(repack)


@pytest.mark.anyio
@pytest.mark.row("P1", "P4")
async def test_a_repack_that_takes_long_holds_up_the_pulls_of_no_other_owner(
    new_repository: RepositoryFactory, tmp_path: Path
) -> None:
    repositories = {name: new_repository(name) for name in ("acme", "beta")}
    owners = {name: {"url": publish(each), "ttl": 0} for name, each in repositories.items()}
    started = tmp_path / "tools" / "started"
    started.parent.mkdir()
    hang = f'echo $$ >> "{started}"; exec sleep {SLOW_REPACK_SECONDS}'
    write_tool(started.parent, f"case $GIT_DIR in */acme) {hang} ;; esac")
    path = f"{started.parent}{os.pathsep}{os.environ['PATH']}"
    async with running(
        tmp_path / "gateway", json.dumps({"owners": owners}), environment={"PATH": path}
    ) as gateway:
        await gateway.wait_for_state("beta", "serving")
        await push_until(gateway, repositories["acme"], started.exists)
        for number in range(MAX_PACKS):
            commit = repositories["beta"].publish_document(f"{number}.")
            begun = time.monotonic()
            assert (await gateway.refresh("beta")).json()["commit"] == commit
            assert time.monotonic() - begun < READ_SECONDS


@pytest.mark.anyio
@pytest.mark.row("P4")
async def test_a_copy_that_can_not_be_repacked_is_made_anew(
    published: Repository, tmp_path: Path, broken_repack: Path
) -> None:
    path = f"{broken_repack}{os.pathsep}{os.environ['PATH']}"
    async with running(
        tmp_path / "gateway", servers(published), environment={"PATH": path}
    ) as gateway:
        await gateway.wait_for_state("acme", "serving")
        copy = gateway.cache / "acme"
        first = copy.stat().st_ino
        await push_until(gateway, published, lambda: copy.stat().st_ino != first)
        assert count_packs(copy) == 1
        assert (await gateway.row("acme"))["served_commit"] == published.head


@pytest.mark.anyio
@pytest.mark.row("P6")
async def test_the_copy_of_a_removed_owner_is_kept_for_seven_days_and_then_removed(
    new_repository: RepositoryFactory, tmp_path: Path
) -> None:
    urls = {name: {"url": publish(new_repository(name))} for name in ("acme", "beta")}
    both, one = (json.dumps({"owners": owners}) for owners in (urls, {"acme": urls["acme"]}))
    folder = tmp_path / "gateway"
    async with running(folder, both) as gateway:
        await gateway.wait_for_state("beta", "serving")
        cache = gateway.cache
    (cache / "notes").mkdir()
    (cache / "notes" / "mine.txt").touch()
    half_made = cache / ".beta.new"
    half_made.mkdir()
    copies = (cache / "beta", half_made)
    marks = [copy / MARK for copy in copies]

    # Out of the registry: kept, so that a slip costs nothing.
    async with running(folder, one):
        await appear(*marks)
    # Back again in time: the days are counted anew.
    async with running(folder, both) as gateway:
        await vanish(*marks)
        await gateway.wait_for_state("beta", "serving")
    half_made.mkdir(exist_ok=True)
    async with running(folder, one):
        await appear(*marks)
    # However often a day is looked at, and whatever the clock says of the years: it is one day.
    for now in (NOON, NOON + timedelta(hours=23), NOON + TEN_YEARS, NOON - TEN_YEARS):
        sweep(cache, {"acme"}, now)
    assert [mark.read_text() for mark in marks] == ["3", "3"]
    for day in range(4, GRACE_DAYS + 1):
        sweep(cache, {"acme"}, NOON - timedelta(days=GRACE_DAYS + 1 - day))
        assert all(copy.exists() for copy in copies)
    # Over its time: gone, and nothing else.
    async with running(folder, one) as gateway:
        await vanish(*copies)
        await gateway.wait_for_state("acme", "serving")
    assert {path.name for path in cache.iterdir()} == {".home", ".lock", "acme", "notes"}


def publish(repository: Repository) -> str:
    """Push a document, and return the repository's URL."""
    repository.document("a.md", id="a")
    repository.publish()
    return repository.url


async def appear(*paths: Path) -> None:
    await to_thread.run_sync(wait_until, lambda: all(path.exists() for path in paths))


async def vanish(*paths: Path) -> None:
    await to_thread.run_sync(wait_until, lambda: not any(path.exists() for path in paths))
