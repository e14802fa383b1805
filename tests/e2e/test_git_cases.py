"""The handed git cases, step by step as their files say, against the real gateway.

A case is a script that builds and changes a source, and a YAML file with what `/status`, `/refresh`
and MCP must say after each step. Each sentence of a file is done or checked; one that is not known
here fails the case.
"""

import json
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import anyio
import pytest
import yaml

from support.clients import mcp_client
from support.gateway_process import Answer, GatewayFactory, GatewayProcess, wait_until
from support.repositories import git, git_environment

CASES: Final = Path(__file__).parents[1] / "fixtures" / "cases" / "git"
SCRIPT_DEADLINE_SECONDS: Final = 60
ALWAYS: Final = [
    "/healthz is 200 throughout",
    "/status is 200 throughout",
    "freshness == stale exactly when stale is true",
    "no unhandled exception in the log",
]
PLAIN_FIELDS: Final = ("state", "source_available", "stale", "freshness", "docs_loaded")
"""What a case gives as the very value that `/status` shows."""


class Watch:
    """Asks for `/healthz` and `/status` all the time, and keeps what was not as it must be."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.faults: list[object] = []
        self.rounds = 0
        self._gateway = gateway
        self._ended = Event()
        self._thread = Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop asking, after one more round."""
        self._ended.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.05):
                self._look()
            self._look()
        except Exception as error:  # noqa: BLE001 - the test that ends this thread shows it
            self.faults.append(error)

    def _look(self) -> None:
        health, status = self._gateway.get("/healthz", token=False), self._gateway.get("/status")
        if (health.status, health.text, status.status) != (200, "ok", 200):
            self.faults.append((health, status))
        rows: Mapping[str, Any] = status.json["owners"]
        self.faults += [
            row for row in rows.values() if (row["freshness"] == "stale") != row["stale"]
        ]
        self.rounds += 1


class Case:
    """One case on its way: its source, its gateway, and what was seen before the present step."""

    def __init__(self, name: str, folder: Path, new_gateway: GatewayFactory) -> None:
        self.name = name
        self.folder = folder
        self.text: dict[str, Any] = yaml.safe_load((CASES / f"{name}.yaml").read_bytes())
        self._new_gateway = new_gateway
        # All below is written by the steps, one after the other.
        self.gateway: GatewayProcess | None = None
        self.watches: list[Watch] = []
        self.row: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        """The owner's row of `/status`, artifacts and all, now and at the end of the last step."""
        self.listed: dict[str, str] | None = None
        """What MCP listed last in this step, content hashes by URI."""
        self.attempts: list[str] = []
        """When the attempts ended that MCP lists of this step led to."""
        self.answer: Answer | None = None
        """What this step's refresh was answered with."""

    # What a step does

    def do(self, sentence: str) -> None:
        """Do one part of a step, such as `POST refresh`."""
        actions: dict[str, Callable[[], None]] = {
            r"start( gateway| with ref nope)?": self._start,
            r"stop": self._stop,
            r"list|MCP list": self._list,
            r"MCP list twice": self._list_twice,
            r"POST refresh": self._refresh,
            r"GET /status\?artifacts=true": self._look,
        }
        if script := re.fullmatch(r"sh (\w+)( CHECKOUT| \(third argument CHECKOUT\))?", sentence):
            self._run_script(script[1])
            return
        matching = [act for pattern, act in actions.items() if re.fullmatch(pattern, sentence)]
        assert len(matching) == 1, f"nobody knows how to do {sentence!r}"
        matching[0]()

    def end_step(self) -> None:
        """Look at what the step led to."""
        if self.gateway and self.gateway.is_running:
            self._look()

    def begin_step(self) -> None:
        """Forget what the last step was answered."""
        self.before, self.answer, self.listed, self.attempts = self.row, None, None, []

    def _run_script(self, step: str) -> None:
        script = str(CASES / f"{self.name}.sh")
        checkout = str(self._checkout)
        subprocess.run(
            ["sh", script, step, str(self.folder), checkout],
            env={**git_environment(), "HOME": str(self.folder)},
            stdin=subprocess.DEVNULL,
            check=True,
            timeout=SCRIPT_DEADLINE_SECONDS,
        )

    @property
    def _checkout(self) -> Path:
        return self._gateway_of_this_case().cache / "acme"

    def _gateway_of_this_case(self) -> GatewayProcess:
        if self.gateway is None:
            owner = {
                **self.text["owner"],
                "url": self.text["owner"]["url"].replace("DIR", str(self.folder)),
            }
            servers = json.dumps({"owners": {"acme": owner}})
            self.gateway = self._new_gateway(servers, is_started=False)
        return self.gateway

    def _start(self) -> None:
        gateway = self._gateway_of_this_case()
        gateway.start()
        self.watches.append(Watch(gateway))
        wait_until(lambda: gateway.owner("acme")["state"] != "loading", 20)
        self._look()
        if not self.before:
            self.before = self.row

    def _stop(self) -> None:
        assert self.gateway
        self._look()
        self.watches[-1].end()
        assert self.gateway.stop() == 0

    def _refresh(self) -> None:
        assert self.gateway
        self.answer = self.gateway.refresh("acme")

    def _list(self) -> None:
        """List; during an outage until that comes more than a second after the last attempt."""
        self.listed = anyio.run(self._list_by_mcp)
        if self.row["stale"]:
            self._list_until_attempts(1)

    def _list_twice(self) -> None:
        self._list_until_attempts(2)

    def _list_until_attempts(self, count: int) -> None:
        """List again and again until so many lists have led to a pull."""

        def has_led_to_attempts() -> bool:
            assert self.gateway
            self.listed = anyio.run(self._list_by_mcp)
            attempt = self.gateway.owner("acme")["last_pull_attempt_at"]
            if attempt not in (self.row["last_pull_attempt_at"], *self.attempts):
                self.attempts.append(attempt)
            return len(self.attempts) >= count

        wait_until(has_led_to_attempts, 20, interval=0.3)

    def _look(self) -> None:
        assert self.gateway
        self.row = self.gateway.status("artifacts=true")["owners"]["acme"]

    async def _list_by_mcp(self) -> dict[str, str]:
        assert self.gateway
        with anyio.fail_after(30):
            async with mcp_client(self.gateway.mcp_url("acme"), self.gateway.token) as client:
                page = await client.list_resources()
        assert page.next_cursor is None
        return {each.uri: (each.meta or {})["content_hash"] for each in page.resources}

    # What a step expects

    def check(self, expected: Mapping[str, Any]) -> None:
        """Compare all that a step expects."""
        for key, value in expected.items():
            if key in PLAIN_FIELDS:
                assert self.row[key] == value, (key, self.row)
            elif key == "artifacts":
                assert self.row["artifacts"] == value
            elif key == "content_hash of a":
                self._check_change(self._hash_of_a(self.before), self._hash_of_a(self.row), value)
            else:
                self._check_sentence(key, value)

    def _check_sentence(self, key: str, value: Any) -> None:  # noqa: C901, PLR0912 - a table
        match key, value:
            case "served_commit", _:
                self._check_commit(value)
            case "last_pull_error", None:
                assert self.row["last_pull_error"] is None
            case "last_pull_error", "set":
                assert self.row["last_pull_error"]
            case "last_pulled_at", None:
                assert self.row["last_pulled_at"] is None
            case "last_pulled_at", "unchanged":
                assert self.row["last_pulled_at"] == self.before["last_pulled_at"]
            case "last_pull_attempt_at", _:
                assert value.startswith("moves on each request that comes more than 1 s after")
                assert len(set(self.attempts)) == 2
            case "error", "set":
                assert self.row["error"]["type"] == "CloneError"
                assert self.row["error"]["message"]
            case "error.message", "names the ref":
                assert self.text["owner"]["ref"] in self.row["error"]["message"]
            case "mcp", "same documents":
                assert self.listed == self._hashes(self.before) != {}
            case "http", _:
                assert self.answer
                assert self.answer.status == value, self.answer
            case "body_keys", _:
                assert self.answer
                assert list(self.answer.json) == value
            case "body", _:
                self._check_body(value)
            case _:
                raise AssertionError(f"nobody knows how to check {key}: {value!r}")

    def _check_body(self, expected: Mapping[str, Any]) -> None:
        assert self.answer
        found = dict(self.answer.json)
        assert expected == {
            "owner": "acme",
            "served_commit": "unchanged",
            "source_available": False,
            "error": "set",
        }
        assert found.pop("error")
        assert found == {
            "owner": "acme",
            "served_commit": self.before["served_commit"],
            "source_available": False,
        }

    def _check_commit(self, expected: str | None) -> None:
        if expected is None:
            assert self.row["served_commit"] is None
            return
        for sentence in expected.split(", "):
            served = self.row["served_commit"]
            match sentence:
                case "head of work" | "the new commit":
                    assert served == self._in_work("HEAD")
                case "the commit":
                    assert served == self._in_work("HEAD")
                case "not the tag object":
                    tag = self._in_work(f"refs/tags/{self.text['owner']['ref']}")
                    kinds = [self._kind(name) for name in (tag, served)]
                    assert kinds == ["tag", "commit"]
                case "changed" | "unchanged":
                    self._check_change(self.before["served_commit"], served, sentence)
                case _:
                    raise AssertionError(f"nobody knows the commit {sentence!r}")

    def _check_change(self, before: object, after: object, expected: str) -> None:
        assert before
        assert after
        assert expected in ("changed", "unchanged")
        assert (before != after) == (expected == "changed")

    def _in_work(self, name: str) -> str:
        return git("rev-parse", "--verify", name, folder=self.folder / "work").decode().strip()

    def _kind(self, name: str) -> str:
        return git("cat-file", "-t", name, folder=self.folder / "work").decode().strip()

    def _hashes(self, row: Mapping[str, Any]) -> dict[str, str]:
        return {each["uri"]: each["content_hash"] for each in row["artifacts"]}

    def _hash_of_a(self, row: Mapping[str, Any]) -> str:
        return self._hashes(row)["knowledge://acme/note/a"]

    def end(self) -> None:
        """Check what must always have been so."""
        assert self.gateway
        assert self.text["always"] == ALWAYS
        for watch in self.watches:
            watch.end()
            assert watch.faults == []
            assert watch.rounds > 0
        self.gateway.stop()
        for line in ("Traceback", "ERROR", "CRITICAL"):
            assert line not in self.gateway.log


def case_names() -> list[str]:
    return sorted(path.stem for path in CASES.glob("g*.yaml"))


def test_all_the_handed_cases_are_here() -> None:
    assert [name.partition("-")[0] for name in case_names()] == [f"g{n:02}" for n in range(1, 13)]


@pytest.mark.row("S1", "S2", "H3", "P1", "P3", "P4", "P5", "P7")
@pytest.mark.parametrize("name", case_names())
def test_a_source_that_goes_through_a_handed_case_is_served_as_the_case_says(
    name: str, tmp_path: Path, gateway: GatewayFactory
) -> None:
    case = Case(name, tmp_path / "case", gateway)
    for step in case.text["steps"]:
        case.begin_step()
        for sentence in step["do"].split("; "):
            case.do(sentence)
        case.end_step()
        case.check(step["expect"])
    case.end()


@pytest.mark.row("S2")
def test_the_time_of_the_last_contact_is_never_that_of_a_restart(
    tmp_path: Path, gateway: GatewayFactory
) -> None:
    case = Case("g09-restart-offline", tmp_path / "case", gateway)
    for sentence in ("sh setup", "start", "stop"):
        case.do(sentence)
    stored = case.row["last_pulled_at"]
    ended = time.time()
    wait_until(lambda: time.time() > ended + 1.1)
    for sentence in ("sh step1", "start", "list"):
        case.do(sentence)
    case.end_step()
    assert case.row["last_pulled_at"] == stored < case.row["last_pull_attempt_at"]
    assert case.row["last_pulled_age_seconds"] >= 1
    case.end()
