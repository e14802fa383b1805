"""The copies of owners that left the registry: they go once they were unnamed for some days (P6).

An owner that comes back before that finds its copy. Nothing else in the cache is touched: a folder
counts as a copy only if it holds the record of one, or has the name of a half-made one.
"""

import logging
import os
import shutil
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from okf_mcp_gateway.source.mirror import RECORD

GRACE_DAYS: Final = 7
"""On how many days a gateway must have seen a copy that no owner has before it goes.

Days are counted, so that a clock that jumps by years makes one of them.
"""

MARK: Final = "okf.unnamed"
"""The file in a copy that holds their number; its time is that of the last one."""

log = logging.getLogger(__name__)


def sweep(cache_dir: Path, owners: Collection[str], now: datetime) -> None:
    """Count a day for the copies that belong to none of `owners`, and remove those long unnamed."""
    try:
        copies = list(_copies(cache_dir))
    except OSError as error:
        log.warning("Copies of no owner not looked for: reason=%s", error.strerror)
        return
    for copy in copies:
        name = _owner_of(copy)
        try:
            if name in owners:
                (copy / MARK).unlink(missing_ok=True)
            elif _count_day(copy / MARK, now) > GRACE_DAYS:
                shutil.rmtree(copy)
                log.info("Copy of no owner removed: name=%s", name)
        except OSError as error:
            log.warning("Copy of no owner not removed: name=%s reason=%s", name, error.strerror)


def _count_day(mark: Path, now: datetime) -> int:
    """Return on which day a copy is seen unnamed: the first, second, ..."""
    try:
        day = int(mark.read_text())
        since = timedelta(seconds=abs(now.timestamp() - mark.stat().st_mtime))
    except (FileNotFoundError, ValueError):
        day, since = 0, timedelta.max
    if since < timedelta(days=1):
        return day
    mark.write_text(str(day + 1))
    os.utime(mark, (now.timestamp(), now.timestamp()))
    return day + 1


def _copies(cache_dir: Path) -> Iterator[Path]:
    """Yield the copies in the cache, also what a pull that was cut off left beside one."""
    for folder in sorted(cache_dir.iterdir()):
        if folder.is_symlink() or not folder.is_dir():
            continue
        if (folder / RECORD).is_file() or _owner_of(folder) != folder.name:
            yield folder


def _owner_of(copy: Path) -> str:
    """Return the name of the owner that a copy was made for."""
    if copy.name.startswith(".") and copy.suffix in {".new", ".old"}:
        return copy.stem.removeprefix(".")
    return copy.name
