"""The proxy that the suite's requests go through."""

import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from threading import Event, Thread
from urllib.parse import urlsplit

import pytest

from support.http_proxy import HttpProxy, http_proxy

DEADLINE_SECONDS = 10.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
FIRST, SECOND = b"data: first\n\n", b"data: second\n\n"


class EventStream:
    """A server that sends one event, and the next one when it is told to."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(DEADLINE_SECONDS)
        self.received = b""
        self.may_go_on = Event()
        self.has_left = Event()
        """Set when the client went before it got the next one."""

    @property
    def port(self) -> int:
        return self.listener.getsockname()[1]

    def serve(self) -> None:
        connection, _ = self.listener.accept()
        with connection:
            connection.settimeout(DEADLINE_SECONDS)
            while b"\r\n\r\n" not in self.received:
                self.received += connection.recv(65_536)
            connection.sendall(HEAD + FIRST)
            if self.received.startswith(b"GET /leave "):
                if not connection.recv(1):
                    self.has_left.set()
            elif self.may_go_on.wait(DEADLINE_SECONDS):
                connection.sendall(SECOND)


@pytest.fixture
def stream() -> Iterator[EventStream]:
    """A stream that is served to one client."""
    stream = EventStream()
    thread = Thread(target=stream.serve)
    thread.start()
    yield stream
    stream.may_go_on.set()
    thread.join(2 * DEADLINE_SECONDS)
    stream.listener.close()


@pytest.fixture
def proxy(stream: EventStream) -> Iterator[HttpProxy]:
    """A proxy before that stream."""
    with http_proxy(stream.port, token="the-token") as proxy:
        yield proxy


@pytest.fixture
def connection(proxy: HttpProxy) -> Iterator[HTTPConnection]:
    """A connection to the proxy."""
    connection = HTTPConnection(urlsplit(proxy.url).netloc, timeout=DEADLINE_SECONDS)
    yield connection
    connection.close()


def test_an_event_arrives_while_the_stream_goes_on(
    connection: HTTPConnection, stream: EventStream
) -> None:
    connection.request("GET", "/")
    response = connection.getresponse()
    first = response.read1(len(FIRST))
    stream.may_go_on.set()
    assert (first, response.read()) == (FIRST, SECOND)


def test_the_token_is_added_in_the_place_of_the_client_s(
    connection: HTTPConnection, proxy: HttpProxy, stream: EventStream
) -> None:
    stream.may_go_on.set()
    headers = {"Authorization": "Bearer other", "Host": "evil.example", "Mcp-Method": "ping"}
    connection.request("POST", "/acme/mcp", b'{"method":"ping"}', headers)
    connection.getresponse().read()

    head, _, body = stream.received.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert [each for each in lines if each.lower().startswith(b"authorization:")] == [
        b"Authorization: Bearer the-token"
    ]
    assert b"Host: evil.example" in lines
    (asked,) = proxy.requests
    assert (asked.method, asked.target, asked.rpc_method) == ("POST", "/acme/mcp", "ping")
    assert asked.body.startswith(body)


def test_a_client_that_leaves_is_seen_to_leave(
    connection: HTTPConnection, stream: EventStream
) -> None:
    connection.request("GET", "/leave")
    response = connection.getresponse()
    assert response.read1(len(FIRST)) == FIRST
    response.close()
    connection.close()
    assert stream.has_left.wait(DEADLINE_SECONDS)
