"""What outlives a gateway that was killed, what the watchdog knows, and what it costs (P7)."""

import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from okf_mcp_gateway.source.watchdog import Watchdog
from support.descendants import is_alive, is_watchdog, processes_below, stat_fields
from support.gateway_process import wait_until

Group = subprocess.Popen[bytes]


@pytest.fixture
def groups() -> Iterator[tuple[Group, Group]]:
    """Two processes, each in a group of its own."""
    with ExitStack() as stack:

        def start() -> Group:
            group = subprocess.Popen(["sleep", "60"], start_new_session=True)
            stack.callback(group.wait, 10)
            stack.callback(group.kill)
            return group

        yield start(), start()


def pid_of_the_watchdog() -> int:
    [pid] = filter(is_watchdog, processes_below(os.getpid()))
    return pid


@pytest.mark.row("P7")
def test_at_its_end_it_kills_what_it_watches_and_nothing_that_it_was_told_to_forget(
    groups: tuple[Group, Group],
) -> None:
    watched, forgotten = groups
    with closing(Watchdog()) as watchdog:
        for group in groups:
            watchdog.watch(group.pid)
        watchdog.forget(forgotten.pid)
    assert watched.wait(10) == -signal.SIGKILL
    assert is_alive(forgotten.pid)


@pytest.mark.row("P7")
def test_a_signal_that_is_sent_to_all_of_the_gateway_does_not_end_it(
    groups: tuple[Group, Group],
) -> None:
    with closing(Watchdog()) as watchdog:
        watchdog.watch(groups[0].pid)
        pid = pid_of_the_watchdog()
        assert stat_fields(pid)[2:] == [str(pid), str(pid)]
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            os.kill(pid, number)
    assert groups[0].wait(10) == -signal.SIGKILL


@pytest.mark.row("G4")
def test_it_gets_nothing_of_ours_but_its_input() -> None:
    with closing(Watchdog()):
        proc = Path(f"/proc/{pid_of_the_watchdog()}")
        wait_until(lambda: "watchdog.sh" in (proc / "cmdline").read_text())
        variables = (proc / "environ").read_bytes().split(b"\0")
        # A shell may say where it is; it was told nothing.
        assert [each for each in variables if each and not each.startswith(b"PWD=")] == []
        opened = {str(path.readlink()) for path in (proc / "fd").iterdir()}
        assert [each for each in opened if each.startswith("socket:")] == []
        assert len([each for each in opened if each.startswith("pipe:")]) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["ends", "hangs"])
def test_one_that_is_lost_is_told_once_and_keeps_nobody_waiting(
    number: signal.Signals, groups: tuple[Group, Group], caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Watchdog()) as watchdog:
        pid = pid_of_the_watchdog()
        os.kill(pid, number)
        if number is signal.SIGKILL:
            wait_until(lambda: not is_alive(pid))
        for _ in range(20_000):
            watchdog.watch(groups[0].pid)
        wait_until(lambda: not stat_fields(pid))
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("Watchdog lost, git may outlive a gateway that is killed")
    assert is_alive(groups[0].pid)
