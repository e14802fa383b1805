"""How many connections the process may have: its descriptors are git's and the disk's, too."""

import resource
from contextlib import suppress
from typing import Final

MAX_CONNECTIONS: Final = 16_384
"""How many connections there may be, where the process may have twice as many descriptors."""


def max_connections() -> int:
    """Return how many connections there may be: the other descriptors are git's and the disk's."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, descriptors // 2)


def raise_descriptor_limit() -> None:
    """Let the process have as many descriptors as its connections need, if the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS says that there is no limit, and refuses
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
