"""What an owner serves and how fresh it is, as functions of (state, ttl, now)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.state import (
    Freshness,
    Instant,
    OwnerState,
    PullFault,
    back_off_seconds,
    freshness,
    is_due,
    pulled_age_seconds,
    wait_seconds,
)
from okf_mcp_server.snapshot import Snapshot

TTL = 60
PULL_WAIT = 5.0
COMMIT = "c0ffee" + "0" * 34
NOON = Instant(datetime(2026, 7, 17, 12, 0, tzinfo=UTC), 1000.0)
SNAPSHOT = Snapshot(
    commit=COMMIT,
    roots=(),
    documents=(),
    starts=(),
    shadowed=(),
    diagnostics=(),
    verdicts={},
    listing=None,
    parsed_files=0,
)
UNREACHABLE = PullFault("CloneError", "fatal: repository not found")
TOO_SLOW = PullFault("CloneError", "git fetch took longer than 5 s", "timeout")
DISK_FULL = PullFault("LoadError", "No space left on device: <cache>")

LOADING = OwnerState()
FAILED = LOADING.after_failure(UNREACHABLE, NOON)
FRESH = OwnerState(SNAPSHOT, pulled_at=NOON, attempted_at=NOON)


def config(*, ttl: int = TTL, ref: str = "main") -> OwnerConfig:
    return OwnerConfig("acme", "https://git.example.com/acme.git", ref, ttl)


def after_outage(seconds: float, fault: PullFault = UNREACHABLE) -> OwnerState:
    """Return a state that was pulled at noon, and not reached `seconds` later."""
    return FRESH.after_failure(fault, NOON.later(seconds))


@pytest.mark.row("S1")
@pytest.mark.parametrize(
    ("state", "name"),
    [
        pytest.param(LOADING, "loading", id="first pull under way"),
        pytest.param(FRESH, "serving", id="content"),
        pytest.param(FAILED, "failed", id="nothing to serve"),
        pytest.param(after_outage(5), "serving", id="content that could not be checked"),
        pytest.param(after_outage(5, DISK_FULL), "serving", id="our own fault"),
    ],
)
def test_a_state_is_called_by_what_there_is_to_serve(state: OwnerState, name: str) -> None:
    assert state.name == name


@pytest.mark.row("S2")
@pytest.mark.parametrize(
    ("state", "ttl", "age", "verdict"),
    [
        pytest.param(LOADING, TTL, 0, Freshness.UNKNOWN, id="no commit yet"),
        pytest.param(FAILED, TTL, 3600, Freshness.UNKNOWN, id="no commit wins over a failure"),
        pytest.param(FRESH, TTL, 0, Freshness.FRESH, id="age 0"),
        pytest.param(FRESH, 0, 0.999, Freshness.FRESH, id="ttl 0 in the same second"),
        pytest.param(FRESH, 0, 1, Freshness.STALE_TTL, id="ttl 0 a second later"),
        pytest.param(FRESH, TTL, TTL, Freshness.FRESH, id="age equal to ttl"),
        pytest.param(FRESH, TTL, TTL + 0.999, Freshness.FRESH, id="a part of a second more"),
        pytest.param(FRESH, TTL, TTL + 1, Freshness.STALE_TTL, id="a second more"),
        pytest.param(after_outage(5), TTL, 5, Freshness.STALE, id="failed within ttl"),
        pytest.param(after_outage(5), TTL, 3600, Freshness.STALE, id="failed wins over age"),
        pytest.param(after_outage(5, DISK_FULL), TTL, 5, Freshness.STALE, id="our own fault"),
    ],
)
def test_the_first_verdict_that_matches_wins(
    state: OwnerState, ttl: int, age: float, verdict: Freshness
) -> None:
    assert freshness(state, ttl, NOON.later(age)) is verdict


@pytest.mark.row("S2")
def test_freshness_is_stale_exactly_when_the_state_is_stale() -> None:
    states = [LOADING, FRESH, FAILED, after_outage(5), after_outage(5, TOO_SLOW)]
    for state, ttl, age in product(states, (0, 1, TTL), (0, 0.5, 1, TTL, TTL + 1, 1e6)):
        verdict = freshness(state, ttl, NOON.later(age))
        assert (verdict is Freshness.STALE) == state.is_stale
        assert state.is_stale == (state.fault is not None and state.snapshot is not None)


@pytest.mark.row("S2")
@pytest.mark.parametrize(
    ("age", "whole"),
    [
        pytest.param(0.999, 0, id="a part counts nothing"),
        pytest.param(59.999, 59, id="rounded down"),
        pytest.param(60.0, 60, id="whole"),
        pytest.param(-0.5, 0, id="never negative"),
        pytest.param(-3600.0, 0, id="far from negative"),
    ],
)
def test_ages_are_whole_seconds_and_never_negative(age: float, whole: int) -> None:
    assert pulled_age_seconds(FRESH, NOON.later(age)) == whole


@pytest.mark.row("S2")
def test_what_was_never_pulled_has_no_age() -> None:
    assert pulled_age_seconds(FAILED, NOON) is None


@pytest.mark.row("S2")
def test_a_failed_attempt_keeps_what_is_served_and_when_it_was_pulled() -> None:
    later = NOON.later(5)
    assert after_outage(5) == OwnerState(SNAPSHOT, NOON, later, UNREACHABLE, failing_since=later)


@pytest.mark.row("S2", "P2", "P3")
@pytest.mark.parametrize(
    ("state", "ttl", "age", "due"),
    [
        pytest.param(FRESH, TTL, 0, False, id="fresh"),
        pytest.param(FRESH, TTL, TTL, False, id="age equal to ttl"),
        pytest.param(FRESH, TTL, TTL + 0.999, False, id="not a whole second more"),
        pytest.param(FRESH, TTL, TTL + 1, True, id="older than ttl"),
        pytest.param(FRESH, 0, 0, True, id="ttl 0 is always due"),
        pytest.param(after_outage(5), TTL, 6, False, id="1 s after an outage"),
        pytest.param(after_outage(5), TTL, 6.001, True, id="more than 1 s after an outage"),
        pytest.param(after_outage(5), 0, 5.5, False, id="ttl 0 leaves an outage alone too"),
        pytest.param(after_outage(500), TTL, 500.5, False, id="so does an age over ttl"),
        pytest.param(after_outage(5, DISK_FULL), TTL, 6.001, True, id="our own fault"),
        pytest.param(after_outage(5, TOO_SLOW), TTL, 6.001, True, id="a deadline"),
    ],
)
def test_a_request_pulls_when_the_ttl_or_a_retry_says_so(
    state: OwnerState, ttl: int, age: float, due: bool
) -> None:
    assert is_due(state, config(ttl=ttl), NOON.later(age)) is due


@pytest.mark.row("S2")
def test_one_function_decides_what_status_says_and_what_a_request_pulls() -> None:
    for age in (0, 0.5, TTL, TTL + 0.5, TTL + 1, TTL + 1.5, 1e6):
        now = NOON.later(age)
        says_old = freshness(FRESH, config().fresh_seconds, now) is Freshness.STALE_TTL
        assert is_due(FRESH, config(), now) == says_old


@pytest.mark.row("G2")
@pytest.mark.parametrize("ttl", [0, TTL])
@pytest.mark.parametrize(
    "ref", [COMMIT, COMMIT.upper(), "a" * 64], ids=["sha-1", "upper case", "sha-256"]
)
def test_an_owner_pinned_to_a_commit_is_never_due(ref: str, ttl: int) -> None:
    pinned, now = config(ttl=ttl, ref=ref), NOON.later(1e9)
    assert not is_due(FRESH, pinned, now)
    assert freshness(FRESH, pinned.fresh_seconds, now) is Freshness.FRESH


@pytest.mark.parametrize("ref", ["a" * 39, "a" * 41, "main"])
def test_a_ref_that_is_no_full_commit_id_is_due_like_any_other(ref: str) -> None:
    assert is_due(FRESH, config(ref=ref), NOON.later(TTL + 1))


@pytest.mark.row("P2")
@pytest.mark.parametrize(
    ("state", "pull_wait", "seconds"),
    [
        pytest.param(LOADING, PULL_WAIT, PULL_WAIT, id="first pull"),
        pytest.param(FRESH, PULL_WAIT, PULL_WAIT, id="after a success"),
        pytest.param(after_outage(5), PULL_WAIT, 1.0, id="after a failure"),
        pytest.param(after_outage(5, DISK_FULL), PULL_WAIT, 1.0, id="after a fault of ours"),
        pytest.param(after_outage(5), 0.25, 0.25, id="never longer than pull_wait"),
        pytest.param(after_outage(5, TOO_SLOW), PULL_WAIT, 0.0, id="after a deadline"),
        pytest.param(replace(after_outage(5), fault=None), PULL_WAIT, PULL_WAIT, id="back again"),
    ],
)
def test_a_request_waits_by_how_the_last_pull_went(
    state: OwnerState, pull_wait: float, seconds: float
) -> None:
    assert wait_seconds(state, pull_wait) == seconds


@pytest.mark.row("P3")
def test_the_back_off_doubles_up_to_a_minute() -> None:
    pauses = [back_off_seconds(failures) for failures in (1, 2, 3, 4, 5, 6, 7, 8, 100, 100_000)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]


@pytest.mark.row("S2")
@pytest.mark.parametrize(
    ("stored_before", "age"),
    [
        pytest.param(timedelta(seconds=90), 90, id="90 s ago"),
        pytest.param(timedelta(days=3653), 3653 * 86_400, id="10 years ago"),
        pytest.param(timedelta(0), 0, id="now"),
        pytest.param(timedelta(days=-1), 0, id="a day in the future"),
        pytest.param(timedelta(days=-3653), 0, id="10 years in the future"),
    ],
)
def test_a_stored_time_has_the_age_that_the_wall_clock_gives_it(
    stored_before: timedelta, age: int
) -> None:
    at = NOON.at - stored_before
    restored = replace(FRESH, pulled_at=NOON.back_to(at))
    assert pulled_age_seconds(restored, NOON) == age
    assert pulled_age_seconds(restored, NOON.later(7)) == age + 7
    assert restored.pulled_at is not None
    assert restored.pulled_at.at == at


@pytest.mark.row("S2")
def test_a_jump_of_the_wall_clock_ages_nothing() -> None:
    jumped = Instant(NOON.at + timedelta(days=400), NOON.seconds + 10)
    assert pulled_age_seconds(FRESH, jumped) == 10
    assert freshness(FRESH, TTL, jumped) is Freshness.FRESH


def test_a_later_moment_is_later_on_both_clocks() -> None:
    later = NOON.later(1.5)
    assert later == Instant(NOON.at + timedelta(seconds=1.5), 1001.5)
    assert (later.since(NOON), NOON.since(later)) == (1.5, -1.5)
