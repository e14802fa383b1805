"""Queries are checked, and errors are JSON."""

from pathlib import Path

import pytest

from support.in_process import NORTH_TOKEN, running, servers

pytestmark = pytest.mark.anyio

STATUS_KNOWS = "format, artifacts, diagnostics"


@pytest.mark.row("H6", "H7", "H8", "H9")
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/config?format=xml", "format takes one of: json, yaml"),
        ("/config?format=", "format takes one of: json, yaml"),
        ("/config?format", "format takes one of: json, yaml"),
        ("/config?format=JSON", "format takes one of: json, yaml"),
        ("/config?format=yaml%20", "format takes one of: json, yaml"),
        ("/config?format=json;x", "format takes one of: json, yaml"),
        ("/config?format=json&format=json", "the query parameter 'format' stands twice"),
        ("/config?artifacts=true", "unknown query parameter 'artifacts'; known: format"),
        ("/config?Format=json", "unknown query parameter 'Format'; known: format"),
        ("/config?x", "unknown query parameter 'x'; known: format"),
        ("/config?=", "unknown query parameter ''; known: format"),
        ("/status?format=xml", "format takes one of: json, yaml"),
        ("/status?artifacts=1", "artifacts takes one of: false, true"),
        ("/status?artifacts=TRUE", "artifacts takes one of: false, true"),
        ("/status?artifacts=yes", "artifacts takes one of: false, true"),
        ("/status?artifacts=", "artifacts takes one of: false, true"),
        ("/status?artifacts=true&artifacts=true", "the query parameter 'artifacts' stands twice"),
        ("/status?artifacts=true&artifacts=1", "the query parameter 'artifacts' stands twice"),
        ("/status?diagnostics=1", "diagnostics takes one of: false, true"),
        ("/status?diagnostics=True", "diagnostics takes one of: false, true"),
        ("/status?artefacts=true", f"unknown query parameter 'artefacts'; known: {STATUS_KNOWS}"),
        ("/status?format=yaml&x=1", f"unknown query parameter 'x'; known: {STATUS_KNOWS}"),
        ("/status?%ff=1", f"unknown query parameter '\ufffd'; known: {STATUS_KNOWS}"),
        ("/status?%00=1", f"unknown query parameter '\\x00'; known: {STATUS_KNOWS}"),
    ],
)
async def test_a_query_with_a_fault_is_400_with_a_json_sentence(
    path: str, error: str, tmp_path: Path
) -> None:
    async with running(tmp_path / "gateway", servers(acme="file:///nonexistent")) as gateway:
        answer = await gateway.get(path)
        assert (answer.status_code, answer.json()) == (400, {"error": error})
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.row("H6", "H3")
async def test_refresh_takes_no_query_and_pulls_nothing_when_it_gets_one(tmp_path: Path) -> None:
    async with running(tmp_path / "gateway", servers(acme="file:///nonexistent")) as gateway:
        await gateway.wait_for_state("acme", "failed")
        before = await gateway.row("acme")
        answer = await gateway.client.post("/acme/refresh?force=true")
        error = {"error": "unknown query parameter 'force'; known: none"}
        assert (answer.status_code, answer.json()) == (400, error)
        assert await gateway.row("acme") == before


@pytest.mark.row("H8")
async def test_a_value_that_was_refused_is_not_repeated(tmp_path: Path) -> None:
    async with running(tmp_path / "gateway", servers(acme="file:///nonexistent")) as gateway:
        for name in ("format", "artifacts", "token"):
            answer = await gateway.get(f"/status?{name}={NORTH_TOKEN}")
            assert answer.status_code == 400
            assert NORTH_TOKEN not in answer.text


@pytest.mark.row("H6")
async def test_an_empty_query_is_no_query(tmp_path: Path) -> None:
    async with running(tmp_path / "gateway", servers(acme="file:///nonexistent")) as gateway:
        for path in ("/config?", "/status?", "/status?&"):
            assert (await gateway.get(path)).status_code == 200


@pytest.mark.row("H6")
async def test_head_of_the_formats_is_answered_as_get_is(tmp_path: Path) -> None:
    async with running(tmp_path / "gateway", servers(acme="file:///nonexistent")) as gateway:
        for path in ("/config", "/status", "/config?format=yaml"):
            answer = await gateway.client.head(path)
            whole = await gateway.get(path)
            assert (answer.status_code, answer.headers["content-type"], answer.content) == (
                200,
                whole.headers["content-type"],
                b"",
            )
