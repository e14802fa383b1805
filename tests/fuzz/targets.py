"""What a fuzzer feeds: each target takes bytes, and raises if they break us.

An input breaks us if anything but an error of ours comes out, if a promise about the result doesn't
hold, or if it costs more than its bounds.
"""

import json
import resource
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from fuzz.edge import TOKEN, Edge, Headers, Reply
from okf_mcp_gateway.registry import is_owner_name, is_ref, is_source_url
from okf_mcp_gateway.registry_file import RegistryReader
from okf_mcp_gateway.scrub import Secret
from okf_mcp_server.documents import Document, DocumentError, Page, place, read_page
from okf_mcp_server.uris import normal_uri
from support.in_process import LEGACY, MODERN, servers
from support.repositories import Repository

Attempt: TypeAlias = Callable[[bytes], None]

MAX_BYTES: Final = 64 * 1024 - 1
"""How long an input may be for its bounds to hold."""

MAX_CPU_SECONDS: Final = 2.0
MAX_GROWTH_KIB: Final = 200 * 1024

STATUSES: Final = frozenset({200, 202, 400, 404, 406, 413, 415})
"""What a POST to an owner's endpoint may be answered with a token, whatever its body."""

_INTERNAL_ERROR: Final = -32603


class BrokenError(Exception):
    """An input broke a promise."""


@contextmanager
def frontmatter_target() -> Generator[Attempt]:
    """A Markdown file, as it is, as the block of one, and as the body of one."""

    def attempt(content: bytes) -> None:
        _read(content)
        _read(b"---\n" + content + b"\n---\nbody\n")
        _read(b"---\nexport: true\ntype: Note\n---\n" + content)

    yield attempt


@contextmanager
def servers_target() -> Generator[Attempt]:
    """A `servers.yaml`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "servers.yaml")

        def attempt(content: bytes) -> None:
            path.write_bytes(content)
            reader = RegistryReader(path, secret=lambda _: Secret())
            registry = reader.read()
            _expect(all(fault.isprintable() for fault in reader.faults), "a fault is one line")
            if not reader.faults:
                _expect(bool(registry.owners), "a registry has owners")
                for owner in registry.owners.values():
                    is_right = is_owner_name(owner.name) and is_source_url(owner.url)
                    _expect(is_right and is_ref(owner.ref), "what is accepted is allowed")

        yield attempt


@contextmanager
def requests_target() -> Generator[Attempt]:
    """The body of a request to `/acme/mcp`, behind one byte that chooses its headers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository = Repository(folder / "repositories")
        repository.document("a.md", id="a", type="Note", body="One.\n")
        repository.publish()
        with Edge(folder / "gateway", servers(acme=repository.url)) as edge:

            def attempt(content: bytes) -> None:
                body = content[1:]
                _judge(edge.ask("POST", "/acme/mcp", _headers(content[:1], body), body))

            yield attempt


Target: TypeAlias = Callable[[], AbstractContextManager[Attempt]]

TARGETS: Final[Mapping[str, Target]] = MappingProxyType(
    {
        "frontmatter": frontmatter_target,
        "requests": requests_target,
        "servers": servers_target,
    }
)


def bounded(attempt: Attempt) -> Attempt:
    """Return the attempt with its bounds held: processor time, and growth of the process."""

    def measured(content: bytes) -> None:
        if len(content) > MAX_BYTES:
            return
        began, peak = time.process_time(), _peak_kib()
        attempt(content)
        took, grown = time.process_time() - began, _peak_kib() - peak
        _expect(took <= MAX_CPU_SECONDS, f"{took:.1f} s of processor time")
        _expect(grown <= MAX_GROWTH_KIB, f"{grown // 1024} MiB more memory")

    return measured


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _expect(holds: bool, promise: str) -> None:
    if not holds:
        raise BrokenError(promise)


def _read(raw: bytes) -> None:
    lines = raw.count(b"\n") + raw.count(b"\r") + 1
    try:
        page = read_page(raw)
        document = place(page, "a/b c.md", "acme") if page else None
    except DocumentError as error:
        _expect(1 <= error.fault.line <= lines, "a line of the file")
        _expect(error.fault.message.isprintable(), "a message is one line")
        return
    if page and document:
        _check_document(page, document)


def _check_document(page: Page, document: Document) -> None:
    _expect(normal_uri("acme", document.uri) == document.uri, "a URI reads back")
    _expect(document.uri.isascii() and document.uri.isprintable(), "a URI is ASCII")
    _expect(page.content == page.content.strip(), "content is trimmed")
    _expect(len(page.content.encode()) == page.size, "content is UTF-8")
    _check_text(page.fields)


def _check_text(value: object) -> None:
    if isinstance(value, Mapping):
        for key, each in cast("Mapping[object, object]", value).items():
            _expect(isinstance(key, str), "keys are text")
            _check_text(each)
    elif isinstance(value, tuple):
        for each in cast("tuple[object, ...]", value):
            _check_text(each)
    else:
        _expect(isinstance(value, str), "only text leaves the parser")


def _headers(choice: bytes, body: bytes) -> Headers:
    """Return headers that fit the body (0), are an older client's (1, 2), or just any (3)."""
    plain = (
        *TOKEN,
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
    )
    kind = choice[0] % 4 if choice else 0
    if kind == 1:
        return (*plain, (b"mcp-protocol-version", LEGACY.encode()))
    if kind == 2:
        return plain
    modern = (*plain, (b"mcp-protocol-version", MODERN.encode()))
    if kind == 3:
        return (*modern, (b"mcp-method", b"resources/read"), (b"mcp-name", b"x"))
    method, name = _named(body)
    return (*modern, (b"mcp-method", method), *([(b"mcp-name", name)] if name else []))


def _named(body: bytes) -> tuple[bytes, bytes]:
    """Return the method of a body and what it names, as a client puts them into headers."""
    try:
        message: Any = json.loads(body)
        method: Any = message.get("method")
        params: Any = message.get("params")
        name: Any = (params.get("uri") or params.get("name") or "") if params else ""
    except (ValueError, AttributeError, RecursionError):
        return b"", b""
    return str(method).encode("ascii", "ignore"), str(name).encode("ascii", "ignore")


def _judge(reply: Reply) -> None:
    _expect(reply.status in STATUSES, f"status {reply.status}")
    if reply.status == 202:
        _expect(not reply.body, "a notification has no answer")
    elif reply.header(b"content-type").startswith(b"application/json"):
        message: Any = json.loads(reply.body)
        code = message["error"]["code"] if isinstance(message.get("error"), dict) else 0
        _expect(code != _INTERNAL_ERROR, "no internal error")
    else:
        is_stream = reply.header(b"content-type").startswith(b"text/event-stream")
        _expect(is_stream and reply.status == 200, "all but a stream is JSON")
