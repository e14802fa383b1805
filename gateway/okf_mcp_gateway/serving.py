"""Serve on a socket until a signal comes, and stop in the right order (P8).

A stop first ends what requests wait for (git, event streams), then waits for the requests, and
leaves behind whoever keeps them from their end.
"""

import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Final

import uvicorn
from anyio import create_task_group, current_time, sleep

from okf_mcp_gateway.cache import hold_cache
from okf_mcp_gateway.config import Configuration
from okf_mcp_gateway.connection import Connection
from okf_mcp_gateway.descriptors import raise_descriptor_limit
from okf_mcp_gateway.logs import configure_logging
from okf_mcp_gateway.scrub import Scrubber
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.state import SystemClock
from okf_mcp_server.errors import OkfError

if TYPE_CHECKING:
    from okf_mcp_gateway.app import Gateway

STOP_SECONDS: Final = 3
"""How long running requests may take to finish, of the 5 s that the whole stop has (P8)."""

KEEP_ALIVE_SECONDS: Final = 75
"""How long an idle connection is kept: longer than most clients keep theirs."""

MAX_UNSENT_BYTES: Final = 256 * 1024 * 1024
"""How much of all answers may wait for clients that are slow to take them."""

_LAST_READS_SECONDS: Final = 1.0
"""How long, of these, a client may take nothing of its answer."""

_LAST_THREADS_SECONDS: Final = 0.5
"""How long a thread may take to end by itself after that."""

_TICKS_A_SECOND: Final = 10
"""How often uvicorn calls `on_tick`."""

_BACKLOG: Final = 2048
"""How many connections may wait to be accepted; uvicorn's own default."""

_TURN_SECONDS: Final = 0.0005
"""For how long a thread of a pull keeps the event loop from its turn: a read waits two of them.

Python's own 5 ms are the slowest reads' time while a pull loads; this costs nothing measurable.
"""

log = logging.getLogger(__name__)


class StartError(OkfError):
    """The gateway can't start."""


def serve(
    configuration: Configuration,
    environ: Mapping[str, str],
    *,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP; `on_listening` gets the address once we answer.

    Raises `OkfError` if the gateway can't start.
    """
    settings = configuration.settings
    scrubber = Scrubber(configuration.secrets, cache_dir=settings.cache_dir)
    configure_logging(settings, scrubber)
    raise_descriptor_limit()
    sys.setswitchinterval(_TURN_SECONDS)
    os.umask(0o077)  # what we and git write is nobody else's to read
    with hold_cache(settings.cache_dir) as home, _listen(settings.host, settings.port) as listener:
        settings = replace(settings, port=listener.getsockname()[1])  # 0 asked for any free one
        configuration = replace(configuration, settings=settings)
        git = Git(environ=environ, home=home, deadline_seconds=settings.git_timeout_seconds)
        gateway, protocol = _build(configuration, git, scrubber)
        options = uvicorn.Config(
            gateway.app,
            loop="uvloop",
            http=protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        server = _Server(options, (git.close, gateway.end_streams), on_listening)
        # uvicorn takes signals only once it runs; what it does then is right before that, too.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Of those that `nohup` and the like told us to ignore, none.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, server.handle_exit)
        server.run(sockets=[listener])
        if server.lifespan.error_occurred:
            raise StartError("stopped by an internal error; the log has the rest")
        log.info("Stopped")
        # With the cache still held: a thread of ours may be writing there.
        _leave_if_threads_hang()


def _build(
    configuration: Configuration, git: Git, scrubber: Scrubber
) -> tuple["Gateway", type[Connection]]:
    """Return the gateway, and what speaks HTTP to its clients.

    The SDK is imported here, with the socket open: it is most of a start, and whoever connects
    meanwhile waits for it. What comes of that stays, so nobody looks for garbage in it.
    """
    gc.disable()
    try:
        from okf_mcp_gateway.app import build_app  # noqa: PLC0415 - imports the SDK
        from okf_mcp_gateway.direct import DirectConnection  # noqa: PLC0415 - likewise

        gateway = build_app(configuration, git=git, scrubber=scrubber, clock=SystemClock())
    finally:
        gc.freeze()
        gc.enable()
    return gateway, DirectConnection


def _leave_if_threads_hang() -> None:
    """End the process at once if a thread of a pull still waits, for a stalled disk or such.

    git is dead by now, so nothing else keeps one, and Python would wait for it without end (P8).
    """
    deadline = time.monotonic() + _LAST_THREADS_SECONDS
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(deadline - time.monotonic(), 0.0))
            if thread.is_alive():
                logging.shutdown()
                os._exit(0)


class _Server(uvicorn.Server):
    """uvicorn, which first ends what requests wait for: it lets each request run to its end.

    Without git, who waits for a pull is answered with what there is; and no event stream ends by
    itself.
    """

    def __init__(
        self,
        options: uvicorn.Config,
        before_stop: Sequence[Callable[[], None]],
        on_listening: Callable[[str], None] | None,
    ) -> None:
        super().__init__(options)
        self._before_stop = before_stop
        self._on_listening = on_listening

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's names
        """Stop; a second signal hurries nothing, for a stop has its bound and owes answers."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            log.info("Listening: address=%s loop=uvloop parser=httptools", address)
            if self._on_listening:
                self._on_listening(address)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_A_SECOND == 0:
            now = current_time()
            for connection in self._connections():
                connection.check_deadlines(now)
            self._drop_most_unsent()
        # Without its owners' tasks the application would answer, and never pull again.
        return await super().on_tick(counter) or self.lifespan.error_occurred

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("Stopping")
        for end in self._before_stop:
            end()
        async with create_task_group() as tasks:
            tasks.start_soon(self._drop_who_stands_still)
            await super().shutdown(sockets)
            tasks.cancel_scope.cancel()

    async def _drop_who_stands_still(self) -> None:
        """Break off the connections whose clients take nothing, or still owe us their request.

        They keep a request from its end. For an event stream the former is the rule: its client may
        be asleep, and nothing else ends it.
        """
        before = self._unsent_bytes()
        await sleep(_LAST_READS_SECONDS)
        for connection, size in self._unsent_bytes().items():
            if connection.owes_request or (size and size == before.get(connection)):
                connection.transport.abort()

    def _drop_most_unsent(self) -> None:
        """Break off those who leave most of their answers to us, where that is too much in all."""
        unsent = self._unsent_bytes()
        total = sum(unsent.values())
        if total <= MAX_UNSENT_BYTES:
            return
        for connection in sorted(unsent, key=lambda each: unsent[each], reverse=True):
            if total <= MAX_UNSENT_BYTES:
                break
            total -= unsent[connection]
            connection.transport.abort()

    def _unsent_bytes(self) -> Mapping[Connection, int]:
        return {
            connection: connection.transport.get_write_buffer_size()
            for connection in self._connections()
        }

    def _connections(self) -> Sequence[Connection]:
        connections = self.server_state.connections
        return [each for each in connections if isinstance(each, Connection)]


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except UnicodeError:
        raise StartError(f"can't listen on {host}: that is no host's name") from None
    except OSError as error:
        raise StartError(f"can't listen on {host}: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Two that only bind can share a port; the second one to listen fails.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(f"can't listen on {host} port {port}: {error.strerror}") from None
    return listener
