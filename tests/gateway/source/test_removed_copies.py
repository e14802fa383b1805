"""The copies that no owner has: one that can't be looked at keeps no other (P6)."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from okf_mcp_gateway.source.mirror import RECORD
from okf_mcp_gateway.source.removed_copies import GRACE_DAYS, MARK, sweep

NOON = datetime(2026, 7, 17, 12, tzinfo=UTC)
NOBODY = 65534


@pytest.fixture
def open_cache() -> Iterator[Path]:
    """A cache of a user for whom rights count, in a folder that every user reaches."""
    with TemporaryDirectory() as name:
        cache = Path(name)
        cache.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(cache, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield cache
        finally:
            os.seteuid(os.getuid())


def make_copy(folder: Path) -> Path:
    folder.mkdir()
    (folder / RECORD).touch()
    return folder


@pytest.mark.row("P6")
def test_a_folder_that_can_not_be_read_keeps_no_copy_from_being_counted_and_removed(
    open_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed = make_copy(open_cache / "closed")
    copy = make_copy(open_cache / "gone")
    closed.chmod(0)
    for day in range(GRACE_DAYS + 1):
        assert copy.exists()
        sweep(open_cache, {"acme"}, NOON + timedelta(days=day))
    closed.chmod(0o700)
    assert list(open_cache.iterdir()) == [closed]
    assert {record.getMessage() for record in caplog.records if record.levelname == "WARNING"} == {
        "Copy of no owner not removed: name=closed reason=Permission denied"
    }


@pytest.mark.row("P6")
@pytest.mark.parametrize("mark", ["", "x", "9" * 5000, "-1"])
def test_a_mark_that_is_no_number_begins_anew(mark: str, tmp_path: Path) -> None:
    copy = make_copy(tmp_path / "gone")
    (copy / MARK).write_text(mark)
    os.utime(copy / MARK, (0, 0))
    sweep(tmp_path, {"acme"}, NOON)
    assert (copy / MARK).read_text() in {"1", "0"}


@pytest.mark.row("P6")
def test_a_cache_that_is_gone_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sweep(tmp_path / "gone", (), NOON)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
