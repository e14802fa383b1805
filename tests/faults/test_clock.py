"""The wall clock jumps, ten years ahead or back: no owner is stuck, and no age is negative."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from support.gateway_process import GatewayProcess, wait_until
from support.git_http import GitHttpServer, GitHttpServerFactory
from support.in_process import mcp_headers, mcp_message
from support.repositories import Repository

TTL_SECONDS: Final = 1
YEARS: Final = 10
YEAR_SECONDS: Final = 365 * 24 * 3600
AT_MOST_SECONDS: Final = 120
"""An age that no test reaches, and no jump stays below."""

SHIFTED: Final = """
import datetime, pathlib, runpy, time
from okf_mcp_gateway import state

shift = lambda: int(pathlib.Path("shift").read_text())
real_time, real_datetime = time.time, datetime.datetime

class Shifted(real_datetime):
    @classmethod
    def now(cls, tz=None):
        return real_datetime.now(tz) + datetime.timedelta(seconds=shift())

state.datetime = Shifted
time.time = lambda: real_time() + shift()
runpy.run_module("okf_mcp_gateway", run_name="__main__")
"""
"""The gateway on a machine whose wall clock is off by the seconds that the file `shift` says."""


class Machine:
    """A gateway with two owners, and the wall clock that it sees."""

    def __init__(self, folder: Path, acme: str, away: str) -> None:
        urls = {"acme": acme, "away": away}
        owners = {name: {"url": url, "ttl": TTL_SECONDS} for name, url in urls.items()}
        self.process = GatewayProcess(
            folder, json.dumps({"owners": owners}), command=(sys.executable, "-c", SHIFTED)
        )
        self.shift(years=0)

    def shift(self, *, years: int) -> None:
        """Set the clock so far from the true time."""
        written = self.process.folder / "shift.new"
        written.write_text(str(years * YEAR_SECONDS))
        written.replace(self.process.folder / "shift")

    def row(self, owner: str = "acme") -> dict[str, Any]:
        """Return what `/status` says, seen that no age is out of the question."""
        row = self.process.owner(owner)
        age = row["last_pulled_age_seconds"]
        assert age is None or 0 <= age < AT_MOST_SECONDS, row
        return row

    def read(self) -> str:
        """Return the commit that a read is answered from."""
        answer = self.process.post(
            "/acme/mcp", mcp_message("resources/list"), headers=mcp_headers("resources/list")
        )
        assert answer.status == 200, answer
        return answer.json["result"]["_meta"]["served_commit"]


@pytest.fixture
def server(git_http_server: GitHttpServerFactory) -> GitHttpServer:
    """A git host that serves the repositories of the test."""
    return git_http_server()


@pytest.fixture
def machine(published: Repository, server: GitHttpServer, tmp_path: Path) -> Iterator[Machine]:
    """Such a machine, whose owner `away` has no source yet; the gateway runs."""
    machine = Machine(tmp_path / "gateway", server.url_of(published), server.url_of("away.git"))
    with machine.process as process:
        process.wait_for_state("acme", "serving")
        process.wait_for_state("away", "failed")
        yield machine


@pytest.mark.row("S2", "P3")
def test_a_clock_that_jumps_while_the_gateway_runs_keeps_no_owner_from_its_source(
    machine: Machine, published: Repository
) -> None:
    for years in (YEARS, -YEARS):
        newest = published.publish_document(f"In {years} years.")
        machine.shift(years=years)
        assert machine.row()["served_commit"] != newest
        wait_until(lambda newest=newest: machine.read() == newest, 5 * TTL_SECONDS)
        row = machine.row()
        assert row["freshness"] in {"fresh", "stale_ttl"}
        assert row["last_pulled_at"] == row["last_pull_attempt_at"]
    published.bare.with_name("away.git").symlink_to(published.bare)
    wait_until(lambda: machine.row("away")["state"] == "serving", 20)


@pytest.mark.row("S2", "P4")
def test_a_copy_whose_time_is_ten_years_off_is_served_and_grows_old_from_then_on(
    machine: Machine, published: Repository, server: GitHttpServer
) -> None:
    # First its time is one that is still to come, then one of twenty years ago.
    for years in (-YEARS, YEARS):
        assert machine.process.stop() == 0
        machine.shift(years=years)
        server.hang()
        machine.process.start()
        row = machine.process.wait_for_state("acme", "serving")
        assert row["served_commit"] == published.head
        if years < 0:
            assert 0 <= row["last_pulled_age_seconds"] < AT_MOST_SECONDS
        else:
            assert row["last_pulled_age_seconds"] > years * YEAR_SECONDS
        # Its source hangs, so that nothing but its age says that it is to be asked again.
        wait_until(lambda: machine.process.owner("acme")["freshness"] == "stale_ttl")
        server.release()
        newest = published.publish_document(f"In {years} years.")
        wait_until(lambda newest=newest: machine.read() == newest, 20)
        assert machine.row()["freshness"] in {"fresh", "stale_ttl"}
