"""Real git repositories, built in a test's own folder.

Invariant: no git process here reads the configuration of the machine or of the user, asks a
question, or runs longer than its deadline. Dates are counted, not read: the same calls give
the same commit ids.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

GIT_DEADLINE_SECONDS = 60.0
_FIRST_COMMIT_EPOCH_SECONDS = 1_750_000_000

# Nothing may run on after the command that started it, and a test's disk needs no fsync.
_LOCAL_CONFIG = """\
[core]
	fsync = none
[gc]
	auto = 0
[maintenance]
	auto = false
[receive]
	autogc = false
"""


class GitError(Exception):
    """A git command ended with another status than 0.

    `stderr` is its text, `returncode` its status.
    """

    def __init__(self, arguments: tuple[str, ...], returncode: int, stderr: str) -> None:
        """Keep what was asked and how it ended."""
        super().__init__(f"git {' '.join(arguments)} ended with {returncode}: {stderr.strip()}")
        self.arguments = arguments
        self.returncode = returncode
        self.stderr = stderr


def git_environment() -> dict[str, str]:
    """Return an environment in which git knows only what a repository itself says."""
    return {
        "PATH": os.getenv("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }


def git(
    *arguments: str,
    folder: Path,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    deadline: float = GIT_DEADLINE_SECONDS,
) -> bytes:
    """Run one git command in `folder` and return its standard output.

    `environment` is added to the sealed one. Raises `GitError`, or
    `subprocess.TimeoutExpired` after `deadline` seconds.
    """
    ended = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**git_environment(), **(environment or {})},
        input=stdin,
        capture_output=True,
        timeout=deadline,
        check=False,
    )
    if ended.returncode != 0:
        raise GitError(arguments, ended.returncode, ended.stderr.decode(errors="replace"))
    return ended.stdout


class Repository:
    """A bare repository, `{folder}/{name}.git`, and a clone in which its commits are made.

    Written, removed and linked paths are staged by the next `commit`; nothing else in the
    clone is looked at. What is committed reaches the bare repository by `push`.
    """

    def __init__(self, folder: Path, name: str = "origin") -> None:
        """Create both, without a commit, in `folder` (created too)."""
        self.bare = folder / f"{name}.git"
        self.clone = folder / f"{name}.clone"
        self._away = folder / f"{name}.git.away"
        self._touched: set[str] = set()
        self._ticks = 0
        folder.mkdir(parents=True, exist_ok=True)
        for path, flags in ((self.bare, ["--bare"]), (self.clone, [])):
            git(
                *("init", "--quiet", "--template=", "--initial-branch=main", *flags, str(path)),
                folder=folder,
            )
        for config in (self.bare / "config", self.clone / ".git" / "config"):
            with config.open("a") as file:
                file.write(_LOCAL_CONFIG)

    @property
    def url(self) -> str:
        """The `file://` URL of the bare repository."""
        return self.bare.as_uri()

    @property
    def head(self) -> str:
        """The commit id that the clone stands on, pushed or not."""
        return self.git("rev-parse", "--verify", "HEAD^{commit}")

    def git(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run any git command in the clone and return its output without the last line end."""
        said = git(*arguments, folder=self.clone, stdin=stdin, environment=self._signature())
        return os.fsdecode(said).rstrip("\n")

    def write(self, path: str, content: str | bytes) -> None:
        """Write a file for the next commit; text as UTF-8, byte for byte."""
        target = self._make_room(path)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link for the next commit."""
        self._make_room(path).symlink_to(target)

    def write_tree(self, source: Path) -> None:
        """Copy all files and symbolic links below the folder `source` for the next commit."""
        for entry in sorted(source.rglob("*")):
            path = entry.relative_to(source).as_posix()
            if entry.is_symlink():
                self.link(path, str(entry.readlink()))
            elif entry.is_file():
                self.write(path, entry.read_bytes())

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it, for the next commit."""
        tracked = git("--literal-pathspecs", "ls-files", "-z", "--", path, folder=self.clone)
        gone = {os.fsdecode(name) for name in tracked.split(b"\0") if name}
        target = self.clone / path
        if not gone and not os.path.lexists(target):
            raise FileNotFoundError(path)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        self._touched |= gone

    def document(
        self,
        path: str,
        *,
        type: str = "Note",  # noqa: A002 - the field's own name
        id: str | None = None,  # noqa: A002 - the same
        title: str | None = None,
        body: str = "Some words.\n",
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """Write an exported document (`export: true`); what is None is left out.

        `fields` is added to the frontmatter, over the named ones. Values stand there as JSON,
        texts in quotes: use `write` for frontmatter that must stand as it is.
        """
        named = {"export": True, "type": type, "id": id, "title": title}
        frontmatter = {key: value for key, value in named.items() if value is not None}
        lines = (
            f"{key}: {json.dumps(value, ensure_ascii=False)}\n"
            for key, value in {**frontmatter, **(fields or {})}.items()
        )
        self.write(path, f"---\n{''.join(lines)}---\n{body}")

    def commit(self, message: str = "Change something") -> str:
        """Commit what was written and removed since the last commit, if only nothing.

        Returns the commit id.
        """
        if self._touched:
            paths = b"".join(os.fsencode(path) + b"\0" for path in sorted(self._touched))
            self.git("update-index", "--add", "--remove", "--replace", "-z", "--stdin", stdin=paths)
            self._touched.clear()
        self._ticks += 1
        self.git("commit", "--quiet", "--allow-empty", "--no-verify", "--message", message)
        return self.head

    def push(self, ref: str = "main", *, force: bool = False) -> None:
        """Push the clone's head to the branch `ref` of the bare repository."""
        flags = ["--force"] if force else []
        self.git("push", "--quiet", *flags, self.url, f"HEAD:refs/heads/{ref}")

    def publish(
        self, message: str = "Change something", *, ref: str = "main", force: bool = False
    ) -> str:
        """Commit, push, and return the commit id."""
        commit = self.commit(message)
        self.push(ref, force=force)
        return commit

    def publish_document(self, body: str) -> str:
        """Push a commit in which document `a`, `design/a.md`, has that body."""
        self.document("design/a.md", id="a", body=f"{body}\n")
        return self.publish()

    def tag(self, name: str, *, annotated: bool = False, force: bool = False) -> str:
        """Tag the clone's head and push the tag.

        Returns the id that the tag names: the commit's, or the tag object's if it is annotated.
        """
        flags = ["--force"] if force else []
        self._ticks += 1
        kind = ["--annotate", "--message", name] if annotated else []
        self.git("tag", *flags, *kind, name)
        self.git("push", "--quiet", *flags, self.url, f"refs/tags/{name}")
        return self.git("rev-parse", f"refs/tags/{name}")

    def delete_branch(self, name: str) -> None:
        """Delete a branch of the bare repository, be it the one that its HEAD names."""
        git("update-ref", "--no-deref", "-d", f"refs/heads/{name}", folder=self.bare)

    def reset(self, commit: str) -> None:
        """Move the clone back to `commit` and forget what was written since."""
        self._touched.clear()
        self.git("reset", "--quiet", "--hard", commit)

    def start_over(self) -> None:
        """Let the next commit be a root: the same files, without the history."""
        self.git("update-ref", "-d", "HEAD")

    def show(self, commit: str, path: str) -> bytes:
        """Return the bytes that `commit` holds at `path`."""
        return git("cat-file", "blob", f"{commit}:{path}", folder=self.clone)

    def fast_import(self, files: Mapping[str, bytes], message: str = "Import") -> str:
        """Commit many files at once, on top of the head, and return the commit id.

        They go into git's objects only: the clone's folder does not show them, and later commits
        keep them.
        """
        self._ticks += 1
        author = self._signature()
        who = f"{author['GIT_COMMITTER_NAME']} <{author['GIT_COMMITTER_EMAIL']}>"
        branch = self.git("symbolic-ref", "HEAD")
        parts = [
            f"commit {branch}\ncommitter {who} {self._now()}\n".encode(),
            _data(message.encode()),
        ]
        if self.git("for-each-ref", branch):
            parts.append(f"from {branch}^0\n".encode())
        for path, content in files.items():
            parts += [b"M 100644 inline " + _quoted(path) + b"\n", _data(content)]
        self.git("fast-import", "--quiet", stdin=b"".join(parts))
        self.git("read-tree", "HEAD")
        return self.head

    def take_away(self) -> None:
        """Let the bare repository vanish from its URL."""
        self.bare.rename(self._away)

    def bring_back(self) -> None:
        """Undo `take_away`."""
        self._away.rename(self.bare)

    def _make_room(self, path: str) -> Path:
        target = self.clone / path
        if target.is_symlink() or target.is_file():
            target.unlink()
        elif target.is_dir():
            self.remove(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._touched.add(path)
        return target

    def _now(self) -> str:
        return f"{_FIRST_COMMIT_EPOCH_SECONDS + self._ticks} +0000"

    def _signature(self) -> dict[str, str]:
        return {
            f"GIT_{role}_{part}": value
            for role in ("AUTHOR", "COMMITTER")
            for part, value in (
                ("NAME", "A Writer"),
                ("EMAIL", "writer@example.com"),
                ("DATE", self._now()),
            )
        }


def lose_object(folder: Path, name: str) -> None:
    """Take one object away from a bare repository, whose packs become loose objects by that."""
    for pack in list(folder.glob("objects/pack/*.pack")):
        away = pack.replace(folder / pack.name)
        pack.with_suffix(".idx").unlink()
        git("unpack-objects", "-q", folder=folder, stdin=away.read_bytes())
        away.unlink()
    (folder / "objects" / name[:2] / name[2:]).unlink()


class RepositoryFactory(Protocol):
    """The fixture `new_repository`: a repository by name, in the test's own folder."""

    def __call__(self, name: str = "origin") -> Repository:
        """Create it, without a commit."""
        ...


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)


def _quoted(path: str) -> bytes:
    """Quote a path as git-fast-import(1) wants it (C style)."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return b'"' + os.fsencode(escaped) + b'"'
