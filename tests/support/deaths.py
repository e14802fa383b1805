"""Processes that die in the middle of what they do to a cache, at a step of a test's choice.

Invariant: the step is counted, not timed, so the same step dies at the same place in every run; and
it is the process itself that sends SIGKILL, so nothing of it runs after that step.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.snapshot_file import SnapshotFile
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.source.mirror import Mirror
from okf_mcp_gateway.source.puller import Puller
from support.measuring import measured

NEVER: Final = 0
"""The step at which nobody dies."""

CHECKSUM_KEY: Final = b"the key of those who die, and of their heirs"
"""That of the snapshot files that the pulls write."""

_TESTS: Final = Path(__file__).parents[1]
_COMMAND: Final = (sys.executable, "-m", "support.deaths")
_PULL_DEADLINE_SECONDS: Final = 60
_STOP_DEADLINE_SECONDS: Final = 10.0
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES: Final = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"})


@dataclass(frozen=True, slots=True)
class Death:
    """How a pull ended."""

    is_killed: bool
    steps: tuple[str, ...]
    """What it did to the cache, each as its audit event; empty for one that was killed."""


class MortalPulls:
    """Pulls of the owner `acme`, each in a process of its own that may be killed at any step.

    A context manager. They are forked from one process that has imported all they need, as a
    start costs far more than a pull.
    """

    def __init__(self, cache: Path, home: Path) -> None:
        """`home` is an empty folder, git's own."""
        self._cache = cache
        self._home = home
        # Written by `__enter__` alone.
        self._nursery: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the process that the others are forked from."""
        self._nursery = subprocess.Popen(
            (*_COMMAND, "pulls"),
            env={**os.environ, **measured(), **mortal_environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        stdin, stdout = self._pipes()
        stdin.close()
        assert self._nursery is not None
        try:
            self._nursery.wait(_STOP_DEADLINE_SECONDS)
        finally:
            self._nursery.kill()
            self._nursery.wait()
            stdout.close()

    def pull(self, url: str, *, step: int = NEVER, path: str | None = None) -> Death:
        """Restore the copy, pull `main`, write the snapshot and repack, as a gateway does at first.

        It dies just before the `step`th thing (from 1) that it does to the cache. `path` is the
        `PATH` on which it finds git. One that fails otherwise fails this call.
        """
        stdin, stdout = self._pipes()
        asked = {
            "cache": str(self._cache),
            "home": str(self._home),
            "url": url,
            "step": step,
            "path": path or os.environ["PATH"],
        }
        stdin.write(json.dumps(asked).encode() + b"\n")
        stdin.flush()
        said: dict[str, Any] = json.loads(stdout.readline())
        assert said["status"] in (0, -signal.SIGKILL), said
        return Death(said["status"] != 0, tuple(said["steps"]))

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._nursery is not None
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        return self._nursery.stdin, self._nursery.stdout


def mortal_gateway(step: int, cache: Path) -> tuple[str, ...]:
    """Return the command of a gateway that dies just before its `step`th act on `cache`."""
    return (*_COMMAND, "gateway", str(step), str(cache))


def mortal_environment() -> Mapping[str, str]:
    """Return the variables that the command needs."""
    return {"PYTHONPATH": str(_TESTS)}


def _die_at(step: int, cache: str) -> list[str]:
    """Kill this process just before its `step`th act on the cache; return the acts so far, live."""
    acts: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if _is_act(event, arguments, cache):
            acts.append(event)
            if len(acts) == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    return acts


def _is_act(event: str, arguments: tuple[Any, ...], cache: str) -> bool:
    """Say whether an audit event is of a git command, or of a change to a file of the cache."""
    if event == "subprocess.Popen":
        return "bounds.sh" in str(arguments[1])
    if event == "open":
        path, _, flags = arguments
        return bool(flags & _WRITING) and str(path).startswith(cache)
    if event in _CHANGES:
        # A name without a folder is relative to a descriptor: `rmtree` works that way.
        return str(arguments[0]).startswith(cache) or not str(arguments[0]).startswith("/")
    return False


def _serve_pulls() -> None:
    """Answer each request of `MortalPulls.pull`, one a line, until stdin ends."""
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(_PULL_DEADLINE_SECONDS)
            os.write(writing, json.dumps(_pull(asked)).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            steps = json.loads(pipe.read() or b"[]")
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(json.dumps({"status": status, "steps": steps}) + "\n")
        sys.stdout.flush()


def _pull(asked: Mapping[str, Any]) -> list[str]:
    git = Git(environ={"PATH": asked["path"]}, home=Path(asked["home"]), deadline_seconds=30)
    config = OwnerConfig("acme", asked["url"], "main", 0)
    mirror = Mirror(config, Path(asked["cache"]), git)
    snapshots = SnapshotFile(config, CHECKSUM_KEY)
    puller = Puller(config, mirror, snapshots, now=lambda: datetime.now(UTC), scrub=str)
    acts = _die_at(asked["step"], asked["cache"])
    restored = puller.restore()
    puller.keep(puller.pull(restored[0] if restored else None))
    puller.repack()
    return acts


def _main(mode: str, *arguments: str) -> None:
    if mode == "pulls":
        _serve_pulls()
        return
    step, cache = arguments
    _die_at(int(step), cache)
    sys.argv = ["okf-mcp-gateway"]
    runpy.run_module("okf_mcp_gateway", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
