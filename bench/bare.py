"""Row 0: an application that takes a request and sends as many bytes as its path says."""

import sys

import uvicorn
from starlette.types import Receive, Scope, Send

from bench.uvicorn_options import PLAIN

_BEGIN = b'{"jsonrpc":"2.0","id":0,"result":"'
_END = b'"}'


class Bare:
    """Fixed bytes: what no Python application behind uvicorn can be faster than."""

    def __init__(self) -> None:
        # By path, made once each.
        self._bodies: dict[str, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer `/4096` with 4,096 bytes, and the headers that an MCP server's answer has."""
        await receive()
        body = self._bodies.get(scope["path"]) or self._make(scope["path"])
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _make(self, path: str) -> bytes:
        filling = int(path.removeprefix("/")) - len(_BEGIN) - len(_END)
        body = self._bodies[path] = _BEGIN + b"x" * filling + _END
        return body


if __name__ == "__main__":
    uvicorn.run(Bare(), port=int(sys.argv[1]), lifespan="off", **PLAIN)
