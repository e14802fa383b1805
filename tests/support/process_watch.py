"""What the processes below another one show of themselves, looked at again and again.

Invariant: the thread that looks is joined when the `with` block ends.
"""

from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

_JOIN_SECONDS: Final = 10.0


def descendants(pid: int) -> frozenset[int]:
    """Return the children of a process, their children and so on, that are no zombies."""
    found: set[int] = set()
    new = set(_children(pid))
    while new:
        found |= new
        new = {child for each in new for child in _children(each)} - found
    return frozenset(each for each in found if _read(each, "cmdline"))


def status_kibibytes(pid: int, name: str) -> int:
    """Return a field of `/proc/{pid}/status` that is counted in kB, such as `VmHWM`; 0 if gone."""
    for line in _read(pid, "status").decode().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


class ProcessWatch:
    """Looks at all processes below `pid` as often as it can, as a context manager."""

    def __init__(self, pid: int, *, pause_seconds: float = 0.001) -> None:
        """Begin when entered; rest for `pause_seconds` between two looks."""
        self._pid = pid
        self._own_command = _read(pid, "cmdline")
        self._pause_seconds = pause_seconds
        self._is_over = Event()
        self._thread = Thread(target=self._look, daemon=True)
        # All below is written by the thread alone, and to be read once the block has ended.
        self.names: set[str] = set()
        """What ran, as in `/proc/{pid}/comm`."""
        self.shown: set[bytes] = set()
        """Every command line and every environment."""
        self.peak_kibibytes: dict[str, int] = {}
        """The most memory of its own that a process of each name had."""

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self._is_over.set()
        self._thread.join(_JOIN_SECONDS)

    def _look(self) -> None:
        while not self._is_over.wait(self._pause_seconds):
            for pid in descendants(self._pid):
                command = _read(pid, "cmdline")
                if command in {b"", self._own_command}:
                    continue  # between fork and exec it is the gateway itself, by another id
                name = _read(pid, "comm").decode().strip()
                self.names.add(name)
                self.shown |= {command, _read(pid, "environ")}
                memory = max(self.peak_kibibytes.get(name, 0), status_kibibytes(pid, "RssAnon"))
                self.peak_kibibytes[name] = memory


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it, or a thread of it, has ended
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            found += map(int, (task / "children").read_text().split())
    return found


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended
        return b""
