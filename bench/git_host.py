"""A git host in a process of its own, so that what it spends is not counted as ours."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from support.git_http import GitHttpServer


@dataclass(frozen=True, slots=True)
class GitHost:
    """A host that runs."""

    url: str
    """Without a slash at its end; the repositories of its folder are below."""
    _questions: IO[str]
    _answers: IO[str]

    def count_requests(self) -> int:
        """Return how many requests came since the last call."""
        self._questions.write("\n")
        self._questions.flush()
        return int(self._answers.readline())


@contextmanager
def git_host(root: Path) -> Generator[GitHost]:
    """Serve the bare repositories of a folder while the block runs."""
    command = [sys.executable, "-m", "bench.git_host", str(root)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the git host has no pipes")
    try:
        yield GitHost(process.stdout.readline().strip(), process.stdin, process.stdout)
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    """Print the URL; then answer each line by the number of requests since the one before."""
    with GitHttpServer(Path(sys.argv[1])) as host:
        print(host.url, flush=True)
        for _ in sys.stdin:
            print(len(host.exchanges), flush=True)
            host.forget()


if __name__ == "__main__":
    main()
