"""All documents of one owner at one commit, frozen.

`load_docs` turns a tree of files into a `Snapshot`. Given the previous snapshot, it reads only the
files whose content that one has not seen: one changed file of thousands costs one parse.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from threading import RLock
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar, cast

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

log = logging.getLogger(__name__)

Verdict: TypeAlias = Page | Fault | None
"""What a file's bytes are: an exported page, a fault, or nothing of ours."""

WHOLE_REPOSITORY: Final = (PurePosixPath("."),)
"""The scan roots of an owner that names none."""

OrderKey: TypeAlias = tuple[int, str]
"""Where a document stands in its snapshot: the index of its scan root, then its path (D11)."""


class Snapshot:
    """All documents of one owner at one commit; nothing in it ever changes."""

    def __init__(  # noqa: PLR0913 - each is a field
        self,
        *,
        commit: str | None,
        documents: Sequence[Document],
        order: Sequence[OrderKey],
        shadowed: Sequence[Document],
        diagnostics: Sequence[Diagnostic],
        verdicts: Mapping[str, Verdict],
        parsed_files: int,
    ) -> None:
        self.commit = commit
        """The full id of the commit; None if the files come from no commit."""
        self.documents = tuple(documents)
        """In served order."""
        self.order = tuple(order)
        """The key of each document, ascending."""
        self.shadowed = tuple(shadowed)
        """Documents that are not served, since one before them has their URI (D10)."""
        self.by_uri: Mapping[str, Document] = MappingProxyType(
            {document.uri: document for document in documents}
        )
        self.diagnostics = tuple(diagnostics)
        """In the order of their files."""
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

    def derive(self, build: Callable[["Snapshot"], ViewT]) -> ViewT:
        """Return `build(self)`, built once in the life of this snapshot.

        `build` must be one function object, not a new lambda each time, and small.
        """
        if build not in self._views:
            with self._views_lock:
                if build not in self._views:
                    self._views[build] = build(self)
        return cast("ViewT", self._views[build])


def load_docs(
    tree: FileTree,
    *,
    owner: str,
    roots: Sequence[PurePosixPath] = WHOLE_REPOSITORY,
    commit: str | None = None,
    previous: Snapshot | None = None,
) -> Snapshot:
    """Load the documents of a tree.

    `roots` are searched in their order, each relative to the tree's top level; `previous` is any
    earlier snapshot of the same owner. A file that can't be served is a diagnostic, never an error;
    what the tree itself raises (a lost repository) passes through.
    """
    files = _in_order(tree.entries(roots), roots)
    known: Mapping[str, Verdict] = previous.verdicts if previous else {}
    verdicts, parsed_files = _judge(tree, [entry for _, entry in files], known)
    documents: dict[str, Document] = {}
    order: list[OrderKey] = []
    shadowed: list[Document] = []
    diagnostics = [
        Fault("empty-root", tree.why_empty(root)).at(root)
        for root in roots
        if not _holds_any(root, files)
    ]
    for key, entry in files:
        verdict = verdicts[entry.key]
        if isinstance(verdict, Page):
            try:
                document = _document(verdict, entry.path, owner)
            except DocumentError as error:
                verdict = error.fault
            else:
                if first := documents.get(document.uri):
                    shadowed.append(document)
                    verdict = _duplicate_uri(document, first)
                else:
                    documents[document.uri] = document
                    order.append(key)
        if isinstance(verdict, Fault):
            diagnostics.append(verdict.at(entry.path))
    return Snapshot(
        commit=commit,
        documents=tuple(documents.values()),
        order=order,
        shadowed=shadowed,
        diagnostics=diagnostics,
        verdicts=MappingProxyType(verdicts),
        parsed_files=parsed_files,
    )


def _in_order(
    entries: Iterable[TreeEntry], roots: Sequence[PurePosixPath]
) -> list[tuple[OrderKey, TreeEntry]]:
    """Return the entries in served order; one that lies under two roots belongs to the first."""
    prefixes = [_prefix(root) for root in roots]
    keyed: dict[tuple[OrderKey, str], TreeEntry] = {}
    for entry in entries:
        path = str(entry.path)
        root = next(i for i, prefix in enumerate(prefixes) if f"{path}/".startswith(prefix))
        keyed[(root, path), entry.key] = entry  # a malformed commit may hold one path twice
    return [(place, entry) for (place, _), entry in sorted(keyed.items(), key=lambda kv: kv[0][0])]


def _holds_any(root: PurePosixPath, files: Sequence[tuple[OrderKey, TreeEntry]]) -> bool:
    """Say whether there is anything of a root: files, or the root itself as what can't be read."""
    prefix = _prefix(root)
    return any(path.startswith(prefix) or path == str(root) for (_, path), _ in files)


def _prefix(root: PurePosixPath) -> str:
    return "" if root == PurePosixPath(".") else f"{root}/"


def _judge(
    tree: FileTree, entries: Sequence[TreeEntry], known: Mapping[str, Verdict]
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
    for entry, raw in tree.read(unknown.values()):
        verdicts[entry.key] = _verdict(raw)
    return verdicts, len(unknown)


def _verdict(raw: bytes | OSError) -> Verdict:
    if isinstance(raw, OSError):
        reason = raw.strerror or type(raw).__name__
        return Fault("unreadable", f"can't be read: {reason}")
    try:
        return read_page(raw)
    except DocumentError as error:
        return error.fault
    except Exception:  # whatever one file does to us, all others are served (D4)
        log.exception("File not read")
        return Fault("unreadable", "internal error; the log has the rest")


def _document(page: Page, path: PurePosixPath, owner: str) -> Document:
    """Return the document that `page` is at `path`, if a document may lie there."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        fault = Fault("unreadable", "the file's name is not UTF-8; rename the file")
        raise DocumentError(fault) from None
    if path.is_absolute() or ".." in path.parts:
        fault = Fault("unreadable", "the file's path leads out of the repository")
        raise DocumentError(fault)
    return place(page, path, owner)


def _duplicate_uri(document: Document, first: Document) -> Fault:
    mend = "give one of the two another id"
    if "id" not in document.fields:
        mend = "add an id to one of the two: here it is the first word of the file's name"
    message = f"{document.uri} is already the URI of {printable(first.path)}; {mend}"
    return Fault("duplicate-uri", message, document.lines.get("id", 1))
