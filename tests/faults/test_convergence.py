"""What is served converges on the tip after any edit of the history.

After each pull the served documents are the Markdown files of what the ref names in the source,
as git itself lists them (`git ls-tree -r`), whatever was done to it: commits of any kind, forced
pushes, new roots, branches deleted and made anew, moved tags of both kinds, a branch and a tag of
one name, a repository emptied. While the ref is missing, what was served last is served on.
"""

import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.snapshot_file import SnapshotFile
from okf_mcp_gateway.source.error_class import SourceError
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.source.mirror import Mirror
from okf_mcp_gateway.source.puller import Puller
from okf_mcp_server.snapshot import Snapshot
from support.histories import document_text, point
from support.repositories import GitError, Repository, git
from support.soak import soak_scale

HISTORIES: Final = round(30 * soak_scale())
NOBODY: Final = b"committer A Writer <writer@example.com> 1750000000 +0000\n"

NAMES: Final = ("main", "v1")
"""The refs that are edited, each as a branch and as a tag."""

REFS: Final = tuple(f"refs/{kind}/{name}" for kind in ("heads", "tags") for name in NAMES)

PATHS: Final = (
    *("a.md", "b.md", "docs/c.md", "docs/deep/d.md", "a.md/below a file's name.md"),
    *("ünï cödé.md", 'quoted "x".md', "README.txt"),
)

Kind = Literal["text", "executable", "link", "submodule", "removed"]


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit some files to a branch: on top of it, of its parent, or of nothing."""

    branch: str
    files: Sequence[tuple[str, Kind]]
    onto: Literal["tip", "parent", "nothing"]


@dataclass(frozen=True, slots=True)
class Tag:
    """Let a tag name what a branch names."""

    name: str
    branch: str
    is_annotated: bool


@dataclass(frozen=True, slots=True)
class Move:
    """Let a branch name any commit that there ever was."""

    branch: str
    number: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a branch or a tag."""

    ref: str


@dataclass(frozen=True, slots=True)
class Empty:
    """Delete all refs."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Forget what was served: a gateway starts again on its copy."""


Edit = Commit | Tag | Move | Delete | Empty | Restart

branches = st.sampled_from(NAMES)
commits = st.builds(
    Commit,
    branches,
    st.lists(
        st.tuples(
            st.sampled_from(PATHS),
            st.sampled_from(("text", "text", "text", "executable", "link", "submodule", "removed")),
        ),
        max_size=4,
    ),
    st.sampled_from(("tip", "tip", "tip", "parent", "nothing")),
)
edits = st.one_of(
    commits,
    commits,
    commits,
    st.builds(Tag, st.sampled_from(NAMES), branches, st.booleans()),
    st.builds(Move, branches, st.integers(0, 20)),
    st.builds(Delete, st.sampled_from(REFS)),
    st.builds(Empty),
    st.builds(Restart),
)


class Source:
    """The repository that is edited."""

    def __init__(self, folder: Path) -> None:
        self.repository = Repository(folder)
        self._bare = self.repository.bare
        # Written by `edit` alone: all commits so far, and how many texts were written.
        self._commits: list[str] = []
        self._texts = 0

    def edit(self, edit: Edit) -> None:
        """Do one edit; one that has nothing to work on does nothing."""
        match edit:
            case Commit():
                self._commit(edit)
            case Tag():
                self._tag(edit)
            case Move():
                commit = self._commits[edit.number % len(self._commits)]
                point(self._bare, f"refs/heads/{edit.branch}", commit)
            case Delete():
                self._delete(edit.ref)
            case Empty():
                self._delete(*REFS)
            case Restart():
                pass

    def tip(self, name: str) -> str | None:
        """Ask git what an owner's ref names: a branch before a tag; None if there is neither."""
        for kind in ("heads", "tags"):
            try:
                said = git(
                    "rev-parse", "--verify", f"refs/{kind}/{name}^{{commit}}", folder=self._bare
                )
            except GitError:
                continue
            return said.decode().strip()
        return None

    def documents(self, commit: str) -> dict[str, str]:
        """Ask git for the Markdown files of a commit: the bodies by path."""
        listing = git("ls-tree", "-r", "-z", commit, folder=self._bare)
        entries = [line.split(b"\t", 1) for line in listing.split(b"\0") if line]
        files = {
            os.fsdecode(path): fields.split()[2]
            for fields, path in entries
            if path.endswith(b".md") and fields.split()[0] in (b"100644", b"100755")
        }
        asked = b"".join(b"%s\n" % blob for blob in files.values())
        said = git("cat-file", "--batch", folder=self._bare, stdin=asked)
        bodies: dict[str, str] = {}
        for path in files:
            head, _, said = said.partition(b"\n")
            size = int(head.split()[2])
            bodies[path] = said[:size].decode().split("---\n", 2)[2].strip()
            said = said[size + 1 :]
        return bodies

    def _delete(self, *refs: str) -> None:
        for ref in refs:
            (self._bare / ref).unlink(missing_ok=True)

    def _read(self, ref: str) -> str | None:
        path = self._bare / ref
        return path.read_text().strip() if path.exists() else None

    def _commit(self, edit: Commit) -> None:
        """Make the commit by git-fast-import(1), on a ref that nobody follows."""
        tip = self._read(f"refs/heads/{edit.branch}")
        stream = [b"commit refs/okf/made\nmark :1\n", NOBODY, counted(b"An edit")]
        if tip is not None and edit.onto != "nothing":
            parent = b"%s%s" % (tip.encode(), b"^0" if edit.onto == "tip" else b"~1")
            if edit.onto == "tip" or self._has_parent(tip):
                stream.append(b"from %s\n" % parent)
        for path, kind in edit.files:
            stream.append(self._change(path, kind, tip))
        stream.append(b"\nget-mark :1\n")
        (self._bare / "refs/okf/made").unlink(missing_ok=True)
        said = git("fast-import", "--quiet", "--force", folder=self._bare, stdin=b"".join(stream))
        self._commits.append(said.decode().strip())
        point(self._bare, f"refs/heads/{edit.branch}", self._commits[-1])

    def _change(self, path: str, kind: Kind, tip: str | None) -> bytes:
        name = b'"%s"' % os.fsencode(path).replace(b'"', b'\\"')
        self._texts += 1
        text = document_text(f"Text {self._texts} of {path}").encode()
        match kind:
            case "text":
                return b"M 100644 inline %s\n%s" % (name, counted(text))
            case "executable":
                return b"M 100755 inline %s\n%s" % (name, counted(text))
            case "link":
                return b"M 120000 inline %s\n%s" % (name, counted(text))
            case "submodule":
                return b"M 160000 %s %s\n" % ((tip or "1" * 40).encode(), name)
            case "removed":
                return b"D %s\n" % name

    def _has_parent(self, commit: str) -> bool:
        return b"\nparent " in git("cat-file", "commit", commit, folder=self._bare)

    def _tag(self, edit: Tag) -> None:
        tip = self._read(f"refs/heads/{edit.branch}")
        if tip is None:
            return
        named = tip
        if edit.is_annotated:
            self._texts += 1
            tag = f"object {tip}\ntype commit\ntag {edit.name}\ntagger A Writer <w@example.com> "
            tag += f"{1_750_000_000 + self._texts} +0000\n\nA tag\n"
            named = git("mktag", folder=self._bare, stdin=tag.encode()).decode().strip()
        point(self._bare, f"refs/tags/{edit.name}", named)


class Follower:
    """What one owner serves, in process: a mirror and its puller."""

    def __init__(self, source: Source, name: str, folder: Path, runner: Git) -> None:
        self._source = source
        self._name = name
        self._config = OwnerConfig("acme", source.repository.url, name, 0)
        self._cache = folder
        self._git = runner
        # Written by `follow` alone.
        self._served: Snapshot | None = None
        self._puller = self._start()

    def follow(self, edit: Edit) -> None:
        """Pull after an edit, and see that what is served is what git says."""
        if isinstance(edit, Restart):
            self._puller = self._start()
            restored = self._puller.restore()
            before = self._served
            self._served = restored[0] if restored else None
            assert commit_of(self._served) == commit_of(before)
        tip = self._source.tip(self._name)
        if tip is None:
            with pytest.raises(SourceError, match="has no branch and no tag"):
                self._puller.pull(self._served)
        else:
            self._served = self._puller.pull(self._served)
            assert self._served.commit == tip
        if self._served is not None:
            served = {str(each.path): each.content for each in self._served.documents}
            assert served == self._source.documents(str(self._served.commit))

    def _start(self) -> Puller:
        mirror = Mirror(self._config, self._cache, self._git)
        snapshots = SnapshotFile(self._config, b"a key")
        return Puller(self._config, mirror, snapshots, now=lambda: datetime.now(UTC), scrub=str)


def commit_of(snapshot: Snapshot | None) -> str | None:
    return snapshot.commit if snapshot else None


def counted(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)


def other_than(name: str) -> str:
    return next(each for each in NAMES if each != name)


def of_a_tag(name: str, history: Iterable[Edit]) -> list[Edit]:
    """Return a history in which no branch has the name, so that a tag of it is followed."""
    other = other_than(name)
    changed: list[Edit] = []
    for edit in history:
        if isinstance(edit, Commit | Move):
            changed.append(replace(edit, branch=other))
        elif isinstance(edit, Tag):
            changed.append(replace(edit, name=name, branch=other))
        else:
            changed.append(edit)
    return changed


@contextmanager
def a_follower(name: str) -> Generator[tuple[Source, Follower]]:
    with TemporaryDirectory() as folder:
        source = Source(Path(folder, "source"))
        cache, home = Path(folder, "cache"), Path(folder, "home")
        cache.mkdir()
        home.mkdir()
        runner = Git(environ=os.environ, home=home, deadline_seconds=30)
        try:
            yield source, Follower(source, name, cache, runner)
        finally:
            runner.close()


@pytest.mark.row("P4", "P5")
@settings(
    max_examples=HISTORIES,
    deadline=None,
    derandomize=soak_scale() <= 1,
    print_blob=True,
    database=None,
    # To find the shortest history that fails takes minutes.
    phases=(Phase.generate, Phase.shrink) if soak_scale() > 1 else (Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(name=branches, history=st.lists(edits, min_size=6, max_size=10), is_tag=st.booleans())
def test_what_is_served_is_what_git_lists_of_the_tip_after_any_edit_of_the_history(
    name: str, history: list[Edit], is_tag: bool
) -> None:
    # So that there is something to lose.
    first: list[Edit] = [Commit(name, [("a.md", "text"), ("b.md", "text")], "nothing")]
    if is_tag:
        first, history = of_a_tag(name, first), of_a_tag(name, history)
        first.append(Tag(name, other_than(name), is_annotated=True))
    with a_follower(name) as (source, follower):
        for edit in (*first, *history):
            source.edit(edit)
            follower.follow(edit)
