"""Whatever a client sends, it gets the same bytes from a gateway that keeps answers and one not."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.gateway_process import GatewayProcess
from support.odd_requests import ALLOWED_ORIGIN, ROUNDS, OddRequest, fill, odd_requests
from support.raw_http import RawAnswer, RawClient
from support.repositories import Repository

_ORIGINS = {"OKF_GATEWAY_ALLOWED_ORIGINS": ALLOWED_ORIGIN}


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, ...]]:
    """One gateway that keeps answers and one that doesn't, on the same source."""
    folder = tmp_path_factory.mktemp("same")
    repository = Repository(folder / "repositories")
    fill(repository)
    registry = json.dumps({"owners": {"acme": {"url": repository.url, "ttl": 3600}}})
    with ExitStack() as stack:
        started = [_start(folder / mode, registry, mode, stack) for mode in ("on", "off")]
        for each in started:
            each.wait_for_state("acme", "serving")
        yield tuple(started)
    assert all("Traceback" not in each.log for each in started)


def _start(folder: Path, registry: str, mode: str, stack: ExitStack) -> GatewayProcess:
    environment = {"OKF_GATEWAY_ANSWER_CACHE": mode, **_ORIGINS}
    return stack.enter_context(GatewayProcess(folder, registry, environment=environment))


def counts(gateway: GatewayProcess) -> Counter[str]:
    """Return how the owner's requests were answered so far."""
    found = gateway.status("diagnostics=true")["owners"]["acme"]["diagnostics"]["answer_cache"]
    return Counter(found)


@pytest.mark.row("H11")
def test_every_request_gets_the_same_bytes_with_and_without_kept_answers(
    gateways: tuple[GatewayProcess, GatewayProcess],
) -> None:
    requests = odd_requests()
    assert len(requests) >= 100
    before = counts(gateways[0])
    different: list[str] = []
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient((each.host, each.port))) for each in gateways]
        for turn in range(ROUNDS):
            for request in requests:
                kept, asked = (client.ask(request.bytes_of(turn)) for client in clients)
                if kept != asked:
                    different.append(_difference(request, turn, kept, asked))
    assert not different, "\n".join(different)
    hits = counts(gateways[0]) - before
    assert hits["hits"] >= (ROUNDS - 1) * sum(each.is_hot for each in requests)
    assert set(counts(gateways[1]).values()) == {0}


def _difference(request: OddRequest, turn: int, kept: RawAnswer, asked: RawAnswer) -> str:
    return f"{request.name}, round {turn}: {str(kept)[:400]} instead of {str(asked)[:400]}"


@pytest.mark.row("H11")
def test_a_request_in_pieces_gets_the_same_bytes(
    gateways: tuple[GatewayProcess, GatewayProcess],
) -> None:
    """Also where the pieces are so far apart that the body begins to be read before its end."""
    request = next(each for each in odd_requests() if each.name == "modern resources/read")
    sent = request.bytes_of(0)
    whole = set(range(1, len(sent), 97)) | {sent.index(b"\r\n\r\n") + 4, len(sent) - 1}
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient((each.host, each.port))) for each in gateways]
        expected = clients[1].ask(sent)
        for at in sorted(whole):
            for client in clients:
                client.send(sent[:at])
            for client in clients:
                client.send(sent[at:])
                assert client.answer() == expected


@pytest.mark.row("H10", "H11")
@pytest.mark.parametrize("expects", [b"", b"Expect: 100-continue\r\n"], ids=["", "who asks first"])
@pytest.mark.parametrize(
    "refused",
    [b"Content-Length: 5000000", b"Content-Length: 9\r\nContent-Encoding: gzip"],
    ids=["too large", "compressed"],
)
def test_what_its_head_alone_has_refused_waits_for_no_body(
    refused: bytes, expects: bytes, gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    good = next(each for each in odd_requests() if each.name == "modern resources/read")
    head, _, _ = good.bytes_of(0).partition(b"Content-Length")
    answers: list[RawAnswer] = []
    for gateway in gateways:
        with RawClient((gateway.host, gateway.port), deadline=5.0) as client:
            answers.append(client.ask(head + expects + refused + b"\r\n\r\n"))
    assert answers[0] == answers[1]
    assert answers[0].status in {413, 415}


@pytest.mark.row("H11")
def test_what_is_no_read_of_content_is_never_answered_from_memory(
    gateways: tuple[GatewayProcess, GatewayProcess],
) -> None:
    never = ("tools/call", "completion/complete", "initialize", "ping", "notification")
    asked = [each for each in odd_requests() if any(word in each.name for word in never)]
    assert len(asked) >= 10
    before = counts(gateways[0])
    with RawClient((gateways[0].host, gateways[0].port)) as client:
        for turn in range(ROUNDS):
            for request in asked:
                client.ask(request.bytes_of(turn))
    more = counts(gateways[0]) - before
    assert more == Counter(passed_on=ROUNDS * len(asked))
