"""The snapshot of a copy, in a file beside its objects: for a start that parses nothing (P1).

The file is a shortcut and no more. It counts if it is of the very commit, source and scan roots,
was written by this very version, and bears the checksum that only who knows the north token makes.
Anything odd about it means that the commit is parsed again.
"""

import hmac
import json
import logging
import sys
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.regular_file import read_regular_file
from okf_mcp_gateway.snapshot_bytes import SnapshotBytesError, decode, encode
from okf_mcp_server.snapshot import Snapshot

if TYPE_CHECKING:
    from okf_mcp_server.yaml_text import Text

NAME: Final = "okf.snapshot"
"""The file, in the folder of the copy."""

MAX_BYTES: Final = 256 * 1024 * 1024
"""How large one may be: more than that is neither written nor read."""

MAX_EXPANDED_CHARACTERS: Final = 8 * 1024 * 1024
"""How much lists and mappings of frontmatter may hold in it, each alias as all it stands for."""

_FORMAT: Final = 1
_DIGEST: Final = "sha256"
"""With a key: where the processor knows it, it takes half the time of blake2b."""
_DIGEST_BYTES: Final = 32
_PURPOSE: Final = b"okf-mcp-gateway snapshot file"

log = logging.getLogger(__name__)


def checksum_key(token: str) -> bytes:
    """Return the key of the checksums that a gateway with this north token makes."""
    return hmac.digest(token.encode(), _PURPOSE, _DIGEST)


class SnapshotFile:
    """The snapshot file of one owner, in the folder of its copy."""

    def __init__(self, config: OwnerConfig, key: bytes) -> None:
        """`key` is that of the checksums."""
        self._config = config
        self._key = key

    def size(self, folder: Path) -> int | None:
        """Return how large the file in the folder is; None if there is none."""
        try:
            return (folder / NAME).lstat().st_size
        except OSError:
            return None

    def read(self, folder: Path, commit: str) -> Snapshot | None:
        """Return the snapshot of the commit that the file in the folder holds.

        None if there is no such file, or if anything about it is odd.
        """
        try:
            return self._open(read_regular_file(folder / NAME, MAX_BYTES), commit)
        except FileNotFoundError:
            return None
        except (SnapshotBytesError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            log.info("Snapshot file not used: owner=%s reason=%s", self._config.name, reason)
            return None

    def write(self, folder: Path, snapshot: Snapshot) -> None:
        """Put the snapshot into the folder's file, whole or not at all.

        One that is too large isn't kept. Raises `OSError`; the file is then as it was.
        """
        if snapshot.commit is None or _least_bytes(snapshot) > MAX_BYTES:
            return
        if _expanded_characters(snapshot) > MAX_EXPANDED_CHARACTERS:
            return
        header, body = self._header(snapshot.commit), encode(snapshot)
        if len(header) + _DIGEST_BYTES + len(body) > MAX_BYTES:
            return
        # Always one name: what those leave that are killed here doesn't pile up.
        written = folder / f"tmp_{NAME}"
        written.unlink(missing_ok=True)
        try:
            with written.open("xb") as file:
                file.writelines((header, self._checksum(header, body), body))
            written.replace(folder / NAME)
        except OSError:
            with suppress(OSError):
                written.unlink()  # a full disk needs the room
            raise

    def _open(self, raw: bytes, commit: str) -> Snapshot:
        """Return what the bytes hold; raises `SnapshotBytesError` if they aren't ours."""
        header = self._header(commit)
        if not raw.startswith(header):
            raise SnapshotBytesError("of another commit, source, version, or set of scan roots")
        start = len(header) + _DIGEST_BYTES
        checksum = self._checksum(header, memoryview(raw)[start:])
        if not hmac.compare_digest(checksum, raw[len(header) : start]):
            raise SnapshotBytesError("wrong checksum")
        return decode(raw, start)

    def _header(self, commit: str) -> bytes:
        """Return the line that says what the file is of, and what made it."""
        config = self._config
        source = [config.name, config.url, config.ref, [str(root) for root in config.roots]]
        return json.dumps([*_maker(), *source, commit]).encode() + b"\n"

    def _checksum(self, header: bytes, body: bytes | memoryview) -> bytes:
        checksum = hmac.new(self._key, header, _DIGEST)
        checksum.update(body)
        return checksum.digest()


@cache
def _maker() -> tuple[str | int, ...]:
    """Return what the content depends on beside the files: slugs on Unicode, numbers on us."""
    return (
        f"okf-mcp-gateway snapshot {_FORMAT}",
        version("okf-mcp-server"),
        unicodedata.unidata_version,
        sys.byteorder,
    )


def _least_bytes(snapshot: Snapshot) -> int:
    return sum(document.size for document in snapshot.documents)


def _expanded_characters(snapshot: Snapshot) -> int:
    """Return how much text nested values hold: a few aliases of YAML may stand for megabytes."""
    pages = [document.page for document in (*snapshot.documents, *snapshot.shadowed)]
    nested = (value for page in pages for value in page.values if not isinstance(value, str))
    return sum(map(_characters, nested))


def _characters(value: "Text | None") -> int:
    if isinstance(value, str):
        return len(value)
    each = value.values() if isinstance(value, Mapping) else value or ()
    return sum(map(_characters, each))
