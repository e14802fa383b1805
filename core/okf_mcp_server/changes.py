"""Change events: what a publish changed, told to the clients that listen (`subscriptions/listen`).

An event says no more than "ask again", so an owner keeps no history of them: what is still to be
told is a set, however fast one publish follows another.
"""

from collections import Counter
from collections.abc import Iterable, Set
from typing import Any, Final

import mcp_types as types
from anyio import Event
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated, ServerEvent

from okf_mcp_server.resources import find_document
from okf_mcp_server.snapshot import Snapshot

MAX_STREAMS: Final = 1024
"""How many streams of one owner may be open at a time."""

MAX_URIS: Final = 1000
"""How many resources one stream may name.

The SDK ends a stream that has 1,024 events unread; so one publish, whatever it changed, ends none.
"""


class Changes:
    """The open streams of one owner, and what they are still to be told."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._bus = InMemorySubscriptionBus()
        self._streams = ListenHandler(self._bus, max_subscriptions=MAX_STREAMS)
        # All written on the event loop: the first by each stream, when it begins and ends; the
        # second by `publish` and `run`; the last by `close`, once.
        self._wanted: Counter[ServerEvent] = Counter()
        self._untold: dict[ServerEvent, None] = {}
        self._wake = Event()
        self._is_closed = False

    @property
    def wanted(self) -> Set[ServerEvent]:
        """What the open streams asked for, all together."""
        return self._wanted.keys()

    async def listen(
        self,
        context: ServerRequestContext[Any, Any],
        params: types.SubscriptionsListenRequestParams,
    ) -> types.SubscriptionsListenResult:
        """Be one stream, until its client goes or `close` ends it.

        Raises `MCPError` for one that names too many resources (invalid params), that is one too
        many, or that comes after `close` (internal error).
        """
        if self._is_closed:
            raise MCPError(types.INTERNAL_ERROR, "The server is stopping")
        asked = params.notifications
        uris = dict.fromkeys(asked.resource_subscriptions or ())
        wanted: list[ServerEvent] = [ResourceUpdated(uri) for uri in uris]
        if len(wanted) > MAX_URIS:
            message = f"A stream takes {MAX_URIS} resources at most; open another for the rest"
            raise MCPError(types.INVALID_PARAMS, message)
        if asked.resources_list_changed:
            wanted.append(ResourcesListChanged())
        self._wanted.update(wanted)
        try:
            return await self._streams(context, params)
        finally:
            self._forget(wanted)

    def publish(self, before: Snapshot | None, after: Snapshot) -> None:
        """Note what changed; to be called once `after` is served, since clients ask again then."""
        self._untold |= dict.fromkeys(find_changes(before, after, self._owner, self.wanted))
        self._wake.set()

    async def run(self) -> None:
        """Tell the streams what `publish` notes: a task of its own, as many may have to be told."""
        while True:
            await self._wake.wait()
            self._wake = Event()
            while self._untold:
                event = next(iter(self._untold))
                del self._untold[event]
                await self._bus.publish(event)

    def close(self) -> None:
        """End all streams, each with its result, and let none begin; returns at once."""
        self._is_closed = True
        self._streams.close()

    def _forget(self, wanted: Iterable[ServerEvent]) -> None:
        self._wanted.subtract(wanted)
        for event in wanted:
            if not self._wanted[event]:
                del self._wanted[event]


def find_changes(
    before: Snapshot | None, after: Snapshot, owner: str, wanted: Iterable[ServerEvent]
) -> list[ServerEvent]:
    """Return those of the `wanted` events that happen when `after` is served instead of `before`.

    The list changes with what a client sees of it, order included, but not with contents: a
    resource does, and when it comes or goes. What nobody wants is not looked at.
    """
    return [event for event in wanted if _happens(event, before, after, owner)]


def _happens(event: ServerEvent, before: Snapshot | None, after: Snapshot, owner: str) -> bool:
    match event:
        case ResourceUpdated(uri=uri):
            return _content(before, owner, uri) != _content(after, owner, uri)
        case ResourcesListChanged():
            return before is None or not _is_listed_alike(before, after)
        case _:
            return False


def _content(snapshot: Snapshot | None, owner: str, uri: str) -> str | None:
    """Return the hash of what is read at `uri`; None if there is nothing."""
    document = find_document(snapshot, owner, uri) if snapshot else None
    return document and document.content_hash


def _is_listed_alike(before: Snapshot, after: Snapshot) -> bool:
    """Whether a client sees one list; no copies are made, as there may be many documents."""
    return len(before.documents) == len(after.documents) and all(
        one.uri == other.uri and one.title == other.title and one.description == other.description
        for one, other in zip(before.documents, after.documents, strict=True)
    )
