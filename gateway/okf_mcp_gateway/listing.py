"""Pages of `resources/list`, joined from what the SDK wrote of each document before.

A page of a thousand documents takes the SDK as long as a hundred reads, and nobody else is answered
meanwhile; a publish changes a few of them. So the SDK writes those that it hasn't written yet, and
the others are put between them as they are.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from mcp.server.context import ServerRequestContext
from starlette.types import Message, Scope, Send

from okf_mcp_server.documents import Document
from okf_mcp_server.resources import Listed, listed

MAX_PAGES: Final = 32
"""Of how many pages, of all owners and versions, what the SDK wrote is kept: 0.5 KB a document."""

MAX_PAGE_BYTES: Final = 2 * 1024 * 1024
"""How long a page may be of which that is kept: a title may be long."""

MIN_DOCUMENTS: Final = 50
"""A shorter page is written as a whole."""

_SCOPE_KEY: Final = "okf.page"
_BEGIN: Final = '"resources":['
_LENGTH: Final = b"content-length"

Written: TypeAlias = Mapping[str, tuple[Listed, str]]
"""By URI: what was shown of a document, and the JSON that the SDK made of it."""

_JSON: Final = json.JSONDecoder()


class Listing:
    """What the SDK wrote of the documents of all owners; on the event loop alone."""

    def __init__(self, max_pages: int) -> None:
        self._max_pages = max_pages
        # By version and first document; that which was asked for last stands at the end.
        self._pages: OrderedDict[tuple[str, str], Written] = OrderedDict()

    def select(
        self, context: ServerRequestContext[Any, Any], documents: Sequence[Document]
    ) -> Sequence[Document]:
        """Return those documents of a page that the SDK has to write for this request."""
        page: Page | None = context.request.scope.get(_SCOPE_KEY) if context.request else None
        if page is None or len(documents) < MIN_DOCUMENTS or not self._max_pages:
            return documents
        return page.select(context.protocol_version, documents)

    def find(self, key: tuple[str, str]) -> Written:
        """Return what is kept of a page."""
        return self._pages.get(key, {})

    def keep(self, key: tuple[str, str], written: Written) -> None:
        """Keep a page, in place of an earlier one and of the one that is longest not asked for."""
        self._pages[key] = written
        self._pages.move_to_end(key)
        if len(self._pages) > self._max_pages:
            self._pages.popitem(last=False)


class Page:
    """Sends an answer on; a page of which the SDK wrote a part is made whole."""

    _part: "_Part | None" = None
    """Written by `select`: most answers are no page."""

    def __init__(self, listing: Listing, scope: Scope, send: Send) -> None:
        """Put itself into `scope`, where `Listing.select` finds it."""
        scope[_SCOPE_KEY] = self
        self._listing = listing
        self._send = send

    def select(self, version: str, documents: Sequence[Document]) -> Sequence[Document]:
        """Return those documents that the SDK has to write."""
        key = (version, documents[0].uri)
        kept = self._listing.find(key)
        shown = {document.uri: listed(document) for document in documents}
        known = {uri: kept[uri] for uri in shown if uri in kept and kept[uri][0] == shown[uri]}
        self._part = _Part(key, shown, known)
        return [document for document in documents if document.uri not in known]

    async def __call__(self, message: Message) -> None:
        """Take the next message of the answer."""
        part = self._part
        if part is None:
            await self._send(message)
        elif message["type"] == "http.response.start":
            part.start = message
        else:
            part.body += message.get("body", b"")
            if not message.get("more_body", False):
                page, body = part.make_whole()
                if len(body) <= MAX_PAGE_BYTES:
                    self._listing.keep(part.key, page)
                headers = [
                    (name, b"%d" % len(body) if name == _LENGTH else value)
                    for name, value in part.start["headers"]
                ]
                await self._send({**part.start, "headers": headers})
                await self._send({"type": "http.response.body", "body": body})


class _Part:
    """A page, and what is known of it; and then the SDK's answer, with the rest, as it comes by."""

    def __init__(self, key: tuple[str, str], shown: Mapping[str, Listed], known: Written) -> None:
        self.key = key
        self._shown = shown
        self._known = known
        self.start: Message = {}
        self.body = b""

    def make_whole(self) -> tuple[Written, bytes]:
        """Return all documents of the page as JSON, by URI, and the answer that holds them."""
        text = self.body.decode()
        begin = end = text.index(_BEGIN) + len(_BEGIN)
        page: dict[str, tuple[Listed, str]] = {}
        for uri, shown in self._shown.items():
            if (known := self._known.get(uri)) is None:
                start = end + (text[end] == ",")
                _, end = _JSON.raw_decode(text, start)
                known = shown, text[start:end]
            page[uri] = known
        joined = ",".join([written for _, written in page.values()])
        return page, (text[:begin] + joined + text[end:]).encode()
