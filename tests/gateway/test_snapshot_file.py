"""The snapshot file is believed where it is the very one that is asked for, and nowhere else."""

import hmac
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest

from okf_mcp_gateway import snapshot_file
from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.snapshot_bytes import encode
from okf_mcp_gateway.snapshot_file import NAME, SnapshotFile, checksum_key
from okf_mcp_server.snapshot import Snapshot, load_docs
from support.memory_tree import MemoryTree
from support.snapshots import everything

COMMIT: Final = "c0" * 20
KEY: Final = checksum_key("the north token")
CONFIG: Final = OwnerConfig("acme", "https://git.example/acme.git", "main", 60)
FIELDS: Final = ("format", "version", "unicode", "byte order", "owner", "url", "ref", "roots", "id")

Spoil = Callable[[Path], object]


@pytest.fixture
def snapshot() -> Snapshot:
    text = "---\nexport: true\ntype: Note\nid: a\n---\nOne.\n"
    return load_docs(MemoryTree({"a.md": text}), owner="acme", commit=COMMIT)


@pytest.fixture
def folder(tmp_path: Path, snapshot: Snapshot) -> Path:
    """A folder with a good file."""
    SnapshotFile(CONFIG, KEY).write(tmp_path, snapshot)
    return tmp_path


def read(folder: Path, commit: str = COMMIT, **changed: Any) -> Snapshot | None:
    """Read the file, by an owner that is configured otherwise."""
    key = changed.pop("key", KEY)
    return SnapshotFile(replace(CONFIG, **changed), key).read(folder, commit)


def body_of(raw: bytes) -> int:
    """Return where the header ends, and the checksum begins."""
    return raw.index(b"\n") + 1


def spoil_field(number: int) -> Spoil:
    """Return what changes one field of the header, and leaves the rest."""

    def spoil(file: Path) -> None:
        raw = file.read_bytes()
        header = json.loads(raw[: body_of(raw)])
        header[number] = ["other"] if isinstance(header[number], list) else f"{header[number]}x"
        file.write_bytes(json.dumps(header).encode() + b"\n" + raw[body_of(raw) :])

    return spoil


def write_by(make: Callable[[bytes], bytes]) -> Spoil:
    """Return what makes other bytes of the file's."""
    return lambda file: file.write_bytes(make(file.read_bytes()))


def flip(raw: bytes, position: int) -> bytes:
    return raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]


def sign(raw: bytes, body: bytes, key: bytes = KEY) -> bytes:
    """Return the header with another body, and the checksum that goes with both."""
    header = raw[: body_of(raw)]
    return header + hmac.digest(key, header + body, "sha256") + body


def replace_by_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def replace_by_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def replace_by_a_link(file: Path) -> None:
    """Let a link lead to the good file."""
    file.rename(file.with_suffix(".good"))
    file.symlink_to(file.with_suffix(".good"))


def make_huge(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(1 << 40)


ODDITIES: Final[dict[str, Spoil]] = {
    **{f"another {name} in the header": spoil_field(n) for n, name in enumerate(FIELDS)},
    "nothing in it": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(1000)),
    "a pickle": lambda file: file.write_bytes(pickle.dumps({"documents": []})),
    "a pickle under a good header": write_by(lambda raw: raw[: body_of(raw)] + pickle.dumps([1])),
    "no checksum": write_by(lambda raw: raw[: body_of(raw)] + raw[body_of(raw) + 32 :]),
    "a byte more": write_by(lambda raw: raw + b"x"),
    "planted under another key": write_by(
        lambda raw: sign(raw, raw[body_of(raw) + 32 :], key=checksum_key("a guess"))
    ),
    "signed, and no snapshot": write_by(lambda raw: sign(raw, b"[]\n")),
    "signed, and a text is a number": write_by(
        lambda raw: sign(raw, raw[body_of(raw) + 32 :].replace(b'"Note"', b"123456"))
    ),
    "a pipe": replace_by_a_pipe,
    "a folder": replace_by_a_folder,
    "a link to a good one": replace_by_a_link,
    "larger than any": make_huge,
}


@pytest.mark.row("P1")
def test_what_is_written_is_read(folder: Path, snapshot: Snapshot) -> None:
    found = read(folder)
    assert found is not None
    assert everything(found) == everything(snapshot)
    assert [path.name for path in folder.iterdir()] == [NAME]


@pytest.mark.row("P4", "P5")
@pytest.mark.parametrize("oddity", ODDITIES)
def test_an_odd_file_is_not_used(
    folder: Path, oddity: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    ODDITIES[oddity](folder / NAME)
    assert read(folder) is None
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert record.getMessage().startswith("Snapshot file not used: owner=acme reason=")
    assert str(folder) not in record.getMessage()


@pytest.mark.row("P4")
def test_a_file_that_is_cut_anywhere_is_not_used(folder: Path) -> None:
    raw = (folder / NAME).read_bytes()
    for length in range(len(raw)):
        (folder / NAME).write_bytes(raw[:length])
        assert read(folder) is None


@pytest.mark.row("P4", "P5")
def test_a_file_with_any_byte_changed_is_not_used(folder: Path) -> None:
    raw = (folder / NAME).read_bytes()
    for position in range(len(raw)):
        (folder / NAME).write_bytes(flip(raw, position))
        assert read(folder) is None


@pytest.mark.row("P5", "P6")
@pytest.mark.parametrize(
    "changed",
    [
        {"commit": "d1" * 20},
        {"name": "beta"},
        {"url": "https://git.example/other.git"},
        {"ref": "other"},
        {"roots": (PurePosixPath("design"),)},
        {"key": checksum_key("another token")},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_file_of_another_is_not_used(folder: Path, changed: dict[str, Any]) -> None:
    assert read(folder) is not None
    assert read(folder, **changed) is None


@pytest.mark.row("P1")
def test_no_file_is_nothing_odd(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    assert read(tmp_path) is None
    assert SnapshotFile(CONFIG, KEY).size(tmp_path) is None
    assert caplog.records == []


@pytest.mark.row("G4")
def test_the_file_holds_neither_the_token_nor_its_key(folder: Path) -> None:
    raw = (folder / NAME).read_bytes()
    assert b"the north token" not in raw
    assert KEY not in raw
    assert KEY.hex().encode() not in raw


@pytest.mark.row("P4")
def test_a_file_that_can_not_be_written_leaves_the_old_one(
    folder: Path, snapshot: Snapshot
) -> None:
    before = (folder / NAME).read_bytes()
    (folder / f"tmp_{NAME}").mkdir()
    with pytest.raises((IsADirectoryError, PermissionError)):
        SnapshotFile(CONFIG, KEY).write(folder, snapshot)
    assert (folder / NAME).read_bytes() == before


@pytest.mark.row("P4")
def test_what_a_killed_process_left_is_written_over(folder: Path, snapshot: Snapshot) -> None:
    (folder / f"tmp_{NAME}").symlink_to(folder / "elsewhere")
    SnapshotFile(CONFIG, KEY).write(folder, snapshot)
    assert [path.name for path in folder.iterdir()] == [NAME]
    assert read(folder) is not None


@pytest.mark.row("P1")
def test_a_snapshot_that_is_too_large_is_not_kept(
    tmp_path: Path, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in (3, len(encode(snapshot))):
        monkeypatch.setattr(snapshot_file, "MAX_BYTES", limit)
        SnapshotFile(CONFIG, KEY).write(tmp_path, snapshot)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.row("P1")
def test_what_a_few_aliases_make_too_large_is_not_even_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aliases = ", ".join(["*text"] * 200)
    bomb = (
        f"---\nexport: true\ntype: Note\na: &text {'x' * 1000}\nb: {{c: [{aliases}]}}\n---\nOne.\n"
    )
    snapshot = load_docs(MemoryTree({"a.md": bomb}), owner="acme", commit=COMMIT)
    monkeypatch.setattr(snapshot_file, "MAX_EXPANDED_CHARACTERS", 100_000)
    monkeypatch.setattr(snapshot_file, "encode", pytest.fail)
    SnapshotFile(CONFIG, KEY).write(tmp_path, snapshot)
    assert not [*tmp_path.iterdir()]
