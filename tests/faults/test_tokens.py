"""A token is seen by nobody.

Canaries stand for the north token and for the south tokens of three hosts, one of which is hostile
and says the token that it was given wherever a host has a word. They are looked for in the command
line and the environment of every process below the gateway, in every file of its folder, in its
log and in all that it answers. How one git command gets its token is in
tests/gateway/source/test_git.py, what the scrubber knows in tests/gateway/test_scrub.py.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

from support.gateway_process import GatewayProcess, wait_until
from support.git_http import GitHttpServer, GitHttpServerFactory
from support.hostile_host import (
    FLUSH,
    Asked,
    HostileHost,
    Said,
    fetch_answer,
    greeting,
    packet,
    ref_line,
)
from support.process_watch import ProcessWatch
from support.repositories import RepositoryFactory

USER: Final = "x-access-token"
NORTH: Final = "north/Canary+4711 %"
SOUTH: Final = {name: f"south-{name}/Canary+0815 %" for name in ("one", "two", "evil")}
LIST_RESOURCES: Final = {"jsonrpc": "2.0", "id": 1, "method": "resources/list"}
ACCEPT: Final = {"Accept": "application/json, text/event-stream"}
TRICKLE_SECONDS: Final = 0.002


def spellings(secret: str) -> set[bytes]:
    """Return the ways in which a secret may turn up, also inside of longer base64."""
    quoted = {quote(secret, safe=""), quote(secret)}
    encoded = {
        b64encode(b"\0" * shift + secret.encode())[4 * (shift > 0) : -4] for shift in range(3)
    }
    plain = {secret, json.dumps(secret)[1:-1], *quoted, *(map(lower_escapes, quoted))}
    url_safe = {each.translate(bytes.maketrans(b"+/", b"-_")) for each in encoded}
    return {*(each.encode() for each in plain), *encoded, *url_safe}


def lower_escapes(quoted: str) -> str:
    return re.sub("%..", lambda escape: escape[0].lower(), quoted)


def login_of(asked: Asked) -> str | None:
    """Return the `user:token` that a request brought."""
    given = asked.headers["Authorization"]
    return b64decode(given.removeprefix("Basic ")).decode() if given else None


def words_of(asked: Asked) -> str:
    """Return what a hostile host may say of a login: the token in all ways, and the header."""
    token = (login_of(asked) or "").partition(":")[2]
    header = asked.headers["Authorization"]
    return f"{token} {quote(token, safe='')} {quote(token)} {header} http://{USER}:{token}@x/"


def challenge(realm: str) -> Said:
    return Said([b"log in"], 401, [("WWW-Authenticate", f'Basic realm="{realm}"')])


def say_error(asked: Asked) -> Said:
    """Say it as git's own protocol tells an error."""
    return Said([packet(b"# service=git-upload-pack\n") + FLUSH, packet(_line("ERR ", asked))])


def say_body(asked: Asked) -> Said:
    """Say it in the page of an error."""
    page = words_of(asked).encode()
    return Said([page], 500, [("Content-Type", "text/plain")])


def say_reason(asked: Asked) -> Said:
    """Say it in the line of the status, and in a header."""
    return Said([], 403, [("X-Words", words_of(asked))])


def say_realm(asked: Asked) -> Said:
    """Say it where a host says who asks for the login."""
    return challenge(words_of(asked).replace('"', ""))


def say_redirect(asked: Asked) -> Said:
    """Say it in the address that it sends git to."""
    token = (login_of(asked) or "").partition(":")[2]
    return Said([], 302, [("Location", f"http://127.0.0.1:1/{quote(token, safe='')}/info/refs")])


def say_ref(asked: Asked) -> Said:
    """Say it in place of a ref."""
    return Said([greeting()]) if asked.step == "greet" else Said([packet(_line("", asked))])


def say_progress(asked: Asked) -> Said:
    """Say it as progress, and as the error that ends it."""
    commit = "12" * 20
    if asked.step == "greet":
        return Said([greeting()])
    if asked.step == "refs":
        return Said([ref_line(commit) + FLUSH])
    start = b"".join(fetch_answer(asked, commit, []))[: -len(FLUSH)]
    bands = packet(b"\2" + _line("", asked)) + packet(b"\3" + _line("", asked))
    return Said([start, bands])


def _line(start: str, asked: Asked) -> bytes:
    return f"{start}{words_of(asked)}\n".encode()


SAYINGS: Final[dict[str, Callable[[Asked], Said]]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        *(say_error, say_body, say_reason, say_realm, say_redirect, say_ref, say_progress),
    )
}


def say(asked: Asked) -> Said:
    """Ask for a login, then say what it was."""
    return SAYINGS[asked.name](asked) if login_of(asked) else challenge("evil")


@pytest.fixture
def evil() -> Iterator[HostileHost]:
    with HostileHost(say) as host:
        yield host


@pytest.fixture
def hosts(git_http_server: GitHttpServerFactory) -> dict[str, GitHttpServer]:
    """Two honest hosts, each with a token of its own."""
    return {
        name: git_http_server(user=USER, password=SOUTH[name], host=host)
        for name, host in (("one", "127.0.0.1"), ("two", "127.0.0.2"))
    }


def registry(hosts: dict[str, GitHttpServer], evil: HostileHost) -> str:
    """Name owners of both honest hosts, one that is sent on, and one a saying."""
    urls = {
        "one": hosts["one"].url_of("one.git"),
        "two": hosts["two"].url_of("two.git"),
        "gone": hosts["two"].url_of("gone.git"),
        "stray": hosts["one"].url_of("stray.git"),
        **{name: evil.url_of(name) for name in SAYINGS},
    }
    authorities = {"one": hosts["one"].authority, "two": hosts["two"].authority}
    return json.dumps(
        {
            "owners": {name: {"url": url, "ttl": 0} for name, url in urls.items()},
            "credentials": {
                authority: {"token_env": f"OKF_GIT_TOKEN_{name.upper()}"}
                for name, authority in {**authorities, "evil": evil.authority}.items()
            },
        }
    )


def all_answers(process: GatewayProcess) -> bytes:
    """Ask for everything that the gateway has to say, and return it."""
    owners = list(process.status()["owners"])
    token = quote(NORTH, safe="")
    paths = (
        *("/healthz", "/config", "/config?format=yaml", "/one/mcp", "/.well-known/x"),
        "/status?artifacts=true&diagnostics=true",
        "/status?artifacts=true&diagnostics=true&format=yaml",
        *(f"/status?format={token}", f"/nope/{token}", f"/{token}/mcp"),
    )
    answers = [
        *(process.refresh(owner) for owner in (*owners, "ghost")),
        *(process.post(f"/{owner}/mcp", LIST_RESOURCES, headers=ACCEPT) for owner in owners),
        *(process.get(path) for path in paths),
        process.get("/status", token=False),
        process.get("/status", token=f"{NORTH[:-2]}x"),
    ]
    return b"".join(answer.body + str(answer.headers).encode() for answer in answers)


def files_of(folder: Path) -> bytes:
    """Return all that stands in a folder: names and contents."""
    paths = list(folder.rglob("*"))
    found = [str(path).encode() for path in paths]
    for path in paths:
        with suppress(FileNotFoundError, IsADirectoryError):  # git took it away, or it is a folder
            found.append(path.read_bytes())
    return b"\0".join(found)


@pytest.mark.row("G4", "H8")
def test_no_process_file_log_line_or_answer_shows_a_token_and_each_host_gets_its_own(
    hosts: dict[str, GitHttpServer],
    evil: HostileHost,
    new_repository: RepositoryFactory,
    tmp_path: Path,
) -> None:
    for name in ("one", "two", "stray"):
        new_repository(name).publish_document(f"Of {name}.")
    # The host of one sends an owner on to that of two, where no token of one may be brought.
    hosts["one"].redirect(hosts["two"].url, when=lambda asked: asked.path.startswith("/stray"))
    trace = tmp_path / "traces"
    process = GatewayProcess(
        tmp_path / "gateway",
        registry(hosts, evil),
        token=NORTH,
        environment={
            **{f"OKF_GIT_TOKEN_{name.upper()}": token for name, token in SOUTH.items()},
            "OKF_GATEWAY_LOG_FORMAT": "json",
            "OKF_GATEWAY_LOG_LEVEL": "debug",
            **dict.fromkeys(("GIT_TRACE", "GIT_TRACE2_EVENT", "GIT_TRACE_CURL"), str(trace)),
            "GIT_TRACE_PACKET": str(trace),
            "GIT_TRACE_REDACT": "0",
            "GIT_CURL_VERBOSE": "1",
        },
    )
    # Slow enough to be seen, again and again, at every step.
    hosts["two"].trickle(TRICKLE_SECONDS, when=lambda asked: asked.is_fetch)
    with ExitStack() as stack:
        process.start()
        stack.callback(process.close)
        watch = stack.enter_context(ProcessWatch(process.pid))
        process.wait_for_state("one", "serving")
        process.wait_for_state("two", "serving")
        wait_until(lambda: process.status()["summary"]["loading"] == 0, 20.0)
        failed = {name for name, each in process.status()["owners"].items() if "error" in each}
        files = files_of(process.folder)
        answers = all_answers(process)
        assert process.stop() == 0
    assert failed == {"gone", "stray", *SAYINGS}
    assert {"git-remote-http", "askpass.sh"} <= watch.names
    assert not trace.exists()
    processes = b"\n".join(watch.shown)
    assert b"OKF_ASKPASS_FD=" in processes
    everything = {
        "a process": processes,
        "a file": files + files_of(process.folder),
        "the log": process.log.encode(),
        "an answer": answers,
    }
    forms = {form for secret in (NORTH, *SOUTH.values()) for form in spellings(secret)}
    assert [
        (place, form) for place in everything for form in forms if form in everything[place]
    ] == []
    brought = {
        "one": {each.headers["Authorization"] for each in hosts["one"].exchanges},
        "two": {each.headers["Authorization"] for each in hosts["two"].exchanges},
        "evil": {each.headers["Authorization"] for each in evil.asked},
    }
    assert brought == {
        name: {None, f"Basic {b64encode(f'{USER}:{SOUTH[name]}'.encode()).decode()}"}
        for name in brought
    }
