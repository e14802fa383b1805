"""Documents: a repository's Markdown, as a snapshot and as an MCP server.

A name is imported when it is first used: the MCP SDK costs half a second, and the linter, a help
text and a fault at the start have no use for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from okf_mcp_server.changes import Changes
    from okf_mcp_server.documents import Diagnostic, Document, extract_id, slugify_type
    from okf_mcp_server.errors import OkfError
    from okf_mcp_server.server import build_server
    from okf_mcp_server.snapshot import Snapshot, load_docs
    from okf_mcp_server.stdio import run
    from okf_mcp_server.tree import FileTree, TreeEntry, WorkingTree

__all__ = [
    "Changes",
    "Diagnostic",
    "Document",
    "FileTree",
    "OkfError",
    "Snapshot",
    "TreeEntry",
    "WorkingTree",
    "build_server",
    "extract_id",
    "load_docs",
    "run",
    "slugify_type",
]

_MODULES = {
    "Changes": "changes",
    "Diagnostic": "documents",
    "Document": "documents",
    "FileTree": "tree",
    "OkfError": "errors",
    "Snapshot": "snapshot",
    "TreeEntry": "tree",
    "WorkingTree": "tree",
    "build_server": "server",
    "extract_id": "documents",
    "load_docs": "snapshot",
    "run": "stdio",
    "slugify_type": "documents",
}


def __getattr__(name: str) -> object:
    """Return a public name of one of the modules (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
