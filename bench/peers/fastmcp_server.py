"""fastmcp on the same documents: PORT OWNER=COUNT..., run by the Python that it is there for."""

import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import uvicorn
from fastmcp import FastMCP
from fastmcp.resources import TextResource

from bench.documents import Sample, samples
from bench.uvicorn_options import PLAIN


def _app(owner: str, documents: tuple[Sample, ...]) -> Any:
    server = FastMCP(owner, version="1")
    for each in documents:
        server.add_resource(
            TextResource(
                uri=each.uri(owner),
                name=each.title,
                title=each.title,
                description=each.description,
                mime_type="text/markdown",
                text=each.body,
            )
        )
    return server.http_app(path=f"/{owner}/mcp", json_response=True, stateless_http=True)


class _Owners:
    """The applications of all owners, by path."""

    def __init__(self, apps: Mapping[str, Any]) -> None:
        self._apps = apps

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with AsyncExitStack() as stack:
                for app in self._apps.values():
                    await stack.enter_async_context(app.router.lifespan_context(app))
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await self._apps[scope["path"]](scope, receive, send)


if __name__ == "__main__":
    _, port, *pairs = sys.argv
    counts = {owner: int(count) for owner, count in (pair.split("=") for pair in pairs)}
    apps = {f"/{owner}/mcp": _app(owner, samples(count)) for owner, count in counts.items()}
    uvicorn.run(_Owners(apps), port=int(port), lifespan="on", **PLAIN)
