"""`GET /healthz`: the process answers. It says nothing of any owner."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route


def health_route() -> Route:
    """Return the route that answers `ok`."""

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok")

    return Route("/healthz", health)
