"""All at once: readers, pushes and random faults for a while; then every promise is looked at.

`make soak` runs this for as long as asked. The seed is printed; the order of events is not the same
in two runs, since real processes make it.
"""

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any, Final

import pytest

from support.descendants import is_alive, is_watchdog, processes_below
from support.gateway_process import GatewayFactory, GatewayProcess, wait_until
from support.git_http import GitHttpServer, GitHttpServerFactory
from support.in_process import mcp_headers, mcp_message
from support.repositories import GitError, Repository, RepositoryFactory
from support.soak import soak_seconds

PUSHED_OWNERS: Final = ("alpha", "beta", "gamma", "delta")
DOCUMENTS: Final = 5
SOUTH_TOKEN: Final = "canary-of-the-soak"
MAX_PACKS: Final = 20
RECOVERY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 5.0

Fault = Callable[[], Callable[[], object] | None]
"""Does harm, and returns what undoes it."""


@dataclass(slots=True)
class Soak:
    """What runs, and what was seen; each list and mapping is written by one thread at a time."""

    gateway: GatewayProcess
    hosts: list[GitHttpServer]
    repositories: dict[str, Repository]
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    """By commit, the number that all its documents hold."""
    broken: list[str] = field(default_factory=list[str])
    """Promises that were seen broken, as sentences."""
    answers: int = 0
    faults: int = 0
    is_over: Event = field(default_factory=Event)
    is_down: Event = field(default_factory=Event)
    """Whether the gateway is being killed and started again: then a connection may fail."""

    def push(self, owner: str, number: int, random: Random) -> None:
        """Push a commit whose documents all hold the number; sometimes by force."""
        repository = self.repositories[owner]
        is_forced = random.random() < 0.2
        if is_forced:
            repository.start_over()
        for name in range(DOCUMENTS):
            repository.document(f"{name}.md", id=f"d{name}", body=f"Number {number}.\n")
        self.numbers[repository.commit()] = number
        repository.push(force=is_forced)

    def read_along(self, seed: int) -> None:
        """List and read until all is over; whatever is answered belongs to one commit."""
        random = Random(seed)  # noqa: S311 - no secret
        while not self.is_over.is_set():
            owner = random.choice(PUSHED_OWNERS)
            with self._tolerating_a_restart():
                if random.random() < 0.3:
                    self._list(owner)
                else:
                    self._read(owner, random.randrange(DOCUMENTS))

    def _list(self, owner: str) -> None:
        result = self._ask(owner, "resources/list", None)
        if result is None:
            return
        told = {each["description"] for each in result["resources"]}
        expected = {f"Number {self.numbers[result['_meta']['served_commit']]}."}
        if told != expected or len(result["resources"]) != DOCUMENTS:
            self.broken.append(f"{owner}: a list tells {told}, its commit holds {expected}")

    def _read(self, owner: str, document: int) -> None:
        uri = f"knowledge://{owner}/note/d{document}"
        result = self._ask(owner, "resources/read", {"uri": uri})
        if result is None:
            return
        (content,) = result["contents"]
        expected = f"Number {self.numbers[result['_meta']['served_commit']]}."
        if content["text"] != expected:
            self.broken.append(f"{uri}: {content['text']!r}, its commit holds {expected!r}")

    def _ask(
        self, owner: str, method: str, params: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        answer = self.gateway.post(
            f"/{owner}/mcp", mcp_message(method, params), headers=mcp_headers(method, params)
        )
        self.answers += 1
        if answer.status == 503:  # nothing to serve yet: its copy was taken away in a restart
            return None
        if answer.status != 200 or "result" not in answer.json:
            self.broken.append(f"{owner} {method}: {answer.status} {answer.text[:200]}")
            return None
        return answer.json["result"]

    @contextmanager
    def _tolerating_a_restart(self) -> Generator[None]:
        try:
            yield
        except (OSError, HTTPException) as error:
            if not self.is_down.is_set():
                # It may have gone down and come back meanwhile.
                self.is_down.wait(0.2)
            if not self.is_down.is_set() and self.gateway.is_running:
                self.broken.append(f"a connection failed: {error!r}")
            time.sleep(0.05)

    def harms(self, random: Random) -> list[Fault]:
        """Return all the harm that is done, one at a time."""
        host = random.choice(self.hosts)
        copy = self.gateway.cache / random.choice(PUSHED_OWNERS)

        def behave(name: str, *arguments: object) -> Fault:
            def harm() -> Callable[[], object]:
                getattr(host, name)(*arguments)
                return host.release

            return harm

        return [
            behave("hang"),
            behave("refuse", random.choice([401, 403, 404, 429, 500, 503])),
            behave("break_off", random.randrange(2000)),
            behave("trickle", 0.05),
            lambda: self._move_away(random),
            lambda: self._restart(signal.SIGKILL),
            lambda: self._restart(signal.SIGTERM),
            lambda: _plant_locks(copy),
            lambda: _cut_a_pack(copy, random),
            lambda: shutil.rmtree(copy, ignore_errors=True),
            lambda: _write(copy / "HEAD", "garbage"),
            lambda: _write(copy / "okf.json", "garbage"),
            lambda: self._signal_git(random),
            self._abandon_requests,
        ]

    def harm_along(self, seed: int, seconds: float) -> None:
        """Do harm again and again, and undo it, until the time is over."""
        random = Random(seed)  # noqa: S311 - no secret
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            undo = random.choice(self.harms(random))()
            self.faults += 1
            time.sleep(random.uniform(0.1, 0.8))
            if undo:
                undo()

    def _move_away(self, random: Random) -> Callable[[], object]:
        repository = self.repositories[random.choice(PUSHED_OWNERS)]
        moved = repository.bare.with_suffix(".gone")
        with suppress(OSError):
            repository.bare.rename(moved)
        return lambda: moved.rename(repository.bare)

    def _restart(self, number: signal.Signals) -> None:
        self.is_down.set()
        if number == signal.SIGKILL:
            self.gateway.kill()
        else:
            begun = time.monotonic()
            if (status := self.gateway.stop()) != 0:
                self.broken.append(f"a stop ended with status {status}")
            if (took := time.monotonic() - begun) > STOP_SECONDS + 1:
                self.broken.append(f"a stop took {took:.1f} s")
        self.gateway.start()
        time.sleep(0.3)  # readers that met the gap have noted it by now
        self.is_down.clear()

    def _signal_git(self, random: Random) -> None:
        running = sorted(processes_below(self.gateway.pid))
        if running:
            with suppress(ProcessLookupError):
                number = random.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
                os.kill(random.choice(running), number)

    def _abandon_requests(self) -> None:
        for _ in range(20):
            with socket.create_connection((self.gateway.host, self.gateway.port), 5) as connection:
                connection.sendall(
                    b"POST /alpha/mcp HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    b"Authorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n{"
                    % self.gateway.token.encode()
                )


def _plant_locks(copy: Path) -> None:
    for name in ("HEAD.lock", "shallow.lock", "packed-refs.lock", "config.lock"):
        _write(copy / name, "")


def _cut_a_pack(copy: Path, random: Random) -> None:
    packs = list(copy.glob("objects/pack/*.pack"))
    if packs:
        pack = random.choice(packs)
        with suppress(OSError):
            pack.chmod(0o644)
            os.truncate(pack, pack.stat().st_size // 2)


def _write(path: Path, text: str) -> None:
    with suppress(OSError):
        path.write_text(text)


@pytest.fixture
def soak(
    new_repository: RepositoryFactory,
    git_http_server: GitHttpServerFactory,
    gateway: GatewayFactory,
) -> Soak:
    """A gateway with four owners at two hosts, each with documents that hold the number 0."""
    repositories = {name: new_repository(name) for name in PUSHED_OWNERS}
    hosts = [
        git_http_server(host=host, user="x-access-token", password=SOUTH_TOKEN)
        for host in ("127.0.0.1", "127.0.0.2")
    ]
    owners = {
        name: {"url": hosts[place % 2].url_of(repositories[name]), "ttl": place // 2}
        for place, name in enumerate(PUSHED_OWNERS)
    }
    credentials = {host.authority: {"token_env": "OKF_GIT_TOKEN_SOAK"} for host in hosts}
    process = gateway(
        json.dumps({"owners": owners, "credentials": credentials}),
        environment={
            "OKF_GIT_TOKEN_SOAK": SOUTH_TOKEN,
            "OKF_GATEWAY_PULL_WAIT": "0.3",
            "OKF_GATEWAY_GIT_TIMEOUT": "3",
        },
        is_started=False,
    )
    soak = Soak(process, hosts, repositories)
    for name in PUSHED_OWNERS:
        soak.push(name, 0, Random(0))  # noqa: S311 - no secret
    process.start()
    for name in PUSHED_OWNERS:
        process.wait_for_state(name, "serving")
    return soak


@pytest.mark.row("P1", "P2", "P3", "P4", "P5", "P7", "P8")
def test_after_a_time_of_all_kinds_of_trouble_every_promise_holds(soak: Soak) -> None:
    seed = time.time_ns()
    print(f"seed: {seed}")  # noqa: T201 - pytest shows it if the test fails
    run_all(soak, seed)
    assert soak.broken == []
    assert soak.answers > 50
    assert soak.faults >= 3

    gateway = soak.gateway
    for host in soak.hosts:
        host.release()
    for name, repository in soak.repositories.items():
        wait_until(lambda name=name: gateway.refresh(name).status == 200, RECOVERY_SECONDS)
        row = gateway.owner(name)
        assert (row["served_commit"], row["docs_loaded"]) == (repository.head, DOCUMENTS)
        copy = gateway.cache / name
        # A repack may be on its way still.
        wait_until(lambda copy=copy: not leftovers(copy))
        assert len(list(copy.glob("objects/pack/*.pack"))) <= MAX_PACKS
    assert {path.name for path in gateway.cache.iterdir()} == {*PUSHED_OWNERS, ".home", ".lock"}
    assert SOUTH_TOKEN not in gateway.log
    assert "Traceback" not in gateway.log

    running = processes_below(gateway.pid)
    wait_until(lambda: not any(is_alive(each) for each in running if not is_watchdog(each)))
    begun = time.monotonic()
    assert gateway.stop() == 0
    assert time.monotonic() - begun < STOP_SECONDS
    assert not any(is_alive(each) for each in running)


def run_all(soak: Soak, seed: int) -> None:
    """Read, push and do harm at the same time."""
    random = Random(seed)  # noqa: S311 - no secret
    readers = [Thread(target=soak.read_along, args=(seed + place,)) for place in range(3)]
    harm = Thread(target=soak.harm_along, args=(seed, soak_seconds()))
    for thread in (*readers, harm):
        thread.start()
    number = 0
    while harm.is_alive():
        number += 1
        with suppress(GitError):  # the repository may be away
            soak.push(random.choice(PUSHED_OWNERS), number, random)
        time.sleep(random.uniform(0, 0.3))
    soak.is_over.set()
    for thread in readers:
        thread.join(60)
        assert not thread.is_alive()
    for repository in soak.repositories.values():
        repository.push(force=True)


def leftovers(copy: Path) -> list[str]:
    """Return what a git that was killed left in a copy, and nobody removed."""
    ends, begins = (".lock", ".keep"), ("tmp_", ".tmp-")
    names = [path.name for path in copy.rglob("*")]
    return [name for name in names if name.endswith(ends) or name.startswith(begins)]
