"""What the linter writes as SARIF is SARIF by its schema (T5)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.children import run_child
from support.npm import NpmFolder
from support.repositories import Repository

SCHEMA_PACKAGE = "@microsoft/jest-sarif@1.0.0-beta.0"
SCHEMA = "@microsoft/jest-sarif/lib/schemas/sarif-2.1.0-rtm.5.json"
CHECK_JSONSCHEMA = (
    *(sys.executable, "-m", "check_jsonschema", "--default-filetype", "json"),
    *("--regex-variant", "python"),  # what the schema is written in
)
DEADLINE_SECONDS = 60

ODD_NAMES = ["a\nb.md", "a::b,line=9.md", "größe 1%.md", os.fsdecode(b"a\xff.md"), "<script>.md"]


@pytest.mark.npm
@pytest.mark.row("T5")
def test_sarif_is_valid_by_its_schema(
    npm: NpmFolder, repository: Repository, tmp_path: Path
) -> None:
    good, clean, bad = (tmp_path / name for name in ("good.sarif", "clean.sarif", "bad.sarif"))
    clean.write_bytes(lint(repository.clone))
    for name in ODD_NAMES:
        (repository.clone / name).write_text(
            "---\nexport: true\nid: one\ntype: Note\n---\n[](x.md)\n"
        )
    text = lint(repository.clone)
    good.write_bytes(text)
    bad.write_bytes(text.replace(b'"ruleIndex": ', b'"ruleIndex": -'))
    schema = npm.install(SCHEMA_PACKAGE).parent / SCHEMA

    accepted, refused = (
        run_child(
            [*CHECK_JSONSCHEMA, "--schemafile", str(schema), *map(str, instances)],
            folder=tmp_path,
            environment={"PATH": os.defpath, "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
            deadline=DEADLINE_SECONDS,
        )
        for instances in ([good, clean], [bad])
    )

    rules = {each["ruleId"] for each in json.loads(text)["runs"][0]["results"]}
    assert rules == {"broken-link", "duplicate-id", "unreadable"}
    assert accepted.status == 0, accepted.output
    assert refused.status == 1, refused.output


def lint(folder: Path) -> bytes:
    command = [
        str(Path(sys.executable).with_name("okf-mcp-lint")),
        "--roots",
        ".",
        "--format=sarif",
    ]
    ended = subprocess.run(
        command, cwd=folder, check=False, capture_output=True, timeout=DEADLINE_SECONDS
    )
    return ended.stdout
