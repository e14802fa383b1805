"""The cache directory is ours alone, and writable, or the gateway doesn't start."""

import os
import stat
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from okf_mcp_gateway.cache import CacheError, hold_cache

NOBODY = 65534


@contextmanager
def as_a_user_without_rights(folder: Path) -> Generator[None]:
    """Be somebody who owns `folder` and for whom permissions count, unlike for root."""
    if os.geteuid() != 0:
        yield
        return
    for each in (folder, *folder.rglob("*")):
        os.chown(each, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches, which `tmp_path` is not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.mark.row("G1")
def test_the_cache_is_made_for_its_owner_alone_with_an_empty_home_in_it(tmp_path: Path) -> None:
    cache = tmp_path / "not" / "yet" / "there"
    with hold_cache(cache) as home:
        assert stat.S_IMODE(cache.stat().st_mode) == 0o700
        assert home.parent == cache
        assert list(home.iterdir()) == []
        assert stat.S_IMODE(home.stat().st_mode) == 0o500
        assert {path.name for path in cache.iterdir()} == {".home", ".lock"}


@pytest.mark.row("G1")
def test_a_cache_is_held_by_one_gateway_at_a_time(tmp_path: Path) -> None:
    with hold_cache(tmp_path):
        with pytest.raises(CacheError) as raised, hold_cache(tmp_path):
            pass
        assert str(raised.value) == (
            f"the cache directory {tmp_path} is held by another gateway; stop that one, or name "
            "another directory by OKF_GATEWAY_CACHE_DIR"
        )
    with hold_cache(tmp_path):
        pass


@pytest.mark.row("G1")
def test_a_cache_is_free_again_after_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold_cache(tmp_path):
        raise ZeroDivisionError
    with hold_cache(tmp_path):
        pass


@pytest.mark.row("G1")
@pytest.mark.parametrize("name", ["file", "file/cache", "file/a/b"])
def test_a_cache_in_the_place_of_a_file_is_a_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CacheError) as raised, hold_cache(tmp_path / name):
        pass
    sentence = str(raised.value)
    assert sentence.startswith(f"the cache directory {tmp_path / name} can't be written: ")
    assert "\n" not in sentence
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.row("G1")
@pytest.mark.parametrize("was_used", [False, True], ids=["new", "used before"])
def test_a_cache_that_cannot_be_written_is_a_sentence(was_used: bool, open_folder: Path) -> None:
    cache = open_folder / "cache"
    cache.mkdir()
    if was_used:
        with hold_cache(cache):
            pass
    with as_a_user_without_rights(open_folder):
        cache.chmod(0o500)
        with pytest.raises(CacheError) as raised, hold_cache(cache):
            pass
        cache.chmod(0o700)
    assert str(raised.value) == f"the cache directory {cache} can't be written: Permission denied"


@pytest.mark.row("G1")
def test_trying_the_cache_leaves_nothing_behind(tmp_path: Path) -> None:
    for _ in range(2):
        with hold_cache(tmp_path):
            pass
    assert {path.name for path in tmp_path.iterdir()} == {".home", ".lock"}


@pytest.mark.row("G4")
@pytest.mark.parametrize("planted", ["a folder", "a file", "a link"])
def test_the_home_is_empty_whatever_stood_in_its_place(tmp_path: Path, planted: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".netrc").write_text("machine host login me password mine\n")
    cache = tmp_path / "cache"
    cache.mkdir()
    home = cache / ".home"
    if planted == "a folder":
        home.mkdir()
        (home / ".netrc").write_text("machine host login me password mine\n")
        home.chmod(0o500)
    elif planted == "a file":
        home.write_text("")
    else:
        home.symlink_to(elsewhere)
    with hold_cache(cache) as held:
        assert not held.is_symlink()
        assert list(held.iterdir()) == []
    assert (elsewhere / ".netrc").exists()
