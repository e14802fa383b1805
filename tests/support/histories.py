"""Many commits of a bare repository, made at once, for tests in which a push must cost nothing."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.repositories import git

_FIRST_COMMIT_EPOCH_SECONDS: Final = 1_750_000_000

Changes = Mapping[str, str | None]
"""By path: the new text of a file, or None where it is removed."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A commit to be made."""

    changes: Changes
    parent: int | None
    """Its place in the plan; None for a root, which begins with no file."""


def make_history(bare: Path, plan: Sequence[Planned]) -> list[str]:
    """Make the planned commits, which no ref names, and return their ids in order."""
    marks = bare / "marks"
    stream = b"".join(_commands(plan)) + b"reset refs/heads/planned\nfrom %s\n\n" % (b"0" * 40)
    git("fast-import", "--quiet", "--force", f"--export-marks={marks}", folder=bare, stdin=stream)
    ids = dict(line.split(" ") for line in marks.read_text().splitlines())
    marks.unlink()
    return [ids[f":{number + 1}"] for number in range(len(plan))]


def point(bare: Path, ref: str, commit: str) -> None:
    """Let a full ref name a commit from now on, as a push does, without a process."""
    path = bare / ref
    path.parent.mkdir(parents=True, exist_ok=True)
    moved = path.with_name(f"{path.name}.lock")
    moved.write_text(f"{commit}\n")
    moved.replace(path)


def document_text(body: str) -> str:
    """Return a document's text; its id is the first word of its file's name."""
    return f"---\nexport: true\ntype: Note\n---\n{body}\n"


def _commands(plan: Sequence[Planned]) -> Iterator[bytes]:
    """Yield the commands of git-fast-import(1)."""
    for number, commit in enumerate(plan):
        yield b"reset refs/heads/planned\n\n"
        yield b"commit refs/heads/planned\nmark :%d\n" % (number + 1)
        when = _FIRST_COMMIT_EPOCH_SECONDS + number
        yield b"committer A Writer <writer@example.com> %d +0000\n" % when
        yield _counted(f"Push {number}".encode())
        if commit.parent is not None:
            yield b"from :%d\n" % (commit.parent + 1)
        for path, text in commit.changes.items():
            if text is None:
                yield b"D %s\n" % os.fsencode(path)
            else:
                yield b"M 100644 inline %s\n" % os.fsencode(path) + _counted(text.encode())


def _counted(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)
