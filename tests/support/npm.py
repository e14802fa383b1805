"""Programs from npm, each at a pinned version, for tests that run what others wrote.

npm itself runs as the user has set it up (its index, its cache); what it installs runs in an
environment made from nothing, with a HOME of its own.
"""

import os
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from support.children import Ended, run_child

_MACHINE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine())
NODE = f"node-linux-{_MACHINE}@22.23.3" if sys.platform == "linux" and _MACHINE else None
"""Node itself, since Inspector needs 22.19; None where the machine's own is taken."""

CONFORMANCE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
CLAUDE_CODE = "@anthropic-ai/claude-code@2.1.332"
GEMINI_CLI = "@google/gemini-cli@0.61.0"

PING_DEADLINE_SECONDS = 60.0
INSTALL_DEADLINE_SECONDS = 300.0

_QUIET = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
# An index that refuses says so with a status of HTTP: E401, E404, E503.
_REFUSAL = re.compile(r"npm (?:error|ERR!) code E\d{3}\b")


class NpmError(Exception):
    """npm could not install a package; the text says what npm said."""


class NpmUnreachableError(Exception):
    """There is no npm on this machine, or its index does not answer."""


class NpmFolder:
    """Installs packages into `folder`, each at most once; they stay there for later runs."""

    def __init__(self, folder: Path) -> None:
        """Install nothing yet; `folder` is there."""
        self._folder = folder

    def ping(self) -> None:
        """Raise `NpmUnreachableError` if there is no npm here, or its index doesn't answer.

        Whatever goes wrong after an answer is an `NpmError`.
        """
        question = ("view", CONFORMANCE, "version", *_QUIET, "--fetch-retry-mintimeout=1000")
        try:
            ended = self._npm(*question, deadline=PING_DEADLINE_SECONDS)
        except (FileNotFoundError, TimeoutError) as error:
            raise NpmUnreachableError(f"npm does not answer: {error}") from None
        if ended.status != 0 and not _REFUSAL.search(ended.stderr):
            said = ended.stderr.strip().partition("\n")[0]
            raise NpmUnreachableError(f"npm does not answer: {said}")

    def program(self, package: str, name: str) -> str:
        """Return the path of the program `name` of a package, installed if it wasn't yet."""
        return str(self.install(package) / name)

    def environment(self, home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return what an installed program may know: a path with node on it, a HOME, and `more`.

        `home` and the folder for temporary files in it are created.
        """
        temporary = home / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        path = os.getenv("PATH", os.defpath)
        if NODE is not None:
            path = os.pathsep.join([str(self.install(NODE)), path])
        return {
            "PATH": path,
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "LC_ALL": "C.UTF-8",
            **(more or {}),
        }

    def install(self, package: str) -> Path:
        """Return the folder of a package's programs, installed if it wasn't yet.

        Raises `NpmError` with what npm said where it can't.
        """
        place = self._folder / re.sub(r"[^a-z0-9.]+", "-", package)
        if not place.exists():
            self._install(package, place)
        return place / "node_modules" / ".bin"

    def _install(self, package: str, place: Path) -> None:
        """Install elsewhere first: what stands under its name is whole, if a run was killed too."""
        with TemporaryDirectory(dir=self._folder) as folder:
            prefix = Path(folder) / "prefix"
            prefix.mkdir()
            arguments = ("install", "--prefix", str(prefix), *_QUIET, package)
            ended = self._npm(*arguments, deadline=INSTALL_DEADLINE_SECONDS)
            if ended.status != 0:
                raise NpmError(f"npm could not install {package}: {ended.output.strip()}")
            # Another run may have been faster; its folder is as good.
            with suppress(OSError):
                prefix.rename(place)

    def _npm(self, *arguments: str, deadline: float) -> Ended:
        return run_child(
            ["npm", *arguments], folder=self._folder, environment=os.environ, deadline=deadline
        )
