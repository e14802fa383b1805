import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from support.gateway_process import GATEWAY_COMMAND, NORTH_TOKEN, GatewayProcess, wait_until
from support.process_watch import status_kibibytes
from support.raw_http import RawAnswer, RawClient
from support.repositories import Repository

MIB: Final = 1024 * 1024
LARGE_BYTES: Final = 4 * MIB - 1000
MIDDLE_BYTES: Final = 60_000
PIPELINED: Final = 60
KEEP_ALIVE_SECONDS: Final = 2

QUICK: Final = (
    "from okf_mcp_gateway import serving\n"
    f"serving.KEEP_ALIVE_SECONDS = {KEEP_ALIVE_SECONDS}\n"
    "from okf_mcp_gateway.__main__ import main\n"
    "main()\n"
)
"""A gateway that keeps idle connections for a shorter time."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """A repository with a small document, `a`, one of the middle size, and a large one."""
    repository = Repository(tmp_path_factory.mktemp("direct") / "repositories")
    repository.document("a.md", id="a")
    repository.document("middle.md", id="middle", body="x" * MIDDLE_BYTES)
    repository.document("large.md", id="large", body="x" * LARGE_BYTES)
    repository.publish()
    return repository


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, repository: Repository
) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("direct") / "gateway"
    with serving(folder, repository, command=(sys.executable, "-c", QUICK)) as started:
        yield started


def serving(
    folder: Path,
    repository: Repository,
    *,
    command: Sequence[str] = GATEWAY_COMMAND,
    environment: Mapping[str, str | None] | None = None,
) -> AbstractContextManager[GatewayProcess]:
    """Return a gateway that serves one owner, whose content is due at no time of the test."""
    registry = json.dumps({"owners": {"acme": {"url": repository.url, "ttl": 3600}}})
    return GatewayProcess(folder, registry, command=command, environment=environment)


def read(number: object = 1, name: str = "a", more: bytes = b"", token: str = NORTH_TOKEN) -> bytes:
    """Return a read; with a `number` that is a text with an escape no answer is kept for it."""
    uri = f"knowledge://acme/note/{name}"
    message = {"jsonrpc": "2.0", "id": number, "method": "resources/read", "params": {"uri": uri}}
    body = json.dumps(message).encode()
    return (
        b"POST /acme/mcp HTTP/1.1\r\nHost: gateway.example\r\nAuthorization: Bearer %s\r\n"
        b"Content-Type: application/json\r\nAccept: application/json\r\n%s"
        b"Content-Length: %d\r\n\r\n%s" % (token.encode(), more, len(body), body)
    )


def id_of(answer: RawAnswer) -> object:
    assert answer.status == 200
    return json.loads(answer.body)["id"]


def client_of(gateway: GatewayProcess) -> RawClient:
    gateway.wait_for_state("acme", "serving")
    return RawClient((gateway.host, gateway.port))


def hits(gateway: GatewayProcess) -> int:
    row = gateway.status("diagnostics=true")["owners"]["acme"]
    return row["diagnostics"]["answer_cache"]["hits"]


@pytest.mark.row("H10", "H11")
def test_kept_and_other_answers_on_one_connection_come_in_the_order_of_their_requests(
    gateway: GatewayProcess,
) -> None:
    numbers: list[object] = [each if each % 3 else f"{each}\n" for each in range(PIPELINED)]
    numbers[7:7] = list(range(1000, 1003))
    with client_of(gateway) as client:
        client.ask(read(5000))
        before = hits(gateway)
        client.send(b"".join(map(read, numbers)))
        assert [id_of(client.answer()) for _ in numbers] == numbers
        assert hits(gateway) - before == sum(isinstance(each, int) for each in numbers)


@pytest.mark.row("H11")
@pytest.mark.parametrize("is_kept", [True, False], ids=["a kept answer", "another one"])
def test_a_connection_is_closed_behind_an_answer_where_its_client_asks_for_that(
    is_kept: bool, gateway: GatewayProcess
) -> None:
    number = 2 if is_kept else "\n"
    old = read(number).replace(b"HTTP/1.1", b"HTTP/1.0")
    with client_of(gateway) as client:
        client.ask(read(1))
        for sent in (read(number, more=b"Connection: close\r\n"), old):
            # What comes behind is not answered: `answer` reads to the end of the connection.
            answer = client.ask(sent + read(3))
            assert answer.is_last
            assert id_of(answer) == number


@pytest.mark.row("H10")
@pytest.mark.parametrize("number", [2, "\n"], ids=["a kept answer", "another one"])
def test_an_idle_connection_is_closed_after_its_time_and_not_before(
    number: object, gateway: GatewayProcess
) -> None:
    with client_of(gateway) as client:
        client.ask(read(1))
        client.ask(read(number))
        assert not client.is_closed(within=KEEP_ALIVE_SECONDS / 2)
        client.ask(read(number))
        assert not client.is_closed(within=KEEP_ALIVE_SECONDS * 0.75)
        assert client.is_closed(within=8)


@pytest.mark.row("H10", "H11")
def test_kept_answers_that_nobody_takes_do_not_pile_up(gateway: GatewayProcess) -> None:
    """And those that were begun are whole and in order: the rest of the requests is refused."""
    count = 3000
    with client_of(gateway) as client:
        client.ask(read(1, "middle"))
        before = status_kibibytes(gateway.pid, "VmHWM")
        client.send(b"".join(read(number, "middle") for number in range(count)))
        assert [hits(gateway) > 0 for _ in range(5)] == [True] * 5  # it had its time
        grown = status_kibibytes(gateway.pid, "VmHWM") - before
        assert grown < count * MIDDLE_BYTES // 1024 // 4
        number = 0
        while (answer := client.answer()).status == 200:
            assert id_of(answer) == number
            number += 1
        assert (answer.status, answer.is_last) == (503, True)


@pytest.mark.row("H11")
def test_long_kept_answers_are_whole_and_in_order_for_who_is_slow(gateway: GatewayProcess) -> None:
    with client_of(gateway) as client:
        for number in (1, 2):
            whole = client.ask(read(number, "large"))
        client.send(b"".join(read(number, "large") for number in range(PIPELINED)))
        for number in range(PIPELINED):
            answer = client.answer()
            assert id_of(answer) == number
            assert len(answer.body) == len(whole.body) + len(str(number)) - 1


@pytest.mark.row("H11")
def test_a_kept_answer_waits_until_the_one_before_is_taken(gateway: GatewayProcess) -> None:
    """Where the socket takes no more, it is an ASGI request, which waits."""
    with client_of(gateway) as client, client_of(gateway) as other:
        client.send(read("\n", "large") * 3 + read(7))
        assert id_of(other.ask(read(8))) == 8
        assert [id_of(client.answer()) for _ in range(4)] == ["\n", "\n", "\n", 7]


@pytest.mark.row("H10")
def test_a_client_that_begins_to_take_its_answers_late_is_not_broken_off(
    gateway: GatewayProcess,
) -> None:
    """Not even on a connection so new that it was never seen without an answer that waits."""
    with client_of(gateway) as client:
        client.send(read("\n", "large") * 3)
        late = time.monotonic() + 2.5  # the deadlines are looked at each second
        wait_until(lambda: time.monotonic() > late)
        assert [id_of(client.answer()) for _ in range(3)] == ["\n"] * 3


@pytest.mark.row("H10", "H11")
def test_a_kept_answer_takes_no_place(repository: Repository, tmp_path: Path) -> None:
    environment = {"OKF_GATEWAY_MAX_REQUESTS": "1"}
    with (
        serving(tmp_path / "full", repository, environment=environment) as gateway,
        client_of(gateway) as client,
        client_of(gateway) as slow,
    ):
        client.ask(read(1))
        slow.send(read("\n", "large") * 8)
        slow.wait_for_answer()  # the next one has the place, and keeps it
        wait_until(lambda: client.ask(read("\n")).status == 503)
        assert id_of(client.ask(read(2))) == 2
        assert client.ask(read("\n")).status == 503


@pytest.mark.row("G1", "H11")
def test_a_token_that_is_rotated_away_gets_no_kept_answer(
    repository: Repository, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(NORTH_TOKEN)
    environment = {"OKF_GATEWAY_TOKEN": None, "OKF_GATEWAY_TOKEN_FILE": str(token)}
    with (
        serving(tmp_path / "rotated", repository, environment=environment) as gateway,
        client_of(gateway) as client,
    ):
        assert [client.ask(read(number)).status for number in (1, 2)] == [200, 200]
        token.write_text("another-token-of-the-tests")
        wait_until(lambda: client.ask(read(3)).status == 401)
        assert id_of(client.ask(read(4, token="another-token-of-the-tests"))) == 4
