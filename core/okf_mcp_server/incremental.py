"""The snapshot that follows another, made of that one and of what has changed.

A full load asks of every file what it is. This one copies the previous snapshot's collections,
which costs pointers only, and puts each changed file in or takes it out. What it makes equals what
a full load makes. Where a change concerns more than its own file (two documents want one URI, a
scan root becomes empty, a diagnostic comes or goes), all is put together anew: of verdicts that are
known, so that nothing is parsed for it either.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from okf_mcp_server.documents import MAX_DOCUMENT_BYTES, Document, DocumentError, Fault
from okf_mcp_server.snapshot import (
    Judging,
    Listing,
    Snapshot,
    Verdict,
    assemble,
    document_at,
    holds_any,
    in_order,
    judge_entries,
    judge_here,
    root_of,
)
from okf_mcp_server.tree import FileTree, TreeEntry

_path_text: Final[Callable[[Document], str]] = attrgetter("path_text")


class Change(NamedTuple):
    """A Markdown file that was changed, added or removed."""

    path: str
    before: TreeEntry | None
    """None if there was none."""
    after: TreeEntry | None
    """None if there is none any more."""


class Changes(NamedTuple):
    """All that changed under the scan roots from one commit to another."""

    changes: Sequence[Change]
    """One for each path."""
    listing: Listing
    """What is there after them."""


def find_listing(before: Listing, changes: Sequence[Change]) -> Listing | None:
    """Return what is there after the changes; None if they don't fit what was there before.

    They don't where a commit is malformed, and holds one path twice.
    """
    if len({change.path for change in changes}) < len(changes):
        return None
    files = dict(before.files)
    size = before.size
    for change in changes:
        if files.pop(change.path, None) != (change.before.key if change.before else None):
            return None
        size -= _counted_bytes(change.before)
        if change.after:
            size += _counted_bytes(change.after)
            files[change.path] = change.after.key
    return Listing(files, size)


def load_changes(  # noqa: PLR0913 - each is a part
    tree: FileTree,
    found: Changes,
    *,
    owner: str,
    commit: str,
    previous: Snapshot,
    judging: Judging = judge_here,
) -> Snapshot:
    """Load what changed since the `previous` snapshot of the same owner and roots.

    It equals what `load_docs` makes of the whole tree, which may raise the same.
    """
    changes, listing = found
    after = [change.after for change in changes if change.after]
    new_verdicts, parsed_files = judge_entries(tree, after, previous.verdicts, judging)
    verdicts = dict(previous.verdicts)
    gone = {change.before.key for change in changes if change.before}
    for key in gone.difference(listing.files.values()):
        del verdicts[key]
    verdicts.update(new_verdicts)
    edited = _edit(previous, changes, new_verdicts, listing, owner)
    if edited is None:
        return assemble(
            in_order(listing.files.items(), previous.roots),
            verdicts,
            owner=owner,
            roots=previous.roots,
            commit=commit,
            listing=listing,
            why_empty=tree.why_empty,
            parsed_files=parsed_files,
        )
    documents, starts = edited
    return Snapshot(
        commit=commit,
        roots=previous.roots,
        documents=documents,
        starts=starts,
        shadowed=previous.shadowed,
        diagnostics=previous.diagnostics,
        verdicts=verdicts,
        listing=listing,
        parsed_files=parsed_files,
    )


def _edit(
    previous: Snapshot,
    changes: Sequence[Change],
    verdicts: Mapping[str, Verdict],
    listing: Listing,
    owner: str,
) -> tuple[list[Document], list[int]] | None:
    """Return the documents after the changes, and where those of each root start.

    None if that isn't all that changes.
    """
    documents, starts = list(previous.documents), list(previous.starts)
    old: list[Document] = []
    new: list[Document] = []
    for path, before, after in changes:
        was = previous.verdicts[before.key] if before else None
        verdict = verdicts[after.key] if after else None
        if isinstance(verdict, Fault):
            return None  # a diagnostic comes
        try:
            document = document_at(path, verdict, owner) if verdict else None
        except DocumentError:
            return None
        served = _put(documents, starts, root_of(path, previous.roots), path, document)
        if (served is None) != (was is None):
            return None  # a diagnostic goes: of a fault, or of a page that was no document
        old += [served] if served else []
        new += [document] if document else []
    if _is_wanted_twice(previous, old, new) or _is_root_emptied(previous, changes, listing):
        return None
    return documents, starts


def _put(
    documents: list[Document], starts: list[int], root: int, path: str, document: Document | None
) -> Document | None:
    """Let a document, or none, be at a path of a root; return the one that was there."""
    end = starts[root + 1] if root + 1 < len(starts) else len(documents)
    index = bisect_left(documents, path, starts[root], end, key=_path_text)
    is_there = index < end and documents[index].path_text == path
    served = documents[index] if is_there else None
    documents[index : index + is_there] = [document] if document else []
    moved = (document is not None) - is_there
    for later in range(root + 1, len(starts)):
        starts[later] += moved
    return served


def _is_wanted_twice(previous: Snapshot, old: Sequence[Document], new: Sequence[Document]) -> bool:
    """Say whether two documents want one of the URIs that come or go."""
    gone = {document.uri for document in old}
    come = {document.uri for document in new}
    return (
        len(come) < len(new)
        or any(uri in previous.by_uri and uri not in gone for uri in come)
        or any(document.uri in gone for document in previous.shadowed)
    )


def _is_root_emptied(previous: Snapshot, changes: Sequence[Change], listing: Listing) -> bool:
    """Say whether a scan root may have lost its last file, or an empty one got its first."""
    if all(change.before and change.after for change in changes):
        return False
    if any(diagnostic.rule == "empty-root" for diagnostic in previous.diagnostics[:1]):
        return True  # such diagnostics come first
    return not all(holds_any(root, listing.files) for root in previous.roots)


def _counted_bytes(entry: TreeEntry | None) -> int:
    return entry.size if entry and entry.size <= MAX_DOCUMENT_BYTES else 0
