"""`POST /{owner}/refresh`: pull now (H3)."""

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from okf_mcp_gateway.owners import Owner
from okf_mcp_gateway.routes.rendering import read_query


def refresh_route(owners: Mapping[str, Owner]) -> Route:
    """Return the route that pulls, and answers when the pull has ended.

    502 says that the source is at fault, 503 that we are.
    """

    async def refresh(request: Request) -> Response:
        read_query(request, {})
        owner = owners.get(request.path_params["owner"])
        if owner is None:
            raise HTTPException(404, "unknown owner")
        fault = await owner.refresh()
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
