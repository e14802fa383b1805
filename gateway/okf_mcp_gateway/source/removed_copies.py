"""The copies of owners that left the registry: they go once they were unnamed for some days (P6).

An owner that comes back before that finds its copy. Nothing else in the cache is touched: a folder
counts as a copy only if it holds the record of one, or has the name of a half-made one.
"""

import logging
import os
import shutil
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Final

from okf_mcp_gateway.source.mirror import RECORD

GRACE_DAYS: Final = 7
"""On how many days a gateway must have seen a copy that no owner has before it goes.

Days are counted, so that a clock that jumps by years makes one of them.
"""

MARK: Final = "okf.unnamed"
"""The file in a copy that holds their number; its time is that of the last one."""

_DAY_SECONDS: Final = 86_400

log = logging.getLogger(__name__)


def sweep(cache_dir: Path, owners: Collection[str], now: datetime) -> None:
    """Count a day for the copies that belong to none of `owners`, and remove those long unnamed."""
    try:
        folders = sorted(cache_dir.iterdir())
    except OSError as error:
        log.warning("Copies of no owner not looked for: reason=%s", error.strerror)
        return
    for copy in folders:
        name = _owner_of(copy)
        try:
            if not _is_copy(copy):
                continue
            if name in owners:
                (copy / MARK).unlink(missing_ok=True)
            elif _count_day(copy / MARK, now) > GRACE_DAYS:
                # First of all it is no copy any more: a removal may be cut off.
                old = copy.rename(cache_dir / f".{name}.old")
                shutil.rmtree(old)
                log.info("Copy of no owner removed: name=%s", name)
        except OSError as error:
            log.warning("Copy of no owner not removed: name=%s reason=%s", name, error.strerror)


def _count_day(mark: Path, now: datetime) -> int:
    """Return on which day a copy is seen unnamed: the first, second, ..."""
    try:
        day = int(mark.read_text())
        since = abs(now.timestamp() - mark.stat().st_mtime)
    except (FileNotFoundError, ValueError):
        day, since = 0, _DAY_SECONDS
    if since < _DAY_SECONDS:
        return day
    mark.write_text(str(day + 1))
    os.utime(mark, (now.timestamp(), now.timestamp()))
    return day + 1


def _is_copy(folder: Path) -> bool:
    """Say whether this is a copy, or what a pull that was cut off left beside one."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return (folder / RECORD).is_file() or _owner_of(folder) != folder.name


def _owner_of(copy: Path) -> str:
    """Return the name of the owner that a copy was made for."""
    if copy.name.startswith(".") and copy.suffix in {".new", ".old"}:
        return copy.stem.removeprefix(".")
    return copy.name
