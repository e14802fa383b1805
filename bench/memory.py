"""The memory tier: how much a gateway has in use (RSS), each point in a fresh process."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.documents import files, make_bare, make_commits, samples
from bench.figures import Effort, Figure, Findings, Table
from bench.processes import resident_kibibytes
from bench.targets import gateway, wait_until_kept

BODY_BYTES: Final = 2_000

EMPTY_KIBIBYTES: Final = 75 * 1024
OWNER_KIBIBYTES: Final = 20
DOCUMENT_KIBIBYTES: Final = 1
"""What a gateway may take: for itself, for an owner, and for a document beside its text."""

GATE: Final = 1.5

_SHALLOW: Final = 20
_DEEP: Final = 200
"""How many documents an owner has."""


@dataclass(frozen=True, slots=True)
class Point:
    """What one gateway had in use."""

    owners: int
    documents: int
    """Of each owner."""
    pulled_kibibytes: int
    """By the process that pulled and parsed all of it."""
    restored_kibibytes: int
    """By the next one, which found it in the cache."""

    @property
    def allowed_kibibytes(self) -> float:
        """What it may be."""
        total = self.owners * self.documents
        texts = total * BODY_BYTES / 1024
        return EMPTY_KIBIBYTES + texts + self.owners * OWNER_KIBIBYTES + total * DOCUMENT_KIBIBYTES


def measure(effort: Effort, folder: Path) -> Findings:
    """Measure gateways with more and more owners."""
    bares = {some: make_bare(folder / f"documents-{some}.git") for some in (_SHALLOW, _DEEP)}
    for some, bare in bares.items():
        make_commits(bare, [files(samples(some, body_bytes=BODY_BYTES))])
    sizes = [(20, _DEEP)] if effort.is_brief else _SIZES
    points = [
        _measure(folder / f"{owners}-{some}", bares[some].as_uri(), owners, some)
        for owners, some in sizes
    ]
    figures = [
        Figure(
            f"{each.owners} owners of {each.documents} documents, RSS to what it may be",
            (max(each.pulled_kibibytes, each.restored_kibibytes) / each.allowed_kibibytes,),
            "at most",
            1,
            GATE,
        )
        for each in points
        if each.documents == _DEEP
    ]
    return Findings(tuple(figures), (_table(points),), () if effort.is_brief else _slopes(points))


_SIZES: Final = (
    (1, _SHALLOW),
    (100, _SHALLOW),
    (10, _DEEP),
    (50, _DEEP),
    (100, _DEEP),
    (500, _DEEP),
)


def _measure(folder: Path, url: str, owners: int, documents: int) -> Point:
    """Measure a gateway whose owners all have the same source: it keeps them apart anyway."""
    servers = json.dumps({"owners": {f"owner-{each:03}": {"url": url} for each in range(owners)}})
    with gateway(folder, servers) as process:
        pulled = resident_kibibytes(process.pid)
        wait_until_kept(process)
    with gateway(folder, servers) as process:
        restored = resident_kibibytes(process.pid)
    shutil.rmtree(folder)
    return Point(owners, documents, pulled, restored)


def _slopes(points: Sequence[Point]) -> tuple[str, ...]:
    """Say what one more owner, and one more document, takes."""
    by_size = {(each.owners, each.documents): each.restored_kibibytes for each in points}
    deeper = by_size[100, _DEEP] - by_size[100, _SHALLOW]
    a_document = deeper / (100 * (_DEEP - _SHALLOW)) - BODY_BYTES / 1024
    more = by_size[100, _SHALLOW] - by_size[1, _SHALLOW]
    an_owner = more / 99 - _SHALLOW * (a_document + BODY_BYTES / 1024)
    return (
        (
            f"After a restart, one document more takes {a_document:.2f} KiB beside its text, and"
            f" one owner more {an_owner:.1f} KiB beside its documents."
        ),
    )


def _table(points: Sequence[Point]) -> Table:
    rows = [
        (
            str(each.owners),
            str(each.documents),
            f"{each.pulled_kibibytes / 1024:.0f}",
            f"{each.restored_kibibytes / 1024:.0f}",
            f"{each.allowed_kibibytes / 1024:.0f}",
        )
        for each in points
    ]
    columns = ("owners", "documents each", "RSS after the pulls, MiB", "after a restart", "allowed")
    return Table(f"Memory; a document has {BODY_BYTES:,} bytes of text", columns, tuple(rows))
