"""The HTTP edge holds: whatever is sent to the port, it is answered with the right 4xx, or waits.

Nothing is a 500, nothing keeps a place for ever, and healthy reads go on as if nobody else were
there. That no stranger is told anything is in `tests/gateway/test_auth.py`.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from email.message import Message
from http import HTTPStatus
from http.client import parse_headers
from pathlib import Path
from typing import Final, Self

import pytest

from support.gateway_process import (
    GATEWAY_COMMAND,
    NORTH_TOKEN,
    Answer,
    GatewayProcess,
    wait_until,
)
from support.in_process import mcp_headers, mcp_message
from support.repositories import Repository

DEADLINE_SECONDS: Final = 10.0
STOP_SECONDS: Final = 5.0
MIB: Final = 1024 * 1024

HOST: Final = b"Host: gateway.example\r\n"
TOKEN: Final = f"Authorization: Bearer {NORTH_TOKEN}\r\n".encode()
JSON: Final = (
    b"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
    b"MCP-Protocol-Version: 2025-11-25\r\n"
)
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
READ_PARAMS: Final = {"uri": "knowledge://acme/note/a"}
READ: Final = mcp_message("resources/read", READ_PARAMS, era="2025-11-25")

QUICK: Final = (
    "from okf_mcp_gateway import connection\n"
    "connection.REQUEST_SECONDS = connection.ANSWER_SECONDS = 1\n"
    "from okf_mcp_server import changes\n"
    "changes.MAX_STREAMS = 4\n"
    "from okf_mcp_gateway.__main__ import main\n"
    "main()\n"
)
"""A gateway with shorter deadlines and fewer streams, so that a test needn't wait for either."""


def get(
    target: bytes = b"/status",
    more: bytes = b"",
    *,
    method: bytes = b"GET",
    version: bytes = b"HTTP/1.1",
    head: bytes = HOST + TOKEN,
) -> bytes:
    """Return a request without a body."""
    return b"%s %s %s\r\n%s%s\r\n" % (method, target, version, head, more)


def post(
    more: bytes = b"",
    *,
    body: bytes = READ,
    length: bytes | None = None,
    types: bytes = JSON,
    target: bytes = b"/acme/mcp",
    head: bytes = HOST + TOKEN,
) -> bytes:
    """Return a request with a body, by default a good read; `length` is how it is framed."""
    framing = b"Content-Length: %d\r\n" % len(body) if length is None else length
    return b"POST %s HTTP/1.1\r\n%s%s%s%s\r\n%s" % (target, head, types, framing, more, body)


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def upgrade(protocol: bytes, more: bytes = b"") -> bytes:
    return b"Connection: Upgrade\r\nUpgrade: %s\r\n%s" % (protocol, more)


class Client:
    """A connection on which any bytes can be sent; every wait has a deadline."""

    def __init__(self, gateway: GatewayProcess, sent: bytes = b"") -> None:
        self._socket = socket.create_connection((gateway.host, gateway.port), DEADLINE_SECONDS)
        self._stream = self._socket.makefile("rb")
        self.send(sent)

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    def send(self, sent: bytes) -> None:
        """Send as much as the gateway takes: what is refused has an answer before its end."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(sent)

    def answer(self, method: str = "GET") -> Answer:
        """Return the next answer; of one without a length, a stream, only the head."""
        status, headers = self._head()
        if status == HTTPStatus.CONTINUE:
            status, headers = self._head()
        size = 0 if method == "HEAD" else int(headers.get("content-length", "0"))
        return Answer(status, headers, self._stream.read(size))

    def _head(self) -> tuple[int, Message]:
        line = self._stream.readline(65536)
        assert line, "closed without an answer"
        return int(line.split()[1]), parse_headers(self._stream)

    def is_closed(self, within: float = DEADLINE_SECONDS) -> bool:
        """Whether the gateway closes it in time, whatever it says before."""
        self._socket.settimeout(within)
        try:
            while self._stream.read1(65536):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Leave, whatever is still under way."""
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """A repository with a small document, `a`, and a large one, `large`."""
    repository = Repository(tmp_path_factory.mktemp("edge") / "repositories", "origin")
    repository.document("a.md", id="a")
    repository.document("large.md", id="large", body="x" * (4 * MIB - 1000))
    repository.publish()
    return repository


@contextmanager
def serving(
    folder: Path,
    url: str,
    *,
    command: Sequence[str] = GATEWAY_COMMAND,
    environment: Mapping[str, str | None] | None = None,
) -> Generator[GatewayProcess]:
    """Run a gateway that serves one owner, and see that its log tells of no crash."""
    registry = json.dumps({"owners": {"acme": {"url": url}}})
    gateway = GatewayProcess(folder, registry, command=command, environment=environment)
    with gateway:
        gateway.wait_for_state("acme", "serving")
        yield gateway
    assert gateway.returncode == 0
    assert "ERROR" not in gateway.log
    assert "Traceback" not in gateway.log


@pytest.fixture(scope="module")
def edge(
    tmp_path_factory: pytest.TempPathFactory, repository: Repository
) -> Iterator[GatewayProcess]:
    """One gateway for all that is refused."""
    with serving(tmp_path_factory.mktemp("edge") / "gateway", repository.url) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def quick(
    tmp_path_factory: pytest.TempPathFactory, repository: Repository
) -> Iterator[GatewayProcess]:
    """A gateway with short deadlines and few streams."""
    command = (sys.executable, "-c", QUICK)
    folder = tmp_path_factory.mktemp("edge") / "quick"
    with serving(folder, repository.url, command=command) as gateway:
        yield gateway


def latencies(gateway: GatewayProcess, count: int = 200) -> list[float]:
    """Return how long each of so many reads took, in seconds, the fastest first."""
    taken: list[float] = []
    with Client(gateway) as client:
        for _ in range(count):
            began = time.perf_counter()
            client.send(post())
            assert client.answer().status == HTTPStatus.OK
            taken.append(time.perf_counter() - began)
    return sorted(taken)


def are_undisturbed(before: list[float], after: list[float]) -> bool:
    """Whether the 99th percentile is no more than twice what it was, or 25 ms more."""
    p99 = before[len(before) * 99 // 100 - 1], after[len(after) * 99 // 100 - 1]
    return p99[1] <= max(2 * p99[0], p99[0] + 0.025)


def descriptors(gateway: GatewayProcess) -> int:
    return len(list(Path(f"/proc/{gateway.pid}/fd").iterdir()))


# What is refused, and what isn't.

NO_HOST: Final = TOKEN
ENDLESS: Final = b"a" * MIB

REFUSED: Final[dict[str, tuple[int, bytes]]] = {
    # Framing.
    "one length twice": (400, post(b"Content-Length: %d\r\n" % len(READ))),
    "two lengths": (400, post(b"Content-Length: 3\r\n")),
    "a length and chunks": (400, post(CHUNKED, body=chunk(READ) + chunk(b""))),
    "a length below zero": (400, post(length=b"Content-Length: -1\r\n")),
    "a length with a sign": (400, post(length=b"Content-Length: +5\r\n")),
    "a length in words": (400, post(length=b"Content-Length: many\r\n")),
    "a length of 20 digits": (400, post(length=b"Content-Length: 99999999999999999999\r\n")),
    "another coding": (400, post(length=b"Transfer-Encoding: gzip\r\n")),
    "another coding, in chunks": (
        400,
        post(length=b"Transfer-Encoding: gzip, chunked\r\n", body=chunk(READ) + chunk(b"")),
    ),
    "a chunk without a size": (400, post(length=CHUNKED, body=b"zz\r\n")),
    "a chunk that is longer than it says": (400, post(length=CHUNKED, body=b"1\r\nab\r\n")),
    # Bodies.
    "4 MiB + 1": (413, post(body=b" " * (4 * MIB + 1))),
    "4 MiB + 1 in chunks": (
        413,
        post(length=CHUNKED, body=chunk(b" " * MIB) * 4 + chunk(b" ") + chunk(b"")),
    ),
    "4 MiB + 1, announced": (413, post(length=b"Content-Length: 4194305\r\n", body=b" ")),
    "4 MiB + 1, where none is read": (413, post(body=b" " * (4 * MIB + 1), target=b"/status")),
    "a million chunks": (400, post(length=CHUNKED, body=chunk(b" ") * MIB)),
    "an endless extension of a chunk": (431, post(length=CHUNKED, body=b"1;" + ENDLESS)),
    "an endless trailer": (431, post(length=CHUNKED, body=chunk(b"a") + b"0\r\nX: " + ENDLESS)),
    "10,000 trailers": (
        431,
        post(length=CHUNKED, body=chunk(b"a") + b"0\r\n" + b"X-Trailer: a\r\n" * 10_000),
    ),
    "gzip": (415, post(b"Content-Encoding: gzip\r\n")),
    "no body": (400, post(body=b"")),
    "not JSON": (400, post(body=b"\x00" * 10)),
    "not UTF-8": (400, post(body=READ.decode().encode("utf-16"))),
    # Types.
    "text": (400, post(types=b"Content-Type: text/plain\r\nAccept: application/json\r\n")),
    "no type": (400, post(types=b"Accept: application/json\r\n")),
    "two types": (400, post(b"Content-Type: text/plain\r\n")),
    "XML accepted": (406, post(types=b"Content-Type: application/json\r\nAccept: text/xml\r\n")),
    # Heads.
    "no host": (400, get(head=TOKEN)),
    "two hosts": (400, get(more=HOST)),
    "two hosts in HTTP/1.0": (400, get(more=HOST, version=b"HTTP/1.0")),
    "a header of 1 MB": (431, get(more=b"X: " + ENDLESS + b"\r\n")),
    "a header without an end": (431, b"GET /status HTTP/1.1\r\nX: " + ENDLESS),
    "a name without an end": (431, b"GET /status HTTP/1.1\r\n" + ENDLESS),
    # `Host` and the token are the other two.
    "257 headers": (431, get(more=b"X: a\r\n" * 255)),
    "10,000 headers": (431, get(more=b"X-Header: a\r\n" * 10_000)),
    "10,000 tokens": (431, get(more=TOKEN * 10_000)),
    "a folded header": (400, get(more=b"X: a\r\n b\r\n")),
    "NUL in a header": (400, get(more=b"X: a\x00b\r\n")),
    "a blank in a name": (400, get(more=b"X : a\r\n")),
    "no colon": (400, get(more=b"X\r\n")),
    "bare line feeds": (400, get().replace(b"\r\n", b"\n")),
    "bare carriage returns": (400, get().replace(b"\r\n", b"\r")),
    "two tokens": (401, get(more=TOKEN)),
    # Other protocols.
    "HTTP/0.9": (400, b"GET /status\r\n\r\n"),
    "HTTP/1.2": (400, get(version=b"HTTP/1.2")),
    "HTTP/2.0 in the line": (400, get(version=b"HTTP/2.0")),
    "HTTP/2 without asking": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)),
    "nonsense": (400, b"\x00\xff" * 100 + b"\r\n\r\n"),
    # Targets.
    "a query of 1 MB": (414, get(b"/status?x=" + ENDLESS)),
    "a path of 1 MB": (414, get(b"/" + ENDLESS)),
    "a target without an end": (414, b"GET /" + ENDLESS),
    "encoded dots": (404, get(b"/acme/%2e%2e/status")),
    "dots": (404, get(b"/acme/../status")),
    "dots below .well-known": (404, get(b"/.well-known/%2e%2e/status")),
    "dots below healthz": (404, get(b"/healthz/../status")),
    "an encoded slash": (405, get(b"/acme%2fmcp")),
    "a backslash": (404, get(b"/acme\\mcp")),
    "an encoded backslash": (404, get(b"/acme%5cmcp")),
    "NUL": (400, get(b"/acme/mcp\x00")),
    "an encoded NUL": (404, get(b"/acme/mcp%00")),
    "two slashes": (404, get(b"//")),
    "two slashes and an owner": (404, get(b"//acme/mcp")),
    "two slashes inside": (404, get(b"/acme//mcp")),
    "half an escape": (404, get(b"/%")),
    "no UTF-8": (404, get(b"/%ff%fe")),
    "bytes beyond ASCII": (400, get(b"/\xff")),
    "a blank": (400, get(b"/a b")),
    "nothing": (400, get(b"")),
    "a star": (404, get(b"*")),
    "a bare word": (400, get(b"status")),
    "an authority": (400, get(b"gateway.example:443")),
    "a scheme alone": (400, get(b"http://")),
    "another scheme": (400, get(b"file:///etc/passwd")),
    "a port that is none": (400, get(b"http://gateway.example:99999/status")),
    "an address without an end": (400, get(b"http://[::1/status")),
    "a whole URL to an endpoint": (405, get(b"http://gateway.example/acme/mcp")),
    # Methods.
    "CONNECT to a host": (400, get(b"gateway.example:443", method=b"CONNECT")),
    "a method in lower case": (400, get(method=b"get")),
    "an unknown method": (400, get(method=b"FETCH")),
    "no method": (400, get(method=b"")),
}
"""What must come: always our JSON, or for a message that came whole the SDK's."""


@pytest.mark.row("H8", "H10")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_with_the_right_status_and_a_sentence(
    name: str, edge: GatewayProcess
) -> None:
    status, sent = REFUSED[name]
    with Client(edge, sent) as client:
        answer = client.answer()
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    assert answer.json["error"]
    with Client(edge, get()) as client:
        assert client.answer().status == HTTPStatus.OK


SERVED: Final[dict[str, bytes]] = {
    "plainly": post(),
    "a type with a charset": post(types=JSON.replace(b"json\r\n", b"json; charset=utf-8\r\n", 1)),
    "in chunks": post(length=CHUNKED, body=b"".join(chunk(bytes([b])) for b in READ) + chunk(b"")),
    "with a trailer that is no header": post(
        length=CHUNKED, body=chunk(READ) + b"0\r\nAuthorization: Bearer x\r\n\r\n"
    ),
    "after asking whether to": post(b"Expect: 100-continue\r\n"),
    "4 MiB": post(body=READ + b" " * (4 * MIB - len(READ))),
    "with an offer of HTTP/2": post(
        upgrade(b"h2c", b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n")
    ),
    "with an offer of web sockets": post(upgrade(b"websocket")),
    "with bytes beyond ASCII": post(b"X: \xff\xfe\r\n"),
    "in HTTP/1.0 without a host": post(head=TOKEN).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "by a whole URL": post(target=b"http://user:password@elsewhere.example:99/acme/mcp"),
}


@pytest.mark.row("H2", "H10")
@pytest.mark.parametrize("name", SERVED)
def test_what_is_only_unusual_is_served(name: str, edge: GatewayProcess) -> None:
    with Client(edge, SERVED[name]) as client:
        answer = client.answer()
        assert answer.json["result"]["contents"][0]["uri"] == READ_PARAMS["uri"]
        if "HTTP/1.0" not in name:
            client.send(get())
            assert client.answer().status == HTTPStatus.OK
    assert "pip install" not in edge.log


@pytest.mark.row("H1", "H2", "H8", "H10")
def test_every_method_on_every_route_has_its_status(edge: GatewayProcess) -> None:
    allowed = {
        b"/healthz": {b"GET", b"HEAD"},
        b"/status": {b"GET", b"HEAD"},
        b"/config": {b"GET", b"HEAD"},
        b"/acme/refresh": {b"POST"},
        b"/acme/mcp": {b"POST"},
        b"/acme/mcp/": {b"POST"},
    }
    methods = (
        b"GET HEAD POST PUT PATCH DELETE OPTIONS TRACE PROPFIND QUERY CONNECT get BREW".split()
    )
    for target, taken in {**allowed, b"/nothing": set[bytes]()}.items():
        for method in methods:
            with Client(edge, get(target, b"Content-Length: 0\r\n", method=method)) as client:
                answer = client.answer(method.decode())
            expected = 405 if target in allowed else 404
            if method in {b"CONNECT", b"get", b"BREW"}:
                expected = 400
            elif method in taken:
                expected = 400 if b"mcp" in target else 200  # a message without a body
            assert (target, method, answer.status) == (target, method, expected)
            assert (answer.status == 405) == ("allow" in answer.headers)


# Many requests on one connection.


@pytest.mark.row("H10")
def test_what_was_asked_before_is_answered_before_the_rest_is_refused(edge: GatewayProcess) -> None:
    with Client(edge, get() + get(b"/nothing") + b"\x00nonsense\r\n\r\n") as client:
        assert [client.answer().status for _ in range(3)] == [200, 404, 400]
        assert client.is_closed()
    with Client(edge, get(b"/config") * 500) as client:
        statuses = [client.answer().status for _ in range(66)]
        assert statuses == [200] * 65 + [503]
        assert client.is_closed()


LISTEN: Final = post(
    body=mcp_message("subscriptions/listen", {"notifications": {"resourcesListChanged": True}}),
    types="".join(
        f"{name}: {value}\r\n" for name, value in mcp_headers("subscriptions/listen").items()
    ).encode(),
)


@pytest.mark.row("H10")
def test_a_stream_ends_with_its_client_also_when_that_asked_for_more(quick: GatewayProcess) -> None:
    for _ in range(3):
        clients = [Client(quick, LISTEN + get()) for _ in range(4)]
        for client in clients:
            assert client.answer().headers["content-type"].startswith("text/event-stream")
            client.close()
        wait_until(lambda: is_stream_free(quick))


def is_stream_free(gateway: GatewayProcess) -> bool:
    with Client(gateway, LISTEN) as client:
        return client.answer().headers["content-type"].startswith("text/event-stream")


# Deadlines.


@pytest.mark.row("H10")
def test_a_request_that_does_not_come_in_is_408_and_a_connection_without_one_is_closed(
    quick: GatewayProcess,
) -> None:
    begun = {
        "nothing": b"",
        "half a head": get()[:-2],
        "half a body": post()[:-9],
        "half a chunk": post(length=CHUNKED, body=b"ff\r\na"),
        "a head behind a whole request": post() + get()[:-2],
        "a body behind a whole request": post() + post()[:-9],
    }
    with ExitStack() as stack:
        slow = {name: stack.enter_context(Client(quick, sent)) for name, sent in begun.items()}
        stranger = stack.enter_context(Client(quick, post(head=HOST)[:-9]))
        assert stranger.answer().status == 401
        for _ in range(3):  # what trickles is no faster
            time.sleep(0.3)
            slow["half a head"].send(b"X: a\r\n")
            slow["half a chunk"].send(b"a")
        for name, client in slow.items():
            if "behind" in name:
                assert (name, client.answer().status) == (name, 200)
            assert (name, client.answer().status) == (name, 408)
            assert (name, client.is_closed()) == (name, True)
        assert stranger.is_closed()
    assert latencies(quick, 1)


@pytest.mark.row("H10")
def test_a_client_that_takes_nothing_of_its_answer_is_broken_off(quick: GatewayProcess) -> None:
    uri = "knowledge://acme/note/large"
    large = post(body=mcp_message("resources/read", {"uri": uri}, era="2025-11-25"))
    with Client(quick, large * 3) as client:
        wait_until(lambda: holds(quick, client))
        wait_until(lambda: not holds(quick, client))


def holds(gateway: GatewayProcess, client: Client) -> bool:
    """Whether the gateway has its end of a connection, as the kernel sees it."""
    ends = (f":{gateway.port:04X}", f":{client.port:04X}")
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if (fields[1][-5:], fields[2][-5:]) == ends:
            return fields[9] != "0"  # a closed one may still be sending, but is no file
    return False


# Many requests at once.


def refused(answer: Answer) -> Answer | None:
    return answer if answer.status == 503 else None


@pytest.mark.row("H10")
def test_one_request_more_than_the_bound_is_503_at_once(
    repository: Repository, tmp_path: Path
) -> None:
    environment = {"OKF_GATEWAY_MAX_REQUESTS": "3"}
    document = b"---\nexport: true\ntype: Note\n---\nWords.\n"
    repository.fast_import({f"{number}.md": document for number in range(5000)})
    repository.push()
    with ExitStack() as stack:
        gateway = stack.enter_context(
            serving(tmp_path / "g", repository.url, environment=environment)
        )
        streams = [stack.enter_context(Client(gateway, LISTEN)) for _ in range(5)]
        assert [stream.answer().status for stream in streams] == [200] * 5
        half = [stack.enter_context(Client(gateway, post()[:-1])) for _ in range(5)]
        long = get(b"/status?artifacts=true&format=yaml")
        slow = [stack.enter_context(Client(gateway, long)) for _ in range(3)]
        answer = wait_until(lambda: refused(gateway.get("/config")))
        assert answer is not None
        assert (answer.status, answer.json) == (
            503,
            {"error": "too many requests at once: try again"},
        )
        assert answer.headers["retry-after"] == "1"
        assert gateway.get("/healthz", token=False).status == 200
        assert gateway.get("/acme/mcp", token=False).status == 401
        # Who is answered gives a place back.
        assert [client.answer().status for client in slow] == [200] * 3
        for client in half:
            client.send(post()[-1:])
        assert {client.answer().status for client in half} <= {200, 503}
        for sent in (post(body=b"not JSON"), post(body=b"x" * (4 * MIB + 1)), get(b"/nothing")):
            for _ in range(4):
                with Client(gateway, sent) as client:
                    assert client.answer().status in {400, 404, 413}
        for _ in range(4):
            Client(gateway, post()).close()
        wait_until(lambda: gateway.get("/config").status == 200)
        together = [stack.enter_context(Client(gateway, get(b"/healthz"))) for _ in range(3)]
        assert [client.answer().status for client in together] == [200] * 3


# Many connections.


@pytest.mark.row("H10", "P8")
def test_a_thousand_idle_connections_and_200_half_requests_disturb_nobody_and_no_stop(
    repository: Repository, tmp_path: Path
) -> None:
    # A soft limit as most systems have it; the gateway raises its own.
    command = ("prlimit", "--nofile=256:4096", *GATEWAY_COMMAND)
    with serving(tmp_path / "g", repository.url, command=command) as gateway, ExitStack() as stack:
        undisturbed = latencies(gateway)
        begun = [b""] * 1000 + [post()[:-9], get()[:-2]] * 100
        clients = [stack.enter_context(Client(gateway, sent)) for sent in begun]
        wait_until(lambda: descriptors(gateway) > len(clients))
        assert are_undisturbed(undisturbed, latencies(gateway))
        assert descriptors(gateway) < len(clients) + 100
        for client in (clients[0], clients[999]):  # none had to make room
            client.send(get())
            assert client.answer().status == 200
        began = time.monotonic()
        assert gateway.stop() == 0
        assert time.monotonic() - began < STOP_SECONDS


@pytest.mark.row("H10")
def test_connections_cannot_use_up_the_descriptors(repository: Repository, tmp_path: Path) -> None:
    command = ("prlimit", "--nofile=256:256", *GATEWAY_COMMAND)
    with serving(tmp_path / "g", repository.url, command=command) as gateway, ExitStack() as stack:
        for _ in range(150):
            stack.enter_context(Client(gateway))
        # All at once: more than accept() has descriptors for.
        os.kill(gateway.pid, signal.SIGSTOP)
        try:
            for _ in range(400):
                stack.enter_context(Client(gateway))
        finally:
            os.kill(gateway.pid, signal.SIGCONT)
        assert latencies(gateway, 20)
        wait_until(lambda: descriptors(gateway) < 180)
        assert gateway.refresh("acme").status == 200  # git has descriptors, too
        before = cpu_seconds(gateway)
        time.sleep(0.5)
        assert cpu_seconds(gateway) - before < 0.2


def cpu_seconds(gateway: GatewayProcess) -> float:
    """Return what the process has used of a processor."""
    fields = Path(f"/proc/{gateway.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
