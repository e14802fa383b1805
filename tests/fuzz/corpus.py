"""What a fuzzer begins with: seeds from the handed cases, and the words that our parsers know."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from support.in_process import LEGACY, MODERN, mcp_message

CASES: Final = Path(__file__).parents[1] / "fixtures" / "cases"

WORDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "frontmatter": (
            *("---\n", "\n---\n", "export: true", "type: Note", "id: ", "title: ", "description: "),
            *("<<: ", "*a", "&a ", "- ", "? ", ": ", "[", "]", "{", "}", ", ", "|\n", ">-\n"),
            *("!!str ", "!!null ", "!!binary ", "!!set ", "!!merge ", "!x ", "%YAML 1.1\n"),
            *('"', "'", "\\u", "\\x", "\t", "\r", "\u0085", "\u2028", "\U000fffff", "\ufeff"),
            *("```", "~~~", "<!--", "-->", "# ", "===", "yes", "on", "~", "null", "\0", "#"),
        ),
        "servers": (
            *("defaults:\n", "owners:\n", "credentials:\n", "  acme:\n", "url: ", "ref: ", "ttl: "),
            *("roots: ", "token_env: ", "token_user: ", "OKF_GIT_TOKEN_", "https://", "file:///"),
            *(
                "http://localhost",
                "git.example",
                ":443",
                "[::1]",
                "@",
                "%00",
                "?",
                "..",
                "&a ",
                "*a",
            ),
            *("<<: ", "!!null ", "~", "31536000", "{", "}", "[", "]", '"', "'", "healthz", ".git"),
        ),
        "requests": (
            *('"jsonrpc":"2.0"', '"id":1', '"method":', '"params":', '"_meta":', '"cursor":'),
            *('"uri":"knowledge://acme/note/a"', '"ref":', '"argument":', '"arguments":', "null"),
            *('"initialize"', '"ping"', '"server/discover"', '"tools/list"', '"tools/call"'),
            *('"resources/list"', '"resources/read"', '"resources/templates/list"', "true"),
            *('"completion/complete"', '"subscriptions/listen"', '"notifications/initialized"'),
            *('"prompts/list"', '"logging/setLevel"', '"protocolVersion"', '"ref/resource"'),
            *(f'"{MODERN}"', f'"{LEGACY}"', "1e999", "NaN", "-0", "\\ud800", "[]", "{}", "[[[["),
        ),
    }
)
"""By target; a fuzzer's dictionary."""


def seeds(target: str) -> Iterator[bytes]:
    """Yield the inputs that a target begins with."""
    if target == "frontmatter":
        files = (path for path in sorted(CASES.glob("**/*.md")) if path.parent != CASES)
        yield from (path.read_bytes() for path in files)
    elif target == "servers":
        files = sorted((CASES / "servers-yaml").glob("[vi]-*.yaml"))
        yield from (path.read_bytes() for path in files)
    else:
        yield from _requests()


def dictionary(target: str) -> str:
    """Return the words of a target as libFuzzer reads them."""
    escaped = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in WORDS[target])
    return "".join(f'"{word}"\n' for word in escaped)


def _requests() -> Iterator[bytes]:
    uri = "knowledge://acme/note/a"
    template = {"type": "ref/resource", "uri": "knowledge://{owner}/{type}/{id}"}
    wanted = {"resourcesListChanged": True, "resourceSubscriptions": [uri]}
    messages: dict[str, dict[str, object]] = {
        "initialize": {},
        "ping": {},
        "server/discover": {},
        "tools/list": {},
        "tools/call": {"name": "x", "arguments": {}},
        "resources/list": {"cursor": "WzAsICJhLm1kIl0="},
        "resources/read": {"uri": uri},
        "resources/templates/list": {},
        "completion/complete": {"ref": template, "argument": {"name": "id", "value": "a"}},
        "subscriptions/listen": {"notifications": wanted},
        "notifications/cancelled": {"requestId": 1, "reason": "x"},
    }
    for method, params in messages.items():
        is_notification = method.startswith("notifications/")
        yield b"\0" + mcp_message(method, params, is_notification=is_notification)
        kind = b"\2" if method == "initialize" else b"\1"
        yield kind + mcp_message(method, params, era=LEGACY, is_notification=is_notification)
    for body in (b"", b"[]", b"null", b'{"jsonrpc":"2.0","id":1,"result":{}}', b"\xff", b"[" * 500):
        yield b"\3" + body
