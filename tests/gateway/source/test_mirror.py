"""The copy of one owner on disk: probe, fetch, publish, and what may go wrong (P4, P5, P6, P7)."""

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path, PurePosixPath

import pytest

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.scrub import Secret
from okf_mcp_gateway.source.error_class import SourceError, error_class
from okf_mcp_gateway.source.git import Git, GitError, GitStoppedError
from okf_mcp_gateway.source.mirror import Copy, Mirror, StoredCopy, Tip
from support.git_http import GitHttpServer, GitHttpServerFactory
from support.repositories import Repository, RepositoryFactory, lose_object
from support.repositories import git as run_git

NewGit = Callable[..., Git]
NewMirror = Callable[..., Mirror]

NOON = datetime(2026, 7, 17, 12, 0, 0, 123456, tzinfo=UTC)
USER, TOKEN = "x-access-token", "south-token-of-the-tests"
ABSENT = "1234567890" * 4


def pull(mirror: Mirror) -> Copy:
    """Bring the tip as an owner does, without what it does when that fails."""
    tip = mirror.probe()
    copy = mirror.fetch(tip) if mirror.open() else mirror.clone(tip)
    mirror.publish(copy, NOON)
    return copy


def served(mirror: Mirror) -> str | None:
    """Return the commit of the copy on disk."""
    stored = mirror.open()
    return stored.copy.commit if stored else None


def content(mirror: Mirror, path: str = "a.md") -> bytes | OSError:
    stored = mirror.open()
    assert stored is not None
    tree = mirror.tree(stored.copy)
    entries = [entry for entry in tree.entries([PurePosixPath(".")]) if str(entry.path) == path]
    ((_, raw),) = tree.read(entries)
    return raw


def refs(folder: Path) -> dict[str, str]:
    listing = run_git("for-each-ref", "--format=%(refname) %(objectname)", folder=folder)
    return dict(line.split(" ", 1) for line in listing.decode().splitlines())


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def put_commit(repository: Repository, ref: str) -> str:
    """Let a full ref of the source name a commit of its own; `git push` would guess at names."""
    commit = repository.publish(ref="any")
    run_git("update-ref", ref, commit, folder=repository.bare)
    repository.delete_branch("any")
    return commit


def failure(mirror: Mirror) -> SourceError:
    with pytest.raises(SourceError) as caught:
        pull(mirror)
    return caught.value


# What the ref names


@pytest.mark.row("P5")
def test_a_branch_is_probed_by_its_full_name(repository: Repository, new_mirror: NewMirror) -> None:
    commit = repository.publish()
    assert new_mirror(repository).probe() == Tip("refs/heads/main", commit)


@pytest.mark.row("P5")
@pytest.mark.parametrize("ref", ["light", "annotated", "nested"])
def test_a_tag_is_peeled_to_its_commit(
    repository: Repository, new_mirror: NewMirror, ref: str
) -> None:
    repository.write("a.md", "tagged")
    commit = repository.publish()
    repository.tag("light")
    repository.tag("annotated", annotated=True)
    repository.git("tag", "--annotate", "--message", "of a tag", "nested", "annotated")
    repository.git("push", "--quiet", repository.url, "refs/tags/nested")
    repository.publish()
    mirror = new_mirror(repository, ref)
    assert mirror.probe() == Tip(f"refs/tags/{ref}", commit)
    assert pull(mirror).commit == served(mirror) == commit
    assert content(mirror) == b"tagged"


@pytest.mark.row("P5")
def test_a_branch_wins_over_a_tag_of_its_name(
    repository: Repository, new_mirror: NewMirror
) -> None:
    repository.publish()
    repository.tag("both", annotated=True)
    branch = repository.publish(ref="both")
    mirror = new_mirror(repository, "both")
    assert mirror.probe() == Tip("refs/heads/both", branch)
    assert pull(mirror).commit == branch


@pytest.mark.row("P5")
def test_a_full_ref_is_taken_at_its_word(repository: Repository, new_mirror: NewMirror) -> None:
    commits = {
        ref: put_commit(repository, ref)
        for ref in (
            *("refs/heads/both", "refs/tags/both", "refs/pull/7/head"),
            *("refs/heads/refs/heads/both", "refs/tags/refs/heads/both"),
        )
    }
    probed = {ref: new_mirror(repository, ref).probe() for ref in commits}
    assert probed == {ref: Tip(ref, commit) for ref, commit in commits.items()}
    short = new_mirror(repository, "both").probe()
    assert short == Tip("refs/heads/both", commits["refs/heads/both"])
    pulled = pull(new_mirror(repository, "refs/pull/7/head"))
    assert pulled.commit == commits["refs/pull/7/head"]


@pytest.mark.row("P5")
@pytest.mark.parametrize(
    "ref", ["main", "feature/x", "ünï", "1.10", "no", "+main", "a'b\"c", "-x", "x{y}", "$(id)"]
)
def test_no_other_ref_whose_name_ends_alike_is_taken(
    repository: Repository, new_mirror: NewMirror, ref: str
) -> None:
    for longer in (
        *(f"refs/heads/x/{ref}", f"refs/heads/refs/heads/{ref}", f"refs/x/refs/heads/{ref}"),
        *(f"refs/tags/x/{ref}", f"refs/tags/refs/heads/{ref}", f"refs/pull/{ref}"),
    ):
        put_commit(repository, longer)
    mirror = new_mirror(repository, ref)
    with pytest.raises(SourceError) as caught:
        mirror.probe()
    assert str(caught.value) == f"the source has no branch and no tag {ref!r}"
    assert error_class(caught.value) == "ref_missing"
    wanted = put_commit(repository, f"refs/heads/{ref}")
    assert pull(mirror).commit == served(mirror) == wanted


@pytest.mark.row("S1")
def test_a_missing_ref_is_named(repository: Repository, new_mirror: NewMirror) -> None:
    repository.publish()
    assert str(failure(new_mirror(repository, "gone"))) == (
        "the source has no branch and no tag 'gone'"
    )


def test_a_pattern_is_no_ref(repository: Repository, new_mirror: NewMirror) -> None:
    repository.publish()
    for ref in ("m*", "*", "mai?", "[m]ain", "HEAD", ""):
        assert error_class(failure(new_mirror(repository, ref))) == "ref_missing"


@pytest.mark.row("S1")
def test_an_empty_repository_has_no_ref(repository: Repository, new_mirror: NewMirror) -> None:
    assert error_class(failure(new_mirror(repository))) == "ref_missing"


@pytest.mark.row("P5")
@pytest.mark.parametrize("head", ["ref: refs/heads/nowhere\n", None], ids=["dangling", "missing"])
def test_the_sources_own_head_is_of_no_interest(
    repository: Repository, new_mirror: NewMirror, head: str | None
) -> None:
    commit = repository.publish()
    (repository.bare / "HEAD").unlink()
    if head is None:
        # To git a folder without HEAD is no repository at all.
        assert error_class(failure(new_mirror(repository))) == "not_found"
    else:
        (repository.bare / "HEAD").write_text(head)
        assert pull(new_mirror(repository)).commit == commit


@pytest.mark.row("P5")
@pytest.mark.parametrize("kind", ["blob", "tree"])
def test_a_tag_of_something_else_than_a_commit_is_a_sentence_and_harms_no_copy(
    repository: Repository, new_mirror: NewMirror, kind: str
) -> None:
    repository.write("a.md", "words")
    commit = repository.publish()
    repository.tag("v1")
    mirror = new_mirror(repository, "v1")
    pull(mirror)
    target = "HEAD:a.md" if kind == "blob" else "HEAD^{tree}"
    repository.git("tag", "--force", "v1", target)
    repository.git("push", "--quiet", "--force", repository.url, "refs/tags/v1")
    tip = mirror.probe()
    for bring in (mirror.fetch, mirror.clone):
        with pytest.raises(SourceError) as caught:
            bring(tip)
        assert str(caught.value) == "what the source calls 'v1' is not a commit"
    assert (served(mirror), content(mirror)) == (commit, b"words")
    repository.tag("v1", force=True)
    assert pull(mirror).commit == commit


@pytest.mark.row("G2")
@pytest.mark.parametrize("is_upper", [False, True], ids=["lower", "upper"])
def test_a_pinned_commit_is_served_though_no_ref_names_it(
    repository: Repository, new_mirror: NewMirror, is_upper: bool
) -> None:
    repository.write("a.md", "pinned")
    pinned = repository.publish()
    repository.write("a.md", "later")
    repository.publish()
    mirror = new_mirror(repository, pinned.upper() if is_upper else pinned)
    assert mirror.probe() == Tip(pinned, pinned)
    assert pull(mirror).commit == pinned
    assert content(mirror) == b"pinned"


@pytest.mark.row("G2", "S1")
def test_a_pinned_commit_that_is_not_there_is_a_missing_ref(
    repository: Repository, new_mirror: NewMirror
) -> None:
    repository.publish()
    error = failure(new_mirror(repository, ABSENT))
    assert error_class(error) == "ref_missing"
    assert ABSENT in str(error)


# What a fetch brings


@pytest.mark.row("P5")
def test_a_copy_is_one_commit_without_history_and_without_tags(
    repository: Repository, new_mirror: NewMirror
) -> None:
    for number in range(3):
        repository.write("a.md", str(number))
        repository.publish()
        repository.tag(f"v{number}", annotated=True)
    mirror = new_mirror(repository)
    for _ in range(2):
        copy = pull(mirror)
        stored = mirror.open()
        assert stored is not None
        folder = stored.copy.git_dir
        assert refs(folder) == {"refs/okf/next": copy.commit}
        history = run_git("rev-list", "--all", "HEAD", folder=folder).decode().split()
        assert history == [copy.commit]
        assert not (folder / "FETCH_HEAD").exists()
        assert not (folder / "hooks").exists()
        repository.publish()


@pytest.mark.row("P5")
def test_a_forced_push_a_rewritten_root_and_a_branch_made_anew_are_followed(
    repository: Repository, new_mirror: NewMirror
) -> None:
    mirror = new_mirror(repository)
    repository.write("a.md", "one")
    first = repository.publish()
    assert pull(mirror).commit == first
    repository.write("a.md", "two")
    repository.publish()
    pull(mirror)
    repository.reset(first)
    repository.write("a.md", "forced")
    forced = repository.publish(force=True)
    assert (pull(mirror).commit, content(mirror)) == (forced, b"forced")
    repository.reset(first)
    repository.push(force=True)
    assert (pull(mirror).commit, content(mirror)) == (first, b"one")
    repository.start_over()
    repository.write("a.md", "root")
    root = repository.publish(force=True)
    assert (pull(mirror).commit, content(mirror)) == (root, b"root")
    repository.delete_branch("main")
    assert error_class(failure(mirror)) == "ref_missing"
    assert served(mirror) == root
    repository.start_over()
    repository.write("a.md", "anew")
    anew = repository.publish()
    assert (pull(mirror).commit, content(mirror)) == (anew, b"anew")


@pytest.mark.row("P5")
@pytest.mark.parametrize("is_annotated", [False, True], ids=["light", "annotated"])
def test_a_moved_tag_is_followed(
    repository: Repository, new_mirror: NewMirror, is_annotated: bool
) -> None:
    mirror = new_mirror(repository, "v1")
    for number in range(3):
        repository.write("a.md", str(number))
        commit = repository.publish()
        repository.tag("v1", annotated=is_annotated, force=True)
        assert pull(mirror).commit == served(mirror) == commit


@pytest.mark.row("P5")
def test_a_copy_is_what_the_fetch_brought_when_the_branch_moved_after_the_probe(
    repository: Repository, new_mirror: NewMirror
) -> None:
    repository.publish()
    mirror = new_mirror(repository)
    tip = mirror.probe()
    repository.write("a.md", "later")
    later = repository.publish()
    mirror.publish(mirror.clone(tip), NOON)
    assert (served(mirror), content(mirror)) == (later, b"later")


def test_a_repository_of_sha256_is_mirrored(
    tmp_path: Path, repository: Repository, new_mirror: NewMirror
) -> None:
    folder = tmp_path / "sha256"
    run_git("init", "--quiet", "--object-format=sha256", "-b", "main", ".", folder=made(folder))
    author = ("-c", "user.name=A Writer", "-c", "user.email=writer@example.com")
    run_git(*author, "commit", "--allow-empty", "--quiet", "--message", "One", folder=folder)
    commit = run_git("rev-parse", "HEAD", folder=folder).decode().strip()
    mirror = new_mirror(folder.as_uri())
    assert pull(mirror).commit == served(mirror) == commit
    assert pull(mirror).commit == commit
    repository.publish()
    assert error_class(failure(new_mirror(repository, "gone"))) == "ref_missing"


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.row("P7")
def test_a_probe_that_finds_nothing_new_costs_one_process_and_writes_only_the_record(
    repository: Repository, new_mirror: NewMirror, git: Git, cache: Path
) -> None:
    repository.publish()
    mirror = new_mirror(repository)
    pull(mirror)
    before, started = files_below(cache), git.started_processes
    mirror.probe()
    mirror.record_contact(NOON + timedelta(hours=1))
    assert git.started_processes == started + 1
    after = files_below(cache)
    assert {path for path in before | after if before.get(path) != after.get(path)} == {
        "acme/okf.json"
    }
    stored = mirror.open()
    assert stored is not None
    assert stored.pulled_at == NOON + timedelta(hours=1)


# Publishing, and what is found afterwards


@pytest.mark.row("P4")
def test_publishing_makes_the_commit_the_one_that_head_names(
    repository: Repository, new_mirror: NewMirror, cache: Path
) -> None:
    commit = repository.publish()
    mirror = new_mirror(repository)
    assert mirror.open() is None
    pull(mirror)
    assert mirror.open() == StoredCopy(Copy(cache / "acme", commit), NOON)
    assert run_git("rev-parse", "HEAD", folder=cache / "acme").decode().strip() == commit
    assert json.loads((cache / "acme/okf.json").read_text()) == {
        "url": repository.url,
        "ref": "main",
        "pulled_at": "2026-07-17T12:00:00.123456+00:00",
    }
    assert names_in(cache) == ["acme"]


@pytest.mark.row("P4")
def test_what_was_fetched_but_not_published_is_not_served(
    repository: Repository, new_mirror: NewMirror
) -> None:
    repository.write("a.md", "old")
    old = repository.publish()
    pull(new_mirror(repository))
    repository.write("a.md", "new")
    repository.publish()
    mirror = new_mirror(repository)
    for bring in (mirror.fetch, mirror.clone):
        bring(mirror.probe())
        restarted = new_mirror(repository)
        assert (served(restarted), content(restarted)) == (old, b"old")


@pytest.mark.row("P4")
@pytest.mark.parametrize(
    "moment", ["before the renames", "before them with a broken old copy", "between them"]
)
def test_a_publish_that_is_cut_off_leaves_a_whole_copy(
    repository: Repository, new_mirror: NewMirror, cache: Path, moment: str
) -> None:
    repository.write("a.md", "old")
    old = repository.publish()
    pull(new_mirror(repository))
    repository.write("a.md", "new")
    new = repository.publish()
    mirror = new_mirror(repository)
    copy = mirror.clone(mirror.probe())
    # All that `publish` does up to its renames, and one of them.
    run_git("update-ref", "--no-deref", "HEAD", copy.commit, folder=copy.git_dir)
    shutil.copy(cache / "acme/okf.json", copy.git_dir)
    if moment == "between them":
        (cache / "acme").rename(cache / ".acme.old")
    elif moment != "before the renames":
        (cache / "acme" / "HEAD").write_text("garbage")
    repository.take_away()
    restarted = new_mirror(repository)
    found = (served(restarted), content(restarted))
    assert found == ((old, b"old") if moment == "before the renames" else (new, b"new"))
    repository.bring_back()
    repository.write("a.md", "newer")
    newer = repository.publish()
    restarted.publish(restarted.clone(restarted.probe()), NOON)
    assert served(restarted) == newer
    assert names_in(cache) == ["acme"]


@pytest.mark.row("P4")
def test_an_unfinished_new_copy_is_never_taken_for_one(
    repository: Repository, new_mirror: NewMirror, cache: Path
) -> None:
    repository.publish()
    mirror = new_mirror(repository)
    mirror.clone(mirror.probe())
    assert names_in(cache) == [".acme.new"]
    assert new_mirror(repository).open() is None


@pytest.mark.row("P4")
def test_a_copy_that_is_gone_is_told(repository: Repository, new_mirror: NewMirror) -> None:
    with pytest.raises(FileNotFoundError):
        new_mirror(repository).record_contact(NOON)


@pytest.mark.row("P4", "P6")
@pytest.mark.parametrize("is_link", [True, False], ids=["a link", "a repository"])
def test_what_somebody_put_in_the_place_of_a_copy_never_becomes_one(
    new_repository: RepositoryFactory, new_mirror: NewMirror, cache: Path, is_link: bool
) -> None:
    repository, foreign = new_repository(), new_repository("foreign")
    repository.publish()
    mirror = new_mirror(repository)
    pull(mirror)
    copy = cache / "acme"
    copy.rename(cache / "away")
    if is_link:
        copy.symlink_to(cache / "away")
    else:
        foreign.publish()
        shutil.copytree(foreign.bare, copy)
    with pytest.raises(FileNotFoundError):
        mirror.record_contact(NOON + timedelta(hours=1))
    assert new_mirror(repository).open() is None


@pytest.mark.row("P7")
def test_a_source_that_lists_refs_without_end_is_refused(
    repository: Repository, new_mirror: NewMirror
) -> None:
    commit = repository.publish()
    # git lists what ends in the name that is asked for, too.
    refs = (f"{commit} refs/heads/main-{number}/refs/heads/main\n" for number in range(20_000))
    (repository.bare / "packed-refs").write_text("".join(refs))
    error = failure(new_mirror(repository))
    assert str(error) == "git ls-remote wrote more than 1 MiB"
    assert error_class(error) == "policy"


@pytest.mark.row("S2")
@pytest.mark.parametrize(
    ("stored", "found"),
    [
        ("2026-07-17T12:00:00+00:00", datetime(2026, 7, 17, 12, tzinfo=UTC)),
        ("2026-07-17T12:00:00Z", datetime(2026, 7, 17, 12, tzinfo=UTC)),
        ("2026-07-17T14:00:00+02:00", datetime(2026, 7, 17, 12, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999+00:00", datetime.max.replace(tzinfo=UTC)),
        ("0001-01-01T00:00:00+00:00", datetime.min.replace(tzinfo=UTC)),
        ("2026-07-17T12:00:00", None),
        ("2026-07-17T25:00:00+00:00", None),
        ("yesterday", None),
        (1784289600, None),
        (None, None),
        ([], None),
    ],
)
def test_the_time_of_the_last_contact_comes_back_or_there_is_no_copy(
    repository: Repository,
    new_mirror: NewMirror,
    cache: Path,
    stored: object,
    found: datetime | None,
) -> None:
    repository.publish()
    mirror = new_mirror(repository)
    pull(mirror)
    record = {"url": repository.url, "ref": "main", "pulled_at": stored}
    (cache / "acme/okf.json").write_text(json.dumps(record))
    opened = mirror.open()
    assert (opened.pulled_at if opened else None) == found


def test_any_clock_of_the_gateway_is_recorded_as_it_is(
    repository: Repository, new_mirror: NewMirror
) -> None:
    repository.publish()
    mirror = new_mirror(repository)
    pull(mirror)
    for moment in (
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-11, minutes=-30))),
    ):
        mirror.record_contact(moment)
        opened = mirror.open()
        assert opened is not None
        assert opened.pulled_at == moment


Harm = Callable[[Path], object]


def replace_by_file(copy: Path) -> None:
    shutil.rmtree(copy)
    copy.write_text("a file")


def replace_by_gitfile(copy: Path) -> None:
    copy.rename(copy.parent / "elsewhere")
    copy.write_text(f"gitdir: {copy.parent}/elsewhere\n")


def replace_by_link(copy: Path) -> None:
    copy.rename(copy.parent / "elsewhere")
    copy.symlink_to("elsewhere")


def replace_by_dangling_link(copy: Path) -> None:
    shutil.rmtree(copy)
    copy.symlink_to("nowhere")


def replace_by_empty_folder(copy: Path) -> None:
    shutil.rmtree(copy)
    copy.mkdir()


def replace_by_checkout(copy: Path) -> None:
    bare = copy.rename(copy.parent / "elsewhere")
    copy.mkdir()
    shutil.copy(bare / "okf.json", copy)
    bare.rename(copy / ".git")
    run_git("config", "core.bare", "false", folder=copy)


def write(name: str, text: str) -> Harm:
    return lambda copy: (copy / name).write_text(text)


def remove(name: str) -> Harm:
    return lambda copy: shutil.rmtree(copy / name)


def cut_packs(copy: Path) -> None:
    run_git("repack", "-adq", folder=copy)
    for pack in copy.glob("objects/pack/*.pack"):
        pack.chmod(0o600)
        pack.write_bytes(pack.read_bytes()[:20])


HARMS: dict[str, Harm] = {
    "HEAD is garbage": write("HEAD", "\0garbage"),
    "HEAD is empty": write("HEAD", ""),
    "HEAD is symbolic": write("HEAD", "ref: refs/heads/main\n"),
    "HEAD names a lost commit": write("HEAD", f"{ABSENT}\n"),
    "HEAD is gone": lambda copy: (copy / "HEAD").unlink(),
    "config has an unknown format": write("config", "[core]\n\trepositoryformatversion = 99\n"),
    "no objects": remove("objects"),
    "no refs": remove("refs"),
    "packs are cut": cut_packs,
    "shallow is garbage": write("shallow", "garbage\n"),
    "an empty folder": replace_by_empty_folder,
    "a file": replace_by_file,
    "a file that points to a copy": replace_by_gitfile,
    "a link": replace_by_link,
    "a dangling link": replace_by_dangling_link,
    "a checkout": replace_by_checkout,
    "nothing": shutil.rmtree,
    "no record": lambda copy: (copy / "okf.json").unlink(),
    "the record is empty": write("okf.json", ""),
    "the record is cut": write("okf.json", '{"url": "file'),
    "the record is a list": write("okf.json", "[]"),
    "the record is a number": write("okf.json", "1" * 5000),
    "the record is deep": write("okf.json", "[" * 100_000),
    "the record is no text": lambda copy: (copy / "okf.json").write_bytes(b"\xff\xfe\x00"),
    "the record lacks a key": write("okf.json", '{"url": "x", "ref": "main"}'),
}


@pytest.mark.row("P4")
@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_broken_copy_is_none_and_is_replaced_again_and_again(
    repository: Repository, new_mirror: NewMirror, cache: Path, harm: Harm
) -> None:
    repository.write("a.md", "words")
    commit = repository.publish()
    mirror = new_mirror(repository)
    for _ in range(2):
        mirror.publish(mirror.clone(mirror.probe()), NOON)
        assert (served(mirror), content(mirror)) == (commit, b"words")
        harm(cache / "acme")
        assert new_mirror(repository).open() is None
        shutil.rmtree(cache / "elsewhere", ignore_errors=True)
    pull(mirror)
    assert (served(mirror), content(mirror)) == (commit, b"words")
    assert names_in(cache) == ["acme"]


@pytest.mark.row("P4")
def test_a_broken_copy_stays_until_its_successor_is_published(
    repository: Repository, new_mirror: NewMirror, cache: Path
) -> None:
    repository.publish()
    mirror = new_mirror(repository)
    pull(mirror)
    (cache / "acme/HEAD").write_text("garbage")
    before = files_below(cache / "acme")
    copy = mirror.clone(mirror.probe())
    assert files_below(cache / "acme") == before
    mirror.publish(copy, NOON)
    assert served(mirror) == copy.commit


@pytest.mark.row("P4")
def test_a_lost_object_is_found_when_the_tree_is_read(
    repository: Repository, new_mirror: NewMirror, cache: Path
) -> None:
    repository.write("a.md", "words")
    repository.publish()
    mirror = new_mirror(repository)
    pull(mirror)
    lose_object(cache / "acme", repository.git("rev-parse", "HEAD:a.md"))
    with pytest.raises(GitError):
        content(mirror)


@pytest.mark.row("P6")
def test_a_copy_of_another_url_or_ref_is_none(
    new_repository: RepositoryFactory, new_mirror: NewMirror
) -> None:
    one, two = new_repository("one"), new_repository("two")
    one.write("a.md", "one")
    two.write("a.md", "two")
    commits = one.publish(), two.publish()
    one.push("other")
    pull(new_mirror(one))
    assert new_mirror(one, "other").open() is None
    assert new_mirror(one, "refs/heads/main").open() is None
    assert new_mirror(f"{one.url}/").open() is None
    assert new_mirror(two).open() is None
    assert served(new_mirror(one)) == commits[0]
    mirror = new_mirror(two)
    pull(mirror)
    assert (served(mirror), content(mirror)) == (commits[1], b"two")
    assert new_mirror(one).open() is None


@pytest.mark.row("P7")
def test_what_a_killed_git_left_behind_does_not_stop_the_next_pull(
    repository: Repository, new_mirror: NewMirror, cache: Path
) -> None:
    repository.publish()
    mirror = new_mirror(repository)
    pull(mirror)
    copy = cache / "acme"
    (copy / "refs/heads").mkdir(exist_ok=True)
    blob = repository.git("hash-object", "-w", "--stdin", stdin=b"new")
    left = [
        *("HEAD.lock", "config.lock", "shallow.lock", "packed-refs.lock", "index.lock"),
        *("FETCH_HEAD.lock", "tmp_record_a1b2c3", "refs/okf/next.lock", "refs/heads/main.lock"),
        *("gc.pid.lock", "objects/info/commit-graph.lock", "objects/pack/multi-pack-index.lock"),
        *("objects/pack/tmp_pack_a1b2c3", "objects/pack/tmp_idx_a1b2c3", "objects/tmp_obj_a1b2c3"),
        str(Path("objects", blob[:2], "tmp_obj_a1b2c3")),
    ]
    for name in left:
        (copy / name).parent.mkdir(exist_ok=True, parents=True)
        (copy / name).write_text("half")
        (copy / name).chmod(0o400)
    repository.write("a.md", "new")
    commit = repository.publish()
    assert pull(mirror).commit == served(mirror) == commit
    assert [name for name in left if (copy / name).exists()] == []


@pytest.mark.row("P7")
@pytest.mark.parametrize("name", ["shallow.lock", "refs/okf/next.lock", "HEAD.lock"])
def test_a_folder_in_the_place_of_a_lock_is_healed_by_a_new_copy(
    repository: Repository, new_mirror: NewMirror, cache: Path, name: str
) -> None:
    repository.publish()
    mirror = new_mirror(repository)
    pull(mirror)
    (cache / "acme" / name).mkdir()
    commit = repository.publish()
    with pytest.raises((SourceError, GitError)):
        mirror.publish(mirror.fetch(mirror.probe()), NOON)
    mirror.publish(mirror.clone(mirror.probe()), NOON)
    assert served(mirror) == commit


@pytest.mark.row("P4", "P7")
def test_a_cache_inside_another_repository_never_touches_that_one(
    new_repository: RepositoryFactory, git: Git
) -> None:
    surrounding, source = new_repository("surrounding"), new_repository("source")
    surrounding.write("a.md", "not ours")
    surrounding.publish()
    surrounding.write(".gitignore", "cache\n")
    surrounding.commit()
    (surrounding.clone / "b.md").write_text("not committed")
    source.write("a.md", "ours")
    commit = source.publish()
    cache = surrounding.clone / "cache"
    cache.mkdir()
    before = files_below(surrounding.clone)
    status = surrounding.git("status", "--porcelain")
    config = mirror_config(source)
    mirror = Mirror(config, cache, git)
    (cache / "acme").mkdir()
    assert mirror.open() is None
    pull(mirror)
    for harm in ("HEAD is garbage", "no objects", "an empty folder", "no refs"):
        HARMS[harm](cache / "acme")
        (cache / "acme/okf.json").write_text(
            json.dumps({"url": source.url, "ref": "main", "pulled_at": NOON.isoformat()})
        )
        assert mirror.open() is None
        pull(mirror)
        assert (served(mirror), content(mirror)) == (commit, b"ours")
    shutil.rmtree(cache)
    assert files_below(surrounding.clone) == before
    assert surrounding.git("status", "--porcelain") == status


@pytest.mark.row("P4", "P7")
def test_a_broken_copy_that_is_fetched_into_all_the_same_touches_no_repository_around_it(
    new_repository: RepositoryFactory, git: Git
) -> None:
    surrounding, source = new_repository("surrounding"), new_repository("source")
    surrounding.publish()
    source.publish()
    cache = surrounding.clone / "cache"
    (cache / "acme").mkdir(parents=True)
    mirror = Mirror(mirror_config(source), cache, git)
    before = files_below(surrounding.clone)
    with pytest.raises(SourceError):
        mirror.fetch(mirror.probe())
    with pytest.raises(GitError):
        mirror.publish(Copy(cache / "acme", source.head), NOON)
    assert files_below(surrounding.clone) == before


# Tokens and hosts


@pytest.mark.row("G4")
def test_a_host_is_read_with_and_without_a_token(
    repository: Repository, new_mirror: NewMirror, git_http_server: GitHttpServerFactory
) -> None:
    server = git_http_server()
    url = server.url_of(repository)
    repository.write("a.md", "one")
    commit = repository.publish()
    assert pull(new_mirror(url)).commit == commit
    assert error_class(failure_behind_login(server, new_mirror(url))) == "auth"
    mirror = new_mirror(url, token=Secret(TOKEN))
    repository.write("a.md", "two")
    commit = repository.publish()
    assert pull(mirror).commit == served(mirror) == commit
    assert content(mirror) == b"two"
    assert error_class(failure(new_mirror(url, token=Secret("wrong")))) == "auth"


@pytest.mark.row("G4", "P4")
def test_a_token_that_is_not_set_is_a_sentence_that_names_its_variable(
    repository: Repository, new_mirror: NewMirror, git_http_server: GitHttpServerFactory, git: Git
) -> None:
    repository.publish()
    server = git_http_server()
    error = failure(new_mirror(server.url_of(repository), token=Secret(None)))
    assert str(error) == "the token of this host is not set: OKF_GIT_TOKEN_ACME"
    assert error_class(error) == "auth"
    assert (server.exchanges, git.started_processes) == ((), 0)


@pytest.mark.row("G1")
def test_a_token_that_was_rotated_is_used_by_the_next_pull(
    repository: Repository,
    new_mirror: NewMirror,
    git_http_server: GitHttpServerFactory,
    tmp_path: Path,
) -> None:
    now = 0.0
    path = tmp_path / "token"
    path.write_text("wrong\n")
    server = git_http_server(user=USER, password=TOKEN)
    commit = repository.publish()
    secret = Secret(path=path, clock=lambda: now)
    mirror = new_mirror(server.url_of(repository), token=secret)
    assert error_class(failure(mirror)) == "auth"
    path.write_text(f"{TOKEN}\n")
    now += 1.0
    assert pull(mirror).commit == commit


@pytest.mark.row("G4")
def test_neither_token_nor_login_is_on_disk_after_a_pull(
    repository: Repository,
    new_mirror: NewMirror,
    git_http_server: GitHttpServerFactory,
    cache: Path,
    home: Path,
) -> None:
    repository.publish()
    server = git_http_server(user=USER, password=TOKEN)
    pull(new_mirror(server.url_of(repository), token=Secret(TOKEN)))
    written = {**files_below(cache), **files_below(home)}
    assert [path for path, raw in written.items() if TOKEN.encode() in raw] == []
    assert [path for path, raw in written.items() if USER.encode() in raw] == []
    assert files_below(home) == {}


def failure_behind_login(server: GitHttpServer, mirror: Mirror) -> SourceError:
    server.require_login(USER, TOKEN)
    return failure(mirror)


@pytest.mark.row("P7")
def test_a_half_pack_leaves_the_copy_as_it_was(
    repository: Repository, new_mirror: NewMirror, git_http_server: GitHttpServerFactory
) -> None:
    server = git_http_server()
    mirror = new_mirror(server.url_of(repository))
    repository.write("a.md", "old")
    old = repository.publish()
    pull(mirror)
    repository.write("a.md", os.urandom(50_000))
    new = repository.publish()
    server.break_off(20_000, when=lambda exchange: exchange.is_fetch)
    error = failure(mirror)
    assert error_class(error) == "connect", str(error)
    assert (served(mirror), content(mirror)) == (old, b"old")
    server.release()
    assert pull(mirror).commit == new


@pytest.mark.row("P7")
def test_a_fetch_that_meets_its_deadline_says_so_and_leaves_the_copy_as_it_was(
    repository: Repository,
    new_git: NewGit,
    git_http_server: GitHttpServerFactory,
    cache: Path,
) -> None:
    server = git_http_server()
    mirror = Mirror(mirror_config(server.url_of(repository)), cache, new_git(deadline=3.0))
    old = repository.publish()
    pull(mirror)
    repository.publish()
    server.hang(when=lambda exchange: exchange.is_fetch)
    error = failure(mirror)
    assert error_class(error) == "timeout"
    assert str(error) == "git fetch took longer than 3 s"
    assert served(mirror) == old


@pytest.mark.row("H3")
def test_a_full_disk_is_no_fault_of_the_source(
    repository: Repository, new_mirror: NewMirror, tools: Path
) -> None:
    mirror = new_mirror(repository)
    # No test can fill a disk: this says what git says then.
    (tools / "git").write_text(
        "#!/bin/sh\necho 'fatal: write error: No space left on device' >&2\nexit 128\n"
    )
    (tools / "git").chmod(0o755)
    with pytest.raises(GitError) as caught:
        mirror.probe()
    assert not isinstance(caught.value, SourceError)
    assert error_class(caught.value) == "disk"


@pytest.mark.row("P4")
@pytest.mark.parametrize("name", ["HEAD", "config", "okf.json"])
def test_a_pipe_in_a_copy_is_a_broken_copy_that_a_new_one_replaces(
    repository: Repository, new_git: NewGit, new_mirror: NewMirror, cache: Path, name: str
) -> None:
    repository.publish()
    pull(new_mirror(repository))
    (cache / "acme" / name).unlink()
    os.mkfifo(cache / "acme" / name)
    hurried = Mirror(mirror_config(repository), cache, new_git(deadline=2.0))
    assert hurried.open() is None
    assert pull(hurried).commit == served(hurried) == repository.head


@pytest.mark.row("P5")
def test_a_replacement_planted_in_a_copy_replaces_nothing(
    repository: Repository, new_mirror: NewMirror, cache: Path
) -> None:
    repository.write("a.md", "old")
    repository.publish()
    mirror = new_mirror(repository)
    pull(mirror)
    blob = repository.git("rev-parse", "HEAD:a.md")
    other = repository.git("hash-object", "-w", "--stdin", stdin=b"planted")
    planted = cache / "acme" / "objects" / other[:2]
    planted.mkdir(exist_ok=True)
    source = repository.clone / ".git" / "objects" / other[:2] / other[2:]
    (planted / other[2:]).write_bytes(source.read_bytes())
    (cache / "acme" / "refs" / "replace").mkdir()
    (cache / "acme" / "refs" / "replace" / blob).write_text(f"{other}\n")
    tree = mirror.tree(Copy(cache / "acme", repository.head))
    (entry,) = tree.entries((PurePosixPath("."),))
    assert [content for _, content in tree.read([entry])] == [b"old"]


@pytest.mark.row("P8")
def test_a_stop_is_no_fault_of_source_or_copy(
    repository: Repository, new_mirror: NewMirror, git: Git
) -> None:
    repository.publish()
    mirror = new_mirror(repository)
    pull(mirror)
    tip = mirror.probe()
    git.close()
    for step in (mirror.open, mirror.probe, lambda: mirror.fetch(tip), lambda: mirror.clone(tip)):
        with pytest.raises(GitStoppedError):
            step()


# What others planted


@pytest.mark.row("P7")
@pytest.mark.parametrize(
    "planted",
    [
        "[core]\n\thooksPath = {hooks}\n",
        "[include]\n\tpath = {included}\n",
        "[core]\n\tfsmonitor = {evil}\n",
        "[core]\n\taskPass = {evil}\n",
        "[credential]\n\thelper = !{evil}\n",
        '[credential "{host}"]\n\thelper = !{evil}\n',
        '[protocol "ext"]\n\tallow = always\n[url "ext::{evil} "]\n\tinsteadOf = {url}\n',
        (
            '[protocol "ssh"]\n\tallow = always\n[core]\n\tsshCommand = {evil}\n'
            '[url "ssh://x/"]\n\tinsteadOf = {host}\n'
        ),
        (
            '[protocol "git"]\n\tallow = always\n[core]\n\tgitProxy = {evil}\n'
            '[url "git://x/"]\n\tinsteadOf = {host}\n'
        ),
        '[protocol "ext"]\n\tallow = always\n[remote "{url}"]\n\tvcs = ext\n\turl = {evil}\n',
        "[uploadpack]\n\tpackObjectsHook = {evil}\n",
        "[gc]\n\tauto = 1\n\tautoDetach = false\n[maintenance]\n\tauto = true\n",
    ],
    ids=[
        *("hooksPath", "include", "fsmonitor", "askPass", "helper", "helper of the host"),
        *("ext", "sshCommand", "gitProxy", "vcs", "packObjectsHook", "gc"),
    ],
)
def test_the_configuration_of_a_copy_runs_nothing(
    repository: Repository,
    new_mirror: NewMirror,
    git_http_server: GitHttpServerFactory,
    cache: Path,
    tmp_path: Path,
    planted: str,
) -> None:
    server = git_http_server(user=USER, password=TOKEN)
    url = server.url_of(repository)
    mirror = new_mirror(url, token=Secret(TOKEN))
    repository.publish()
    pull(mirror)
    canary, evil = plant_command(tmp_path)
    hooks = made(tmp_path / "hooks")
    for hook in ("reference-transaction", "post-checkout", "pre-auto-gc", "post-update"):
        shutil.copy(evil, hooks / hook)
    included = tmp_path / "included"
    included.write_text(f"[core]\n\thooksPath = {hooks}\n")
    copy = cache / "acme"
    with (copy / "config").open("a") as config:
        values = {"evil": evil, "hooks": hooks, "included": included, "url": url}
        config.write(planted.format(**values, host=server.url))
    shutil.copytree(hooks, copy / "hooks", dirs_exist_ok=True)
    repository.write("a.md", "words")
    commit = repository.publish()
    try:
        pull(mirror)
    except SourceError as error:
        if error_class(error) != "policy":
            raise
    else:
        assert (served(mirror), content(mirror)) == (commit, b"words")
    assert not canary.exists()


@pytest.mark.row("P4", "P7")
@pytest.mark.parametrize("planted", ["[core\n", '[url "ext::x"]\n\tinsteadOf = f\n', "\0\xff\n"])
def test_what_is_not_ours_is_taken_out_of_the_configuration_of_a_copy(
    repository: Repository, new_mirror: NewMirror, cache: Path, planted: str
) -> None:
    commit = repository.publish()
    mirror = new_mirror(repository)
    pull(mirror)
    path = cache / "acme" / "config"
    own = path.read_text()
    path.write_text(f"{planted}{own}{planted}")
    assert (served(mirror), path.read_text()) == (commit, own)


@pytest.mark.row("P4", "P7")
def test_a_copy_shares_nothing_with_another_repository(
    repository: Repository, new_mirror: NewMirror, cache: Path
) -> None:
    repository.publish()
    mirror = new_mirror(repository)
    pull(mirror)
    (cache / "acme" / "commondir").write_text(f"{repository.bare}\n")
    commit = repository.publish()
    before = files_below(repository.bare)
    assert pull(mirror).commit == served(mirror) == commit
    assert files_below(repository.bare) == before


@pytest.mark.row("P7")
def test_a_source_on_disk_runs_nothing_here(
    repository: Repository, new_mirror: NewMirror, tmp_path: Path
) -> None:
    repository.write("a.md", "words")
    commit = repository.publish()
    canary, evil = plant_command(tmp_path)
    hooks = repository.bare / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("reference-transaction", "pre-receive", "update", "post-update", "post-checkout"):
        shutil.copy(evil, hooks / hook)
    with (repository.bare / "config").open("a") as config:
        config.write(
            f"[uploadpack]\n\tpackObjectsHook = {evil}\n"
            f"[core]\n\tfsmonitor = {evil}\n\talternateRefsCommand = {evil}\n"
            f"\tsshCommand = {evil}\n"
            f'[remote "x"]\n\tpromisor = true\n\turl = ext::{evil}\n\tuploadpack = {evil}\n'
            f"[credential]\n\thelper = !{evil}\n[protocol]\n\tallow = always\n"
        )
    mirror = new_mirror(repository)
    assert pull(mirror).commit == commit
    assert not canary.exists()


@pytest.mark.row("D10", "P7")
def test_objects_that_a_source_borrows_are_whole_in_the_copy(
    new_repository: RepositoryFactory, new_mirror: NewMirror
) -> None:
    lender, borrower = new_repository("lender"), new_repository("borrower")
    lender.write("a.md", "borrowed")
    commit = lender.publish()
    (borrower.bare / "objects/info").mkdir(exist_ok=True)
    (borrower.bare / "objects/info/alternates").write_text(f"{lender.bare}/objects\n")
    run_git("update-ref", "refs/heads/main", commit, folder=borrower.bare)
    mirror = new_mirror(borrower)
    pull(mirror)
    lender.take_away()
    borrower.take_away()
    assert (served(mirror), content(mirror)) == (commit, b"borrowed")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_source_of_another_user_is_read(repository: Repository, new_mirror: NewMirror) -> None:
    commit = repository.publish()
    for path in [repository.bare, *repository.bare.rglob("*")]:
        os.chown(path, 12345, 12345)
    assert pull(new_mirror(repository)).commit == commit


@pytest.mark.row("P7")
@pytest.mark.parametrize(
    ("url", "ref"),
    [
        ("--upload-pack=touch {canary}", "main"),
        ("-utouch {canary}", "main"),
        ("ext::touch {canary}", "main"),
        ("file:///nowhere;touch {canary}", "main"),
        (None, "--upload-pack=touch {canary}"),
        (None, "main:refs/heads/x"),
        (None, "+main"),
        (None, "^main"),
        (None, "$(touch {canary})"),
    ],
)
def test_neither_url_nor_ref_becomes_an_option_or_a_command(
    repository: Repository, new_mirror: NewMirror, tmp_path: Path, url: str | None, ref: str
) -> None:
    commit = repository.publish()
    canary = tmp_path / "canary"
    asked = url.format(canary=canary) if url else repository
    mirror = new_mirror(asked, ref.format(canary=canary))
    with pytest.raises(SourceError):
        mirror.probe()
    with pytest.raises(SourceError):
        mirror.clone(Tip(f"refs/heads/{ref.format(canary=canary)}", commit))
    assert not canary.exists()


def mirror_config(source: Repository | str) -> OwnerConfig:
    url = source if isinstance(source, str) else source.url
    return OwnerConfig("acme", url, "main", 0)


def plant_command(folder: Path) -> tuple[Path, Path]:
    """Return a file that isn't there, and a command that makes it."""
    canary, evil = folder / "canary", folder / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntouch {canary}\nexit 1\n")
    evil.chmod(0o755)
    return canary, evil


@pytest.mark.row("G4")
def test_a_token_that_is_too_long_to_hand_over_is_the_sources_fault_and_not_repeated(
    repository: Repository, new_mirror: NewMirror
) -> None:
    repository.publish()
    error = failure(new_mirror(repository, token=Secret("x" * 5_000)))
    assert str(error) == "the token of this host is longer than 4096 bytes"
