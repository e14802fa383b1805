"""Change events: what a publish changed, told to the clients that listen (`subscriptions/listen`).

An event says no more than "ask again", so an owner keeps no history of them: what is still to be
told is a set, however fast one publish follows another.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Set
from typing import Any, Final

import mcp_types as types
from anyio import Event
from anyio.lowlevel import checkpoint
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated, ServerEvent

from okf_mcp_server.documents import MAX_URI_CHARACTERS
from okf_mcp_server.snapshot import Snapshot
from okf_mcp_server.uris import normal_uri

MAX_STREAMS: Final = 1024
"""How many streams of one owner may be open at a time."""

_LONG_URIS: Final = 64
"""How many of the longest URIs one stream may name: it keeps them for its whole life."""

MAX_URIS: Final = 1000
"""How many resources one stream may name.

The SDK ends a stream that has 1,024 events unread; so one publish, whatever it changed, ends none.
"""

_TURNS: Final = 16
"""How often the streams may send before the next event comes: one that falls behind is ended."""


class Changes:
    """The open streams of one owner, and what they are still to be told."""

    def __init__(self, owner: str, *, has_room: Callable[[], bool] = lambda: True) -> None:
        """`has_room` says whether one more may begin, of any owner."""
        self._owner = owner
        self._has_room = has_room
        self.open_streams = 0
        """How many run; written by each stream, on the event loop."""
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

        A resource is acknowledged, and told, under the document's own URI. What never happens here
        is not acknowledged: changes of tools and prompts, and resources of others. Raises
        `MCPError` for a stream that names too many resources (invalid params), that is one too
        many, or that comes after `close` (internal error).
        """
        if self._is_closed:
            raise MCPError(types.INTERNAL_ERROR, "The server is stopping")
        if not self._has_room():
            raise MCPError(types.INTERNAL_ERROR, "Too many streams are open")
        asked = params.notifications
        named = asked.resource_subscriptions or ()
        uris: dict[str, None] = {}
        if len(named) <= MAX_URIS:
            uris = dict.fromkeys(filter(None, map(self._own_uri, named)))
        if len(named) > MAX_URIS or sum(map(len, uris)) > MAX_URI_CHARACTERS * _LONG_URIS:
            message = (
                f"A stream takes {MAX_URIS} resources at most, and {_LONG_URIS} long ones; "
                "open another for the rest"
            )
            raise MCPError(types.INVALID_PARAMS, message)
        wanted: list[ServerEvent] = [ResourceUpdated(uri) for uri in uris]
        if asked.resources_list_changed:
            wanted.append(ResourcesListChanged())
        accepted = types.SubscriptionFilter(
            resources_list_changed=asked.resources_list_changed, resource_subscriptions=list(uris)
        )
        self._wanted.update(wanted)
        self.open_streams += 1
        try:
            return await self._streams(
                context, params.model_copy(update={"notifications": accepted})
            )
        finally:
            self.open_streams -= 1
            self._forget(wanted)

    def publish(self, before: Snapshot | None, after: Snapshot) -> None:
        """Note what changed; to be called once `after` is served, since clients ask again then."""
        self._untold |= dict.fromkeys(find_changes(before, after, self.wanted))
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
                for _ in range(_TURNS):
                    await checkpoint()

    def close(self) -> None:
        """End all streams, each with its result, and let none begin; returns at once."""
        self._is_closed = True
        self._streams.close()

    def _own_uri(self, uri: str) -> str | None:
        """Return the document's own URI; None for what can be no document of this owner."""
        own = normal_uri(self._owner, uri) if len(uri) <= MAX_URI_CHARACTERS else None
        return own if own is not None and len(own) <= MAX_URI_CHARACTERS else None

    def _forget(self, wanted: Iterable[ServerEvent]) -> None:
        self._wanted.subtract(wanted)
        for event in wanted:
            if not self._wanted[event]:
                del self._wanted[event]


def find_changes(
    before: Snapshot | None, after: Snapshot, wanted: Iterable[ServerEvent]
) -> list[ServerEvent]:
    """Return those of the `wanted` events that happen when `after` is served instead of `before`.

    The list changes with what a client sees of it, order included, but not with contents: a
    resource does, and when it comes or goes. What nobody wants is not looked at.
    """
    return [event for event in wanted if _happens(event, before, after)]


def _happens(event: ServerEvent, before: Snapshot | None, after: Snapshot) -> bool:
    if isinstance(event, ResourceUpdated):
        return _content(before, event.uri) != _content(after, event.uri)
    return before is None or not _is_listed_alike(before, after)


def _content(snapshot: Snapshot | None, uri: str) -> str | None:
    """Return the hash of what is read at `uri`; None if there is nothing."""
    document = snapshot.by_uri.get(uri) if snapshot else None
    return document and document.content_hash


def _is_listed_alike(before: Snapshot, after: Snapshot) -> bool:
    """Whether a client sees one list; no copies are made, as there may be many documents."""
    return len(before.documents) == len(after.documents) and all(
        one is other
        or (
            one.uri == other.uri
            and one.title == other.title
            and one.description == other.description
        )
        for one, other in zip(before.documents, after.documents, strict=True)
    )
