"""Run one git command: a sealed environment, a deadline, a process group that dies as one.

Nothing of the user's or the system's reaches git (G4, P7): its environment is built from nothing,
its configuration is the file `gitconfig` beside this module, it has no terminal and no prompt.
Nor does it outlive us: what it starts stays in its group, since all that git would do in a session
of its own (collecting garbage, keeping passwords, watching files) is switched off there.
"""

import errno
import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Lock
from typing import IO, Final

from okf_mcp_gateway.source.login import Login
from okf_mcp_gateway.source.process_group import (
    await_end,
    end_group,
    reap_group,
    signal_group,
)
from okf_mcp_gateway.source.watchdog import Watchdog
from okf_mcp_server.errors import OkfError

PASSED_ON: Final = frozenset(
    {
        "PATH",
        *("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"),
        *("all_proxy", "https_proxy", "http_proxy", "no_proxy"),
        *("CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "SSL_CERT_DIR", "SSL_CERT_FILE"),
    }
)
"""The variables that git gets from our own environment."""

MAX_OUTPUT_BYTES: Final = 1024 * 1024
"""How much `Git.run` takes from one command: what is asked so is a few lines."""

_STDERR_END_BYTES: Final = 32 * 1024
"""How much is kept of what git says, at either end: its first `fatal:` line and its last line."""

_CHUNK_BYTES: Final = 64 * 1024
_NOTHING: Final[tuple[dict[str, str], tuple[int, ...]]] = ({}, ())
"""What a git process needs that asks nobody: no variables, no descriptors."""

_CONFIG: Final = Path(__file__).parent / "gitconfig"

_BOUNDS: Final = Path(__file__).parent / "bounds.sh"
"""What becomes git, which it finds by the operator's PATH."""

_NOT_FOUND: Final = 127
"""The status by which it says that there is none."""


class GitError(OkfError):
    """git failed; the message is its own sentence, not scrubbed."""

    def __init__(self, message: str, said: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.said = said
        """All lines that git wrote to stderr; the middle of very many is left out."""


class GitOutputError(GitError):
    """git wrote more than anybody asked for."""


class GitTimeoutError(GitError):
    """git ran into its deadline and was killed."""


class GitStoppedError(OkfError):
    """git was killed, or not started, because the gateway stops: no fault of git's."""


class Git:
    """Runs git commands, in any thread; one for the process."""

    def __init__(self, *, environ: Mapping[str, str], home: Path, deadline_seconds: float) -> None:
        """Take `PASSED_ON` from `environ`; `home` is an empty folder, each command's `HOME`."""
        self._deadline_seconds = deadline_seconds
        self._environment = {
            **{name: value for name, value in environ.items() if name in PASSED_ON},
            "HOME": str(home),
            "LC_ALL": "C",
            "GIT_ASKPASS": "",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(_CONFIG),
            "GIT_ALLOW_PROTOCOL": "file:http:https",
            # git's own deadline for a silent host: it counts for one that outlives us, too.
            "GIT_HTTP_LOW_SPEED_LIMIT": "1",
            "GIT_HTTP_LOW_SPEED_TIME": str(math.ceil(deadline_seconds)),
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
        }
        self.started_processes = 0
        """How many commands were started so far; written under the lock."""
        # All written under the lock: by the thread that runs a command or another process, and by
        # `close`.
        self._running: dict[int, Path | None] = {}
        self._watchdog: Watchdog | None = None
        """Made for the first command."""
        self._closed = False
        self._lock = Lock()

    def run(
        self,
        arguments: Sequence[str],
        *,
        git_dir: Path | None = None,
        login: Login | None = None,
        stdin: IO[bytes] | None = None,
    ) -> bytes:
        """Run a command and return what it wrote; the parameters and errors are `stream`'s."""
        output = bytearray()
        for chunk in self.stream(arguments, git_dir=git_dir, login=login, stdin=stdin):
            output += chunk
            if len(output) > MAX_OUTPUT_BYTES:
                limit = MAX_OUTPUT_BYTES // 1024 // 1024
                raise GitOutputError(f"git {arguments[0]} wrote more than {limit} MiB")
        return bytes(output)

    def stream(
        self,
        arguments: Sequence[str],
        *,
        git_dir: Path | None = None,
        login: Login | None = None,
        stdin: IO[bytes] | None = None,
    ) -> Generator[bytes]:
        """Run a command and yield what it writes, as it comes.

        `git_dir` is the repository, for git looks for none itself; `stdin` a file. Raises
        `GitError` when the command fails, `GitTimeoutError` at its deadline (the time that the
        caller takes doesn't count), `GitStoppedError` once `close` was called. A command whose
        output isn't read to its end is killed.
        """
        deadline = time.monotonic() + self._deadline_seconds
        with self._process(arguments, git_dir, login, stdin) as process:
            stderr = bytearray()
            try:
                yield from _output(process, stderr, deadline)
            except TimeoutError:
                message = f"git {arguments[0]} took longer than {self._deadline_seconds:g} s"
                raise GitTimeoutError(message) from None
        if process.returncode != 0:
            if self._closed:
                raise GitStoppedError("the gateway stops")
            if process.returncode == _NOT_FOUND:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "git")
            status = f"git {arguments[0]} ended with status {process.returncode}"
            said = _lines(stderr)
            raise GitError(_sentence(said) or status, said)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Kill every running command, and let none start any more."""
        with self._lock:
            self._closed = True
            for pid in self._running:
                signal_group(pid, signal.SIGKILL)
                self._forget(pid)
            if self._watchdog is not None:
                self._watchdog.close()

    def kill(self, git_dir: Path) -> None:
        """Kill every command that runs in that repository: for its caller, it failed."""
        with self._lock:
            for pid, folder in self._running.items():
                if folder == git_dir:
                    signal_group(pid, signal.SIGKILL)

    @contextmanager
    def _process(
        self,
        arguments: Sequence[str],
        git_dir: Path | None,
        login: Login | None,
        stdin: IO[bytes] | None,
    ) -> Generator[subprocess.Popen[bytes]]:
        configuration = {"include.path": str(_CONFIG), **(login.configuration if login else {})}
        environment = {
            **self._environment,
            **_configuration_variables(configuration),
            "GIT_DIR": str(git_dir or os.devnull),
        }
        with login.hand_over() if login else nullcontext(_NOTHING) as (variables, descriptors):
            start = partial(_start, arguments, {**environment, **variables}, stdin, descriptors)
            process = self._start_guarded(start, git_dir)
        with self._lock:
            self.started_processes += 1
        with self._guarded(process):
            yield process

    @contextmanager
    def guard(
        self, start: Callable[[], subprocess.Popen[bytes]]
    ) -> Generator[subprocess.Popen[bytes]]:
        """Start a process, and end it and all of its group as a git command is.

        It dies with this block, at `close`, and when the gateway does. It must have a session of
        its own. Raises `GitStoppedError` once `close` was called, and what `start` raises.
        """
        process = self._start_guarded(start, None)
        with self._guarded(process):
            yield process

    @contextmanager
    def _guarded(self, process: subprocess.Popen[bytes]) -> Generator[None]:
        try:
            yield
        finally:
            end_group(process.pid)
            with self._lock:
                del self._running[process.pid]
                self._forget(process.pid)
            process.wait()
            reap_group(process.pid)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def _start_guarded(
        self, start: Callable[[], subprocess.Popen[bytes]], git_dir: Path | None
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise GitStoppedError("the gateway stops")
            if self._watchdog is None or self._watchdog.is_lost:
                self._watchdog = Watchdog()
                for group in self._running:
                    self._watchdog.watch(group)
            process = start()
            # Killed between these two, we leave git to its own deadline for a silent host.
            self._watchdog.watch(process.pid)
            self._running[process.pid] = git_dir
        return process

    def _forget(self, pid: int) -> None:
        """Tell the watchdog that a group was killed; the lock is held, and nothing reaped yet."""
        if self._watchdog is not None:
            self._watchdog.forget(pid)


def _start(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    stdin: IO[bytes] | None,
    descriptors: Sequence[int],
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - no shell; untrusted words follow a `--`
        ["/bin/sh", str(_BOUNDS), *arguments],
        env=environment,
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # Past a limit of file sizes git then says so; its default is to die of SIGXFSZ.
        restore_signals=False,
        pass_fds=descriptors,
        cwd="/",
    )


def _configuration_variables(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that set the command's own configuration, which wins over a copy's."""
    variables = {"GIT_CONFIG_COUNT": str(len(configuration))}
    for number, (key, value) in enumerate(configuration.items()):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def _output(
    process: subprocess.Popen[bytes], stderr: bytearray, deadline: float
) -> Iterator[bytes]:
    """Yield stdout as it comes, keep both ends of stderr, and wait for the process to end.

    Raises `TimeoutError` at the deadline, which the time that a reader takes moves on.
    """
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(deadline - time.monotonic(), 0))
            if time.monotonic() >= deadline:
                raise TimeoutError
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stdout:
                    handed_out_at = time.monotonic()
                    yield chunk
                    deadline += time.monotonic() - handed_out_at
                else:
                    stderr += chunk
                    del stderr[_STDERR_END_BYTES:-_STDERR_END_BYTES]
    await_end(process.pid, deadline)


def _lines(stderr: bytearray) -> tuple[str, ...]:
    text = stderr.decode(errors="replace").replace("\r", "\n")
    return tuple(line.strip() for line in text.split("\n") if line.strip())


def _sentence(lines: tuple[str, ...]) -> str | None:
    """Return git's first `fatal:` line, else its last line (S1)."""
    fatal = next((line for line in lines if line.startswith("fatal:")), None)
    return fatal or (lines[-1] if lines else None)
