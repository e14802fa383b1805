"""A model that says what a test wants, for an agent that has no account with a real one.

It speaks as much of Anthropic's Messages API as Claude Code asks for: one streamed answer a
request. It first calls one tool; once it gets the tool's result, it says that it is done.
"""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

_JOIN_SECONDS = 10.0
_CALL_ID = "call-1"

Block = Mapping[str, Any]


class ScriptedModel:
    """Answers at `url`; `results` holds what the tool gave back, as the agent sent it."""

    def __init__(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """Call `tool` with `arguments` when asked for the first time."""
        self.url = ""
        """Written once the server listens."""
        self.results: list[Block] = []
        """Written by the server's threads, one element a request."""
        self._call = {"type": "tool_use", "id": _CALL_ID, "name": tool, "input": dict(arguments)}

    def answer(self, request: Mapping[str, Any]) -> bytes:
        """Return the answer to one request as a stream of events."""
        results = [block for block in _last_blocks(request) if block["type"] == "tool_result"]
        self.results += results
        events = _say_done() if results else _call_tool(self._call)
        return b"".join(
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events
        )


@contextmanager
def scripted_model(tool: str, arguments: Mapping[str, Any]) -> Generator[ScriptedModel]:
    """Run such a model on this machine until the block ends."""
    model = ScriptedModel(tool, arguments)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = model.answer(json.loads(body or b"{}"))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        model.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield model
        finally:
            server.shutdown()
            thread.join(_JOIN_SECONDS)


def _last_blocks(request: Mapping[str, Any]) -> list[Block]:
    messages = request.get("messages") or [{"content": ""}]
    content = messages[-1]["content"]
    return [] if isinstance(content, str) else content


def _call_tool(call: Block) -> Iterator[Block]:
    arguments = {"type": "input_json_delta", "partial_json": json.dumps(call["input"])}
    return _message({**call, "input": {}}, arguments, stop_reason="tool_use")


def _say_done() -> Iterator[Block]:
    text = {"type": "text_delta", "text": "Done."}
    return _message({"type": "text", "text": ""}, text, stop_reason="end_turn")


def _message(block: Block, delta: Block, *, stop_reason: str) -> Iterator[Block]:
    """Yield a message of one block: it starts empty, and one delta fills it."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "message-1", "type": "message", "role": "assistant", "model": "scripted"}
    empty: Block = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield {"type": "message_start", "message": {**message, **empty}}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    stop = {"stop_reason": stop_reason, "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1}}
    yield {"type": "message_stop"}
