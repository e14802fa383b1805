"""The whole gateway in this process, as its own `main` builds it, without a server around it."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
from starlette.types import ASGIApp

from bench.questions import TOKEN
from okf_mcp_gateway.app import Gateway, build_app
from okf_mcp_gateway.cache import hold_cache
from okf_mcp_gateway.config import load_configuration
from okf_mcp_gateway.scrub import Scrubber
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.state import SystemClock

SERVING_SECONDS: Final = 120.0


@asynccontextmanager
async def gateway_app(
    folder: Path, servers: str, changes: Mapping[str, str] | None = None
) -> AsyncGenerator[tuple[Gateway, Git]]:
    """Run a gateway in `folder`, with this `servers.yaml`."""
    _write_registry(folder, servers)
    environ = {
        "PATH": os.pathsep.join(os.get_exec_path()),
        "OKF_GATEWAY_TOKEN": TOKEN,
        "OKF_GATEWAY_CACHE_DIR": str(folder / "cache"),
        **(changes or {}),
    }
    configuration = load_configuration(environ, folder)
    settings = configuration.settings
    scrubber = Scrubber(configuration.secrets, cache_dir=settings.cache_dir)
    with hold_cache(settings.cache_dir) as home:
        git = Git(environ=environ, home=home, deadline_seconds=settings.git_timeout_seconds)
        gateway = build_app(configuration, git=git, scrubber=scrubber, clock=SystemClock())
        async with gateway.framework.router.lifespan_context(gateway.framework):
            yield gateway, git


def _write_registry(folder: Path, servers: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "servers.yaml").write_text(servers)


async def until_serving(gateway: Gateway) -> None:
    """Wait until every owner serves."""
    with anyio.fail_after(SERVING_SECONDS):
        while not await _are_serving(gateway.app):  # noqa: ASYNC110 - nothing tells us
            await anyio.sleep(0.01)


async def ask(app: ASGIApp, method: str, path: str, query: str = "") -> dict[str, Any]:
    """Send a request that is no MCP, and return the JSON that answers it with 200."""
    transport = httpx2.ASGITransport(app=app)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:80", headers=headers, timeout=None
    ) as client:
        answer = await client.request(method, f"{path}?{query}" if query else path)
    if answer.status_code != HTTPStatus.OK:
        raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
    return answer.json()


async def _are_serving(app: ASGIApp) -> bool:
    summary = (await ask(app, "GET", "/status"))["summary"]
    return summary["serving"] == summary["total"]
