"""The registry: which owners there are, where they live, who may be asked, and what each may be.

It is the allowlist: nothing is served, and no host gets a token, that it doesn't name (G2, G3).
`registry_file` reads it from `servers.yaml`.
"""

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

from okf_mcp_gateway.branch_name import is_branch_name
from okf_mcp_gateway.scrub import Secret, has_control_characters
from okf_mcp_server.snapshot import WHOLE_REPOSITORY

MAX_TTL_SECONDS: Final = 31_536_000

DEFAULT_TOKEN_USER: Final = "x-access-token"  # noqa: S105 - the name of a user
"""What GitHub wants and GitLab accepts; Bitbucket's `x-token-auth` has to be named."""

RESERVED_NAMES: Final = frozenset({"healthz", "readyz", "status", "config", "metrics", "mcp"})
"""Routes of the gateway's own, which no owner may hide."""

_MAX_PORT: Final = 65_535
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_OWNER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_COMMIT_ID: Final = re.compile(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}")
_AUTHORITY: Final = r"([A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?"
_HOST: Final = re.compile(_AUTHORITY)
_HTTP_URL: Final = re.compile(rf"(https?)://{_AUTHORITY}(?:/[^?#]*)?")
_FILE_URL: Final = re.compile(r"file://(?:localhost)?/.*")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What an owner gets that doesn't say otherwise (G2)."""

    ref: str = "main"
    ttl_seconds: int = 60


@dataclass(frozen=True, slots=True)
class CredentialRef:
    """How we sign in at one git host: where the south token is found, never the token as text."""

    host: str
    """`host` or `host:port`, in lower case."""
    token_env: str
    token_user: str
    token: Secret
    """Unset, which is no fault, while neither `token_env` nor its `_FILE` gives one."""


@dataclass(frozen=True, slots=True)
class OwnerConfig:
    """One owner, defaults applied."""

    name: str
    url: str
    ref: str
    ttl_seconds: int
    """0: pull on every request."""
    roots: tuple[PurePosixPath, ...] = WHOLE_REPOSITORY
    """Scan roots, relative to the repository."""
    credential: CredentialRef | None = None
    """What `url` is read with; None: anonymously."""

    @property
    def is_pinned(self) -> bool:
        """Whether `ref` is a full commit id: pulled once, never due (G2)."""
        return _COMMIT_ID.fullmatch(self.ref) is not None

    @property
    def fresh_seconds(self) -> float:
        """How old what was pulled may be and still be fresh: a pinned commit never grows old."""
        return math.inf if self.is_pinned else self.ttl_seconds


@dataclass(frozen=True, slots=True)
class Registry:
    """What `servers.yaml` says; both mappings are read-only and in the file's order."""

    defaults: Defaults
    owners: Mapping[str, OwnerConfig]
    credentials: Mapping[str, CredentialRef]
    """By `CredentialRef.host`."""


def is_ref(text: str) -> bool:
    """Say whether git takes `text` for a branch's name, and a line of a log can show it (G3)."""
    return is_branch_name(text) and not has_control_characters(text)


def is_owner_name(name: str) -> bool:
    """Say whether an owner may be called so; that no other is, whatever the case, is not asked."""
    lowered = name.lower()
    is_reserved = lowered in RESERVED_NAMES or lowered.endswith((".git", ".lock"))
    return _OWNER_NAME.fullmatch(name) is not None and not is_reserved


def is_source_url(text: str) -> bool:
    """Say whether git may be asked for this URL: a transport that only fetches, and no secrets.

    A query and a fragment are refused because git's requests can't carry them and hosts take tokens
    in them. Hosts are ASCII, so that no two programs can read one URL as two hosts.
    """
    if re.search(r"\s", text) or has_control_characters(unquote(text)):
        return False
    http = _HTTP_URL.fullmatch(text)
    if http is None:
        return _FILE_URL.fullmatch(text) is not None
    return _is_port(http[3]) and (http[2][0] != "[" or _ip_address(http[2]) is not None)


def is_root(text: str) -> bool:
    """Say whether a scan root is a relative POSIX path that stays inside the repository."""
    path = PurePosixPath(text)
    is_inside = not path.is_absolute() and ".." not in path.parts
    return (
        bool(text.strip()) and is_inside and "\\" not in text and not has_control_characters(text)
    )


def canonical_host(text: str) -> str | None:
    """Return `host` or `host:port` in lower case; None if `text` is neither."""
    match = _HOST.fullmatch(text)
    if match is None or not _is_port(match[2]):
        return None
    return match[1].lower() + (f":{int(match[2])}" if match[2] else "")


def credential_for(url: str, credentials: Mapping[str, CredentialRef]) -> CredentialRef | None:
    """Find what signs in at a URL's host and port; `host` alone means the scheme's own port."""
    match = _HTTP_URL.fullmatch(url)
    if match is None:
        return None
    host = host_of(url)
    name, _, port = host.rpartition(":")
    fallback = credentials.get(name) if int(port) == _DEFAULT_PORTS[match[1]] else None
    return credentials.get(host, fallback)


def is_cleartext(url: str) -> bool:
    """Say whether a URL sends what it is sent with in clear over a network (G3)."""
    match = _HTTP_URL.fullmatch(url)
    if match is None or match[1] == "https" or match[2].lower() == "localhost":
        return False
    address = _ip_address(match[2])
    return address is None or not address.is_loopback


def host_of(url: str) -> str:
    """Return `host:port` of a configured URL, in lower case; empty for a file."""
    match = _HTTP_URL.fullmatch(url)
    if match is None:
        return ""
    return f"{match[2].lower()}:{int(match[3] or _DEFAULT_PORTS[match[1]])}"


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _is_port(text: str | None) -> bool:
    return text is None or 1 <= int(text) <= _MAX_PORT
