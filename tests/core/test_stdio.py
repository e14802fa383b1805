"""The stdio server as a process in a real git repository (T1, T2, T3)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

import okf_mcp_server
from okf_mcp_server import run
from support.repositories import Repository

DEADLINE_SECONDS = 60

NOTE = "---\nexport: true\ntype: Note\n---\nBody of {}.\n"


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a server: ours, but only the given `OKF_` variables."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("OKF_")}
    return {**ours, **variables}


def serve(
    folder: Path, *arguments: str, script: str | None = None, stdin: str = "", **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a server until its stdin, which holds `stdin`, is closed."""
    command = ["-c", script] if script else ["-m", "okf_mcp_server"]
    return subprocess.run(
        [sys.executable, *command, *arguments],
        cwd=folder,
        env=environment(**variables),
        check=False,
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=DEADLINE_SECONDS,
    )


@pytest.fixture
def repository_folder(repository: Repository) -> Path:
    """A clone with two documents in a default root, and one elsewhere."""
    for path in ("design/b.md", "design/a.md", "docs/c.md"):
        repository.write(path, NOTE.format(path))
    repository.write("design/broken.md", "---\nexport: true\ntype: a: b\n---\n")
    repository.commit()
    return repository.clone


@pytest.mark.anyio
@pytest.mark.row("T3", "D8", "D13")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_lists_and_reads_the_documents_of_the_repository(
    repository_folder: Path, mode: str
) -> None:
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "okf_mcp_server"],
        cwd=repository_folder / "docs",
        env=environment(),
    )
    async with Client(
        parameters, mode=mode, cache=None, read_timeout_seconds=DEADLINE_SECONDS
    ) as client:
        listed = await client.list_resources()
        assert [resource.uri for resource in listed.resources] == [
            "knowledge://origin.clone/note/a",
            "knowledge://origin.clone/note/b",
        ]
        assert "served_commit" not in (listed.meta or {})
        result = await client.read_resource("knowledge://origin.clone/note/a")
        (contents,) = result.model_dump(by_alias=True)["contents"]
        assert contents["text"] == "Body of design/a.md."


@pytest.mark.row("T2", "T3", "D4")
def test_stdout_holds_the_protocol_only_and_the_end_of_stdin_ends_the_server(
    repository_folder: Path,
) -> None:
    initialize = {
        "protocolVersion": "2024-11-05",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "resources/list"},
    ]
    stdin = "".join(json.dumps(message) + "\n" for message in messages)

    ended = serve(repository_folder, stdin=stdin)

    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(answer["jsonrpc"], answer["id"]) for answer in answers] == [("2.0", 1), ("2.0", 2)]
    assert answers[0]["result"]["protocolVersion"] == "2024-11-05"
    assert len(answers[1]["result"]["resources"]) == 2
    assert ended.returncode == 0
    missing = "this scan root doesn't exist; is its name right?"
    assert ended.stderr.splitlines() == [
        f"WARNING backlog/docs: {missing}",
        f"WARNING backlog/decisions: {missing}",
        (
            "WARNING design/broken.md:3: the frontmatter can't be read: a value that holds ': ' or "
            "begins with one of @ ` * & % ! | > { [ needs quotes (mapping values are not allowed "
            "in this context)"
        ),
        "INFO Serving: documents=2 owner=origin.clone roots=3",
    ]


@pytest.mark.row("T3")
def test_all_requests_before_the_end_of_stdin_are_answered(repository_folder: Path) -> None:
    initialize = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    ids: list[int | str] = [*range(200), "text"]
    messages: list[dict[str, object]] = [
        {"jsonrpc": "2.0", "id": "first", "method": "initialize", "params": initialize},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": []}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "first"}},
        *({"jsonrpc": "2.0", "id": each, "method": "resources/list"} for each in ids),
        {"jsonrpc": "2.0", "id": "last", "method": "no/such/method"},
    ]
    stdin = "".join(json.dumps(message) + "\n" for message in messages)

    ended = serve(repository_folder, stdin="no message\n" + stdin)

    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 0
    assert {answer["id"] for answer in answers} == {None, "first", *ids, "last"}
    assert {answer["id"] for answer in answers if "error" in answer} == {None, "last"}


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": "first",
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def listing(number: int) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "method": "resources/list"}


def cancelled(number: int) -> dict[str, object]:
    return {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": number},
    }


@pytest.mark.row("T3")
def test_cancelled_requests_and_ids_that_come_twice_end_well(repository_folder: Path) -> None:
    pairs = [each for number in range(50) for each in (listing(number), cancelled(number))]
    twice = [listing(1000), listing(1000), listing(1000)]
    for messages in (pairs, twice):
        stdin = "".join(json.dumps(each) + "\n" for each in [INITIALIZE, *messages])
        for _ in range(3):
            ended = serve(repository_folder, stdin=stdin)
            assert ended.returncode == 0
            assert "Traceback" not in ended.stderr


@pytest.mark.row("T3")
def test_a_client_that_reads_late_gets_all_its_answers(repository_folder: Path) -> None:
    (repository_folder / "design/long.md").write_text(NOTE.format("x" * 20_000))
    uri = "knowledge://origin.clone/note/long"
    read = {"jsonrpc": "2.0", "method": "resources/read", "params": {"uri": uri}}
    messages = [INITIALIZE, *({**read, "id": number} for number in range(50))]
    with running(repository_folder) as server:
        assert server.stdin
        assert server.stdout
        server.stdin.write("".join(json.dumps(each) + "\n" for each in messages))
        server.stdin.close()
        # It can't end before its pipe, which holds less than this, is read.
        assert len(server.stdout.readlines()) == len(messages)
        assert server.wait(timeout=DEADLINE_SECONDS) == 0


@pytest.mark.row("T3")
def test_a_client_that_never_reads_does_not_keep_the_server(repository_folder: Path) -> None:
    (repository_folder / "design/long.md").write_text(NOTE.format("x" * 200_000))
    uri = "knowledge://origin.clone/note/long"
    read = {"jsonrpc": "2.0", "method": "resources/read", "params": {"uri": uri}}
    with running(repository_folder) as server:
        assert server.stdin
        for message in [INITIALIZE, *({**read, "id": number} for number in range(5))]:
            server.stdin.write(json.dumps(message) + "\n")
        server.stdin.close()
        assert server.wait(timeout=DEADLINE_SECONDS) == 0


@pytest.mark.row("T3")
@pytest.mark.parametrize(
    "line",
    ["\n \t\r\n{bad", "[]", '[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', '{"id": 1}', "\x00"],
)
def test_a_line_that_is_no_message_is_answered_without_an_id(
    repository_folder: Path, line: str
) -> None:
    ended = serve(repository_folder, stdin=f"{line}\n")
    error = {"code": -32600, "message": "The line is no JSON-RPC message"}
    assert ended.returncode == 0
    assert json.loads(ended.stdout) == {"jsonrpc": "2.0", "id": None, "error": error}
    assert "Traceback" not in ended.stderr


@pytest.mark.row("T3")
@pytest.mark.parametrize(
    ("redirection", "status", "fault"),
    [
        ("<&-", 0, ""),
        (">&-", 0, ""),
        (">/dev/full", 1, "okf-mcp-server: the answers can't be written to stdout\n"),
    ],
)
def test_a_pipe_that_is_closed_or_full_leaves_no_traceback(
    repository_folder: Path, redirection: str, status: int, fault: str
) -> None:
    ping = '{"jsonrpc": "2.0", "id": 0, "method": "ping"}\n' * 5
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "okf_mcp_server"],
        cwd=repository_folder,
        env=environment(),
        check=False,
        input=ping,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert ended.returncode == status
    assert ended.stderr.endswith(f"roots=3\n{fault}")


@pytest.mark.row("D12", "D13", "T2")
@pytest.mark.parametrize(
    ("arguments", "variables", "line"),
    [
        (["--roots", "docs,design", "--owner", "me"], {}, "documents=3 owner=me roots=2"),
        (["--roots=docs"], {"OKF_MCP_ROOTS": "design"}, "documents=1 owner=origin.clone roots=1"),
        ([], {"OKF_MCP_ROOTS": "docs:design"}, "documents=3 owner=origin.clone roots=2"),
        ([], {"OKF_MCP_OWNER": "us"}, "documents=2 owner=us roots=3"),
        (["--owner", "me"], {"OKF_MCP_OWNER": "us"}, "documents=2 owner=me roots=3"),
    ],
    ids=str,
)
def test_roots_and_owner_are_chosen_and_the_start_line_says_so(
    repository_folder: Path, arguments: list[str], variables: dict[str, str], line: str
) -> None:
    ended = serve(repository_folder, *arguments, **variables)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert f"INFO Serving: {line}" in ended.stderr.splitlines()


@pytest.mark.row("D13", "T2")
def test_a_folder_outside_git_is_served_under_its_own_name_with_a_warning_and_a_hint(
    tmp_path: Path,
) -> None:
    (tmp_path / "folder/design").mkdir(parents=True)
    (tmp_path / "folder/design/a.md").write_text("# Words\n")

    ended = serve(tmp_path / "folder", "--roots", "design")

    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.splitlines() == [
        "WARNING No git repository found: folder=folder",
        "INFO Serving: documents=0 owner=folder roots=1",
        (
            "INFO Nothing opts in under design: a file does with 'export: true' and a 'type' in "
            "its frontmatter; okf-mcp-lint --roots . says what is in the way"
        ),
    ]


@pytest.mark.row("T2")
@pytest.mark.parametrize(
    ("path", "root"), [("docs/deep/c.md", "docs"), ("c.md", "."), ("a b/c.md", "a b")]
)
def test_a_document_outside_the_roots_is_named_where_there_is_none_inside(
    repository: Repository, path: str, root: str
) -> None:
    repository.write(path, NOTE.format(path))
    ended = serve(repository.clone)
    assert ended.stderr.splitlines()[-1] == (
        "INFO Nothing opts in under design, backlog/docs, backlog/decisions, "
        f"but {path} does: search {root}, too (--roots, OKF_MCP_ROOTS, or run's first argument)"
    )


@pytest.mark.row("T2", "D12")
def test_each_fault_of_a_root_or_a_file_is_a_line_and_everything_else_is_served(
    tmp_path: Path,
) -> None:
    top = tmp_path
    for name in ["good/a.md", "good/quoted.md", "outside/c.md", "file.md"]:
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text(NOTE.format(name))
    (top / "good/quoted.md").write_text('---\nexport: "true"\ntype: Note\n---\n')
    (top / "link").symlink_to("outside")

    ended = serve(top, "--roots", "good,file.md,link,gone", "--owner", "me")

    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.splitlines() == [
        f"WARNING No git repository found: folder={top.name}",
        "WARNING file.md: this scan root is a file; name the folder that holds it",
        (
            "WARNING link: this scan root is a symbolic link, or behind one, and links are not "
            "followed"
        ),
        "WARNING gone: this scan root doesn't exist; is its name right?",
        (
            "WARNING good/quoted.md:2: not exported: 'true' is not the boolean true; write "
            "'export: true' and no more"
        ),
        "INFO Serving: documents=1 owner=me roots=4",
    ]


@pytest.mark.row("T2")
def test_five_thousand_documents_are_served(tmp_path: Path) -> None:
    (tmp_path / "design").mkdir()
    for number in range(5000):
        (tmp_path / f"design/{number}.md").write_text(NOTE.format(number))
    ended = serve(tmp_path, "--owner", "me")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "INFO Serving: documents=5000 owner=me roots=3" in ended.stderr.splitlines()


@pytest.mark.row("T1")
def test_the_version_and_the_help_are_told_without_the_sdk(tmp_path: Path) -> None:
    for flag in ("--version", "--help"):
        script = (
            f"import sys; sys.argv[1:] = [{flag!r}]\n"
            "import atexit; atexit.register(lambda: print('mcp' in sys.modules))\n"
            "from okf_mcp_server.stdio import main\nmain()"
        )
        ended = serve(tmp_path, script=script)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.splitlines()[-1] == "False"


@pytest.mark.row("T1")
def test_the_public_names_are_those_of_the_contract() -> None:
    names = {"run", "load_docs", "build_server", "extract_id", "slugify_type"}
    assert names <= set(okf_mcp_server.__all__)
    for name in okf_mcp_server.__all__:
        assert getattr(okf_mcp_server, name).__name__ == name
    assert not hasattr(okf_mcp_server, "no_such_name")


@pytest.mark.row("T1")
def test_two_lines_of_python_serve_a_repository(repository_folder: Path, tmp_path: Path) -> None:
    script = f"from okf_mcp_server import run\nrun(['docs'], 'me', {str(repository_folder)!r})"
    ended = serve(tmp_path, script=script)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.splitlines() == ["INFO Serving: documents=1 owner=me roots=1"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--roots", "design,../up"],
            "the scan root '../up' must be a relative path inside the repository",
        ),
        (["--owner", ".."], "the owner's name '..' can't stand in a URI"),
        (["--owner", os.fsdecode(b"\xff")], "the owner's name '\\udcff' can't stand in a URI"),
    ],
    ids=ascii,
)
@pytest.mark.row("T1")
def test_what_can_not_be_served_is_one_sentence_and_status_1(
    repository_folder: Path, arguments: list[str], sentence: str
) -> None:
    ended = serve(repository_folder, *arguments)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"okf-mcp-server: {sentence}")


@pytest.mark.row("T1", "D13")
def test_a_bare_repository_is_one_sentence_and_status_1(repository: Repository) -> None:
    ended = serve(repository.bare)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"okf-mcp-server: {repository.bare.name} is a bare git repository, which has no files to "
        "read; clone it, and run this in the clone\n"
    )


@pytest.mark.row("T1")
def test_a_base_dir_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, reason in [
        ("nowhere", "can't be read: No such file or directory"),
        ("file", "is not a folder"),
    ]:
        with pytest.raises(SystemExit) as caught:
            run(base_dir=tmp_path / name)
        assert caught.value.code == f"okf-mcp-server: {tmp_path / name} {reason}"


@pytest.mark.row("T1")
def test_a_script_with_a_bad_root_is_one_sentence_and_status_1(repository_folder: Path) -> None:
    script = "from okf_mcp_server import run\n\nrun('../up')"
    ended = serve(repository_folder, script=script)
    sentence = "the scan root '../up' must be a relative path inside the repository"
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        1,
        "",
        f"okf-mcp-server: {sentence}\n",
    )


@contextmanager
def running(folder: Path) -> Generator["subprocess.Popen[str]"]:
    """Start a server, ended at last; it has answered `ping` when it is handed over."""
    server = subprocess.Popen(
        [sys.executable, "-m", "okf_mcp_server"],
        cwd=folder,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdin
    assert server.stdout
    try:
        server.stdin.write('{"jsonrpc": "2.0", "id": 0, "method": "ping"}\n')
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["id"] == 0
        yield server
    finally:
        server.kill()
        server.wait(timeout=DEADLINE_SECONDS)
        for pipe in (server.stdin, server.stdout, server.stderr):
            if pipe:
                pipe.close()


@pytest.mark.row("T3")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_server_that_waits_for_its_client(
    repository_folder: Path, number: signal.Signals
) -> None:
    with running(repository_folder) as server:
        server.send_signal(number)
        assert server.wait(timeout=DEADLINE_SECONDS) == -number
        assert server.stderr
        assert "Traceback" not in server.stderr.read()


@pytest.mark.row("T2", "T3")
@pytest.mark.parametrize("is_asking", [True, False])
def test_a_client_that_went_away_leaves_no_traceback(
    repository_folder: Path, *, is_asking: bool
) -> None:
    with running(repository_folder) as server:
        assert server.stdin
        assert server.stdout
        assert server.stderr
        server.stdout.close()
        if is_asking:
            listing = '{"jsonrpc": "2.0", "id": 1, "method": "resources/list"}\n'
            server.stdin.write(listing * 20)
        server.stdin.close()
        assert server.wait(timeout=DEADLINE_SECONDS) == 0
        assert "Traceback" not in server.stderr.read()


@pytest.mark.row("T1")
def test_a_working_directory_that_was_deleted_is_one_sentence_and_status_1(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = (
        f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir({str(tmp_path / 'gone')!r})\n"
        "from okf_mcp_server.stdio import main\nmain()"
    )
    ended = serve(tmp_path, script=script)
    sentence = "the working directory can't be read: No such file or directory"
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines() == [f"okf-mcp-server: {sentence}"]


@pytest.mark.row("T3")
def test_a_full_stdout_ends_the_server_though_its_client_still_holds_stdin(
    repository_folder: Path,
) -> None:
    with Path("/dev/full").open("w") as full:
        server = subprocess.Popen(
            [sys.executable, "-m", "okf_mcp_server"],
            cwd=repository_folder,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    with server:
        assert server.stdin
        assert server.stderr
        server.stdin.write(json.dumps(INITIALIZE) + "\n")
        server.stdin.flush()
        assert server.wait(timeout=DEADLINE_SECONDS) == 1
        fault = "okf-mcp-server: the answers can't be written to stdout\n"
        assert server.stderr.read().endswith(fault)
