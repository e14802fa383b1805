"""What others wrote is run to its end, or to its deadline, and leaves nothing running."""

import os
import sys
from pathlib import Path

import pytest

from support.children import Ended, run_child
from support.gateway_process import wait_until

DEADLINE_SECONDS = 30.0
# A child that starts a child of its own, says who that is, and goes or stays.
PARENT = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"],
    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
print(child.pid, flush=True)
if sys.argv[1] == "stays":
    child.wait()
"""


def is_gone(process: int) -> bool:
    """Say whether a process has ended; one that nobody waited for counts."""
    try:
        state = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return True
    return state.rpartition(")")[2].split()[0] == "Z"


def test_a_command_says_how_it_ended(tmp_path: Path) -> None:
    code = "import os, sys; print(sorted(os.environ)); print('!', file=sys.stderr); sys.exit(3)"
    ended = run_child(
        [sys.executable, "-c", code],
        folder=tmp_path,
        environment={"ONE": "1", "LC_ALL": "C.UTF-8"},
        deadline=DEADLINE_SECONDS,
    )
    assert ended == Ended(3, "['LC_ALL', 'ONE']\n", "!\n")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("way", ["goes", "stays"])
def test_nothing_of_its_group_runs_on(tmp_path: Path, way: str) -> None:
    deadline = 2.0 if way == "stays" else DEADLINE_SECONDS
    command = [sys.executable, "-c", PARENT, way]
    environment = {"PATH": os.defpath}
    if way == "stays":
        with pytest.raises(TimeoutError, match=r"ran on after 2\.0 s") as raised:
            run_child(command, folder=tmp_path, environment=environment, deadline=deadline)
        said = str(raised.value).partition("\n")[2]
    else:
        said = run_child(
            command, folder=tmp_path, environment=environment, deadline=deadline
        ).stdout
    assert wait_until(lambda: is_gone(int(said)))
