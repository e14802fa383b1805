"""The linter's rules about links: whether an agent that reads a document can follow them (T4)."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from okf_mcp_server.documents import Document, printable
from okf_mcp_server.links import MAX_BRACKETS, MAX_CHARACTERS, Link, links_by_path, markdown_target
from okf_mcp_server.lint_survey import Found, Survey
from okf_mcp_server.snapshot import Snapshot
from okf_mcp_server.uris import names_owner, normal_uri

_SHOWN_CHARACTERS: Final = 200
"""How much of a link a message quotes."""


def unchecked_links(survey: Survey) -> Iterator[Found]:
    """Find documents whose links can't be checked, as it would take too long."""
    links = survey.snapshot.derive(links_by_path)
    for document in survey.snapshot.documents:
        if links.get(document.path, ()) is None:
            message = (
                f"its links can't be checked: more than {MAX_CHARACTERS // 1024} Ki characters, "
                f"or {MAX_BRACKETS} brackets; split the document"
            )
            yield Found.of(document, message, document.content_line)


def broken_links(survey: Survey) -> Iterator[Found]:
    """Find links to Markdown files and documents that nobody can reach."""
    for document, link in _links(survey):
        if names_owner(survey.owner, link.destination):
            fault = _uri_fault(link, survey)
        else:
            target = _unserved_target(link, document, survey)
            fault = _path_fault(target, survey) if target else None
        if fault:
            yield _found(document, link, fault)


def unserved_links(survey: Survey) -> Iterator[Found]:
    """Find links to Markdown files that are there and aren't served."""
    for document, link in _links(survey):
        target = _unserved_target(link, document, survey)
        if target and survey.why_missing(target) is None:
            fault = (
                "leads to a file that isn't served, so agents can't follow it; "
                "export that file, or link to another"
            )
            yield _found(document, link, fault)


def _uri_fault(link: Link, survey: Survey) -> str | None:
    uri = link.destination.partition("#")[0].partition("?")[0]
    if normal_uri(survey.owner, uri) in survey.snapshot.by_uri:
        return None
    return f"is no document of {survey.owner}; correct the type or the id in it"


def _path_fault(target: PurePosixPath, survey: Survey) -> str | None:
    if ".." in target.parts:
        return "leads out of the repository; link to a file in it"
    if reason := survey.why_missing(target):
        shown = printable(target)[:_SHOWN_CHARACTERS]
        return f"leads to {shown}, which {reason}; correct or remove it"
    return None


def _unserved_target(link: Link, document: Document, survey: Survey) -> PurePosixPath | None:
    """Return the Markdown file that a link means if it is no served document, else None."""
    target = markdown_target(link.destination, document.path.parent)
    return None if target in survey.snapshot.derive(_served_paths) else target


def _links(survey: Survey) -> Iterator[tuple[Document, Link]]:
    links = survey.snapshot.derive(links_by_path)
    for document in survey.snapshot.documents:
        for link in links.get(document.path) or ():
            yield document, link


def _found(document: Document, link: Link, fault: str) -> Found:
    shown = link.destination
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[:_SHOWN_CHARACTERS]}…"
    message = f"the link {shown!r} {fault}"
    return Found.of(document, message, document.content_line + link.line - 1)


def _served_paths(snapshot: Snapshot) -> frozenset[PurePosixPath]:
    """Return where the served documents lie: a view for `Snapshot.derive`."""
    return frozenset(document.path for document in snapshot.documents)
