"""The SDK's own MCP client, over real HTTP."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Literal

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

REQUEST_DEADLINE_SECONDS = 30.0

Mode = Literal["auto", "legacy", "2026-07-28"]


@asynccontextmanager
async def mcp_client(
    url: str,
    token: str | None,
    mode: Mode = "auto",
    *,
    headers: Mapping[str, str] | None = None,
    deadline: float = REQUEST_DEADLINE_SECONDS,
) -> AsyncGenerator[Client]:
    """Connect to an MCP endpoint with a bearer token (None: without).

    "auto" discovers and falls back to the handshake, "legacy" is the handshake, a version is
    taken without asking (then the client knows no capabilities). Nothing is cached; each request
    has `deadline` seconds. What the server refuses is an `MCPError`; a failure of HTTP itself
    comes out as an `ExceptionGroup`.
    """
    bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(
            headers={**bearer, **(headers or {})}, timeout=deadline, trust_env=False
        ) as http_client,
        Client(
            streamable_http_client(url, http_client=http_client),
            mode=mode,
            cache=None,
            read_timeout_seconds=deadline,
        ) as client,
    ):
        yield client
