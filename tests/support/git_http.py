"""A real git host over HTTP: `git http-backend` behind a small threaded server.

It serves every bare repository of one folder, may ask for a login, keeps a list of what it was
asked, and can be told to hang, to refuse, to redirect, to trickle or to break off. Invariant:
after `close` none of its threads, sockets and processes is left.
"""

import gzip
import hmac
import os
import signal
import socket
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from email.message import Message
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseServer, TCPServer
from threading import Condition, Thread
from types import TracebackType
from typing import Protocol, Self, cast
from urllib.parse import unquote

from support.repositories import Repository, git, git_environment

BACKEND_DEADLINE_SECONDS = 60.0
CLOSE_DEADLINE_SECONDS = 10.0
IDLE_DEADLINE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, and how it was answered."""

    method: str
    path: str
    """Without the query, as it came."""
    query: str
    headers: Message = field(repr=False, compare=False)
    """Looked up in any case: `exchange.headers["authorization"]`."""
    body: bytes = field(repr=False)
    """Whole and unpacked: neither chunked nor gzipped."""
    status: int | None = None
    """None as long as it was not answered."""

    @property
    def is_probe(self) -> bool:
        """Whether it is about refs: all that `git ls-remote` asks for, and the start of a fetch."""
        return not self.is_fetch

    @property
    def is_fetch(self) -> bool:
        """Whether objects are asked for: what `git fetch` does after it has seen the refs."""
        return self.method == "POST" and b"command=ls-refs" not in self.body


def every(_: Exchange) -> bool:
    """Hold for every request."""
    return True


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class _Behaviour:
    """What the server does to the requests that it concerns; `when` says which."""

    when: Callable[[Exchange], bool] = every
    is_hanging: bool = False
    status: int | None = None
    redirect_to: str | None = None
    seconds_per_byte: float = 0.0
    break_off_after_bytes: int | None = None


class GitHttpServer:
    """Serve the bare repositories of `root` at `{url}/{name}.git`, as a context manager.

    Only reading is possible. All methods may be called from any thread, at any time.
    """

    def __init__(
        self,
        root: Path,
        *,
        user: str | None = None,
        password: str | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """Prepare a server that asks for a login if `password` is given.

        `host` may be any loopback address: `127.0.0.2` is another host to git.
        """
        self.root = root
        self._changed = Condition()
        # All below is read and written under `_changed`.
        self._login: bytes | None = None
        self._behaviour = _Behaviour()
        self._exchanges: dict[int, Exchange] = {}
        self._arrivals = 0
        self._backends: set[subprocess.Popen[bytes]] = set()
        self._is_closing = False
        self._faults: list[Exception] = []
        if password is not None:
            self.require_login(user or "git", password)
        self._listener = _Listener(host, self)
        self._acceptor = Thread(
            target=self._listener.serve_forever, args=(0.02,), name="git-http-acceptor", daemon=True
        )

    def __enter__(self) -> Self:
        """Start to serve."""
        self._acceptor.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, and raise what went wrong inside the server if nothing else did."""
        self.close()
        if error is None and self._faults:
            raise ExceptionGroup("the git host had faults of its own", self._faults)

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        host, port = self._listener.socket.getsockname()[:2]
        return f"http://{host}:{port}"

    @property
    def authority(self) -> str:
        """`host:port`, as `credentials` of servers.yaml names a host."""
        return self.url.removeprefix("http://")

    def url_of(self, repository: Repository | str) -> str:
        """Return the URL of a repository, or of a path below the root."""
        name = repository if isinstance(repository, str) else repository.bare.name
        return f"{self.url}/{name}"

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """What was asked since the start or the last `forget`, in order of arrival."""
        with self._changed:
            return tuple(self._exchanges.values())

    @property
    def requests(self) -> tuple[tuple[str, str, int | None], ...]:
        """The same as (method, path without query, status); status None is not yet answered."""
        return tuple((each.method, each.path, each.status) for each in self.exchanges)

    def forget(self) -> None:
        """Empty the list of requests."""
        with self._changed:
            self._exchanges.clear()

    def wait_for_requests(
        self, count: int, *, when: Callable[[Exchange], bool] = every, timeout: float = 10.0
    ) -> tuple[Exchange, ...]:
        """Wait until `count` requests have arrived, answered or not, and return them.

        `when` says which ones count. Raises `TimeoutError`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._select(when)) >= count, timeout):
                raise TimeoutError(f"{len(self._select(when))} of {count} requests in {timeout} s")
            return self._select(when)

    def require_login(self, user: str, password: str) -> None:
        """Answer 401 to all that don't bring this login by HTTP Basic, from now on."""
        with self._changed:
            self._login = b"Basic " + b64encode(f"{user}:{password}".encode())

    def allow_everyone(self) -> None:
        """Ask for no login from now on."""
        with self._changed:
            self._login = None

    def hang(self, *, when: Callable[[Exchange], bool] = every) -> None:
        """Accept requests and never answer them, until the behaviour changes.

        Then those that are still waiting are treated in the new way.
        """
        self._behave(_Behaviour(when, is_hanging=True))

    def refuse(self, status: int, *, when: Callable[[Exchange], bool] = every) -> None:
        """Answer with an error status such as 404 or 500."""
        self._behave(_Behaviour(when, status=status))

    def redirect(
        self, base_url: str, *, status: int = 302, when: Callable[[Exchange], bool] = every
    ) -> None:
        """Redirect each request to the same path and query below `base_url`."""
        self._behave(_Behaviour(when, status=status, redirect_to=base_url.rstrip("/")))

    def trickle(
        self, seconds_per_byte: float = 1.0, *, when: Callable[[Exchange], bool] = every
    ) -> None:
        """Send the body of a right answer byte by byte; the rest at once after `release`."""
        self._behave(_Behaviour(when, seconds_per_byte=seconds_per_byte))

    def break_off(self, after_bytes: int, *, when: Callable[[Exchange], bool] = every) -> None:
        """Close the connection after so many bytes of the body of a right answer."""
        self._behave(_Behaviour(when, break_off_after_bytes=after_bytes))

    def release(self) -> None:
        """Go back to plain serving; what hangs or trickles is answered now."""
        self._behave(_Behaviour())

    def close(self) -> None:
        """Stop; connections are cut, git processes killed, threads joined.

        Raises `RuntimeError` if a thread outlives the deadline.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._acceptor.is_alive():
            self._listener.shutdown()
            self._acceptor.join(CLOSE_DEADLINE_SECONDS)
        self._listener.cut_connections()
        with self._changed:
            for backend in self._backends:
                _kill_group(backend)
        self._listener.server_close()
        self._listener.join(CLOSE_DEADLINE_SECONDS)

    # What the threads of the connections call.

    def handle(self, connection: "_Connection", exchange: Exchange, raw_body: bytes) -> None:
        """Record one request, and answer it as the behaviour of the moment says."""
        with self._changed:
            self._arrivals += 1
            number = self._arrivals
            self._exchanges[number] = exchange
            self._changed.notify_all()
            behaviour = self._settle(exchange)
            login = self._login
        if behaviour is None:
            connection.close_connection = True
            return
        answer = self._answer(exchange, raw_body, behaviour, login)
        with self._changed:
            if number in self._exchanges:
                self._exchanges[number] = replace(exchange, status=int(answer.status))
                self._changed.notify_all()
        connection.send(answer, self._pieces(answer.body, behaviour))

    def note_fault(self, fault: Exception) -> None:
        """Keep an exception of a connection's thread for `__exit__`."""
        with self._changed:
            if not self._is_closing:
                self._faults.append(fault)

    def _select(self, when: Callable[[Exchange], bool]) -> tuple[Exchange, ...]:
        return tuple(each for each in self._exchanges.values() if when(each))

    def _behave(self, behaviour: _Behaviour) -> None:
        with self._changed:
            self._behaviour = behaviour
            self._changed.notify_all()

    def _settle(self, exchange: Exchange) -> _Behaviour | None:
        """Return what to do with a request, after hanging if that is it; None when closing."""
        while not self._is_closing:
            behaviour = self._behaviour
            if not behaviour.when(exchange):
                return _Behaviour()
            if not behaviour.is_hanging:
                return behaviour
            self._changed.wait()
        return None

    def _answer(
        self, exchange: Exchange, raw_body: bytes, behaviour: _Behaviour, login: bytes | None
    ) -> _Answer:
        if behaviour.redirect_to is not None:
            query = f"?{exchange.query}" if exchange.query else ""
            location = f"{behaviour.redirect_to}{exchange.path}{query}"
            return _Answer(behaviour.status or HTTPStatus.FOUND, (("Location", location),))
        if behaviour.status is not None:
            return _Answer(behaviour.status, body=b"refused, as told\n")
        given = exchange.headers.get("Authorization", "").encode()
        if login is not None and not hmac.compare_digest(given, login):
            challenge = ("WWW-Authenticate", 'Basic realm="git", charset="UTF-8"')
            return _Answer(HTTPStatus.UNAUTHORIZED, (challenge,), b"log in first\n")
        return self._run_backend(exchange, raw_body)

    def _run_backend(self, exchange: Exchange, raw_body: bytes) -> _Answer:
        with self._backend(_cgi_environment(self.root, exchange, len(raw_body))) as backend:
            output, errors = backend.communicate(raw_body, BACKEND_DEADLINE_SECONDS)
        try:
            return _parse_cgi(output)
        except ValueError as error:
            error.add_note(f"git http-backend said: {errors.decode(errors='replace')}")
            raise

    @contextmanager
    def _backend(self, environment: dict[str, str]) -> Generator[subprocess.Popen[bytes]]:
        pipe = subprocess.PIPE
        with self._changed:
            if self._is_closing:
                raise ConnectionAbortedError
            backend = subprocess.Popen(
                [_find_backend()],
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=environment,
                start_new_session=True,
            )
            self._backends.add(backend)
        try:
            with backend:
                try:
                    yield backend
                except BaseException:
                    _kill_group(backend)
                    raise
        finally:
            with self._changed:
                self._backends.discard(backend)

    def _pieces(self, body: bytes, behaviour: _Behaviour) -> Iterator[bytes]:
        """Cut a body into what is sent at once; end early to break off."""
        if behaviour.break_off_after_bytes is not None:
            yield body[: behaviour.break_off_after_bytes]
            return
        sent = 0
        while behaviour.seconds_per_byte and sent < len(body):
            yield body[sent : sent + 1]
            sent += 1
            if self._is_over(behaviour):
                break
        if not self._is_closing:
            yield body[sent:]

    def _is_over(self, behaviour: _Behaviour) -> bool:
        """Wait for the time of one byte; whether the behaviour ended meanwhile."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_closing or self._behaviour is not behaviour,
                behaviour.seconds_per_byte,
            )


class GitHttpServerFactory(Protocol):
    """The fixture `git_http_server`: git hosts that are closed after the test."""

    def __call__(
        self,
        root: Path | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        host: str = "127.0.0.1",
    ) -> GitHttpServer:
        """Start one; it serves the repositories of the fixtures if `root` is None."""
        ...


class _Listener(TCPServer):
    """One thread a connection, all of which can be cut and joined."""

    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, host_server: GitHttpServer) -> None:
        self.host_server = host_server
        self._connections = Condition()
        self._sockets: set[socket.socket] = set()
        self._threads: list[Thread] = []
        super().__init__((host, 0), _Connection)

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        connection = cast("socket.socket", request)
        thread = Thread(
            target=self._serve, args=(connection, client_address), name="git-http", daemon=True
        )
        with self._connections:
            self._sockets.add(connection)
            self._threads = [each for each in self._threads if each.is_alive()] + [thread]
            thread.start()

    def cut_connections(self) -> None:
        with self._connections:
            for connection in self._sockets:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def join(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise RuntimeError(f"a thread of the git host outlived {timeout} s")

    def _serve(self, connection: socket.socket, client_address: object) -> None:
        try:
            self.finish_request(connection, client_address)
        except (ConnectionError, TimeoutError):
            pass  # The client went away, or we cut it off: its own business.
        except Exception as fault:  # noqa: BLE001 - `close` raises it in the test
            self.host_server.note_fault(fault)
        finally:
            with self._connections:
                self._sockets.discard(connection)
                self.shutdown_request(connection)


class _Connection(BaseHTTPRequestHandler):
    """The requests of one connection, one after the other."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_DEADLINE_SECONDS
    server: BaseServer

    def do_GET(self) -> None:
        raw_body = self._read_body()
        is_packed = self.headers.get("Content-Encoding") in {"gzip", "x-gzip"}
        path, _, query = self.path.partition("?")
        exchange = Exchange(
            method=self.command,
            path=path,
            query=query,
            headers=self.headers,
            body=gzip.decompress(raw_body) if is_packed else raw_body,
        )
        cast("_Listener", self.server).host_server.handle(self, exchange, raw_body)

    do_POST = do_GET  # noqa: N815 - the base class looks for this name
    do_HEAD = do_GET  # noqa: N815 - the same

    def send(self, answer: _Answer, pieces: Iterator[bytes]) -> None:
        """Send the head, then the pieces; fewer than the whole body end the connection."""
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        sent = 0
        for piece in pieces:
            self.wfile.write(piece)
            sent += len(piece)
        if sent < len(answer.body):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: `requests` is the log."""

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self._read(int(self.headers.get("Content-Length", "0")))
        chunks: list[bytes] = []
        while length := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self._read(length))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # A trailer: nothing that git reads.
        return b"".join(chunks)

    def _read(self, length: int) -> bytes:
        content = self.rfile.read(length)
        if len(content) < length:
            raise ConnectionAbortedError
        return content


@cache
def _find_backend() -> str:
    where = git("--exec-path", folder=Path.cwd()).decode().strip()
    return str(Path(where) / "git-http-backend")


def _cgi_environment(root: Path, exchange: Exchange, content_length: int) -> dict[str, str]:
    """Build what git-http-backend(1) reads, by the names of CGI/1.1 (RFC 3875)."""
    environment = {
        **git_environment(),
        "GATEWAY_INTERFACE": "CGI/1.1",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "REQUEST_METHOD": exchange.method,
        "PATH_INFO": unquote(exchange.path),
        "QUERY_STRING": exchange.query,
    }
    if exchange.method == "POST":
        # A chunked body has no length of its own, but we hold it whole.
        environment["CONTENT_LENGTH"] = str(content_length)
    for variable, header in (
        ("CONTENT_TYPE", "Content-Type"),
        ("HTTP_CONTENT_ENCODING", "Content-Encoding"),
        ("HTTP_ACCEPT", "Accept"),
        ("GIT_PROTOCOL", "Git-Protocol"),
    ):
        if (value := exchange.headers.get(header)) is not None:
            environment[variable] = value
    return environment


def _parse_cgi(output: bytes) -> _Answer:
    head, separator, body = output.partition(b"\r\n\r\n")
    if not separator:
        raise ValueError(f"not a CGI answer: {output[:200]!r}")
    status = int(HTTPStatus.OK)
    headers: list[tuple[str, str]] = []
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "status":
            status = int(value.split()[0])
        elif name.lower() != "content-length":
            headers.append((name, value.strip()))
    return _Answer(status, tuple(headers), body)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
