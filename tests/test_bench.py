"""The benchmark measures what it says: what is slow shows, and a wrong answer stops it."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer
from threading import Thread

import pytest
from bench.answers import WrongAnswerError, ask_once, check_answer
from bench.bare import Bare
from bench.calls import cost
from bench.client import Load, LoadClient, Outcome
from bench.documents import sample, samples
from bench.figures import BRIEF, Effort, Figure, Findings, cost_ratios, ratios
from bench.gates import hold
from bench.plain_sdk import PlainSdk
from bench.processes import cpu_seconds, running, serving
from bench.questions import LEGACY, MODERN, Era, Question, Workload, listing, reads
from bench.report import RESULTS, quoted
from starlette.types import Receive, Scope, Send

from support.gateway_process import find_free_port

PROJECT = Path(__file__).parent.parent
README = PROJECT / "README.md"

DOCUMENTS = {"small": samples(3, body_bytes=100)}
URI = DOCUMENTS["small"][0].uri("small")
READ = Question("resources/read", MODERN, "small", URI)

SLOW_SERVER = """
import sys, time, uvicorn
from bench.bare import Bare
from bench.uvicorn_options import PLAIN

async def slow(scope, receive, send, bare=Bare()):
    until = time.process_time() + 0.002
    while time.process_time() < until:
        pass
    await bare(scope, receive, send)

uvicorn.run(slow, port=int(sys.argv[1]), lifespan="off", **PLAIN)
"""
"""The bare application, but for 2 ms of work."""


@pytest.fixture(autouse=True)
def _processes_find_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{PROJECT}:{PROJECT / 'tests'}")
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
        monkeypatch.delenv(name)  # it would be what is measured


def load(port: int, pid: int, *, body_bytes: int = 500, connections: int = 2) -> Load:
    before, after = READ.request(f"127.0.0.1:{port}", f"/{body_bytes}")
    return Load(
        port=port,
        server_pid=pid,
        requests=((before.decode(), after.decode()),),
        body_bytes=body_bytes,
        connections=connections,
        warm_up=10,
        seconds=0.0,
        total=60,
    )


def run_load(body_bytes: int = 500) -> Outcome:
    port = find_free_port()
    with serving("bench.bare", port) as pid, LoadClient() as client:
        return client.run(load(port, pid, body_bytes=body_bytes))


# A server that is slow


def test_a_slow_server_shows_in_its_cpu_time_and_in_what_its_clients_wait() -> None:
    port = find_free_port()
    command = [sys.executable, "-c", SLOW_SERVER, str(port)]
    with running(command, port) as pid, LoadClient() as client:
        slow = client.run(load(port, pid))
    fast = run_load()
    assert (slow.answers, fast.answers) == (60, 60)
    assert slow.cpu_microseconds >= 2_000
    assert fast.cpu_microseconds < slow.cpu_microseconds / 3
    assert fast.p50_milliseconds < slow.p50_milliseconds
    assert 2 <= slow.p50_milliseconds <= slow.p99_milliseconds
    assert slow.per_second < 500


def test_a_slow_application_shows_in_process() -> None:
    bare = Bare()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        until = time.process_time() + 0.001
        while time.process_time() < until:
            pass
        await bare(scope, receive, send)

    async def both() -> tuple[float, float]:
        asked = [READ] * 50
        return await cost(slow, "/500", asked, DOCUMENTS), await cost(
            bare, "/500", asked, DOCUMENTS
        )

    spent, least = asyncio.run(both())
    assert spent >= 1_000 > least * 3


def test_what_a_process_spends_is_told_and_what_it_sleeps_is_not() -> None:
    busy, asleep = "while True: pass", "import time; time.sleep(60)"
    port = find_free_port()
    listen = f"import socket; s = socket.create_server(('127.0.0.1', {port}))\n"
    found: list[float] = []
    for code in (busy, asleep):
        with running([sys.executable, "-c", listen + code], port) as pid:
            before = cpu_seconds(pid)
            time.sleep(0.3)
            found.append(cpu_seconds(pid) - before)
    assert found[0] > 0.05 > found[1]


# An answer that is wrong


def http(body: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


GOOD_BODY = '{"id":1000000,"result":1}'
GOOD = http(GOOD_BODY)
REFUSAL = http(GOOD_BODY, "421 Misdirected Request")


@contextmanager
def answering(answers: Sequence[bytes]) -> Generator[int]:
    """Listen on a port; give each request the next answer, the last one for ever."""
    left = list(answers)

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            while self.request.recv(65_536):
                self.wfile.write(left.pop(0) if len(left) > 1 else left[0])

    with TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(10)


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([REFUSAL], "421"),
        ([GOOD, REFUSAL], "421"),
        ([http('{"result":1}')], "not an answer of 25 bytes"),
        ([GOOD, http(GOOD_BODY + " ")], "not an answer of 25 bytes"),
        ([GOOD, GOOD + b"\n"], "not the expected answer"),
        ([GOOD, http('{"id":1000000,"errors":1}')], "not the expected answer"),
    ],
    ids=[
        "421",
        "421 later",
        "other length",
        "other length later",
        "more than said",
        "no result later",
    ],
)
def test_an_answer_that_is_not_the_expected_one_stops_the_run(
    answers: Sequence[bytes], told: str
) -> None:
    with answering(answers) as port, LoadClient() as client:
        asked = replace(load(port, os.getpid(), connections=1), body_bytes=len(GOOD_BODY))
        with pytest.raises(WrongAnswerError, match=told):
            client.run(asked)


def test_an_answer_is_right_if_it_has_the_text_and_the_id_that_were_asked_for() -> None:
    documents = DOCUMENTS["small"]
    right = {"jsonrpc": "2.0", "id": 7, "result": {"contents": [{"text": documents[0].body}]}}
    check_answer(json.dumps(right).encode(), READ, documents, 7)
    check_answer(b"event: message\ndata: %s\n\n" % json.dumps(right).encode(), READ, documents, 7)
    other = {**right, "result": {"contents": [{"text": documents[1].body}]}}
    for wrong in (other, {**right, "id": 8}, {"id": 7, "error": {"code": 1}}):
        with pytest.raises(WrongAnswerError):
            check_answer(json.dumps(wrong).encode(), READ, documents, 7)
    with pytest.raises(WrongAnswerError):
        check_answer(b"<html>", READ, documents, 7)


@pytest.mark.parametrize("era", [MODERN, LEGACY])
def test_both_versions_are_asked_as_their_clients_ask(era: Era) -> None:
    port = find_free_port()
    with serving("bench.plain_sdk", port, "small=3"):
        documents = samples(3)
        for question in (*reads("small", [URI], era), *listing("small", era)):
            assert ask_once(port, "/small/mcp", question, documents) > 100
        with pytest.raises(WrongAnswerError):
            ask_once(port, "/small/mcp", READ, [sample(0, seed=1)])


def test_what_an_application_costs_is_told_only_if_it_answers_rightly() -> None:
    async def first_reads(uri: str, era: Era) -> float:
        sdk = PlainSdk(DOCUMENTS)
        asked = reads("small", [URI, uri], era)
        async with sdk.running():
            try:
                return await cost(sdk, "/small/mcp", asked, DOCUMENTS)
            except WrongAnswerError:
                return 0.0

    for era in (MODERN, LEGACY):
        assert asyncio.run(first_reads(DOCUMENTS["small"][1].uri("small"), era)) > 0
        assert asyncio.run(first_reads("knowledge://small/note/nothing", era)) == 0


# What is asked, and sent


@pytest.mark.parametrize("size", [100, 4_096, 4_097, 188_000])
def test_the_bare_server_sends_as_many_bytes_as_it_is_told(size: int) -> None:
    assert run_load(size).answers == 60


def test_all_documents_are_equally_long_also_as_json() -> None:
    made = [each.body for each in (*samples(300), *samples(50, seed=3))]
    assert {len(body.encode()) for body in made} == {4_096}
    assert len({len(json.dumps(body)) for body in made}) == 1
    assert len(set(made)) == len(made)
    assert all(body == body.strip() for body in made)


def test_each_round_of_a_cold_workload_asks_what_no_other_asked() -> None:
    questions = reads("small", [str(number) for number in range(100)], MODERN)
    cold = Workload("cold", questions, is_cold=True)
    asked = [question for number in range(4) for question in cold.of_round(number, 4).questions]
    assert (len(asked), set(asked)) == (100, set(questions))


# What is made of it


def figure(samples: Sequence[float], gate: float | None = 2) -> Figure:
    return Figure("a figure", tuple(samples), "at most", 1, gate)


def test_a_ratio_is_taken_round_by_round_and_the_median_decides() -> None:
    assert ratios([2, 30, 4], [1, 10, 4]) == (2, 3, 1)


def test_in_a_brief_run_the_least_costs_of_all_rounds_are_compared() -> None:
    assert cost_ratios([2, 30, 4], [1, 10, 4], is_brief=True) == (2,)
    assert cost_ratios([2, 30, 4], [1, 10, 4], is_brief=False) == (2, 3, 1)
    assert (figure([9, 1, 1]).is_reached, figure([9, 9, 1]).is_through) == (True, False)
    assert (figure([2, 2, 2]).is_reached, figure([2, 2, 2]).is_through) == (False, True)
    assert figure([9], gate=None).is_through


def test_of_a_counter_every_round_counts() -> None:
    counted = Figure("parses", (1, 1, 2), "exactly", 1, 1)
    assert (counted.is_reached, counted.is_through) == (False, False)


def test_a_figure_at_least_as_great_as_its_gate_passes() -> None:
    assert Figure("ratio", (0.7,), "at least", 0.85, 0.7).is_through
    assert not Figure("ratio", (0.69,), "at least", 0.85, 0.7).is_through


def test_a_gate_gets_a_second_try_with_more_rounds_and_no_third() -> None:
    tries: list[int] = []

    def improves(effort: Effort) -> Findings:
        tries.append(effort.rounds)
        return Findings((figure([3 if len(tries) == 1 else 1]),))

    assert hold("tier", improves)
    assert tries == [BRIEF.rounds, BRIEF.rounds * 3]
    assert not hold("tier", lambda _: Findings((figure([3]),)))


def test_what_is_far_off_its_gate_gets_no_second_try() -> None:
    tries: list[int] = []

    def fails(effort: Effort) -> Findings:
        tries.append(effort.rounds)
        return Findings((figure([5]),))

    assert not hold("tier", fails)
    assert tries == [BRIEF.rounds]


def test_the_readme_quotes_the_results_as_they_are() -> None:
    readme = README.read_text()
    assert quoted(readme, RESULTS.read_text()) == readme


def test_the_results_name_no_machine_and_no_path() -> None:
    results = RESULTS.read_text()
    assert os.uname().nodename not in results
    assert str(PROJECT) not in results
