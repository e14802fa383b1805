"""Documents: a repository's Markdown, as a snapshot and as an MCP server."""

from okf_mcp_server.documents import Diagnostic, Document, extract_id, slugify_type
from okf_mcp_server.server import build_server
from okf_mcp_server.snapshot import Snapshot, load_docs
from okf_mcp_server.stdio import run

__all__ = [
    "Diagnostic",
    "Document",
    "Snapshot",
    "build_server",
    "extract_id",
    "load_docs",
    "run",
    "slugify_type",
]
