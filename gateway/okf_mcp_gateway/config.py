"""Environment and `.env` -> `Settings`, and with `servers.yaml` the whole `Configuration` (G1-G3).

The environment is handed in by `__main__`. Whatever is wrong is found in one go and raised as one
`ConfigError`; neither the port nor the cache is touched.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from okf_mcp_gateway.environment import Environment
from okf_mcp_gateway.registry import Registry
from okf_mcp_gateway.registry_file import RegistryReader
from okf_mcp_gateway.scrub import Clock, Scrubber, Secret
from okf_mcp_server.errors import OkfError

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]

_LOG_FORMATS: Final[tuple[LogFormat, ...]] = ("text", "json")
_LOG_LEVELS: Final[tuple[LogLevel, ...]] = ("debug", "info", "warning", "error", "critical")


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
    max_requests: int
    """How many are answered at once, event streams apart."""
    keeps_answers: bool
    """Whether the SDK's answers are kept and sent again."""


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
    environment = Environment(environ, working_directory, clock)
    settings = _settings(environment)
    reader = RegistryReader(settings.servers_path, secret=environment.secret)
    registry = reader.read()
    environment.learn_secrets("OKF_GIT_TOKEN_")  # no fault may repeat one
    environment.refuse_unknown()
    environment.require_program("git")
    faults = (*environment.faults, *reader.faults)
    if faults:
        # A token that was pasted into the wrong place must not be repeated from there either.
        scrubber = Scrubber(environment.secrets.values())
        raise ConfigError(tuple(dict.fromkeys(scrubber.scrub(fault) for fault in faults)))
    return Configuration(settings, registry)


def user_cache_dir(xdg_cache_home: str | None, home: str | None) -> Path | None:
    """Return the folder for caches that the two variables name; None if neither does (G1).

    One that isn't absolute counts for nothing, as XDG has it.
    """
    candidates = (Path(xdg_cache_home or ""), Path(home or "", ".cache"))
    return next((path for path in candidates if path.is_absolute()), None)


def _settings(environment: Environment) -> Settings:
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
        max_requests=environment.count("OKF_GATEWAY_MAX_REQUESTS", 1000, low=1, high=99_999),
        keeps_answers=environment.choice("OKF_GATEWAY_ANSWER_CACHE", "on", ("on", "off")) == "on",
    )


def _north_token(environment: Environment) -> Secret:
    name = "OKF_GATEWAY_TOKEN"
    found = len(environment.faults)
    token = environment.secret(name)
    if token.reveal() is None and len(environment.faults) == found:
        environment.faults.append(
            f"environment: {name} is required, but neither it nor the file that {name}_FILE names"
            " gives a token; allowed: one line of text that is not blank."
        )
    return token


def _cache_dir(environment: Environment) -> Path:
    base = user_cache_dir(environment.get("XDG_CACHE_HOME"), environment.get("HOME"))
    cache_dir = environment.path("OKF_GATEWAY_CACHE_DIR", (base or Path()) / "okf-mcp-gateway")
    if not environment.get("OKF_GATEWAY_CACHE_DIR") and base is None:
        environment.faults.append(
            "environment: OKF_GATEWAY_CACHE_DIR is not set, and without XDG_CACHE_HOME and HOME it"
            " has no default; allowed: a directory that the gateway may write."
        )
    return cache_dir
