"""A gateway in this process that is asked byte for byte, without an HTTP client in between.

It has an event loop of its own that runs only while somebody asks, so that a fuzzer, which calls a
plain function, can ask a million times.
"""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias
from urllib.parse import unquote

from support.in_process import NORTH_TOKEN, running

if TYPE_CHECKING:
    from starlette.types import ASGIApp

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

TOKEN: Final[Headers] = ((b"authorization", f"Bearer {NORTH_TOKEN}".encode()),)

_ANSWER_SECONDS: Final = 20.0
_LIFE_SECONDS: Final = 30.0
"""How old a gateway grows: `running` ends one at its deadline, so a new one takes its place."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    """0 if there was no answer at all."""
    headers: Headers
    body: bytes

    def header(self, name: bytes) -> bytes:
        """Return the first header of that name, empty if there is none."""
        return next((value for key, value in self.headers if key == name), b"")


class Edge:
    """The gateway of one registry, whose owner `acme` is served before the first question."""

    def __init__(self, folder: Path, servers: str) -> None:
        """Keep everything in `folder`."""
        self._folder = folder
        self._servers = servers
        self._loop = asyncio.new_event_loop()
        # These three are written by `_start` and `_end`.
        self._app: ASGIApp | None = None
        self._ends: asyncio.Event | None = None
        self._life: asyncio.Task[None] | None = None
        self._began = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def ask(self, method: str, target: str, headers: Headers = (), body: bytes = b"") -> Reply:
        """Send one request; `target` is ASCII, as it stands in the request line.

        What the application raises comes out, and `TimeoutError` if it doesn't answer.
        """
        if time.monotonic() - self._began > _LIFE_SECONDS:
            self._end()
        if self._app is None:
            self._loop.run_until_complete(self._start())
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"host", b"gateway.example"), *headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        return self._loop.run_until_complete(self._ask(scope, body))

    async def _ask(self, scope: dict[str, Any], body: bytes) -> Reply:
        unread = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict[str, Any]] = []
        leaves = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if unread:
                return unread.pop()
            await leaves.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if (b"content-type", b"text/event-stream") in _types(message):
                leaves.set()  # nobody waits for the end of a stream

        assert self._app is not None
        async with asyncio.timeout(_ANSWER_SECONDS):
            await self._app(scope, receive, send)  # pyright: ignore[reportArgumentType] - plain dicts
        starts = [each for each in sent if each["type"] == "http.response.start"]
        assert len(starts) <= 1, starts
        whole = b"".join(each.get("body", b"") for each in sent)
        if not starts:
            return Reply(0, (), whole)
        headers = tuple((name.lower(), value) for name, value in starts[0]["headers"])
        return Reply(starts[0]["status"], headers, whole)

    async def _start(self) -> None:
        ready: asyncio.Future[ASGIApp] = self._loop.create_future()
        self._ends = ends = asyncio.Event()

        async def live() -> None:
            try:
                async with running(self._folder, self._servers) as gateway:
                    await gateway.wait_for_state("acme", "serving")
                    ready.set_result(gateway.entry)
                    await ends.wait()
            except BaseException as error:
                if not ready.done():
                    ready.set_exception(error)
                raise

        self._life = self._loop.create_task(live())
        self._app = await ready
        self._began = time.monotonic()

    def _end(self) -> None:
        if self._life is not None and self._ends is not None:
            self._ends.set()
            self._loop.run_until_complete(self._life)
        self._app = self._ends = self._life = None


def _types(message: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    return [
        (name.lower(), value.partition(b";")[0].strip())
        for name, value in message.get("headers", ())
    ]
