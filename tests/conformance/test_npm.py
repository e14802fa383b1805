"""Where npm does not answer, tests are skipped; where it can't install, they fail."""

import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from support.gateway_process import find_free_port
from support.npm import CONFORMANCE, NpmError, NpmFolder, NpmUnreachableError


class Refusal(BaseHTTPRequestHandler):
    """An index that has nothing."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@pytest.fixture
def empty_index() -> Iterator[str]:
    """The URL of an index that answers, and has nothing."""
    with HTTPServer(("127.0.0.1", 0), Refusal) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NpmFolder:
    """A folder without packages, for an npm that has nothing in its cache."""
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    (tmp_path / "npm").mkdir()
    return NpmFolder(tmp_path / "npm")


@pytest.mark.npm
def test_an_index_that_is_away_does_not_answer(
    folder: NpmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{find_free_port()}/")
    with pytest.raises(NpmUnreachableError, match="ECONNREFUSED"):
        folder.ping()


def test_a_machine_without_npm_does_not_answer(
    folder: NpmFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path / "nothing"))
    with pytest.raises(NpmUnreachableError, match="npm does not answer"):
        folder.ping()


@pytest.mark.npm
def test_an_index_that_refuses_has_answered(
    npm: NpmFolder, folder: NpmFolder, empty_index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert npm, "npm is on this machine"
    monkeypatch.setenv("npm_config_registry", empty_index)
    folder.ping()
    with pytest.raises(NpmError, match="could not install @modelcontextprotocol/conformance"):
        folder.install(CONFORMANCE)
