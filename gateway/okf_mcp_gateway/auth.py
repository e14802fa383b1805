"""Who may ask: the north token, and the origins that a browser may ask from (H1, H2)."""

import hmac
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from okf_mcp_gateway.routes.rendering import error_response
from okf_mcp_gateway.scrub import Secret

PROBED_PREFIX: Final = "/.well-known/"
"""Clients probe it without a token, and start OAuth flows unless it is a plain 404."""

_ALLOWED_HEADERS: Final = (
    "authorization",
    "content-type",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
)
"""What clients send, those of earlier versions too; no session or event id means anything here."""


class BearerAuth:
    """Lets a request pass that carries the north token; all others are 401, before any routing.

    So nobody without the token can tell which owners exist.
    """

    def __init__(self, app: ASGIApp, token: Secret) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or hand the request on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["path"].startswith(PROBED_PREFIX):
            await error_response(404, "not found")(scope, receive, send)
        elif is_health(scope) or self._holds_token(scope):
            await self._app(scope, receive, send)
        else:
            sentence = "a valid token is required: Authorization: Bearer <token>"
            response = error_response(401, sentence, {"WWW-Authenticate": "Bearer"})
            await response(scope, receive, send)

    def _holds_token(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and bears_token(given[0], self._token)


class AllowedOrigins:
    """Answers browsers: CORS for an allowed `Origin`, its preflight without a token."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._cors = _Cors(
            app,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=_ALLOWED_HEADERS,
            expose_headers=["retry-after", "www-authenticate"],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, and add to the answer what the browser needs."""
        app = self._cors if _origin(scope) in self._origins else self._app
        await app(scope, receive, send)


class _Cors(CORSMiddleware):
    """Starlette's, whose refusal of a preflight is plain text."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code == HTTPStatus.OK:
            return response
        headers = {name: value for name, value in response.headers.items() if name[:7] != "content"}
        return error_response(response.status_code, bytes(response.body).decode(), headers)


class OriginGuard:
    """Answers 403 to an `Origin` that is not allowed: the specification's rule for MCP over HTTP.

    It stands behind the token, so that a stranger gets 401 whatever the origin.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403, or hand the request on."""
        origin = _origin(scope)
        if origin is None or origin in self._origins or is_health(scope):
            await self._app(scope, receive, send)
        else:
            sentence = "this origin is not allowed: see OKF_GATEWAY_ALLOWED_ORIGINS"
            await error_response(403, sentence)(scope, receive, send)


def bears_token(authorization: bytes, token: Secret) -> bool:
    """Whether a header's value bears the north token, compared in constant time (H1)."""
    expected = token.reveal()
    if expected is None:
        return False
    scheme, _, credential = authorization.partition(b" ")
    matches = hmac.compare_digest(credential.strip(), expected.encode())
    return matches and scheme.lower() == b"bearer"


def is_health(scope: Scope) -> bool:
    """Whether this is the request that everybody may send (H1)."""
    return scope["path"] == "/healthz" and scope.get("method") in {"GET", "HEAD"}


def _origin(scope: Scope) -> str | None:
    """Return the `Origin` of a request; two of them are one that nobody allowed."""
    if scope["type"] != "http":
        return None
    origins = [value for name, value in scope["headers"] if name == b"origin"]
    return b", ".join(origins).decode("latin-1") if origins else None
