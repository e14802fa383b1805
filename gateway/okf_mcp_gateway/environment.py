"""The variables of the environment, over those of `.env`: each read by its rule (G1).

What breaks a rule becomes a sentence in `Environment.faults`, so that all are found in one go.
"""

import os
import re
import shutil
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Final, TypeVar

from dotenv.parser import Binding, parse_stream

from okf_mcp_gateway.scrub import Clock, Secret, has_control_characters, read_secret_file

OUR_PREFIX: Final = "OKF_GATEWAY_"
"""How the names of our settings begin, those of secrets for git hosts apart."""

_Choice = TypeVar("_Choice", bound=str)

_MAX_PORT: Final = 65_535
_PORT: Final = re.compile(r"[0-9]{1,5}")
_COUNT: Final = re.compile(r"[0-9]{1,5}")
_SECONDS: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+")


class Environment:
    """The environment over `.env`; a blank variable is one that is not set.

    `faults` and `secrets` grow while it is read, and nobody keeps it after that.
    """

    def __init__(self, environ: Mapping[str, str], working_directory: Path, clock: Clock) -> None:
        self.faults: list[str] = []
        self.secrets: dict[str, Secret] = {}
        self._working_directory = working_directory
        self._clock = clock
        self._dotenv_path = working_directory / ".env"
        self._environ = {name: text.strip() for name, text in environ.items() if text.strip()}
        self._dotenv = self._read_dotenv()
        # Grows with each variable that is asked for; the rest are nobody's.
        self._known: set[str] = set()

    def get(self, name: str) -> str | None:
        """Return a variable's text, trimmed; None if it is not set, or blank."""
        self._known.add(name)
        if name in self._environ:
            return self._environ[name]
        binding = self._dotenv.get(name)
        return (binding.value or "").strip() or None if binding else None

    def learn_secrets(self, prefix: str) -> None:
        """Read every secret whose name begins so, also those that nothing else names."""
        for name in [*self._environ, *self._dotenv]:
            if name.startswith(prefix):
                self.secret(name.removesuffix("_FILE"))

    def refuse_unknown(self) -> None:
        """Refuse what looks like a setting in `.env` and is none; to be called last.

        Not in the environment, where others put names of theirs that begin like ours.
        """
        for name in self._dotenv:
            if name.startswith(OUR_PREFIX) and name not in self._known:
                settings = sorted(known for known in self._known if known.startswith(OUR_PREFIX))
                self.faults.append(
                    f"{self._source(name)}: {_on_one_line(name)} is not a setting; allowed: "
                    f"{', '.join(settings)}."
                )

    def require_program(self, name: str) -> None:
        """Refuse an environment whose `PATH` doesn't lead to a program."""
        if shutil.which(name, path=self._environ.get("PATH", os.defpath)) is None:
            self.faults.append(f"environment: PATH leads to no {name}; install {name}.")

    def path(self, name: str, default: Path) -> Path:
        """Return the path in `name`, taken from the working directory unless it is absolute."""
        path = self.get(name)
        if path and has_control_characters(path):
            self._refuse(name, "a path without control characters")
            path = None
        return self._working_directory / (path or default)

    def host(self, name: str, default: str) -> str:
        """Return the host name or address in `name`; nobody is asked whether it exists."""
        host = self.get(name) or default
        if has_control_characters(host) or re.search(r"\s|/", host):
            self._refuse(name, "a host name or an address to listen on, such as 127.0.0.1 or ::")
        return host

    def port(self, name: str, default: int) -> int:
        """Return the port in `name`; 0 stands for any free one."""
        text = self.get(name) or str(default)
        if _PORT.fullmatch(text) and int(text) <= _MAX_PORT:
            return int(text)
        self._refuse(name, "a whole number from 0 (any free port) to 65535")
        return default

    def count(self, name: str, default: int, *, low: int, high: int) -> int:
        """Return the whole number in `name`, from `low` to `high`, both included."""
        text = self.get(name) or str(default)
        if _COUNT.fullmatch(text) and low <= int(text) <= high:
            return int(text)
        self._refuse(name, f"a whole number from {low} to {high}")
        return default

    def seconds(self, name: str, default: float, *, low: float, high: float) -> float:
        """Return the seconds in `name`, from `low` to `high`, both included."""
        text = self.get(name) or str(default)
        if _SECONDS.fullmatch(text) and low <= float(text) <= high:
            return float(text)
        self._refuse(name, f"a number of seconds from {low} to {high}, such as 2 or 2.5")
        return default

    def choice(self, name: str, default: _Choice, choices: tuple[_Choice, ...]) -> _Choice:
        """Return the one of `choices`, all in lower case, that stands in `name` in any case."""
        text = (self.get(name) or default).lower()
        for choice in choices:
            if choice == text:
                return choice
        self._refuse(name, ", ".join(choices))
        return default

    def origins(self, name: str) -> tuple[str, ...]:
        """Return the origins in `name`, in lower case and each once; none if it is not set."""
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
        if value and file and (name in self._environ) != (f"{name}_FILE" in self._environ):
            # One of the two is only in .env: the environment wins.
            value, file = (value, None) if name in self._environ else (None, file)
        source = self._source(name if value else f"{name}_FILE")
        if value and file:
            self.faults.append(
                f"{source}: {_on_one_line(name)} and {_on_one_line(f'{name}_FILE')} are both set;"
                " allowed: one of them."
            )
        path = self._working_directory / file if file and not value else None
        text = read_secret_file(path) if path else value
        if text and has_control_characters(text):
            where = _on_one_line(str(path or source))
            self.faults.append(
                f"{where}: {_on_one_line(name)} holds a control character or a line break;"
                " allowed: one line of text."
            )
        return Secret(value) if path is None else Secret(path=path, clock=self._clock)

    def _refuse(self, name: str, allowed: str) -> None:
        self.faults.append(
            f"{self._source(name)}: {name} is {self.get(name)!r}; allowed: {allowed}."
        )

    def _source(self, name: str) -> str:
        if name in self._environ or name not in self._dotenv:
            return "environment"
        return f"{self._dotenv_path}, line {self._dotenv[name].original.line}"

    def _read_dotenv(self) -> Mapping[str, Binding]:
        """Return what `.env` sets, by name; of two lines that set one name the later counts."""
        path = self._dotenv_path
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (FileNotFoundError, IsADirectoryError):  # some name a virtual environment so
            return {}
        except (OSError, UnicodeDecodeError) as error:
            self.faults.append(f"{path}: can't be read ({_reason(error)}); allowed: UTF-8 text.")
            return {}
        bindings = list(parse_stream(StringIO(text)))
        for binding in bindings:
            if binding.error:
                line = f"{path}, line {binding.original.line}"
                self.faults.append(f"{line}: can't be read; allowed: NAME=value, quotes closed.")
        return {binding.key: binding for binding in bindings if binding.key}


def _on_one_line(text: str) -> str:
    return text if text.isprintable() else repr(text)


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or "unknown") if isinstance(error, OSError) else error.reason
