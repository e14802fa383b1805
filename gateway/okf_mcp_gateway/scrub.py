"""What may not leave the process, and the one filter for all text that does (G4).

A `Secret` never shows its value by itself. The `Scrubber` takes secrets, user information in URLs,
an owner's own URL and the cache's paths out of free text: log lines, tracebacks, git's messages,
error answers. It is not for documents or for structured fields, whose values are chosen, not found.
"""

import base64
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

MIN_FORM_LENGTH: Final = 4
"""Shorter spellings of a secret are left alone: they would turn every log line into stars."""

REREAD_SECONDS: Final = 1.0
"""How long a secret's file is not looked at again (G1)."""

REMEMBERED_VALUES: Final = 8
"""How many values of one rotating secret are kept out of text: its current one and earlier ones."""

MAX_SECRET_BYTES: Final = 65_536

Clock: TypeAlias = Callable[[], float]
"""Monotonic seconds."""

_USER_INFORMATION: Final = re.compile(r'://[^\s/"<>]*@')
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Secret:
    """A credential that shows as `***` and may live in a file that somebody rotates.

    Blank, or not usable as an HTTP header value or a git password (a control character or a line
    break inside): unset. White space around it is dropped, as files end with a newline.
    """

    __slots__ = ("_clock", "_current", "_known", "_path", "_read_at")

    def __init__(
        self, value: str | None = None, *, path: Path | None = None, clock: Clock = time.monotonic
    ) -> None:
        """Hold `value`, or what stands in the file `path` at the moment of asking."""
        self._path = path
        self._clock = clock
        # These three are written by _look_again only, by whichever thread asks; each write is one
        # assignment, and a race costs at most a second look at the file.
        self._read_at = float("-inf")
        self._current = _usable(value)
        self._known = (self._current,) if self._current else ()

    def reveal(self) -> str | None:
        """Return the value; None while it is unset, or while its file can't be read (G1)."""
        self._look_again()
        return self._current

    def known_values(self) -> tuple[str, ...]:
        """Return the value and the earlier ones that may still turn up in text, newest first."""
        self._look_again()
        return self._known

    def __repr__(self) -> str:
        return "***"

    def _look_again(self) -> None:
        if self._path is None:
            return
        now = self._clock()
        if now - self._read_at < REREAD_SECONDS:
            return
        current = _usable(read_secret_file(self._path))
        if current:
            earlier = tuple(value for value in self._known if value != current)
            self._known = (current, *earlier)[:REMEMBERED_VALUES]
        self._current = current
        self._read_at = now


class Scrubber:
    """Takes what is private out of text, from any thread.

    Secrets, in plain, JSON-escaped, percent-encoded and base64 form, become `***`, also those that
    were rotated away a while ago; `scheme://user:password@host` becomes `scheme://***@host`; the
    cache directory, as given and resolved, becomes `<cache>`.
    """

    def __init__(self, secrets: Iterable[Secret], *, cache_dir: Path | None = None) -> None:
        self._secrets = tuple(secrets)
        self._cache = _path_pattern(cache_dir) if cache_dir else None
        # Values and their spellings belong together, so they are swapped in one assignment.
        self._spelled: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def scrub(self, text: str, *, urls: Iterable[str] = ()) -> str:
        """Return `text` without what is private; with `urls`, also without those of owners.

        An owner's URL, the origin and the path in it, with or without `.git` and percent-encoding,
        become `<url>`. A bare host name stays: an operator needs it to see what can't be reached.
        """
        for form in self._forms():
            text = text.replace(form, "***")
        text = _USER_INFORMATION.sub("://***@", text)
        lowered = text.lower()
        mentioned = tuple(url for url in urls if any(m in lowered for m in _spell(url).marks))
        if mentioned:
            text = _urls_pattern(mentioned).sub("<url>", text)
        return self._cache.sub("<cache>", text) if self._cache else text

    def _forms(self) -> tuple[str, ...]:
        values = tuple(value for secret in self._secrets for value in secret.known_values())
        if values != self._spelled[0]:
            forms = {form for value in values for form in _spellings(value)}
            self._spelled = (values, tuple(sorted(forms, key=len, reverse=True)))
        return self._spelled[1]


class ScrubbingFormatter(logging.Formatter):
    """Scrubs what another formatter wrote: the message, its arguments and any traceback."""

    def __init__(self, formatter: logging.Formatter, scrubber: Scrubber) -> None:
        super().__init__()
        self._formatter = formatter
        self._scrubber = scrubber

    def format(self, record: logging.LogRecord) -> str:
        """Return the scrubbed line; a record that can't be formatted says where it came from."""
        try:
            line = self._formatter.format(record)
        except Exception as error:  # noqa: BLE001 - logging would print its raw arguments to stderr
            line = f"log record lost logger={record.name} line={record.lineno} error={error!r}"
        return self._scrubber.scrub(line)


def has_control_characters(text: str) -> bool:
    """Say whether a control character, a line break or a lone surrogate stands in `text`."""
    return _CONTROL.search(text) is not None


def read_secret_file(path: Path) -> str | None:
    """Return the text of a secret's file, trimmed; None if it is blank or can't be read as UTF-8.

    Only a regular file is read, so that a pipe can't block the process.
    """
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
        text = content.decode("utf-8-sig").strip()
    except (OSError, ValueError):
        return None
    return text if text and len(content) <= MAX_SECRET_BYTES else None


def _usable(value: str | None) -> str | None:
    value = (value or "").strip()
    return value if value and not has_control_characters(value) else None


def _spellings(secret: str) -> Iterator[str]:
    """Yield the ways in which a secret turns up in text, none shorter than `MIN_FORM_LENGTH`."""
    percent_encoded = (quote(secret, safe=""), quote(secret))
    forms = {
        secret,
        repr(secret)[1:-1],
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        *percent_encoded,
        *(re.sub("%..", lambda code: code[0].lower(), form) for form in percent_encoded),
        *_base64_forms(secret.encode()),
    }
    return (form for form in forms if len(form) >= MIN_FORM_LENGTH)


def _base64_forms(secret: bytes) -> Iterator[str]:
    """Yield what base64 makes of a secret, alone or inside more text such as `user:secret`.

    Three bytes make four characters, so what stands before the secret shifts it in one of three
    ways. The characters that it shares with its neighbours differ each time and are cut off; they
    hold at most four of its bits at either end.
    """
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + secret).decode()
        first = -(-shift * 8 // 6)
        end = (shift + len(secret)) * 8 // 6
        form = encoded[first:end]
        yield form
        yield form.translate(str.maketrans("+/", "-_"))


def _path_pattern(path: Path) -> re.Pattern[str]:
    spellings = {str(path), str(path.resolve())}
    spellings |= {json.dumps(spelling)[1:-1] for spelling in spellings}
    return re.compile(f"{_any_of(spellings)}(?!\\w)")


@dataclass(frozen=True, slots=True)
class _UrlSpelling:
    """The spellings of a configured URL (G3) in git's and curl's messages, as patterns.

    Every alternative has a fixed length, so a search is linear. User information is `***` by now.
    """

    whole: tuple[str, ...]
    """The URL, or its path alone."""
    origin: str
    """`scheme://host`; matches nothing for a file."""
    marks: frozenset[str]
    """In lower case: without one of these, a text holds none of the spellings."""


@lru_cache(maxsize=4096)
def _spell(url: str) -> _UrlSpelling:
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    plain_path = unquote(path)
    paths = {path, plain_path, quote(plain_path), quote(plain_path, safe="")}
    if scheme == "file":
        prefix, origin = "(?:file:(?://(?:localhost)?)?)?", "(?!)"
        paths.add(os.path.realpath("/" + plain_path)[1:])
    else:
        origin = rf"https?://(?:\*\*\*@)?{re.escape(authority)}(?!\w)"
        prefix = rf"(?:(?:https?://(?:\*\*\*@)?)?{re.escape(authority)})?"
    paths = {path.strip("/").removesuffix(".git").rstrip("/") for path in paths} - {""}
    # A path of one word is only told from prose by its slash; a longer one needs none.
    bare = {path for path in paths if "/" in path or "%2F" in path}
    patterns = [f"{prefix}/{_any_of(paths)}"] if paths else []
    patterns += [f"(?<!\\w){_any_of(bare)}"] if bare else []
    words = {authority, *(path.rpartition("/")[2] for path in paths)}
    marks = {word.lower() for word in words if word}
    whole = tuple(rf"{pattern}(?:\.git)?(?!\w)" for pattern in patterns)
    return _UrlSpelling(whole, origin, frozenset(marks))


@lru_cache(maxsize=1024)
def _urls_pattern(urls: tuple[str, ...]) -> re.Pattern[str]:
    """Return what matches any of the URLs; a whole one before the origin of another."""
    spellings = [_spell(url) for url in urls]
    alternatives = [pattern for spelling in spellings for pattern in spelling.whole]
    alternatives += [spelling.origin for spelling in spellings]
    return re.compile("|".join(alternatives), re.IGNORECASE)


def _any_of(texts: Iterable[str]) -> str:
    return f"(?:{'|'.join(re.escape(text) for text in sorted(texts, key=len, reverse=True))})"
