"""Documents as MCP resources: list, find and read (D7, D8, D11)."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeGuard, cast

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from okf_mcp_server.documents import Document
from okf_mcp_server.snapshot import OrderKey, Snapshot
from okf_mcp_server.uris import normal_uri

PAGE_SIZE: Final = 1000
"""How many resources one page of `resources/list` holds (D11)."""

MIME_TYPE: Final = "text/markdown"

_RESOURCE_NOT_FOUND: Final = -32002
"""What versions before 2026-07-28 call it; that one forbids the code and uses -32602."""

_KEY_LENGTH: Final = 2

Select: TypeAlias = Callable[[Sequence[Document]], Sequence[Document]]

Listed: TypeAlias = tuple[str, str, int, str]
"""All that a list shows of a document, beside its URI."""


def list_resources(
    snapshot: Snapshot, cursor: str | None, select: Select = lambda documents: documents
) -> types.ListResourcesResult:
    """Return the page that follows `cursor`; the first one without.

    A cursor is the place of the last document of its page, so it continues in any snapshot. Raises
    `MCPError` (invalid params) for one that isn't ours. `select` says which documents of the page
    the result has to hold: whoever hands it in adds the others.
    """
    start = 0 if cursor is None else snapshot.index_after(_read_cursor(cursor))
    end = start + PAGE_SIZE
    is_last = end >= len(snapshot.documents)
    return types.ListResourcesResult(
        resources=list(map(_resource, select(snapshot.documents[start:end]))),
        next_cursor=None if is_last else _write_cursor(snapshot.key_at(end - 1)),
        _meta=_commit_meta(snapshot),
    )


def read_resource(
    snapshot: Snapshot, owner: str, uri: str, protocol_version: str
) -> types.ReadResourceResult:
    """Return the content of the document at `uri`, in whatever spelling; its own URI comes back.

    Raises `MCPError` with the URI in its data if there is none, with the code of the version.
    """
    document = find_document(snapshot, owner, uri)
    if document is None:
        is_legacy = protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
        code = _RESOURCE_NOT_FOUND if is_legacy else types.INVALID_PARAMS
        raise MCPError(code, "Resource not found", {"uri": uri})
    contents = types.TextResourceContents(
        uri=document.uri, mime_type=MIME_TYPE, text=document.content, _meta=_hash_meta(document)
    )
    return types.ReadResourceResult(contents=[contents], _meta=_commit_meta(snapshot))


def find_document(snapshot: Snapshot, owner: str, uri: str) -> Document | None:
    """Return the document of `owner` that a client means by `uri`, in whatever spelling."""
    document = snapshot.by_uri.get(uri)
    if document is None and (normal := normal_uri(owner, uri)) is not None:
        document = snapshot.by_uri.get(normal)
    return document


def listed(document: Document) -> Listed:
    """Return what a list shows of a document: it is the same for as long as this is."""
    return document.title, document.description, document.size, document.content_hash


def _resource(document: Document) -> types.Resource:
    return types.Resource(
        uri=document.uri,
        name=document.title,
        title=document.title,
        description=document.description or None,
        mime_type=MIME_TYPE,
        size=document.size,
        _meta=_hash_meta(document),
    )


def _hash_meta(document: Document) -> dict[str, Any]:
    return {"content_hash": document.content_hash}


def _commit_meta(snapshot: Snapshot) -> dict[str, Any] | None:
    return {"served_commit": snapshot.commit} if snapshot.commit else None


def _write_cursor(key: OrderKey) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def _read_cursor(cursor: str) -> OrderKey:
    try:
        key = json.loads(base64.b64decode(cursor.encode(), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        key = None
    if not _is_order_key(key):
        raise MCPError(types.INVALID_PARAMS, "Invalid cursor")
    return key[0], key[1]


def _is_order_key(value: object) -> TypeGuard[list[Any]]:
    if not isinstance(value, list) or len(cast("list[object]", value)) != _KEY_LENGTH:
        return False
    root, path = cast("list[object]", value)
    return type(root) is int and root >= 0 and isinstance(path, str)
