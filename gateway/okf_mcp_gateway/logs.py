"""Logs on stderr, as text or JSON, each line scrubbed."""

import json
import logging
import sys
from datetime import UTC, datetime

from okf_mcp_gateway.config import Settings
from okf_mcp_gateway.scrub import Scrubber, ScrubbingFormatter


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, and `traceback` if any."""

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
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message`, on one line but for a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        message = record.getMessage().replace("\n", "\\n").replace("\r", "\\r")
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
