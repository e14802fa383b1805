"""How answers look: checked queries, JSON or YAML, a JSON sentence for an error (H6, H8)."""

import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from uuid import uuid4

import yaml
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from okf_mcp_gateway.scrub import Scrubber

_WIDTH: Final = 1_000_000
"""How long a line of YAML may be: a message stays on one."""

_ROUTER_SENTENCES: Final = {404: "there is nothing at this path", 405: "not by this method"}
"""In place of what the router says, which is HTTP's own phrase."""

log = logging.getLogger(__name__)


def read_query(request: Request, allowed: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the query parameters; 400 for one that is unknown, repeated or has another value.

    `allowed` names the values of each parameter, the default first.
    """
    chosen = {name: values[0] for name, values in allowed.items()}
    seen: set[str] = set()
    for name, value in request.query_params.multi_items():
        if name not in allowed:
            known = ", ".join(allowed) or "none"
            raise HTTPException(400, f"unknown query parameter {name!r}; known: {known}")
        if name in seen:
            raise HTTPException(400, f"the query parameter {name!r} stands twice")
        if value not in allowed[name]:
            values = ", ".join(allowed[name])
            raise HTTPException(400, f"{name} takes one of: {values}")
        seen.add(name)
        chosen[name] = value
    return chosen


def render(content: Mapping[str, Any], form: str) -> Response:
    """Return content as `json` or `yaml`, its keys in their order."""
    if form == "yaml":
        text: str = yaml.dump(  # pyright: ignore[reportUnknownMemberType] - a gap in the stubs
            content, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=_WIDTH
        )
        return Response(text, media_type="application/yaml")
    return JSONResponse(content)


def error_response(
    status: int, sentence: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error as every route of ours answers one (H8)."""
    return JSONResponse({"error": sentence}, status_code=status, headers=headers)


def error_responder(scrubber: Scrubber) -> Callable[[Request, Exception], Response]:
    """Return what makes the JSON body of an HTTP error that a route, or the router, raised."""

    def respond(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type only
        sentence = error.detail
        if sentence == HTTPStatus(error.status_code).phrase:
            sentence = _ROUTER_SENTENCES.get(error.status_code, sentence)
        return error_response(error.status_code, scrubber.scrub(sentence), error.headers)

    return respond


def crash_response(request: Request, _: Exception) -> Response:
    """Return what a caller learns of an error that nobody expected: an id to ask about.

    The server logs the traceback, right after this line.
    """
    request_id = uuid4().hex
    log.error(
        "Request crashed: id=%s method=%s path=%s", request_id, request.method, request.url.path
    )
    return error_response(500, f"internal error; request id {request_id}")
