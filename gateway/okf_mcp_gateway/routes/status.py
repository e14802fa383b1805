"""`GET /status`: what each owner serves and how fresh it is; a pure read (H5, H7, H9)."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from okf_mcp_gateway.owners import Owner
from okf_mcp_gateway.routes.rendering import read_query, render
from okf_mcp_gateway.state import Clock, Instant, OwnerState, freshness, pulled_age_seconds
from okf_mcp_server.documents import Document

_QUERY: Final = {
    "format": ("json", "yaml"),
    "artifacts": ("false", "true"),
    "diagnostics": ("false", "true"),
}

_MAX_THREADS: Final = 2
"""How many of the long answers are made at a time."""


Counts: TypeAlias = Callable[[str], Mapping[str, int]]
"""Says of an owner how its requests were answered, for operators; in any thread."""


def status_route(owners: Mapping[str, Owner], counts: Counts, clock: Clock) -> Route:
    """Return the route that shows the state of every owner, in the registry's order."""
    threads = CapacityLimiter(_MAX_THREADS)

    async def status(request: Request) -> Response:
        query = read_query(request, _QUERY)
        if "true" not in query.values():
            return _answer(owners, counts, clock.now(), query)
        # In a thread: with many documents this takes as long as a hundred reads.
        return await to_thread.run_sync(
            _answer, owners, counts, clock.now(), query, limiter=threads, abandon_on_cancel=True
        )

    return Route("/status", status)


def _answer(
    owners: Mapping[str, Owner], counts: Counts, now: Instant, query: Mapping[str, str]
) -> Response:
    rows = {
        name: _row(
            owner,
            now,
            artifacts=query["artifacts"] == "true",
            diagnostics=query["diagnostics"] == "true",
        )
        for name, owner in owners.items()
    }
    if query["diagnostics"] == "true":
        for name, row in rows.items():
            row["diagnostics"]["answer_cache"] = counts(name)
    states = Counter(row["state"] for row in rows.values())
    summary = {name: states[name] for name in ("serving", "loading", "failed")}
    content = {"summary": {"total": len(rows), **summary}, "owners": rows}
    return render(content, query["format"])


def _row(owner: Owner, now: Instant, *, artifacts: bool, diagnostics: bool) -> dict[str, Any]:
    state, config = owner.state, owner.config
    documents = state.snapshot.documents if state.snapshot else ()
    row: dict[str, Any] = {
        "state": state.name,
        "ref": config.ref,
        "served_commit": state.snapshot.commit if state.snapshot else None,
        "source_available": state.fault is None,
        "stale": state.is_stale,
        "freshness": freshness(state, config.fresh_seconds, now).value,
        "docs_loaded": len(documents),
        "last_pulled_at": _time(state.pulled_at),
        "last_pulled_age_seconds": pulled_age_seconds(state, now),
        "last_pull_attempt_at": _time(state.attempted_at),
        "last_pull_error": state.fault.message if state.fault else None,
    }
    if artifacts:
        row["artifacts"] = [_artifact(document) for document in documents]
    if state.name == "failed" and state.fault:
        row["error"] = {"type": state.fault.type, "message": state.fault.message}
    if diagnostics:
        row["diagnostics"] = _diagnostics(owner, state)
    return row


def _artifact(document: Document) -> dict[str, Any]:
    return {
        "uri": document.uri,
        "id": document.id,
        "type": document.type,
        "title": document.title,
        "summary": document.description,
        "path": str(document.path),
        "size": len(document.content),
        "content_hash": document.content_hash,
    }


def _diagnostics(owner: Owner, state: OwnerState) -> dict[str, Any]:
    found = state.snapshot.diagnostics if state.snapshot else ()
    return {
        "items": [
            {
                "path": owner.scrub(diagnostic.path),
                "line": diagnostic.line,
                "rule": diagnostic.rule,
                "severity": diagnostic.severity,
                "message": owner.scrub(diagnostic.message),
            }
            for diagnostic in found
        ],
        "error_class": state.fault.error_class if state.fault else None,
        "next_attempt_at": _time(owner.next_attempt_at or state.retried_after),
        "failing_since": _time(state.failing_since),
        "parsed_files": state.snapshot.parsed_files if state.snapshot else None,
    }


def _time(instant: Instant | None) -> str | None:
    return (
        None
        if instant is None
        else instant.at.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"
    )
