"""A git host over HTTP that says what a test tells it to, in git's own protocol (version 2).

It is for what no real git would send: forged packs, endless answers, words in the wrong place.
Invariant: after `close` none of its threads and sockets is left.
"""

import hashlib
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Final, Literal, Self, cast

FLUSH: Final = b"0000"
_DELIMITER: Final = b"0001"
_MEBIBYTE: Final = 1024 * 1024
_MAX_BAND_BYTES: Final = 65_000
_IDLE_SECONDS: Final = 30.0

Kind = Literal["commit", "tree", "blob", "tag"]
_NUMBERS: Final[dict[Kind, int]] = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}

Step = Literal["greet", "refs", "fetch"]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of git."""

    name: str
    """The first part of the path, without `.git`: which repository is meant."""
    step: Step
    """The greeting, the list of refs, or the objects."""
    headers: Message = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Said:
    """What the host answers; the body's end is the connection's."""

    body: Iterable[bytes] = ()
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()


Script = Callable[[Asked], Said]


class HostileHost:
    """Answer every request as `script` says, as a context manager."""

    def __init__(self, script: Script, *, host: str = "127.0.0.1") -> None:
        """Listen on a free port of `host`."""
        self.asked: list[Asked] = []
        """What was asked, in order; written by the threads of the connections."""
        self._server = _Server((host, 0), script, self.asked)
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        """Start to serve."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop; open connections are cut."""
        self._server.shutdown()
        self._thread.join()
        self._server.cut()
        self._server.server_close()

    @property
    def authority(self) -> str:
        """`host:port`."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def url_of(self, name: str) -> str:
        """Return the URL of a repository of that name."""
        return f"http://{self.authority}/{name}.git"


def packet(content: bytes) -> bytes:
    """Return a line of the protocol (pkt-line)."""
    return b"%04x%s" % (len(content) + 4, content)


def greeting() -> bytes:
    """Return what a host of protocol 2 can do."""
    lines = (b"version 2\n", b"agent=hostile\n", b"ls-refs\n", b"fetch=shallow\n")
    words = b"".join(map(packet, (*lines, b"object-format=sha1\n")))
    return packet(b"# service=git-upload-pack\n") + FLUSH + words + FLUSH


def ref_line(object_id: str, name: str = "refs/heads/main") -> bytes:
    """Return one line of the list of refs."""
    return packet(f"{object_id} {name}\n".encode())


def fetch_answer(asked: Asked, tip: str, pack_pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the answer to a fetch: the tip without its history, then a pack."""
    if b"0009done\n" not in asked.body:
        yield packet(b"acknowledgments\n") + packet(b"NAK\n") + packet(b"ready\n") + _DELIMITER
    yield packet(b"shallow-info\n") + packet(f"shallow {tip}\n".encode()) + _DELIMITER
    yield packet(b"packfile\n")
    for piece in pack_pieces:
        for start in range(0, len(piece), _MAX_BAND_BYTES):
            yield packet(b"\1" + piece[start : start + _MAX_BAND_BYTES])
    yield FLUSH


def serving(tip: str, pack_pieces: Callable[[], Iterable[bytes]]) -> Script:
    """Return the script of a host whose branch `main` is at `tip`, with this pack."""

    def answer(asked: Asked) -> Said:
        if asked.step == "greet":
            return Said([greeting()])
        if asked.step == "refs":
            return Said([ref_line(tip) + FLUSH])
        return Said(fetch_answer(asked, tip, pack_pieces()))

    return answer


# Objects and packs


def id_of(kind: Kind, content: bytes) -> str:
    """Return the id of an object."""
    head = b"%s %d\0" % (kind.encode(), len(content))
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest()


def commit_of(tree: str) -> bytes:
    """Return a root commit of a tree."""
    who = b"A Writer <writer@example.com> 1750000000 +0000"
    return b"tree %s\nauthor %s\ncommitter %s\n\nx\n" % (tree.encode(), who, who)


def tree_of(entries: Iterable[tuple[str, bytes, str]]) -> bytes:
    """Return a tree of (mode, name, id), in the order given, as they are."""
    return b"".join(
        b"%s %s\0%s" % (mode.encode(), name, bytes.fromhex(object_id))
        for mode, name, object_id in entries
    )


def packed(kind: Kind, content: bytes, *, said_size: int | None = None) -> bytes:
    """Return an object as a pack holds it; `said_size` is what its head claims."""
    head = object_head(_NUMBERS[kind], len(content) if said_size is None else said_size)
    return head + zlib.compress(content, 1)


def object_head(number: int, size: int) -> bytes:
    """Return the head of a packed object of type `number` and that size."""
    byte, size = number << 4 | size & 15, size >> 4
    head = bytearray()
    while size:
        head.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    head.append(byte)
    return bytes(head)


def pack_head(count: int) -> bytes:
    """Return the head of a pack of `count` objects."""
    return b"PACK" + (2).to_bytes(4, "big") + count.to_bytes(4, "big")


def sealed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a pack, and the checksum of them at the end."""
    digest = hashlib.sha1(usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
        yield piece
    yield digest.digest()


def pack_of(objects: Sequence[tuple[Kind, bytes]]) -> bytes:
    """Return a whole pack of objects."""
    return b"".join(sealed([pack_head(len(objects)), *(packed(*each) for each in objects)]))


def packed_zeros(mebibytes: int) -> tuple[str, bytes]:
    """Return the id of a blob of zeros, and how a pack holds it: in a thousandth of its size."""
    block, size = bytes(_MEBIBYTE), mebibytes * _MEBIBYTE
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    for _ in range(mebibytes):
        digest.update(block)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    # zlib's own checksum: of n zeros it is n (mod 65521), then 1.
    end = b"\3\0" + (size % 65521).to_bytes(2, "big") + b"\0\1"
    return digest.hexdigest(), object_head(3, size) + b"\x78\x9c" + piece * mebibytes + end


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], script: Script, asked: list[Asked]) -> None:
        self.script = script
        self.asked = asked
        self.sockets: set[socket.socket] = set()
        super().__init__(address, _Connection)

    def cut(self) -> None:
        for each in tuple(self.sockets):
            with suppress(OSError):  # it is closed by now
                each.shutdown(socket.SHUT_RDWR)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS

    def setup(self) -> None:
        super().setup()
        cast("_Server", self.server).sockets.add(self.connection)

    def finish(self) -> None:
        cast("_Server", self.server).sockets.discard(self.connection)
        with suppress(ConnectionError):  # git went away, as it may
            super().finish()

    def do_GET(self) -> None:
        self._answer("greet", b"")

    def do_POST(self) -> None:
        body = self._read_body()
        self._answer("refs" if b"command=ls-refs" in body else "fetch", body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""

    def _answer(self, step: Step, body: bytes) -> None:
        server = cast("_Server", self.server)
        name = self.path.split("/")[1].removesuffix(".git")
        asked = Asked(name, step, self.headers, body)
        server.asked.append(asked)
        said = server.script(asked)
        kind = "advertisement" if step == "greet" else "result"
        self.close_connection = True
        with suppress(ConnectionError, TimeoutError):  # git has heard enough
            self._send(said, kind)

    def _send(self, said: Said, kind: str) -> None:
        self.send_response(said.status)
        headers = {"Content-Type": f"application/x-git-upload-pack-{kind}", **dict(said.headers)}
        for name, value in {**headers, "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        for piece in said.body:
            self.wfile.write(piece)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        else:
            chunks: list[bytes] = []
            while length := int(self.rfile.readline().partition(b";")[0], 16):
                chunks.append(self.rfile.read(length))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(chunks)
        is_packed = self.headers.get("Content-Encoding") == "gzip"
        return zlib.decompress(body, 31) if is_packed else body
