"""The documents that all servers serve alike, and the repositories that ours pulls them from."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from support.histories import Planned, make_history, point
from support.repositories import git

BODY_BYTES: Final = 4096
"""The size of what a read returns."""

MAIN: Final = "refs/heads/main"

BYSTANDERS: Final = 6
"""How many owners a registry has beside those that are asked."""

_WORDS: Final = (
    *("carrier", "event", "queue", "partner", "order", "stock", "route", "depot", "parcel"),
    *("label", "scan", "retry", "limit", "field", "owner", "team", "review", "deploy", "region"),
    *("rollback", "metric", "alert", "window", "batch", "price", "tax", "invoice"),
)
_WORDS_BYTES: Final = 99_991
_LINE_CHARACTERS: Final = 79


@dataclass(frozen=True, slots=True)
class Sample:
    """A document; all of one length have URIs of one length, and so have their answers."""

    number: int
    body: str
    """ASCII, so that characters are bytes; neither end is white space."""
    is_exported: bool = True

    @property
    def id(self) -> str:
        """What stands in its frontmatter."""
        return f"doc-{self.number:05}"

    @property
    def title(self) -> str:
        """The same."""
        return f"How we handle case {self.number:05} of the handbook"

    @property
    def description(self) -> str:
        """The same."""
        return f"What to do, whom to ask and what to write down when case {self.number:05} comes."

    @property
    def path(self) -> str:
        """Where it lies in its repository."""
        return f"handbook/{self.number % 50:02}/{self.id}.md"

    @property
    def block(self) -> str:
        """Its frontmatter without the fences."""
        return (
            f"type: Note\nexport: {'true' if self.is_exported else 'false'}\nid: {self.id}\n"
            f"title: {self.title}\ndescription: {self.description}\n"
            "tags: [handbook, operations]\nteam: logistics\nreviewed: 2026-05-01\n"
        )

    @property
    def text(self) -> str:
        """The whole file."""
        return f"---\n{self.block}---\n\n{self.body}\n"

    def uri(self, owner: str) -> str:
        """Return what it is read by."""
        return f"knowledge://{owner}/note/{self.id}"


def sample(
    number: int, *, body_bytes: int = BODY_BYTES, seed: int = 0, is_exported: bool = True
) -> Sample:
    """Return the document of a number, the same in each process; another `seed`, another body."""
    return Sample(number, _prose(body_bytes, number * 131 + seed * 9_973), is_exported)


def samples(
    count: int, *, body_bytes: int = BODY_BYTES, seed: int = 0, exported_percent: int = 100
) -> tuple[Sample, ...]:
    """Return so many documents, of which so many in a hundred are exported."""
    return tuple(
        sample(
            number, body_bytes=body_bytes, seed=seed, is_exported=number % 100 < exported_percent
        )
        for number in range(count)
    )


def _prose(size: int, begin: int) -> str:
    """Return words of exactly `size` characters; as JSON, all are equally long, too."""
    text = _words()[begin % _WORDS_BYTES :][: size - 2]
    lines = [text[at : at + _LINE_CHARACTERS] for at in range(0, len(text), _LINE_CHARACTERS)]
    return "\n".join(lines)[: size - 2].strip(" ").ljust(size - 2, "x") + "s."


@cache
def _words() -> str:
    """Return more than enough of them, so that a document may begin anywhere in the first half."""
    chosen = random.Random(1)  # noqa: S311 - no secret: the same words in each run
    return " ".join(chosen.choices(_WORDS, k=_WORDS_BYTES))


def make_bare(path: Path) -> Path:
    """Create an empty bare repository whose HEAD is `main`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = ("--quiet", "--bare", "--template=", "--initial-branch=main")
    git("init", *flags, str(path), folder=path.parent)
    return path


def make_commits(bare: Path, steps: Sequence[Mapping[str, str | None]]) -> list[str]:
    """Make commits, each on top of the one before, let `main` name the first; return their ids."""
    plan = [Planned(step, number - 1 if number else None) for number, step in enumerate(steps)]
    commits = make_history(bare, plan)
    point(bare, MAIN, commits[0])
    return commits


def files(documents: Sequence[Sample]) -> dict[str, str | None]:
    """Return the files of documents by path."""
    return {each.path: each.text for each in documents}


def other_files(count: int) -> Iterator[tuple[str, str]]:
    """Yield files that are no documents, as most of a repository is; many are equal."""
    for number in range(count):
        yield f"source/{number % 100:02}/{number:05}.txt", f"folder {number % 100}\n"


def registry(folder: Path, owners: Mapping[str, int]) -> str:
    """Make the repositories, and return the `servers.yaml` that names them and some more."""
    most = samples(max(owners.values()))
    urls: dict[str, str] = {}
    for owner, count in owners.items():
        bare = make_bare(folder / f"{owner}.git")
        make_commits(bare, [files(most[:count])])
        urls[owner] = bare.as_uri()
    smallest = urls[min(owners, key=lambda owner: owners[owner])]
    urls |= {f"bystander-{number}": smallest for number in range(BYSTANDERS)}
    return json.dumps({"owners": {owner: {"url": url} for owner, url in urls.items()}})
