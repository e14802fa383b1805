"""The linter's findings as text: for people, for scripts, for GitHub, and as SARIF 2.1.0 (T5).

Whatever a file is called, and whatever stands in it, one finding stays one finding: paths come
without control characters, and each format escapes what it must.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from okf_mcp_server.documents import Diagnostic
from okf_mcp_server.lint_rules import RULES

_SARIF_SCHEMA: Final = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_TOP: Final = "%SRCROOT%"
"""What SARIF's readers take for the top level of a repository."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a run of the linter found."""

    findings: tuple[Diagnostic, ...]
    documents: int
    """How many documents the server would serve."""

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return self._count("error")

    @property
    def warnings(self) -> int:
        """How many findings are warnings."""
        return self._count("warning")

    def _count(self, severity: str) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def as_text(report: Report) -> str:
    """Return a line a finding, `path:line: severity rule message`, then the totals."""
    totals = (
        f"{_counted(report.errors, 'error')}, {_counted(report.warnings, 'warning')} "
        f"in {_counted(report.documents, 'document')}"
    )
    return _lines(
        *(
            _without_commands(
                f"{each.path}:{each.line}: {each.severity} {each.rule} {_on_one_line(each.message)}"
            )
            for each in report.findings
        ),
        totals,
    )


def as_json(report: Report) -> str:
    """Return the object `{findings, errors, warnings}`."""
    findings = [
        {
            "rule": each.rule,
            "severity": each.severity,
            "path": each.path,
            "line": each.line,
            "message": each.message,
            **({"paths": list(each.paths)} if each.paths else {}),
        }
        for each in report.findings
    ]
    return _dumped({"findings": findings, "errors": report.errors, "warnings": report.warnings})


def as_github(report: Report) -> str:
    """Return a workflow command a finding, which GitHub shows at the line of the file.

    What is escaped is the rule of GitHub's toolkit for actions: `%` and line ends everywhere, `:`
    and `,` in properties.
    """
    return _lines(
        *(
            f"::{each.severity} file={_property(each.path)},line={each.line},"
            f"title={_property(each.rule)}::{_command_text(each.message)}"
            for each in report.findings
        )
    )


def as_sarif(report: Report) -> str:
    """Return a log of one run in SARIF 2.1.0."""
    driver = {
        "name": "okf-mcp-lint",
        "version": version("okf-mcp-server"),
        "rules": [
            {
                "id": rule.name,
                "shortDescription": {"text": rule.summary},
                "help": {"text": rule.advice},
                "defaultConfiguration": {"level": rule.severity},
            }
            for rule in RULES
        ],
    }
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {_TOP: {"description": {"text": "The repository's top level."}}},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(finding) for finding in report.findings],
    }
    return _dumped({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


FORMATS: Final[Mapping[str, Callable[[Report], str]]] = MappingProxyType(
    {"text": as_text, "json": as_json, "github": as_github, "sarif": as_sarif}
)
"""By the name that `--format` takes."""


def _sarif_result(finding: Diagnostic) -> dict[str, Any]:
    result = {
        "ruleId": finding.rule,
        "ruleIndex": [rule.name for rule in RULES].index(finding.rule),
        "level": finding.severity,
        "message": {"text": finding.message},
        "locations": [_sarif_location(finding.path, finding.line)],
    }
    others = finding.paths[1:]
    if others:
        result["relatedLocations"] = [
            {"id": index, **_sarif_location(path, 1)} for index, path in enumerate(others, start=1)
        ]
    return result


def _sarif_location(path: str, line: int) -> dict[str, Any]:
    # A ':' in the first segment of a relative reference would make it a scheme: all are encoded.
    place = {"uri": quote(path, safe="/"), "uriBaseId": _TOP}
    return {"physicalLocation": {"artifactLocation": place, "region": {"startLine": line}}}


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _without_commands(line: str) -> str:
    """Return a line that is none of GitHub's commands: `::` at its head, or `##[` anywhere."""
    plain = line.replace("##[", "#\\x23[")
    return f"./{plain}" if plain.lstrip().startswith("::") else plain


def _on_one_line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _command_text(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _command_text(text).replace(":", "%3A").replace(",", "%2C")


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def _dumped(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
