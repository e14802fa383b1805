"""What holds for every route of the application, whoever answers it."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from anyio import fail_after, to_thread
from httpx2 import Response
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Route

from okf_mcp_gateway.routes.refresh import refresh_route
from okf_mcp_gateway.routes.status import status_route
from okf_mcp_gateway.state import Clock
from support.git_http import GitHttpServerFactory
from support.in_process import (
    BEARER,
    NORTH_TOKEN,
    ManualClock,
    mcp_headers,
    mcp_message,
    running,
    servers,
    until,
)
from support.repositories import Repository

if TYPE_CHECKING:
    from okf_mcp_gateway.owners import Owner

pytestmark = pytest.mark.anyio

RoutesOf = Callable[[Clock], list[Route]]


@pytest.mark.row("P8")
async def test_git_is_gone_once_the_lifespan_has_ended(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    server.hang()
    registry = servers(acme=server.url_of(published))
    async with running(tmp_path / "gateway", registry) as gateway:
        await to_thread.run_sync(server.wait_for_requests, 1)
        home = gateway.cache / ".home"
        assert processes_at(home)

    async def is_gone() -> bool:
        return not processes_at(home)

    with fail_after(10):
        await until(is_gone)


def processes_at(home: Path) -> list[str]:
    """Return the processes whose `HOME` is this folder: the git ones of a gateway."""
    found: list[str] = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HOME={home}".encode() in environ.read_bytes().split(b"\0"):
                found.append(environ.parent.name)
        except OSError:
            continue  # It ended, or is another user's.
    return found


@pytest.mark.row("H1", "H8")
@pytest.mark.parametrize(
    ("method", "path", "error"),
    [
        ("GET", "/", "there is nothing at this path"),
        ("GET", "//", "there is nothing at this path"),
        ("GET", "/nope", "there is nothing at this path"),
        ("GET", "/nope/nope/nope", "there is nothing at this path"),
        ("GET", "/acme", "there is nothing at this path"),
        ("POST", "/acme/", "there is nothing at this path"),
        ("POST", "/acme/nope", "there is nothing at this path"),
        ("POST", "/acme/mcp/more", "there is nothing at this path"),
        ("POST", "//acme/mcp", "there is nothing at this path"),
        ("POST", "/acme//mcp", "there is nothing at this path"),
        ("GET", "/Status", "there is nothing at this path"),
        ("GET", "/%ff", "there is nothing at this path"),
        ("POST", "/ghost/mcp", "unknown owner"),
        ("POST", "/ghost/mcp/", "unknown owner"),
        ("GET", "/ghost/mcp", "unknown owner"),
        ("POST", "/ghost/refresh", "unknown owner"),
        ("POST", "/ACME/mcp", "unknown owner"),
        ("POST", "/Acme/refresh", "unknown owner"),
        ("POST", "/acme%20/mcp", "unknown owner"),
        ("POST", "/acme%00/mcp", "unknown owner"),
        ("POST", "/healthz/mcp", "unknown owner"),
        ("POST", "/%2e%2e/mcp", "unknown owner"),
    ],
)
async def test_what_is_not_there_is_404_with_a_json_error(
    method: str, path: str, error: str, tmp_path: Path
) -> None:
    async with running(tmp_path / "gateway", servers(acme="file:///nonexistent")) as gateway:
        answer = await gateway.client.request(method, path)
        assert (answer.status_code, answer.json()) == (404, {"error": error})
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.row("H1", "H2", "H8")
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/healthz", {"GET", "HEAD"}),
        ("POST", "/status", {"GET", "HEAD"}),
        ("DELETE", "/status", {"GET", "HEAD"}),
        ("OPTIONS", "/status", {"GET", "HEAD"}),
        ("PUT", "/config", {"GET", "HEAD"}),
        ("GET", "/acme/refresh", {"POST"}),
        ("PUT", "/ghost/refresh", {"POST"}),
        ("GET", "/acme/mcp", {"POST"}),
        ("DELETE", "/acme/mcp", {"POST"}),
        ("PUT", "/acme/mcp/", {"POST"}),
        ("OPTIONS", "/acme/mcp", {"POST"}),
        ("PATCH", "/acme/mcp", {"POST"}),
    ],
)
async def test_another_method_is_405_and_says_which_are_allowed(
    method: str, path: str, allowed: set[str], tmp_path: Path
) -> None:
    async with running(tmp_path / "gateway", servers(acme="file:///nonexistent")) as gateway:
        answer = await gateway.client.request(method, path)
        assert answer.status_code == 405
        assert set(answer.headers["allow"].split(", ")) == allowed
        assert list(answer.json()) == ["error"]
        assert isinstance(answer.json()["error"], str)


@pytest.mark.row("H2")
async def test_head_of_the_mcp_endpoint_is_405_too(tmp_path: Path) -> None:
    async with running(tmp_path / "gateway", servers(acme="file:///nonexistent")) as gateway:
        answer = await gateway.client.head("/acme/mcp")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.row("H2")
async def test_nothing_is_ever_redirected(published: Repository, tmp_path: Path) -> None:
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        for method, path, status in [
            ("POST", "/acme/mcp", 200),
            ("POST", "/acme/mcp/", 200),
            ("POST", "/acme/mcp//", 404),
            ("POST", "/acme/refresh/", 404),
            ("GET", "/status/", 404),
            ("GET", "/config/", 404),
            ("GET", "/healthz/", 404),
        ]:
            answer = await gateway.client.request(
                method, path, content=mcp_message("initialize"), headers=mcp_headers("initialize")
            )
            assert (path, answer.status_code) == (path, status)
            assert "location" not in answer.headers


@pytest.mark.row("H2")
async def test_a_percent_encoded_path_is_the_path_that_it_spells(
    published: Repository, tmp_path: Path
) -> None:
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        for path in ("/%61cme/mcp", "/acme/%6Dcp", "/acme/mcp%2F"):
            answer = await gateway.client.post(
                path, content=mcp_message("initialize"), headers=mcp_headers("initialize")
            )
            assert (path, answer.status_code) == (path, 200)


@pytest.mark.row("H2")
@pytest.mark.parametrize(
    "host", ["host.docker.internal:8080", "evil.example", "[::1]:1", "", "[", "a b", "x:y:z"]
)
async def test_any_host_works_on_every_route(
    host: str, published: Repository, tmp_path: Path
) -> None:
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        for method, path, status in [
            ("GET", "/healthz", 200),
            ("GET", "/status", 200),
            ("GET", "/config", 200),
            ("GET", "/nope", 404),
            ("GET", "/status/", 404),
            ("POST", "/acme/refresh", 200),
            ("POST", "/acme/mcp", 200),
        ]:
            headers = {"Host": host, **mcp_headers("initialize")}
            answer = await gateway.client.request(
                method, path, headers=headers, content=mcp_message("initialize")
            )
            assert (path, answer.status_code) == (path, status)


def broken_status(clock: Clock) -> list[Route]:
    return [status_route({"acme": cast("Owner", object())}, lambda _: {}, clock)]


def broken_refresh(_: Clock) -> list[Route]:
    return [refresh_route({"acme": cast("Owner", object())})]


@pytest.mark.row("H8")
@pytest.mark.parametrize(
    ("routes_of", "method", "path"),
    [(broken_status, "GET", "/status"), (broken_refresh, "POST", "/acme/refresh")],
    ids=["status", "refresh"],
)
@pytest.mark.parametrize("host", ["gateway.example", "["])
async def test_a_crash_says_only_a_request_id_that_the_log_knows(
    routes_of: RoutesOf,
    method: str,
    path: str,
    host: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def replace_routes(app: Starlette, clock: ManualClock) -> None:
        app.router.routes[:0] = routes_of(clock)

    async with running(
        tmp_path / "gateway",
        servers(acme="file:///nonexistent"),
        prepare=replace_routes,
        is_crash_expected=True,
    ) as gateway:
        answer = await gateway.client.request(method, path, headers={"Host": host, **BEARER})
        assert crashes(caplog) == [f"id={request_id_of(answer)} method={method} path={path}"]


@pytest.mark.row("H8")
async def test_so_does_a_crash_of_the_sdk(
    published: Repository,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def crash(*_: object) -> None:
        raise ZeroDivisionError

    registry = servers(acme=published.url)
    async with running(tmp_path / "gateway", registry, is_crash_expected=True) as gateway:
        await gateway.wait_for_state("acme", "serving")
        monkeypatch.setattr(StreamableHTTPSessionManager, "handle_request", crash)
        for method in ("resources/list", "completion/complete"):
            caplog.clear()
            answer = await gateway.mcp("acme", method)
            assert crashes(caplog) == [f"id={request_id_of(answer)} method=POST path=/acme/mcp"]


def request_id_of(answer: Response) -> str:
    """Return what the answer to a request that crashed says, which is no more than its id."""
    sentence, _, request_id = answer.json()["error"].rpartition(" ")
    assert (answer.status_code, list(answer.json())) == (500, ["error"])
    assert (sentence, len(request_id)) == ("internal error; request id", 32)
    assert int(request_id, 16)
    assert answer.headers["content-type"] == "application/json"
    return request_id


def crashes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged of requests that crashed."""
    errors = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    return [each.removeprefix("Request crashed: ") for each in errors]


@pytest.mark.row("G4")
async def test_an_answer_repeats_no_secret_whoever_put_it_where(
    published: Repository, tmp_path: Path
) -> None:
    south = "south-canary/token"
    registry = json.dumps(
        {
            "owners": {"acme": {"url": published.url}},
            "credentials": {
                "git.example.invalid": {"token_env": "OKF_GIT_TOKEN_X", "token_user": south}
            },
        }
    )
    environment = {"OKF_GIT_TOKEN_X": south}
    async with running(tmp_path / "gateway", registry, environment=environment) as gateway:
        answers = [
            await gateway.client.get("/status", params={secret: "1"})
            for secret in (south, NORTH_TOKEN)
        ]
        config = await gateway.client.get("/config")
    assert [answer.status_code for answer in answers] == [400, 400]
    assert config.json()["credentials"]["git.example.invalid"]["token_user"] == "***"
    for answer in (*answers, config):
        assert south not in answer.text
        assert NORTH_TOKEN not in answer.text


@pytest.mark.row("H5", "G4")
async def test_a_source_that_leads_to_another_owners_url_does_not_show_it(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    server.redirect("http://127.0.0.1:1/secret-team")
    registry = servers(
        acme=server.url_of(published), beta="http://127.0.0.1:1/secret-team/origin.git"
    )
    async with running(tmp_path / "gateway", registry) as gateway:
        await gateway.wait_for_state("acme", "failed")
        status = await gateway.client.get("/status")
    error = status.json()["owners"]["acme"]["last_pull_error"]
    assert "<url>" in error
    assert "secret-team" not in status.text
