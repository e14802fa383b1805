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

    def __init__(self, listing: Listing, scope: Scope, send: Send) -> None:
        """Put itself into `scope`, where `Listing.select` finds it."""
        scope[_SCOPE_KEY] = self
        self._listing = listing
        self._send = send
        # Written by `select`, and then as the answer comes by.
        self._key: tuple[str, str] | None = None
        self._documents: Sequence[tuple[str, Listed]] = ()
        self._written: Written = {}
        self._start: Message = {}
        self._body = b""

    def select(self, version: str, documents: Sequence[Document]) -> Sequence[Document]:
        """Return those documents that the SDK has to write."""
        self._key = (version, documents[0].uri)
        self._documents = [(document.uri, listed(document)) for document in documents]
        kept = self._listing.find(self._key)
        nothing = (None, "")
        self._written = {
            uri: kept[uri] for uri, shown in self._documents if kept.get(uri, nothing)[0] == shown
        }
        return [document for document in documents if document.uri not in self._written]

    async def __call__(self, message: Message) -> None:
        """Take the next message of the answer."""
        if self._key is None:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._start = message
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                body = self._make_whole(self._key, self._body.decode()).encode()
                headers = [
                    (name, b"%d" % len(body) if name == _LENGTH else value)
                    for name, value in self._start["headers"]
                ]
                await self._send({**self._start, "headers": headers})
                await self._send({"type": "http.response.body", "body": body})

    def _make_whole(self, key: tuple[str, str], text: str) -> str:
        """Return the answer with all documents of the page, and keep what is new in it."""
        begin = end = text.index(_BEGIN) + len(_BEGIN)
        page = dict[str, tuple[Listed, str]]()
        for uri, shown in self._documents:
            if (known := self._written.get(uri)) is None:
                start = end + (text[end] == ",")
                _, end = _JSON.raw_decode(text, start)
                known = shown, text[start:end]
            page[uri] = known
        self._listing.keep(key, page)
        return text[:begin] + ",".join([json_text for _, json_text in page.values()]) + text[end:]
