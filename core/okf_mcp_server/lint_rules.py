"""The linter's rules: what is wrong with the documents of a repository, and what to do (T4).

The server's own verdicts are taken as they are. Each rule adds what one file alone can't tell, or
what is served and yet of less use than its author thinks.
"""

import re
import shlex
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from okf_mcp_server.documents import (
    MAX_DESCRIPTION_CHARACTERS,
    Diagnostic,
    Document,
    Severity,
    first_paragraph,
    printable,
)
from okf_mcp_server.links import (
    MAX_BRACKETS,
    MAX_CHARACTERS,
    Link,
    links_by_path,
    markdown_target,
)
from okf_mcp_server.lint_survey import Survey
from okf_mcp_server.roots import DEFAULT_ROOTS
from okf_mcp_server.snapshot import Snapshot
from okf_mcp_server.uris import names_owner, normal_uri

_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9._~-]+")


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that may be wrong."""

    name: str
    severity: Severity
    summary: str
    """What is wrong, in a sentence."""
    advice: str
    """What to do about it."""
    find: Callable[["Rule", Survey], Iterable[Diagnostic]]

    def at(
        self, document: Document, message: str, line: int = 1, paths: tuple[str, ...] = ()
    ) -> Diagnostic:
        """Return the finding of this rule in a document."""
        path = printable(document.path)
        return Diagnostic(self.name, self.severity, path, line, message, paths)


def find_all(survey: Survey) -> tuple[Diagnostic, ...]:
    """Return what all rules find, by path (code point), line and rule, each finding once."""
    found = {finding for rule in RULES for finding in rule.find(rule, survey)}
    return tuple(sorted(found, key=lambda each: (each.path, each.line, each.rule, each.message)))


def _by_loader(rule: Rule, survey: Survey) -> Iterator[Diagnostic]:
    yield from (each for each in survey.snapshot.diagnostics if each.rule == rule.name)


def _empty_roots(rule: Rule, survey: Survey) -> Iterator[Diagnostic]:
    """A root that somebody named; of the default ones, hardly a repository has all."""
    if survey.roots is not DEFAULT_ROOTS:
        yield from _by_loader(rule, survey)


def _near_misses(rule: Rule, survey: Survey) -> Iterator[Diagnostic]:
    yield from _by_loader(rule, survey)
    for document in survey.misnamed:
        suffix = document.path.suffix
        message = (
            f"not exported: the name ends in {suffix!r}; rename the file so that it ends in '.md'"
        )
        yield rule.at(document, message)


def _duplicate_ids(rule: Rule, survey: Survey) -> Iterator[Diagnostic]:
    by_id: defaultdict[str, list[Document]] = defaultdict(list)
    for document in _all_documents(survey):
        by_id[document.id].append(document)
    for document_id, documents in by_id.items():
        if len(documents) > 1:
            paths = _paths(documents)
            mend = "give all but one of them another id"
            if not any("id" in document.lines for document in documents):
                mend = "the id is the first word of a file's name: add an 'id' to all but one"
            message = (
                f"{document_id!r} is the id of {len(paths)} documents: {', '.join(paths)}; {mend}"
            )
            first = documents[0]
            yield rule.at(first, message, first.lines.get("id", 1), paths)


def _slug_collisions(rule: Rule, survey: Survey) -> Iterator[Diagnostic]:
    by_slug: defaultdict[str, dict[str, Document]] = defaultdict(dict)
    for document in _all_documents(survey):
        by_slug[document.type_slug].setdefault(document.type, document)
    for slug, firsts in by_slug.items():
        if len(firsts) > 1:
            documents = list(firsts.values())
            shown = ", ".join(f"{each.type!r} ({printable(each.path)})" for each in documents)
            message = f"these types are all {slug!r} in URIs: {shown}; write the type one way"
            first = documents[0]
            yield rule.at(first, message, first.lines.get("type", 1), _paths(documents))


def _encoded_ids(rule: Rule, survey: Survey) -> Iterator[Diagnostic]:
    for document in _all_documents(survey):
        if not document.uri.endswith(f"/{document.id}"):
            plain = _plain(document.id)
            example = f", such as 'id: {plain}'" if plain else ""
            message = (
                f"the id {document.id!r} makes an unreadable URI, {document.uri}; "
                f"write an id of ASCII letters, digits, '-', '.', '_' and '~'{example}"
            )
            yield rule.at(document, message, document.lines.get("id", 1))


def _cut_descriptions(rule: Rule, survey: Survey) -> Iterator[Diagnostic]:
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
                yield rule.at(document, message, document.lines.get("description", 1))
        elif len(first_paragraph(document.content)) > limit:
            message = (
                f"the first paragraph is the description and is cut at {limit} characters; "
                "add a 'description'"
            )
            yield rule.at(document, message, document.content_line)


def _outside_roots(rule: Rule, survey: Survey) -> Iterator[Diagnostic]:
    roots = ", ".join(map(str, survey.roots))
    for document in survey.outside:
        first, *rest = document.path.parts
        root = printable(PurePosixPath(shlex.quote(first))) if rest else "."
        message = (
            f"the file opts in, but the stdio server searches only {roots}; "
            f"move it there, or give both --roots {root}"
        )
        yield rule.at(document, message)


def _broken_links(rule: Rule, survey: Survey) -> Iterator[Diagnostic]:
    for document, links in _linking(survey):
        if links is None:
            message = (
                f"its links can't be checked: more than {MAX_CHARACTERS // 1024} Ki characters, "
                f"or {MAX_BRACKETS} brackets; split the document"
            )
            yield rule.at(document, message, document.content_line)
        for link in links or ():
            if fault := _link_fault(link, document, survey):
                message = f"the link {link.destination!r} {fault}"
                yield rule.at(document, message, document.content_line + link.line - 1)


def _link_fault(link: Link, document: Document, survey: Survey) -> str | None:
    """Return what is wrong with a link, as the end of a sentence; None for a good one."""
    if names_owner(survey.owner, link.destination):
        uri, _, _ = link.destination.partition("#")
        normal = normal_uri(survey.owner, uri.partition("?")[0])
        if normal not in survey.snapshot.by_uri:
            return f"is no document of {survey.owner}; correct the type or the id in it"
        return None
    target = _unserved_target(link, document, survey)
    if target is None or survey.has_file(target):
        return None
    if ".." in target.parts:
        return "leads out of the repository; link to a file in it"
    return f"leads to {printable(target)}, which doesn't exist; correct or remove it"


def _unserved_links(rule: Rule, survey: Survey) -> Iterator[Diagnostic]:
    for document, links in _linking(survey):
        for link in links or ():
            target = _unserved_target(link, document, survey)
            if target and survey.has_file(target):
                message = (
                    f"the link {link.destination!r} leads to a file that isn't served, so agents "
                    "can't follow it; export that file, or link to another"
                )
                yield rule.at(document, message, document.content_line + link.line - 1)


def _unserved_target(link: Link, document: Document, survey: Survey) -> PurePosixPath | None:
    """Return the Markdown file that a link means if it is no served document, else None."""
    target = markdown_target(link.destination, document.path.parent)
    is_served = target in survey.snapshot.derive(_served_paths)
    return None if is_served else target


def _linking(survey: Survey) -> Iterator[tuple[Document, tuple[Link, ...] | None]]:
    links = survey.snapshot.derive(links_by_path)
    yield from (
        (each, links[each.path]) for each in survey.snapshot.documents if each.path in links
    )


def _served_paths(snapshot: Snapshot) -> frozenset[PurePosixPath]:
    """Return where the served documents lie: a view for `Snapshot.derive`."""
    return frozenset(document.path for document in snapshot.documents)


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


RULES: Final = (
    Rule(
        "duplicate-id",
        "error",
        "Two or more documents of the repository have one id.",
        "Give all but one of them another 'id' in the frontmatter.",
        _duplicate_ids,
    ),
    Rule(
        "missing-type",
        "error",
        "The file says 'export: true' and has no usable type, so it is not served.",
        "Write a type with a letter or a digit, such as 'type: Note'.",
        _by_loader,
    ),
    Rule(
        "unreadable",
        "warning",
        "The file can't be read or parsed, so it is not served.",
        "Correct the YAML of the frontmatter, save the file as UTF-8, or make it smaller.",
        _by_loader,
    ),
    Rule(
        "invalid-id",
        "warning",
        "No URI can be made of the id, so the file is not served.",
        "Give the file another, shorter 'id'.",
        _by_loader,
    ),
    Rule(
        "near-miss",
        "warning",
        "The file seems to opt in, and doesn't.",
        "Begin the file with '---', write 'export: true' without quotes, close the block with "
        "'---', and let the file's name end in '.md'.",
        _near_misses,
    ),
    Rule(
        "empty-root",
        "warning",
        "A scan root holds no Markdown file.",
        "Correct its name, or leave it out of --roots.",
        _empty_roots,
    ),
    Rule(
        "slug-collision",
        "warning",
        "Different types look the same in URIs.",
        "Write the type one way in all documents.",
        _slug_collisions,
    ),
    Rule(
        "encoded-id",
        "warning",
        "The id is percent-encoded in the URI, which nobody can read.",
        "Write an 'id' of ASCII letters, digits, '-', '.', '_' and '~'.",
        _encoded_ids,
    ),
    Rule(
        "cut-description",
        "warning",
        f"The description is cut at {MAX_DESCRIPTION_CHARACTERS} characters.",
        "Shorten the 'description', or add one.",
        _cut_descriptions,
    ),
    Rule(
        "broken-link",
        "warning",
        "A link leads to a Markdown file or a document that doesn't exist.",
        "Correct the link, or remove it.",
        _broken_links,
    ),
    Rule(
        "unserved-link",
        "warning",
        "A link leads to a file that isn't served, so agents can't follow it.",
        "Export that file, or link to another one.",
        _unserved_links,
    ),
    Rule(
        "outside-roots",
        "warning",
        "The file opts in, but lies outside of the scan roots.",
        "Move the file, or name its folder with --roots (OKF_MCP_ROOTS).",
        _outside_roots,
    ),
)
"""Every rule; `duplicate-uri` of the loader is none, for `duplicate-id` says the same and more."""
