"""Deadlines hold: git and its children are dead one second after the deadline, and nothing is left.

Also when they ignore SIGTERM or have stopped themselves, when the gateway is who has to reap them,
and when the gateway is killed and can't do it. How one command ends, however it behaves, is proven
in tests/gateway/source/test_git.py, what is killed after the gateway in test_watchdog.py there.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from support.descendants import command_line, is_alive, is_watchdog, processes_below, stat_fields
from support.gateway_process import GatewayFactory, GatewayProcess, wait_until
from support.git_http import Exchange, GitHttpServer, GitHttpServerFactory
from support.repositories import Repository

DEADLINE_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 1.0
"""What the promise gives git after its deadline, and after the gateway's death."""

AS_PROCESS_1: Final = (
    "import ctypes, runpy\n"
    "PR_SET_CHILD_SUBREAPER = 36\n"
    "assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0\n"
    "runpy.run_module('okf_mcp_gateway', run_name='__main__')\n"
)
"""A gateway that is given all orphans below it, as process 1 of a container is."""

STUBBORN_GIT: Final = """#!/bin/sh
case $1 in ls-remote | fetch) ;; *) exec {git} "$@" ;; esac
trap '' TERM
exec 3>&1 >/dev/null
sleep 300 2>/dev/null 3>&- &
sh -c 'kill -STOP $$' 2>/dev/null 3>&- &
{git} "$@" >&3
"""
"""Starts the real git, and beside it a child that is deaf and one that stops itself."""

TRACED_GIT: Final = """#!/bin/sh
GIT_TRACE2_EVENT={trace} exec {git} "$@"
"""


def is_fetch(exchange: Exchange) -> bool:
    return exchange.is_fetch


def is_probe(exchange: Exchange) -> bool:
    return exchange.is_probe


def owners(**urls: str) -> str:
    entries = {name: {"url": url, "ttl": 3600} for name, url in urls.items()}
    return json.dumps({"owners": entries})


def git_on_the_path(folder: Path, script: str, **words: object) -> str:
    """Put a git of our own before the real one; return the `PATH`."""
    folder.mkdir()
    program = folder / "git"
    program.write_text(script.format(git=shutil.which("git"), **words))
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def git_below(gateway: int) -> frozenset[int]:
    return frozenset(pid for pid in processes_below(gateway) if not is_watchdog(pid))


@pytest.fixture
def hosts(git_http_server: GitHttpServerFactory) -> tuple[GitHttpServer, GitHttpServer]:
    """Two git hosts: one that never answers what is asked first, one that never sends a pack."""
    mute, half = git_http_server(), git_http_server()
    mute.hang(when=is_probe)
    half.hang(when=is_fetch)
    return mute, half


@pytest.fixture
def process_1(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway as process 1 whose git is stubborn; to be started by the test."""
    path = git_on_the_path(tmp_path / "tools", STUBBORN_GIT)
    process = GatewayProcess(
        tmp_path / "gateway",
        owners(),
        environment={"PATH": path, "OKF_GATEWAY_GIT_TIMEOUT": f"{DEADLINE_SECONDS:g}"},
        command=(sys.executable, "-c", AS_PROCESS_1),
    )
    with ExitStack() as stack:
        stack.callback(process.close)
        yield process


@pytest.mark.row("P7")
def test_git_and_its_children_are_dead_one_second_after_the_deadline_and_reaped(
    published: Repository,
    hosts: tuple[GitHttpServer, GitHttpServer],
    process_1: GatewayProcess,
) -> None:
    mute, half = hosts
    process_1.servers.write_text(owners(mute=mute.url_of(published), half=half.url_of(published)))
    process_1.start()
    mute.wait_for_requests(1, when=is_probe)
    half.wait_for_requests(1, when=is_fetch)
    # git asked after it was started, so its deadline is no later than this one.
    deadline = time.monotonic() + DEADLINE_SECONDS
    pids = git_below(process_1.pid)
    commands = [command_line(pid) for pid in pids]
    for name in ("git-remote-http ", "git ls-remote", "git fetch", "sleep 300"):
        assert any(name in each for each in commands), commands
    assert "T" in {state for pid in pids for state in stat_fields(pid)[:1]}
    wait_until(lambda: not any(map(stat_fields, pids)), timeout=10)
    assert time.monotonic() < deadline + GRACE_SECONDS


@pytest.mark.row("P7")
@pytest.mark.parametrize("is_group_killed", [False, True], ids=["alone", "with its group"])
def test_a_gateway_that_is_killed_leaves_no_git_behind(
    is_group_killed: bool,
    published: Repository,
    hosts: tuple[GitHttpServer, GitHttpServer],
    gateway: GatewayFactory,
) -> None:
    mute, half = hosts
    process = gateway(
        owners(mute=mute.url_of(published), half=half.url_of(published)),
        environment={"OKF_GATEWAY_GIT_TIMEOUT": "3600"},
    )
    mute.wait_for_requests(1, when=is_probe)
    half.wait_for_requests(1, when=is_fetch)
    below = processes_below(process.pid)
    commands = [command_line(pid) for pid in below]
    assert sum("git-remote-http " in each for each in commands) == 2
    assert sum("watchdog.sh" in each for each in commands) == 1
    if is_group_killed:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        os.kill(process.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    wait_until(lambda: not any(map(is_alive, below)), timeout=10)
    assert time.monotonic() < killed_at + GRACE_SECONDS
    assert process.wait_for_exit() == -signal.SIGKILL


@pytest.mark.row("P7")
def test_a_gateway_that_lost_its_watchdog_pulls_on(
    published: Repository, gateway: GatewayFactory
) -> None:
    process = gateway(owners(acme=published.url))
    process.wait_for_state("acme", "serving")
    [watchdog] = filter(is_watchdog, processes_below(process.pid))
    os.kill(watchdog, signal.SIGKILL)
    for number in range(2):
        newest = published.publish_document(f"Push {number}.")
        assert process.refresh("acme").json["commit"] == newest
    assert process.log.count("Watchdog lost") == 1


@pytest.mark.row("P7")
def test_git_starts_nothing_that_would_leave_its_group(
    published: Repository, gateway: GatewayFactory, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    path = git_on_the_path(tmp_path / "tools", TRACED_GIT, trace=trace)
    process = gateway(owners(acme=published.url), environment={"PATH": path})
    process.wait_for_state("acme", "serving")
    with (process.cache / "acme" / "config").open("a") as config:
        config.write(
            "[core]\n\tfsmonitor = true\n[credential]\n\thelper = cache\n"
            "[gc]\n\tauto = 1\n\tautoDetach = true\n"
            "[maintenance]\n\tauto = true\n\tautoDetach = true\n"
        )
    for number in range(2):
        published.publish_document(f"Push {number}.")
        assert process.refresh("acme").status == 200
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    started = {" ".join(each["argv"]) for each in events if each["event"] == "child_start"}
    assert any("upload-pack" in each for each in started)
    words = ("maintenance", "gc", "fsmonitor", "credential", "daemon", "detach")
    assert [each for each in started if any(word in each for word in words)] == []
