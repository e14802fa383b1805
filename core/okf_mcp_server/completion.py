"""Completion of the template's arguments: the types and ids that an owner has."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final, TypeAlias

import mcp_types as types
from mcp.shared.exceptions import MCPError

from okf_mcp_server.snapshot import Snapshot
from okf_mcp_server.templates import template_uri

MAX_VALUES: Final = 100
"""How many values an answer holds: the protocol's own limit."""


Folded: TypeAlias = Mapping[str, str]
"""Values in served order, none twice, each with its text as it is compared."""


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
        known = {slug: slug.casefold() for slug in snapshot.derive(_ids_by_type) if slug}
    elif params.argument.name == "id":
        chosen = _chosen_type(params.context)
        known = snapshot.derive(_ids_by_type).get(chosen, {})
    else:
        raise MCPError(types.INVALID_PARAMS, "The arguments of the template are type and id")
    values = _fitting(known, params.argument.value)
    return types.CompleteResult(
        completion=types.Completion(
            values=values[:MAX_VALUES], total=len(values), has_more=len(values) > MAX_VALUES
        )
    )


def _chosen_type(context: types.CompletionContext | None) -> str:
    """Return the type that was chosen before; empty for none."""
    return (context.arguments or {}).get("type", "").strip() if context else ""


def _ids_by_type(snapshot: Snapshot) -> Mapping[str, Folded]:
    """Return the ids of each type, and of all at the empty one: a view for `Snapshot.derive`."""
    ids: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for document in snapshot.documents:
        ids[""][document.id] = ids[document.type_slug][document.id] = document.id.casefold()
    return ids


def _fitting(known: Folded, typed: str) -> list[str]:
    """Return the values that hold `typed`, those that begin with it first."""
    wanted = typed.casefold()
    fitting = [(value, text) for value, text in known.items() if wanted in text]
    first = [value for value, text in fitting if text.startswith(wanted)]
    return first + [value for value, text in fitting if not text.startswith(wanted)]
