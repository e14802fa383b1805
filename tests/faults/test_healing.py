"""The cache heals.

Whatever is done to a copy on disk, the next pull serves the tip, of a gateway that runs and of one
that starts; what another user left in the cache, or took the rights of, stops nobody. Before a good
copy is deleted its successor works: `test_last_good` kills the pulls that replace one at each of
their steps. That two gateways don't share a cache is proven in tests/gateway/test_cache.py and
tests/e2e/test_start.py; that a cache inside another repository leaves that one alone, and what a
copy may be replaced by, in tests/gateway/source/test_mirror.py.
"""

import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

import okf_mcp_gateway.source.git as git_module
from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.snapshot_file import SnapshotFile
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.source.mirror import Mirror
from okf_mcp_gateway.source.puller import Puller
from okf_mcp_server.snapshot import Snapshot
from support.gateway_process import GatewayFactory
from support.histories import Planned, document_text, make_history, point
from support.repositories import Repository, git

SOMEBODY: Final = 12345
MAX_PUSHES: Final = 12

Harm = Callable[[Path], object]


class Patient:
    """An owner whose copy is harmed, in process: a source, a cache, and a puller that runs."""

    def __init__(self, folder: Path) -> None:
        self.repository = Repository(folder / "source")
        self.cache, home = folder / "cache", folder / "home"
        self.cache.mkdir()
        home.mkdir(mode=0o755)
        self._git = Git(environ=os.environ, home=home, deadline_seconds=10)
        pushed, contents = plan()
        self._commits = make_history(self.repository.bare, pushed)
        self._contents = dict(zip(self._commits, contents, strict=True))
        # Written by `push` and `pull` alone.
        self._pushes = 0
        self.served: Snapshot | None = None
        self._puller = self._start()

    @property
    def copy(self) -> Path:
        return self.cache / "acme"

    def push(self) -> None:
        self._pushes += 1
        point(self.repository.bare, "refs/heads/main", self._commits[self._pushes - 1])

    def pull(self) -> None:
        """Pull; then the tip is served, whole."""
        self.served = self._puller.pull(self.served)
        assert self.served.commit == self._commits[self._pushes - 1]
        self._check(self.served)

    def restart(self) -> None:
        """Forget all but the copy on disk; what is served of it is a commit, whole."""
        self._puller = self._start()
        restored = self._puller.restore()
        self.served = restored[0] if restored else None
        if self.served is not None:
            self._check(self.served)

    def close(self) -> None:
        self._git.close()

    def _check(self, served: Snapshot) -> None:
        documents = {str(each.path): each.content for each in served.documents}
        assert documents == self._contents[str(served.commit)]

    def _start(self) -> Puller:
        config = OwnerConfig("acme", self.repository.url, "main", 0)
        mirror = Mirror(config, self.cache, self._git)
        snapshots = SnapshotFile(config, b"a key")
        return Puller(config, mirror, snapshots, now=lambda: datetime.now(UTC), scrub=str)


def plan() -> tuple[list[Planned], list[dict[str, str]]]:
    """Plan pushes that change little of a large document, and add one that is new.

    What git sends then are differences to what the copy has: it needs what it has.
    """
    large = os.urandom(8_000).hex()
    pushed: list[Planned] = []
    contents: list[dict[str, str]] = []
    for number in range(MAX_PUSHES):
        changed = {"large.md": f"Push {number}. {large}", f"d{number}.md": f"Push {number}."}
        contents.append({**(contents or [{"same.md": "Never changed."}])[-1], **changed})
        texts = contents[0] if number == 0 else changed
        changes = {path: document_text(body) for path, body in texts.items()}
        pushed.append(Planned(changes, parent=number - 1 if number else None))
    return pushed, contents


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Patient]:
    """An owner that was pulled twice."""
    with closing(Patient(tmp_path)) as patient:
        yield pulled_twice(patient)


def pulled_twice(patient: Patient) -> Patient:
    for _ in range(2):
        patient.push()
        patient.pull()
    return patient


# Harms


def leave(*names: str) -> Harm:
    """Leave half-written files, as a git or a gateway does that is killed."""

    def harm(copy: Path) -> None:
        for name in names:
            path = copy / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"half")

    return harm


def keep_packs(copy: Path) -> None:
    """Mark each pack as one that is being fetched: a fetch does, until its ref is written."""
    for pack in packs(copy):
        pack.with_suffix(".keep").write_text("fetch-pack 1 on here\n")


def write(name: str, content: bytes) -> Harm:
    return lambda copy: (copy / name).write_bytes(content)


def packs(copy: Path, suffix: str = ".pack") -> list[Path]:
    found = list(copy.glob(f"objects/pack/pack-*{suffix}"))
    assert found
    return found


def each_pack(change: Callable[[bytes], bytes], suffix: str = ".pack") -> Harm:
    """Change the content of all packs, or of their indices."""

    def harm(copy: Path) -> None:
        for path in packs(copy, suffix):
            path.chmod(0o600)
            path.write_bytes(change(path.read_bytes()))

    return harm


def lose(suffix: str) -> Harm:
    """Remove all packs, or their indices."""

    def harm(copy: Path) -> None:
        for path in packs(copy, suffix):
            path.unlink()

    return harm


def all_files(change: Callable[[bytes], bytes]) -> Harm:
    def harm(copy: Path) -> None:
        for path in copy.rglob("*"):
            if path.is_file():
                path.chmod(0o600)
                path.write_bytes(change(path.read_bytes()))

    return harm


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def zeros(content: bytes) -> bytes:
    """A file as some file systems show it after a power cut."""
    return bytes(len(content))


def nothing(_: bytes) -> bytes:
    return b""


def spoilt(content: bytes) -> bytes:
    """The same, but for some bytes in the middle."""
    middle = len(content) // 2
    return (
        content[:middle]
        + bytes(byte ^ 0xFF for byte in content[middle : middle + 40])
        + (content[middle + 40 :])
    )


def unpack(copy: Path) -> list[Path]:
    """Let the copy have its objects one by one, as older gateways left them; return the files."""
    for path in packs(copy):
        moved = path.rename(copy / path.name)
        path.with_suffix(".idx").unlink()
        git("unpack-objects", "-q", folder=copy, stdin=moved.read_bytes())
        moved.unlink()
    return [path for path in copy.glob("objects/??/*") if path.is_file()]


def each_object(change: Callable[[bytes], bytes]) -> Harm:
    def harm(copy: Path) -> None:
        for path in unpack(copy) if list(copy.glob("objects/pack/*.pack")) else []:
            path.chmod(0o600)
            path.write_bytes(change(path.read_bytes()))

    return harm


def replace_by_pipe(copy: Path) -> None:
    shutil.rmtree(copy)
    os.mkfifo(copy)


def replace_by_file(copy: Path) -> None:
    shutil.rmtree(copy)
    copy.write_text("a file")


HARMS: Final[dict[str, Harm]] = {
    "the locks of its files": leave(
        *("HEAD.lock", "config.lock", "shallow.lock", "packed-refs.lock", "index.lock"),
        *("refs/okf/next.lock", "refs/heads/main.lock", "logs/HEAD.lock", "gc.pid.lock"),
    ),
    "the locks of its objects": leave(
        *("objects/info/commit-graph.lock", "objects/info/alternates.lock"),
        "objects/info/commit-graphs/commit-graph-chain.lock",
        "objects/pack/multi-pack-index.lock",
    ),
    "files that were new": leave(
        *("packed-refs.new", "gc.pid", "shallow_a1b2c3", "tmp_okf.json", "objects/tmp_obj_a1b2c3"),
        *("objects/00/tmp_obj_a1b2c3", "objects/info/packs_a1b2c3", "info/refs_a1b2c3"),
    ),
    "packs that were new": leave(
        *("objects/pack/tmp_pack_a1b2c3", "objects/pack/tmp_idx_a1b2c3"),
        *("objects/pack/tmp_rev_a1b2c3", "objects/pack/.tmp-7-pack-0123.pack"),
        *(f"objects/pack/pack-{'0' * 40}.{kind}" for kind in ("pack", "rev", "keep")),
    ),
    "an index that was new": leave(f"objects/pack/pack-{'0' * 40}.idx"),
    "packs that are being fetched": keep_packs,
    "a broken ref": write("refs/okf/next", b"garbage\n"),
    "a ref to nowhere": write("refs/okf/next", b"1" * 40 + b"\n"),
    "an empty ref": write("refs/okf/next", b""),
    "a broken list of refs": write("packed-refs", b"\0garbage"),
    "garbage in HEAD": write("HEAD", b"\0garbage"),
    "a HEAD of zeros": write("HEAD", bytes(41)),
    "garbage in config": write("config", b"[core\n"),
    "garbage in the list of depths": write("shallow", b"garbage\n"),
    "no list of depths": write("shallow", b""),
    "garbage in the record": write("okf.json", b"garbage"),
    "a record of zeros": write("okf.json", bytes(100)),
    "half packs": each_pack(half),
    "packs of zeros": each_pack(zeros),
    "empty packs": each_pack(nothing),
    "spoilt packs": each_pack(spoilt),
    "no packs": lose(".pack"),
    "half indices": each_pack(half, ".idx"),
    "indices of zeros": each_pack(zeros, ".idx"),
    "spoilt indices": each_pack(spoilt, ".idx"),
    "no indices": lose(".idx"),
    "half objects": each_object(half),
    "empty objects": each_object(nothing),
    "objects of zeros": each_object(zeros),
    "half files": all_files(half),
    "files of zeros": all_files(zeros),
    "empty files": all_files(nothing),
    "a file": replace_by_file,
    "a pipe": replace_by_pipe,
    "nothing": shutil.rmtree,
}


@pytest.mark.row("P4", "P7")
@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_the_next_pull_serves_the_tip_whatever_was_done_to_the_copy(
    patient: Patient, harm: Harm
) -> None:
    # A gateway that runs, with nothing new and with a push.
    harm(patient.copy)
    patient.pull()
    patient.push()
    patient.pull()
    # One that starts, which heals the copy for the next, whose source is away.
    patient.push()
    patient.pull()
    patient.restart()
    patient.pull()
    harm(patient.copy)
    patient.restart()
    patient.pull()
    patient.repository.take_away()
    patient.restart()
    assert patient.served is not None


@pytest.mark.row("P4", "P7", "H3")
def test_a_running_gateway_heals_its_copy_again_and_again(
    repository: Repository, gateway: GatewayFactory
) -> None:
    repository.publish_document("Push 0.")
    process = gateway(json.dumps({"owners": {"acme": {"url": repository.url, "ttl": 3600}}}))
    process.wait_for_state("acme", "serving")
    for number, name in enumerate(
        ("the locks of its files", "a broken ref", "half packs", "garbage in HEAD", "a pipe")
    ):
        HARMS[name](process.cache / "acme")
        commit = repository.publish_document(f"Push {number + 1}.")
        answer = process.refresh("acme")
        assert (answer.status, answer.json["commit"]) == (200, commit), name
    process.stop()
    repository.take_away()
    process.start()
    served = process.wait_for_state("acme", "serving")["served_commit"]
    assert served == repository.head
    assert "Traceback" not in process.log


# Users and rights


@contextmanager
def a_plain_user() -> Generator[None]:
    """Be no longer root, for whom rights are nothing, until the block ends."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(SOMEBODY, SOMEBODY, 0)
    try:
        if not os.access(git_module.__file__, os.R_OK, effective_ids=True):
            pytest.skip("this checkout stands in a folder that no other user may enter")
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def plain_patient() -> Iterator[Patient]:
    """An owner that was pulled twice, all of whose files are a plain user's."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        with closing(Patient(Path(name))) as patient:
            # Here already Python finds all that it imports late, maybe in root's own folder.
            pulled_twice(patient)
            if os.geteuid() == 0:
                give_away(Path(name), SOMEBODY)
            yield patient


@pytest.mark.row("P4")
@pytest.mark.parametrize(
    "name", [".", "HEAD", "okf.json", "objects", "objects/pack", "refs", "refs/okf/next", "shallow"]
)
@pytest.mark.parametrize("rights", [0o000, 0o500], ids=["none", "no writing"])
def test_rights_that_were_taken_from_a_copy_stop_no_pull(
    plain_patient: Patient, name: str, rights: int
) -> None:
    for _ in range(2):
        (plain_patient.copy / name).chmod(rights)
        with a_plain_user():
            plain_patient.pull()
            plain_patient.push()
            plain_patient.pull()
            plain_patient.restart()
            plain_patient.pull()
            plain_patient.restart()
            assert plain_patient.served is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.row("P4")
@pytest.mark.parametrize("rights", [0o700, 0o755], ids=["unreadable", "readable"])
def test_another_users_files_in_the_cache_stop_no_pull(plain_patient: Patient, rights: int) -> None:
    for _ in range(2):
        shutil.copytree(plain_patient.copy, plain_patient.cache / ".acme.new")
        shutil.copytree(plain_patient.copy, plain_patient.cache / ".acme.old")
        for copy in plain_patient.cache.iterdir():
            with (copy / "config").open("a") as config:
                config.write("[http]\n\tproxy = http://127.0.0.1:1\n")
            give_away(copy, 0)
            for path in [copy, *copy.rglob("*")]:
                path.chmod(rights if path.is_dir() else rights & 0o666)
        with a_plain_user():
            plain_patient.restart()
            plain_patient.pull()
            plain_patient.push()
            plain_patient.pull()
            plain_patient.restart()
            assert plain_patient.served is not None


def give_away(folder: Path, user: int) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, user, user)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.row("P4")
def test_a_cache_that_another_user_owns_serves_root(patient: Patient) -> None:
    give_away(patient.cache, SOMEBODY)
    patient.restart()
    assert patient.served is not None
    patient.push()
    patient.pull()
