"""The process: how it starts, what it says, and how it stops."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from support.gateway_process import Answer, GatewayFactory, GatewayProcess, wait_until
from support.git_http import Exchange, GitHttpServer, GitHttpServerFactory
from support.repositories import Repository

REGISTRY: Final = "owners: {acme: {url: 'file:///nonexistent'}}\n"
STOP_SECONDS: Final = 5.0
FOREVER: Final = {"OKF_GATEWAY_PULL_WAIT": "3600", "OKF_GATEWAY_GIT_TIMEOUT": "3600"}

Fault = Callable[[GatewayProcess], None]


@pytest.fixture
def server(published: Repository, git_http_server: GitHttpServerFactory) -> GitHttpServer:
    """A git host with that repository."""
    assert published.bare.exists()
    return git_http_server()


def owners(**urls: str) -> str:
    return json.dumps({"owners": {name: {"url": url} for name, url in urls.items()}})


def prepared(
    folder: Path,
    servers: str = REGISTRY,
    *arguments: str,
    environment: Mapping[str, str | None] | None = None,
    port: int | None = None,
) -> GatewayProcess:
    """Return a gateway that was not started, with arguments for its command line."""
    return GatewayProcess(
        folder / "gateway", servers, arguments=arguments, environment=environment, port=port
    )


def sentences(process: GatewayProcess) -> list[str]:
    """Return the faults that a start ended with, seen that there was nothing else."""
    lines = process.log.splitlines()
    assert lines
    assert all(line.startswith("okf-mcp-gateway: ") for line in lines), process.log
    assert process.stdout == ""
    return [line.removeprefix("okf-mcp-gateway: ") for line in lines]


# Start-up failures


def without_a_token(process: GatewayProcess) -> None:
    del process.environment["OKF_GATEWAY_TOKEN"]


def with_a_blank_token(process: GatewayProcess) -> None:
    process.environment["OKF_GATEWAY_TOKEN"] = " \t"


def with_an_empty_token_file(process: GatewayProcess) -> None:
    without_a_token(process)
    (process.folder / "token").write_text("\n")
    process.environment["OKF_GATEWAY_TOKEN_FILE"] = "token"


def without_servers(process: GatewayProcess) -> None:
    process.servers.unlink()


def with_a_folder_as_servers(process: GatewayProcess) -> None:
    process.servers.unlink()
    process.servers.mkdir()


def with_broken_servers(process: GatewayProcess) -> None:
    process.servers.write_text("owners: [\n")


def with_a_bad_registry(process: GatewayProcess) -> None:
    process.servers.write_text(
        "owners:\n  status: {url: 'https://u:pa55@h/x'}\n  b: {url: 7, ttl: -1, colour: red}\n"
    )


def with_a_bad_port(process: GatewayProcess) -> None:
    process.environment["OKF_GATEWAY_PORT"] = "70000"


def without_git(process: GatewayProcess) -> None:
    process.environment["PATH"] = str(process.folder)
    process.servers.write_text("owners: {acme: {url: 'file:///nonexistent', ref: trunk}}\n")


def with_faults_everywhere(process: GatewayProcess) -> None:
    without_a_token(process)
    with_a_bad_port(process)
    with_a_bad_registry(process)


CONFIGURATION_FAULTS: Final[list[tuple[Fault, list[str]]]] = [
    (without_a_token, ["OKF_GATEWAY_TOKEN is required"]),
    (with_a_blank_token, ["OKF_GATEWAY_TOKEN is required"]),
    (with_an_empty_token_file, ["OKF_GATEWAY_TOKEN is required"]),
    (without_servers, ["servers.yaml: the registry can't be read: No such file or directory"]),
    (with_a_folder_as_servers, ["servers.yaml: the registry can't be read: Is a directory"]),
    (with_broken_servers, ["servers.yaml, line "]),
    (
        with_a_bad_registry,
        [
            "owners.status has a name",
            "owners.status.url is not usable",
            "owners.b.colour is not a known key",
            "owners.b.url is '7'",
            "owners.b.ttl is '-1'",
        ],
    ),
    (with_a_bad_port, ["OKF_GATEWAY_PORT is '70000'"]),
    (without_git, ["environment: PATH leads to no git"]),
    (
        with_faults_everywhere,
        [
            "OKF_GATEWAY_TOKEN is required",
            "OKF_GATEWAY_PORT is '70000'",
            "owners.status has a name",
            "owners.status.url is not usable",
            "owners.b.colour is not a known key",
            "owners.b.url is '7'",
            "owners.b.ttl is '-1'",
        ],
    ),
]


@pytest.mark.row("G1", "G3")
@pytest.mark.parametrize(
    ("fault", "expected"),
    CONFIGURATION_FAULTS,
    ids=[fault.__name__ for fault, _ in CONFIGURATION_FAULTS],
)
def test_a_bad_configuration_is_a_sentence_a_fault_and_status_1(
    fault: Fault, expected: list[str], tmp_path: Path
) -> None:
    process = prepared(tmp_path)
    fault(process)
    assert process.run() == 1
    found = sentences(process)
    for words in expected:
        assert [words in sentence for sentence in found].count(True) == 1, (words, found)
    assert len(found) == len(expected), found
    assert "pa55" not in process.log
    assert not process.cache.exists()


@pytest.mark.row("G1", "G3")
def test_check_finds_the_same_faults_as_a_start(tmp_path: Path) -> None:
    found: list[list[str]] = []
    for arguments in ((), ("check",)):
        process = prepared(tmp_path / (arguments or ("serve",))[0], REGISTRY, *arguments)
        with_faults_everywhere(process)
        assert process.run() == 1
        found.append([each.replace(str(process.folder), "") for each in sentences(process)])
        assert not process.cache.exists()
    assert found[0] == found[1]


@contextmanager
def listening(host: str = "127.0.0.1") -> Generator[int]:
    """Hold a port, as another server does."""
    with socket.create_server((host, 0)) as other:
        yield other.getsockname()[1]


@pytest.mark.row("G1")
def test_a_port_in_use_is_a_sentence(tmp_path: Path) -> None:
    with listening() as port:
        process = prepared(tmp_path, port=port)
        assert process.run() == 1
        assert sentences(process) == [
            f"can't listen on 127.0.0.1 port {port}: Address already in use"
        ]


@pytest.mark.row("G1")
def test_two_that_start_at_once_on_one_port_are_one_gateway_and_one_sentence(
    tmp_path: Path,
) -> None:
    first = prepared(tmp_path / "first")
    second = prepared(tmp_path / "second", port=first.port)
    try:
        first.launch()
        second.launch()
        wait_until(lambda: not (first.is_running and second.is_running), 30)
        ended, other = (second, first) if first.is_running else (first, second)
        assert ended.returncode == 1
        assert sentences(ended) == [
            f"can't listen on 127.0.0.1 port {first.port}: Address already in use"
        ]
        wait_until(lambda: "Listening" in other.log, 30)
        assert other.get("/healthz", token=False).text == "ok"
    finally:
        first.close()
        second.close()


@pytest.mark.row("G1")
@pytest.mark.parametrize("host", ["203.0.113.1", "a..b", "no-such-host.invalid"])
def test_a_host_that_is_not_this_machine_is_a_sentence(host: str, tmp_path: Path) -> None:
    process = prepared(tmp_path, environment={"OKF_GATEWAY_HOST": host})
    assert process.run() == 1
    [sentence] = sentences(process)
    assert sentence.startswith(f"can't listen on {host}")


@pytest.mark.row("G1")
def test_a_cache_that_another_gateway_holds_is_a_sentence(gateway: GatewayFactory) -> None:
    first = gateway(REGISTRY, name="first")
    second = gateway(REGISTRY, name="second", cache=first.cache, is_started=False)
    assert second.run() == 1
    (sentence,) = sentences(second)
    assert sentence.startswith(f"the cache directory {first.cache} is held by another gateway;")
    assert first.get("/healthz", token=False).text == "ok"


@pytest.mark.row("G1")
@pytest.mark.parametrize("path", ["file", "file/below/it"])
def test_a_cache_that_cannot_be_written_is_a_sentence(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    process = prepared(tmp_path, environment={"OKF_GATEWAY_CACHE_DIR": str(tmp_path / path)})
    assert process.run() == 1
    [sentence] = sentences(process)
    assert sentence.startswith(f"the cache directory {tmp_path / path} can't be written: ")


@pytest.mark.row("G1")
def test_a_working_directory_that_is_gone_is_a_sentence(tmp_path: Path) -> None:
    process = prepared(tmp_path)
    script = Path(sys.executable).with_name("okf-mcp-gateway")
    process.command = ("sh", "-c", f"mkdir gone && cd gone && rmdir ../gone && exec {script}")
    assert process.run() == 1
    [sentence] = sentences(process)
    assert sentence == "the working directory can't be used: No such file or directory"


@pytest.mark.row("G1")
def test_usage_that_is_wrong_is_status_2_and_a_sentence(tmp_path: Path) -> None:
    process = prepared(tmp_path, REGISTRY, "chekc")
    assert process.run() == 2
    assert process.log.startswith("usage: okf-mcp-gateway")
    assert "Traceback" not in process.log


# Other commands


@pytest.mark.row("G1")
def test_check_notes_what_is_no_fault_but_will_fail(gateway: GatewayFactory) -> None:
    servers = """
owners:
  acme: {url: 'https://git.example.invalid/acme.git'}
credentials:
  git.example.invalid: {token_env: OKF_GIT_TOKEN_ACME}
  'git.example.invalid:8443': {token_env: OKF_GIT_TOKEN_OTHER}
"""
    process = gateway(servers, is_started=False)
    process.command = (*process.command, "check")
    assert process.run() == 0
    assert process.stdout.splitlines() == [
        "The configuration is good. Owners: acme.",
        "Note: OKF_GIT_TOKEN_ACME is not set, so acme can't be pulled.",
        "Note: no owner has a URL that credentials.git.example.invalid:8443 is for.",
    ]


@pytest.mark.row("G1")
def test_check_touches_neither_port_nor_cache(tmp_path: Path) -> None:
    with listening() as port:
        process = prepared(tmp_path, REGISTRY, "check", port=port)
        assert process.run() == 0
    assert (process.stdout, process.log) == ("The configuration is good. Owners: acme.\n", "")
    assert not process.cache.exists()


@pytest.mark.row("G1")
def test_check_is_good_while_another_gateway_holds_the_cache(
    gateway: GatewayFactory, tmp_path: Path
) -> None:
    first = gateway(REGISTRY, name="first")
    before = {path.name for path in first.cache.iterdir()}
    process = prepared(tmp_path, REGISTRY, "check", port=first.port)
    process.environment["OKF_GATEWAY_CACHE_DIR"] = str(first.cache)
    assert process.run() == 0
    assert {path.name for path in first.cache.iterdir()} == before


@pytest.mark.row("G1")
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_says_what_there_is_and_needs_no_configuration(flag: str, tmp_path: Path) -> None:
    process = prepared(tmp_path, REGISTRY, flag)
    without_a_token(process)
    assert process.run() == 0
    assert process.stdout.startswith("usage: okf-mcp-gateway")
    assert "check the configuration" in process.stdout
    assert process.log == ""


def test_the_console_script_is_the_module(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("okf-mcp-gateway")
    ended = subprocess.run(
        [script, "--version"], cwd=tmp_path, capture_output=True, timeout=30, check=True
    )
    assert re.fullmatch(rb"\d+\.\d+\.\d+\S*\n", ended.stdout)


# Where settings come from


@pytest.mark.row("G1")
def test_dotenv_in_the_working_directory_is_read_and_the_environment_wins(
    tmp_path: Path,
) -> None:
    process = prepared(tmp_path, environment={"OKF_GATEWAY_LOG_FORMAT": "json"})
    (process.folder / ".env").write_text(
        "OKF_GATEWAY_TOKEN=of-dotenv\nOKF_GATEWAY_LOG_FORMAT=text\nOKF_GATEWAY_PULL_WAIT='2.5'\n"
    )
    without_a_token(process)
    with process:
        shown = process.get("/config", token="of-dotenv").json["process"]
        assert (shown["pull_wait"], shown["log_format"]) == (2.5, "json")
        assert process.get("/config", token="other").status == 401


@pytest.mark.row("G1")
def test_the_registry_and_the_cache_have_their_default_places(tmp_path: Path) -> None:
    process = prepared(tmp_path)
    for name in ("OKF_GATEWAY_SERVERS", "OKF_GATEWAY_CACHE_DIR"):
        del process.environment[name]
    with process:
        shown = process.get("/config").json["process"]
        assert shown["servers_path"] == str(process.folder / "servers.yaml")
        assert shown["cache_dir"] == str(process.folder / ".cache" / "okf-mcp-gateway")
        assert (process.folder / ".cache" / "okf-mcp-gateway").is_dir()


@pytest.mark.row("G1", "H4")
def test_the_port_is_the_one_that_was_asked_for_and_the_log_says_so(
    gateway: GatewayFactory,
) -> None:
    process = gateway(REGISTRY)
    assert process.get("/config").json["process"]["port"] == process.port
    [line] = [line for line in process.log.splitlines() if "Listening" in line]
    assert f"address=http://127.0.0.1:{process.port} " in line


@pytest.mark.row("G1", "H4")
def test_port_0_is_any_free_port_and_the_log_and_config_say_which(tmp_path: Path) -> None:
    process = prepared(tmp_path, environment={"OKF_GATEWAY_PORT": "0"})
    process.launch()
    try:
        address = re.compile(r"address=http://127\.0\.0\.1:(\d+) ")
        [port] = wait_until(lambda: address.findall(process.log), 30)
        process.port = int(port)
        assert process.get("/config").json["process"]["port"] == process.port
    finally:
        process.close()


@pytest.mark.row("G1")
def test_an_ipv6_address_is_listened_on(tmp_path: Path) -> None:
    process = prepared(tmp_path, environment={"OKF_GATEWAY_HOST": "::1"})
    process.launch()
    try:
        wait_until(lambda: f"address=http://[::1]:{process.port} " in process.log, 30)
        process.host = "::1"
        assert process.get("/healthz", token=False).text == "ok"
    finally:
        process.close()


# Logs


@pytest.mark.row("G1")
def test_with_json_logs_every_line_of_stderr_parses(
    published: Repository, gateway: GatewayFactory
) -> None:
    process = gateway(
        owners(acme=published.url, beta="file:///nonexistent"),
        environment={"OKF_GATEWAY_LOG_FORMAT": "json", "OKF_GATEWAY_LOG_LEVEL": "debug"},
    )
    process.wait_for_state("acme", "serving")
    process.wait_for_state("beta", "failed")
    assert process.stop() == 0
    lines = [json.loads(line) for line in process.log.splitlines()]
    assert all(list(line) == ["time", "level", "logger", "message"] for line in lines)
    events = [line["message"].partition(":")[0] for line in lines]
    assert {"Listening", "Published", "Pull failed", "Stopping", "Stopped"} <= set(events)
    assert process.stdout == ""


@pytest.mark.row("G1")
def test_with_text_logs_every_line_has_a_time_and_a_level(
    published: Repository, gateway: GatewayFactory
) -> None:
    process = gateway(owners(acme=published.url, beta="file:///nonexistent"))
    process.wait_for_state("acme", "serving")
    process.wait_for_state("beta", "failed")
    assert process.stop() == 0
    line = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING) [\w.]+: \S.*")
    assert all(line.fullmatch(each) for each in process.log.splitlines()), process.log
    assert process.stdout == ""


@pytest.mark.row("G1")
def test_the_log_level_is_honoured(gateway: GatewayFactory) -> None:
    process = gateway(REGISTRY, environment={"OKF_GATEWAY_LOG_LEVEL": "error"})
    process.wait_for_state("acme", "failed")
    assert process.stop() == 0
    assert process.log == ""


# Stopping


def git_processes(process: GatewayProcess) -> list[int]:
    """Return the git processes whose `HOME` is in the cache of this gateway."""
    home = f"HOME={process.cache}/.home".encode()
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if home in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue  # It ended, or is another user's.
    return found


def stop_in_time(process: GatewayProcess, number: signal.Signals = signal.SIGTERM) -> None:
    """Stop a gateway as P8 says: in time, with status 0, leaving nothing behind."""
    started = time.monotonic()
    os.kill(process.pid, number)
    assert process.wait_for_exit() == 0, process.log
    assert time.monotonic() - started < STOP_SECONDS
    wait_until(lambda: not git_processes(process), 5)
    assert process.stdout == ""
    assert "Traceback" not in process.log, process.log
    assert process.log.splitlines()[-1].endswith("Stopped")


@pytest.mark.row("P8")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_gateway_with_nothing_to_do_stops_at_once(
    number: signal.Signals, published: Repository, gateway: GatewayFactory
) -> None:
    process = gateway(owners(acme=published.url))
    process.wait_for_state("acme", "serving")
    stop_in_time(process, number)


@pytest.mark.row("P8")
def test_idle_connections_that_are_kept_alive_dont_keep_it(gateway: GatewayFactory) -> None:
    process = gateway(REGISTRY)
    idle = [HTTPConnection(process.host, process.port, timeout=10) for _ in range(5)]
    for connection in idle:
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok"
        assert connection.sock is not None
    stop_in_time(process)
    for connection in idle:
        connection.close()


@pytest.mark.row("P8")
def test_connections_that_never_said_anything_dont_keep_it(gateway: GatewayFactory) -> None:
    process = gateway(REGISTRY)
    with closing(socket.create_connection((process.host, process.port))):
        process.get("/healthz", token=False)
        stop_in_time(process)


@pytest.mark.row("P8")
def test_a_request_that_never_comes_whole_is_given_up(
    published: Repository, gateway: GatewayFactory
) -> None:
    process = gateway(owners(acme=published.url))
    process.wait_for_state("acme", "serving")
    with closing(socket.create_connection((process.host, process.port))) as half:
        half.sendall(
            b"POST /acme/mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
            b"Authorization: Bearer " + process.token.encode() + b"\r\n\r\n{"
        )
        process.get("/healthz", token=False)
        stop_in_time(process)


class Asker:
    """A request that is under way in a thread of its own."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        # Written by the thread, before it ends.
        self._answers: list[Answer] = []
        self._thread = Thread(target=lambda: self._answers.append(ask()), daemon=True)
        self._thread.start()

    def answer(self) -> Answer:
        self._thread.join(10)
        [answer] = self._answers
        return answer


def ask_for_content(process: GatewayProcess) -> Asker:
    message = {"jsonrpc": "2.0", "id": 1, "method": "resources/list"}
    headers = {"Accept": "application/json, text/event-stream"}
    asker = Asker(lambda: process.post("/acme/mcp", message, headers=headers))
    wait_for_established(process, 1)
    return asker


def wait_for_established(process: GatewayProcess, count: int) -> None:
    """Wait until so many connections to the gateway are open and their bytes were read."""

    def is_so() -> bool:
        local, established = f"0100007F:{process.port:04X}", "01"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        open_ones = [row for row in rows if row[1] == local and row[3] == established]
        return len(open_ones) >= count and all(row[4].endswith(":00000000") for row in open_ones)

    wait_until(is_so, 10)
    process.get("/healthz", token=False)


def is_hanging_probe(exchange: Exchange) -> bool:
    return exchange.is_probe


def is_hanging_fetch(exchange: Exchange) -> bool:
    return exchange.is_fetch


@pytest.mark.row("P8", "P7")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("hanging", [is_hanging_probe, is_hanging_fetch])
def test_whoever_waits_for_a_hanging_pull_is_answered_and_git_is_gone(
    hanging: Callable[[Exchange], bool],
    number: signal.Signals,
    server: GitHttpServer,
    gateway: GatewayFactory,
) -> None:
    server.hang(when=hanging)
    process = gateway(owners(acme=server.url_of("origin.git")), environment=FOREVER)
    server.wait_for_requests(1, when=hanging)
    assert git_processes(process)
    waiting = ask_for_content(process)
    stop_in_time(process, number)
    answer = waiting.answer()
    assert answer.status == 503
    assert answer.json == {"error": "acme has nothing to serve: it is loading, see /status"}
    assert answer.headers["Retry-After"]


@pytest.mark.row("P8", "P4")
def test_with_content_on_hand_whoever_waits_for_a_hanging_pull_gets_that(
    server: GitHttpServer, published: Repository, gateway: GatewayFactory
) -> None:
    registry = json.dumps({"owners": {"acme": {"url": server.url_of(published), "ttl": 0}}})
    process = gateway(registry, environment=FOREVER)
    process.wait_for_state("acme", "serving")
    server.hang()
    server.forget()
    waiting = ask_for_content(process)
    server.wait_for_requests(1)
    stop_in_time(process)
    answer = waiting.answer()
    assert answer.status == 200
    assert answer.json["result"]["_meta"]["served_commit"] == published.head


@pytest.mark.row("P8", "H3")
def test_a_refresh_that_waits_is_answered(
    server: GitHttpServer, published: Repository, gateway: GatewayFactory
) -> None:
    process = gateway(owners(acme=server.url_of(published)), environment=FOREVER)
    process.wait_for_state("acme", "serving")
    server.hang()
    server.forget()
    waiting = Asker(lambda: process.refresh("acme"))
    server.wait_for_requests(1)
    stop_in_time(process)
    answer = waiting.answer()
    assert answer.status == 503
    assert answer.json == {
        "owner": "acme",
        "served_commit": published.head,
        "source_available": False,
        "error": "the gateway stops",
    }


@pytest.mark.row("P8")
def test_a_gateway_with_many_hanging_pulls_stops_in_time(
    server: GitHttpServer, gateway: GatewayFactory
) -> None:
    server.hang()
    names = [f"owner{number}" for number in range(40)]
    process = gateway(
        owners(**{name: server.url_of("origin.git") for name in names}), environment=FOREVER
    )
    server.wait_for_requests(4)
    stop_in_time(process)


@pytest.mark.row("P8")
def test_a_thread_that_waits_for_a_stalled_disk_does_not_keep_the_process() -> None:
    script = (
        "import threading\n"
        "from okf_mcp_gateway import serving\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "serving._leave_if_threads_hang()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=STOP_SECONDS, check=False)
    assert ended.returncode == 0


@pytest.mark.row("P8")
def test_a_signal_that_comes_as_soon_as_it_listens_is_not_lost(tmp_path: Path) -> None:
    process = prepared(tmp_path)
    process.launch()
    try:
        # The port is taken before the event loop, and so uvicorn's own signals, are there.
        wait_until(lambda: is_listening(process.port), 30, interval=0.0)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait_for_exit(STOP_SECONDS) in {0, -signal.SIGTERM}
        assert "Traceback" not in process.log
    finally:
        process.close()


def is_listening(port: int) -> bool:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


@pytest.mark.row("P8", "P4")
def test_the_port_and_the_cache_are_free_for_the_next_start(
    published: Repository, gateway: GatewayFactory
) -> None:
    process = gateway(owners(acme=published.url))
    process.wait_for_state("acme", "serving")
    stop_in_time(process)
    published.take_away()
    process.start()
    row = process.wait_for_state("acme", "serving")
    assert row["served_commit"] == published.head
