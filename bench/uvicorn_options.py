"""How uvicorn is run under every Python server here: as fast as it gets, and nothing of ours."""

from typing import Any, Final

PLAIN: Final[dict[str, Any]] = {
    "host": "127.0.0.1",
    "http": "httptools",
    "loop": "uvloop",
    "ws": "none",
    "access_log": False,
    "log_level": "warning",
    "server_header": False,
    "proxy_headers": False,
}
