"""One owner with real git: when it pulls, who waits for that, and what it serves meanwhile.

The clock stands still unless a test moves it; git, its hosts and their troubles are real.
"""

import logging
import os
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TypeVar

import pytest
from anyio import create_task_group, current_time, fail_after, move_on_after, to_thread

from okf_mcp_gateway.owners import MAX_PULLS_PER_HOST, Owner, PullSlots
from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.snapshot_file import NAME as SNAPSHOT
from okf_mcp_gateway.snapshot_file import SnapshotFile
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.source.mirror import Mirror
from okf_mcp_gateway.source.puller import Puller
from okf_mcp_gateway.state import Instant, SystemClock
from okf_mcp_server.snapshot import WHOLE_REPOSITORY, Snapshot
from support.gateway_process import wait_until
from support.git_http import Exchange, GitHttpServer, GitHttpServerFactory
from support.repositories import Repository, RepositoryFactory, git, lose_object

pytestmark = pytest.mark.anyio

DEADLINE_SECONDS = 60.0
HOUR = 3600
YEAR = 365 * 24 * HOUR
KEY = b"the key of the checksums"

T = TypeVar("T")


Publish = Callable[[Snapshot | None, Snapshot], None]


def no_news(_: Snapshot | None, __: Snapshot) -> None:
    """Tell nobody of a publish."""


class StillClock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        # Replaced as a whole, by the test alone.
        self._now = SystemClock().now()

    def now(self) -> Instant:
        return self._now

    def seconds(self) -> float:
        return self._now.seconds

    def advance(self, seconds: float) -> None:
        self._now = self._now.later(seconds)


class House:
    """The owners of one gateway, and what they share: a clock, git, a cache, slots for pulls."""

    def __init__(self, folder: Path, path: str, deadline_seconds: float) -> None:
        self.cache = folder / "cache"
        home = folder / "home"
        for each in (self.cache, home):
            each.mkdir(exist_ok=True)
        self.clock = StillClock()
        self.git = Git(environ={"PATH": path}, home=home, deadline_seconds=deadline_seconds)
        self._slots = PullSlots()

    def owner(
        self,
        url: str,
        *,
        name: str = "acme",
        ref: str = "main",
        ttl: int = 0,
        roots: tuple[str, ...] = (),
        pull_wait: float = 30.0,
        scrub: Callable[[str], str] = str,
        on_publish: Publish = no_news,
    ) -> Owner:
        """Return an owner that doesn't run yet, as a new process would make it."""
        paths = tuple(PurePosixPath(root) for root in roots) or WHOLE_REPOSITORY
        config = OwnerConfig(name, url, ref, ttl, paths)
        return Owner(
            config,
            Puller(
                config,
                Mirror(config, self.cache, self.git),
                SnapshotFile(config, KEY),
                now=lambda: self.clock.now().at,
                scrub=scrub,
            ),
            slots=self._slots,
            clock=self.clock,
            scrub=scrub,
            pull_wait_seconds=pull_wait,
            on_publish=on_publish,
        )


HouseFactory = Callable[..., House]


@pytest.fixture
def new_house(tmp_path: Path) -> Iterator[HouseFactory]:
    """Make houses that share one cache; what their git still does is killed after the test."""
    houses: list[House] = []

    def build(*, git_folder: Path | None = None, deadline_seconds: float = 30.0) -> House:
        path = os.environ["PATH"]
        if git_folder:
            path = f"{git_folder}{os.pathsep}{path}"
        houses.append(House(tmp_path, path, deadline_seconds))
        return houses[-1]

    yield build
    for house in houses:
        house.git.close()


@pytest.fixture
def house(new_house: HouseFactory) -> House:
    return new_house()


@pytest.fixture
def repository(new_repository: RepositoryFactory) -> Repository:
    """A repository with one commit of one document, pushed."""
    repository = new_repository()
    repository.publish_document("One.")
    return repository


@pytest.fixture
def server(git_http_server: GitHttpServerFactory) -> GitHttpServer:
    """A git host that serves the repositories of the test."""
    return git_http_server()


def body(owner: Owner) -> str:
    """Return what the owner serves as document `a`."""
    return owner.current().by_uri["knowledge://acme/note/a"].content


@asynccontextmanager
async def running(*owners: Owner) -> AsyncGenerator[None]:
    """Run owners as the gateway does; the test's body has a deadline."""
    with fail_after(DEADLINE_SECONDS):
        async with create_task_group() as tasks:
            for owner in owners:
                tasks.start_soon(owner.run)
            yield
            tasks.cancel_scope.cancel()


async def until(predicate: Callable[[], T], seconds: float = 20.0) -> T:
    """Wait until `predicate` holds, while the owners run."""
    return await to_thread.run_sync(wait_until, predicate, seconds)


async def start(owner: Owner) -> None:
    """Wait until the pull that an owner makes at its start has ended well."""
    await until(lambda: owner.state.attempted_at == owner.state.pulled_at is not None)
    assert await owner.refresh() is None


async def arrive(
    server: GitHttpServer, count: int, when: Callable[[Exchange], bool] = lambda _: True
) -> None:
    """Wait until so many requests have reached a git host."""
    await to_thread.run_sync(lambda: server.wait_for_requests(count, when=when))


async def is_answered_at_once(owner: Owner) -> bool:
    """Whether a request finds all it needs without waiting for anything."""
    with move_on_after(0) as scope:
        await owner.ensure_fresh()
    return not scope.cancelled_caught


async def seconds_of_a_request(owner: Owner) -> float:
    begin = current_time()
    await owner.ensure_fresh()
    return current_time() - begin


def count_pulls(server: GitHttpServer) -> int:
    """Count what asked a host for its refs: each pull does, and once more if it fetches."""
    return sum(exchange.method == "GET" for exchange in server.exchanges)


# One pull at a time


@pytest.mark.row("P2")
async def test_64_requests_at_once_make_one_pull(house: House, repository: Repository) -> None:
    owner = house.owner(repository.url)
    async with running(owner):
        await start(owner)
        before = house.git.started_processes
        async with create_task_group() as requests:
            for _ in range(64):
                requests.start_soon(owner.ensure_fresh)
        assert house.git.started_processes - before == 1


@pytest.mark.row("P2")
async def test_requests_that_come_while_a_pull_runs_join_it(
    house: House, repository: Repository, server: GitHttpServer
) -> None:
    owner = house.owner(server.url_of(repository))
    async with running(owner):
        await start(owner)
        before = house.git.started_processes
        server.forget()
        server.hang()
        async with create_task_group() as requests:
            requests.start_soon(owner.ensure_fresh)
            await arrive(server, 1)
            for _ in range(63):
                requests.start_soon(owner.ensure_fresh)
            server.release()
        assert house.git.started_processes - before == 1


@pytest.mark.row("H3")
async def test_a_refresh_never_takes_the_result_of_a_pull_that_began_before_it(
    house: House, repository: Repository, server: GitHttpServer
) -> None:
    owner = house.owner(server.url_of(repository))
    commits: list[str | None] = []

    async def refresh() -> None:
        assert await owner.refresh() is None
        commits.append(owner.current().commit)

    async with running(owner):
        await start(owner)
        repository.publish_document("Before the pull.")
        server.forget()
        server.hang(when=lambda exchange: exchange.is_fetch)
        async with create_task_group() as callers:
            callers.start_soon(owner.ensure_fresh)
            await arrive(server, 1, lambda exchange: exchange.is_fetch)
            repository.publish_document("After its probe.")
            callers.start_soon(refresh)
            # The refresh waits now: a task that was started before this one runs before it.
            callers.start_soon(to_thread.run_sync, server.release)
        assert commits == [repository.head]


@pytest.mark.row("H3")
async def test_refreshes_that_wait_share_the_next_pull(
    house: House, repository: Repository, server: GitHttpServer
) -> None:
    owner = house.owner(server.url_of(repository))
    async with running(owner):
        await start(owner)
        server.forget()
        server.hang()
        async with create_task_group() as callers:
            callers.start_soon(owner.refresh)
            await arrive(server, 1)
            for _ in range(32):
                callers.start_soon(owner.refresh)
            # All of them wait now: a task that was started before this one runs before it.
            callers.start_soon(to_thread.run_sync, server.release)
        assert count_pulls(server) == 2


@pytest.mark.row("H3")
async def test_a_refresh_ignores_ttl_and_back_off(house: House, repository: Repository) -> None:
    owner = house.owner(repository.url, ttl=HOUR)
    async with running(owner):
        await start(owner)
        newest = repository.publish_document("Two.")
        await owner.ensure_fresh()
        assert body(owner) == "One."
        assert await owner.refresh() is None
        assert owner.current().commit == newest
        repository.take_away()
        assert await owner.refresh() is not None
        repository.bring_back()
        assert await owner.refresh() is None


async def test_a_caller_that_goes_away_leaves_the_pull_to_the_others(
    house: House, repository: Repository, server: GitHttpServer
) -> None:
    owner = house.owner(server.url_of(repository))
    async with running(owner):
        await start(owner)
        newest = repository.publish_document("Two.")
        server.forget()
        server.hang()
        async with create_task_group() as impatient:
            impatient.start_soon(owner.refresh)
            impatient.start_soon(owner.ensure_fresh)
            await arrive(server, 1)
            impatient.cancel_scope.cancel()
        server.release()
        await owner.ensure_fresh()
        assert owner.current().commit == newest
        assert count_pulls(server) == 2


# How long a request waits


@pytest.mark.row("P2")
async def test_a_request_waits_until_pull_wait_after_the_start_of_the_pull(
    house: House, repository: Repository, server: GitHttpServer
) -> None:
    owner = house.owner(server.url_of(repository), pull_wait=10)
    async with running(owner):
        await start(owner)
        server.forget()
        server.hang()
        with move_on_after(0.5) as patience:
            await owner.ensure_fresh()
        assert patience.cancelled_caught
        house.clock.advance(9.7)
        assert 0.2 <= await seconds_of_a_request(owner) < 9
        house.clock.advance(0.301)
        assert await is_answered_at_once(owner)
        house.clock.advance(HOUR)
        assert await is_answered_at_once(owner)
        assert len(server.exchanges) == 1
        assert body(owner) == "One."


@pytest.mark.row("P2")
async def test_after_a_failed_attempt_a_request_waits_a_second_until_a_pull_succeeds(
    house: House, repository: Repository, server: GitHttpServer
) -> None:
    owner = house.owner(server.url_of(repository), pull_wait=30)
    async with running(owner):
        await start(owner)
        server.refuse(500)
        assert await owner.refresh() is not None
        house.clock.advance(1.001)
        server.hang()
        assert 0.9 <= await seconds_of_a_request(owner) < 10
        house.clock.advance(1)
        assert await is_answered_at_once(owner)
        server.release()
        await until(lambda: not owner.state.is_stale)
        server.hang()
        with move_on_after(1.5) as patience:
            await owner.ensure_fresh()
        assert patience.cancelled_caught


@pytest.mark.row("P2")
async def test_after_a_deadline_a_request_waits_nothing_until_a_pull_succeeds(
    new_house: HouseFactory, repository: Repository, server: GitHttpServer
) -> None:
    house = new_house(deadline_seconds=2)
    owner = house.owner(server.url_of(repository))
    async with running(owner):
        await start(owner)
        server.forget()
        server.hang()
        fault = await owner.refresh()
        assert fault is not None
        assert (fault.type, fault.error_class, fault.timed_out) == ("CloneError", "timeout", True)
        assert count_pulls(server) == 1
        house.clock.advance(1.001)
        assert await is_answered_at_once(owner)
        await arrive(server, 2)
        assert await is_answered_at_once(owner)
        server.release()
        await until(lambda: not owner.state.is_stale)
        assert not await is_answered_at_once(owner)


@pytest.mark.row("P2")
async def test_a_deadline_of_our_own_git_is_a_deadline_too(
    new_house: HouseFactory, repository: Repository, tmp_path: Path
) -> None:
    house = new_house(git_folder=hanging_git(tmp_path, "cat-file"), deadline_seconds=3)
    owner = house.owner(repository.url)
    async with running(owner):
        await start(owner)
        repository.publish_document("Two.")
        (tmp_path / "hang").touch()
        fault = await owner.refresh()
        assert fault is not None
        assert (fault.type, fault.error_class, fault.timed_out) == ("LoadError", "timeout", True)
        house.clock.advance(1.001)
        assert await is_answered_at_once(owner)
        assert body(owner) == "One."


@pytest.mark.row("P2", "H2")
async def test_a_request_during_the_first_pull_waits_for_it(
    house: House, repository: Repository, server: GitHttpServer
) -> None:
    server.hang()
    owner = house.owner(server.url_of(repository), ttl=HOUR)
    async with running(owner):
        async with create_task_group() as requests:
            requests.start_soon(owner.ensure_fresh)
            await arrive(server, 1)
            with pytest.raises(LookupError):
                owner.current()
            server.release()
        assert body(owner) == "One."


@pytest.mark.row("P2")
async def test_a_request_waits_no_longer_for_a_cached_copy_that_is_slow_to_load(
    new_house: HouseFactory, repository: Repository, tmp_path: Path
) -> None:
    sooner = new_house()
    first = sooner.owner(repository.url)
    async with running(first):
        await start(first)
    (sooner.cache / "acme" / SNAPSHOT).unlink()
    house = new_house(git_folder=hanging_git(tmp_path, "rev-parse"))
    (tmp_path / "hang").touch()
    owner = house.owner(repository.url, pull_wait=0.3)
    async with running(owner):
        assert 0.3 <= await seconds_of_a_request(owner) < 5
        assert owner.state.name == "loading"
        (tmp_path / "hang").unlink()


# Outage


@pytest.mark.row("P3", "P4")
async def test_an_outage_is_retried_by_requests_more_than_a_second_after_the_last_attempt(
    house: House, repository: Repository
) -> None:
    owner = house.owner(repository.url, ttl=HOUR)
    async with running(owner):
        await start(owner)
        pulled_at = owner.state.pulled_at
        house.clock.advance(10)
        repository.take_away()
        assert await owner.refresh() is not None
        for _ in range(3):
            before = house.git.started_processes
            house.clock.advance(1)
            await owner.ensure_fresh()
            assert house.git.started_processes == before
            house.clock.advance(0.001)
            await owner.ensure_fresh()
            assert house.git.started_processes == before + 1
            assert owner.state.attempted_at == house.clock.now()
        assert (owner.state.pulled_at, owner.state.is_stale) == (pulled_at, True)
        assert body(owner) == "One."
        repository.bring_back()
        newest = repository.publish_document("Two.")
        house.clock.advance(1.001)
        await owner.ensure_fresh()
        assert (owner.current().commit, owner.state.is_stale) == (newest, False)


@pytest.mark.row("P3")
async def test_an_owner_with_content_never_pulls_by_itself(
    house: House, repository: Repository
) -> None:
    owner = house.owner(repository.url, ttl=0)
    async with running(owner):
        await start(owner)
        repository.take_away()
        assert await owner.refresh() is not None
        before = house.git.started_processes
        house.clock.advance(YEAR)
        with pytest.raises(TimeoutError):
            await until(lambda: house.git.started_processes > before, seconds=1.6)
        assert owner.next_attempt_at is None


@pytest.mark.row("P3", "S1")
async def test_an_owner_without_content_retries_by_itself_and_by_refresh_at_once(
    house: House, repository: Repository
) -> None:
    repository.take_away()
    owner = house.owner(repository.url, ttl=HOUR)
    starts: list[float] = []

    def has_started_four_times() -> bool:
        # The source is not there, so each attempt is one git process.
        if house.git.started_processes > len(starts):
            starts.append(time.monotonic())
        return len(starts) == 4

    async with running(owner):
        await until(has_started_four_times, seconds=30)
        pauses = [late - early for early, late in pairwise(starts)]
        for pause, expected in zip(pauses, (1, 2, 4), strict=True):
            assert expected - 0.1 < pause < expected * 2
        await until(lambda: owner.next_attempt_at)
        assert owner.state.name == "failed"
        assert owner.next_attempt_at == house.clock.now().later(8)
        repository.bring_back()
        with fail_after(5):
            assert await owner.refresh() is None
        assert (body(owner), owner.next_attempt_at) == ("One.", None)


@pytest.mark.row("P3")
async def test_an_owner_that_failed_serves_by_itself_once_its_source_is_back(
    house: House, repository: Repository
) -> None:
    repository.take_away()
    owner = house.owner(repository.url, ttl=HOUR)
    async with running(owner):
        await until(lambda: owner.state.name == "failed")
        repository.bring_back()
        await until(lambda: owner.state.name == "serving", seconds=10)
        assert body(owner) == "One."


# Start


@pytest.mark.row("P1")
async def test_a_cached_copy_is_served_before_its_source_is_asked(
    new_house: HouseFactory, repository: Repository, server: GitHttpServer
) -> None:
    url = server.url_of(repository)
    first = new_house().owner(url, ttl=HOUR)
    async with running(first):
        await start(first)
    server.hang()
    owner = new_house().owner(url, ttl=HOUR)
    async with running(owner):
        await owner.ensure_fresh()
        assert (body(owner), owner.state.name, owner.state.fault) == ("One.", "serving", None)
        server.forget()
        server.release()


@pytest.mark.row("P1")
async def test_every_owner_is_pulled_at_the_start_however_young_its_cached_copy(
    new_house: HouseFactory, repository: Repository
) -> None:
    first = new_house().owner(repository.url, ttl=YEAR)
    async with running(first):
        await start(first)
    newest = repository.publish_document("Two.")
    owner = new_house().owner(repository.url, ttl=YEAR)
    async with running(owner):
        await until(lambda: owner.state.snapshot and owner.current().commit == newest)


@pytest.mark.row("S2", "P4")
async def test_the_last_contact_survives_a_restart(
    new_house: HouseFactory, repository: Repository
) -> None:
    house = new_house()
    first = house.owner(repository.url)
    async with running(first):
        await start(first)
        house.clock.advance(HOUR)
        # Also a contact that found nothing new is one.
        assert await first.refresh() is None
    contact = house.clock.now()
    repository.take_away()
    later = new_house()
    later.clock.advance(3 * HOUR)
    owner = later.owner(repository.url, ttl=YEAR)
    async with running(owner):
        await owner.ensure_fresh()
        restored = owner.state
        assert restored.pulled_at is not None
        assert restored.pulled_at.at == contact.at
        age = later.clock.now().since(restored.pulled_at)
        assert age == pytest.approx((later.clock.now().at - contact.at).total_seconds())
        await until(lambda: owner.state.fault)
        assert owner.state.pulled_at == restored.pulled_at
        assert owner.state.attempted_at == later.clock.now()


@pytest.mark.row("P6")
@pytest.mark.parametrize("change", ["url", "ref"])
@pytest.mark.parametrize("new_source", ["there", "not there"])
async def test_a_changed_url_or_ref_never_serves_the_old_content_as_the_new(
    new_house: HouseFactory,
    new_repository: RepositoryFactory,
    repository: Repository,
    server: GitHttpServer,
    change: str,
    new_source: str,
) -> None:
    is_new_source_there = new_source == "there"
    old_url = server.url_of(repository)
    first = new_house().owner(old_url)
    async with running(first):
        await start(first)
    other = new_repository("other")
    other.publish_document("Other url.")
    if is_new_source_there:
        repository.document("design/a.md", id="a", body="Other ref.\n")
        repository.publish(ref="release")
    url = server.url_of(other if is_new_source_there else "gone.git")
    house = new_house()
    server.hang()
    owner = house.owner(url) if change == "url" else house.owner(old_url, ref="release")
    async with running(owner):
        await arrive(server, 1)
        assert owner.state.name == "loading"
        server.release()
        await until(lambda: owner.state.attempted_at)
        if is_new_source_there:
            assert body(owner) == f"Other {change}."
        else:
            assert (owner.state.name, owner.state.snapshot) == ("failed", None)


@pytest.mark.row("P4")
async def test_the_copy_of_a_source_is_kept_until_that_of_another_works(
    new_house: HouseFactory, repository: Repository
) -> None:
    first = new_house().owner(repository.url)
    async with running(first):
        await start(first)
    misnamed = new_house().owner(f"{repository.url}.typo")
    async with running(misnamed):
        await until(lambda: misnamed.state.name == "failed")
    repository.take_away()
    owner = new_house().owner(repository.url)
    async with running(owner):
        await owner.ensure_fresh()
        assert body(owner) == "One."


@pytest.mark.row("G2")
async def test_scan_roots_are_honoured_also_when_they_change(
    new_house: HouseFactory, new_repository: RepositoryFactory
) -> None:
    repository = new_repository()
    for path in ("notes/n.md", "design/d.md", "design/deep/e.md", "other/o.md", "top.md"):
        repository.document(path)
    repository.publish()

    async def served(roots: tuple[str, ...]) -> list[str]:
        owner = new_house().owner(repository.url, ttl=HOUR, roots=roots)
        async with running(owner):
            await owner.ensure_fresh()
            restored = [str(document.path) for document in owner.current().documents]
            await start(owner)
            assert restored == [str(document.path) for document in owner.current().documents]
        return restored

    assert await served(("notes", "design")) == ["notes/n.md", "design/d.md", "design/deep/e.md"]
    assert await served(("other",)) == ["other/o.md"]
    assert len(await served(())) == 5


@pytest.mark.row("G2")
async def test_a_pinned_commit_is_pulled_once_also_by_the_next_process(
    new_house: HouseFactory, repository: Repository, server: GitHttpServer
) -> None:
    url, pinned = server.url_of(repository), repository.head
    repository.publish_document("Two.")
    house = new_house()
    owner = house.owner(url, ref=pinned)
    async with running(owner):
        await until(lambda: owner.state.snapshot)
        assert (owner.current().commit, body(owner)) == (pinned, "One.")
        server.forget()
        house.clock.advance(10 * YEAR)
        assert await is_answered_at_once(owner)
        again = new_house().owner(url, ref=pinned)
        async with running(again):
            await again.ensure_fresh()
            assert (again.current().commit, body(again)) == (pinned, "One.")
            with pytest.raises(TimeoutError):
                await until(lambda: server.exchanges, seconds=0.5)


# Slots


@pytest.mark.row("P1")
async def test_a_slow_host_delays_only_its_own(
    house: House,
    repository: Repository,
    server: GitHttpServer,
    git_http_server: GitHttpServerFactory,
) -> None:
    quick = git_http_server()
    server.hang()
    delayed = [house.owner(server.url_of(repository), name=f"slow{number}") for number in range(20)]
    async with running(*delayed):
        await arrive(server, MAX_PULLS_PER_HOST)
        owner = house.owner(quick.url_of(repository))
        async with running(owner):
            await owner.ensure_fresh()
            assert body(owner) == "One."
        assert len(server.exchanges) == MAX_PULLS_PER_HOST
        assert {each.state.name for each in delayed} == {"loading"}
        server.release()
        await until(lambda: {each.state.name for each in delayed} == {"serving"}, seconds=40)


@pytest.mark.row("P1")
async def test_five_slow_hosts_that_fill_their_slots_delay_only_their_own(
    house: House, repository: Repository, git_http_server: GitHttpServerFactory
) -> None:
    slow = [git_http_server() for _ in range(5)]
    for each in slow:
        each.hang()
    delayed = [
        house.owner(each.url_of(repository), name=f"slow{host}-{number}")
        for host, each in enumerate(slow)
        for number in range(MAX_PULLS_PER_HOST)
    ]
    async with running(*delayed):
        for each in slow:
            await arrive(each, MAX_PULLS_PER_HOST)
        owner = house.owner(repository.url)
        async with running(owner):
            await owner.ensure_fresh()
            assert body(owner) == "One."
        assert {each.state.name for each in delayed} == {"loading"}


async def test_an_error_that_nobody_expected_ends_one_turn_and_no_task(
    house: House, repository: Repository, new_repository: RepositoryFactory
) -> None:
    def fail(_: str) -> str:
        raise ZeroDivisionError("a fault of ours")

    other = new_repository("other")
    other.publish_document("Other.")
    owner = house.owner(repository.url, scrub=fail)
    neighbour = house.owner(other.url, name="beta")
    async with running(owner, neighbour):
        await start(owner)
        repository.take_away()
        fault = await owner.refresh()
        assert fault is not None
        assert fault.type == "LoadError"
        repository.bring_back()
        assert await owner.refresh() is None
        assert await neighbour.refresh() is None
        assert [each.content for each in neighbour.current().documents] == ["Other."]


# The copy on disk


@pytest.mark.row("P4")
async def test_a_fetch_that_a_new_copy_would_not_mend_is_not_tried_twice(
    house: House, repository: Repository, server: GitHttpServer
) -> None:
    owner = house.owner(server.url_of(repository))
    async with running(owner):
        await start(owner)
        repository.publish_document("Two.")
        server.refuse(403, when=lambda exchange: exchange.is_fetch)
        server.forget()
        fault = await owner.refresh()
        assert fault is not None
        assert fault.error_class == "auth"
        assert len([each for each in server.exchanges if each.is_fetch]) == 1
        assert not (house.cache / ".acme.new").exists()


@pytest.mark.row("P4", "S2")
async def test_a_contact_that_can_not_be_recorded_is_a_contact_all_the_same(
    house: House, repository: Repository
) -> None:
    owner = house.owner(repository.url)
    async with running(owner):
        await start(owner)
        record = house.cache / "acme" / "okf.json"
        record.unlink()
        record.mkdir()  # in the record's place, so that it can't be written
        (record / "x").touch()
        assert await owner.refresh() is None
        assert body(owner) == "One."
    assert record.is_file()


@pytest.mark.row("P4")
async def test_a_broken_copy_is_replaced_and_not_deleted_before_its_successor_works(
    house: House, repository: Repository, server: GitHttpServer
) -> None:
    first = house.owner(server.url_of(repository))
    async with running(first):
        await start(first)
    head = house.cache / "acme" / "HEAD"
    head.write_text("garbage")
    server.refuse(500, when=lambda exchange: exchange.is_fetch)
    owner = house.owner(server.url_of(repository))
    async with running(owner):
        await until(lambda: owner.state.name == "failed")
        assert head.read_text() == "garbage"
        server.release()
        assert await owner.refresh() is None
        assert body(owner) == "One."
    assert head.read_text().strip() == repository.head
    assert [path.name for path in house.cache.iterdir()] == ["acme"]


@pytest.mark.row("P4", "P5")
@pytest.mark.parametrize("lost", ["the commit", "a blob"])
async def test_a_copy_that_lost_objects_is_replaced(
    new_house: HouseFactory, repository: Repository, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    house = new_house()
    first = house.owner(repository.url)
    async with running(first):
        await start(first)
    name = repository.git("rev-parse", "HEAD" if lost == "the commit" else "HEAD:design/a.md")
    lose_object(house.cache / "acme", name)
    owner = house.owner(repository.url)
    async with running(owner):
        await until(lambda: owner.state.snapshot)
        assert body(owner) == "One."
    # Foreseen: no traceback in the log.
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.row("P4", "G2")
@pytest.mark.parametrize("is_broken", [False, True], ids=["sound", "broken"])
async def test_a_pinned_owner_asks_its_source_again_only_for_a_broken_copy(
    new_house: HouseFactory, repository: Repository, server: GitHttpServer, is_broken: bool
) -> None:
    url, ref = server.url_of(repository), repository.head
    first = new_house().owner(url, ref=ref)
    async with running(first):
        await until(lambda: first.state.snapshot)
    house = new_house()
    if is_broken:
        lose_object(house.cache / "acme", ref)
    server.forget()
    owner = house.owner(url, ref=ref)
    async with running(owner):
        await until(lambda: owner.state.snapshot)
        if is_broken:
            await until(lambda: owner.state.pulled_at == house.clock.now())
        else:
            await until(lambda: house.git.started_processes == 1)
            assert await is_answered_at_once(owner)
        assert body(owner) == "One."
    assert bool(server.exchanges) is is_broken
    git("rev-parse", "--verify", "HEAD^{commit}", folder=house.cache / "acme")


@pytest.mark.row("P4")
async def test_a_sound_copy_that_could_not_be_loaded_at_the_start_is_served_later(
    new_house: HouseFactory,
    repository: Repository,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sooner = new_house()
    first = sooner.owner(repository.url)
    async with running(first):
        await start(first)
    (sooner.cache / "acme" / SNAPSHOT).unlink()
    repository.take_away()
    (tmp_path / "hang").touch()
    house = new_house(git_folder=hanging_git(tmp_path, "rev-parse"), deadline_seconds=1)
    owner = house.owner(repository.url)
    async with running(owner):
        await until(lambda: owner.state.name == "failed")
        (tmp_path / "hang").unlink()
        await until(lambda: owner.state.is_stale)
        assert body(owner) == "One."
        assert owner.state.pulled_at is not None
        assert owner.state.pulled_at.at < house.clock.now().at
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.row("P7")
async def test_locks_that_a_killed_git_left_cost_no_new_copy(
    house: House, repository: Repository
) -> None:
    owner = house.owner(repository.url)
    copy = house.cache / "acme"
    async with running(owner):
        await start(owner)
        inode = copy.stat().st_ino
        for name in ("shallow.lock", "HEAD.lock", "refs/okf/next.lock", "objects/pack/tmp_pack_x"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).touch()
        newest = repository.publish_document("Two.")
        assert await owner.refresh() is None
        assert (owner.current().commit, copy.stat().st_ino) == (newest, inode)


@pytest.mark.row("P4")
async def test_a_copy_that_vanished_while_it_was_served_is_made_anew(
    house: House, repository: Repository
) -> None:
    owner = house.owner(repository.url)
    async with running(owner):
        await start(owner)
        shutil.rmtree(house.cache / "acme")
        assert await owner.refresh() is None
        assert body(owner) == "One."
        repository.publish_document("Two.")
        shutil.rmtree(house.cache / "acme")
        assert await owner.refresh() is None
        assert body(owner) == "Two."


@pytest.mark.row("P2", "P5")
@pytest.mark.parametrize("ref", ["main", "light", "annotated"])
async def test_a_pull_that_finds_nothing_new_is_one_git_process_and_parses_nothing(
    house: House, repository: Repository, ref: str
) -> None:
    for name in ("light", "annotated"):
        repository.tag(name, annotated=name == "annotated")
    owner = house.owner(repository.url, ref=ref)
    async with running(owner):
        await start(owner)
        served, before = owner.current(), house.git.started_processes
        house.clock.advance(5)
        await owner.ensure_fresh()
        assert house.git.started_processes - before == 1
        assert owner.current() is served
        assert owner.state.pulled_at == owner.state.attempted_at == house.clock.now()


def amend(repository: Repository) -> str:
    repository.reset("HEAD~1")
    repository.document("design/a.md", id="a", body="New.\n")
    return repository.publish(force=True)


def go_back(repository: Repository) -> str:
    repository.reset("HEAD~1")
    repository.push(force=True)
    return repository.head


def rewrite_root(repository: Repository) -> str:
    repository.start_over()
    repository.document("design/a.md", id="a", body="New.\n")
    return repository.publish(force=True)


def recreate_branch(repository: Repository) -> str:
    repository.delete_branch("main")
    return rewrite_root(repository)


def add_tag_of_the_same_name(repository: Repository) -> str:
    commit = repository.publish_document("New.")
    repository.git("tag", "main", "HEAD~1")
    repository.git("push", "--quiet", repository.url, "refs/tags/main")
    return commit


def move_tag(repository: Repository) -> str:
    commit = repository.publish_document("New.")
    repository.tag("v1", force=True)
    return commit


def move_annotated_tag(repository: Repository) -> str:
    commit = repository.publish_document("New.")
    assert repository.tag("v1", annotated=True, force=True) != commit
    return commit


@pytest.mark.row("P5")
@pytest.mark.parametrize(
    ("ref", "change"),
    [
        pytest.param("main", amend, id="forced push"),
        pytest.param("main", go_back, id="back to an older commit"),
        pytest.param("main", rewrite_root, id="rewritten root"),
        pytest.param("main", recreate_branch, id="branch deleted and recreated"),
        pytest.param("main", add_tag_of_the_same_name, id="a tag of the branch's name"),
        pytest.param("v1", move_tag, id="moved tag"),
        pytest.param("v1", move_annotated_tag, id="moved annotated tag"),
    ],
)
async def test_the_next_pull_serves_the_new_tip_from_the_same_copy(
    house: House, repository: Repository, ref: str, change: Callable[[Repository], str]
) -> None:
    repository.publish_document("Two.")
    repository.tag("v1", annotated=change is move_annotated_tag)
    owner = house.owner(repository.url, ref=ref)
    copy = house.cache / "acme"
    async with running(owner):
        await start(owner)
        inode = copy.stat().st_ino
        newest = change(repository)
        await owner.ensure_fresh()
        assert (owner.current().commit, owner.state.fault) == (newest, None)
        assert body(owner) == ("One." if change is go_back else "New.")
        assert copy.stat().st_ino == inode


@pytest.mark.row("P5")
async def test_a_commit_that_changes_no_document_parses_nothing(
    house: House, repository: Repository
) -> None:
    owner = house.owner(repository.url)
    async with running(owner):
        await start(owner)
        repository.write("other.txt", "x")
        newest = repository.publish()
        await owner.ensure_fresh()
        assert (owner.current().commit, owner.current().parsed_files) == (newest, 0)


@pytest.mark.row("P5")
async def test_one_changed_file_of_2500_parses_one_file(
    house: House, new_repository: RepositoryFactory
) -> None:
    repository = new_repository()
    head = b"---\nexport: true\ntype: Note\n---\n"
    repository.fast_import({f"d{n % 50}/{n}.md": b"%s%d\n" % (head, n) for n in range(2500)})
    repository.push()
    owner = house.owner(repository.url)
    async with running(owner):
        await until(lambda: owner.state.snapshot, seconds=60)
        assert owner.current().parsed_files == 2500
        repository.document("d7/7.md", body="changed\n")
        newest = repository.publish()
        before = house.git.started_processes
        await owner.ensure_fresh()
        served = owner.current()
        assert (served.commit, len(served.documents), served.parsed_files) == (newest, 2500, 1)
        # ls-remote, rev-parse of the copy, fetch, rev-parse, diff-tree, cat-file for the sizes and
        # for the content, update-ref
        assert house.git.started_processes - before == 7


# Stopping


@pytest.mark.row("P8")
async def test_whoever_waits_for_a_pull_is_answered_when_git_is_stopped(
    house: House, repository: Repository, server: GitHttpServer
) -> None:
    owner = house.owner(server.url_of(repository))
    async with running(owner):
        await start(owner)
        served = owner.state
        server.forget()
        server.hang()
        async with create_task_group() as callers:
            callers.start_soon(owner.ensure_fresh)
            callers.start_soon(owner.refresh)
            await arrive(server, 1)
            callers.start_soon(owner.refresh)
            with fail_after(5):
                await to_thread.run_sync(house.git.close)
        assert owner.state == served


def hanging_git(folder: Path, command: str) -> Path:
    """Return a folder with a git that hangs in one command while `folder/hang` is there."""
    real = shutil.which("git")
    assert real
    program = folder / "hanging" / "git"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\n[ "$1" = {command} ] && while [ -e "{folder}/hang" ]; do sleep 0.05; done\n'
        f'exec {real} "$@"\n'
    )
    program.chmod(0o755)
    return program.parent


# News of a publish


@pytest.mark.row("P5")
async def test_who_listens_is_told_of_each_publish_once_it_is_served(
    house: House, repository: Repository
) -> None:
    told: list[tuple[str | None, str | None, bool]] = []

    def tell(before: Snapshot | None, after: Snapshot) -> None:
        told.append((before and before.commit, after.commit, owner.current() is after))

    owner = house.owner(repository.url, on_publish=tell)
    first = repository.head
    async with running(owner):
        await start(owner)
        assert await owner.refresh() is None
        assert told == [(None, first, True)]
        second = repository.publish_document("Two.")
        assert await owner.refresh() is None
        repository.take_away()
        assert await owner.refresh() is not None
        repository.bring_back()
        assert await owner.refresh() is None
    assert told == [(None, first, True), (first, second, True)]


@pytest.mark.row("P1")
async def test_a_cached_copy_is_told_as_a_publish_and_then_what_was_pulled(
    new_house: HouseFactory, repository: Repository
) -> None:
    owner = new_house().owner(repository.url)
    async with running(owner):
        await start(owner)
    first, second = repository.head, repository.publish_document("Two.")
    told: list[tuple[str | None, str | None]] = []
    owner = new_house().owner(
        repository.url,
        on_publish=lambda before, after: told.append((before and before.commit, after.commit)),
    )
    async with running(owner):
        await start(owner)
    assert told == [(None, first), (first, second)]


@pytest.mark.row("P4")
async def test_news_that_can_not_be_told_fail_no_pull(
    house: House, repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Snapshot | None, __: Snapshot) -> None:
        raise RuntimeError("nobody there")

    owner = house.owner(repository.url, on_publish=fail)
    async with running(owner):
        await start(owner)
        repository.publish_document("Two.")
        assert await owner.refresh() is None
        assert body(owner) == "Two."
    messages = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert messages == ["Publish not told: owner=acme"] * 2
