"""Logs on stderr, as text or JSON, each line scrubbed."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final

from okf_mcp_gateway.config import Settings
from okf_mcp_gateway.scrub import Scrubber, ScrubbingFormatter

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""What would end a line, or speak to the terminal that shows it."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, and `traceback` if any.

    It is ASCII, since stderr may have any encoding.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message`, on one line but for a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        message = _CONTROL.sub(lambda match: repr(match[0])[1:-1], record.getMessage())
        line = f"{_time(record)} {record.levelname} {record.name}: {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure_logging(settings: Settings, scrubber: Scrubber) -> None:
    """Send what the process logs to stderr; libraries speak from WARNING on, if that is logged."""
    formatter = JsonFormatter() if settings.log_format == "json" else TextFormatter()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ScrubbingFormatter(formatter, scrubber))
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    for name in ("okf_mcp_gateway", "okf_mcp_server"):
        logging.getLogger(name).setLevel(level)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03d}Z"
