"""How owners begin: what is on disk is served first, and only then are the sources asked (P1)."""

import gc
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from anyio import create_task_group, move_on_after, to_thread

from okf_mcp_gateway.owners import Owner, Restored

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""How much of snapshot files one turn of a thread reads: a turn costs as much as a small file."""

PATIENCE_SECONDS: Final = 5.0
"""How long all wait for the snapshot files of all, and for a look at what else is on disk."""

log = logging.getLogger(__name__)


async def run_owners(owners: Sequence[Owner]) -> None:
    """Run owners for as long as the gateway does.

    Those that have a good snapshot file are served from it, without git and without a parse; then
    all look after themselves, in the order in which they are to have their turns.
    """
    try:
        with move_on_after(PATIENCE_SECONDS), _no_collections():
            await _serve_snapshots(owners)
    except Exception:
        # They are a shortcut: each owner goes on by itself.
        log.exception("Snapshot files not read")
    in_turn = owners
    with move_on_after(PATIENCE_SECONDS):
        in_turn = await to_thread.run_sync(_small_first, owners, abandon_on_cancel=True)
    async with create_task_group() as tasks:
        for owner in in_turn:
            tasks.start_soon(owner.run)


async def _serve_snapshots(owners: Sequence[Owner]) -> None:
    for batch in await to_thread.run_sync(_batches, owners, abandon_on_cancel=True):
        for owner, restored in await to_thread.run_sync(_read, batch, abandon_on_cancel=True):
            owner.serve(restored)


def _batches(owners: Sequence[Owner]) -> Sequence[Sequence[Owner]]:
    """Return the owners that have a snapshot file, small ones first, by the turns of a thread."""
    sizes = [(size, owner) for owner in owners if (size := owner.snapshot_bytes) is not None]
    batches: list[list[Owner]] = []
    room = 0
    for size, owner in sorted(sizes, key=lambda each: each[0]):
        if not batches or size > room:
            batches.append([])
            room = MAX_BATCH_BYTES
        room -= size
        batches[-1].append(owner)
    return batches


def _read(owners: Sequence[Owner]) -> list[tuple[Owner, Restored]]:
    found = ((owner, owner.read_snapshot()) for owner in owners)
    return [(owner, restored) for owner, restored in found if restored is not None]


@contextmanager
def _no_collections() -> Generator[None]:
    """Let nobody look for garbage: documents come, none goes, and it costs half of their making."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _small_first(owners: Sequence[Owner]) -> Sequence[Owner]:
    """Return the owners in such an order that no small copy waits for a large one to be loaded."""
    return sorted(owners, key=lambda owner: 0 if owner.state.snapshot else owner.stored_bytes)
