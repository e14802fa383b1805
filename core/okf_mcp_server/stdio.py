"""The stdio server: one repository's documents, read once, for one client on the same machine.

stdout belongs to the protocol; all else goes to stderr. The MCP SDK, by far the dearest import, is
loaded last: help texts and faults come at once.
"""

import argparse
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path, PurePosixPath

from okf_mcp_server.documents import printable
from okf_mcp_server.errors import OkfError
from okf_mcp_server.roots import ROOTS_VARIABLE, Scope, add_scope_flags, choose_scope
from okf_mcp_server.snapshot import Snapshot, load_docs
from okf_mcp_server.tree import WorkingTree

log = logging.getLogger(__name__)


def main() -> None:
    """Serve the repository of the working directory: the console script `okf-mcp-server`."""
    parser = argparse.ArgumentParser(
        prog="okf-mcp-server",
        allow_abbrev=False,
        description="Serve the exported Markdown of this git repository over MCP on stdio.",
        epilog="A client starts it; okf-mcp-lint says what is wrong with your documents.",
    )
    add_scope_flags(parser)
    parser.add_argument("--version", action="version", version=version("okf-mcp-server"))
    arguments = parser.parse_args()
    run(roots=arguments.roots, owner=arguments.owner)


def run(
    roots: str | Sequence[str] | None = None,
    owner: str | None = None,
    base_dir: str | os.PathLike[str] | None = None,
) -> None:
    """Serve a repository over MCP on stdin and stdout until stdin closes.

    `roots` is comma-separated text or a sequence of folders, `base_dir` a folder of the repository
    (the working directory). It is the whole of a program: it takes over logging and Ctrl-C, and
    what can't be served (a folder that isn't there, a bare repository, a root that leaves the
    repository, an owner that no URI can hold) ends it with a sentence and status 1 (`SystemExit`).
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    logging.getLogger("mcp").setLevel(logging.WARNING)
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C ends a process that waits for a line of stdin in a thread only this way.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    folder = Path(base_dir or ".")
    try:
        scope = choose_scope(folder, roots=roots, owner=owner, environ=os.environ)
    except OkfError as error:
        sys.exit(f"okf-mcp-server: {error}")
    snapshot = load_docs(WorkingTree(scope.top), owner=scope.owner, roots=scope.roots)
    for found in snapshot.diagnostics:
        line = "" if found.rule == "empty-root" else f":{found.line}"
        log.warning("%s%s: %s", found.path, line, found.message)
    log.info(
        "Serving: documents=%d owner=%s roots=%d",
        len(snapshot.documents),
        printable(PurePosixPath(scope.owner)),
        len(scope.roots),
    )
    if not snapshot.documents:
        log.info(_hint(scope))
    _serve(scope.owner, snapshot)


def _hint(scope: Scope) -> str:
    """Return how a file opts in; or, if one does elsewhere, how it is found."""
    searched = ", ".join(map(printable, scope.roots))
    elsewhere = load_docs(WorkingTree(scope.top), owner=scope.owner).documents
    if not elsewhere:
        return (
            f"Nothing opts in under {searched}: a file does with 'export: true' and a 'type' in "
            "its frontmatter; okf-mcp-lint --roots . says what is in the way"
        )
    first = elsewhere[0].path
    root = printable(PurePosixPath(*first.parts[:1])) if len(first.parts) > 1 else "."
    return (
        f"Nothing opts in under {searched}, but {printable(first)} does: search {root}, too "
        f"(--roots, {ROOTS_VARIABLE}, or run's first argument)"
    )


def _serve(owner: str, snapshot: Snapshot) -> None:
    gc.disable()  # what is imported stays; to look for garbage meanwhile takes a tenth of the start
    from okf_mcp_server.pipe import serve  # noqa: PLC0415 - the SDK costs half a second

    gc.enable()
    serve(owner, snapshot)
