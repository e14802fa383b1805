"""The script that an owner's repository holds (PEP 723), run by uv as a client runs it (T1)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from support.example import EXAMPLE, PROJECT, SOURCE, copy_example
from support.repositories import git

DEADLINE_SECONDS = 300
"""uv builds the project and may have to fetch what it needs first."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of this project's files as they are, tagged as the example asks."""
    top = tmp_path_factory.mktemp("project")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name.startswith(("core/", "gateway/", "pyproject", "README", "LICENSE", "CHANGELOG")):
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, top / name)
    found = SOURCE.search((EXAMPLE / "mcp/server.py").read_text())
    assert found
    git("init", "--quiet", "--initial-branch=main", folder=top)
    git("add", ".", folder=top)
    author = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    git(*author, "commit", "--quiet", "-m", "All of it", folder=top)
    git("tag", found["tag"], folder=top)
    return top


@pytest.mark.anyio
@pytest.mark.row("T1", "T3")
@pytest.mark.parametrize("source", ["git", "path"])
async def test_the_example_repository_is_served_by_its_own_script(
    project: Path, tmp_path: Path, source: str
) -> None:
    sources = {
        "git": f'git = "{project.as_uri()}", tag = "v0.1.0"',
        "path": f'path = "{project}"',
    }
    top = copy_example(tmp_path, sources[source])
    entry = json.loads((top / ".mcp.json").read_text())["mcpServers"]["knowledge"]
    assert entry["command"] == "uv"
    parameters = StdioServerParameters(
        command=str(Path(sys.executable).with_name("uv")),
        args=entry["args"],
        cwd=top,
        env=dict(os.environ),
    )

    async with Client(parameters, cache=None, read_timeout_seconds=DEADLINE_SECONDS) as client:
        listed = await client.list_resources()
        result = await client.read_resource("knowledge://acme/decision/opt-in")

    assert [resource.title for resource in listed.resources] == ["Knowledge is opt-in"]
    assert "a promise that the page is worth reading" in result.model_dump_json()


def test_what_serves_in_the_script_is_two_lines() -> None:
    text = (EXAMPLE / "mcp/server.py").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines == ["from okf_mcp_server import run", "run()"]
