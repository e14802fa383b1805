"""Other people's servers on the same documents: installed apart from us, at pinned versions."""

import json
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.documents import samples
from bench.processes import running

FASTMCP: Final = "fastmcp 4.2.3"
TYPESCRIPT: Final = "TypeScript SDK 2.4.0"

NPM_PACKAGES: Final = ("@modelcontextprotocol/server@2.4.0", "@modelcontextprotocol/node@2.1.2")

PROJECT: Final = Path(__file__).parents[2]

INSTALL_SECONDS: Final = 600.0

_HERE: Final = Path(__file__).parent

# Where nothing has to be ignored or removed: it goes with the environment.
_PLACE: Final = Path(sys.prefix) / "bench-peers"


class PeerError(Exception):
    """A peer can't be measured here; the text says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that can be installed, and then run on a port."""

    name: str
    install: Callable[[], None]
    """Raises `PeerError`."""
    run: Callable[[int, Mapping[str, int], Path], AbstractContextManager[int]]
    """Serves owners with so many documents; may write to the folder; yields the process id."""


def _install_fastmcp() -> None:
    place = _PLACE / "python"
    _run(sys.executable, "-m", "venv", str(place))
    # By our own pip: the one that comes with Python may know no groups.
    _run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(place),
        "install",
        "--quiet",
        "--group",
        "bench",
    )


def _install_typescript() -> None:
    place = _PLACE / "node"
    place.mkdir(parents=True, exist_ok=True)
    _run("npm", "install", "--prefix", str(place), "--no-audit", "--no-fund", *NPM_PACKAGES)
    _run("node", "--version")


@contextmanager
def _run_fastmcp(port: int, owners: Mapping[str, int], _: Path) -> Generator[int]:
    python = str(_PLACE / "python" / "bin" / "python")
    pairs = [f"{owner}={count}" for owner, count in owners.items()]
    with running([python, str(_HERE / "fastmcp_server.py"), str(port), *pairs], port) as pid:
        yield pid


@contextmanager
def _run_typescript(port: int, owners: Mapping[str, int], folder: Path) -> Generator[int]:
    documents = folder / "documents.json"
    documents.write_text(json.dumps({owner: _resources(owner, owners[owner]) for owner in owners}))
    script = str(_HERE / "typescript_server.mjs")
    with running(["node", script, str(port), str(documents), str(_PLACE / "node")], port) as pid:
        yield pid


PEERS: Final[Sequence[Peer]] = (
    Peer(FASTMCP, _install_fastmcp, _run_fastmcp),
    Peer(TYPESCRIPT, _install_typescript, _run_typescript),
)


def _resources(owner: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "uri": each.uri(owner),
            "name": each.title,
            "title": each.title,
            "description": each.description,
            "mimeType": "text/markdown",
            "size": len(each.body),
            "text": each.body,
        }
        for each in samples(count)
    ]


def _run(*command: str) -> None:
    try:
        subprocess.run(
            command,
            cwd=PROJECT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=INSTALL_SECONDS,
            check=True,
        )
    except FileNotFoundError:
        raise PeerError(f"there is no {command[0]} here") from None
    except subprocess.TimeoutExpired:
        raise PeerError(f"{Path(command[0]).name} took too long") from None
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines() or ["without a word"]
        raise PeerError(f"{Path(command[0]).name} failed: {lines[-1]}") from None
