"""The linter's rules about documents: their ids, types, descriptions, and where they lie (T4)."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final

from okf_mcp_server.documents import (
    MAX_DESCRIPTION_CHARACTERS,
    Document,
    first_paragraph,
    printable,
)
from okf_mcp_server.lint_survey import Found, Survey
from okf_mcp_server.roots import ROOTS_VARIABLE

_NAMED_PATHS: Final = 10
"""How many paths a message names; `paths` holds all."""

_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9._~-]+")


def misnamed(survey: Survey) -> Iterator[Found]:
    """Find files that opt in and whose names end in another spelling of Markdown."""
    for document in survey.misnamed:
        message = (
            f"not exported: the name ends in {document.path.suffix!r}; "
            "rename the file so that it ends in '.md'"
        )
        yield Found.of(document, message)


def duplicate_ids(survey: Survey) -> Iterator[Found]:
    """Find ids that two or more documents have, served or not."""
    by_id: defaultdict[str, list[Document]] = defaultdict(list)
    for document in _all_documents(survey):
        by_id[document.id].append(document)
    for document_id, documents in by_id.items():
        if len(documents) > 1:
            paths = _paths(documents)
            mend = "give all but one of them another id"
            if not any("id" in document.lines for document in documents):
                mend = "the id is the first word of a file's name: add an 'id' to all but one"
            named = ", ".join(paths[:_NAMED_PATHS])
            more = f" and {len(paths) - _NAMED_PATHS} more" if len(paths) > _NAMED_PATHS else ""
            message = f"{document_id!r} is the id of {len(paths)} documents: {named}{more}; {mend}"
            first = documents[0]
            yield Found.of(first, message, first.lines.get("id", 1), paths)


def slug_collisions(survey: Survey) -> Iterator[Found]:
    """Find types that differ and look the same in URIs."""
    by_slug: defaultdict[str, dict[str, Document]] = defaultdict(dict)
    for document in _all_documents(survey):
        by_slug[document.type_slug].setdefault(document.type, document)
    for slug, firsts in by_slug.items():
        if len(firsts) > 1:
            documents = list(firsts.values())
            shown = ", ".join(f"{each.type!r} ({printable(each.path)})" for each in documents)
            message = f"these types are all {slug!r} in URIs: {shown}; write the type one way"
            first = documents[0]
            yield Found.of(first, message, first.lines.get("type", 1), _paths(documents))


def encoded_ids(survey: Survey) -> Iterator[Found]:
    """Find ids that can't be read in a URI."""
    for document in _all_documents(survey):
        if not document.uri.endswith(f"/{document.id}"):
            plain = _plain(document.id)
            example = f", such as 'id: {plain}'" if plain else ""
            message = (
                f"the id {document.id!r} makes an unreadable URI, {document.uri}; "
                f"write an id of ASCII letters, digits, '-', '.', '_' and '~'{example}"
            )
            yield Found.of(document, message, document.lines.get("id", 1))


def cut_descriptions(survey: Survey) -> Iterator[Found]:
    """Find descriptions that are cut, declared or not."""
    limit = MAX_DESCRIPTION_CHARACTERS
    for document in _all_documents(survey):
        if len(document.description) < limit:
            continue
        declared = document.fields.get("description")
        if isinstance(declared, str) and declared.strip():
            if (length := len(declared.strip())) > limit:
                message = (
                    f"the description has {length} characters and is cut at {limit}; shorten it"
                )
                yield Found.of(document, message, document.lines.get("description", 1))
        elif len(first_paragraph(document.content)) > limit:
            message = (
                f"the first paragraph is the description and is cut at {limit} characters; "
                "add a 'description'"
            )
            yield Found.of(document, message, document.content_line)


def outside_roots(survey: Survey) -> Iterator[Found]:
    """Find files that opt in where the stdio server doesn't look."""
    roots = ", ".join(map(printable, survey.roots))
    for document in survey.outside:
        first, *rest = document.path.parts
        root = printable(PurePosixPath(first)) if rest else "."
        message = (
            f"the file opts in, but the stdio server searches only {roots}; move it there, or let "
            f"server and linter search {root}, too (--roots, {ROOTS_VARIABLE})"
        )
        yield Found.of(document, message)


def _all_documents(survey: Survey) -> list[Document]:
    """Return all documents in served order, also those that have another's URI."""
    snapshot = survey.snapshot
    if not snapshot.shadowed:
        return list(snapshot.documents)

    def place(document: Document) -> tuple[int, str]:
        roots = enumerate(survey.roots)
        index = next(index for index, root in roots if document.path.is_relative_to(root))
        return index, str(document.path)

    return sorted((*snapshot.documents, *snapshot.shadowed), key=place)


def _paths(documents: Iterable[Document]) -> tuple[str, ...]:
    return tuple(printable(document.path) for document in documents)


def _plain(document_id: str) -> str:
    """Return an id like this one that stays as it is in a URI; empty if its letters don't allow."""
    letters = unicodedata.normalize("NFKD", document_id)
    if any(each.isalnum() and not each.isascii() for each in letters):
        return ""
    without_accents = "".join(each for each in letters if not unicodedata.combining(each))
    return _NOT_PLAIN.sub("-", without_accents).strip("-.")
