"""`make prove` proves what it says: a protection counts only if its tests fail without it."""

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from proving.copies import copy_project, python_of
from proving.proof import prove
from proving.protections import ListError, read_protections
from support.gateway_process import wait_until

PROJECT = Path(__file__).parent.parent
PROTECTIONS = PROJECT / "tests" / "faults" / "protections.toml"

PRODUCT = """
def is_safe(name):
    if ".." in name:
        return False
    return True

LIMIT = 1
"""
TESTS = """
import subprocess, sys
import tiny

def test_a_name_that_climbs_is_not_safe():
    program = "import tiny; print(tiny.is_safe('..'))"
    child = subprocess.run(
        [sys.executable, "-c", program], cwd="/", env={}, capture_output=True, check=True
    )
    assert not tiny.is_safe("..")
    assert child.stdout == b"False\\n"

def test_of_nothing():
    pass

def test_that_ends():
    if tiny.LIMIT > 1:
        command = [sys.executable, "-c", "import time; time.sleep(600)", "PROJECT"]
        subprocess.Popen(command, start_new_session=True).wait()

def test_that_fails_anyway():
    assert False
"""
CLIMBS = "test_tiny.py::test_a_name_that_climbs_is_not_safe"


def entry(name: str, old: str, new: str, *tests: str) -> str:
    return f"""
[[protection]]
name = "{name}"
file = "source/tiny.py"
old = '''
{old}
'''
new = '''
{new}
'''
tests = {list(tests)}
"""


PROVING = entry("climbs", '    if ".." in name:', "    if False:", CLIMBS)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that has a protection, and tests good and bad."""
    folder = tmp_path / "project"
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "tiny.py").write_text(PRODUCT)
    (folder / "test_tiny.py").write_text(TESTS.replace("PROJECT", str(folder)))
    ini = "[tool.pytest.ini_options]\n[tool.hatch.build]\ndev-mode-dirs = ['source']\n"
    (folder / "pyproject.toml").write_text(ini)
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True, timeout=10)
    return folder


def listed(project: Path, *entries: str) -> Path:
    path = project / "protections.toml"
    path.write_text("".join(entries))
    return path


def test_each_protection_on_the_list_is_where_it_says_and_its_tests_are_there() -> None:
    protections = read_protections(PROTECTIONS)
    assert protections
    assert {each.name: faults for each in protections if (faults := [*each.faults(PROJECT)])} == {}


def test_a_protection_whose_test_fails_without_it_is_proven_also_in_processes_without_variables(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = entry("other", "LIMIT = 1", "LIMIT = 2", "test_tiny.py::test_of_nothing")
    assert prove(project, listed(project, PROVING, other), only="climb")
    told = capsys.readouterr().out
    assert "proven      climbs (" in told
    assert told.splitlines()[-1].startswith("1 of 1 protections proven in ")
    assert (project / "source" / "tiny.py").read_text() == PRODUCT


def test_it_is_not_proven_by_a_test_that_passes_or_does_not_run_or_failed_before(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = ("LIMIT = 1", "LIMIT = 2")
    entries = [
        entry("passes", *limit, "test_tiny.py::test_of_nothing"),
        entry(
            "half", '    if ".." in name:', "    if False:", CLIMBS, "test_tiny.py::test_of_nothing"
        ),
        entry("breaks", "LIMIT = 1", "LIMIT =", CLIMBS),
        entry("failed", *limit, "test_tiny.py::test_that_fails_anyway"),
    ]
    assert not prove(project, listed(project, PROVING, *entries))
    told = capsys.readouterr().out
    for name, reason in {
        "passes": "test_tiny.py::test_of_nothing does not fail without it",
        "half": "test_tiny.py::test_of_nothing does not fail without it",
        "breaks": "its tests don't fail, they don't run",
        "failed": "test_tiny.py::test_that_fails_anyway fails before it is taken away",
    }.items():
        line = next(each for each in told.splitlines() if each.startswith(f"NOT PROVEN  {name} ("))
        assert line.endswith(f": {reason}")
    assert told.splitlines()[-1].startswith("1 of 5 protections proven in ")


def test_a_test_that_does_not_end_is_no_proof_and_leaves_no_process(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = entry("endless", "LIMIT = 1", "LIMIT = 2", "test_tiny.py::test_that_ends")
    assert not prove(project, listed(project, endless), deadline=5)
    assert "its tests don't fail, they don't end" in capsys.readouterr().out
    wait_until(lambda: not still_running(str(project)))


def still_running(argument: str) -> bool:
    """Whether a process has this argument; those that only wait to be reaped have none."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if argument.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                return True
    return False


def test_whatever_is_started_from_a_copy_is_of_the_copy(tmp_path: Path) -> None:
    copy = tmp_path.resolve() / "copy"
    copy_project(PROJECT, copy)
    script = (copy / ".venv" / "bin" / "okf-mcp-gateway").read_text()
    assert script.startswith(f"#!{copy / '.venv' / 'bin'}/python")
    for package in ("core/okf_mcp_server", "gateway/okf_mcp_gateway"):
        name = Path(package).name
        found = subprocess.run(
            [python_of(copy), "-c", f"import {name}; print({name}.__file__)"],
            cwd="/",
            env={},
            capture_output=True,
            check=True,
            timeout=60,
        )
        assert found.stdout.decode().strip() == str(copy / package / "__init__.py")


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (entry("a", "LIMIT = 2", "", CLIMBS), "its old text stands 0 times in source/tiny.py"),
        (entry("a", "", "x", CLIMBS), "its old text stands 7 times in source/tiny.py"),
        (entry("a", "LIMIT = 1", "LIMIT = 1", CLIMBS), "its new text is the old one"),
        (PROVING.replace("tiny.py", "gone.py", 1), "there is no file source/gone.py"),
        (
            entry("a", "LIMIT = 1", "", "test_tiny.py::test_x"),
            "there is no test test_tiny.py::test_x",
        ),
        (entry("a", "LIMIT = 1", "", "gone.py::test_x"), "there is no test gone.py::test_x"),
    ],
    ids=["old", "empty", "new", "file", "test", "module"],
)
def test_a_protection_that_does_not_fit_the_project_is_not_proven(
    project: Path, entry: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not prove(project, listed(project, entry))
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("NOT PROVEN  ")
    assert fault in told[0]
    assert told[1].startswith("0 of 1 ")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (entry("a", "LIMIT = 1", ""), "protection.0.tests"),
        (PROVING.replace("new", "now"), "protection.0.now"),
        (PROVING + PROVING, "these stand twice: climbs"),
        ("[[protection", "protections.toml: "),
    ],
    ids=["tests", "key", "twice", "TOML"],
)
def test_a_list_that_can_not_be_read_is_an_error(project: Path, text: str, fault: str) -> None:
    with pytest.raises(ListError, match=fault):
        prove(project, listed(project, text))


def test_a_name_that_is_not_on_the_list_is_an_error(project: Path) -> None:
    with pytest.raises(ListError, match="no protection has 'nothing' in its name"):
        prove(project, listed(project, PROVING), only="nothing")
