"""The gateway's own command, which also tells when its imports were done and when it was ready.

Run by the start tier; its argument is how many owners there are, and what it tells goes to stdout.
"""

import importlib
import json
import logging
import sys
import time

from okf_mcp_gateway.__main__ import main


class _Counter(logging.Handler):
    """Tells once every owner serves its cached copy."""

    def __init__(self, owners: int, wall: float, cpu: float) -> None:
        super().__init__()
        self._left = owners
        self._wall, self._cpu = wall, cpu

    def emit(self, record: logging.LogRecord) -> None:
        """Count one more owner."""
        if record.getMessage().startswith("Serving the cached copy"):
            self._left -= 1
            if self._left == 0:
                ready = {
                    "wall": (time.monotonic() - self._wall) * 1e3,
                    "cpu": (time.process_time() - self._cpu) * 1e3,
                }
                print(json.dumps(ready), flush=True)


if __name__ == "__main__":
    # What `main` needs, wherever it imports it.
    for name in ("okf_mcp_gateway.serving", "okf_mcp_gateway.app", "okf_mcp_gateway.direct"):
        importlib.import_module(name)
    log = logging.getLogger("okf_mcp_gateway.owners")
    log.addHandler(_Counter(int(sys.argv[1]), time.monotonic(), time.process_time()))
    sys.argv = ["okf-mcp-gateway"]
    main()
