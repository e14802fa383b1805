"""Folders of real Markdown, as repositories whose every file is a document.

Where the folders lie is said by `OKF_TEST_CORPORA`, else they are looked for in `shared/corpora`
beside the project. Where there are none, as many files are made up: tests need no folder.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from random import Random

from support.repositories import Repository

CORPORA = ("etcd-docs-3.6", "backlog-sample")
GENERATED_FILES = 100
SEED = 20260717

_FENCE = re.compile(rb"---[ \t]*\r?\n")
_BOM = b"\xef\xbb\xbf"
_HEADINGS = ("What it is", "Übersicht", "手順", "Why", "Limits & pitfalls", "Обзор")
_WORDS = (
    *("cluster", "member", "election", "lease", "Größe", "réplica"),
    *("журнал", "構成", "→", "`etcdctl`", "<b>"),
)


def find_corpora() -> Mapping[str, Path]:
    """Return the folders that are there, by name; none if they are not on this machine."""
    beside = Path(__file__).parents[3] / "shared" / "corpora"
    folder = Path(os.getenv("OKF_TEST_CORPORA") or beside)
    return {name: folder / name for name in CORPORA if (folder / name).is_dir()}


def read_corpus(folder: Path) -> dict[str, bytes]:
    """Return the Markdown files below a folder by their path in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*.md"))
        if path.is_file() and not path.is_symlink()
    }


def generate_corpus(files: int = GENERATED_FILES) -> dict[str, bytes]:
    """Return made-up files that are as odd as real ones; the same in every run."""
    random = Random(SEED)  # noqa: S311 - the same files in every run
    return dict(_generated_file(number, random) for number in range(files))


def opt_in(path: str, content: bytes) -> bytes:
    """Return a file with `export: true` and a `type` added to its frontmatter where it has none.

    The type is the folder's name, so that the many `_index.md` of a site differ in it. All other
    bytes stay as they are.
    """
    kind = str(PurePosixPath(path).parent).replace("/", " ").strip(".") or "Page"
    added = {b"export": b"true", b"type": f'"{kind}"'.encode()}
    bom, text = (_BOM, content[len(_BOM) :]) if content.startswith(_BOM) else (b"", content)
    opening = _FENCE.match(text)
    if opening is None:
        lines = b"".join(b"%s: %s\n" % pair for pair in added.items())
        return b"%s---\n%s---\n%s" % (bom, lines, text)
    end = b"\r\n" if opening[0].endswith(b"\r\n") else b"\n"
    block, rest = text[opening.end() :], opening[0]
    head = block.partition(b"\n---")[0]
    lines = b"".join(
        b"%s: %s%s" % (key, value, end)
        for key, value in added.items()
        if not re.search(rb"^%s:" % key, head, re.MULTILINE)
    )
    return b"%s%s%s%s" % (bom, rest, lines, block)


def publish_corpus(repository: Repository, files: Mapping[str, bytes]) -> str:
    """Commit and push a corpus, each file opted in, and return the commit id."""
    repository.fast_import({path: opt_in(path, content) for path, content in files.items()})
    repository.push()
    return repository.head


def _generated_file(number: int, random: Random) -> tuple[str, bytes]:
    folder = ("", "docs/", "docs/op guide/", "docs/learning/", "décisions/")[number % 5]
    path = f"{folder}doc-{number:03} - Page-{number}.md"
    end = "\r\n" if number % 7 == 0 else "\n"
    text = end.join(_generated_lines(number, random))
    return path, (_BOM if number % 11 == 0 else b"") + text.encode()


def _generated_lines(number: int, random: Random) -> Iterator[str]:
    if number % 4:
        yield "---"
        yield f"title: 'Page {number}: {random.choice(_HEADINGS)}'"
        yield f"weight: {number}"
        if number % 3:
            yield f"type: Kind {number % 3}"
        yield "---"
    for _ in range(random.randrange(1, 40)):
        yield f"## {random.choice(_HEADINGS)}"
        yield ""
        yield " ".join(random.choices(_WORDS, k=random.randrange(5, 60)))
        yield "```sh"
        yield "---"
        yield "```"
    yield ""
