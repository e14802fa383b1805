"""Completion of the template's arguments: the types and ids that an owner has."""

from collections.abc import Iterable
from typing import Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

from okf_mcp_server.snapshot import Snapshot
from okf_mcp_server.templates import template_uri

MAX_VALUES: Final = 100
"""How many values an answer holds: the protocol's own limit."""


def complete(
    snapshot: Snapshot, owner: str, params: types.CompleteRequestParams
) -> types.CompleteResult:
    """Return the values that fit what was typed so far, as a person writes them.

    Case doesn't count. Those that begin with it come first, then those that hold it elsewhere,
    each in served order. `id` is narrowed by the `type` that was chosen before, if one was. Raises
    `MCPError` (invalid params) for whatever is not the template of `owner`.
    """
    if not isinstance(params.ref, types.ResourceTemplateReference):
        raise MCPError(types.INVALID_PARAMS, "There are no prompts here to complete")
    if params.ref.uri != template_uri(owner):
        message = f"Only the arguments of {template_uri(owner)} can be completed"
        raise MCPError(types.INVALID_PARAMS, message)
    if params.argument.name == "type":
        known = [document.type_slug for document in snapshot.documents]
    elif params.argument.name == "id":
        chosen = _chosen_type(params.context)
        known = [
            document.id
            for document in snapshot.documents
            if not chosen or document.type_slug == chosen
        ]
    else:
        raise MCPError(types.INVALID_PARAMS, "The arguments of the template are type and id")
    values = _fitting(known, params.argument.value)
    return types.CompleteResult(
        completion=types.Completion(
            values=values[:MAX_VALUES], total=len(values), has_more=len(values) > MAX_VALUES
        )
    )


def _chosen_type(context: types.CompletionContext | None) -> str | None:
    """Return the type that was chosen before; blank is none."""
    return context.arguments.get("type") if context and context.arguments else None


def _fitting(known: Iterable[str], typed: str) -> list[str]:
    """Return the values that hold `typed`, none twice, those that begin with it first."""
    wanted = typed.casefold()
    folded = {value: value.casefold() for value in known}
    fitting = [value for value, text in folded.items() if wanted in text]
    return sorted(fitting, key=lambda value: not folded[value].startswith(wanted))
