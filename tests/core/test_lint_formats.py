"""How the linter writes what it found (T5)."""

import json
import os
from importlib.metadata import version
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import pytest

from okf_mcp_server import Diagnostic
from okf_mcp_server.documents import printable
from okf_mcp_server.lint_formats import FORMATS, Report, as_github, as_json, as_sarif, as_text
from okf_mcp_server.lint_rules import RULES

DUPLICATE = Diagnostic(
    "duplicate-id",
    "error",
    "a/größe 1.md",
    3,
    "'x' is the id of 2 documents; 100% sure",
    ("a/größe 1.md", "b:c,d.md"),
)
BROKEN = Diagnostic("broken-link", "warning", "b:c,d.md", 12, "the link 'x.md' leads to x.md")
REPORT = Report((DUPLICATE, BROKEN), documents=14)

# What a repository of somebody who means harm may call its files, and write into them.
HARM = [
    "a\n::error file=x::pwned.md",
    "a\r\n::set-output name=x::y.md",
    "a::b,line=9::c.md",
    "a%0A::error::b.md",
    "\x1b[2Ja\x00\x85\u2028b\u202ec.md",
    os.fsdecode(b"a\xff\xfe.md"),
    "a</script>\"'&.md",
]


def harmful(name: str) -> Report:
    path = printable(PurePosixPath(name))
    finding = Diagnostic(
        "near-miss", "warning", path, 1, f"what {name!a} says: {path}", (path, path)
    )
    return Report((finding,), documents=0)


@pytest.mark.row("T5")
def test_text_is_a_line_a_finding_and_then_the_totals() -> None:
    assert as_text(REPORT) == (
        "a/größe 1.md:3: error duplicate-id 'x' is the id of 2 documents; 100% sure\n"
        "b:c,d.md:12: warning broken-link the link 'x.md' leads to x.md\n"
        "1 error, 1 warning in 14 documents\n"
    )


@pytest.mark.row("T5")
@pytest.mark.parametrize(
    ("report", "totals"),
    [
        (Report((), documents=0), "0 errors, 0 warnings in 0 documents\n"),
        (Report((), documents=1), "0 errors, 0 warnings in 1 document\n"),
        (Report((BROKEN,) * 2, documents=2), "0 errors, 2 warnings in 2 documents\n"),
        (Report((DUPLICATE,) * 2, documents=2), "2 errors, 0 warnings in 2 documents\n"),
    ],
    ids=["nothing", "clean", "warnings", "errors"],
)
def test_text_ends_with_the_totals_also_when_all_is_well(report: Report, totals: str) -> None:
    assert as_text(report).endswith(totals)


@pytest.mark.row("T5")
def test_json_is_one_object_with_the_findings_and_the_totals() -> None:
    text = as_json(REPORT)
    assert json.loads(text) == {
        "findings": [
            {
                "rule": "duplicate-id",
                "severity": "error",
                "path": "a/größe 1.md",
                "line": 3,
                "message": "'x' is the id of 2 documents; 100% sure",
                "paths": ["a/größe 1.md", "b:c,d.md"],
            },
            {
                "rule": "broken-link",
                "severity": "warning",
                "path": "b:c,d.md",
                "line": 12,
                "message": "the link 'x.md' leads to x.md",
            },
        ],
        "errors": 1,
        "warnings": 1,
    }
    assert list(json.loads(text)) == ["findings", "errors", "warnings"]
    assert "größe" in text
    assert text.endswith("}\n")
    assert json.loads(as_json(Report((), 3))) == {"findings": [], "errors": 0, "warnings": 0}


@pytest.mark.row("T5")
def test_github_gets_a_workflow_command_a_finding() -> None:
    assert as_github(REPORT) == (
        "::error file=a/größe 1.md,line=3,title=duplicate-id::"
        "'x' is the id of 2 documents; 100%25 sure\n"
        "::warning file=b%3Ac%2Cd.md,line=12,title=broken-link::the link 'x.md' leads to x.md\n"
    )
    assert as_github(Report((), 3)) == ""


def test_github_gets_line_ends_in_a_message_as_escapes() -> None:
    finding = Diagnostic("near-miss", "warning", "a.md", 1, "one\r\n::error::two")
    assert as_github(Report((finding,), 0)) == (
        "::warning file=a.md,line=1,title=near-miss::one%0D%0A::error::two\n"
    )


def test_text_gets_line_ends_in_a_message_as_escapes() -> None:
    finding = Diagnostic("near-miss", "warning", "a.md", 1, "one\r\ntwo\u2028three")
    first, _totals = as_text(Report((finding,), 0)).splitlines()
    assert first == r"a.md:1: warning near-miss one\r\ntwo\u2028three"


@pytest.mark.row("T5")
@pytest.mark.parametrize("name", HARM, ids=ascii)
def test_no_name_of_a_file_breaks_a_line_or_adds_a_command(name: str) -> None:
    report = harmful(name)
    text = as_text(report)
    assert text.isprintable() or text.replace("\n", "").isprintable()
    assert len(text.splitlines()) == 2
    (command,) = as_github(report).splitlines()
    properties = command.removeprefix("::warning ").partition("::")[0]
    assert [each.partition("=")[0] for each in properties.split(",")] == ["file", "line", "title"]
    for write in FORMATS.values():
        write(report).encode()
    (finding,) = json.loads(as_json(report))["findings"]
    assert finding["path"] == report.findings[0].path


@pytest.mark.row("T5")
def test_sarif_has_one_run_with_all_rules_and_results() -> None:
    log = json.loads(as_sarif(REPORT))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("/sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("okf-mcp-lint", version("okf-mcp-server"))
    assert driver["rules"] == [
        {
            "id": rule.name,
            "shortDescription": {"text": rule.summary},
            "help": {"text": rule.advice},
            "defaultConfiguration": {"level": rule.severity},
        }
        for rule in RULES
    ]
    names = [rule.name for rule in RULES]
    assert run["results"] == [
        {
            "ruleId": "duplicate-id",
            "ruleIndex": names.index("duplicate-id"),
            "level": "error",
            "message": {"text": "'x' is the id of 2 documents; 100% sure"},
            "locations": [location("a/gr%C3%B6%C3%9Fe%201.md", 3)],
            "relatedLocations": [{"id": 1, **location("b%3Ac%2Cd.md", 1)}],
        },
        {
            "ruleId": "broken-link",
            "ruleIndex": names.index("broken-link"),
            "level": "warning",
            "message": {"text": "the link 'x.md' leads to x.md"},
            "locations": [location("b%3Ac%2Cd.md", 12)],
        },
    ]


@pytest.mark.row("T5")
@pytest.mark.parametrize("name", HARM, ids=ascii)
def test_sarif_names_a_file_by_a_relative_uri(name: str) -> None:
    report = harmful(name)
    (run,) = json.loads(as_sarif(report))["runs"]
    assert run["originalUriBaseIds"].keys() == {"%SRCROOT%"}
    (result,) = run["results"]
    for place in (*result["locations"], *result["relatedLocations"]):
        artifact = place["physicalLocation"]["artifactLocation"]
        assert artifact["uriBaseId"] == "%SRCROOT%"
        assert unquote(artifact["uri"]) == report.findings[0].path
        assert set(artifact["uri"]) <= set(
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~%/"
        )


def test_sarif_of_a_clean_repository_has_an_empty_list_of_results() -> None:
    # Without the list, a reader takes it that nothing was looked for, and keeps old alerts.
    (run,) = json.loads(as_sarif(Report((), 3)))["runs"]
    assert run["results"] == []


def location(uri: str, line: int) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri, "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": line},
        }
    }


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("::error file=a.js::b.md", "./::error file=a.js::b.md"),
        (" ::error::b.md", "./ ::error::b.md"),
        ("a/##[error]b.md", r"a/#\x23[error]b.md"),
    ],
)
def test_a_line_of_text_is_no_workflow_command(path: str, shown: str) -> None:
    finding = Diagnostic("near-miss", "warning", path, 1, "##[stop-commands]x")
    line = rf"{shown}:1: warning near-miss #\x23[stop-commands]x"
    assert as_text(Report((finding,), documents=0)).startswith(f"{line}\n")
