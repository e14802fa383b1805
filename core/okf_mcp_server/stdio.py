"""The stdio server: one repository's documents, read once, for one client on the same machine.

stdout belongs to the protocol; all else goes to stderr.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
import mcp_types as types
from mcp.server.stdio import stdio_server
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import SessionMessage

from okf_mcp_server.errors import OkfError
from okf_mcp_server.roots import RootsError, choose_owner, choose_roots, find_top
from okf_mcp_server.server import build_server
from okf_mcp_server.snapshot import Snapshot, load_docs
from okf_mcp_server.tree import WorkingTree

log = logging.getLogger(__name__)

_LAST_ANSWERS_SECONDS: Final = 5
"""How long the requests that are running when stdin ends may take."""


def main() -> None:
    """Serve the repository of the working directory: the console script `okf-mcp-server`."""
    parser = argparse.ArgumentParser(
        prog="okf-mcp-server",
        description="Serve the exported Markdown of this git repository over MCP on stdio.",
    )
    parser.add_argument(
        "--roots",
        help="folders to search, from the repository's top, comma-separated; '.' is all of it "
        "(OKF_MCP_ROOTS, colon-separated; design, backlog/docs and backlog/decisions)",
    )
    parser.add_argument(
        "--owner", help="the owner's name in URIs (OKF_MCP_OWNER; the name of the folder)"
    )
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
    (the working directory). It takes over the process's logging and Ctrl-C. Raises `RootsError` for
    a folder that isn't there or a root that leaves the repository, `OwnerError` for a name that no
    URI can hold.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    logging.getLogger("mcp").setLevel(logging.WARNING)
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C ends a process that waits for a line of stdin in a thread only this way.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    folder = Path(base_dir or ".")
    if not folder.is_dir():
        raise RootsError(f"{folder} is not a folder that can be served")
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
        log.info(
            "Nothing opts in under %s: a file does with 'export: true' and a 'type' in its "
            "frontmatter; --roots . searches the whole repository",
            ", ".join(map(str, chosen)),
        )
    anyio.run(_serve, name, snapshot)


async def _serve(owner: str, snapshot: Snapshot) -> None:
    """Serve until stdin ends, and then until all requests before its end are answered.

    The SDK drops what is still running at the end, and a pipe ends right after its last request.
    So it sees the end later, by streams of ours.
    """
    server = build_server(owner, lambda: snapshot)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception]()
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage]()
    # Written by the two tasks below; None is the id of an answer to what was no request.
    pending: set[types.RequestId | None] = set()
    answered = anyio.Condition()

    async with stdio_server() as (stdin, stdout):

        async def pass_requests() -> None:
            async with to_server:
                async for item in stdin:
                    message = item.message if isinstance(item, SessionMessage) else None
                    if isinstance(message, types.JSONRPCRequest):
                        pending.add(message.id)
                    elif isinstance(message, types.JSONRPCNotification):
                        if message.method == "notifications/cancelled":  # it is never answered
                            pending.discard(cancelled_request_id_from_params(message.params))
                    await to_server.send(item)
                with anyio.move_on_after(_LAST_ANSWERS_SECONDS):
                    async with answered:
                        while pending:
                            await answered.wait()

        async def pass_answers() -> None:
            async with stdout:
                async for item in from_server:
                    await stdout.send(item)
                    if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError):
                        async with answered:
                            pending.discard(item.message.id)
                            answered.notify_all()

        async with anyio.create_task_group() as tasks, from_client, from_server:
            tasks.start_soon(pass_requests)
            tasks.start_soon(pass_answers)
            await server.run(from_client, to_client, server.create_initialization_options())
