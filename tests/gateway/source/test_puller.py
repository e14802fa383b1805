"""A pull of one owner, and what it leaves for the next start."""

import logging
import resource
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.snapshot_file import NAME, SnapshotFile
from okf_mcp_gateway.source.error_class import SourceError
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.source.mirror import Mirror
from okf_mcp_gateway.source.packs import MAX_PACKS
from okf_mcp_gateway.source.puller import Puller
from okf_mcp_server.snapshot import Snapshot
from support.repositories import Repository, lose_object
from support.snapshots import everything

NOON = datetime(2026, 7, 17, 12, tzinfo=UTC)


def new_puller(config: OwnerConfig, cache: Path, git: Git) -> Puller:
    """Return a puller as a new process would make it."""
    snapshots = SnapshotFile(config, b"a key")
    return Puller(config, Mirror(config, cache, git), snapshots, now=lambda: NOON, scrub=str)


@contextmanager
def a_full_disk(*, room_bytes: int = 0) -> Generator[None]:
    """Let every write to a file fail until the block ends, beyond so much; pipes work on."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.row("S2", "P4")
def test_what_is_served_stays_good_where_the_time_of_a_contact_can_not_be_written(
    published: Repository, git: Git, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = OwnerConfig("acme", published.url, "main", 0)
    puller = new_puller(config, cache, git)
    first = puller.pull(None)
    with a_full_disk():
        second = puller.pull(first)
    assert second is first
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("Contact not recorded: owner=acme")
    restored = puller.restore()
    assert restored is not None
    assert (restored[0].commit, restored[1]) == (published.head, NOON)


@pytest.mark.row("P4")
def test_commits_that_are_refused_after_their_fetch_dont_pile_up(
    published: Repository, git: Git, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("okf_mcp_gateway.source.commit_tree.MAX_MARKDOWN_FILES", 1)
    config = OwnerConfig("acme", published.url, "main", 0)
    puller = new_puller(config, cache, git)
    first = puller.pull(None)
    published.document("b.md")
    for number in range(12):
        published.document("b.md", body=f"{number}\n")
        published.publish()
        with pytest.raises(SourceError):
            puller.pull(first)
        if puller.wear >= 1:
            puller.repack()
    assert len(list(cache.glob("acme/objects/pack/*.pack"))) <= MAX_PACKS


# The snapshot file


@pytest.fixture
def config(published: Repository) -> OwnerConfig:
    return OwnerConfig("acme", published.url, "main", 0)


def fill(config: OwnerConfig, cache: Path, git: Git) -> Snapshot:
    """Pull, and write the snapshot file, as another process would; return what it holds."""
    puller = new_puller(config, cache, git)
    snapshot = puller.pull(None)
    puller.keep(snapshot)
    return snapshot


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= level]


@pytest.mark.row("P1", "P5")
def test_a_start_from_a_snapshot_file_runs_no_git_and_parses_nothing(
    published: Repository, config: OwnerConfig, git: Git, cache: Path
) -> None:
    pulled = fill(config, cache, git)
    published.take_away()
    before = git.started_processes
    restored = new_puller(config, cache, git).restore()
    assert restored is not None
    assert everything(restored[0]) == everything(pulled)
    assert (restored[0].parsed_files, restored[1]) == (0, NOON)
    assert git.started_processes == before


@pytest.mark.row("P4", "P5")
def test_the_first_pull_after_it_looks_at_the_copy_and_later_ones_need_not(
    published: Repository, config: OwnerConfig, git: Git, cache: Path
) -> None:
    fill(config, cache, git)
    puller = new_puller(config, cache, git)
    restored = puller.restore()
    assert restored is not None
    counts: list[int] = []
    for _ in range(3):
        before = git.started_processes
        assert puller.pull(restored[0]) is restored[0]
        counts.append(git.started_processes - before)
    assert counts == [2, 1, 1]
    published.document("b.md")
    newest = published.publish()
    pulled = puller.pull(restored[0])
    assert (pulled.commit, pulled.parsed_files, len(pulled.documents)) == (newest, 1, 2)


@pytest.mark.row("P4")
def test_a_copy_that_is_broken_behind_its_snapshot_file_is_replaced_though_nothing_is_new(
    published: Repository,
    config: OwnerConfig,
    git: Git,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(config, cache, git)
    lose_object(cache / "acme", published.head)
    puller = new_puller(config, cache, git)
    restored = puller.restore()
    assert restored is not None
    again = puller.pull(restored[0])
    assert (everything(again), again.parsed_files) == (everything(restored[0]), 0)
    puller.keep(again)
    assert messages(caplog) == ["Copy on disk broken, cloning anew: owner=acme"]
    assert Mirror(config, cache, git).open() is not None
    assert [path.name for path in cache.iterdir()] == ["acme"]
    before = git.started_processes
    assert new_puller(config, cache, git).restore() is not None
    assert git.started_processes == before


@pytest.mark.row("P4", "P5")
@pytest.mark.parametrize("head", ["", "ref: refs/heads/main\n", "d1" * 20 + "\n", "x" * 5000])
def test_a_snapshot_file_without_its_copys_head_is_not_used(
    config: OwnerConfig, git: Git, cache: Path, head: str
) -> None:
    fill(config, cache, git)
    (cache / "acme" / "HEAD").write_text(head)
    assert new_puller(config, cache, git).restore() is None


@pytest.mark.row("P4", "P5")
def test_a_start_without_a_good_snapshot_file_parses_and_writes_one(
    published: Repository, config: OwnerConfig, git: Git, cache: Path
) -> None:
    pulled = fill(config, cache, git)
    published.take_away()
    (cache / "acme" / NAME).write_bytes(b"garbage")
    for parsed_files in (1, 0):
        puller = new_puller(config, cache, git)
        restored = puller.restore()
        assert restored is not None
        assert puller.is_kept(restored[0]) is (parsed_files == 0)
        puller.keep(restored[0])
        assert everything(restored[0]) == everything(pulled)
        assert restored[0].parsed_files == parsed_files


@pytest.mark.row("P4", "P5")
def test_a_snapshot_file_that_finds_no_room_fails_no_pull_and_the_old_one_is_not_used(
    published: Repository,
    config: OwnerConfig,
    git: Git,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = fill(config, cache, git)
    published.document("design/a.md", body="Words.\n" * 20_000)
    newest = published.publish()
    puller = new_puller(config, cache, git)
    with a_full_disk(room_bytes=65_536):
        puller.keep(puller.pull(first))
    (message,) = messages(caplog)
    assert message.startswith("Snapshot file not written: owner=acme reason=")
    assert not list((cache / "acme").glob("tmp_*"))
    restored = new_puller(config, cache, git).restore()
    assert restored is not None
    assert (restored[0].commit, restored[0].parsed_files) == (newest, 2)


@pytest.mark.row("P4")
def test_a_new_copy_brings_its_own_snapshot_file(
    published: Repository, config: OwnerConfig, git: Git, cache: Path
) -> None:
    fill(config, cache, git)
    (cache / "acme" / "HEAD").write_text("garbage")
    fill(config, cache, git)
    published.take_away()
    before = git.started_processes
    assert new_puller(config, cache, git).restore() is not None
    assert git.started_processes == before
