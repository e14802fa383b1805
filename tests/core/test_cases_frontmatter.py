"""The handed cases of frontmatter: each file of each small repository comes out as expected.

Each case is loaded as its `setup` says: its `repo/` is committed to a git repository named `acme`
and read from the work tree with the default scan roots.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

import mcp_types as types
import pytest
import yaml
from mcp import Client

from okf_mcp_server import Document, Snapshot, build_server, load_docs
from okf_mcp_server.roots import DEFAULT_ROOTS, choose_owner, find_top
from okf_mcp_server.tree import WorkingTree
from support.measuring import measured
from support.repositories import git

CASES = Path(__file__).parents[1] / "fixtures" / "cases" / "frontmatter"
CASE_NAMES = sorted(folder.name for folder in CASES.iterdir())
DEADLINE_SECONDS = 60
"""Of a whole process with its start; a load has ten seconds (`always`), and takes milliseconds."""

# What is wrong with the files of a case, beyond roots that a case doesn't have.
DIAGNOSTICS: Mapping[str, set[tuple[str, str]]] = {
    "02-encodings": {("unreadable", "design/latin1.md"), ("unreadable", "design/utf16.md")},
    "03-fences": {
        ("near-miss", f"design/{name}.md")
        for name in (
            "blank-first",
            "fence-text",
            "list-fm",
            "mid",
            "rule-first",
            "toml",
            "unclosed",
        )
    },
    "04-broken-yaml": {
        ("unreadable", f"design/{name}.md")
        for name in (
            *("apostrophe", "at", "backtick", "colon"),
            *("merge-conflict", "tab", "template", "unclosed-list"),
        )
    },
    "05-gate": {
        ("unreadable", "design/dup-key.md"),
        *(
            ("near-miss", f"design/{name}.md")
            for name in ("n-list", "n-one", "n-quoted", "n-y", "upper-key")
        ),
    },
    "06-ids": {("invalid-id", "design/x-dots.md")},
    "08-lint-ids": {("duplicate-uri", "design/b/index.md")},
    "09-lint-types": {
        ("missing-type", f"design/{name}.md") for name in ("no-type", "empty-type", "blank-type")
    },
}


def expected(case: str) -> dict[str, Any]:
    return yaml.safe_load((CASES / case / "expected.yaml").read_text(encoding="utf-8"))


def load(top: Path) -> Snapshot:
    return load_docs(WorkingTree(top), owner="acme", roots=DEFAULT_ROOTS)


def as_expected(document: Document, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a document has, under the names of `fields` and compared as they ask."""
    content = document.content
    found = {
        "exported": True,
        "id": document.id,
        "type_slug": document.type_slug,
        "uri": document.uri,
        "name": document.title,
        "description": document.description,
        "size": len(content),
        "body_sha256": sha256(content.encode()).hexdigest(),
    }
    if fields.get("compare") == "whitespace":
        found["description"] = " ".join(document.description.split())
    return found


@pytest.fixture(scope="module")
def work_trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By case, a git work tree named `acme` in which its files are committed."""
    tops: dict[str, Path] = {}
    for case in CASE_NAMES:
        top = tmp_path_factory.mktemp(case) / "acme"
        shutil.copytree(CASES / case / "repo", top)
        identity = ("-c", "user.name=A Writer", "-c", "user.email=writer@example.com")
        git("init", "--quiet", "--template=", folder=top)
        git("add", "--all", folder=top)
        git(*identity, "commit", "--quiet", "--message", "Case", folder=top)
        tops[case] = top
    return tops


@pytest.fixture(scope="module")
def snapshots(work_trees: dict[str, Path]) -> dict[str, Snapshot]:
    """By case, what the work tree holds."""
    return {case: load(top) for case, top in work_trees.items()}


FILES = [
    pytest.param(case, path, fields, id=f"{case}/{path}")
    for case in CASE_NAMES
    for path, fields in expected(case)["files"].items()
]


@pytest.mark.row("D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "D9", "D10")
@pytest.mark.parametrize(("case", "path", "fields"), FILES)
def test_a_file_comes_out_as_its_case_expects(
    case: str, path: str, fields: dict[str, Any], snapshots: dict[str, Snapshot]
) -> None:
    assert (CASES / case / "repo" / path).is_file()
    by_path = {document.path: document for document in snapshots[case].documents}
    document = by_path.get(PurePosixPath(path))
    wanted = dict(fields)
    if document and wanted["level"] == "either":
        wanted |= wanted.get("if_exported", {})
        wanted["exported"] = True
    is_exported = wanted.get("exported", False)
    if document is None:
        assert is_exported is False
        return
    found = as_expected(document, wanted)
    assert {name: wanted[name] for name in found if name in wanted} == {
        name: value for name, value in found.items() if name in wanted
    }
    assert is_exported is True
    assert document.content_hash == f"sha256:{found['body_sha256']}"


@pytest.mark.parametrize("case", CASE_NAMES)
def test_a_case_holds_no_other_document(case: str, snapshots: dict[str, Snapshot]) -> None:
    named = {PurePosixPath(path) for path in expected(case)["files"]}
    assert {document.path for document in snapshots[case].documents} <= named


@pytest.mark.row("D13")
@pytest.mark.parametrize("case", CASE_NAMES)
def test_a_case_belongs_to_acme(case: str, work_trees: dict[str, Path]) -> None:
    top = find_top(work_trees[case], os.environ)
    assert expected(case)["owner"] == choose_owner(None, {}, top, work_trees[case]) == "acme"


@pytest.mark.parametrize("case", CASE_NAMES)
def test_a_case_is_the_same_before_and_after_git(case: str, snapshots: dict[str, Snapshot]) -> None:
    handed, committed = load(CASES / case / "repo"), snapshots[case]
    assert (handed.documents, handed.diagnostics) == (committed.documents, committed.diagnostics)


@pytest.mark.row("D4")
@pytest.mark.parametrize("case", CASE_NAMES)
def test_the_diagnostics_of_a_case_name_each_file_that_is_left_out_for_a_fault(
    case: str, snapshots: dict[str, Snapshot]
) -> None:
    found = [
        (diagnostic.rule, diagnostic.path)
        for diagnostic in snapshots[case].diagnostics
        if diagnostic.rule != "empty-root"
    ]
    assert len(found) == len(set(found))
    assert set(found) == DIAGNOSTICS.get(case, set())


@pytest.mark.row("D7")
@pytest.mark.parametrize("case", CASE_NAMES)
def test_no_uri_of_a_case_is_listed_twice_or_has_an_empty_segment(
    case: str, snapshots: dict[str, Snapshot]
) -> None:
    uris = [document.uri for document in snapshots[case].documents]
    assert len(uris) == len(set(uris))
    for uri in uris:
        scheme, segments = uri.split("://")
        assert scheme == "knowledge"
        assert [bool(segment) for segment in segments.split("/")] == [True] * 3


@pytest.mark.anyio
@pytest.mark.row("D7", "D8", "D9")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("case", CASE_NAMES)
async def test_every_uri_of_a_case_that_is_listed_reads_back(
    case: str, mode: str, snapshots: dict[str, Snapshot]
) -> None:
    snapshot = snapshots[case]
    server = build_server("acme", lambda: snapshot)
    async with Client(server, mode=mode, cache=None) as client:
        listed = (await client.list_resources()).resources
        assert len(listed) == len(snapshot.documents)
        for resource, document in zip(listed, snapshot.documents, strict=True):
            (contents,) = (await client.read_resource(resource.uri)).contents
            assert contents == types.TextResourceContents(
                uri=document.uri,
                mime_type="text/markdown",
                text=document.content,
                _meta={"content_hash": document.content_hash},
            )
            assert resource.meta == contents.meta


@pytest.mark.row("T2")
@pytest.mark.parametrize("case", CASE_NAMES)
def test_the_server_of_a_case_writes_the_protocol_only_to_stdout(
    case: str, work_trees: dict[str, Path], snapshots: dict[str, Snapshot]
) -> None:
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    listing = {"jsonrpc": "2.0", "id": 2, "method": "resources/list"}

    ended = subprocess.run(
        [sys.executable, "-m", "okf_mcp_server"],
        cwd=work_trees[case],
        env={**measured(), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        input=f"{json.dumps(request)}\n{json.dumps(listing)}\n".encode(),
        capture_output=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )

    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert (ended.returncode, [answer["id"] for answer in answers]) == (0, [1, 2])
    listed = [resource["uri"] for resource in answers[1]["result"]["resources"]]
    assert listed == [document.uri for document in snapshots[case].documents]
    logged = ended.stderr.decode()
    assert "Traceback" not in logged
    for found in snapshots[case].diagnostics:
        line = "" if found.rule == "empty-root" else f":{found.line}"
        assert f"WARNING {found.path}{line}: {found.message}\n" in logged
