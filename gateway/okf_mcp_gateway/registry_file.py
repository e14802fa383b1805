"""`servers.yaml` -> `Registry`, or a sentence for everything in it that is not allowed (G3)."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

import yaml

from okf_mcp_gateway.registry import (
    DEFAULT_TOKEN_USER,
    MAX_TTL_SECONDS,
    RESERVED_NAMES,
    CredentialRef,
    Defaults,
    OwnerConfig,
    Registry,
    canonical_host,
    credential_for,
    is_cleartext,
    is_owner_name,
    is_ref,
    is_root,
    is_source_url,
)
from okf_mcp_gateway.scrub import Secret
from okf_mcp_server.snapshot import WHOLE_REPOSITORY
from okf_mcp_server.yaml_text import (
    YamlTextError,
    compose_mapping,
    entries,
    is_null,
    line_of,
    repeated_keys,
)

_TTL: Final = re.compile(r"0|[1-9][0-9]{0,7}")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A key of the file, spelled from the top (`owners.acme.url`), and what stands there."""

    key: str
    line: int
    node: yaml.Node


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a text must be: a test, and the same in words for the fault."""

    accepts: Callable[[str], object]
    allowed: str


_A_NAME: Final = (
    "1 to 64 of A-Z a-z 0-9 . _ - after a letter or digit, without .git or .lock at the end, unlike"
    f" every other name whatever the case, and none of {', '.join(sorted(RESERVED_NAMES))}"
)
_A_HOST: Final = "host or host:port, each once whatever the case"
_A_TTL: Final = f"a whole number of seconds from 0 to {MAX_TTL_SECONDS}, as plain unquoted digits"
_URL: Final = _Rule(
    is_source_url,
    "https:// or http:// with a host, or file:// with an absolute path; no user information"
    " (credentials are for that), no query, fragment, blanks or control characters; no SSH",
)
_REF: Final = _Rule(
    is_ref, "what `git check-ref-format --branch` accepts: a branch, a tag or a full commit id"
)
_ROOT: Final = _Rule(
    is_root, "relative paths inside the repository, with / and without any .. in them"
)
_TOKEN_ENV: Final = _Rule(
    re.compile(r"OKF_GIT_TOKEN_[A-Z0-9_]+(?<!_FILE)").fullmatch,
    "the name of a variable, OKF_GIT_TOKEN_ and then A-Z 0-9 _ (but not _FILE at its end)",
)
_TOKEN_USER: Final = _Rule(
    re.compile(r"[^\s:\x00-\x1f\x7f-\x9f]+").fullmatch, "a user name without blanks and colons"
)


class RegistryReader:
    """Reads one registry file and collects all that is wrong with it, as sentences."""

    def __init__(self, path: Path, *, secret: Callable[[str], Secret]) -> None:
        """Take the file, and what finds the secret of a variable's name."""
        self._faults: list[tuple[int, str]] = []
        self._path = path
        self._secret = secret

    @property
    def faults(self) -> tuple[str, ...]:
        """What was found, by line."""
        return tuple(fault for _, fault in sorted(self._faults, key=lambda found: found[0]))

    def read(self) -> Registry:
        """Return the registry; where there are `faults` afterwards, it has gaps and stand-ins."""
        root = self._root()
        if root is None:
            return Registry(Defaults(), {}, {})
        top = self._mapping(root, ("defaults", "owners", "credentials"))
        defaults = self._defaults(top.get("defaults"))
        credentials = self._credentials(top.get("credentials"))
        owners = self._owners(self._required(root, top, "owners"), defaults, credentials)
        return Registry(defaults, MappingProxyType(owners), MappingProxyType(credentials))

    def _root(self) -> _Entry | None:
        line, reason = None, "it is not a mapping with the key owners"
        try:
            root = compose_mapping(self._path.read_bytes().decode(), unique_keys=False)
        except OSError as error:
            reason = error.strerror
        except UnicodeDecodeError:
            reason = "it is not UTF-8"
        except YamlTextError as error:
            line, reason = error.line, error.reason
        else:
            if root is not None:
                return _Entry("", line_of(root), root)
        where = f"{self._path}, line {line}" if line else f"{self._path}"
        self._faults.append((line or 0, f"{where}: the registry can't be read: {reason}."))
        return None

    def _defaults(self, entry: _Entry | None) -> Defaults:
        fields = self._mapping(entry, ("ref", "ttl"))
        return Defaults(
            ref=self._text(fields.get("ref"), _REF, Defaults().ref),
            ttl_seconds=self._ttl(fields.get("ttl"), Defaults().ttl_seconds),
        )

    def _credentials(self, entry: _Entry | None) -> dict[str, CredentialRef]:
        credentials: dict[str, CredentialRef] = {}
        for name, credential in self._mapping(entry).items():
            host = canonical_host(name)
            if host is None or host in credentials:
                # The key is not repeated: who takes it for a URL may have put a password in it.
                unnamed = replace(credential, key="credentials")
                self._refuse(unnamed, "has a key that is not usable", _A_HOST)
                continue
            fields = self._mapping(credential, ("token_env", "token_user"))
            token_env = self._text(self._required(credential, fields, "token_env"), _TOKEN_ENV, "")
            token_user = self._text(fields.get("token_user"), _TOKEN_USER, DEFAULT_TOKEN_USER)
            credentials[host] = CredentialRef(host, token_env, token_user, self._secret(token_env))
        return credentials

    def _owners(
        self, entry: _Entry | None, defaults: Defaults, credentials: Mapping[str, CredentialRef]
    ) -> dict[str, OwnerConfig]:
        written = self._mapping(entry)
        if entry and isinstance(entry.node, yaml.MappingNode) and not written:
            self._refuse(entry, "is empty", "at least one owner")
        seen: dict[str, _Entry] = {}
        for name, owner in written.items():
            twin = seen.setdefault(name.lower(), owner)
            if twin is not owner:
                self._refuse(owner, f"differs only in case from line {twin.line}", _A_NAME)
            elif name.lower() in RESERVED_NAMES:
                self._refuse(owner, "has a name that is reserved", _A_NAME)
            elif not is_owner_name(name):
                self._refuse(owner, "has a name that is not usable", _A_NAME)
        return {
            name: self._owner(name, owner, defaults, credentials) for name, owner in written.items()
        }

    def _owner(
        self,
        name: str,
        entry: _Entry,
        defaults: Defaults,
        credentials: Mapping[str, CredentialRef],
    ) -> OwnerConfig:
        fields = self._mapping(entry, ("url", "ref", "ttl", "roots"))
        url = self._text(self._required(entry, fields, "url"), _URL, "")
        credential = credential_for(url, credentials)
        if credential and is_cleartext(url):
            self._refuse(
                fields["url"],
                f"is http, to which credentials.{credential.host} would send a token in clear",
                "https, or a loopback host",
            )
        return OwnerConfig(
            name=name,
            url=url,
            ref=self._text(fields.get("ref"), _REF, defaults.ref),
            ttl_seconds=self._ttl(fields.get("ttl"), defaults.ttl_seconds),
            roots=self._roots(fields.get("roots")),
            credential=credential,
        )

    def _required(self, parent: _Entry, fields: Mapping[str, _Entry], name: str) -> _Entry | None:
        if name not in fields and isinstance(parent.node, yaml.MappingNode):
            self._refuse(parent, f"has no {name}", f"{name} is required")
        return fields.get(name)

    def _mapping(
        self, entry: _Entry | None, allowed: tuple[str, ...] | None = None
    ) -> dict[str, _Entry]:
        """Return the entries below `entry` that are `allowed`, all if that is None."""
        if entry is None:
            return {}
        if not isinstance(entry.node, yaml.MappingNode):
            self._refuse(entry, f"is {_shown(entry)}", "a mapping")
            return {}
        prefix = f"{entry.key}." if entry.key else ""
        for key in repeated_keys(entry.node):
            # A credential's key is not repeated: somebody may take it for a URL with a password.
            is_private = entry.key == "credentials"
            name = entry.key if is_private else f"{prefix}{_printable(key.value)}"
            problem = "has a key that stands twice" if is_private else "stands twice"
            self._refuse(_Entry(name, line_of(key), key), problem, "each key once")
        fields = {
            name: _Entry(f"{prefix}{_printable(name)}", line_of(key), node)
            for name, (key, node) in entries(entry.node).items()
        }
        if allowed is not None:
            for name in [name for name in fields if name not in allowed]:
                self._refuse(fields.pop(name), "is not a known key", ", ".join(allowed))
        return fields

    def _text(self, entry: _Entry | None, rule: _Rule, default: str) -> str:
        if entry is None:
            return default
        node = entry.node
        if isinstance(node, yaml.ScalarNode) and not is_null(node) and rule.accepts(node.value):
            return node.value
        self._refuse(entry, f"is {_shown(entry)}", rule.allowed)
        return default

    def _ttl(self, entry: _Entry | None, default: int) -> int:
        if entry is None:
            return default
        node = entry.node
        is_plain = isinstance(node, yaml.ScalarNode) and not node.style
        if is_plain and _TTL.fullmatch(node.value) and int(node.value) <= MAX_TTL_SECONDS:
            return int(node.value)
        self._refuse(entry, f"is {_shown(entry)}", _A_TTL)
        return default

    def _roots(self, entry: _Entry | None) -> tuple[PurePosixPath, ...]:
        if entry is None:
            return WHOLE_REPOSITORY
        if not isinstance(entry.node, yaml.SequenceNode) or not entry.node.value:
            self._refuse(entry, f"is {_shown(entry)}", f"a list of {_ROOT.allowed}")
            return WHOLE_REPOSITORY
        texts = [
            self._text(_Entry(entry.key, line_of(node), node), _ROOT, ".")
            for node in entry.node.value
        ]
        return tuple(dict.fromkeys(PurePosixPath(text) for text in texts))

    def _refuse(self, entry: _Entry, problem: str, allowed: str) -> None:
        key = f"{entry.key} " if entry.key else "the file "
        fault = f"{self._path}, line {entry.line}: {key}{problem}; allowed: {allowed}."
        self._faults.append((entry.line, fault))


def _shown(entry: _Entry) -> str:
    """Describe a wrong value without repeating what may hold a secret."""
    if not isinstance(entry.node, yaml.ScalarNode):
        return "a mapping" if isinstance(entry.node, yaml.MappingNode) else "a list"
    if is_null(entry.node):
        return "null"
    text = str(entry.node.value)
    is_private = entry.key.startswith("credentials") or (
        entry.key.endswith(".url") and any(mark in unquote(text) for mark in "@?#")
    )
    return "not usable (it may hold a secret and is not repeated)" if is_private else repr(text)


def _printable(name: str) -> str:
    return name if name.isprintable() else repr(name)
