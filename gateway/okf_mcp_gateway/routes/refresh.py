"""`POST /{owner}/refresh`: pull now (H3)."""

from collections.abc import Mapping
from typing import Final

from anyio import create_task_group
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from okf_mcp_gateway.owners import Owner
from okf_mcp_gateway.places import waiting
from okf_mcp_gateway.routes.rendering import read_query
from okf_mcp_gateway.state import PullFault

_NOBODY_WAITS: Final = PullFault("LoadError", "the caller has gone")


def refresh_route(owners: Mapping[str, Owner]) -> Route:
    """Return the route that pulls, and answers when the pull has ended.

    502 says that the source is at fault, 503 that we are.
    """

    async def refresh(request: Request) -> Response:
        read_query(request, {})
        owner = owners.get(request.path_params["owner"])
        if owner is None:
            raise HTTPException(404, "unknown owner")
        fault = await _refresh(owner, request)
        if fault is None:
            snapshot = owner.current()
            content = {
                "owner": owner.config.name,
                "ref": owner.config.ref,
                "commit": snapshot.commit,
                "docs_loaded": len(snapshot.documents),
            }
            return JSONResponse(content)
        served = owner.state.snapshot
        content = {
            "owner": owner.config.name,
            "served_commit": served.commit if served else None,
            "source_available": False,
            "error": fault.message,
        }
        return JSONResponse(content, status_code=502 if fault.type == "CloneError" else 503)

    return Route("/{owner}/refresh", refresh, methods=["POST"])


async def _refresh(owner: Owner, request: Request) -> PullFault | None:
    """Wait for the pull, but not for a caller that has gone."""
    fault: PullFault | None = _NOBODY_WAITS
    async with create_task_group() as tasks:

        async def end_with_the_caller() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(end_with_the_caller)
        with waiting(request.scope):
            fault = await owner.refresh()
        tasks.cancel_scope.cancel()
    return fault
