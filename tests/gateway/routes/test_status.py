"""`GET /status`: what each owner serves, in every state that one can be in."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest
import yaml
from anyio import create_task_group, to_thread

from support.git_http import GitHttpServer, GitHttpServerFactory
from support.in_process import (
    NEVER_SECONDS,
    NOON,
    NORTH_TOKEN,
    InProcess,
    in_order,
    put_a_file_in_the_place_of,
    running,
    servers,
    until,
)
from support.repositories import Repository, RepositoryFactory

pytestmark = pytest.mark.anyio

AT_NOON = "2026-07-17T12:00:00Z"
MISSING = "file:///nonexistent/origin.git"
MISSING_MESSAGE = "fatal: '<url>' does not appear to be a git repository"
HASH_OF_ONE = "sha256:846425ffffc161dcb5f3538e86e1225a02178cb2088661694a4a7fe2971ca81b"


@pytest.fixture
def published(repository: Repository) -> Repository:
    """A repository of two documents and two files that are none, pushed."""
    repository.document("b/z.md", id="Z 1", type="Runbook", title="Zwölf \U0001f600", body="Öne")
    repository.document("a.md", type="Architecture Decision", body="# Head\n\nFirst.\n\nMore.\n")
    repository.write("broken.md", "---\nexport: true\ntype: [\n---\nx\n")
    repository.write("notes.md", "# Not exported\n")
    repository.publish()
    return repository


@pytest.fixture
def server(git_http_server: GitHttpServerFactory) -> GitHttpServer:
    return git_http_server()


def serving(commit: str, **changes: object) -> dict[str, Any]:
    """Return the row of an owner that serves `published`, pulled at noon."""
    row: dict[str, Any] = {
        "state": "serving",
        "ref": "main",
        "served_commit": commit,
        "source_available": True,
        "stale": False,
        "freshness": "fresh",
        "docs_loaded": 2,
        "last_pulled_at": AT_NOON,
        "last_pulled_age_seconds": 0,
        "last_pull_attempt_at": AT_NOON,
        "last_pull_error": None,
    }
    assert changes.keys() <= row.keys()
    return {**row, **changes}


LOADING: dict[str, Any] = {
    "state": "loading",
    "ref": "main",
    "served_commit": None,
    "source_available": True,
    "stale": False,
    "freshness": "unknown",
    "docs_loaded": 0,
    "last_pulled_at": None,
    "last_pulled_age_seconds": None,
    "last_pull_attempt_at": None,
    "last_pull_error": None,
}
FAILED: dict[str, Any] = {
    "state": "failed",
    "ref": "main",
    "served_commit": None,
    "source_available": False,
    "stale": False,
    "freshness": "unknown",
    "docs_loaded": 0,
    "last_pulled_at": None,
    "last_pulled_age_seconds": None,
    "last_pull_attempt_at": AT_NOON,
    "last_pull_error": MISSING_MESSAGE,
}
ERROR = {"type": "CloneError", "message": MISSING_MESSAGE}
ARTIFACTS = [
    {
        "uri": "knowledge://acme/architecture-decision/a",
        "id": "a",
        "type": "Architecture Decision",
        "title": "a",
        "summary": "First.",
        "path": "a.md",
        "size": 21,
        "content_hash": ("sha256:3725554307135c0f807f14685aa1f4c85838a2a73d7428f39fb60060a5272333"),
    },
    {
        "uri": "knowledge://acme/runbook/Z%201",
        "id": "Z 1",
        "type": "Runbook",
        "title": "Zwölf \U0001f600",
        "summary": "Öne",
        "path": "b/z.md",
        "size": 3,
        "content_hash": HASH_OF_ONE,
    },
]


async def summary(gateway: InProcess) -> tuple[dict[str, int], dict[str, Any]]:
    status = await gateway.status()
    assert list(status) == ["summary", "owners"]
    return status["summary"], status["owners"]


@pytest.mark.row("H5", "S1", "S2")
async def test_every_state_has_exactly_these_keys_in_this_order(
    published: Repository, server: GitHttpServer, tmp_path: Path
) -> None:
    server.hang()
    registry = servers(zulu=MISSING, acme=published.url, slow=server.url_of(published))
    async with running(tmp_path / "gateway", registry) as gateway:
        await gateway.wait_for_state("acme", "serving")
        await gateway.wait_for_state("zulu", "failed")
        assert in_order(await gateway.status()) == in_order(
            {
                "summary": {"total": 3, "serving": 1, "loading": 1, "failed": 1},
                "owners": {
                    "zulu": {**FAILED, "error": ERROR},
                    "acme": serving(published.head),
                    "slow": LOADING,
                },
            }
        )


@pytest.mark.row("H5", "H7", "H9", "S1")
async def test_artifacts_come_before_the_error_and_diagnostics_after_all_else(
    published: Repository, server: GitHttpServer, tmp_path: Path
) -> None:
    server.hang()
    registry = servers(zulu=MISSING, acme=published.url, slow=server.url_of(published))
    async with running(tmp_path / "gateway", registry) as gateway:
        await gateway.wait_for_state("acme", "serving")
        await gateway.wait_for_state("zulu", "failed")
        shown = (await gateway.status("artifacts=true&diagnostics=true"))["owners"]
        next_attempt_at = shown["zulu"]["diagnostics"]["next_attempt_at"]
        item = shown["acme"]["diagnostics"]["items"][0]
        nothing: dict[str, Any] = {
            "items": [],
            "error_class": None,
            "next_attempt_at": None,
            "failing_since": None,
            "parsed_files": None,
            "answer_cache": {"hits": 0, "misses": 0, "passed_on": 0},
        }
        assert in_order(shown) == in_order(
            {
                "zulu": {
                    **FAILED,
                    "artifacts": [],
                    "error": ERROR,
                    "diagnostics": {
                        **nothing,
                        "error_class": "not_found",
                        "next_attempt_at": next_attempt_at,
                        "failing_since": AT_NOON,
                    },
                },
                "acme": {
                    **serving(published.head),
                    "artifacts": ARTIFACTS,
                    "diagnostics": {**nothing, "items": [item], "parsed_files": 4},
                },
                "slow": {**LOADING, "artifacts": [], "diagnostics": nothing},
            }
        )
        assert list(item) == ["path", "line", "rule", "severity", "message"]
        assert (item["path"], item["rule"], item["severity"]) == (
            "broken.md",
            "unreadable",
            "warning",
        )
        assert isinstance(item["line"], int)


@pytest.mark.row("H6", "H7", "H9")
async def test_yaml_has_the_same_structure_in_the_same_order(
    published: Repository, tmp_path: Path
) -> None:
    registry = servers(zulu=MISSING, acme=published.url)
    async with running(tmp_path / "gateway", registry) as gateway:
        await gateway.refresh("acme")
        for query in ("", "artifacts=true&", "artifacts=true&diagnostics=true&"):

            async def is_the_same(query: str = query) -> bool:
                # The failed owner retries by itself, so that two answers may differ in a time.
                before = await gateway.get(f"/status?{query}format=json")
                answer = await gateway.get(f"/status?{query}format=yaml")
                after = await gateway.get(f"/status?{query}")
                assert answer.headers["content-type"] == "application/yaml"
                if before.content != after.content:
                    return False
                assert in_order(yaml.safe_load(answer.text)) == in_order(before.json())
                return True

            await until(is_the_same)


@pytest.mark.row("H7")
async def test_every_text_survives_yaml(repository: Repository, tmp_path: Path) -> None:
    texts = [
        "\U0001f600 \u00e9",
        "\u2028\u0085\ufeff",
        "a: b # c",
        "2026-07-17",
        "1.10",
        "~",
        "yes",
    ]
    for number, text in enumerate(texts):
        repository.document(f"{number}.md", title=f"x{text}x", body=text * 60, fields={"id": text})
    repository.publish()
    async with running(tmp_path / "gateway", servers(acme=repository.url)) as gateway:
        await gateway.refresh("acme")
        query = "/status?artifacts=true&diagnostics=true&format="
        parsed = yaml.safe_load((await gateway.get(f"{query}yaml")).text)
        assert parsed == (await gateway.get(f"{query}json")).json()
        assert len(parsed["owners"]["acme"]["artifacts"]) == len(texts)


@pytest.mark.row("H7", "H9")
async def test_false_is_as_absent(published: Repository, tmp_path: Path) -> None:
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        await gateway.refresh("acme")
        assert await gateway.status("artifacts=false&diagnostics=false") == await gateway.status()


@pytest.mark.row("H7")
async def test_artifacts_are_an_empty_list_where_there_are_no_documents(
    repository: Repository, tmp_path: Path
) -> None:
    repository.write("notes.md", "# Nothing exported\n")
    repository.publish()
    async with running(tmp_path / "gateway", servers(acme=repository.url)) as gateway:
        await gateway.refresh("acme")
        assert await gateway.row("acme", "artifacts=true") == {
            **serving(repository.head, docs_loaded=0),
            "artifacts": [],
        }


@pytest.mark.row("S2")
async def test_an_age_is_stale_ttl_only_beyond_the_ttl(
    published: Repository, tmp_path: Path
) -> None:
    registry = servers(acme={"url": published.url, "ttl": 60})
    async with running(tmp_path / "gateway", registry) as gateway:
        await gateway.refresh("acme")
        for seconds, freshness in [(60.9, "fresh"), (0.1, "stale_ttl")]:
            gateway.clock.advance(seconds)
            age = 60 if freshness == "fresh" else 61
            assert await gateway.row("acme") == serving(
                published.head, freshness=freshness, last_pulled_age_seconds=age
            )


@pytest.mark.row("S1", "S2", "H5")
async def test_an_outage_leaves_the_content_stale_and_the_next_contact_fresh(
    published: Repository, tmp_path: Path
) -> None:
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        await gateway.refresh("acme")
        published.take_away()
        gateway.clock.advance(10.5)
        await gateway.refresh("acme")
        assert in_order(await gateway.row("acme")) == in_order(
            serving(
                published.head,
                source_available=False,
                stale=True,
                freshness="stale",
                last_pulled_age_seconds=10,
                last_pull_attempt_at="2026-07-17T12:00:10Z",
                last_pull_error=MISSING_MESSAGE,
            )
        )
        published.bring_back()
        gateway.clock.advance(5)
        await gateway.refresh("acme")
        assert await gateway.row("acme") == serving(
            published.head,
            last_pulled_at="2026-07-17T12:00:15Z",
            last_pull_attempt_at="2026-07-17T12:00:15Z",
        )


@pytest.mark.row("S1", "S2", "P1")
async def test_a_cached_copy_that_was_not_yet_checked_is_serving(
    published: Repository, server: GitHttpServer, tmp_path: Path
) -> None:
    registry = servers(acme=server.url_of(published))
    async with running(tmp_path / "gateway", registry) as gateway:
        await gateway.refresh("acme")
    server.hang()
    async with running(tmp_path / "gateway", registry) as gateway:
        await gateway.wait_for_state("acme", "serving")
        assert in_order(await gateway.row("acme")) == in_order(serving(published.head))
        gateway.clock.advance(61)
        assert await gateway.row("acme") == serving(
            published.head, freshness="stale_ttl", last_pulled_age_seconds=61
        )


@pytest.mark.row("S1")
async def test_a_missing_ref_is_told_in_our_own_words(
    published: Repository, tmp_path: Path
) -> None:
    registry = servers(acme={"url": published.url, "ref": "release/9"})
    async with running(tmp_path / "gateway", registry) as gateway:
        await gateway.refresh("acme")
        message = "the source has no branch and no tag 'release/9'"
        assert in_order(await gateway.row("acme")) == in_order(
            {
                **FAILED,
                "ref": "release/9",
                "last_pull_error": message,
                "error": {"type": "CloneError", "message": message},
            }
        )


@pytest.mark.row("S1")
async def test_a_fault_of_ours_is_a_load_error_without_a_path_of_the_host(
    published: Repository, tmp_path: Path
) -> None:
    published.take_away()
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        await gateway.wait_for_state("acme", "failed")
        published.bring_back()
        put_a_file_in_the_place_of(gateway.cache)
        await gateway.refresh("acme")
        row = await gateway.row("acme")
        assert (row["state"], row["error"]["type"]) == ("failed", "LoadError")
        assert "<cache>" in row["error"]["message"]
        assert str(tmp_path) not in (await gateway.get("/status?diagnostics=true")).text


@pytest.mark.row("S1", "P3")
async def test_a_failed_owner_stays_failed_while_it_is_tried_again_and_then_serves(
    published: Repository, server: GitHttpServer, tmp_path: Path
) -> None:
    server.refuse(500)
    registry = servers(acme=server.url_of(published))
    async with running(tmp_path / "gateway", registry) as gateway:
        await gateway.wait_for_state("acme", "failed")
        server.hang()
        server.forget()
        await to_thread.run_sync(server.wait_for_requests, 1)
        row = await gateway.row("acme", "diagnostics=true")
        assert (row["state"], row["error"]["type"]) == ("failed", "CloneError")
        assert row["diagnostics"]["next_attempt_at"] is None
        server.release()
        await gateway.wait_for_state("acme", "serving")
        assert await gateway.row("acme") == serving(published.head)


@pytest.mark.row("S1", "H3")
async def test_a_failed_owner_stays_failed_during_a_refresh(
    published: Repository, server: GitHttpServer, tmp_path: Path
) -> None:
    server.refuse(500)
    registry = servers(acme=server.url_of(published))
    async with running(tmp_path / "gateway", registry) as gateway:
        await gateway.wait_for_state("acme", "failed")
        server.hang()
        server.forget()
        async with create_task_group() as tasks:
            tasks.start_soon(gateway.refresh, "acme")
            await to_thread.run_sync(server.wait_for_requests, 1)
            assert (await gateway.row("acme"))["state"] == "failed"
            server.release()
        assert await gateway.row("acme") == serving(published.head)


@pytest.mark.row("H9", "P3")
async def test_the_next_attempt_is_told_as_a_time(published: Repository, tmp_path: Path) -> None:
    published.take_away()
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:

        async def shown() -> str | None:
            row = await gateway.row("acme", "diagnostics=true")
            return row["diagnostics"]["next_attempt_at"]

        second = (NOON + timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
        seen: list[str] = []

        async def is_second() -> bool:
            seen.append(await shown() or "")
            return seen[-1] == second

        await until(is_second)
        assert set(seen) <= {"", "2026-07-17T12:00:01Z", second}


@pytest.mark.row("H9", "P3")
async def test_an_outage_is_told_with_its_beginning_and_with_when_a_request_tries_again(
    published: Repository, tmp_path: Path
) -> None:
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        seen: list[tuple[str | None, ...]] = []

        async def pull() -> None:
            await gateway.refresh("acme")
            shown = (await gateway.row("acme", "diagnostics=true"))["diagnostics"]
            keys = ("error_class", "failing_since", "next_attempt_at")
            seen.append(tuple(shown[key] for key in keys))
            gateway.clock.advance(10)

        await pull()
        published.take_away()
        await pull()
        await pull()
        published.bring_back()
        await pull()
        published.take_away()
        await pull()
    assert seen == [
        (None, None, None),
        ("not_found", "2026-07-17T12:00:10Z", "2026-07-17T12:00:11Z"),
        ("not_found", "2026-07-17T12:00:10Z", "2026-07-17T12:00:21Z"),
        (None, None, None),
        ("not_found", "2026-07-17T12:00:40Z", "2026-07-17T12:00:41Z"),
    ]


@pytest.mark.row("H5")
async def test_status_is_a_pure_read_even_with_a_ttl_of_0(
    published: Repository, tmp_path: Path
) -> None:
    registry = servers(acme={"url": published.url, "ttl": 0})
    async with running(tmp_path / "gateway", registry) as gateway:
        await gateway.refresh("acme")
        gateway.clock.advance(3600)
        started, before = gateway.git.started_processes, await gateway.row("acme")
        for _ in range(50):
            await gateway.status("artifacts=true&diagnostics=true")
        assert await gateway.row("acme") == before
        assert before["last_pull_attempt_at"] == AT_NOON
        assert gateway.git.started_processes == started
        await gateway.mcp("acme", "resources/list")
        assert gateway.git.started_processes > started
        assert (await gateway.row("acme"))["last_pull_attempt_at"] == "2026-07-17T13:00:00Z"


@pytest.mark.row("H5")
async def test_status_is_200_and_never_waits_whatever_the_owners_do(
    published: Repository, server: GitHttpServer, tmp_path: Path
) -> None:
    server.hang()
    registry = servers(**{f"owner{number}": server.url_of(published) for number in range(30)})
    environment = {"OKF_GATEWAY_PULL_WAIT": NEVER_SECONDS}
    async with running(tmp_path / "gateway", registry, environment=environment) as gateway:
        totals, owners = await summary(gateway)
        assert totals == {"total": 30, "serving": 0, "loading": 30, "failed": 0}
        assert list(owners) == [f"owner{number}" for number in range(30)]


def as_written(url: str) -> str:
    return url


def without_suffix(url: str) -> str:
    return url.removesuffix(".git")


def with_slash(url: str) -> str:
    return f"{url}/"


def percent_encoded(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.replace('team', quote('te am'), 1)}"


def in_capitals(url: str) -> str:
    return url.replace("http://localhost", "http://LOCALHOST")


SPELLINGS = [as_written, without_suffix, with_slash, percent_encoded, in_capitals]


@pytest.mark.row("H5", "G4")
@pytest.mark.parametrize("spell", SPELLINGS, ids=lambda spell: spell.__name__)
@pytest.mark.parametrize("transport", ["http", "file", "served", "refused", "closed"])
async def test_no_spelling_of_an_owners_url_is_in_the_status(
    spell: Callable[[str], str],
    transport: str,
    server: GitHttpServer,
    new_repository: RepositoryFactory,
    repositories_folder: Path,
    tmp_path: Path,
) -> None:
    """The error of git quotes the URL, or what is left of it after its own parsing."""
    base = server.url.replace("127.0.0.1", "localhost")
    if transport == "served":
        repository = new_repository("team-secretname")
        repository.document("a.md")
        repository.publish(ref="other")
    if transport == "refused":
        server.refuse(403)
    if transport == "closed":
        server.close()
    base = repositories_folder.as_uri() if transport == "file" else base
    url = spell(f"{base}/team-secretname.git")
    async with running(tmp_path / "gateway", servers(acme=url)) as gateway:
        await gateway.refresh("acme")
        row = await gateway.row("acme")
        assert row["state"] == "failed"
        for query in ("", "?artifacts=true&diagnostics=true", "?format=yaml&diagnostics=true"):
            text = (await gateway.get(f"/status{query}")).text.lower()
            plain = unquote(text)
            parts = urlsplit(url.lower())
            for secret in (
                url.lower(),
                f"{parts.scheme}://{parts.netloc}/",
                "secretname",
                parts.path.strip("/"),
            ):
                assert secret not in text
                assert unquote(secret) not in plain
        assert (await gateway.refresh("acme")).json()["error"] == row["error"]["message"]


@pytest.mark.row("H5", "G4", "H8")
async def test_a_redirect_that_the_source_sends_is_not_told_either(
    published: Repository, server: GitHttpServer, tmp_path: Path
) -> None:
    server.redirect("http://user:hunter2@127.0.0.1:9/elsewhere")
    registry = servers(acme=server.url_of(published))
    async with running(tmp_path / "gateway", registry) as gateway:
        await gateway.refresh("acme")
        text = (await gateway.get("/status?diagnostics=true")).text
        assert (await gateway.row("acme"))["state"] == "failed"
        assert "hunter2" not in text
        assert "origin" not in text


@pytest.mark.row("G4", "H9")
async def test_what_a_file_says_of_a_secret_is_not_told(
    published: Repository, tmp_path: Path
) -> None:
    text = f"---\n{NORTH_TOKEN}: 1\n{NORTH_TOKEN}: 2\n---\n"
    published.write("twice.md", text)
    published.write(f"{NORTH_TOKEN}.md", text)
    published.publish()
    async with running(tmp_path / "gateway", servers(acme=published.url)) as gateway:
        await gateway.refresh("acme")
        row = await gateway.row("acme", "diagnostics=true")
        _, named, twice = row["diagnostics"]["items"]
        assert (named["path"], twice["path"]) == ("***.md", "twice.md")
        assert "***" in twice["message"]
        assert NORTH_TOKEN not in (await gateway.get("/status?diagnostics=true")).text
