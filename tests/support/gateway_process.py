"""The real gateway as a real process, and plain HTTP to it.

Invariant: every wait has a deadline, and no process outlives the `with` block that started it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.client import HTTPConnection
from itertools import count, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from support.measuring import measured

GATEWAY_COMMAND = (sys.executable, "-m", "okf_mcp_gateway")
NORTH_TOKEN = "north-token-of-the-tests"
POLL_SECONDS = 0.02
START_DEADLINE_SECONDS = 30.0
STOP_DEADLINE_SECONDS = 10.0
REQUEST_DEADLINE_SECONDS = 30.0

_FIRST_PORT = 10_000
_PORTS_A_WORKER = 1_000
_port_numbers = count(os.getpid())

T = TypeVar("T")


def wait_until(
    predicate: Callable[[], T], timeout: float = 10.0, *, interval: float = POLL_SECONDS
) -> T:
    """Ask `predicate` again and again until its answer is true, and return that answer.

    Raises `TimeoutError`, with the last answer, after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not (answer := predicate()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"still {answer!r} after {timeout} s")
        time.sleep(interval)
    return answer


def find_free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nobody listened on a moment ago.

    The system hands out none of these by itself, and each process of tests has its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST_PORT + worker % 20 * _PORTS_A_WORKER
    for number in islice(_port_numbers, _PORTS_A_WORKER):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port := first + number % _PORTS_A_WORKER))
            return port
    raise OSError(f"no port is free from {first} on")


class GatewayExitedError(Exception):
    """The gateway ended before it answered; `returncode` and `log` say how."""

    def __init__(self, returncode: int, log: str) -> None:
        """Keep how it ended."""
        super().__init__(f"the gateway ended with {returncode}:\n{log}")
        self.returncode = returncode
        self.log = log


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer."""

    status: int
    headers: Message
    """Looked up in any case; None if absent."""
    body: bytes

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode()

    @property
    def json(self) -> Any:
        """The body, parsed; raises `ValueError` if it is not JSON."""
        return json.loads(self.body)


class GatewayProcess:
    """A gateway in `folder`: its working directory, and home of its servers.yaml and cache.

    A context manager: entering starts it and waits until it answers, leaving stops it. It may
    also be stopped, killed and started again, on the same port and cache.
    """

    def __init__(
        self,
        folder: Path,
        servers: str,
        *,
        token: str = NORTH_TOKEN,
        cache: Path | None = None,
        port: int | None = None,
        environment: Mapping[str, str | None] | None = None,
        arguments: Sequence[str] = (),
        command: Sequence[str] = GATEWAY_COMMAND,
    ) -> None:
        """Write `servers` to servers.yaml; start nothing yet.

        `cache` is `folder/cache` and `port` a free one if absent. `environment` is laid over the
        gateway's own (contract row G1); None takes a variable away.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.servers = folder / "servers.yaml"
        self.servers.write_text(servers, encoding="utf-8")
        self.cache = cache or folder / "cache"
        self.token = token
        self.host = "127.0.0.1"
        self.port = port or find_free_port(self.host)
        self.environment = self._build_environment(environment or {})
        """May be changed between two starts."""
        self.command = (*command, *arguments)
        self._stdout = folder / "gateway.stdout"
        self._stderr = folder / "gateway.stderr"
        # Written by `start`, `stop` and `kill` alone; None before the first start.
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start, and wait until `/healthz` answers."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop, if it runs."""
        self.close()

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        return f"http://{self.host}:{self.port}"

    def mcp_url(self, owner: str) -> str:
        """Return the MCP endpoint of an owner."""
        return f"{self.url}/{owner}/mcp"

    @property
    def log(self) -> str:
        """All that was written to stderr since the first start; to be read at any time."""
        return self._read(self._stderr)

    @property
    def stdout(self) -> str:
        """All that was written to stdout since the first start."""
        return self._read(self._stdout)

    @property
    def pid(self) -> int:
        """The id of the running process."""
        return self._running().pid

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the process without waiting for anything."""
        if self.is_running:
            raise RuntimeError("the gateway runs already")
        with self._stdout.open("ab") as stdout, self._stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    def start(self, timeout: float = START_DEADLINE_SECONDS) -> None:
        """Start the process and wait until `/healthz` answers 200.

        Raises `GatewayExitedError` if it ends instead, `TimeoutError` (and it is killed) if it
        does neither.
        """
        self.launch()
        try:
            wait_until(self._is_healthy, timeout)
        except BaseException:
            if self.is_running:
                self.kill()
            raise

    def wait_for_exit(self, timeout: float = START_DEADLINE_SECONDS) -> int:
        """Wait until it ends by itself and return its status.

        Raises `TimeoutError`, with the log, if it doesn't.
        """
        process = self._running()
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the gateway runs on after {timeout} s:\n{self.log}") from None

    def run(self, timeout: float = START_DEADLINE_SECONDS) -> int:
        """Start it, wait until it ends by itself, and return its status.

        For starts that must fail, and for commands such as `check`. Killed at the deadline.
        """
        self.launch()
        try:
            return self.wait_for_exit(timeout)
        finally:
            if self.is_running:
                self.kill()

    def stop(self, timeout: float = STOP_DEADLINE_SECONDS) -> int:
        """Send SIGTERM and return the exit status (negative: the signal that ended it).

        Raises `TimeoutError` at the deadline, after killing it.
        """
        self._running().terminate()
        try:
            return self.wait_for_exit(timeout)
        except TimeoutError:
            self.kill()
            raise

    def kill(self) -> None:
        """End it at once, as a crash would (SIGKILL to its process group)."""
        process = self._running()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_DEADLINE_SECONDS)

    def close(self) -> None:
        """Stop it if it runs; as `stop` does."""
        if self.is_running:
            self.stop()

    def request(
        self,
        method: str,
        path: str,
        *,
        token: bool | str = True,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float = REQUEST_DEADLINE_SECONDS,
    ) -> Answer:
        """Send one request, following no redirect and no proxy.

        `token` True sends the gateway's own, False none, a text that one. `path` is sent as it
        stands, query and all.
        """
        sent = dict(headers or {})
        if token:
            sent.setdefault("Authorization", f"Bearer {self.token if token is True else token}")
        connection = HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body or None, sent)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(
        self,
        path: str,
        *,
        token: bool | str = True,
        headers: Mapping[str, str] | None = None,
        timeout: float = REQUEST_DEADLINE_SECONDS,
    ) -> Answer:
        """Send a GET; see `request`."""
        return self.request("GET", path, token=token, headers=headers, timeout=timeout)

    def post(
        self,
        path: str,
        body: object = None,
        *,
        token: bool | str = True,
        headers: Mapping[str, str] | None = None,
        timeout: float = REQUEST_DEADLINE_SECONDS,
    ) -> Answer:
        """Send a POST; see `request`. A body that is not bytes is sent as JSON, None is empty."""
        sent = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            sent = {"Content-Type": "application/json", **sent}
            body = json.dumps(body).encode()
        return self.request(
            "POST", path, token=token, headers=sent, body=body or b"", timeout=timeout
        )

    def status(self, query: str = "") -> dict[str, Any]:
        """Return what `/status` says; `query` such as `artifacts=true`.

        Raises `AssertionError` if it is not answered with 200.
        """
        answer = self.get(f"/status?{query}" if query else "/status")
        assert answer.status == HTTPStatus.OK, answer
        return answer.json

    def owner(self, name: str) -> dict[str, Any]:
        """Return what `/status` says of one owner."""
        return self.status()["owners"][name]

    def wait_for_state(self, owner: str, state: str, timeout: float = 20.0) -> dict[str, Any]:
        """Wait until an owner's `state` is so and return its status.

        Raises `TimeoutError`, with the log, if it doesn't become so.
        """
        try:
            wait_until(lambda: self.owner(owner)["state"] == state, timeout)
        except TimeoutError:
            raise TimeoutError(f"{owner} is {self.owner(owner)}, log:\n{self.log}") from None
        return self.owner(owner)

    def refresh(self, owner: str, *, timeout: float = REQUEST_DEADLINE_SECONDS) -> Answer:
        """Ask for a pull of one owner."""
        return self.post(f"/{owner}/refresh", timeout=timeout)

    def _build_environment(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        own = {
            "PATH": os.getenv("PATH", os.defpath),
            "HOME": str(self.folder),
            "LC_ALL": "C.UTF-8",
            "OKF_GATEWAY_TOKEN": self.token,
            "OKF_GATEWAY_SERVERS": str(self.servers),
            "OKF_GATEWAY_CACHE_DIR": str(self.cache),
            "OKF_GATEWAY_HOST": self.host,
            "OKF_GATEWAY_PORT": str(self.port),
        }
        return {
            name: value
            for name, value in {**own, **measured(), **changes}.items()
            if value is not None
        }

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the gateway was not started")
        return self._process

    def _is_healthy(self) -> bool:
        if (returncode := self.returncode) is not None:
            raise GatewayExitedError(returncode, self.log)
        try:
            return self.get("/healthz", token=False, timeout=2.0).status == HTTPStatus.OK
        except OSError:
            return False

    def _read(self, path: Path) -> str:
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


class GatewayFactory(Protocol):
    """The fixture `gateway`: gateways that are stopped after the test."""

    def __call__(
        self,
        servers: str,
        *,
        name: str = "gateway",
        cache: Path | None = None,
        environment: Mapping[str, str | None] | None = None,
        is_started: bool = True,
    ) -> GatewayProcess:
        """Prepare one in a folder `name` of the test, and start it unless told otherwise."""
        ...
