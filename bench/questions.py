"""What is asked of a server, as bytes: each protocol version with its own headers and envelope."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"

Era = Literal["2026-07-28", "2025-11-25"]

TOKEN: Final = "a-north-token-of-the-benchmark"  # noqa: S105 - opens nothing
"""Sent to every server, so that each parses the same request."""

FIRST_ID: Final = 1_000_000
"""Ids count up from here: no two requests are the same, and all have one length."""

Method = Literal["resources/read", "resources/list"]


@dataclass(frozen=True, slots=True)
class Question:
    """A request without its id."""

    method: Method
    era: Era
    owner: str
    uri: str | None = None

    def envelope(self) -> tuple[bytes, bytes]:
        """Return the body up to the id, and from behind it."""
        params: dict[str, Any] = {} if self.uri is None else {"uri": self.uri}
        if self.era == MODERN:
            params["_meta"] = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        message = {"jsonrpc": "2.0", "id": FIRST_ID, "method": self.method, "params": params}
        text = json.dumps(message, separators=(",", ":")).encode()
        before, _, after = text.partition(b"%d" % FIRST_ID)
        return before, after

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers that come with it, but those of HTTP itself."""
        headers = [
            ("authorization", f"Bearer {TOKEN}"),
            ("accept", "application/json, text/event-stream"),
            ("content-type", "application/json"),
            ("user-agent", "bench/1"),
            ("mcp-protocol-version", self.era),
        ]
        if self.era == MODERN:
            headers.append(("mcp-method", self.method))
            if self.uri is not None:
                headers.append(("mcp-name", self.uri))
        return headers

    def length(self) -> int:
        """Return how many bytes its body has."""
        return len(b"".join(self.envelope())) + len(str(FIRST_ID))

    def request(self, host: str, path: str) -> tuple[bytes, bytes]:
        """Return the whole request up to the id, and from behind it."""
        before, after = self.envelope()
        headers = [("host", host), *self.headers(), ("content-length", str(self.length()))]
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + before, after


@dataclass(frozen=True, slots=True)
class Workload:
    """Questions that are asked in turn, by some clients at a time."""

    name: str
    questions: tuple[Question, ...]
    connections: int = 16
    warm_up: int = 200
    """How many are asked before the first round counts; before each later one, one a connection."""
    is_cold: bool = False
    """Whether each is asked once in all, each round taking the next of them."""

    def of_round(self, number: int, rounds: int) -> "Workload":
        """Return what one round asks."""
        if not self.is_cold:
            return replace(self, warm_up=self.warm_up if number == 0 else self.connections)
        share = len(self.questions) // rounds
        return replace(self, questions=self.questions[number * share : (number + 1) * share])


def reads(owner: str, uris: Sequence[str], era: Era) -> tuple[Question, ...]:
    """Return a read of each URI."""
    return tuple(Question("resources/read", era, owner, uri) for uri in uris)


def listing(owner: str, era: Era) -> tuple[Question, ...]:
    """Return what lists an owner's documents."""
    return (Question("resources/list", era, owner),)
