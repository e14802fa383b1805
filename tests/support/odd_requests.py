"""Requests for `/acme/mcp`, good and odd: each has one answer, whether answers are kept or not.

Each is sent in several rounds with another id, so that a later round is a hit wherever one may be.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from okf_mcp_server.resources import PAGE_SIZE
from support.gateway_process import NORTH_TOKEN
from support.repositories import Repository

Header: TypeAlias = tuple[bytes, bytes]

MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"
ROUNDS: Final = 3

ALLOWED_ORIGIN: Final = "https://agents.example"

URI: Final = "knowledge://acme/note/a"
_ID: Final = b"@ID@"
_IDS: Final = (b"1", b"22", b"-333")
_TEXTS: Final = (b'"a"', b'"7"', b'"b c-d"')
_METHODS: Final[Sequence[tuple[str, dict[str, str]]]] = (
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("tools/list", {}),
    ("server/discover", {}),
    ("resources/read", {"uri": URI}),
)


@dataclass(frozen=True, slots=True)
class OddRequest:
    """A request, and what to make of it in each round."""

    name: str
    body: bytes
    """With a mark where the id of the round stands."""
    headers: tuple[Header, ...]
    verb: bytes = b"POST"
    target: bytes = b"/acme/mcp"
    http: bytes = b"HTTP/1.1"
    ids: Sequence[bytes] = _IDS
    """Taken in turn, one a round."""
    is_hot: bool = False
    """Whether the answer has to come from memory from the second round on."""
    chunks: int = 0
    """In how many pieces the body comes (chunked); 0: with its length."""

    def body_of(self, turn: int) -> bytes:
        return self.body.replace(_ID, self.ids[turn % len(self.ids)])

    def bytes_of(self, turn: int) -> bytes:
        """Return what is sent in a round."""
        body = self.body_of(turn)
        headers = [*self.headers]
        if self.chunks:
            headers.append((b"Transfer-Encoding", b"chunked"))
            size = max(len(body) // self.chunks, 1)
            pieces = [body[at : at + size] for at in range(0, len(body), size)]
            body = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in [*pieces, b""])
        elif body or self.verb in {b"POST", b"PUT"}:
            headers.append((b"Content-Length", b"%d" % len(body)))
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        return b"%s %s %s\r\n%s\r\n%s" % (self.verb, self.target, self.http, lines, body)


def fill(repository: Repository) -> None:
    """Publish what the requests ask for: two pages of documents, and some that stand out."""
    many = {
        f"n{number:04}.md": b"---\nexport: true\ntype: Note\n---\nSome words.\n"
        for number in range(PAGE_SIZE)
    }
    repository.fast_import(many)
    repository.document("a.md", id="a", title="A « title »")
    repository.document("large.md", id="large", body="x" * 100_000)
    repository.publish()


def odd_requests() -> Sequence[OddRequest]:
    """Return all of them; each has a name of its own."""
    found = [
        *_plain(),
        *_ids(),
        *_spellings(),
        *_headers(),
        *_envelopes(),
        *_methods(),
        *_uris(),
        *_http(),
    ]
    assert len({each.name for each in found}) == len(found)
    return found


# What a request is made of.


def _meta(version: str = MODERN, **changes: object) -> dict[str, Any]:
    prefix = "io.modelcontextprotocol/"
    meta: dict[str, Any] = {
        f"{prefix}protocolVersion": version,
        f"{prefix}clientCapabilities": {},
        **{f"{prefix}{name}": value for name, value in changes.items()},
    }
    return {name: value for name, value in meta.items() if value is not None}


def _json(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _message(method: str, params: Mapping[str, Any] | None) -> bytes:
    head = b'{"jsonrpc":"2.0","id":%s,"method":"%s"' % (_ID, method.encode())
    return head + (b"}" if params is None else b',"params":%s}' % _json(params))


def _base(version: str | None) -> list[Header]:
    return [
        (b"Host", b"gateway.example"),
        (b"Authorization", f"Bearer {NORTH_TOKEN}".encode()),
        (b"Content-Type", b"application/json"),
        (b"Accept", b"application/json, text/event-stream"),
        *([(b"MCP-Protocol-Version", version.encode())] if version else []),
    ]


def _modern(
    name: str,
    method: str = "resources/read",
    params: Mapping[str, Any] | None = None,
    **changes: Any,
) -> OddRequest:
    params = {"uri": URI} if params is None else params
    headers = [*_base(MODERN), (b"Mcp-Method", method.encode())]
    if "uri" in params:
        headers.append((b"Mcp-Name", str(params["uri"]).encode()))
    body = _message(method, {**params, "_meta": _meta()})
    return replace(OddRequest(f"modern {name}", body, tuple(headers)), **changes)


def _legacy(
    name: str,
    method: str = "resources/read",
    params: Mapping[str, Any] | None = None,
    *,
    version: str | None = LEGACY,
    **changes: Any,
) -> OddRequest:
    params = {"uri": URI} if params is None else params
    headers = tuple(_base(version))
    return replace(
        OddRequest(f"legacy {name}", _message(method, params or None), headers), **changes
    )


def _with(each: OddRequest, *added: Header, without: bytes | None = None) -> OddRequest:
    """Return it with other headers: one taken away, others added at the end."""
    kept = [header for header in each.headers if header[0] != without]
    return replace(each, headers=(*kept, *added))


def _put(each: OddRequest, name: bytes, value: bytes) -> OddRequest:
    """Return it with another value in the place of a header's."""
    headers = [(key, value if key == name else old) for key, old in each.headers]
    return replace(each, headers=tuple(headers))


def _in_both(name: str, **changes: Any) -> Iterator[OddRequest]:
    yield _modern(name, **changes)
    yield _legacy(name, **changes)


# The table.


def _plain() -> Iterator[OddRequest]:
    for method, params in _METHODS:
        yield _modern(method, method, params, is_hot=True)
        if method != "server/discover":
            yield _legacy(method, method, params, is_hot=True)
    yield from _in_both("large", params={"uri": "knowledge://acme/note/large"}, is_hot=True)
    for version in ("2024-11-05", "2025-03-26", "2025-06-18", None):
        yield _legacy(f"read of {version}", version=version, is_hot=True)
    cursor = base64.urlsafe_b64encode(_json([0, "n0998.md"])).decode()
    for name, text, is_hot in (
        ("good cursor", cursor, True),
        ("bad cursor", "zzz", False),
        ("empty cursor", "", False),
    ):
        yield from _in_both(name, method="resources/list", params={"cursor": text}, is_hot=is_hot)
    yield from _in_both("null cursor", method="resources/list", params={"cursor": None})
    yield from _in_both("token of progress", params={"uri": URI, "_meta": {"progressToken": 5}})
    for key, value in (
        ("progressToken", 7),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ):
        body = _message("resources/read", {"uri": URI, "_meta": {**_meta(), key: value}})
        yield _modern(f"with a {key}", body=body)


def _ids() -> Iterator[OddRequest]:
    yield from _in_both("texts", ids=_TEXTS, is_hot=True)
    yield from _in_both("empty and long texts", ids=(b'""', b'"%s"' % (b"y" * 128)), is_hot=True)
    yield from _in_both(
        "ids between 15 digits", ids=(b"0", b"9" * 15, b"-" + b"9" * 15), is_hot=True
    )
    odd = {
        "-0": b"-0",
        "1.0": b"1.0",
        "1.5": b"1.5",
        "1e3": b"1e3",
        "+1": b"+1",
        "01": b"01",
        "2**53+1": b"9007199254740993",
        "19 digits": b"9" * 19,
        "5000 digits": b"9" * 5000,
        "text of 129": b'"%s"' % (b"y" * 129),
        "text of 20000": b'"%s"' % (b"y" * 20_000),
        "unicode": '"ключ 键 \U0001f511"'.encode(),
        "DEL": b'"a\x7fb"',
        "raw control": b'"a\x01b"',
        "escaped": b'"a\\n\\u00e9\\/"',
        "with quotes": b'"a\\"b"',
        "lone surrogate": b'"\\ud800"',
        "latin-1": b'"\xe9"',
        "slash and angle": b'"</script>&"',
        "null": b"null",
        "true": b"true",
        "list": b"[1]",
        "object": b'{"id":1}',
        "NaN": b"NaN",
        "-Infinity": b"-Infinity",
        "nothing": b"",
    }
    for name, value in odd.items():
        yield from _in_both(f"id {name}", ids=(value,))


def _spellings() -> Iterator[OddRequest]:
    """Bodies that say the same in another way, or something else that looks the same."""
    for make in (_modern, _legacy):
        good = make("").body
        inner = good[1:-1]
        params = good[good.index(b'"params"') : -1]
        head = b'"jsonrpc":"2.0","method":"resources/read",'
        changed = {
            "no id": good.replace(b'"id":@ID@,', b""),
            "id twice": good.replace(b'"id":@ID@', b'"id":9,"id":@ID@'),
            "id twice at the end": b'{%s,"id":9}' % inner,
            "the key id escaped": good.replace(b'"id"', b'"\\u0069d"'),
            "id escaped beside one": good.replace(b'"id":@ID@', b'"id":@ID@,"\\u0069d":9'),
            "id escaped, and one in params": params.replace(b"{", b'{"id":@ID@,', 1).join(
                (b'{%s"\\u0069d":1,' % head, b"}")
            ),
            "id at the end": b'{%s%s,"id":@ID@}' % (head, params),
            "id only in params": b"{%s%s}" % (head, params.replace(b"{", b'{"id":@ID@,', 1)),
            "id in params, too": good.replace(b'"uri"', b'"id":3,"uri"'),
            "id as a value": good.replace(b'"uri"', b'"x":"id","uri"'),
            "Id": good.replace(b'"id"', b'"Id"'),
            "id in a client": good.replace(b'"uri"', b'"clientInfo":{"id":@ID@},"uri"'),
            "method twice": good.replace(b'"method"', b'"method":"tools/call","method"'),
            "method twice at the end": b'{%s,"method":"ping"}' % inner,
            "method escaped": good.replace(b'"method"', b'"\\u006dethod"'),
            "method in params": good.replace(b'"uri"', b'"method":"ping","uri"'),
            "params twice": b'{%s,"params":{}}' % inner,
            "params escaped": good.replace(b'"params"', b'"p\\u0061rams"'),
            "uri twice": good.replace(b'"uri"', b'"uri":"knowledge://acme/note/large","uri"'),
            "jsonrpc 1.0": good.replace(b'"2.0"', b'"1.0"'),
            "no jsonrpc": good.replace(b'"jsonrpc":"2.0",', b""),
            "unknown member": b'{%s,"more":1}' % inner,
            "a result, too": b'{%s,"result":{}}' % inner,
            "BOM": b"\xef\xbb\xbf" + good,
            "space before": b" \r\n" + good,
            "space after": good + b" \r\n\t",
            "zero after": good + b"\0",
            "trailing comma": b"{%s,}" % inner,
            "trailing brace": good + b"}",
            "twice": good + good,
            "batch": b"[" + good + b"]",
            "cut": good[:-3],
            "empty": b"",
            "null": b"null",
            "raw line feed in a text": good.replace(b'"uri"', b'"x":"a\nb","uri"'),
            "not UTF-8": good.replace(b'"uri"', b'"x":"\xff","uri"'),
            "overlong": good.replace(b'"uri"', b'"x":"\xc0\xa2","uri"'),
            "raw surrogate": good.replace(b'"uri"', b'"x":"\xed\xa0\x80","uri"'),
            "escaped surrogate": good.replace(b'"uri"', b'"x":"\\ud800","uri"'),
            "NaN": good.replace(b'"uri"', b'"x":NaN,"uri"'),
            "deep": good.replace(b'"uri"', b'"x":%s1%s,"uri"' % (b"[" * 5000, b"]" * 5000)),
            "a comment": good.replace(b'"uri"', b'/* */"uri"'),
        }
        for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"):
            changed[encoding] = good.replace(_ID, b"1").decode().encode(encoding)
        changed["UTF-16 with an id for bytes"] = (
            good.replace(_ID, b"1").decode().encode("utf-16-le") + b'"id":1}'
        )
        for name, body in changed.items():
            yield make(name, body=body)
        spaced = good.replace(b'"id":@ID@', b'\r\n\t "id" \n:\t @ID@ \r').replace(b"{", b"{ ", 1)
        yield make("whitespace", body=spaced, is_hot=True)
        yield make("id in words", body=good.replace(b'"uri"', b'"x":"an id: 1","uri"'), is_hot=True)
        moved = good.replace(b'"id":@ID@,', b"")[:-1] + b',"id":@ID@}'
        yield make("id moved to the end", body=moved, is_hot=True)
        for size in (15_000, 16_384, 16_500, 64_000, 65_536, 70_000):
            padded = good.replace(b'"uri"', b'"x":"%s","uri"' % (b"x" * (size - len(good))))
            yield make(f"of {size} bytes", body=padded)


def _headers() -> Iterator[OddRequest]:
    for make in (_modern, _legacy):
        good = make("")
        era = "modern" if make is _modern else "legacy"
        for name in dict.fromkeys(header[0] for header in good.headers):
            label = f"{era} {name.decode()}"
            value = dict(good.headers)[name]
            yield replace(_with(good, (name, value)), name=f"{label} twice")
            yield replace(_with(good, (name, b"nothing")), name=f"{label} twice, otherwise")
            yield replace(_with(good, without=name), name=f"{label} absent")
            yield replace(_put(good, name, b""), name=f"{label} empty")
            yield replace(_put(good, name, b"nothing"), name=f"{label} wrong")
            yield replace(_put(good, name, value.upper()), name=f"{label} in capitals")
            yield replace(_put(good, name, value + b" \t"), name=f"{label} with blanks behind")
        for name, value in (
            (b"Accept", b"*/*"),
            (b"Accept", b"application/*"),
            (b"Accept", b"application/json"),
            (b"Accept", b"text/event-stream"),
            (b"Accept", b"application/json;q=0, text/event-stream"),
            (b"Accept", b"application/json;q=0.5"),
            (b"Content-Type", b"application/json; charset=utf-8"),
            (b"Content-Type", b"application/json; charset=utf-16"),
            (b"Content-Type", b"text/plain"),
            (b"Content-Type", b"text/plain, application/json"),
            (b"Host", b"evil.example:99"),
            (b"Host", b"[::1]"),
            (b"MCP-Protocol-Version", b"1999-01-01"),
            (b"MCP-Protocol-Version", b"2027-01-01"),
        ):
            changed = _put(good, name, value)
            yield replace(changed, name=f"{era} {name.decode()}: {value.decode()}")
        for name, value in (
            (b"Origin", ALLOWED_ORIGIN.encode()),
            (b"Origin", b"https://evil.example"),
            (b"Origin", b"null"),
            (b"Mcp-Session-Id", b"abc"),
            (b"Last-Event-ID", b"5"),
            (b"Content-Encoding", b"gzip"),
            (b"Content-Encoding", b"identity"),
            (b"Accept-Encoding", b"gzip"),
            (b"Mcp-Param-X", b"1"),
            (b"X-Http-Method-Override", b"GET"),
            (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            (b"Connection", b"close"),
            (b"Connection", b"keep-alive, Close"),
            (b"Expect", b"100-continue"),
        ):
            yield replace(
                _with(good, (name, value)), name=f"{era} with {name.decode()}: {value.decode()}"
            )
        twice = [(b"Origin", ALLOWED_ORIGIN.encode())] * 2
        yield replace(_with(good, *twice), name=f"{era} two origins")
    good = _modern("")
    coded = b"=?base64?%s?=" % base64.b64encode(URI.encode())
    names = {
        "base64": coded,
        "broken base64": b"=?base64?%%?=",
        "of another": b"knowledge://acme/note/large",
        "in other case": URI.upper().encode(),
    }
    for name, value in names.items():
        yield replace(_put(good, b"Mcp-Name", value), name=f"Mcp-Name {name}")
    yield replace(_put(good, b"Mcp-Method", b"tools/list"), name="Mcp-Method of another")
    added = (b"Mcp-Name", URI.encode())
    yield replace(_with(_legacy(""), added), name="legacy with Mcp-Name", is_hot=True)


def _envelopes() -> Iterator[OddRequest]:
    metas: dict[str, object] = {
        "no version": _meta(protocolVersion=None),
        "no capabilities": _meta(clientCapabilities=None),
        "empty": {},
        "a list": [],
        "a text": "x",
        "null": None,
        "another version": _meta("2025-11-25"),
        "unknown version": _meta("2027-01-01"),
        "a number for a version": _meta(protocolVersion=1),
        "capabilities of a list": _meta(clientCapabilities=[]),
        "a client of a number": _meta(clientInfo=5),
        "a client without a version": _meta(clientInfo={"name": "x"}),
        "a good client": _meta(clientInfo={"name": "x", "version": "1"}),
    }
    for name, meta in metas.items():
        body = _message("resources/read", {"uri": URI, "_meta": meta})
        yield _modern(f"envelope: {name}", body=body)
    yield _modern("no envelope", body=_message("resources/read", {"uri": URI}))
    for name, params in (
        ("null", b"null"),
        ("a list", b"[]"),
        ("a text", b'"x"'),
        ("empty", b"{}"),
    ):
        body = _message("resources/read", None)[:-1] + b',"params":%s}' % params
        yield from _in_both(f"params {name}", body=body)
    yield from _in_both("read without params", body=_message("resources/read", None))
    for make in (_modern, _legacy):
        yield make("no params", "resources/list", body=_message("resources/list", None))
    yield _legacy("with an envelope", params={"uri": URI, "_meta": _meta()}, is_hot=True)


def _methods() -> Iterator[OddRequest]:
    completion = {
        "ref": {"type": "ref/resource", "uri": "knowledge://{owner}/{type}/{id}"},
        "argument": {"name": "type", "value": "n"},
    }
    client = {"name": "tests", "version": "1"}
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": client}
    for method, params in (
        ("ping", {}),
        ("prompts/list", {}),
        ("tools/call", {"name": "search", "arguments": {"q": "x"}}),
        ("completion/complete", completion),
        ("initialize", hello),
        ("resources/subscribe", {"uri": URI}),
        ("prompts/get", {"name": "x"}),
        ("logging/setLevel", {"level": "info"}),
        ("resources/LIST", {}),
        ("nope", {}),
        ("", {}),
    ):
        yield from _in_both(f"method {method}", method=method, params=params)
    yield _legacy("server/discover", "server/discover", {})
    for note in ("notifications/initialized", "notifications/cancelled", "resources/read"):
        body = _message(note, {"uri": URI, "requestId": 1}).replace(b'"id":@ID@,', b"")
        yield from _in_both(f"notification {note}", method=note, body=body)


def _uris() -> Iterator[OddRequest]:
    for uri in (
        "knowledge://acme/note/nope",
        "knowledge://other/note/a",
        "KNOWLEDGE://acme/note/a",
        "knowledge://acme/note/%61",
        "knowledge://acme/note/a/",
        "knowledge://acme/note/a?x",
        "knowledge://acme/note/../note/a",
        " knowledge://acme/note/a",
        "",
        "file:///etc/passwd",
    ):
        yield from _in_both(f"uri '{uri}'", params={"uri": uri})
    for value in (5, None, ["x"]):
        body = _message("resources/read", {"uri": value, "_meta": _meta()})
        yield _modern(f"uri {value}", body=body)


def _http() -> Iterator[OddRequest]:
    for name, target, is_hot in (
        ("trailing slash", b"/acme/mcp/", True),
        ("query", b"/acme/mcp?id=1&x=%zz", True),
        ("percent-encoded owner", b"/%61cme/mcp", True),
        ("absolute target", b"http://gateway.example/acme/mcp", True),
        ("two slashes", b"//acme/mcp", False),
        ("other case", b"/Acme/mcp", False),
        ("unknown owner", b"/nobody/mcp", False),
        ("owner with a slash", b"/acme%2Fmcp", False),
        ("longer path", b"/acme/mcp/x", False),
    ):
        yield from _in_both(name, target=target, is_hot=is_hot)
    for verb in (b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"):
        yield from _in_both(f"by {verb.decode()}", verb=verb)
    yield from _in_both("chunked", chunks=1, is_hot=True)
    yield from _in_both("in three chunks", chunks=3, is_hot=True)
    yield from _in_both("HTTP/1.0", http=b"HTTP/1.0")
    kept = _with(_modern(""), (b"Connection", b"keep-alive"))
    yield replace(kept, name="HTTP/1.0 kept alive", http=b"HTTP/1.0")
    for name, value in (
        ("another token", b"Bearer nope"),
        ("another scheme", f"Basic {NORTH_TOKEN}".encode()),
        ("scheme in capitals", f"BEARER {NORTH_TOKEN}".encode()),
        ("two blanks", f"Bearer  {NORTH_TOKEN}".encode()),
        ("no scheme", NORTH_TOKEN.encode()),
        ("more behind", f"Bearer {NORTH_TOKEN} x".encode()),
    ):
        yield replace(_put(_modern(""), b"Authorization", value), name=f"token: {name}")
