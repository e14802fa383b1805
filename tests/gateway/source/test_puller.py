"""A pull of one owner, where the mirror under it does what it can."""

import logging
import resource
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.source.error_class import SourceError
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.source.mirror import Mirror
from okf_mcp_gateway.source.packs import MAX_PACKS
from okf_mcp_gateway.source.puller import Puller
from support.repositories import Repository

NOON = datetime(2026, 7, 17, 12, tzinfo=UTC)


@contextmanager
def a_full_disk() -> Generator[None]:
    """Let every write to a file fail until the block ends; pipes work on."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.row("S2", "P4")
def test_what_is_served_stays_good_where_the_time_of_a_contact_can_not_be_written(
    published: Repository, git: Git, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = OwnerConfig("acme", published.url, "main", 0)
    puller = Puller(config, Mirror(config, cache, git), now=lambda: NOON, scrub=str)
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
    puller = Puller(config, Mirror(config, cache, git), now=lambda: NOON, scrub=str)
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
