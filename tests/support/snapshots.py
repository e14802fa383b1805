"""What a snapshot is, as a value that compares."""

from typing import Any

from okf_mcp_server.snapshot import Snapshot


def everything(snapshot: Snapshot) -> dict[str, Any]:
    """Return all that a snapshot is, but for what it cost."""
    parts = ("commit", "roots", "documents", "starts", "shadowed", "diagnostics", "listing")
    return {
        **{name: getattr(snapshot, name) for name in parts},
        "verdicts": dict(snapshot.verdicts),
        "by_uri": list(snapshot.by_uri.items()),
    }
