"""The template of an owner's URIs, for clients that know a document's type and id."""

import mcp_types as types
from mcp.shared.exceptions import MCPError

from okf_mcp_server.resources import MIME_TYPE
from okf_mcp_server.uris import encode_segment


def template_uri(owner: str) -> str:
    """Return the RFC 6570 template of the URIs of `owner`; what it expands to reads back."""
    return f"knowledge://{encode_segment(owner)}/{{type}}/{{id}}"


def list_templates(owner: str, cursor: str | None) -> types.ListResourceTemplatesResult:
    """Return the one template; there is no second page, so each cursor is invalid params."""
    if cursor is not None:
        raise MCPError(types.INVALID_PARAMS, "Invalid cursor")
    template = types.ResourceTemplate(
        name="document",
        title="A document by its type and id",
        uri_template=template_uri(owner),
        description=(
            f"One document of {owner}. `type` is the type as it stands in a resource's URI: in "
            "lower case, with dashes (architecture-decision); `id` is the document's id (doc-7). "
            "completion/complete knows the values of both."
        ),
        mime_type=MIME_TYPE,
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])
