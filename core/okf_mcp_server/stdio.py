"""The stdio server: one repository's documents, read once, for one client on the same machine.

stdout belongs to the protocol; all else goes to stderr.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
from mcp.server.stdio import stdio_server

from okf_mcp_server.errors import OkfError
from okf_mcp_server.roots import choose_owner, choose_roots, find_top
from okf_mcp_server.server import build_server
from okf_mcp_server.snapshot import Snapshot, load_docs
from okf_mcp_server.tree import WorkingTree

log = logging.getLogger(__name__)


def main() -> None:
    """Serve the repository of the working directory: the console script `okf-mcp-server`."""
    parser = argparse.ArgumentParser(
        prog="okf-mcp-server",
        description="Serve the exported Markdown of this git repository over MCP on stdio.",
    )
    parser.add_argument("--roots", help="folders to search, comma-separated (OKF_MCP_ROOTS)")
    parser.add_argument("--owner", help="the owner's name in URIs (OKF_MCP_OWNER)")
    arguments = parser.parse_args()
    try:
        run(roots=arguments.roots, owner=arguments.owner)
    except OkfError as error:
        sys.exit(f"okf-mcp-server: {error}")


def run(
    roots: str | Sequence[str] | None = None,
    owner: str | None = None,
    base_dir: str | os.PathLike[str] | None = None,
) -> None:
    """Serve a repository over MCP on stdin and stdout until stdin closes.

    `roots` is comma-separated text or a sequence of folders, `base_dir` a folder of the repository
    (the working directory). Raises `RootsError` for a root that leaves the repository, `OwnerError`
    for a name that no URI can hold.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    logging.getLogger("mcp").setLevel(logging.WARNING)
    folder = Path(base_dir or Path.cwd())
    top = find_top(folder)
    if top is None:
        log.warning("No git repository found: folder=%s", folder.resolve().name)
    chosen = choose_roots(roots, os.environ)
    name = choose_owner(owner, os.environ, top, folder)
    snapshot = load_docs(WorkingTree(top or folder), owner=name, roots=chosen)
    for diagnostic in snapshot.diagnostics:
        log.warning("%s:%d: %s", diagnostic.path, diagnostic.line, diagnostic.message)
    log.info("Serving: documents=%d owner=%s roots=%d", len(snapshot.documents), name, len(chosen))
    if not snapshot.documents:
        log.info("Nothing opts in: a file does with 'export: true' and a 'type' in its frontmatter")
    anyio.run(_serve, name, snapshot)


async def _serve(owner: str, snapshot: Snapshot) -> None:
    server = build_server(owner, lambda: snapshot)
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())
