"""What an owner serves and how fresh it is: values, and functions of them (S1, S2, P2, P3)."""

import math
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Literal, Protocol, TypeAlias

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_server.snapshot import Snapshot

ErrorClass: TypeAlias = Literal[
    "auth",
    "connect",
    "corrupt",
    "disk",
    "dns",
    "not_found",
    "other",
    "policy",
    "ref_missing",
    "timeout",
    "tls",
]
"""What kind of trouble a pull ran into: the one word that an operator looks for (H9)."""

RETRY_SECONDS: Final = 1.0
"""How long after a failed pull the next request leaves the source alone (P3)."""

FAILED_WAIT_SECONDS: Final = 1.0
"""How long a request waits for a pull after one that failed (P2)."""

MAX_BACK_OFF_SECONDS: Final = 60.0


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> "Instant":
        """Return this moment."""
        ...

    def seconds(self) -> float:
        """Return this moment by the monotonic clock alone, which is quicker."""
        ...


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment, on both clocks: ages come from one that never jumps, texts from the wall's."""

    at: datetime
    """By the wall clock (UTC)."""
    seconds: float
    """By the monotonic clock."""

    def since(self, earlier: "Instant") -> float:
        """Return how many seconds lie between `earlier` and this moment."""
        return self.seconds - earlier.seconds

    def later(self, seconds: float) -> "Instant":
        """Return the moment `seconds` after this one."""
        return Instant(self.at + timedelta(seconds=seconds), self.seconds + seconds)

    def back_to(self, at: datetime) -> "Instant":
        """Return the moment `at`, seen from this one; one in the future is now (S2)."""
        age = max((self.at - at).total_seconds(), 0.0)
        return Instant(at, self.seconds - age)


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Instant:
        """Return this moment."""
        return Instant(datetime.now(UTC), time.monotonic())

    def seconds(self) -> float:
        """Return this moment by the monotonic clock alone, which is quicker."""
        return time.monotonic()


class Freshness(StrEnum):
    """Our verdict on what an owner serves (S2)."""

    FRESH = "fresh"
    STALE = "stale"
    STALE_TTL = "stale_ttl"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PullFault:
    """Why a pull failed."""

    type: Literal["CloneError", "LoadError"]
    """`CloneError`: the source's fault; `LoadError`: ours (S1)."""
    message: str
    """Scrubbed."""
    error_class: ErrorClass = "other"

    @property
    def timed_out(self) -> bool:
        """Whether git ran into its deadline."""
        return self.error_class == "timeout"


@dataclass(frozen=True, slots=True)
class OwnerState:
    """What an owner serves, and how its last pull went."""

    snapshot: Snapshot | None = None
    pulled_at: Instant | None = None
    """When the source was last reached, by this process or by an earlier one."""
    attempted_at: Instant | None = None
    """When the last pull ended, whatever its outcome; `pulled_at` if this process made none."""
    fault: PullFault | None = None
    """Why the last pull failed; None if it succeeded, or if there was none yet."""
    failing_since: Instant | None = None
    """When the first pull ended of those that failed since the last success; None without one."""

    @property
    def name(self) -> Literal["loading", "serving", "failed"]:
        """What `/status` calls this state (S1)."""
        if self.snapshot is not None:
            return "serving"
        return "loading" if self.fault is None else "failed"

    @property
    def is_stale(self) -> bool:
        """Whether the content on hand couldn't be checked at its source (S2)."""
        return self.snapshot is not None and self.fault is not None

    def after_failure(self, fault: PullFault, at: Instant) -> "OwnerState":
        """Return the state after a pull that failed: what is served stays."""
        since = self.failing_since or at
        return replace(self, attempted_at=at, fault=fault, failing_since=since)

    @property
    def retried_after(self) -> Instant | None:
        """From when on a request retries an owner with content (P3); None if it doesn't fail."""
        if not self.is_stale or self.attempted_at is None:
            return None
        return self.attempted_at.later(RETRY_SECONDS)


def pulled_age_seconds(state: OwnerState, now: Instant) -> int | None:
    """Return the age of the last contact in whole seconds; None if there was none."""
    return None if state.pulled_at is None else max(int(now.since(state.pulled_at)), 0)


def freshness(state: OwnerState, fresh_seconds: float, now: Instant) -> Freshness:
    """Judge what is served; the first verdict that matches wins (S2).

    An age equal to `fresh_seconds`, an owner's ttl, is still fresh.
    """
    age = pulled_age_seconds(state, now)
    if state.snapshot is None or age is None:
        return Freshness.UNKNOWN
    if state.fault is not None:
        return Freshness.STALE
    return Freshness.STALE_TTL if age > fresh_seconds else Freshness.FRESH


def is_due(state: OwnerState, config: OwnerConfig, now: Instant) -> bool:
    """Say whether a request that comes now pulls an owner that has content (S2, P3)."""
    if state.fault is not None and state.attempted_at is not None:
        return now.since(state.attempted_at) > RETRY_SECONDS
    verdict = freshness(state, config.fresh_seconds, now)
    return config.fresh_seconds == 0 or verdict is Freshness.STALE_TTL


def certainly_fresh_until(state: OwnerState, config: OwnerConfig) -> float:
    """Return the monotonic second before which no request finds an owner with content due.

    From then on `is_due` has to be asked.
    """
    if state.fault is not None or state.pulled_at is None:
        return -math.inf
    return state.pulled_at.seconds + config.fresh_seconds


def wait_seconds(state: OwnerState, pull_wait_seconds: float) -> float:
    """Return how long after its start a request waits for a pull, by how the last one went (P2)."""
    if state.fault is None:
        return pull_wait_seconds
    return 0.0 if state.fault.timed_out else min(FAILED_WAIT_SECONDS, pull_wait_seconds)


def back_off_seconds(failures: int) -> float:
    """Return the pause after the `failures`th pull in a row that left an owner without content."""
    return min(2.0 ** min(failures - 1, 16), MAX_BACK_OFF_SECONDS)
