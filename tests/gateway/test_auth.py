"""The north token, and the origins that a browser may ask from."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio import fail_after
from starlette.types import Message, Receive, Scope, Send

from okf_mcp_gateway.auth import BearerAuth
from okf_mcp_gateway.scrub import REREAD_SECONDS, Secret
from support.git_http import GitHttpServer, GitHttpServerFactory
from support.in_process import (
    BEARER,
    NORTH_TOKEN,
    InProcess,
    mcp_headers,
    mcp_message,
    routes_of,
    running,
    servers,
    until,
)
from support.repositories import Repository

pytestmark = pytest.mark.anyio

ALLOWED = "https://app.example"
STRANGE = "https://strange.example"
UNAUTHORIZED = {"error": "a valid token is required: Authorization: Bearer <token>"}
FORBIDDEN = {"error": "this origin is not allowed: see OKF_GATEWAY_ALLOWED_ORIGINS"}
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

Headers = Sequence[tuple[bytes, bytes]]


@pytest.fixture
def server(repository: Repository, git_http_server: GitHttpServerFactory) -> GitHttpServer:
    """A git host with a repository of one document."""
    repository.document("a.md", id="a")
    repository.publish()
    return git_http_server()


@asynccontextmanager
async def gateway(
    folder: Path, url: str = "file:///nonexistent", *, token: str = NORTH_TOKEN, **more: str
) -> AsyncGenerator[InProcess]:
    """Run a gateway whose client sends no token by itself."""
    environment = {"OKF_GATEWAY_TOKEN": token, "OKF_GATEWAY_ALLOWED_ORIGINS": ALLOWED, **more}
    async with running(folder / "gateway", servers(acme=url), environment=environment) as gateway:
        del gateway.client.headers["Authorization"]
        yield gateway


async def answers(gateway: InProcess, *headers: tuple[bytes, bytes]) -> int:
    """Return the status of `/config`, asked with these very bytes."""
    return (await gateway.client.get("/config", headers=list(headers))).status_code


async def until_answered(status: int, gateway: InProcess, given: bytes) -> None:
    """Wait until `/config` is answered so: the file of a token is not looked at all the time."""

    async def is_so() -> bool:
        return await answers(gateway, (b"authorization", given)) == status

    with fail_after(REREAD_SECONDS + 10):
        await until(is_so)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.row("H1")
async def test_health_needs_no_token_and_has_no_body_for_head(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running_gateway:
        for method, text in (("GET", "ok"), ("HEAD", "")):
            answer = await running_gateway.client.request(method, "/healthz")
            assert (answer.status_code, answer.text) == (200, text)
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert answer.headers["content-length"] == "2"


@pytest.mark.row("H1", "H8")
async def test_without_the_token_everything_else_is_401_before_it_is_routed(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path) as running_gateway:
        paths = [
            *(path for path in routes_of(running_gateway.app) if path != "/healthz"),
            *("/ghost/mcp", "/ghost/refresh", "/nope", "/", "//", "/acme", "/healthz/"),
            *("/status?nonsense=1", "/config?format=xml", "/.well-known", "/acme/.well-known/x"),
        ]
        assert "/acme/mcp/" in paths
        asked = [(method, path) for path in paths for method in METHODS]
        asked += [(method, "/healthz") for method in METHODS if method != "GET"]
        for method, path in asked:
            answer = await running_gateway.client.request(method, path)
            assert (method, path, answer.status_code) == (method, path, 401)
            assert answer.json() == UNAUTHORIZED
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["content-type"] == "application/json"


@pytest.mark.row("H1")
async def test_an_anonymous_caller_cannot_tell_which_owners_exist(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running_gateway:
        for method in [*METHODS, "HEAD"]:
            for path in ("mcp", "mcp/", "refresh"):
                known, unknown = [
                    await running_gateway.client.request(method, f"/{owner}/{path}")
                    for owner in ("acme", "ghost")
                ]
                assert known.content == unknown.content
                assert known.headers.raw == unknown.headers.raw


@pytest.mark.row("H1")
async def test_an_anonymous_refresh_pulls_nothing(
    server: GitHttpServer, repository: Repository, tmp_path: Path
) -> None:
    async with gateway(tmp_path, server.url_of(repository)) as running_gateway:
        answer = await running_gateway.client.post("/acme/refresh", headers=BEARER)
        assert answer.status_code == 200
        started = running_gateway.git.started_processes
        answer = await running_gateway.client.post("/acme/refresh")
        assert answer.status_code == 401
        answer = await running_gateway.client.get("/status", headers=BEARER)
        assert answer.json()["owners"]["acme"]["state"] == "serving"
        assert running_gateway.git.started_processes == started


@pytest.mark.row("H1")
@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer TOKEN")],
        [(b"AUTHORIZATION", b"bearer TOKEN")],
        [(b"authorization", b"BEARER TOKEN")],
        [(b"authorization", b"bEaReR    TOKEN")],
        [(b"authorization", b"Bearer TOKEN  ")],
    ],
    ids=["plain", "lower", "upper", "blanks before", "blanks after"],
)
async def test_the_token_is_taken_with_the_scheme_in_any_case_and_more_blanks(
    headers: Headers, tmp_path: Path
) -> None:
    sent = [(name, value.replace(b"TOKEN", NORTH_TOKEN.encode())) for name, value in headers]
    async with gateway(tmp_path) as running_gateway:
        assert await answers(running_gateway, *sent) == 200


@pytest.mark.row("H1")
@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", b"Bearer TOKENx")],
        [(b"authorization", b"Bearer xTOKEN")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"")],
        [(b"authorization", b"TOKEN")],
        [(b"authorization", b"BearerTOKEN")],
        [(b"authorization", b"Basic TOKEN")],
        [(b"authorization", b"Token TOKEN")],
        [(b"authorization", b"Bearer TOKEN TOKEN")],
        [(b"authorization", b"Bearer TOKEN, Bearer TOKEN")],
        [(b"authorization", b"Bearer \xe9\xff")],
        [(b"authorization", b"\xff\xfe \x80")],
        [(b"authorization", b"Bearer TOKEN"), (b"authorization", b"Bearer TOKEN")],
        [(b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer TOKEN")],
        [(b"x-authorization", b"Bearer TOKEN")],
        [(b"cookie", b"token=TOKEN")],
    ],
)
async def test_anything_but_the_token_is_401(headers: Headers, tmp_path: Path) -> None:
    sent = [(name, value.replace(b"TOKEN", NORTH_TOKEN.encode())) for name, value in headers]
    async with gateway(tmp_path) as running_gateway:
        assert await answers(running_gateway, *sent) == 401


@pytest.mark.row("H1")
async def test_a_token_in_the_query_is_no_token(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running_gateway:
        for name in ("token", "access_token", "authorization"):
            answer = await running_gateway.client.get(f"/config?{name}={NORTH_TOKEN}")
            assert answer.status_code == 401


@pytest.mark.row("H1")
async def test_a_token_that_is_not_ascii_is_compared_as_its_utf8_bytes(tmp_path: Path) -> None:
    async with gateway(tmp_path, token="schlüssel-ключ") as running_gateway:
        given = (b"authorization", "Bearer schlüssel-ключ".encode())
        assert await answers(running_gateway, given) == 200
        given = (b"authorization", b"Bearer schl\xfcssel")
        assert await answers(running_gateway, given) == 401


@pytest.mark.row("G1", "H1")
async def test_a_token_from_a_file_is_rotated_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old-token\n")
    async with gateway(tmp_path, token="", OKF_GATEWAY_TOKEN_FILE=str(file)) as running_gateway:
        assert await answers(running_gateway, (b"authorization", b"Bearer old-token")) == 200
        file.write_text("new-token\n")
        await until_answered(200, running_gateway, b"Bearer new-token")
        assert await answers(running_gateway, (b"authorization", b"Bearer old-token")) == 401


@pytest.mark.row("G1", "H1")
async def test_nobody_gets_in_while_the_file_of_the_token_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old-token\n")
    async with gateway(tmp_path, token="", OKF_GATEWAY_TOKEN_FILE=str(file)) as running_gateway:
        assert await answers(running_gateway, (b"authorization", b"Bearer old-token")) == 200
        Path.unlink(file)
        await until_answered(401, running_gateway, b"Bearer old-token")
        for given in (b"Bearer ", b"Bearer None", b"Bearer old-token"):
            assert await answers(running_gateway, (b"authorization", given)) == 401


@pytest.mark.row("H1", "H8")
@pytest.mark.parametrize("token", [None, NORTH_TOKEN, "wrong"])
async def test_well_known_paths_are_404_for_everyone(token: str | None, tmp_path: Path) -> None:
    headers = bearer(token) if token else {}
    async with gateway(tmp_path) as running_gateway:
        for path in (
            "/.well-known/oauth-protected-resource",
            "/.well-known/oauth-protected-resource/acme/mcp",
            "/.well-known/oauth-authorization-server",
            "/.well-known/openid-configuration?x=1",
            "/.well-known/",
            "/%2ewell-known/x",
        ):
            for method in METHODS:
                answer = await running_gateway.client.request(method, path, headers=headers)
                assert (answer.status_code, answer.json()) == (404, {"error": "not found"})
                assert answer.headers["content-type"] == "application/json"
                assert "www-authenticate" not in answer.headers


@pytest.mark.row("H1", "H2")
@pytest.mark.parametrize(
    "origin",
    [
        *(STRANGE, "null", "", "*", "https://app.example:8443", "http://app.example"),
        *("https://app.example.evil.example", "https://evil.example#https://app.example"),
        *("https://app.example/", "HTTPS://APP.EXAMPLE", "https://app.example, https://x.example"),
    ],
)
async def test_an_origin_that_is_not_allowed_is_403_and_gets_no_cors(
    origin: str, tmp_path: Path
) -> None:
    async with gateway(tmp_path) as running_gateway:
        for method, path in [
            *(("GET", "/status"), ("GET", "/config"), ("POST", "/acme/refresh")),
            *(("POST", "/acme/mcp"), ("POST", "/ghost/mcp"), ("GET", "/nope")),
        ]:
            headers = {"Origin": origin, **BEARER}
            answer = await running_gateway.client.request(method, path, headers=headers)
            assert (answer.status_code, answer.json()) == (403, FORBIDDEN)
            assert "access-control-allow-origin" not in answer.headers


@pytest.mark.row("H1", "H2")
async def test_a_stranger_gets_401_whatever_the_origin(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running_gateway:
        for origin in (STRANGE, ALLOWED, "null"):
            answer = await running_gateway.client.get("/status", headers={"Origin": origin})
            assert (answer.status_code, answer.json()) == (401, UNAUTHORIZED)


@pytest.mark.row("H1")
async def test_health_is_open_to_every_origin(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running_gateway:
        answer = await running_gateway.client.get("/healthz", headers={"Origin": STRANGE})
        assert (answer.status_code, answer.text) == (200, "ok")


@pytest.mark.row("H2")
async def test_without_configured_origins_every_origin_is_403_and_none_is_needed(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, OKF_GATEWAY_ALLOWED_ORIGINS="") as running_gateway:
        answer = await running_gateway.client.get("/status", headers={"Origin": ALLOWED, **BEARER})
        assert (answer.status_code, answer.json()) == (403, FORBIDDEN)
        answer = await running_gateway.client.get("/status", headers=BEARER)
        assert answer.status_code == 200
        assert "vary" not in answer.headers


@pytest.mark.row("H2")
async def test_an_allowed_origin_gets_cors_on_every_status(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running_gateway:
        await running_gateway.client.post("/acme/refresh", headers=BEARER)
        listing = mcp_message("resources/list")
        for status, method, path, headers, content in [
            (200, "GET", "/healthz", {}, b""),
            (200, "GET", "/status", BEARER, b""),
            (400, "GET", "/status?x=1", BEARER, b""),
            (401, "GET", "/status", {}, b""),
            (404, "GET", "/nope", BEARER, b""),
            (404, "GET", "/.well-known/x", {}, b""),
            (405, "GET", "/acme/mcp", BEARER, b""),
            (502, "POST", "/acme/refresh", BEARER, b""),
            (503, "POST", "/acme/mcp", {**mcp_headers("resources/list"), **BEARER}, listing),
        ]:
            answer = await running_gateway.client.request(
                method, path, headers={"Origin": ALLOWED, **headers}, content=content
            )
            cors = {
                name: answer.headers[name]
                for name in answer.headers
                if name.startswith("access-control") or name == "vary"
            }
            assert (answer.status_code, cors) == (
                status,
                {
                    "access-control-allow-origin": ALLOWED,
                    "access-control-expose-headers": "retry-after, www-authenticate",
                    "vary": "Origin",
                },
            )


def preflight(
    origin: str = ALLOWED, method: str = "POST", headers: str = "authorization"
) -> dict[str, str]:
    """Return what a browser sends ahead of a request."""
    return {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": headers,
    }


@pytest.mark.row("H2")
async def test_the_preflight_of_an_allowed_origin_needs_no_token_and_tells_no_owner(
    tmp_path: Path,
) -> None:
    needed = "accept, authorization, content-type, mcp-method, mcp-name, mcp-protocol-version"
    async with gateway(tmp_path) as running_gateway:
        known, unknown = [
            await running_gateway.client.options(path, headers=preflight(headers=needed))
            for path in ("/acme/mcp", "/ghost/mcp")
        ]
        assert known.status_code == 200
        assert known.headers["access-control-allow-origin"] == ALLOWED
        assert known.headers["access-control-allow-methods"] == "GET, POST"
        allowed = known.headers["access-control-allow-headers"].lower().split(", ")
        assert set(needed.split(", ")) <= set(allowed)
        assert "access-control-allow-credentials" not in known.headers
        assert (known.content, known.headers.raw) == (unknown.content, unknown.headers.raw)


@pytest.mark.row("H2", "H1")
async def test_the_preflight_of_another_origin_is_401_and_tells_no_owner(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running_gateway:
        for origin in (STRANGE, "null"):
            known, unknown = [
                await running_gateway.client.options(path, headers=preflight(origin))
                for path in ("/acme/mcp", "/ghost/mcp")
            ]
            assert (known.status_code, known.json()) == (401, UNAUTHORIZED)
            assert "access-control-allow-origin" not in known.headers
            assert (known.content, known.headers.raw) == (unknown.content, unknown.headers.raw)
            with_token = await running_gateway.client.options(
                "/acme/mcp", headers={**preflight(origin), **BEARER}
            )
            assert (with_token.status_code, with_token.json()) == (403, FORBIDDEN)


@pytest.mark.row("H2", "H8")
@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        (preflight(method="DELETE"), "Disallowed CORS method"),
        (preflight(headers="x-strange"), "Disallowed CORS headers"),
    ],
    ids=["method", "header"],
)
async def test_a_preflight_for_what_is_not_offered_is_400_with_a_json_error(
    headers: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    async with gateway(tmp_path) as running_gateway:
        answer = await running_gateway.client.options("/acme/mcp", headers=headers)
        assert (answer.status_code, answer.json()) == (400, {"error": sentence})
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["access-control-allow-origin"] == ALLOWED


@pytest.mark.row("H2")
async def test_origins_are_compared_whatever_the_case_they_are_configured_in(
    tmp_path: Path,
) -> None:
    configured = "HTTPS://App.Example, http://localhost:3000"
    async with gateway(tmp_path, OKF_GATEWAY_ALLOWED_ORIGINS=configured) as running_gateway:
        for origin in (ALLOWED, "http://localhost:3000"):
            headers = {"Origin": origin, **BEARER}
            answer = await running_gateway.client.get("/status", headers=headers)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == origin


@pytest.mark.row("H1")
async def test_a_scope_of_another_kind_needs_the_token_too() -> None:
    sent: list[Message] = []

    async def app(*_: Scope | Receive | Send) -> None:
        raise AssertionError("a stranger got through")

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "websocket",
        "path": "/acme/mcp",
        "headers": [],
        "extensions": {"websocket.http.response": {}},
    }
    await BearerAuth(app, Secret("a-token"))(scope, receive, send)
    assert (sent[0]["type"], sent[0]["status"]) == ("websocket.http.response.start", 401)
