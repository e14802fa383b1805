"""Disk full, cache not writable.

What is served stays served, the error names the folder and has the class `disk`, nothing half-made
keeps the disk full, and the next pull after the trouble serves the tip. A contact that can't be
recorded is no failure: `tests/gateway/source/test_puller.py`. A cache that can't be written at the
start: `tests/gateway/test_cache.py`.
"""

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pytest

from okf_mcp_gateway.source.packs import MAX_PACKS
from support.gateway_process import GATEWAY_COMMAND, GatewayProcess, wait_until
from support.in_process import BEARER, mcp_headers, mcp_message
from support.repositories import Repository, RepositoryFactory

pytestmark = pytest.mark.row("H9")

PACK_BYTES = 600 * 1024
ROOM_BYTES = 256 * 1024
"""What a full disk has left: enough to begin a fetch, not to end it."""

PERMISSIONS_COUNT = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--")
"""What root begins with to be like everybody else."""


@contextmanager
def tmpfs(folder: Path, options: str = "size=4m") -> Generator[None]:
    """Mount a small disk on `folder`; skips where that isn't allowed."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=10.0)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounts are not allowed")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=10.0)


@contextmanager
def read_only(folder: Path) -> Generator[None]:
    """Let nothing be written to a folder of a disk that was mounted."""
    # A mount of its own, on top: no disk turns read-only while a file on it is open for writing.
    mounts = (["--bind", str(folder), str(folder)], ["-o", "remount,bind,ro", str(folder)])
    try:
        for arguments in mounts:
            subprocess.run(["mount", *arguments], check=True, timeout=10.0)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=10.0)


class FullDisk(Protocol):
    """Makes the disk of a cache full, for a gateway that runs."""

    cache: Path

    def fill(self, process: GatewayProcess) -> None: ...

    def clear(self, process: GatewayProcess) -> None: ...


class SmallDisk:
    """A disk with a file on it that leaves `ROOM_BYTES`."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self._file = folder / "filling"

    def fill(self, process: GatewayProcess) -> None:
        fill(self._file, room_bytes=ROOM_BYTES)

    def clear(self, process: GatewayProcess) -> None:
        self._file.unlink()


class SmallFiles:
    """A limit on each file that the gateway and its git write: theirs is a full disk, too."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"

    def fill(self, process: GatewayProcess) -> None:
        self._limit(process, ROOM_BYTES)

    def clear(self, process: GatewayProcess) -> None:
        self._limit(process, resource.RLIM_INFINITY)

    def _limit(self, process: GatewayProcess, count: int) -> None:
        hard = resource.RLIM_INFINITY
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (count, hard))


def fill(path: Path, *, room_bytes: int) -> None:
    """Let a file take all of its disk but `room_bytes`."""
    with path.open("wb") as file, suppress(OSError):
        while True:
            file.write(b"\0" * 65_536)
            file.flush()
    os.truncate(path, path.stat().st_size - room_bytes)


@pytest.fixture(params=["a small disk", "small files"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FullDisk]:
    folder = tmp_path / "disk"
    if request.param == "small files":
        folder.mkdir()
        yield SmallFiles(folder)
        return
    with tmpfs(folder):
        yield SmallDisk(folder)


@pytest.fixture
def repository(new_repository: RepositoryFactory) -> Repository:
    """A repository whose document `a` says `One.`."""
    repository = new_repository()
    repository.publish_document("One.")
    return repository


@contextmanager
def serving(
    folder: Path, repository: Repository, cache: Path, *, is_privileged: bool = True
) -> Generator[GatewayProcess]:
    """Run a gateway that pulls `repository` with each request."""
    plain = not is_privileged and os.geteuid() == 0
    command = (*PERMISSIONS_COUNT, *GATEWAY_COMMAND) if plain else GATEWAY_COMMAND
    owners = {"owners": {"acme": {"url": repository.url, "ttl": 0}}}
    with GatewayProcess(folder, json.dumps(owners), cache=cache, command=command) as process:
        yield process


def publish_much(repository: Repository, text: str) -> str:
    """Push a commit whose pack is larger than `ROOM_BYTES`."""
    repository.write("noise.bin", Random(text).randbytes(PACK_BYTES))  # noqa: S311 - no secret
    return repository.publish_document(text)


def read(process: GatewayProcess) -> str:
    """Read document `a`, as a client does."""
    params = {"uri": "knowledge://acme/note/a"}
    headers = {**BEARER, **mcp_headers("resources/read", params)}
    body = mcp_message("resources/read", params)
    answer = process.post("/acme/mcp", body, headers=headers)
    assert answer.status == 200, answer
    return answer.json["result"]["contents"][0]["text"]


def row(process: GatewayProcess) -> dict[str, Any]:
    return process.status("diagnostics=true")["owners"]["acme"]


def see_a_fault_of_the_disk(process: GatewayProcess, *, text: str = "One.") -> None:
    """See that a pull fails, says where, and harms nothing that is served."""
    answer = process.refresh("acme")
    assert answer.status == 503, answer
    error = answer.json["error"]
    assert "<cache>/" in error
    assert "acme" in error
    shown = row(process)
    assert (shown["state"], shown["freshness"], shown["last_pull_error"]) == (
        "serving",
        "stale",
        error,
    )
    diagnostics = shown["diagnostics"]
    assert diagnostics["error_class"] == "disk", error
    assert diagnostics["failing_since"]
    assert diagnostics["next_attempt_at"]
    assert read(process) == text
    assert str(process.cache) not in process.get("/status?diagnostics=true").text


def see_recovery(process: GatewayProcess, text: str) -> None:
    """See that requests alone bring the tip."""
    wait_until(lambda: read(process) == text, interval=0.2)
    shown = row(process)
    assert (shown["freshness"], shown["last_pull_error"]) == ("fresh", None)
    assert shown["diagnostics"]["failing_since"] is None


def half_made(cache: Path) -> list[str]:
    """Return what a pull that ended should not have left."""
    names = [path.name for path in cache.rglob("*")]
    return [
        name
        for name in names
        if name.startswith("tmp_")
        or name.endswith((".new", ".old"))
        or (name.endswith(".lock") and name != ".lock")
    ]


@pytest.mark.row("P4", "H3", "H8")
def test_a_full_disk_leaves_what_is_served_and_nothing_half_made(
    disk: FullDisk, repository: Repository, tmp_path: Path
) -> None:
    with serving(tmp_path / "gateway", repository, disk.cache) as process:
        process.wait_for_state("acme", "serving")
        disk.fill(process)
        publish_much(repository, "Two.")
        for _ in range(2):
            see_a_fault_of_the_disk(process)
            assert half_made(disk.cache) == []
        assert "Cloning anew" not in process.log  # which would be as much again
        disk.clear(process)
        see_recovery(process, "Two.")


@pytest.mark.row("P3", "S1")
def test_an_owner_that_first_meets_a_full_disk_serves_once_there_is_room(
    repository: Repository, tmp_path: Path
) -> None:
    publish_much(repository, "One.")
    folder = tmp_path / "disk"
    with tmpfs(folder):
        filling = folder / "filling"
        fill(filling, room_bytes=0)
        with serving(tmp_path / "gateway", repository, folder / "cache") as process:
            process.wait_for_state("acme", "failed")
            for room_bytes in (0, ROOM_BYTES):
                os.truncate(filling, filling.stat().st_size - room_bytes)
                assert process.refresh("acme").status == 503
                shown = row(process)
                assert shown["error"]["type"] == "LoadError"
                assert "<cache>/" in shown["error"]["message"]
                assert shown["diagnostics"]["error_class"] == "disk", shown
                assert half_made(process.cache) == []
            filling.unlink()
            process.wait_for_state("acme", "serving")
            assert read(process) == "One."
            # Full again, and no source: a start writes nothing that it needs.
            process.stop()
            fill(filling, room_bytes=0)
            repository.take_away()
            process.start()
            assert read(process) == "One."


@pytest.mark.row("P4")
def test_a_repack_that_meets_a_full_disk_leaves_it_no_fuller_and_the_copy_in_use(
    repository: Repository, tmp_path: Path
) -> None:
    publish_much(repository, "One.")
    folder = tmp_path / "disk"
    with tmpfs(folder), serving(tmp_path / "gateway", repository, folder / "cache") as process:
        process.wait_for_state("acme", "serving")
        copy = process.cache / "acme"
        first = copy.stat().st_ino
        # Room for small packs, and for no second large one.
        fill(folder / "filling", room_bytes=ROOM_BYTES)
        for number in range(12):
            newest = repository.publish_document(f"{number}.")
            assert process.refresh("acme").json["commit"] == newest
        wait_until(lambda: "Copy not repacked" in process.log)
        wait_until(lambda: half_made(process.cache) == [])
        assert copy.stat().st_ino == first
        (folder / "filling").unlink()
        newest = repository.publish_document("With room.")
        assert process.refresh("acme").json["commit"] == newest
        wait_until(lambda: len(list(copy.glob("objects/pack/*.pack"))) <= MAX_PACKS)


@pytest.mark.row("P4")
def test_used_up_inodes_and_a_disk_that_turns_read_only_are_faults_of_the_disk(
    repository: Repository, tmp_path: Path
) -> None:
    folder = tmp_path / "disk"
    with tmpfs(folder, "size=16m,nr_inodes=200") as _, ExitStack() as stack:
        process = stack.enter_context(serving(tmp_path / "gateway", repository, folder / "cache"))
        process.wait_for_state("acme", "serving")
        with suppress(OSError):
            for number in range(200):
                (folder / f"{number}").touch()
        repository.publish_document("Two.")
        see_a_fault_of_the_disk(process)
        for path in folder.glob("[0-9]*"):
            path.unlink()
        see_recovery(process, "Two.")
        with read_only(process.cache):
            repository.publish_document("Three.")
            see_a_fault_of_the_disk(process, text="Two.")
        see_recovery(process, "Three.")


@pytest.mark.row("P4")
def test_a_cache_that_is_closed_removed_or_replaced_under_a_running_gateway_heals(
    repository: Repository, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    copy = cache / "acme"
    with serving(tmp_path / "gateway", repository, cache, is_privileged=False) as process:
        process.wait_for_state("acme", "serving")
        cache.chmod(0o500)
        shutil.rmtree(copy)
        repository.publish_document("Two.")
        see_a_fault_of_the_disk(process)
        cache.chmod(0o700)
        see_recovery(process, "Two.")
        shutil.rmtree(cache / ".home")
        shutil.rmtree(copy)
        copy.write_text("not a folder")
        assert process.refresh("acme").status == 200
        assert (copy / "HEAD").is_file()
        shutil.rmtree(cache)
        assert process.refresh("acme").status == 200
        assert (copy / "HEAD").is_file()
        repository.publish_document("Three.")
        see_recovery(process, "Three.")
