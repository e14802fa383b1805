"""Logs go to stderr, as text or JSON, each line scrubbed."""

import json
import logging
import os
import re
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from okf_mcp_gateway.config import load_configuration
from okf_mcp_gateway.logs import JsonFormatter, TextFormatter, configure_logging
from okf_mcp_gateway.scrub import Scrubber

TOKEN = "north-canary-token"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
OURS = logging.getLogger("okf_mcp_gateway.somewhere")
THEIRS = logging.getLogger("uvicorn.error")


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Give back the process's logging as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("okf_mcp_gateway", "okf_mcp_server"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def configure(folder: Path, **variables: str) -> None:
    (folder / "servers.yaml").write_text("owners: {acme: {url: 'file:///nonexistent'}}")
    environ = {
        "OKF_GATEWAY_TOKEN": TOKEN,
        "OKF_GATEWAY_CACHE_DIR": str(folder / "cache"),
        **{f"OKF_GATEWAY_LOG_{name.upper()}": value for name, value in variables.items()},
    }
    configuration = load_configuration(environ, folder)
    scrubber = Scrubber(configuration.secrets, cache_dir=configuration.settings.cache_dir)
    configure_logging(configuration.settings, scrubber)


def record(message: str, *arguments: object, error: Exception | None = None) -> logging.LogRecord:
    exc_info: Any = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord("a.b", logging.WARNING, "x.py", 1, message, arguments, exc_info)
    made.created, made.msecs = 1_784_275_200.0425, 42.5
    return made


def caught() -> ZeroDivisionError:
    with pytest.raises(ZeroDivisionError) as raised:
        raise ZeroDivisionError("nothing\nthere")
    return raised.value


@pytest.mark.row("G1")
def test_a_text_line_has_time_level_logger_and_message() -> None:
    line = TextFormatter().format(record("Pulled: owner=%s", "acme"))
    assert line == "2026-07-17T08:00:00.042Z WARNING a.b: Pulled: owner=acme"


@pytest.mark.row("G1")
def test_a_text_message_stays_on_its_line() -> None:
    line = TextFormatter().format(record("a\nb\r\nc\x1b[2J\x85\u2028\xe9"))
    assert line == "2026-07-17T08:00:00.042Z WARNING a.b: a\\nb\\r\\nc\\x1b[2J\\x85\\u2028\xe9"


@pytest.mark.row("G1")
def test_a_json_line_has_exactly_these_keys() -> None:
    line = JsonFormatter().format(record("Pulled: owner=%s\n\u2028\U0001f600", "acme"))
    assert "\n" not in line
    assert list(json.loads(line).items()) == [
        ("time", "2026-07-17T08:00:00.042Z"),
        ("level", "warning"),
        ("logger", "a.b"),
        ("message", "Pulled: owner=acme\n\u2028\U0001f600"),
    ]


@pytest.mark.row("G1")
def test_a_traceback_follows_in_text_and_is_a_key_in_json() -> None:
    text = TextFormatter().format(record("Crashed", error=caught()))
    first, *rest = text.split("\n")
    assert first == "2026-07-17T08:00:00.042Z WARNING a.b: Crashed"
    assert rest[0] == "Traceback (most recent call last):"
    line = JsonFormatter().format(record("Crashed", error=caught()))
    assert "\n" not in line
    content = json.loads(line)
    assert list(content) == ["time", "level", "logger", "message", "traceback"]
    assert content["traceback"] == "\n".join(rest)


@pytest.mark.row("G1", "G4")
@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_go_to_stderr_scrubbed(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path, format=form)
    OURS.warning("Sent: token=%s path=%s", TOKEN, tmp_path / "cache" / "acme")
    try:
        raise ValueError(f"https://user:{TOKEN}@git.example/x")  # noqa: TRY301 - to be logged
    except ValueError:
        OURS.exception("Failed")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert TOKEN not in captured.err
    assert str(tmp_path / "cache") not in captured.err
    assert "Sent: token=*** path=<cache>/acme" in captured.err
    assert "https://***@git.example/x" in captured.err
    assert re.match(TIME if form == "text" else r'\{"time": "' + TIME, captured.err)


@pytest.mark.row("G1")
@pytest.mark.parametrize(
    ("level", "ours", "theirs"),
    [
        ("debug", "DEBUG INFO WARNING ERROR CRITICAL", "WARNING ERROR CRITICAL"),
        ("info", "INFO WARNING ERROR CRITICAL", "WARNING ERROR CRITICAL"),
        ("warning", "WARNING ERROR CRITICAL", "WARNING ERROR CRITICAL"),
        ("error", "ERROR CRITICAL", "ERROR CRITICAL"),
        ("critical", "CRITICAL", "CRITICAL"),
    ],
)
def test_nothing_below_the_level_is_logged_and_libraries_speak_from_warning_on(
    level: str, ours: str, theirs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path, level=level)
    for logger, expected in ((OURS, ours), (THEIRS, theirs)):
        for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
            logger.log(logging.getLevelNamesMapping()[name], "said")
        lines = capsys.readouterr().err.splitlines()
        assert " ".join(line.split()[1] for line in lines) == expected


@pytest.mark.row("G1")
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_a_json_line_can_be_parsed_whatever_the_encoding_of_stderr(
    encoding: str, tmp_path: Path
) -> None:
    configure(tmp_path, format="json")
    handler: Any = logging.getLogger().handlers[0]
    raw = BytesIO()
    # As the interpreter opens it.
    handler.setStream(TextIOWrapper(raw, encoding=encoding, errors="backslashreplace"))
    OURS.warning("Named: \xe9 \u20ac \U0001f600 %s", os.fsdecode(b"\xff.md"))
    [line] = raw.getvalue().splitlines()
    assert json.loads(line)["message"] == "Named: \xe9 \u20ac \U0001f600 \udcff.md"
