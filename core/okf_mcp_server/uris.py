"""The URI of a document: how it is written, and which spellings mean the same (D7)."""

import re
from typing import Final
from urllib.parse import quote, unquote

_PCHAR: Final = "-._~!$&'()*+,;=:@"
"""What RFC 3986 allows in a path segment as it is, beyond letters and digits."""

_URI: Final = re.compile(r"(?i:knowledge)://([^/?#]*)/([^/?#]*)/([^/?#]*)")
_OWNER: Final = re.compile(r"(?i:knowledge)://([^/?#]*)")
_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


def document_uri(owner: str, type_slug: str, document_id: str) -> str:
    """Return the URI of a document, ASCII."""
    return f"knowledge://{'/'.join(map(encode_segment, (owner, type_slug, document_id)))}"


def encode_segment(text: str) -> str:
    """Return a text as one path segment: what is not *pchar* percent-encoded as UTF-8."""
    return quote(text, safe=_PCHAR)


def normal_uri(owner: str, uri: str) -> str | None:
    """Return a URI as `document_uri` writes it; None if it can't be one of this owner's.

    Each segment is percent-decoded and encoded again; scheme and owner may stand in any case.
    Clients encode more than is needed when they expand a template (RFC 6570), and lower a host.
    """
    found = _URI.fullmatch(uri)
    if found is None or _BAD_PERCENT.search(uri):
        return None
    try:
        _, type_slug, document_id = (unquote(part, errors="strict") for part in found.groups())
        return document_uri(owner, type_slug, document_id) if names_owner(owner, uri) else None
    except UnicodeError:  # not UTF-8, or half a character
        return None


def names_owner(owner: str, uri: str) -> bool:
    """Say whether a URI is, or would be if it were whole, one of this owner's documents."""
    found = _OWNER.match(uri)
    return found is not None and unquote(found[1]).casefold() == owner.casefold()
