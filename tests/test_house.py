"""The house's own rules bite: what `make check` should refuse, it does refuse."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
DEADLINE_SECONDS = 60
PACKAGES = ("core/okf_mcp_server", "gateway/okf_mcp_gateway")
SOURCES = sorted(
    path
    for folder in (*PACKAGES, "tests")
    for path in (PROJECT / folder).rglob("*.py")
    if path != Path(__file__)
)
SILENCED = re.compile(r"# (?:noqa|pyright: ignore|type: ignore|pragma: no).*")
"""A check that a line silences, and what stands behind."""
TOLD = re.compile(
    r"# (?:noqa: \w+(?:, \w+)* - .+|pyright: ignore\[.+\](?: - .+)?|pragma: no .+ - .+)"
)


def run(
    program: str, *arguments: str, folder: Path = PROJECT, stdin: str = "", path: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a tool of the development dependencies."""
    return subprocess.run(
        [str(Path(sys.executable).with_name(program)), *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": path, "LC_ALL": "C.UTF-8"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def found_by_ruff(place: str, text: str) -> set[str]:
    """Return the rules that a file with this text would break there."""
    options = ["--no-cache", "--output-format", "concise", "--stdin-filename", place, "-"]
    ended = run("ruff", "check", *options, stdin=text)
    assert ended.returncode in {0, 1}, ended.stderr
    return set(re.findall(r":\d+:\d+: ([A-Z]+\d+) ", ended.stdout))


# Style

NEW_ROOM = "core/okf_mcp_server/new_room.py"
A_TEST = "tests/core/test_new_room.py"
ENVIRONMENT = '"""X."""\n\nimport os\n\nHOME = os.environ["HOME"]\n'


@pytest.mark.parametrize("place", [NEW_ROOM, "gateway/okf_mcp_gateway/routes/status.py"])
@pytest.mark.parametrize("reading", ['os.environ["HOME"]', 'os.getenv("HOME")'])
def test_only_a_front_door_reads_the_environment(place: str, reading: str) -> None:
    text = ENVIRONMENT.replace('os.environ["HOME"]', reading)
    assert found_by_ruff(place, text) == {"TID251"}


@pytest.mark.parametrize(
    "place",
    [
        *("core/okf_mcp_server/stdio.py", "core/okf_mcp_server/linter.py"),
        *("gateway/okf_mcp_gateway/__main__.py", A_TEST),
    ],
)
def test_a_front_door_and_a_test_may_read_the_environment(place: str) -> None:
    assert found_by_ruff(place, ENVIRONMENT) == set()


@pytest.mark.parametrize("place", [NEW_ROOM, A_TEST])
@pytest.mark.parametrize(
    "text",
    [
        '"""X."""\n\nfrom unittest.mock import patch\n\nX = patch\n',
        '"""X."""\n\nfrom unittest import mock\n\nX = mock\n',
        '"""X."""\n\nimport yaml\n\nX = yaml.load("a: b", Loader=yaml.SafeLoader)\n',
        '"""X."""\n\nfrom starlette.middleware.base import BaseHTTPMiddleware\n\nX = 1\n',
    ],
    ids=["patch", "mock", "yaml.load", "BaseHTTPMiddleware"],
)
def test_what_is_banned_is_banned_everywhere(place: str, text: str) -> None:
    assert "TID251" in found_by_ruff(place, text)


def test_what_is_banned_in_tests_is_what_is_banned_but_for_the_environment() -> None:
    def bans(path: str, *keys: str) -> set[str]:
        table = tomllib.loads((PROJECT / path).read_text())
        for key in (*keys, "lint", "flake8-tidy-imports", "banned-api"):
            table = table[key]
        return set(table)

    everywhere = bans("pyproject.toml", "tool", "ruff")
    assert everywhere - bans("tests/ruff.toml") == {"os.environ", "os.getenv"}


def test_a_function_of_nine_paths_is_too_many_and_a_public_one_needs_a_docstring() -> None:
    branches = "".join(f"    if n == {number}:\n        n += 1\n" for number in range(8))
    text = f'"""X."""\n\n\ndef f(n: int) -> int:\n{branches}    return n\n'
    assert {"C901", "D103"} <= found_by_ruff(NEW_ROOM, text)


def test_who_silences_a_check_names_it_and_tells_ruff_why() -> None:
    lines = [
        (f"{path.relative_to(PROJECT)}:{number}", line)
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), start=1)
    ]
    silenced = {place: found[0] for place, line in lines if (found := SILENCED.search(line))}
    assert silenced
    assert {place: text for place, text in silenced.items() if not TOLD.fullmatch(text)} == {}


# Who imports whom


def copy_of_the_packages(folder: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(
            PROJECT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(PROJECT / "pyproject.toml", folder)
    return folder


def imports_of(folder: Path) -> subprocess.CompletedProcess[str]:
    path = ":".join(str((folder / package).parent) for package in PACKAGES)
    return run("lint-imports", "--no-logo", "--no-cache", folder=folder, path=path)


def test_the_packages_keep_to_the_map(tmp_path: Path) -> None:
    ended = imports_of(copy_of_the_packages(tmp_path))
    assert (ended.returncode, " 0 broken" in ended.stdout) == (0, True), ended.stdout


MAP_OF_CORE, MAP_OF_GATEWAY = "the map of core", "the map of the gateway"


@pytest.mark.parametrize(
    ("place", "text", "contract"),
    [
        ("core/okf_mcp_server/new_room.py", "", MAP_OF_CORE),
        ("gateway/okf_mcp_gateway/new_room.py", "", MAP_OF_GATEWAY),
        ("gateway/okf_mcp_gateway/routes/new_room.py", "", "the map of the routes"),
        ("gateway/okf_mcp_gateway/source/new_room.py", "", "the map of the source"),
        ("core/okf_mcp_server/errors.py", "import okf_mcp_server.snapshot", MAP_OF_CORE),
        (
            "core/okf_mcp_server/errors.py",
            "import okf_mcp_gateway.scrub",
            "the gateway imports core, never the other way round",
        ),
        ("gateway/okf_mcp_gateway/auth.py", "import okf_mcp_gateway.app", MAP_OF_GATEWAY),
        ("core/okf_mcp_server/snapshot.py", "import mcp_types", "who knows MCP"),
        ("gateway/okf_mcp_gateway/owners.py", "from mcp.server import context", "who knows MCP"),
        ("gateway/okf_mcp_gateway/owners.py", "import starlette.types", "who knows HTTP"),
        ("gateway/okf_mcp_gateway/app.py", "import uvicorn", "who runs the server"),
        ("gateway/okf_mcp_gateway/registry.py", "import subprocess", "who starts processes"),
        ("core/okf_mcp_server/linter.py", "import markdown_it", "who parses Markdown"),
        ("gateway/okf_mcp_gateway/config.py", "import yaml", "who reads and writes YAML"),
    ],
    ids=[
        *("room of core", "room of gateway", "room of routes", "room of source"),
        *("upwards in core", "core to gateway", "upwards in gateway"),
        *("mcp_types", "mcp", "starlette", "uvicorn", "subprocess", "markdown_it", "yaml"),
    ],
)
def test_an_import_that_the_map_does_not_have_breaks_its_contract_alone(
    tmp_path: Path, place: str, text: str, contract: str
) -> None:
    folder = copy_of_the_packages(tmp_path)
    with (folder / place).open("a") as module:
        module.write(f"\n{text}\n")
    ended = imports_of(folder)
    broken = re.findall(r"^(.*) BROKEN$", ended.stdout, re.MULTILINE)
    assert (ended.returncode, broken) == (1, [contract]), ended.stdout + ended.stderr


# Dependencies


def test_each_development_dependency_is_pinned_exactly_and_none_is_needed_at_run_time() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    pins = project["dependency-groups"]["dev"]
    assert [pin for pin in pins if not re.fullmatch(r"[a-z-]+(\[[a-z]+\])?==[0-9.]+", pin)] == []
    needed = {re.split(r"[^a-z-]", each)[0] for each in project["project"]["dependencies"]}
    assert not needed & {re.split(r"[\[=]", pin)[0] for pin in pins}


# What must pass before a change lands


def test_ci_stops_at_the_first_failure_and_ends_with_the_summary_of_the_readmes_test_command() -> (
    None
):
    lines = (PROJECT / ".ci" / "run").read_text().splitlines()
    assert "set -euo pipefail" in lines
    assert lines[-1] == "make test"
    assert f"\n{lines[-1]}\n" in (PROJECT / "README.md").read_text()
