"""A gateway that was stopped and comes back: what is on disk is served before anybody is asked."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from operator import ne
from pathlib import Path
from typing import Final

import pytest

from okf_mcp_gateway.snapshot_file import NAME
from support.gateway_process import GatewayFactory, GatewayProcess, wait_until
from support.repositories import Repository, RepositoryFactory

NAMES: Final = ("a", "b", "c")


@pytest.fixture
def repositories(new_repository: RepositoryFactory) -> Mapping[str, Repository]:
    """By owner, a repository with one document."""
    made = {name: new_repository(name) for name in NAMES}
    for each in made.values():
        each.publish_document("One.")
    return made


@pytest.fixture
def stopped(repositories: Mapping[str, Repository], gateway: GatewayFactory) -> GatewayProcess:
    """A gateway that has pulled all owners and was stopped; the sources are gone since."""
    owners = {name: {"url": each.url, "ttl": 3600} for name, each in repositories.items()}
    process = gateway(json.dumps({"owners": owners}))
    wait_until(lambda: process.status()["summary"]["serving"] == len(NAMES))
    wait_until(lambda: all((process.cache / name / NAME).is_file() for name in NAMES))
    assert process.stop() == 0
    for each in repositories.values():
        each.take_away()
    return process


def watch_git(process: GatewayProcess, folder: Path) -> Path:
    """Let each git note how many cached copies are served when it starts; return where."""
    real = shutil.which("git")
    assert real
    tools, notes = folder / "tools", folder / "notes"
    tools.mkdir()
    (tools / "git").write_text(
        f'#!/bin/sh\ngrep -c "Serving the cached copy" "{process.folder}/gateway.stderr"'
        f' >>"{notes}"\nexec {real} "$@"\n'
    )
    (tools / "git").chmod(0o755)
    process.environment["PATH"] = f"{tools}:{os.environ['PATH']}"
    return notes


def parsed_by_owner(process: GatewayProcess) -> Mapping[str, int]:
    """Return how many files were parsed for each cached copy, at the last start."""
    found = re.findall(r"Serving the cached copy: owner=(\w+) .* parsed=(\d+) ", process.log)
    return {owner: int(parsed) for owner, parsed in found}


def wait_until_served(process: GatewayProcess) -> None:
    wait_until(lambda: process.status()["summary"]["serving"] == len(NAMES))


@pytest.mark.row("P1", "P4")
def test_all_cached_owners_are_served_before_any_git_runs(
    stopped: GatewayProcess, tmp_path: Path
) -> None:
    notes = watch_git(stopped, tmp_path)
    stopped.start()
    wait_until_served(stopped)
    assert parsed_by_owner(stopped) == dict.fromkeys(NAMES, 0)
    # The sources are asked, and are away.
    wait_until(lambda: all(row["stale"] for row in stopped.status()["owners"].values()))
    assert set(notes.read_text().split()) == {str(len(NAMES))}
    assert {row["docs_loaded"] for row in stopped.status()["owners"].values()} == {1}


def change_the_token(process: GatewayProcess) -> None:
    process.token = process.environment["OKF_GATEWAY_TOKEN"] = "another-north-token"


def spoil_one(process: GatewayProcess) -> None:
    (process.cache / "b" / NAME).write_bytes(b"garbage")


def empty_one(process: GatewayProcess) -> None:
    (process.cache / "b" / NAME).write_bytes(b"")


@pytest.mark.row("P1", "P4", "P5")
@pytest.mark.parametrize(
    ("spoil", "parsed"),
    [
        pytest.param(spoil_one, {"a": 0, "b": 1, "c": 0}, id="garbage"),
        pytest.param(empty_one, {"a": 0, "b": 1, "c": 0}, id="nothing"),
        pytest.param(change_the_token, dict.fromkeys(NAMES, 1), id="another token"),
    ],
)
def test_a_snapshot_file_that_is_odd_costs_a_parse_and_no_content(
    stopped: GatewayProcess, spoil: Callable[[GatewayProcess], None], parsed: Mapping[str, int]
) -> None:
    spoil(stopped)
    parsed_anew = [stopped.cache / name / NAME for name in NAMES if parsed[name]]
    before = [path.read_bytes() for path in parsed_anew]
    stopped.start()
    wait_until_served(stopped)
    assert parsed_by_owner(stopped) == parsed
    wait_until(lambda: all(map(ne, before, map(Path.read_bytes, parsed_anew))))
    assert stopped.stop() == 0
    stopped.start()
    wait_until_served(stopped)
    assert parsed_by_owner(stopped) == dict.fromkeys(NAMES, 0)
    assert "Traceback" not in stopped.log
