"""The linter's rules: what may be wrong with the documents of a repository, and what to do (T4).

The server's own verdicts are taken as they are. Each rule adds what one file alone can't tell, or
what is served and yet of less use than its author thinks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from okf_mcp_server.documents import MAX_DESCRIPTION_CHARACTERS, Diagnostic, Severity
from okf_mcp_server.lint_documents import (
    cut_descriptions,
    duplicate_ids,
    encoded_ids,
    misnamed,
    outside_roots,
    slug_collisions,
)
from okf_mcp_server.lint_links import broken_links, unchecked_links, unserved_links
from okf_mcp_server.lint_survey import Found, Survey


def _nothing(_: Survey) -> Iterable[Found]:
    return ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that may be wrong."""

    name: str
    severity: Severity
    summary: str
    """What is wrong, in a sentence."""
    advice: str
    """What to do about it."""
    find: Callable[[Survey], Iterable[Found]] = _nothing
    """What it finds beyond the loader's diagnostics of its name."""


def find_all(survey: Survey) -> tuple[Diagnostic, ...]:
    """Return what all rules find, by path (code point), line and rule, each finding once."""
    names = {rule.name for rule in RULES}
    findings = {each for each in survey.diagnostics if each.rule in names}
    for rule in RULES:
        findings.update(
            Diagnostic(rule.name, rule.severity, each.path, each.line, each.message, each.paths)
            for each in rule.find(survey)
        )
    return tuple(sorted(findings, key=lambda each: (each.path, each.line, each.rule, each.message)))


RULES: Final = (
    Rule(
        "duplicate-id",
        "error",
        "Two or more documents of the repository have one id.",
        "Give all but one of them another 'id' in the frontmatter.",
        duplicate_ids,
    ),
    Rule(
        "missing-type",
        "error",
        "The file says 'export: true' and has no usable type, so it is not served.",
        "Write a type with a letter or a digit, such as 'type: Note'.",
    ),
    Rule(
        "unreadable",
        "warning",
        "The file can't be read or parsed, so it is not served.",
        "Correct the YAML of the frontmatter, save the file as UTF-8, or make it smaller.",
    ),
    Rule(
        "invalid-id",
        "warning",
        "No URI can be made of the id, so the file is not served.",
        "Give the file another, shorter 'id'.",
    ),
    Rule(
        "near-miss",
        "warning",
        "The file seems to opt in, and doesn't.",
        "Begin the file with '---', write 'export: true' without quotes, close the block with "
        "'---', and let the file's name end in '.md'.",
        misnamed,
    ),
    Rule(
        "empty-root",
        "warning",
        "A scan root holds no Markdown file.",
        "Correct its name, or leave it out of --roots.",
    ),
    Rule(
        "slug-collision",
        "warning",
        "Different types look the same in URIs.",
        "Write the type one way in all documents.",
        slug_collisions,
    ),
    Rule(
        "encoded-id",
        "warning",
        "The id is percent-encoded in the URI, which nobody can read.",
        "Write an 'id' of ASCII letters, digits, '-', '.', '_' and '~'.",
        encoded_ids,
    ),
    Rule(
        "cut-description",
        "warning",
        f"The description is cut at {MAX_DESCRIPTION_CHARACTERS} characters.",
        "Shorten the 'description', or add one.",
        cut_descriptions,
    ),
    Rule(
        "broken-link",
        "warning",
        "A link leads to a Markdown file or a document that doesn't exist.",
        "Correct the link, or remove it.",
        broken_links,
    ),
    Rule(
        "unchecked-links",
        "warning",
        "The document is too long, or holds too many brackets, for its links to be checked.",
        "Split the document.",
        unchecked_links,
    ),
    Rule(
        "unserved-link",
        "warning",
        "A link leads to a file that isn't served, so agents can't follow it.",
        "Export that file, or link to another one.",
        unserved_links,
    ),
    Rule(
        "outside-roots",
        "warning",
        "The file opts in, but lies outside of the scan roots.",
        "Move the file, or name its folder with --roots (OKF_MCP_ROOTS).",
        outside_roots,
    ),
)
"""Every rule; `duplicate-uri` of the loader is none, for `duplicate-id` says the same and more."""
