"""The MCP server of one owner, which the stdio server and the gateway share."""

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.metadata import version
from typing import Any, Final, TypeAlias

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from okf_mcp_server.changes import Changes
from okf_mcp_server.completion import complete
from okf_mcp_server.documents import Document
from okf_mcp_server.resources import list_resources, read_resource
from okf_mcp_server.snapshot import Snapshot
from okf_mcp_server.templates import list_templates

Context: TypeAlias = ServerRequestContext[Any, Any]

Selection: TypeAlias = Callable[[Context, Sequence[Document]], Sequence[Document]]
"""Returns those documents of a page that its result has to hold, for one request."""

DISTRIBUTION: Final = "okf-mcp-server"

log = logging.getLogger(__name__)


def build_server(
    owner: str,
    current: Callable[[], Snapshot],
    changes: Changes | None = None,
    select: Selection = lambda _, documents: documents,
) -> Server[Any]:
    """Return the MCP server of `owner`.

    `current` is called once for each request and returns the snapshot that the answer is made of,
    so that an answer belongs to one commit. Clients may listen to `changes`; None: nothing changes.
    `select` says which documents of a page of the list are left to the SDK.
    """

    async def on_list_resources(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        cursor = params.cursor if params else None
        return list_resources(current(), cursor, partial(select, context))

    async def on_read_resource(
        context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        return read_resource(current(), owner, params.uri, context.protocol_version)

    async def on_list_resource_templates(
        _: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return list_templates(owner, params.cursor if params else None)

    async def on_completion(
        _: Context, params: types.CompleteRequestParams
    ) -> types.CompleteResult:
        return complete(current(), owner, params)

    async def on_list_tools(
        _: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        if params and params.cursor is not None:
            raise MCPError(types.INVALID_PARAMS, "Invalid cursor")
        return types.ListToolsResult(tools=[])

    server = _Server(
        DISTRIBUTION,
        version=_version(),
        title=f"Knowledge of {owner}",
        instructions=(
            f"The documents that {owner} publishes, as Markdown. List the resources to see what "
            "there is; read one by its URI. `_meta.content_hash` changes when the content does."
        ),
        on_list_resources=on_list_resources,
        on_read_resource=on_read_resource,
        on_list_resource_templates=on_list_resource_templates,
        on_completion=on_completion,
        on_subscriptions_listen=changes.listen if changes else None,
        on_list_tools=on_list_tools,
    )
    # Without the SDK's own, which traces each request for an OpenTelemetry that nobody set up.
    server.middleware[:] = [_mask_errors]
    return server


@cache
def _version() -> str:
    """Return our version, which is read from a file: a gateway has a server for each owner."""
    return version(DISTRIBUTION)


class _Server(Server[Any]):
    """The SDK's server, which claims no changes of the tools: they stay for its whole life.

    The SDK declares all kinds of events as soon as one may be listened to.
    """

    def get_capabilities(self, *args: Any, **kwargs: Any) -> types.ServerCapabilities:
        capabilities = super().get_capabilities(*args, **kwargs)
        return capabilities.model_copy(update={"tools": types.ToolsCapability(list_changed=False)})


async def _mask_errors(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Keep the text of an unexpected error from the client: versions before 2026-07-28 send it."""
    try:
        return await call_next(ctx)
    except (MCPError, ValidationError):
        raise
    except Exception:
        log.exception("Request failed: method=%s", ctx.method)
        raise MCPError(types.INTERNAL_ERROR, "Internal server error") from None
