"""The cache directory: ours alone, and writable, or the gateway doesn't start (G1)."""

import fcntl
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from okf_mcp_server.errors import OkfError

_LOCK: Final = ".lock"
_HOME: Final = ".home"


class CacheError(OkfError):
    """The cache directory can't be used."""


@contextmanager
def hold_cache(cache_dir: Path) -> Generator[Path]:
    """Hold the cache directory, made if need be, and yield an empty folder in it for git's `HOME`.

    Raises `CacheError` if another gateway holds it, or if it can't be written.
    """
    try:
        cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        home = cache_dir / _HOME
        home.mkdir(mode=0o500, exist_ok=True)
        lock = os.open(cache_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Both may stand there from an earlier start, and no longer say what may be written now.
            tempfile.TemporaryFile(dir=cache_dir).close()
        except OSError:
            os.close(lock)
            raise
    except OSError as error:
        message = f"the cache directory {cache_dir} can't be written: {error.strerror}"
        raise CacheError(message) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = (
                f"the cache directory {cache_dir} is held by another gateway; stop that one, or "
                "name another directory by OKF_GATEWAY_CACHE_DIR"
            )
            raise CacheError(message) from None
        yield home
    finally:
        os.close(lock)
