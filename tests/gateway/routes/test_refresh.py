"""`POST /{owner}/refresh`: the answers; what a refresh does stands with the owner."""

from pathlib import Path

import pytest

from support.git_http import GitHttpServerFactory
from support.in_process import in_order, put_a_file_in_the_place_of, running, servers
from support.repositories import Repository

pytestmark = pytest.mark.anyio

GONE = "fatal: '<url>' does not appear to be a git repository"


@pytest.mark.row("H3")
async def test_a_refresh_answers_with_what_is_served_now(
    published: Repository, tmp_path: Path
) -> None:
    registry = servers(acme={"url": published.url, "ttl": 31_536_000})
    async with running(tmp_path / "gateway", registry) as gateway:
        for docs_loaded in (1, 2):
            answer = await gateway.refresh("acme")
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/json"
            assert in_order(answer.json()) == in_order(
                {
                    "owner": "acme",
                    "ref": "main",
                    "commit": published.head,
                    "docs_loaded": docs_loaded,
                }
            )
            published.document("b.md", id="b")
            published.publish()


@pytest.mark.row("H3")
async def test_with_the_source_down_it_is_502_and_mcp_keeps_serving(
    published: Repository, tmp_path: Path
) -> None:
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        await gateway.refresh("acme")
        published.take_away()
        answer = await gateway.refresh("acme")
        assert answer.status_code == 502
        assert in_order(answer.json()) == in_order(
            {
                "owner": "acme",
                "served_commit": published.head,
                "source_available": False,
                "error": GONE,
            }
        )
        listed = await gateway.mcp("acme", "resources/list")
        assert listed.status_code == 200
        assert [each["uri"] for each in listed.json()["result"]["resources"]] == [
            "knowledge://acme/note/a"
        ]


@pytest.mark.row("H3")
async def test_with_nothing_to_serve_it_is_502_without_a_commit(
    published: Repository, tmp_path: Path
) -> None:
    published.take_away()
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        answer = await gateway.refresh("acme")
        assert (answer.status_code, answer.json()) == (
            502,
            {"owner": "acme", "served_commit": None, "source_available": False, "error": GONE},
        )


@pytest.mark.row("H3", "H8")
async def test_a_fault_of_ours_is_503_with_the_same_keys(
    published: Repository, tmp_path: Path
) -> None:
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        await gateway.refresh("acme")
        before = published.head
        published.document("b.md", id="b")
        published.publish()
        put_a_file_in_the_place_of(gateway.cache)
        answer = await gateway.refresh("acme")
        assert answer.status_code == 503
        body = answer.json()
        error = body.pop("error")
        assert in_order(body) == in_order(
            {"owner": "acme", "served_commit": before, "source_available": False}
        )
        assert error
        assert str(tmp_path) not in error


@pytest.mark.row("H3", "H8")
async def test_an_unknown_owner_is_404(tmp_path: Path) -> None:
    async with running(tmp_path / "gateway", servers(acme="file:///nonexistent")) as gateway:
        for owner in ("ghost", "ACME"):
            answer = await gateway.refresh(owner)
            assert (answer.status_code, answer.json()) == (404, {"error": "unknown owner"})


@pytest.mark.row("H2", "H3")
async def test_a_get_is_405_and_pulls_nothing(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    async with running(tmp_path / "gateway", servers(acme=server.url_of(published))) as gateway:
        await gateway.refresh("acme")
        server.forget()
        answer = await gateway.get("/acme/refresh")
        assert (answer.status_code, answer.json()) == (405, {"error": "not by this method"})
        assert answer.headers["allow"] == "POST"
        assert server.requests == ()
