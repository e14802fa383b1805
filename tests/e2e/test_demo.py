"""`okf-mcp-gateway demo`: what it prints works as it is, in an empty HOME."""

import http.client
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.clients import Mode, mcp_client
from support.gateway_process import find_free_port, wait_until
from support.measuring import measured
from support.repositories import git

START_SECONDS = 30
STOP_SECONDS = 5


@dataclass(frozen=True)
class Printed:
    """What the demo printed."""

    url: str
    token: str
    snippet: dict[str, dict[str, dict[str, object]]]
    status: list[str]
    refresh: list[str]


@contextmanager
def demo(home: Path, port: int | None = None, **variables: str) -> Generator[Printed]:
    """Run the demo until the block ends, and yield what it printed."""
    environment = {
        **measured(),
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "OKF_GATEWAY_PORT": str(port or find_free_port()),
        **variables,
    }
    output = home / "demo.stdout"
    with output.open("wb") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-m", "okf_mcp_gateway", "demo"],
            cwd=home,
            env=environment,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
        )
    try:
        wait_until(lambda: "curl" in output.read_text(), START_SECONDS)
        yield _parse(output.read_text())
    finally:
        process.terminate()
        assert process.wait(STOP_SECONDS) == 0


def _parse(text: str) -> Printed:
    labels = dict(
        line.split(maxsplit=1) for line in text.split("\n") if line[:4] in {"URL:", "Toke"}
    )
    begin, end = text.index("\n{") + 1, text.index("\n}") + 2
    status, refresh = (line for line in text.split("\n") if line.startswith("curl"))
    return Printed(
        url=labels["URL:"],
        token=labels["Token:"],
        snippet=json.loads(text[begin:end]),
        status=shlex.split(status),
        refresh=shlex.split(refresh),
    )


def _run_curl(command: list[str]) -> tuple[int, bytes]:
    """Do what a printed curl command does, on machines without curl too."""
    assert command[:3] == ["curl", "-sS", "-H"]
    name, _, value = command[3].partition(": ")
    method = command[5] if command[4] == "-X" else "GET"
    url = urlsplit(command[-1])
    connection = http.client.HTTPConnection(url.netloc, timeout=10)
    try:
        connection.request(method, f"{url.path}?{url.query}", headers={name: value})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_printed_entry_connects_a_client(tmp_path: Path, mode: Mode) -> None:
    with demo(tmp_path) as printed:
        entry = printed.snippet["mcpServers"]["sample-knowledge"]
        assert entry["type"] == "http"
        assert entry["headers"] == {"Authorization": f"Bearer {printed.token}"}
        async with mcp_client(str(entry["url"]), printed.token, mode) as client:
            listed = (await client.list_resources()).resources
            contents = [(await client.read_resource(one.uri)).contents[0] for one in listed]

    assert [resource.uri for resource in listed] == [
        "knowledge://sample/architecture-decision/adr-1",
        "knowledge://sample/architecture-decision/adr-2",
        "knowledge://sample/guide/add-a-carrier",
        "knowledge://sample/runbook/events-are-late",
    ]
    assert [content.uri for content in contents] == [resource.uri for resource in listed]


def test_the_printed_curl_lines_show_the_status_and_pull(tmp_path: Path) -> None:
    with demo(tmp_path) as printed:
        refreshed, refresh = _run_curl(printed.refresh)
        looked, status = _run_curl(printed.status)

    assert (refreshed, looked) == (200, 200)
    commit = json.loads(refresh)["commit"]
    assert json.loads(status)["owners"]["sample"]["served_commit"] == commit


def test_the_port_comes_from_the_environment(tmp_path: Path) -> None:
    port = find_free_port()
    with demo(tmp_path, port) as printed:
        assert printed.url == f"http://127.0.0.1:{port}/sample/mcp"


def test_a_second_start_keeps_the_token_and_what_was_pushed(tmp_path: Path) -> None:
    with demo(tmp_path) as first:
        pass
    sample = tmp_path / ".cache" / "okf-mcp-gateway-demo" / ".demo" / "sample.git"
    work = tmp_path / "work"
    git("clone", "--quiet", "--", str(sample), str(work), folder=tmp_path)
    (work / "hello.md").write_text("---\ntype: Note\nexport: true\n---\n\nHello.\n")
    git("add", "hello.md", folder=work)
    identity = ("-c", "user.name=A reader", "-c", "user.email=reader@example.invalid")
    git(*identity, "commit", "--quiet", "-m", "Say hello", folder=work)
    git("push", "--quiet", "origin", "HEAD:main", folder=work)
    pushed = git("rev-parse", "HEAD", folder=work).decode().strip()

    with demo(tmp_path) as second:
        refreshed = json.loads(_run_curl(second.refresh)[1])

    assert second.token == first.token
    assert refreshed["commit"] == pushed


@pytest.mark.row("G1")
def test_a_token_that_stands_in_a_file_is_the_demos_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of-my-own\n")
    with demo(tmp_path, OKF_GATEWAY_TOKEN_FILE=str(tmp_path / "token")) as printed:
        assert printed.token == "of-my-own"
        assert _run_curl(printed.refresh)[0] == 200


@pytest.mark.row("G1")
@pytest.mark.parametrize("trouble", ["no git", "a file in the cache's place"])
def test_a_demo_that_can_not_be_set_up_is_a_sentence(tmp_path: Path, trouble: str) -> None:
    environment = {**measured(), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    if trouble == "no git":
        environment["PATH"] = str(tmp_path)
    else:
        (tmp_path / "cache").touch()
        environment["OKF_GATEWAY_CACHE_DIR"] = str(tmp_path / "cache")
    ended = subprocess.run(
        [sys.executable, "-m", "okf_mcp_gateway", "demo"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("okf-mcp-gateway: the demo can't be set up in ")
    assert len(ended.stderr.splitlines()) == 1
