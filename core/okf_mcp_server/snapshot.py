"""All documents of one owner at one commit, frozen.

`load_docs` turns a tree of files into a `Snapshot`. Given the previous snapshot, it reads only the
files whose content that one has not seen: one changed file of thousands costs one parse.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from pathlib import PurePosixPath
from threading import RLock
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from okf_mcp_server.documents import (
    MAX_DOCUMENT_BYTES,
    Diagnostic,
    Document,
    DocumentError,
    Fault,
    Page,
    place,
    printable,
    read_page,
    too_large,
)
from okf_mcp_server.tree import FileTree, TreeEntry

ViewT = TypeVar("ViewT")

_path_text: Final[Callable[[Document], str]] = attrgetter("path_text")

log = logging.getLogger(__name__)

Verdict: TypeAlias = Page | Fault | None
"""What a file's bytes are: an exported page, a fault, or nothing of ours."""

WHOLE_REPOSITORY: Final = (PurePosixPath("."),)
"""The scan roots of an owner that names none."""

Contents: TypeAlias = Iterator[tuple[TreeEntry, bytes | OSError]]
"""Files' bytes, or why they can't be had, as a tree yields them."""

Judging: TypeAlias = Callable[[Contents, int], Iterable[tuple[TreeEntry, Verdict]]]
"""Judges contents, of which there are so many; what the tree raises meanwhile passes through."""

UNEXPECTED: Final = Fault("unreadable", "internal error; the log has the rest")
"""The verdict on a file that we failed at, and nobody knows why."""

OrderKey: TypeAlias = tuple[int, str]
"""Where a document stands in its snapshot: the index of its scan root, then its path (D11)."""


Files: TypeAlias = Sequence[Sequence[tuple[str, str]]]
"""The files of each scan root, in served order: path, and key of the content."""


class Listing(NamedTuple):
    """All Markdown files of a commit that lie under the scan roots, documents or not."""

    files: Mapping[str, str]
    """By path, the key of the content. A plain dictionary, as `verdicts` is: both are copied for
    the next snapshot, and a proxy of one takes ten times as long to copy."""
    size: int
    """How many bytes they are together, without those that are too large to be documents."""


class Snapshot:
    """All documents of one owner at one commit; nothing in it ever changes."""

    def __init__(  # noqa: PLR0913 - each is a field
        self,
        *,
        commit: str | None,
        roots: Sequence[PurePosixPath],
        documents: Sequence[Document],
        starts: Sequence[int],
        shadowed: Sequence[Document],
        diagnostics: Sequence[Diagnostic],
        verdicts: Mapping[str, Verdict],
        listing: Listing | None,
        parsed_files: int,
    ) -> None:
        self.commit = commit
        """The full id of the commit; None if the files come from no commit."""
        self.roots = tuple(roots)
        """The scan roots, in their order."""
        self.documents = tuple(documents)
        """In served order."""
        self.starts = tuple(starts)
        """For each root, the index of the first document that is its own, or would be."""
        self.shadowed = tuple(shadowed)
        """Documents that are not served, since one before them has their URI (D10)."""
        self.by_uri: Mapping[str, Document] = MappingProxyType(
            {document.uri: document for document in documents}
        )
        self.diagnostics = tuple(diagnostics)
        """In the order of their files."""
        self.listing = listing
        """What was loaded; None where that is no basis for the next load."""
        self.parsed_files = parsed_files
        """How many files were parsed to make this snapshot; the rest came from the previous one."""
        self._verdicts = verdicts
        # Written under the lock by the first caller of each `derive`, then only read. The lock is
        # reentrant, for one view may be built of another.
        self._views: dict[Callable[[Snapshot], Any], Any] = {}
        self._views_lock = RLock()

    @property
    def verdicts(self) -> Mapping[str, Verdict]:
        """By content key, for the load of the next snapshot."""
        return self._verdicts

    def key_at(self, index: int) -> OrderKey:
        """Return where the document of an index stands."""
        return bisect_right(self.starts, index) - 1, self.documents[index].path_text

    def index_after(self, key: OrderKey) -> int:
        """Return the index of the first document that stands after a place, taken or not."""
        root, path = key
        if root >= len(self.starts):
            return len(self.documents)
        end = self.starts[root + 1] if root + 1 < len(self.starts) else len(self.documents)
        return bisect_right(self.documents, path, self.starts[root], end, key=_path_text)

    def derive(self, build: Callable[["Snapshot"], ViewT]) -> ViewT:
        """Return `build(self)`, built once in the life of this snapshot.

        `build` must be one function object, not a new lambda each time, and small.
        """
        if build not in self._views:
            with self._views_lock:
                if build not in self._views:
                    self._views[build] = build(self)
        return cast("ViewT", self._views[build])


def judge_here(contents: Contents, _: int) -> Iterator[tuple[TreeEntry, Verdict]]:
    """Judge contents in this thread, one after the other."""
    for entry, raw in contents:
        yield entry, judge(raw)


def load_docs(  # noqa: PLR0913 - each is a part
    tree: FileTree,
    *,
    owner: str,
    roots: Sequence[PurePosixPath] = WHOLE_REPOSITORY,
    commit: str | None = None,
    previous: Snapshot | None = None,
    judging: Judging = judge_here,
) -> Snapshot:
    """Load the documents of a tree.

    `roots` are searched in their order, each relative to the tree's top level; `previous` is any
    earlier snapshot of the same owner; `judging` judges what that one has not seen. A file that
    can't be served is a diagnostic, never an error; what the tree itself raises (a lost repository)
    passes through.
    """
    entries = list(tree.entries(roots))
    known: Mapping[str, Verdict] = previous.verdicts if previous else {}
    verdicts, parsed_files = judge_entries(tree, entries, known, judging)
    files = in_order(((entry.path, entry.key) for entry in entries), roots)
    return assemble(
        files,
        verdicts,
        owner=owner,
        roots=roots,
        commit=commit,
        listing=_listing(entries, files) if commit else None,
        why_empty=tree.why_empty,
        parsed_files=parsed_files,
    )


def assemble(  # noqa: PLR0913 - each is a part
    files: Files,
    verdicts: Mapping[str, Verdict],
    *,
    owner: str,
    roots: Sequence[PurePosixPath],
    commit: str | None,
    listing: Listing | None,
    why_empty: Callable[[PurePosixPath], str],
    parsed_files: int,
) -> Snapshot:
    """Make a snapshot of files whose contents have been judged: documents, order, diagnostics."""
    documents: dict[str, Document] = {}
    starts: list[int] = []
    shadowed: list[Document] = []
    diagnostics = [
        Fault("empty-root", why_empty(root)).at(root)
        for root in roots
        if not holds_any(root, (path for group in files for path, _ in group))
    ]
    for group in files:
        starts.append(len(documents))
        for path, key in group:
            verdict = verdicts[key]
            if isinstance(verdict, Page):
                try:
                    document = document_at(path, verdict, owner)
                except DocumentError as error:
                    verdict = error.fault
                else:
                    first = documents.setdefault(document.uri, document)
                    if first is document:
                        continue
                    shadowed.append(document)
                    verdict = _duplicate_uri(document, first)
            if verdict is not None:
                diagnostics.append(verdict.at(path))
    return Snapshot(
        commit=commit,
        roots=roots,
        documents=tuple(documents.values()),
        starts=starts,
        shadowed=shadowed,
        diagnostics=diagnostics,
        verdicts=verdicts,
        listing=listing,
        parsed_files=parsed_files,
    )


def judge_entries(
    tree: FileTree,
    entries: Iterable[TreeEntry],
    known: Mapping[str, Verdict],
    judging: Judging,
) -> tuple[dict[str, Verdict], int]:
    """Return the verdict on each content by its key, and how many files were parsed for it.

    Only content that is not `known` is read, and each content once.
    """
    verdicts: dict[str, Verdict] = {}
    unknown: dict[str, TreeEntry] = {}
    for entry in entries:
        if entry.key in known:
            verdicts[entry.key] = known[entry.key]
        elif entry.size > MAX_DOCUMENT_BYTES:
            verdicts[entry.key] = too_large(entry.size)
        else:
            unknown[entry.key] = entry
    for entry, verdict in judging(tree.read(unknown.values()), len(unknown)):
        verdicts[entry.key] = verdict
    return verdicts, len(unknown)


def judge(raw: bytes | OSError) -> Verdict:
    """Say what a file's bytes are, whoever's they are and wherever they lie."""
    if isinstance(raw, OSError):
        reason = raw.strerror or type(raw).__name__
        return Fault("unreadable", f"can't be read: {reason}")
    try:
        return read_page(raw)
    except DocumentError as error:
        return error.fault
    except Exception:  # whatever one file does to us, all others are served (D4)
        log.exception("File not read")
        return UNEXPECTED


def document_at(path: str, page: Page, owner: str) -> Document:
    """Return the document that `page` is at `path`.

    Raises `DocumentError` if no document may lie there.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        fault = Fault("unreadable", "the file's name is not UTF-8; rename the file")
        raise DocumentError(fault) from None
    if path.startswith("/") or ".." in path.split("/"):
        fault = Fault("unreadable", "the file's path leads out of the repository")
        raise DocumentError(fault)
    return place(page, path, owner)


def holds_any(root: PurePosixPath, paths: Iterable[str]) -> bool:
    """Say whether there is anything of a root: files, or the root itself as what can't be read."""
    name, prefix = str(root), _prefix(root)
    return any(path.startswith(prefix) or path == name for path in paths)


def root_of(path: str, roots: Sequence[PurePosixPath]) -> int:
    """Return the index of the root that a file belongs to: the first that it lies under."""
    return _first_of(path, list(map(_prefix, roots)))


def in_order(files: Iterable[tuple[str, str]], roots: Sequence[PurePosixPath]) -> Files:
    """Return files in served order; one that lies under two roots belongs to the first."""
    # A dictionary, as a file may be listed for each of its roots; keyed by the content as well, as
    # a malformed commit may hold one path twice.
    prefixes = list(map(_prefix, roots))
    groups: list[dict[tuple[str, str], None]] = [{} for _ in roots]
    for file in files:
        groups[_first_of(file[0], prefixes)][file] = None
    return [sorted(group, key=itemgetter(0)) for group in groups]


def _prefix(root: PurePosixPath) -> str:
    return "" if root == PurePosixPath(".") else f"{root}/"


def _first_of(path: str, prefixes: Sequence[str]) -> int:
    """Return the index of the first prefix that a path has, or is but for the slash."""
    return next(i for i, prefix in enumerate(prefixes) if f"{path}/".startswith(prefix))


def _listing(entries: Sequence[TreeEntry], files: Files) -> Listing | None:
    """Return what was listed; None for a malformed commit, which holds one path twice."""
    keys = {path: key for group in files for path, key in group}
    if len(keys) < sum(map(len, files)):
        return None
    sizes = {entry.path: entry.size for entry in entries if entry.size <= MAX_DOCUMENT_BYTES}
    return Listing(keys, sum(sizes.values()))


def _duplicate_uri(document: Document, first: Document) -> Fault:
    mend = "give one of the two another id"
    if "id" not in document.fields:
        mend = "add an id to one of the two: here it is the first word of the file's name"
    message = f"{document.uri} is already the URI of {printable(first.path_text)}; {mend}"
    return Fault("duplicate-uri", message, document.lines.get("id", 1))
