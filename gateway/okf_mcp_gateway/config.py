"""Environment and `.env` -> `Settings`, and with `servers.yaml` the whole `Configuration` (G1-G3).

The only reader of the environment, which `__main__` hands in. Whatever is wrong is found in one go
and raised as one `ConfigError`; neither the port nor the cache is touched.
"""

import io
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from dotenv import dotenv_values

from okf_mcp_gateway.registry import Registry
from okf_mcp_gateway.registry_file import RegistryReader
from okf_mcp_gateway.scrub import (
    Clock,
    Scrubber,
    Secret,
    has_control_characters,
    read_secret_file,
)
from okf_mcp_server.errors import OkfError

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]

_Choice = TypeVar("_Choice", bound=str)

_LOG_FORMATS: Final[tuple[LogFormat, ...]] = ("text", "json")
_LOG_LEVELS: Final[tuple[LogLevel, ...]] = ("debug", "info", "warning", "error", "critical")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_SECONDS: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+")


class ConfigError(OkfError):
    """The configuration can't be used; `faults` holds a sentence for each thing to mend."""

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says, defaults applied; all paths are absolute (G1)."""

    token: Secret
    """The north token; set when the configuration was read, though its file may vanish later."""
    servers_path: Path
    cache_dir: Path
    host: str
    port: int
    """0 asks the system for a free port."""
    pull_wait_seconds: float
    git_timeout_seconds: float
    allowed_origins: tuple[str, ...]
    """In lower case, as browsers send them: `scheme://host` or `scheme://host:port`."""
    log_format: LogFormat
    log_level: LogLevel


@dataclass(frozen=True, slots=True)
class Configuration:
    """All that a gateway is started with."""

    settings: Settings
    registry: Registry

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The north token and every south token: what a `Scrubber` has to know."""
        south = (credential.token for credential in self.registry.credentials.values())
        return (self.settings.token, *south)


def load_configuration(
    environ: Mapping[str, str], working_directory: Path, *, clock: Clock = time.monotonic
) -> Configuration:
    """Read the environment, `.env` in `working_directory`, and the registry that they name.

    Relative paths are taken from `working_directory`. Raises `ConfigError` with the faults of all
    three together; none of them repeats a secret.
    """
    environment = _Environment(environ, working_directory, clock)
    settings = _settings(environment)
    reader = RegistryReader(
        settings.servers_path,
        secret=environment.secret,
        git_path=environ.get("PATH", os.defpath),
    )
    registry = reader.read()
    faults = (*environment.faults, *reader.faults)
    if faults:
        # A token that was pasted into the wrong place must not be repeated from there either.
        scrubber = Scrubber(environment.secrets.values())
        raise ConfigError(tuple(dict.fromkeys(scrubber.scrub(fault) for fault in faults)))
    return Configuration(settings, registry)


def _settings(environment: "_Environment") -> Settings:
    return Settings(
        token=_north_token(environment),
        servers_path=environment.path("OKF_GATEWAY_SERVERS", Path("servers.yaml")),
        cache_dir=_cache_dir(environment),
        host=environment.host("OKF_GATEWAY_HOST", "0.0.0.0"),  # noqa: S104 - the contract's default (G1)
        port=environment.port("OKF_GATEWAY_PORT", 8080),
        pull_wait_seconds=environment.seconds("OKF_GATEWAY_PULL_WAIT", 5, low=0, high=3600),
        git_timeout_seconds=environment.seconds(
            "OKF_GATEWAY_GIT_TIMEOUT", 120, low=0.1, high=86_400
        ),
        allowed_origins=environment.origins("OKF_GATEWAY_ALLOWED_ORIGINS"),
        log_format=environment.choice("OKF_GATEWAY_LOG_FORMAT", "text", _LOG_FORMATS),
        log_level=environment.choice("OKF_GATEWAY_LOG_LEVEL", "info", _LOG_LEVELS),
    )


def _north_token(environment: "_Environment") -> Secret:
    name = "OKF_GATEWAY_TOKEN"
    found = len(environment.faults)
    token = environment.secret(name)
    if token.reveal() is None and len(environment.faults) == found:
        environment.faults.append(
            f"environment: {name} is required, but neither it nor the file that {name}_FILE names"
            " gives a token; allowed: one line of text that is not blank."
        )
    return token


def _cache_dir(environment: "_Environment") -> Path:
    """Find the cache as G1 says; a relative `XDG_CACHE_HOME` counts for nothing, as XDG has it."""
    base = Path(environment.get("XDG_CACHE_HOME") or "")
    home = environment.get("HOME")
    if not base.is_absolute() and home:
        base = Path(home, ".cache")
    cache_dir = environment.path("OKF_GATEWAY_CACHE_DIR", base / "okf-mcp-gateway")
    if not environment.get("OKF_GATEWAY_CACHE_DIR") and not base.is_absolute():
        environment.faults.append(
            "environment: OKF_GATEWAY_CACHE_DIR is not set, and without XDG_CACHE_HOME and HOME it"
            " has no default; allowed: a directory that the gateway may write."
        )
    return cache_dir


class _Environment:
    """The environment over `.env`; a blank variable is one that is not set.

    `faults` and `secrets` grow while it is read, and nobody keeps it after that.
    """

    def __init__(self, environ: Mapping[str, str], working_directory: Path, clock: Clock) -> None:
        self.faults: list[str] = []
        self.secrets: dict[str, Secret] = {}
        self._working_directory = working_directory
        self._clock = clock
        self._environ = _set(environ)
        self._dotenv = _set(self._read_dotenv())

    def get(self, name: str) -> str | None:
        return self._environ.get(name) or self._dotenv.get(name)

    def path(self, name: str, default: Path) -> Path:
        path = self.get(name)
        if path and has_control_characters(path):
            self._refuse(name, "a path without control characters")
            path = None
        return self._working_directory / (path or default)

    def host(self, name: str, default: str) -> str:
        host = self.get(name) or default
        if has_control_characters(host) or re.search(r"\s|/", host):
            self._refuse(name, "a host name or an address to listen on, such as 127.0.0.1 or ::")
        return host

    def port(self, name: str, default: int) -> int:
        text = self.get(name) or str(default)
        if _PORT.fullmatch(text) and int(text) <= 65_535:
            return int(text)
        self._refuse(name, "a whole number from 0 (any free port) to 65535")
        return default

    def seconds(self, name: str, default: float, *, low: float, high: float) -> float:
        text = self.get(name) or str(default)
        if _SECONDS.fullmatch(text) and low <= float(text) <= high:
            return float(text)
        self._refuse(name, f"a number of seconds from {low} to {high}, such as 2 or 2.5")
        return default

    def choice(self, name: str, default: _Choice, choices: tuple[_Choice, ...]) -> _Choice:
        text = (self.get(name) or default).lower()
        for choice in choices:
            if choice == text:
                return choice
        self._refuse(name, ", ".join(choices))
        return default

    def origins(self, name: str) -> tuple[str, ...]:
        parts = (part.strip() for part in (self.get(name) or "").lower().split(","))
        origins = tuple(dict.fromkeys(part for part in parts if part))
        if not all(_ORIGIN.fullmatch(origin) for origin in origins):
            self._refuse(
                name,
                "origins as browsers send them, separated by commas, such as"
                " https://app.example or http://localhost:3000, without a path or '*'",
            )
        return origins

    def secret(self, name: str) -> Secret:
        """Return the secret in `name` or in the file that `name_FILE` names; it may be unset."""
        if name not in self.secrets:
            self.secrets[name] = self._secret(name)
        return self.secrets[name]

    def _secret(self, name: str) -> Secret:
        value, file = self.get(name), self.get(f"{name}_FILE")
        source = self._source(name if value else f"{name}_FILE")
        if value and file:
            self.faults.append(
                f"{source}: {name} and {name}_FILE are both set; allowed: one of them."
            )
        path = self._working_directory / file if file and not value else None
        text = read_secret_file(path) if path else value
        if text and has_control_characters(text):
            self.faults.append(
                f"{source}: {name} holds a control character or a line break;"
                " allowed: one line of text."
            )
        return Secret(value) if path is None else Secret(path=path, clock=self._clock)

    def _refuse(self, name: str, allowed: str) -> None:
        self.faults.append(
            f"{self._source(name)}: {name} is {self.get(name)!r}; allowed: {allowed}."
        )

    def _source(self, name: str) -> str:
        in_dotenv = name not in self._environ and name in self._dotenv
        return str(self._working_directory / ".env") if in_dotenv else "environment"

    def _read_dotenv(self) -> Mapping[str, str | None]:
        path = self._working_directory / ".env"
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (FileNotFoundError, IsADirectoryError):  # some name a virtual environment so
            return {}
        except (OSError, UnicodeDecodeError) as error:
            self.faults.append(f"{path}: can't be read ({_reason(error)}); allowed: UTF-8 text.")
            return {}
        return dotenv_values(stream=io.StringIO(text), interpolate=False)


def _set(variables: Mapping[str, str | None]) -> Mapping[str, str]:
    stripped = {name: (value or "").strip() for name, value in variables.items()}
    return {name: value for name, value in stripped.items() if value}


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or "unknown") if isinstance(error, OSError) else error.reason
