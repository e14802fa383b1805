"""Many contents are judged in another process, as a thread judges them, whatever becomes of it."""

import io
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from okf_mcp_gateway.source.git import Git, GitError, GitStoppedError
from okf_mcp_gateway.source.judge_process import HEAD, answer, content_bytes, verdicts_of
from okf_mcp_gateway.source.judging import MAX_PROCESSES, MIN_CONTENTS, Judges
from okf_mcp_server.documents import Fault, Page
from okf_mcp_server.snapshot import Contents, judge
from okf_mcp_server.tree import TreeEntry
from support.corpora import find_corpora, generate_corpus, opt_in, read_corpus
from support.descendants import command_line, is_alive, processes_below, stat_fields
from support.gateway_process import GatewayFactory, GatewayProcess, wait_until
from support.repositories import Repository

CASES: Final = Path(__file__).parents[2] / "fixtures" / "cases" / "frontmatter"
STOP_SECONDS: Final = 5.0

FAILS_AT_ALL: Final = """
from okf_mcp_gateway.source import judge_process
from okf_mcp_server.snapshot import UNEXPECTED
judge_process.judge = lambda _: UNEXPECTED
judge_process.main()
"""

Content = tuple[TreeEntry, bytes | OSError]
Strike = Callable[[int], None]


def note(number: int) -> bytes:
    return f"---\nexport: true\ntype: Note\ntitle: {number}\n---\nWords {number}.\n".encode()


def contents_of(raws: Sequence[bytes | OSError]) -> list[Content]:
    return [
        (TreeEntry(f"{number}.md", str(number), len(raw) if isinstance(raw, bytes) else 0), raw)
        for number, raw in enumerate(raws)
    ]


NOTES: Final = contents_of([note(number) for number in range(2 * MIN_CONTENTS)])


def judged(judges: Judges, contents: Sequence[Content], strike: Strike | None = None) -> None:
    """Judge contents, which must come out as a thread judges them; strike once amid them."""

    def read() -> Contents:
        for number, content in enumerate(contents):
            if strike and number == len(contents) // 2:
                [pid] = processes()
                strike(pid)
            yield content

    found = list(judges.judge(read(), len(contents)))
    assert found == [(entry, judge(raw)) for entry, raw in contents]


def processes(below: int | None = None) -> list[int]:
    """Return the processes that judge for a process, which is this one if none is named."""
    found = processes_below(below or os.getpid())
    return [pid for pid in found if "judge_process" in command_line(pid)]


def python_that(tmp_path: Path, script: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def judges(git: Git) -> Iterator[Judges]:
    """What judges; no process of it is left after the test."""
    yield Judges(git, deadline_seconds=30)
    assert processes() == []


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The messages of the log, all of which are warnings."""

    def found() -> list[str]:
        assert {record.levelno for record in caplog.records} <= {logging.WARNING}
        return [record.getMessage() for record in caplog.records]

    return found


@pytest.mark.row("D3", "D4", "P5")
def test_a_process_judges_whatever_authors_write_as_a_thread_does(
    judges: Judges, warnings: Callable[[], list[str]]
) -> None:
    corpora = [generate_corpus(), *map(read_corpus, find_corpora().values())]
    found = [opt_in(path, raw) for files in corpora for path, raw in files.items()]
    found += [path.read_bytes() for path in sorted(CASES.rglob("*.md")) if path.is_file()]
    found += [b"", b"\xff\xfe", b"---\nexport: true\ntype: [\n---\n", b"x" * 4_000_000]
    found.append(note(0) + b"x" * 3_000_000)
    contents = contents_of([*found, OSError(5, "Input/output error")])
    contents += [
        (TreeEntry(f"{entry.path}.md", f"more {entry.key}", 0), raw) for entry, raw in NOTES
    ]
    verdicts = [judge(raw) for _, raw in contents]
    assert {type(verdict) for verdict in verdicts} == {Page, Fault, type(None)}
    judged(judges, contents, strike=lambda _: None)
    assert warnings() == []


@pytest.mark.row("P7")
def test_few_contents_start_no_process(judges: Judges) -> None:
    def read() -> Contents:
        yield from NOTES[: MIN_CONTENTS - 1]
        assert processes() == []

    assert len(list(judges.judge(read(), MIN_CONTENTS - 1))) == MIN_CONTENTS - 1


@pytest.mark.row("P5", "P7")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_what_a_lost_process_did_not_judge_is_judged_in_the_thread(
    number: signal.Signals, git: Git, warnings: Callable[[], list[str]]
) -> None:
    begun = time.monotonic()
    judged(Judges(git, deadline_seconds=1), NOTES, strike=lambda pid: os.kill(pid, number))
    assert time.monotonic() - begun < STOP_SECONDS
    [warning] = warnings()
    assert warning.startswith("Process that judges files lost, a thread goes on: reason=it ")
    assert processes() == []


@pytest.mark.row("P5", "P7")
@pytest.mark.parametrize(
    "script",
    [
        "exit 1",
        "echo rubbish of any kind; exec cat > /dev/null",
        "printf '\\0\\0\\0\\5wrong'; exec cat > /dev/null",
        "exec cat",
        f'ulimit -d 40000; exec {sys.executable} "$@"',
        f"exec {sys.executable} -c '{FAILS_AT_ALL}'",
    ],
    ids=["ends", "long rubbish", "short rubbish", "echo", "short of memory", "fails at all"],
)
def test_a_process_that_answers_badly_spoils_nothing(
    script: str,
    judges: Judges,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    warnings: Callable[[], list[str]],
) -> None:
    monkeypatch.setattr(sys, "executable", python_that(tmp_path, script))
    judged(judges, [*NOTES, *contents_of([b"x" * 4_000_000] * 8)])
    assert len(warnings()) <= 1


@pytest.mark.row("P5")
@pytest.mark.parametrize("python", ["/nowhere/python", ""], ids=["gone", "unknown"])
def test_without_a_python_to_start_a_thread_judges(
    python: str,
    judges: Judges,
    monkeypatch: pytest.MonkeyPatch,
    warnings: Callable[[], list[str]],
) -> None:
    monkeypatch.setattr(sys, "executable", python)
    judged(judges, NOTES)
    [warning] = warnings()
    assert "it can't be started" in warning
    assert "nowhere" not in warning


@pytest.mark.row("D3", "P5")
def test_a_file_that_stands_for_more_than_a_process_may_answer_is_judged_in_the_thread(
    judges: Judges, warnings: Callable[[], list[str]]
) -> None:
    text, aliases = "x" * 20_000, ", ".join(["*a"] * 9_000)
    bomb = f"---\nexport: true\ntype: Note\nfirst: &a {text}\nall: [{aliases}]\n---\n".encode()
    assert isinstance(judge(bomb), Page)
    judged(judges, [*NOTES, *contents_of([bomb])])
    [warning] = warnings()
    assert "reason=it" in warning


@pytest.mark.row("G4", "P7")
def test_the_process_is_told_nothing_and_has_a_session_of_its_own(
    judges: Judges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OKF_GATEWAY_TOKEN", "canary")
    shown: list[bytes] = []

    def look(pid: int) -> None:
        proc = Path(f"/proc/{pid}")
        shown.append((proc / "environ").read_bytes())
        assert stat_fields(pid)[2:] == [str(pid), str(pid)]
        opened = [str(path.readlink()) for path in (proc / "fd").iterdir()]
        assert sorted(each.partition(":")[0] for each in opened) == ["/dev/null", "pipe", "pipe"]
        limits = (proc / "limits").read_text()
        assert "Max data size             1073741824" in limits
        assert int((proc / "stat").read_text().rpartition(")")[2].split()[16]) > os.nice(0)

    judged(judges, NOTES, strike=look)
    [environment] = shown
    [variable] = environment.strip(b"\0").split(b"\0")
    assert variable.startswith(b"PYTHONPATH=")
    assert b"canary" not in environment


@pytest.mark.row("P7")
def test_there_are_few_processes_at_a_time_and_their_places_are_given_back(git: Git) -> None:
    judges = Judges(git, deadline_seconds=2)
    running = [judges.judge(iter(NOTES), len(NOTES)) for _ in range(MAX_PROCESSES + 1)]
    for each in running:
        next(each)
    assert len(processes()) == MAX_PROCESSES
    for each in running:
        assert len(list(each)) == len(NOTES) - 1
    again = judges.judge(iter(NOTES), len(NOTES))
    next(again)
    assert len(processes()) == 1
    assert len(list(again)) == len(NOTES) - 1
    assert processes() == []


@pytest.mark.row("P8")
def test_at_a_stop_nobody_waits_for_room(git: Git, judges: Judges) -> None:
    running = [judges.judge(iter(NOTES), len(NOTES)) for _ in range(MAX_PROCESSES)]
    for each in running:
        next(each)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: list(judges.judge(iter(NOTES), len(NOTES))))
        git.close()
        for each in running:
            with pytest.raises(GitStoppedError):
                list(each)
        with pytest.raises(GitStoppedError):
            waiting.result(STOP_SECONDS)


@pytest.mark.row("P4", "P7")
def test_what_the_contents_raise_passes_through_and_ends_the_process(
    judges: Judges, warnings: Callable[[], list[str]]
) -> None:
    def read() -> Contents:
        yield from NOTES
        assert len(processes()) == 1
        raise GitError("the copy has lost a blob")

    with pytest.raises(GitError, match="lost a blob"):
        list(judges.judge(read(), len(NOTES)))
    assert warnings() == []


@pytest.mark.row("P8")
def test_at_a_stop_the_process_is_killed_and_nothing_more_is_judged(
    git: Git, judges: Judges, warnings: Callable[[], list[str]]
) -> None:
    def read() -> Contents:
        yield from NOTES[:MIN_CONTENTS]
        git.close()
        yield from NOTES[MIN_CONTENTS:]

    with pytest.raises(GitStoppedError):
        list(judges.judge(read(), len(NOTES)))
    with pytest.raises(GitStoppedError):
        list(judges.judge(iter(NOTES), len(NOTES)))
    assert warnings() == []


@pytest.mark.row("P5")
def test_a_part_that_is_cut_is_the_end() -> None:
    part = content_bytes([note(1), b"", note(2)])
    for length in (0, 3, 4, 9, len(part) - 1):
        answers = io.BytesIO()
        answer(io.BytesIO(part[:length]), answers)
        assert answers.getvalue() == b""
    answers = io.BytesIO()
    answer(io.BytesIO(part + part[:-1]), answers)
    raw = answers.getvalue()
    assert HEAD.unpack_from(raw)[0] == len(raw) - HEAD.size
    assert verdicts_of(raw[HEAD.size :]) == {"0": judge(note(1)), "1": None, "2": judge(note(2))}


@pytest.fixture
def stopped_amid_a_load(
    repository: Repository, gateway: GatewayFactory
) -> tuple[GatewayProcess, int]:
    """A gateway amid a load, and the process that judges for it, which hangs."""
    repository.fast_import({f"{number}.md": note(number) for number in range(20 * MIN_CONTENTS)})
    repository.push()
    process = gateway(json.dumps({"owners": {"acme": {"url": repository.url}}}))
    wait_until(lambda: len(processes(process.pid)) == 1, interval=0.002)
    [pid] = processes(process.pid)
    os.kill(pid, signal.SIGSTOP)
    return process, pid


@pytest.mark.row("P7")
def test_a_gateway_that_is_killed_leaves_no_process_that_judges(
    stopped_amid_a_load: tuple[GatewayProcess, int],
) -> None:
    process, pid = stopped_amid_a_load
    process.kill()
    wait_until(lambda: not is_alive(pid))


@pytest.mark.row("P8")
def test_a_stop_amid_a_load_is_soon_over_and_leaves_no_process(
    stopped_amid_a_load: tuple[GatewayProcess, int],
) -> None:
    process, pid = stopped_amid_a_load
    begun = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - begun < STOP_SECONDS
    assert not is_alive(pid)
    assert "Traceback" not in process.log
