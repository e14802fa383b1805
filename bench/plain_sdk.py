"""The MCP SDK as it comes: its low-level server on the same documents, without any gateway."""

import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from typing import Any, Final

import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from starlette.types import Receive, Scope, Send

from bench.documents import Sample, samples
from bench.uvicorn_options import PLAIN

COMMIT: Final = "0" * 40
"""Stands where ours names the commit, so that answers have one length."""


class PlainSdk:
    """The SDK's own application for each owner: stateless, plain JSON, no token, any `Host`."""

    def __init__(self, owners: Mapping[str, Sequence[Sample]]) -> None:
        self._apps = {
            path: _server(owner, documents).streamable_http_app(
                streamable_http_path=path,
                json_response=True,
                stateless_http=True,
                host="0.0.0.0",  # noqa: S104 - the SDK's way to say: no check of `Host`
            )
            for owner, documents in owners.items()
            for path in [f"/{owner}/mcp"]
        }

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Let it answer while the block runs."""
        async with AsyncExitStack() as stack:
            for app in self._apps.values():
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request to the owner's application; run while the server does."""
        if scope["type"] == "lifespan":
            await receive()
            async with self.running():
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await self._apps[scope["path"]](scope, receive, send)


def _server(owner: str, documents: Sequence[Sample]) -> Server[Any]:
    by_uri = {each.uri(owner): each for each in documents}
    hashes = {uri: _hash(each) for uri, each in by_uri.items()}

    async def on_read_resource(
        _: ServerRequestContext[Any, Any], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        contents = types.TextResourceContents(
            uri=params.uri,
            mime_type="text/markdown",
            text=by_uri[params.uri].body,
            _meta={"content_hash": hashes[params.uri]},
        )
        return types.ReadResourceResult(contents=[contents], _meta={"served_commit": COMMIT})

    async def on_list_resources(
        _: ServerRequestContext[Any, Any], __: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        resources = [
            types.Resource(
                uri=uri,
                name=each.title,
                title=each.title,
                description=each.description,
                mime_type="text/markdown",
                size=len(each.body),
                _meta={"content_hash": hashes[uri]},
            )
            for uri, each in by_uri.items()
        ]
        return types.ListResourcesResult(resources=resources, _meta={"served_commit": COMMIT})

    return Server(
        owner,
        version="1",
        on_read_resource=on_read_resource,
        on_list_resources=on_list_resources,
    )


def _hash(document: Sample) -> str:
    return f"sha256:{sha256(document.body.encode()).hexdigest()}"


if __name__ == "__main__":
    _, port, *pairs = sys.argv
    counts = {owner: int(count) for owner, count in (pair.split("=") for pair in pairs)}
    app = PlainSdk({owner: samples(count) for owner, count in counts.items()})
    uvicorn.run(app, port=int(port), lifespan="on", **PLAIN)
