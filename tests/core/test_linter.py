"""The linter as a process in real repositories (T4, T5)."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from okf_mcp_server import load_docs
from okf_mcp_server.roots import DEFAULT_ROOTS
from okf_mcp_server.tree import WorkingTree
from support.repositories import Repository, RepositoryFactory, git

CASES = Path(__file__).parents[1] / "fixtures" / "cases" / "frontmatter"
CASE_NAMES = sorted(folder.name for folder in CASES.iterdir())

LINTER = Path(sys.executable).with_name("okf-mcp-lint")
DEADLINE_SECONDS = 60
COMPARED_RULES = frozenset({"duplicate-id", "missing-type", "slug-collision"})
"""The rules that the cases speak of."""

NOTE = "---\nexport: true\ntype: Note\n---\nWords.\n"
HINT = (
    "WARNING Nothing is served from design, backlog/docs, backlog/decisions: a file opts in with "
    "'export: true' and a 'type' in its frontmatter"
)


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a linter: ours, but only the given `OKF_` variables."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("OKF_")}
    return {**ours, **(variables or {})}


def lint(
    folder: Path,
    *arguments: str,
    before: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run the linter in `folder`, behind the command `before`; `variables` are added to ours."""
    return subprocess.run(
        [*before, str(LINTER), *arguments],
        cwd=folder,
        env=environment(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=DEADLINE_SECONDS,
    )


@pytest.fixture(scope="module")
def work_trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By case, a git work tree named `acme` with its files."""
    tops: dict[str, Path] = {}
    for case in CASE_NAMES:
        top = tmp_path_factory.mktemp(case) / "acme"
        shutil.copytree(CASES / case / "repo", top)
        git("init", "--quiet", "--template=", folder=top)
        tops[case] = top
    return tops


@pytest.fixture
def clean(repository: Repository) -> Repository:
    """A repository with one document in each default root, and nothing wrong."""
    for root in DEFAULT_ROOTS:
        repository.document(f"{root}/{root.name}.md")
    return repository


@pytest.fixture
def faulty(clean: Repository) -> Repository:
    """The clean repository with one error and one warning."""
    clean.write("design/typeless.md", "---\nexport: true\n---\n")
    clean.write("design/quoted.md", '---\nexport: "true"\ntype: Note\n---\n')
    return clean


@pytest.fixture
def warned(clean: Repository) -> Repository:
    """The clean repository with one warning."""
    clean.document("design/a.md", body="[x](none.md)\n")
    return clean


@pytest.mark.row("T4", "T5")
@pytest.mark.parametrize("case", CASE_NAMES)
def test_a_case_is_linted_as_it_expects(case: str, work_trees: dict[str, Path]) -> None:
    text = (CASES / case / "expected.yaml").read_text(encoding="utf-8")
    wanted: dict[str, Any] = yaml.safe_load(text)["lint"]

    ended = lint(work_trees[case], "--format", "json")

    found = json.loads(ended.stdout)["findings"]
    assert ended.returncode == wanted["exit"]
    compared = [each for each in found if each["rule"] in COMPARED_RULES]
    assert Counter(map(summary, compared)) == Counter(
        (each["check"], each["severity"], frozenset(each.get("paths", ())))
        if each["check"] != "slug-collision"
        else (each["check"], each["severity"], frozenset(each["types"]))
        for each in wanted["findings"]
    )
    others = [each for each in found if each["rule"] not in COMPARED_RULES]
    assert {each["severity"] for each in others} <= {"warning"}


def summary(finding: dict[str, Any]) -> tuple[str, str, frozenset[str]]:
    """Return what a case compares: of a slug the quoted types, of all else the paths."""
    named = finding.get("paths", [finding["path"]])
    if finding["rule"] == "slug-collision":
        shown = finding["message"].partition(" in URIs: ")[2]
        named = [part for index, part in enumerate(shown.split("'")) if index % 2]
    return finding["rule"], finding["severity"], frozenset(named)


@pytest.mark.row("T4")
@pytest.mark.parametrize("roots", [None, "."])
@pytest.mark.parametrize("case", CASE_NAMES)
def test_the_linter_counts_the_documents_that_the_server_serves(
    case: str, roots: str | None, work_trees: dict[str, Path]
) -> None:
    top = work_trees[case]
    chosen = DEFAULT_ROOTS if roots is None else (PurePosixPath(roots),)
    served = load_docs(WorkingTree(top), owner="acme", roots=chosen)

    ended = lint(top, *(["--roots", roots] if roots else []))

    count = len(served.documents)
    assert ended.stdout.endswith(f" in {count} document{'' if count == 1 else 's'}\n")
    told = ended.stdout.splitlines()
    for found in served.diagnostics:
        if found.rule == "empty-root" and roots is None:
            assert f"WARNING {found.path}: {found.message}" in ended.stderr.splitlines()
        elif found.rule != "duplicate-uri":
            line = f"{found.path}:{found.line}: {found.severity} {found.rule} {found.message}"
            assert line in told


TEXT = "export: true\ntype: Note\n"
WRONG = {
    "quoted true": (
        {"design/a.md": '---\nexport: "true"\ntype: Note\n---\n'},
        (
            "design/a.md:2: warning near-miss not exported: 'true' is not the boolean true; write "
            "'export: true' and no more"
        ),
    ),
    "wrong case of a key": (
        {"design/a.md": "---\ntype: Note\nExport: true\n---\n"},
        "design/a.md:3: warning near-miss not exported: the key is 'Export'; write 'export: true'",
    ),
    "exported": (
        {"design/a.md": "---\ntype: Note\nexported: true\n---\n"},
        (
            "design/a.md:3: warning near-miss not exported: the key is 'exported'; write "
            "'export: true'"
        ),
    ),
    "no type": (
        {"design/a.md": "---\nexport: true\n---\n"},
        (
            "design/a.md:2: error missing-type export is true, but there is no type; write one "
            "such as 'type: Note'"
        ),
    ),
    "an empty slug": (
        {"design/a.md": "---\nexport: true\ntype: '--'\n---\n"},
        (
            "design/a.md:3: error missing-type export is true, but the type has no letter and no "
            "digit; write one such as 'type: Note'"
        ),
    ),
    "a fence below line 1": (
        {"design/a.md": f"\n---\n{TEXT}---\n"},
        (
            "design/a.md:2: warning near-miss not exported: the frontmatter must begin on line 1, "
            "with nothing before its '---'"
        ),
    ),
    "an open block": (
        {"design/a.md": f"---\n{TEXT}\nWords.\n"},
        (
            "design/a.md:1: warning near-miss not exported: no second line '---' closes the "
            "frontmatter"
        ),
    ),
    "a colon in a title": (
        {"design/a.md": f"---\n{TEXT}title: Queues: how\n---\n"},
        (
            "design/a.md:4: warning unreadable the frontmatter can't be read: a value that holds "
            "': ' or begins with one of @ ` * & % ! | > { [ needs quotes (mapping values are not "
            "allowed in this context)"
        ),
    ),
    "an id that is taken": (
        {
            "design/a.md": f"---\n{TEXT}id: x\n---\n",
            "design/b.md": "---\nexport: true\ntype: Guide\nid: x\n---\n",
        },
        (
            "design/a.md:4: error duplicate-id 'x' is the id of 2 documents: design/a.md, "
            "design/b.md; give all but one of them another id"
        ),
    ),
    "a name of another kind": (
        {"design/a.markdown": NOTE},
        (
            "design/a.markdown:1: warning near-miss not exported: the name ends in '.markdown'; "
            "rename the file so that it ends in '.md'"
        ),
    ),
    "a file outside of the roots": (
        {"docs/a.md": NOTE},
        (
            "docs/a.md:1: warning outside-roots the file opts in, but the stdio server searches "
            "only design, backlog/docs, backlog/decisions; move it there, or let server and linter "
            "search docs, too (--roots, OKF_MCP_ROOTS)"
        ),
    ),
    "not UTF-8": (
        {"design/a.md": f"---\n{TEXT}title: Größe\n---\n".encode("latin-1")},
        "design/a.md:4: warning unreadable not UTF-8; save the file as UTF-8",
    ),
    "a long description": (
        {"design/a.md": f"---\n{TEXT}description: {'word ' * 200}\n---\n"},
        (
            "design/a.md:4: warning cut-description the description has 999 characters and is cut "
            "at 500; shorten it"
        ),
    ),
    "a broken link": (
        {"design/a.md": f"---\n{TEXT}---\n\n# Title\n\nWords and\n[a link](b.md).\n"},
        (
            "design/a.md:9: warning broken-link the link 'b.md' leads to design/b.md, which "
            "doesn't exist; correct or remove it"
        ),
    ),
}


@pytest.mark.row("T4", "T5")
@pytest.mark.parametrize(("files", "line"), WRONG.values(), ids=WRONG.keys())
def test_what_people_get_wrong_is_told_on_one_line(
    clean: Repository, files: dict[str, str | bytes], line: str
) -> None:
    for path, content in files.items():
        clean.write(path, content)

    ended = lint(clean.clone)

    found, _totals = ended.stdout.splitlines()
    assert found == line
    assert ended.returncode == (1 if ": error " in line else 0)
    assert ended.stderr == ""


@pytest.mark.row("T5")
@pytest.mark.parametrize(
    ("name", "arguments", "status"),
    [
        ("faulty", [], 1),
        ("faulty", ["--strict"], 1),
        *(("faulty", ["--format", form], 1) for form in ("json", "github", "sarif")),
        ("warned", [], 0),
        ("warned", ["--strict"], 1),
        ("clean", [], 0),
        ("clean", ["--strict", "--format", "sarif"], 0),
    ],
    ids=str,
)
def test_the_status_is_1_for_an_error_and_with_strict_for_a_warning(
    name: str, arguments: list[str], status: int, request: pytest.FixtureRequest
) -> None:
    repository: Repository = request.getfixturevalue(name)
    ended = lint(repository.clone, *arguments)
    assert (ended.returncode, ended.stderr) == (status, "")


@pytest.mark.row("T5", "D12", "D13")
def test_it_runs_anywhere_in_the_repository_and_totals_come_last(faulty: Repository) -> None:
    ended = lint(faulty.clone / "backlog/docs")
    assert ended.stdout.splitlines() == [
        (
            "design/quoted.md:2: warning near-miss not exported: 'true' is not the boolean true; "
            "write 'export: true' and no more"
        ),
        (
            "design/typeless.md:2: error missing-type export is true, but there is no type; write "
            "one such as 'type: Note'"
        ),
        "1 error, 1 warning in 3 documents",
    ]


@pytest.mark.row("T5", "D12", "D13")
@pytest.mark.parametrize(
    ("arguments", "variables", "findings"),
    [
        (["--owner", "acme"], {}, ["knowledge://acme/note/none"]),
        ([], {"OKF_MCP_OWNER": "acme"}, ["knowledge://acme/note/none"]),
        (["--owner", "other"], {"OKF_MCP_OWNER": "acme"}, []),
        ([], {}, ["knowledge://origin.clone/note/none"]),
        (["--roots", "backlog/docs"], {"OKF_MCP_ROOTS": "design"}, []),
    ],
    ids=str,
)
def test_owner_and_roots_are_chosen_as_the_server_does(
    clean: Repository, arguments: list[str], variables: dict[str, str], findings: list[str]
) -> None:
    links = "<knowledge://acme/note/none> <knowledge://origin.clone/note/none>"
    clean.document("design/a.md", body=f"{links}\n")
    ended = lint(clean.clone, "--format", "json", *arguments, variables=variables)
    messages = [each["message"] for each in json.loads(ended.stdout)["findings"]]
    assert [message.split("'")[1] for message in messages] == findings


@pytest.mark.row("T5", "D12")
def test_a_chosen_root_says_what_it_does_not_hold(repository: Repository) -> None:
    repository.document("docs/a.md")
    repository.write("file", "")
    repository.write("empty/x.txt", "")
    repository.link("link", "docs")
    (repository.clone.parent / "away").mkdir()
    (repository.clone.parent / "away/b.md").write_text(NOTE)
    repository.link("out", "../away")
    ended = lint(repository.clone, "--roots", "docs,file,link,out,absent,empty")
    linked = "this scan root is a symbolic link, or behind one, and links are not followed"
    assert (ended.returncode, ended.stdout.splitlines()) == (
        0,
        [
            "absent:1: warning empty-root this scan root doesn't exist; is its name right?",
            "empty:1: warning empty-root this scan root holds no Markdown file; is its name right?",
            "file:1: warning empty-root this scan root is a file; name the folder that holds it",
            f"link:1: warning empty-root {linked}",
            f"out:1: warning empty-root {linked}",
            "0 errors, 5 warnings in 1 document",
        ],
    )


@pytest.mark.row("T5", "D4")
def test_what_may_not_be_read_is_a_warning(repository: Repository) -> None:
    repository.document("design/a.md")
    for path in ("closed/b.md", "design/closed/c.md", "design/d.md"):
        repository.document(path)
    (repository.clone / "design/d.md").chmod(0)
    folders = [repository.clone / path for path in ("closed", "design/closed")]
    as_others: tuple[str, ...] = ()
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root reads everything, and there is no setpriv")
        as_others = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    try:
        for folder in folders:
            folder.chmod(0)
        ended = lint(repository.clone, "--roots", "design,closed", before=as_others)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    *found, totals = ended.stdout.splitlines()
    assert [line.partition(" warning ")[0] for line in found] == [
        *("closed:1:", "design/closed:1:", "design/d.md:1:")
    ]
    assert all(line.endswith("can't be read: Permission denied") for line in found)
    assert (ended.returncode, totals) == (0, "0 errors, 3 warnings in 1 document")


@pytest.mark.row("T5")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--roots", "../up"], "the scan root '../up' must be a relative path inside the "),
        (["--roots", "/etc"], "the scan root '/etc' must be a relative path inside the "),
        (["--owner", ".."], "the owner's name '..' can't stand in a URI; give another one"),
        (["--owner", os.fsdecode(b"\xff")], "the owner's name '\\udcff' can't stand in a URI"),
        (["--format", "xml"], "error: argument --format: invalid choice: 'xml'"),
        (["docs"], "error: unrecognized arguments: docs"),
        (["--roots"], "error: argument --roots: expected one argument"),
    ],
    ids=ascii,
)
def test_bad_usage_is_status_2_and_a_sentence(
    repository: Repository, arguments: list[str], sentence: str
) -> None:
    ended = lint(repository.clone, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines()[-1].startswith(f"okf-mcp-lint: {sentence}")
    assert "Traceback" not in ended.stderr


@pytest.mark.row("T5")
def test_a_bare_repository_is_bad_usage(published: Repository) -> None:
    ended = lint(published.bare)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "okf-mcp-lint: origin.git is a bare git repository, which has no files to read; clone it, "
        "and run this in the clone\n"
    )


def test_a_working_directory_that_was_deleted_is_bad_usage(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = 'rmdir "$PWD" && exec "$@"'
    ended = lint(tmp_path / "gone", before=("sh", "-c", script, "sh"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "okf-mcp-lint: the working directory can't be read: No such file or directory\n"
    )


@pytest.mark.row("T5", "D13")
def test_a_folder_outside_of_git_is_linted_with_a_warning_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "notes/design").mkdir(parents=True)
    (tmp_path / "notes/design/a.md").write_text(NOTE)
    ended = lint(tmp_path / "notes", "--roots", "design")
    assert (ended.returncode, ended.stdout) == (0, "0 errors, 0 warnings in 1 document\n")
    assert ended.stderr == "WARNING No git repository found: folder=notes\n"


@pytest.mark.row("T5")
def test_a_repository_without_documents_is_told_how_a_file_opts_in(repository: Repository) -> None:
    repository.write("README.md", "Words\n")
    ended = lint(repository.clone)
    assert (ended.returncode, ended.stdout) == (0, "0 errors, 0 warnings in 0 documents\n")
    assert ended.stderr.splitlines() == [
        *(
            f"WARNING {root}: this scan root doesn't exist; is its name right?"
            for root in DEFAULT_ROOTS
        ),
        HINT,
    ]


@pytest.mark.row("T5")
def test_the_output_is_utf_8_whatever_the_locale(repository: Repository) -> None:
    repository.write("design/größe — é.md", "---\nexport: true\n---\n")
    for form in ("text", "json", "github"):
        ended = lint(
            repository.clone, "--format", form, variables={"LC_ALL": "C", "PYTHONUTF8": "0"}
        )
        assert "design/größe — é.md" in ended.stdout
        assert ended.returncode == 1


@pytest.mark.row("T5")
def test_a_reader_that_has_gone_is_no_fault_of_the_linter(faulty: Repository) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [str(LINTER)],
            cwd=faulty.clone,
            env=environment(),
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
            timeout=DEADLINE_SECONDS,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        (">&-", 2, "okf-mcp-lint: the findings can't be written: stdout is closed\n"),
        ("2>&-", 1, ""),
        (">/dev/full", 2, "okf-mcp-lint: the findings can't be written: No space left on device\n"),
    ],
)
def test_a_stdout_that_takes_nothing_gives_no_traceback(
    faulty: Repository, redirection: str, status: int, said: str
) -> None:
    if "full" in redirection and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    ended = lint(faulty.clone, before=("sh", "-c", f'exec "$@" {redirection}', "sh"))
    assert (ended.returncode, ended.stderr) == (status, said)


def test_bad_usage_is_status_2_also_where_nothing_can_be_said(tmp_path: Path) -> None:
    ended = lint(tmp_path, "--roots", "..", before=("sh", "-c", 'exec "$@" 2>&-', "sh"))
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", "")


def test_it_says_its_version(tmp_path: Path) -> None:
    ended = lint(tmp_path, "--version")
    assert (ended.returncode, ended.stdout) == (0, f"{version('okf-mcp-server')}\n")


def test_a_harmful_name_of_a_file_stays_on_its_line(repository: Repository) -> None:
    repository.write("design/a\n::error::b.md", "---\nexport: true\n---\n")
    (repository.clone / "design" / os.fsdecode(b"\xff,c.md")).write_text(NOTE)
    repository.document("backlog/docs/a.md")
    repository.document("backlog/decisions/b.md")
    text = lint(repository.clone)
    assert [line.split(" ")[0] for line in text.stdout.splitlines()[:-1]] == [
        r"design/\xff,c.md:1:",
        r"design/a\n::error::b.md:2:",
    ]
    github = lint(repository.clone, "--format", "github")
    assert [line.partition(",line=")[0] for line in github.stdout.splitlines()] == [
        r"::warning file=design/\xff%2Cc.md",
        r"::error file=design/a\n%3A%3Aerror%3A%3Ab.md",
    ]


@pytest.mark.row("D3", "D4")
def test_what_passes_a_bound_is_a_finding_in_time(repository: Repository) -> None:
    repository.write("design/large.md", NOTE + "x" * (4 * 1024 * 1024))
    repository.write("design/long.md", f"---\nexport: true\ntitle: {'x' * 65536}\n---\n")
    repository.write("design/lines.md", f"{NOTE}\n[x](none.md)\n" + "- a\n" * 150_000)
    ended = lint(repository.clone, "--roots", "design")
    assert [line.split(" ")[:3] for line in ended.stdout.splitlines()[:-1]] == [
        ["design/large.md:1:", "warning", "unreadable"],
        ["design/lines.md:5:", "warning", "unchecked-links"],
        ["design/long.md:1:", "warning", "unreadable"],
    ]


@pytest.mark.row("T5")
def test_five_thousand_files_take_seconds(new_repository: RepositoryFactory) -> None:
    clone = new_repository("large").clone
    (clone / "design").mkdir()
    for number in range(5000):
        links = f"[a](doc-{number // 2}.md) [b](none-{number}.md)"
        text = f"# Title\n\n{'Words, and more of them. ' * 40}\n\nSee {links}.\n"
        fields = "export: true\ntype: Note\ndescription: Short.\n"
        (clone / f"design/doc-{number}.md").write_text(f"---\n{fields}---\n{text}")
    started = time.monotonic()
    ended = lint(clone, "--roots", "design")
    assert time.monotonic() - started < 30
    assert ended.stdout.endswith("0 errors, 5000 warnings in 5000 documents\n")


def test_the_linter_starts_without_the_mcp_sdk_and_the_markdown_parser() -> None:
    script = "import sys, okf_mcp_server.linter; print(*sorted(sys.modules))"
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_SECONDS,
    )
    loaded = {name.partition(".")[0] for name in ended.stdout.split()}
    assert "okf_mcp_server" in loaded
    assert not loaded & {"mcp", "mcp_types", "pydantic", "anyio", "starlette", "markdown_it"}
