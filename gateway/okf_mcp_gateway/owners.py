"""One owner: what it serves now, and the pulls that keep that fresh.

An owner is read by every request and written by its own task alone, by one assignment to `state`;
nobody who reads takes a lock. All of it lives on the event loop but the pull itself, which works in
a thread: git and parsing block.
"""

import logging
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final, TypeAlias

from anyio import (
    CapacityLimiter,
    Event,
    create_task_group,
    current_time,
    move_on_after,
    sleep_until,
    to_thread,
)

from okf_mcp_gateway.registry import OwnerConfig, host_of
from okf_mcp_gateway.source.error_class import SourceError, error_class
from okf_mcp_gateway.source.git import GitError, GitStoppedError
from okf_mcp_gateway.source.packs import REPACK_WEAR
from okf_mcp_gateway.source.puller import Puller
from okf_mcp_gateway.state import (
    Clock,
    Instant,
    OwnerState,
    PullFault,
    back_off_seconds,
    certainly_fresh_until,
    is_due,
    wait_seconds,
)
from okf_mcp_server.snapshot import Snapshot

MAX_PULLS: Final = 64
"""How many pulls run at a time. A pull runs one git command at a time, so this bounds those too.

Those that wait for a host cost little; it takes this many, of 16 hosts, to keep others waiting.
"""

MAX_PULLS_PER_HOST: Final = 4
"""How many of them talk to one host, so that a slow one leaves room for the others (P1)."""

MAX_RESTORES: Final = 4
"""How many cached copies without a good snapshot file are loaded at a time at the start."""

MAX_REPACKS: Final = 1
"""How many repacks begin at a time: readers need the processors more.

One that a pull overtook runs on beside the next; one that can't wait any more takes a pull's place.
"""

KEEP_SECONDS: Final = 30.0
"""How long a snapshot file isn't written again: all of it is, for however small a change."""

MAX_WAITING: Final = 256
"""How many requests may wait for one owner's pull; one more gets what there is, at once."""

MAX_MESSAGE_CHARACTERS: Final = 1000
"""How much is kept of what a git host may say in its error."""

log = logging.getLogger(__name__)


Restored: TypeAlias = tuple[Snapshot, datetime]
"""What a cached copy holds, and when its source was last reached (UTC)."""


class PullSlots:
    """The room that the pulls of all owners share."""

    def __init__(self) -> None:
        self.restores = CapacityLimiter(MAX_RESTORES)
        self.threads = CapacityLimiter(MAX_PULLS)
        self.repacks = CapacityLimiter(MAX_REPACKS)
        # One limiter a host, made when its first owner asks; only the event loop writes.
        self._hosts: dict[str, CapacityLimiter] = {}

    @asynccontextmanager
    async def of(self, url: str) -> AsyncGenerator[None]:
        """Hold one of the places of the host of `url`; a source that is a file has its own."""
        host = host_of(url) or url
        if host not in self._hosts:
            self._hosts[host] = CapacityLimiter(MAX_PULLS_PER_HOST)
        async with self._hosts[host]:
            yield


class Pull:
    """A pull that was asked for; written by its owner's task."""

    def __init__(self, asked_at: Instant) -> None:
        self.asked_at = asked_at
        self.done = Event()
        self.fault: PullFault | None = None
        """Why it failed; to be read once `done` is set."""


class Owner:
    """One owner of the registry."""

    def __init__(  # noqa: PLR0913 - the parts that an owner is made of, by their names
        self,
        config: OwnerConfig,
        puller: Puller,
        *,
        slots: PullSlots,
        clock: Clock,
        scrub: Callable[[str], str],
        pull_wait_seconds: float,
        on_publish: Callable[[Snapshot | None, Snapshot], None],
    ) -> None:
        """`scrub` takes secrets and our own paths out of what git says.

        `on_publish` is called with the last snapshot, if there was one, and the new one, which is
        served by then. It must not wait; what it raises is logged, and changes nothing.
        """
        self.config = config
        self.state: OwnerState = OwnerState()
        """What is served; replaced as a whole by the owner's task, see `_set_state`."""
        self._fresh_until = -math.inf
        self.next_attempt_at: Instant | None = None
        """When an owner without content retries by itself; None if it won't, or is about to."""
        self._puller = puller
        self._slots = slots
        self._clock = clock
        self.scrub = scrub
        """Takes secrets and our own paths out of a text that leaves the process (G4)."""
        self._pull_wait_seconds = pull_wait_seconds
        self._on_publish = on_publish
        self._made_at = clock.now()
        # Written on the event loop: by whoever asks for a pull, and by the owner's task.
        self._running: Pull | None = None
        self._asked: Pull | None = None
        self._waiting = 0
        self._kept_at = -math.inf
        self._wake = Event()
        self._restored = Event()

    @property
    def stored_bytes(self) -> int:
        """How large its copy on disk is; 0 if there is none."""
        return self._puller.stored_bytes()

    @property
    def snapshot_bytes(self) -> int | None:
        """How large its snapshot file is; None if there is none."""
        return self._puller.snapshot_bytes()

    def read_snapshot(self) -> Restored | None:
        """Return what its snapshot file holds, to be served by `serve`; in a thread, before `run`.

        None if there is no good one.
        """
        try:
            return self._puller.restore_snapshot()
        except Exception:
            log.exception("Snapshot file not read: owner=%s", self.config.name)
            return None

    def serve(self, restored: Restored) -> None:
        """Serve what the cached copy holds."""
        snapshot, at = restored
        pulled_at = self._clock.now().back_to(at)
        before = self.state.snapshot
        self._set_state(OwnerState(snapshot, pulled_at=pulled_at, attempted_at=pulled_at))
        self._tell_publish("Serving the cached copy", before, snapshot)
        self._restored.set()

    def current(self) -> Snapshot:
        """Return the served snapshot; to be called once a request, and only where there is one."""
        if self.state.snapshot is None:
            raise LookupError(f"{self.config.name} has nothing to serve")
        return self.state.snapshot

    async def ensure_fresh(self) -> None:
        """Pull if a request finds the owner due, and wait as long as P2 lets it.

        Never raises for the source: the caller gets what there is.
        """
        if not self._restored.is_set() and not await self._wait_for_restore():
            return
        state, now = self.state, self._clock.now()
        if state.snapshot is not None and not is_due(state, self.config, now):
            return
        pull = self._running or self._ask()
        limit = self._wait_left(pull, now)
        if limit > 0 and self._waiting < MAX_WAITING:
            with move_on_after(limit):
                await self._wait_for(pull)

    def ready_snapshot(self) -> Snapshot | None:
        """Return what a request is answered from that comes now, if it needn't wait for a pull.

        None if it has to, which is for `ensure_fresh`, or if there is nothing yet.
        """
        state = self.state
        if self._clock.seconds() < self._fresh_until or state.snapshot is None:
            return state.snapshot
        now = self._clock.now()
        if not is_due(state, self.config, now):
            return state.snapshot
        pull = self._running
        if pull is None and wait_seconds(state, self._pull_wait_seconds) == 0:
            pull = self._ask()
        return state.snapshot if pull and self._wait_left(pull, now) <= 0 else None

    async def refresh(self) -> PullFault | None:
        """Pull now, whatever the ttl and the back-off say; return why that failed, if it did.

        A pull that runs already doesn't count: its source may have been asked before the caller's
        push. Callers that wait at the same time share the next one (H3).
        """
        pull = self._ask()
        if self._waiting >= MAX_WAITING:
            return PullFault("LoadError", f"{MAX_WAITING} requests wait for this pull: try again")
        await self._wait_for(pull)
        return pull.fault

    async def run(self) -> None:
        """Be the owner's task: serve the cached copy, then pull at the start and when asked."""
        if self.state.snapshot is None:
            await self._restore()
        if not (self.config.is_pinned and await self._has_sound_copy()):
            self._ask()
        failures = 0
        while True:
            await self._next_turn(failures)
            pull, self._asked = self._asked or Pull(self._clock.now()), None
            self._running = pull
            try:
                if failures:
                    # What kept us from a sound copy may be over, such as a slow disk.
                    await self._restore()
                pull.fault = await self._pull()
            except Exception:
                # The other owners' tasks would end with this one, and whoever waits would for ever.
                log.exception("Turn failed: owner=%s", self.config.name)
                pull.fault = PullFault("LoadError", "internal error; the log has the rest")
            finally:
                self._running = None
                pull.done.set()
            failures = 0 if self.state.snapshot else failures + 1
            if self._puller.wear >= 1:
                await self._repack(self._slots.threads)

    async def _wait_for_restore(self) -> bool:
        """Say whether the cached copy was looked at, within the wait for a pull since the start."""
        waited = self._clock.now().since(self._made_at)
        with move_on_after(max(self._pull_wait_seconds - waited, 0.0)):
            await self._restored.wait()
        return self._restored.is_set()

    def _wait_left(self, pull: Pull, now: Instant) -> float:
        """Return how many seconds a request that comes now waits for a pull at most (P2)."""
        return wait_seconds(self.state, self._pull_wait_seconds) - now.since(pull.asked_at)

    async def _wait_for(self, pull: Pull) -> None:
        self._waiting += 1
        try:
            await pull.done.wait()
        finally:
            self._waiting -= 1

    def _ask(self) -> Pull:
        """Return the pull that begins next."""
        if self._asked is None:
            self._asked = Pull(self._clock.now())
            self._wake.set()
        return self._asked

    async def _next_turn(self, failures: int) -> None:
        """Wait until a pull is asked for; without content, for the back-off at most (P3)."""
        seconds = back_off_seconds(failures) if failures else None
        now = self._clock.now()
        self.next_attempt_at = None if seconds is None else now.later(seconds)
        with move_on_after(seconds):
            async with create_task_group() as meanwhile:
                meanwhile.start_soon(self._keep)
                if self._puller.wear >= REPACK_WEAR:
                    meanwhile.start_soon(self._repack, self._slots.repacks)
                await self._wake.wait()
                meanwhile.cancel_scope.cancel()
        self._wake = Event()
        self.next_attempt_at = None

    async def _keep(self) -> None:
        """Let the next start find what is served; nobody waits for that."""
        snapshot = self.state.snapshot
        if snapshot is None or self._puller.is_kept(snapshot):
            return
        await sleep_until(self._kept_at + KEEP_SECONDS)
        self._kept_at = current_time()
        try:
            await to_thread.run_sync(
                self._puller.keep, snapshot, abandon_on_cancel=True, limiter=self._slots.threads
            )
        except Exception:
            log.exception("Snapshot file not written: owner=%s", self.config.name)

    async def _repack(self, limiter: CapacityLimiter) -> None:
        """Make the copy on disk small again."""
        try:
            await to_thread.run_sync(self._puller.repack, abandon_on_cancel=True, limiter=limiter)
        except GitStoppedError:
            return
        except Exception:
            log.exception("Copy not repacked: owner=%s", self.config.name)

    async def _restore(self) -> None:
        """Serve the cached copy, if it is sound, before its source is asked."""
        try:
            restored = await to_thread.run_sync(
                self._puller.restore, abandon_on_cancel=True, limiter=self._slots.restores
            )
        except GitStoppedError:
            restored = None
        except Exception:
            log.exception("Cached copy not loaded: owner=%s", self.config.name)
            restored = None
        if restored is not None:
            self.serve(restored)
        self._restored.set()

    async def _has_sound_copy(self) -> bool:
        """Say whether nothing has to be pulled for the copy on disk to be good."""
        snapshot = self.state.snapshot
        if snapshot is None or snapshot.commit is None:
            return False
        try:
            return await to_thread.run_sync(
                self._puller.has_sound_copy,
                snapshot.commit,
                abandon_on_cancel=True,
                limiter=self._slots.restores,
            )
        except GitStoppedError:
            return True
        except Exception:
            log.exception("Cached copy not looked at: owner=%s", self.config.name)
            return False

    async def _pull(self) -> PullFault | None:
        """Pull once, and publish the outcome: content, or why there is none."""
        try:
            async with self._slots.of(self.config.url):
                snapshot = await to_thread.run_sync(
                    self._puller.pull,
                    self.state.snapshot,
                    abandon_on_cancel=True,
                    limiter=self._slots.threads,
                )
        except GitStoppedError as error:
            return PullFault("LoadError", str(error))
        except Exception as error:  # noqa: BLE001 - logged there
            return self._publish_fault(error)
        before, now = self.state, self._clock.now()
        self._set_state(OwnerState(snapshot, pulled_at=now, attempted_at=now))
        if before.snapshot is not snapshot:
            self._tell_publish("Published", before.snapshot, snapshot)
        elif before.fault:
            log.info("Source is back: owner=%s", self.config.name)
        return None

    def _set_state(self, state: OwnerState) -> None:
        self.state, self._fresh_until = state, certainly_fresh_until(state, self.config)

    def _publish_fault(self, error: Exception) -> PullFault:
        """Publish why a pull failed; what is served stays."""
        if not isinstance(error, SourceError | GitError | OSError):
            log.error("Pull failed unexpectedly: owner=%s", self.config.name, exc_info=error)
        fault = PullFault(
            type="CloneError" if isinstance(error, SourceError) else "LoadError",
            message=self.scrub(_sentence(error))[:MAX_MESSAGE_CHARACTERS],
            error_class=error_class(error),
        )
        if fault != self.state.fault:
            log.warning(
                "Pull failed: owner=%s type=%s message=%s",
                self.config.name,
                fault.type,
                fault.message,
            )
            said = error.said if isinstance(error, SourceError | GitError) else ()
            if said and log.isEnabledFor(logging.DEBUG):
                told = self.scrub(" | ".join(said))
                log.debug("git said: owner=%s lines=%s", self.config.name, told)
        self._set_state(self.state.after_failure(fault, self._clock.now()))
        return fault

    def _tell_publish(self, event: str, before: Snapshot | None, snapshot: Snapshot) -> None:
        """Tell the log, and who listens, that `snapshot` is served from now on."""
        log.log(
            logging.WARNING if snapshot.diagnostics else logging.INFO,
            "%s: owner=%s commit=%s documents=%d parsed=%d diagnostics=%d",
            event,
            self.config.name,
            snapshot.commit,
            len(snapshot.documents),
            snapshot.parsed_files,
            len(snapshot.diagnostics),
        )
        try:
            self._on_publish(before, snapshot)
        except Exception:
            # The pull went well, whatever becomes of those who wait for news of it.
            log.exception("Publish not told: owner=%s", self.config.name)


def _sentence(error: Exception) -> str:
    """Return what the operator reads: the text of an error that we know, else only its kind."""
    if isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
        return f"{reason}: {error.filename}" if error.filename else reason
    if isinstance(error, SourceError | GitError):
        return str(error)
    return f"internal error ({type(error).__name__}); the log has the rest"
