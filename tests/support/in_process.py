"""The whole gateway in this process: real git, the test's own clock, HTTP without a socket."""

import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import httpx2
from anyio import fail_after, sleep
from starlette.applications import Starlette
from starlette.types import ASGIApp

from okf_mcp_gateway.app import build_app
from okf_mcp_gateway.cache import hold_cache
from okf_mcp_gateway.config import load_configuration
from okf_mcp_gateway.scrub import Scrubber
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.state import Instant

NORTH_TOKEN: Final = "north-token-of-the-tests"
BEARER: Final = {"Authorization": f"Bearer {NORTH_TOKEN}"}
NOON: Final = datetime(2026, 7, 17, 12, 0, 0, tzinfo=UTC)
DEADLINE_SECONDS: Final = 60.0
NEVER_SECONDS: Final = "3600"
"""A `pull_wait` that no test outlives: whoever waits for a pull is seen to wait."""

MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"

Era = Literal["2026-07-28", "2025-11-25"]
T = TypeVar("T")


class ManualClock:
    """A clock that stands at noon until a test moves it."""

    def __init__(self) -> None:
        # Replaced as a whole, by the test alone.
        self._now = Instant(NOON, 1000.0)

    def now(self) -> Instant:
        return self._now

    def seconds(self) -> float:
        return self._now.seconds

    def advance(self, seconds: float) -> None:
        self._now = self._now.later(seconds)


@dataclass(frozen=True, slots=True)
class InProcess:
    """A gateway that runs, and the client that asks it with the north token."""

    app: Starlette
    client: httpx2.AsyncClient
    git: Git
    clock: ManualClock
    folder: Path
    entry: ASGIApp
    """What the client asks: all of it, with what stands before `app`."""

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    async def get(self, path: str) -> httpx2.Response:
        return await self.client.get(path)

    async def status(self, query: str = "") -> dict[str, Any]:
        """Return what `/status` says."""
        answer = await self.client.get(f"/status?{query}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def row(self, owner: str, query: str = "") -> dict[str, Any]:
        """Return what `/status` says of one owner."""
        return (await self.status(query))["owners"][owner]

    async def wait_for_state(self, owner: str, state: str) -> None:
        """Wait until an owner's `state` is so."""

        async def is_so() -> bool:
            return (await self.row(owner))["state"] == state

        await until(is_so)

    async def refresh(self, owner: str) -> httpx2.Response:
        return await self.client.post(f"/{owner}/refresh")

    async def mcp(
        self,
        owner: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        era: Era = MODERN,
        is_notification: bool = False,
    ) -> httpx2.Response:
        """Send one JSON-RPC message, as a client of that protocol version does."""
        message = mcp_message(method, params, era=era, is_notification=is_notification)
        headers = mcp_headers(method, params, era=era)
        return await self.client.post(f"/{owner}/mcp", content=message, headers=headers)


@asynccontextmanager
async def running(
    folder: Path,
    servers: str,
    *,
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[Starlette, ManualClock], None] | None = None,
    is_crash_expected: bool = False,
) -> AsyncGenerator[InProcess]:
    """Run a gateway in `folder`, where another one may have run before.

    `prepare` may change the application before it starts. An exception that the server would log
    comes out of the client unless `is_crash_expected`.
    """
    environ = _environment(folder, environment or {})
    _write_registry(folder, servers)
    configuration = load_configuration(environ, folder)
    settings, clock = configuration.settings, ManualClock()
    scrubber = Scrubber(configuration.secrets, cache_dir=settings.cache_dir)
    with fail_after(DEADLINE_SECONDS), hold_cache(settings.cache_dir) as home:
        git = Git(environ=environ, home=home, deadline_seconds=settings.git_timeout_seconds)
        gateway = build_app(configuration, git=git, scrubber=scrubber, clock=clock)
        app = gateway.framework
        if prepare:
            prepare(app, clock)
        transport = httpx2.ASGITransport(
            app=gateway.app, raise_app_exceptions=not is_crash_expected
        )
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(
                transport=transport, base_url="http://gateway.example", headers=BEARER, timeout=None
            ) as client,
        ):
            yield InProcess(app, client, git, clock, folder, gateway.app)


def _environment(folder: Path, changes: Mapping[str, str]) -> dict[str, str]:
    environ = {
        "PATH": os.environ["PATH"],
        "OKF_GATEWAY_TOKEN": NORTH_TOKEN,
        "OKF_GATEWAY_CACHE_DIR": str(folder / "cache"),
        **changes,
    }
    return {name: value for name, value in environ.items() if value}


def _write_registry(folder: Path, servers: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "servers.yaml").write_text(servers)


async def until(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again and again until the answer is true, and return it; the test has the deadline."""
    while not (answer := await ask()):  # noqa: ASYNC110 - nothing in the gateway tells a test
        await sleep(0.01)
    return answer


def servers(**owners: str | Mapping[str, Any]) -> str:
    """Write a registry: by owner, a url or the whole entry."""
    entries = {
        name: {"url": owner} if isinstance(owner, str) else owner for name, owner in owners.items()
    }
    return json.dumps({"owners": entries})


def mcp_message(
    method: str,
    params: Mapping[str, Any] | None = None,
    *,
    era: Era = MODERN,
    is_notification: bool = False,
) -> bytes:
    """Return the body of one JSON-RPC message."""
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    filled: dict[str, Any] = {**(params or {}), **({"_meta": meta} if era == MODERN else {})}
    if method == "initialize":
        client = {"name": "tests", "version": "1"}
        filled |= {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": client}
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": filled}
    return json.dumps(message if is_notification else {**message, "id": 1}).encode()


def mcp_headers(
    method: str, params: Mapping[str, Any] | None = None, *, era: Era = MODERN
) -> dict[str, str]:
    """Return the headers that go with it."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    if method == "initialize":
        return headers
    headers["MCP-Protocol-Version"] = era
    if era == MODERN:
        headers["Mcp-Method"] = method
        if params and "uri" in params:
            headers["Mcp-Name"] = params["uri"]
    return headers


def in_order(content: object) -> str:
    """Return JSON that differs when keys stand in another order."""
    return json.dumps(content, indent=1, ensure_ascii=False)


def put_a_file_in_the_place_of(folder: Path) -> None:
    """Let nothing be read or written below `folder` any more, whoever tries: a fault of ours."""
    folder.rename(folder.with_name(f"{folder.name}.away"))
    folder.write_text("not a folder")


def routes_of(app: Starlette) -> Sequence[str]:
    """Return the paths of all routes, for requests to the owner `acme`."""
    return [str(getattr(route, "path", "")).replace("{owner}", "acme") for route in app.routes]
