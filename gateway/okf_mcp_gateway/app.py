"""The one place where parts meet: configuration in, ASGI application out."""

import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from okf_mcp_gateway.answers import AnswerCache
from okf_mcp_gateway.auth import AllowedOrigins, BearerAuth, OriginGuard
from okf_mcp_gateway.config import Configuration
from okf_mcp_gateway.descriptors import max_connections
from okf_mcp_gateway.front import Front
from okf_mcp_gateway.limits import RequestLimits
from okf_mcp_gateway.listing import MAX_PAGES, Listing
from okf_mcp_gateway.owners import Owner, PullSlots
from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.routes.config import config_route
from okf_mcp_gateway.routes.health import health_route
from okf_mcp_gateway.routes.mcp import McpEndpoint, ServedOwner, unknown_owner_routes
from okf_mcp_gateway.routes.refresh import refresh_route
from okf_mcp_gateway.routes.rendering import crash_response, error_responder
from okf_mcp_gateway.routes.status import status_route
from okf_mcp_gateway.scrub import Scrubber
from okf_mcp_gateway.snapshot_file import SnapshotFile, checksum_key
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.source.judging import Judges
from okf_mcp_gateway.source.mirror import Mirror
from okf_mcp_gateway.source.puller import Puller
from okf_mcp_gateway.source.removed_copies import sweep
from okf_mcp_gateway.state import Clock
from okf_mcp_gateway.warm_start import run_owners
from okf_mcp_server.changes import Changes
from okf_mcp_server.server import build_server
from okf_mcp_server.snapshot import Snapshot

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 86_400
"""How often copies that no owner has are looked for: a gateway may run for months."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """What a server needs to run the gateway, and to stop it."""

    app: ASGIApp
    """What answers requests, and has the lifespan of `framework`."""
    framework: Starlette
    """All that stands behind the front.

    Its lifespan runs the owners: it pulls from its start, and stops git when it ends.
    """
    end_streams: Callable[[], None]
    """Ends all event streams, and lets no more begin.

    To be called before the server waits for the requests that run: a stream is one, and has no end
    of its own.
    """


def build_app(
    configuration: Configuration, *, git: Git, scrubber: Scrubber, clock: Clock
) -> Gateway:
    """Return the gateway as an ASGI application."""
    settings = configuration.settings
    max_streams = max_connections() // 2

    def has_room() -> bool:
        return sum(each.open_streams for each in changes.values()) < max_streams

    changes = {name: Changes(name, has_room=has_room) for name in configuration.registry.owners}
    owners = _owners(configuration, git, scrubber, clock, changes)
    cache = AnswerCache()
    shelves = {
        name: cache.add_shelf(owner.ready_snapshot, served=partial(_served, owner))
        for name, owner in owners.items()
    }
    listing = Listing(MAX_PAGES if settings.keeps_answers else 0)
    served = {name: _serve(owner, changes[name], listing) for name, owner in owners.items()}

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for one in served.values():
                await stack.enter_async_context(one.sessions.run())
            tasks = await stack.enter_async_context(anyio.create_task_group())
            for each in changes.values():
                tasks.start_soon(each.run)
            tasks.start_soon(run_owners, tuple(owners.values()))
            tasks.start_soon(_sweep_daily, settings.cache_dir, frozenset(owners), clock)
            try:
                yield
            finally:
                git.close()
                tasks.cancel_scope.cancel()

    framework = Starlette(
        routes=[
            health_route(),
            config_route(configuration),
            status_route(owners, lambda name: shelves[name].counts(), clock),
            refresh_route(owners),
            *unknown_owner_routes(),
        ],
        exception_handlers={HTTPException: error_responder(scrubber), Exception: crash_response},
        lifespan=lifespan,
    )
    # A client that follows a redirect loses its token or its body on the way.
    framework.router.redirect_slashes = False

    def end_streams() -> None:
        for each in changes.values():
            each.close()

    limits = RequestLimits(McpEndpoint(served, clock, rest=framework), settings.max_requests)
    app: ASGIApp = OriginGuard(limits, settings.allowed_origins)
    app = BearerAuth(app, settings.token)
    app = AllowedOrigins(app, settings.allowed_origins)
    if settings.keeps_answers:
        app = Front(app, limits, shelves, settings.token)
    return Gateway(app, framework, end_streams)


async def _sweep_daily(cache_dir: Path, owners: frozenset[str], clock: Clock) -> None:
    """Remove the copies of owners that left the registry a while ago (P6)."""
    while True:
        try:
            await anyio.to_thread.run_sync(
                sweep, cache_dir, owners, clock.now().at, abandon_on_cancel=True
            )
        except Exception:
            log.exception("Copies of no owner not looked for")  # the owners' tasks go on
        await anyio.sleep(SWEEP_SECONDS)


def _owners(
    configuration: Configuration,
    git: Git,
    scrubber: Scrubber,
    clock: Clock,
    changes: Mapping[str, Changes],
) -> Mapping[str, Owner]:
    slots = PullSlots()
    judges = Judges(git, deadline_seconds=configuration.settings.git_timeout_seconds)
    # All of them: a source may name another owner's.
    urls = tuple(config.url for config in configuration.registry.owners.values())
    scrub = partial(scrubber.scrub, urls=urls)
    # Without a token, whose file may be gone by now, no file is believed, nor any of ours later.
    key = checksum_key(configuration.settings.token.reveal() or secrets.token_hex())

    def build(config: OwnerConfig) -> Owner:
        mirror = Mirror(config, configuration.settings.cache_dir, git)
        snapshots = SnapshotFile(config, key)
        puller = Puller(
            config,
            mirror,
            snapshots,
            now=lambda: clock.now().at,
            scrub=scrub,
            judging=judges.judge,
        )
        return Owner(
            config,
            puller,
            slots=slots,
            clock=clock,
            scrub=scrub,
            pull_wait_seconds=configuration.settings.pull_wait_seconds,
            on_publish=changes[config.name].publish,
        )

    return {name: build(config) for name, config in configuration.registry.owners.items()}


def _served(owner: Owner) -> Snapshot | None:
    return owner.state.snapshot


def _serve(owner: Owner, changes: Changes, listing: Listing) -> ServedOwner:
    """Return the owner with its MCP server: stateless, so that a restart goes unnoticed (H2).

    Any `Host` works, since the token guards the endpoint and not the name it is reached by.
    """
    server = build_server(owner.config.name, owner.current, changes, listing.select)
    sessions = StreamableHTTPSessionManager(server, stateless=True, json_response=True)
    return ServedOwner(owner, sessions, listing)
