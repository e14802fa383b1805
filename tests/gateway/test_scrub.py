import base64
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import pytest

from okf_mcp_gateway.scrub import (
    MAX_SECRET_BYTES,
    REMEMBERED_VALUES,
    Scrubber,
    ScrubbingFormatter,
    Secret,
)

TOKEN = 'tök/en+"7Zq~\\x=='


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def scrubbed(text: str, token: str = TOKEN, url: str | None = None) -> str:
    return Scrubber([Secret(token)]).scrub(text, urls=[url] if url else [])


@pytest.mark.row("G1")
def test_a_secret_shows_as_stars() -> None:
    secret = Secret("s3cr3tvalue")
    assert f"{secret} {secret!s} {secret!r} {[secret]}" == "*** *** *** [***]"


@pytest.mark.parametrize(
    ("value", "revealed"),
    [
        (None, None),
        ("", None),
        (" \t\n", None),
        ("token", "token"),
        (" token\r\n", "token"),
        ("to\nken", None),
        ("to\x00ken", None),
        ("to\udc80ken", None),
    ],
)
def test_a_secret_is_trimmed_and_unset_if_no_header_could_carry_it(
    value: str | None, revealed: str | None
) -> None:
    assert Secret(value).reveal() == revealed


@pytest.mark.row("G1")
def test_a_secret_file_is_looked_at_again_after_a_second_and_not_before(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", ManualClock()
    path.write_text("first\n")
    secret = Secret(path=path, clock=clock)
    assert secret.reveal() == "first"

    path.write_text("second\n")
    clock.seconds += 0.999
    assert secret.reveal() == "first"
    clock.seconds += 0.001
    assert secret.reveal() == "second"
    assert secret.known_values() == ("second", "first")


@pytest.mark.parametrize(
    "content", [b" \n", b"two\nlines", b"\xff\xfe", b"x" * (MAX_SECRET_BYTES + 1)]
)
def test_a_secret_whose_file_becomes_unusable_is_unset_but_still_kept_out_of_text(
    tmp_path: Path, content: bytes
) -> None:
    path, clock = tmp_path / "token", ManualClock()
    path.write_text("first-token")
    secret = Secret(path=path, clock=clock)
    scrubber = Scrubber([secret])
    assert secret.reveal() == "first-token"

    path.write_bytes(content)
    clock.seconds += 1
    assert secret.reveal() is None
    assert scrubber.scrub("late: first-token") == "late: ***"


def test_a_secret_file_that_vanishes_and_returns_is_unset_meanwhile(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", ManualClock()
    secret = Secret(path=path, clock=clock)
    assert secret.reveal() is None
    path.write_bytes(b"\xef\xbb\xbftoken\r\n")
    clock.seconds += 1
    assert secret.reveal() == "token"
    path.unlink()
    clock.seconds += 1
    assert secret.reveal() is None


def test_a_pipe_in_place_of_a_secret_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = Thread(target=Secret(path=tmp_path / "pipe").reveal, daemon=True)
    reader.start()
    reader.join(timeout=10)
    assert not reader.is_alive()


def test_a_rotating_secret_remembers_its_latest_values_only(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", ManualClock()
    secret = Secret(path=path, clock=clock)
    for number in range(REMEMBERED_VALUES + 3):
        path.write_text(f"token-{number}")
        clock.seconds += 1
        assert secret.reveal() == f"token-{number}"
    newest = REMEMBERED_VALUES + 2
    assert secret.known_values() == tuple(
        f"token-{newest - age}" for age in range(REMEMBERED_VALUES)
    )


def test_a_value_that_a_secret_takes_back_is_not_forgotten_before_older_ones(
    tmp_path: Path,
) -> None:
    path, clock = tmp_path / "token", ManualClock()
    secret = Secret(path=path, clock=clock)
    for value in ("one", "two", "one"):
        path.write_text(value)
        clock.seconds += 1
        secret.reveal()
    assert secret.known_values() == ("one", "two")


@pytest.mark.row("G4")
@pytest.mark.parametrize(
    "form",
    [
        TOKEN,
        repr(TOKEN),
        json.dumps({"token": TOKEN}),
        json.dumps({"token": TOKEN}, ensure_ascii=False),
        quote(TOKEN, safe=""),
        quote(TOKEN),
    ],
    ids=["plain", "repr", "json", "json-unicode", "percent", "percent-slash"],
)
def test_no_spelling_of_a_token_passes(form: str) -> None:
    text = scrubbed(f"fatal: {form} refused")
    assert "***" in text
    assert "7Zq" not in text
    assert text.startswith("fatal: ")
    assert text.endswith(" refused")


@pytest.mark.row("G4")
def test_a_percent_encoding_in_lower_case_does_not_pass() -> None:
    assert scrubbed("a%2fb%3dc", "a/b=c") == "***"
    assert scrubbed("a%2Fb%3Dc", "a/b=c") == "***"
    assert scrubbed("a/b%3dc", "a/b=c") == "***"


@pytest.mark.row("G4")
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("token", ["abcd", "abcde", "abcdef", "ghp_0123456789", "ÿÿ>>??~~ÿÿ"])
@pytest.mark.parametrize("before", ["", "u:", "us:", "git:", "x-access-token:"])
@pytest.mark.parametrize("after", ["", "@", "@h", "@host"])
def test_no_base64_of_a_token_passes_wherever_the_token_stands_in_it(
    encode: Callable[[bytes], bytes], token: str, before: str, after: str
) -> None:
    encoded = encode(f"{before}{token}{after}".encode()).decode()
    text = scrubbed(f"Authorization: Basic {encoded}", token)
    start, stars, end = text.removeprefix("Authorization: Basic ").partition("***")
    assert stars
    # What is left on either side shares less than one byte with the token.
    assert len(start) * 6 <= (len(before.encode()) + 1) * 8
    assert len(end.rstrip("=")) * 6 <= (len(after.encode()) + 2) * 8


def test_a_secret_too_short_to_be_one_does_not_star_every_line() -> None:
    assert scrubbed("a cat sat", "at") == "a cat sat"


def test_a_secret_that_is_part_of_another_leaves_nothing_of_the_longer_one() -> None:
    scrubber = Scrubber([Secret("token"), Secret("token-and-more")])
    assert scrubber.scrub("token-and-more, token") == "***, ***"


def test_an_unset_secret_scrubs_nothing() -> None:
    assert Scrubber([Secret(None)]).scrub("as it was") == "as it was"


@pytest.mark.row("G4")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:pass@host/path", "https://***@host/path"),
        ("https://user@host/path", "https://***@host/path"),
        ("ssh://git@host:22/x", "ssh://***@host:22/x"),
        ("'https://u:p@ss@host'", "'https://***@host'"),
        ("https://:p@host https://u:@host", "https://***@host https://***@host"),
        ('{"a":"https://host","b":"x@y"}', '{"a":"https://host","b":"x@y"}'),
        ("https://host/@scope/x", "https://host/@scope/x"),
        ("mail a@b.example", "mail a@b.example"),
        ("https://host, mail a@b", "https://host, mail a@b"),
    ],
)
def test_user_information_is_taken_out_of_any_url(text: str, expected: str) -> None:
    assert scrubbed(text) == expected


HTTPS = "https://git.example:8443/acme/My%20docs.git"


@pytest.mark.row("G4")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"'{HTTPS}/'", "'<url>/'"),
        ("https://git.example:8443/acme/My%20docs", "<url>"),
        ("https://git.example:8443/acme/My docs.git/info/refs", "<url>/info/refs"),
        ("https://u:p@git.example:8443/acme/My%20docs.git", "<url>"),
        ("HTTPS://GIT.example:8443/ACME/my%20DOCS", "<url>"),
        ("git.example:8443/acme/My%20docs.git", "<url>"),
        ("remote: /acme/My docs not found", "remote: <url> not found"),
        ("Repository acme/My%20docs not found", "Repository <url> not found"),
        ("Username for 'https://git.example:8443': ", "Username for '<url>': "),
        ("Could not resolve host: git.example", "Could not resolve host: git.example"),
        ("https://git.example:8443/acme/My%20docsets", "<url>/acme/My%20docsets"),
    ],
)
def test_no_spelling_of_an_owners_url_passes(text: str, expected: str) -> None:
    assert scrubbed(text, url=HTTPS) == expected


@pytest.mark.row("G4")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'/srv/git/my docs.git' does not appear", "'<url>' does not appear"),
        ("'/srv/git/my docs' does not appear", "'<url>' does not appear"),
        ("file:///srv/git/my%20docs.git", "<url>"),
        ("file://localhost/srv/git/my%20docs", "<url>"),
        ("/srv/git/my docs.git/objects", "<url>/objects"),
        ("/srv/git/other", "/srv/git/other"),
    ],
)
def test_no_spelling_of_an_owners_path_passes(text: str, expected: str) -> None:
    assert scrubbed(text, url="file:///srv/git/my%20docs.git") == expected


def test_the_resolved_path_of_a_file_url_does_not_pass(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    text = f"dubious ownership in '{tmp_path}/real/x.git'"
    assert scrubbed(text, url=f"file://{tmp_path}/link/x.git") == "dubious ownership in '<url>'"


@pytest.mark.parametrize("url", ["https://git.example", "https://git.example/", "file:///"])
def test_a_url_without_a_path_does_not_blot_out_every_slash(url: str) -> None:
    assert scrubbed("a / b and /c", url=url) == "a / b and /c"


def test_a_path_of_one_word_is_told_from_prose() -> None:
    url = "https://git.example/docs"
    assert scrubbed("no docs in /docs or /docstore", url=url) == "no docs in <url> or /docstore"


def test_without_an_owner_its_url_stays() -> None:
    assert scrubbed("https://git.example/docs") == "https://git.example/docs"


@pytest.mark.row("G4")
def test_the_cache_is_named_in_no_spelling(tmp_path: Path) -> None:
    (tmp_path / "real-é").mkdir()
    link = tmp_path / "real-é" / ".." / "link"
    link.symlink_to(tmp_path / "real-é")
    scrubber = Scrubber([], cache_dir=link)
    resolved = tmp_path / "real-é"
    text = f"open {link}/acme; {resolved}/acme; {json.dumps(str(resolved))}; {resolved}2"
    expected = f'open <cache>/acme; <cache>/acme; "<cache>"; {resolved}2'
    assert scrubber.scrub(text) == expected


def test_a_source_beside_the_cache_becomes_the_url_and_not_half_a_cache_path() -> None:
    scrubber = Scrubber([], cache_dir=Path("/srv/cache"))
    text = "/srv/cache-origin.git into /srv/cache/acme"
    assert scrubber.scrub(text, urls=["file:///srv/cache-origin.git"]) == "<url> into <cache>/acme"


@pytest.mark.parametrize(
    "unit", ["a", "://", "://a", "https://", "a@", "%2F", "/acme", "git.example", "abcd" * 8]
)
def test_scrubbing_a_long_text_takes_time_in_proportion_to_its_length(unit: str) -> None:
    scrubber = Scrubber([Secret("abcd" * 16 + "e")], cache_dir=Path("/srv/cache"))

    def seconds(length: int) -> float:
        text = unit * (length // len(unit))
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            scrubber.scrub(text, urls=[HTTPS])
            best = min(best, time.process_time() - start)
        return best

    # Ten times the text: quadratic would be a hundred times the time.
    assert seconds(400_000) < 40 * seconds(40_000) + 0.05


def formatted(record: logging.LogRecord) -> str:
    inner = logging.Formatter("%(levelname)s %(message)s")
    return ScrubbingFormatter(inner, Scrubber([Secret("s3cr3tvalue")])).format(record)


def record_of(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("okf", logging.INFO, "here.py", 7, message, args, exc_info)


@pytest.mark.row("G4")
def test_a_log_line_is_scrubbed_with_its_arguments() -> None:
    assert formatted(record_of("asked url=%s", "https://u:s3cr3tvalue@h/x")) == (
        "INFO asked url=https://***@h/x"
    )


@pytest.mark.row("G4")
def test_a_traceback_in_the_log_is_scrubbed() -> None:
    with pytest.raises(ValueError, match="s3cr3tvalue") as raised:
        raise ValueError("s3cr3tvalue") from KeyError("s3cr3tvalue")
    line = formatted(record_of("pull failed", error=raised.value))
    assert "ValueError: ***" in line
    assert "KeyError: '***'" in line
    assert "s3cr3tvalue" not in line


def test_a_record_that_can_not_be_formatted_is_not_printed_raw() -> None:
    line = formatted(record_of("count=%d", "s3cr3tvalue"))
    assert line.startswith("log record lost logger=okf line=7")
    assert "s3cr3tvalue" not in line


@pytest.mark.row("G4", "H5")
def test_of_several_urls_each_is_taken_out_whole() -> None:
    urls = [
        "https://git.example/team/one.git",
        "https://git.example/one",
        "file:///srv/git/team/one.git",
        "file:///srv",
    ]
    for url in urls:
        assert Scrubber([]).scrub(f"asked for '{url}'", urls=urls) == "asked for '<url>'"
    assert Scrubber([]).scrub("fatal: '/srv/git/team/one.git'", urls=urls) == "fatal: '<url>'"
    assert Scrubber([]).scrub("at team%2Fone of git.example", urls=urls) == (
        "at <url> of git.example"
    )
