"""Read a file that may be anything by now: a pipe, a link, a device, or far too much."""

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Return what a regular file holds, which is read without waiting for anybody.

    Raises `OSError` if there is none, if it is a link or no regular file, or if it is larger.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return file.read(status.st_size)
