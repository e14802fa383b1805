"""The cache directory: ours alone, and writable, or the gateway doesn't start (G1)."""

import fcntl
import os
import shutil
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
        lock = os.open(cache_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _not_writable(cache_dir, error) from None
    try:
        _lock(lock, cache_dir)
        yield _empty_home(cache_dir)
    finally:
        os.close(lock)


def _lock(descriptor: int, cache_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = (
            f"the cache directory {cache_dir} is held by another gateway; stop that one, or name "
            "another directory by OKF_GATEWAY_CACHE_DIR"
        )
        raise CacheError(message) from None
    except OSError as error:
        message = f"the cache directory {cache_dir} can't be locked: {error.strerror}"
        raise CacheError(message) from None


def _empty_home(cache_dir: Path) -> Path:
    """Make the folder anew: what somebody put there, such as `.netrc`, git would read."""
    home = cache_dir / _HOME
    try:
        # The lock may stand there from an earlier start: it doesn't say what may be written now.
        tempfile.TemporaryFile(dir=cache_dir).close()
        if home.is_symlink() or home.is_file():
            home.unlink()
        elif home.exists():
            home.chmod(0o700)
            shutil.rmtree(home)
        home.mkdir(mode=0o500)
    except OSError as error:
        raise _not_writable(cache_dir, error) from None
    return home


def _not_writable(cache_dir: Path, error: OSError) -> CacheError:
    return CacheError(f"the cache directory {cache_dir} can't be written: {error.strerror}")
