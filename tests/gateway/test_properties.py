"""What holds for every configuration, text, request and course of events.

Hypothesis makes them, the same ones in each run; `OKF_SOAK` asks for more. That git takes the same
names for branches as we do is asked in `test_branch_name.py`.
"""

import base64
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from unicodedata import category
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from fuzz.corpus import WORDS
from fuzz.edge import TOKEN, Edge, Headers
from fuzz.targets import STATUSES, TARGETS, Attempt
from okf_mcp_gateway.config import ConfigError, load_configuration
from okf_mcp_gateway.registry import OwnerConfig
from okf_mcp_gateway.registry_file import RegistryReader
from okf_mcp_gateway.scrub import MIN_FORM_LENGTH, Scrubber, Secret
from okf_mcp_gateway.state import (
    Freshness,
    Instant,
    OwnerState,
    PullFault,
    back_off_seconds,
    freshness,
    is_due,
    pulled_age_seconds,
    wait_seconds,
)
from okf_mcp_server.snapshot import Snapshot
from support.in_process import LEGACY, MODERN, NOON, servers
from support.repositories import Repository
from support.soak import soak_scale


def examples(count: int) -> settings:
    """Bound a property; the seed is fixed, so that a run repeats the one before."""
    return settings(
        max_examples=int(count * soak_scale()),
        derandomize=soak_scale() <= 1,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


CANARY: Final = "c4n/ry+T0ken=~7Zq"
"""What no answer, log or fault may hold."""


def is_one_line(text: str) -> bool:
    return all(category(character) not in {"Cc", "Cs", "Zl", "Zp"} for character in text)


# servers.yaml

SCALARS: Final = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    st.sampled_from(
        ["https://h.example/a.git", "file:///a", "main", "OKF_GIT_TOKEN_A", "docs", "60"]
    ),
)
KEYS: Final = st.text(max_size=3) | st.sampled_from(
    [
        *("defaults", "owners", "credentials", "url", "ref", "ttl", "roots", "token_env"),
        "acme",
        "h:1",
    ]
)
REGISTRIES: Final = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
OWNERS: Final = st.fixed_dictionaries({"owners": st.dictionaries(KEYS, REGISTRIES, max_size=3)})
YAML_LIKE: Final = st.lists(
    st.sampled_from(WORDS["servers"]) | st.sampled_from(["\n", "\n  "]) | st.text(max_size=2),
    max_size=25,
).map("".join)


@pytest.mark.row("G3")
@given(
    (REGISTRIES | OWNERS).map(lambda written: json.dumps(written).encode())
    | YAML_LIKE.map(str.encode)
    | st.binary(max_size=60)
)
@examples(250)
def test_whatever_the_registry_holds_it_is_one_or_has_faults_of_one_line(content: bytes) -> None:
    with TARGETS["servers"]() as attempt:
        attempt(content)


PRIVATE: Final[st.SearchStrategy[dict[str, Any]]] = st.sampled_from(
    [
        {"owners": {"acme": {"url": f"https://user:{CANARY}@h.example/a.git"}}},
        {"owners": {"acme": {"url": f"https://{CANARY.replace('/', '')}%40h.example/a.git"}}},
        {"owners": {"acme": {"url": f"ssh://h.example/a.git?token={CANARY}"}}},
        {"owners": {"acme": {"url": f"http://h.example/a.git#{CANARY}"}}},
        {"owners": {"acme": {"url": "file:///a"}}, "credentials": CANARY},
        {"owners": {"acme": {"url": "file:///a"}}, "credentials": {CANARY: {}}},
        {"owners": {"acme": {"url": "file:///a"}}, "credentials": {"h": CANARY}},
        {"owners": {"acme": {"url": "file:///a"}}, "credentials": {"h": {"token_env": CANARY}}},
        {
            "owners": {"acme": {"url": "file:///a"}},
            "credentials": {"h": {"token_user": f"a:{CANARY}"}},
        },
        {"owners": {"acme": {"url": "file:///a", "token": CANARY}}},
        {"token": CANARY},
    ]
)


@pytest.mark.row("G3")
@given(PRIVATE, st.dictionaries(KEYS, REGISTRIES, max_size=2))
@examples(80)
def test_no_fault_of_the_registry_repeats_what_may_be_a_secret(
    tmp_path: Path, private: dict[str, Any], others: dict[str, Any]
) -> None:
    path = tmp_path / "servers.yaml"
    path.write_text(json.dumps({**others, **private}))
    reader = RegistryReader(path, secret=lambda _: Secret())
    reader.read()
    assert reader.faults
    assert all(CANARY[-12:] not in fault for fault in reader.faults)


# The environment

IN_A_VARIABLE: Final = st.characters(
    exclude_characters="\0", exclude_categories=["Cs"]
) | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)
SETTING: Final = st.sampled_from(
    [
        *("OKF_GATEWAY_TOKEN", "OKF_GATEWAY_TOKEN_FILE", "OKF_GATEWAY_SERVERS", "OKF_GATEWAY_HOST"),
        *("OKF_GATEWAY_CACHE_DIR", "OKF_GATEWAY_PORT", "OKF_GATEWAY_PULL_WAIT", "OKF_GIT_TOKEN_A"),
        *("OKF_GATEWAY_GIT_TIMEOUT", "OKF_GATEWAY_ALLOWED_ORIGINS", "OKF_GATEWAY_LOG_FORMAT"),
        *(
            "OKF_GATEWAY_LOG_LEVEL",
            "OKF_GATEWAY_X\nY",
            "OKF_GIT_TOKEN_A_FILE",
            "OKF_GIT_TOKEN_B\nC",
        ),
        *("OKF_GIT_TOKEN_B\nC_FILE", "HOME", "PATH", "XDG_CACHE_HOME"),
    ]
)
SETTING_TEXT: Final = (
    st.sampled_from(
        ["servers.yaml", "0", "5", "1e3", "json", "https://a.example", CANARY, "/", "."]
    )
    | st.text(IN_A_VARIABLE, max_size=8)
    | st.just(f"{CANARY}\n2")
)
DOTENV: Final = st.lists(
    st.tuples(SETTING.map(lambda name: name.replace("\n", "")) | st.text(max_size=4), SETTING_TEXT)
    .map(lambda pair: f"{pair[0]}={pair[1]}\n")
    .map(lambda line: line.encode("utf-8", "surrogateescape"))
    | st.sampled_from([b"'OKF_GATEWAY_A\nB'=1\n", b"A='\n", b"export A\n", b"=\n", b"\xff"]),
    max_size=4,
).map(b"".join)


@pytest.mark.row("G1")
@given(st.dictionaries(SETTING, SETTING_TEXT, max_size=6), DOTENV)
@example({"OKF_GATEWAY_TOKEN": "x", "OKF_GIT_TOKEN_B\nC": "x", "OKF_GIT_TOKEN_B\nC_FILE": "y"}, b"")
@example({}, b"'OKF_GATEWAY_A\nB'=1\n")
@examples(150)
def test_whatever_the_environment_holds_it_is_a_configuration_or_faults_of_one_line(
    tmp_path: Path, environ: dict[str, str], dotenv: bytes
) -> None:
    (tmp_path / ".env").write_bytes(dotenv)
    (tmp_path / "servers.yaml").write_text(servers(acme="file:///a"))
    try:
        configuration = load_configuration(environ, tmp_path)
    except ConfigError as error:
        faults = error.faults
        assert faults
        assert all(map(is_one_line, faults)), faults
    else:
        assert configuration.settings.token.reveal()
        assert configuration.settings.cache_dir.is_absolute()
        assert 0 <= configuration.settings.port <= 65_535


@pytest.mark.row("G1")
@given(
    st.sampled_from(["OKF_GATEWAY_TOKEN", "OKF_GIT_TOKEN_A"]),
    st.dictionaries(SETTING, st.just(CANARY), max_size=4),
    st.sampled_from(["", "\n", " "]),
)
@examples(100)
def test_no_fault_of_the_configuration_repeats_a_token_wherever_it_was_pasted(
    tmp_path: Path, holder: str, pasted: dict[str, str], end: str
) -> None:
    (tmp_path / "servers.yaml").write_text(servers(acme={"url": CANARY, "ref": CANARY}))
    with pytest.raises(ConfigError) as refused:
        load_configuration({**pasted, holder: CANARY + end, "PATH": ""}, tmp_path)
    assert all(CANARY not in fault for fault in refused.value.faults)


# The scrubber

# Stars are what we write ourselves, and a secret of white space is none.
TOKENS: Final = st.text(
    st.characters(exclude_characters="*\u2028\u2029", exclude_categories=["Cs", "Cc", "Zs"]),
    min_size=8,
    max_size=24,
)
PROSE: Final = st.text(max_size=12) | st.sampled_from(
    [
        "fatal: ",
        "https://",
        "://a@",
        "@h.example/",
        "'",
        '"',
        "\\",
        "Basic ",
        "%",
        "user:",
        "\n",
        "=",
    ]
)


def forms(token: str, before: str, after: str) -> Iterator[tuple[str, str]]:
    """Yield a text with the token in it, as others write it, and what of that is the token's."""
    yield before + token + after, token
    for safe in ("", "/"):
        yield quote(before + token + after, safe=safe), quote(token, safe=safe)
        lowered = re.sub("%..", lambda code: code[0].lower(), quote(token, safe=safe))
        yield before + lowered + after, lowered
    yield json.dumps(before + token + after), json.dumps(token)[1:-1]
    for shift in range(3):
        lead = before.encode() + b"." * ((shift - len(before.encode())) % 3)
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            # Characters at the ends are made of their neighbours' bits, too.
            inner = encode(b"." * (len(lead) % 3) + token.encode() + b"...").decode()
            first, last = -(-len(lead) % 3 * 8 // 6), (len(lead) % 3 + len(token.encode())) * 8 // 6
            yield encode(lead + token.encode() + after.encode()).decode(), inner[first + 2 : last]


@pytest.mark.row("G4")
@given(TOKENS, PROSE, PROSE)
@examples(150)
def test_no_form_of_a_secret_survives_whatever_stands_around_it(
    token: str, before: str, after: str
) -> None:
    scrubber = Scrubber([Secret(token)])
    for text, private in forms(token, before, after):
        clean = scrubber.scrub(text)
        assert len(private) < MIN_FORM_LENGTH or private not in clean
        assert scrubber.scrub(clean) == clean


@pytest.mark.row("G4")
@given(st.lists(TOKENS, max_size=3), st.lists(PROSE | TOKENS, max_size=8).map("".join), st.data())
@examples(120)
def test_scrubbing_twice_is_scrubbing_once_with_several_secrets_and_urls(
    tokens: list[str], text: str, data: st.DataObject
) -> None:
    urls = data.draw(st.lists(st.sampled_from(["https://h.example/a/b.git", "file:///a/b"])))
    scrubber = Scrubber([Secret(token) for token in tokens], cache_dir=Path("/var/cache/x"))
    once = scrubber.scrub(f"{text} {' '.join(urls)} /var/cache/x/acme", urls=urls)
    assert scrubber.scrub(once, urls=urls) == once
    assert not any(private in once for private in (*tokens, *urls, "/var/cache/x"))


# Requests

OWNER_PATHS: Final = ("/acme/mcp", "/acme/mcp/", "/acme/refresh", "/status", "/config", "/healthz")
PATHS: Final = st.sampled_from(
    [*OWNER_PATHS, "/ghost/mcp", "/", "//acme/mcp", "/acme//mcp", "/acme/mcp%2f", "/%2e%2e/status"]
) | st.lists(
    st.sampled_from(
        [
            *(
                "/",
                "acme",
                "mcp",
                "%00",
                "%2e%2e",
                "..",
                "\\",
                "%5c",
                "%ff",
                "%",
                "status",
                "?",
                "&",
            ),
            *("format=", "yaml", "x=1", "artifacts=true", ".well-known/", "%0d%0a", "refresh"),
        ]
    ),
    max_size=6,
).map(lambda parts: f"/{''.join(parts)}")
METHODS: Final = st.sampled_from(
    [
        *("GET", "GET", "GET", "POST", "POST", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"),
        *("TRACE", "CONNECT", "PROPFIND", "x"),
    ]
)
HEADERS: Final = st.lists(
    st.sampled_from(
        [
            *TOKEN,
            *TOKEN,
            *TOKEN,
            (b"authorization", b"Bearer \xff"),
            (b"origin", b"https://evil.example"),
            (b"content-type", b"application/json"),
            (b"content-type", b"text/plain"),
            (b"accept", b"application/json, text/event-stream"),
            (b"accept", b"*/*"),
            (b"mcp-protocol-version", MODERN.encode()),
            (b"mcp-protocol-version", LEGACY.encode()),
            (b"mcp-protocol-version", b"1900-01-01"),
            (b"mcp-method", b"resources/list"),
            (b"mcp-method", b"\xff"),
            (b"mcp-name", b"=?base64?!?="),
            (b"mcp-session-id", b"x" * 5000),
            (b"content-length", b"-1"),
            (b"last-event-id", b"\x01"),
            (b"access-control-request-method", b"POST"),
        ]
    )
    | st.tuples(st.binary(min_size=1, max_size=4), st.binary(max_size=4)),
    max_size=7,
).map(tuple)
BODIES: Final = st.binary(max_size=20) | st.lists(
    st.sampled_from([*WORDS["requests"], "{", "}", ",", ":", "[", "]"]), max_size=12
).map(lambda words: "".join(words).encode())

ALLOWED: Final = STATUSES | {401, 403, 404, 405}
"""All that a healthy gateway answers; 503 and 502 are for owners that are not."""


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """A gateway whose owner `acme` is served."""
    folder = tmp_path_factory.mktemp("edge")
    repository = Repository(folder / "repositories")
    repository.document("a.md", id="a")
    repository.publish()
    with Edge(folder / "gateway", servers(acme=repository.url)) as edge:
        yield edge


@pytest.fixture(scope="module")
def attempt() -> Iterator[Attempt]:
    """What sends a body, and raises if the answer isn't one that we allow."""
    with TARGETS["requests"]() as attempt:
        yield attempt


@pytest.mark.row("H1", "H8")
@given(METHODS, PATHS, HEADERS, BODIES)
@example("GET", "/status", TOKEN * 2, b"")
@examples(250)
def test_every_request_is_answered_by_a_status_that_we_know_and_errors_are_json(
    edge: Edge, method: str, path: str, headers: Headers, body: bytes
) -> None:
    reply = edge.ask(method, path, headers, body)
    assert reply.status in ALLOWED
    if reply.status >= 400 and method != "HEAD":
        assert reply.header(b"content-type").startswith(b"application/json")
        assert json.loads(reply.body)["error"]
    tokens = [value for name, value in headers if name.lower() == b"authorization"]
    if tokens != [TOKEN[0][1]] and reply.status < 400:
        assert (path.partition("?")[0], method) in {("/healthz", "GET"), ("/healthz", "HEAD")}


def as_call(method: str, params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


@pytest.mark.row("H2")
@given(
    st.sampled_from([b"\0", b"\1", b"\2", b"\3"]),
    BODIES
    | st.builds(
        as_call,
        st.sampled_from(
            ["resources/list", "resources/read", "completion/complete", "initialize", "x"]
        ),
        st.dictionaries(
            st.sampled_from(["uri", "cursor", "ref", "argument", "_meta"]), REGISTRIES, max_size=3
        )
        | SCALARS,
    ),
)
@examples(200)
def test_no_body_of_a_request_is_an_internal_error(
    attempt: Attempt, kind: bytes, body: bytes
) -> None:
    attempt(kind + body)


# States

TTL_SECONDS: Final = 60
FAULTS: Final = st.sampled_from(
    [
        PullFault("CloneError", "x", "timeout"),
        PullFault("CloneError", "x"),
        PullFault("LoadError", "x"),
    ]
)


def nothing(commit: str) -> Snapshot:
    return Snapshot(
        commit=commit,
        roots=(),
        documents=(),
        starts=(),
        shadowed=(),
        diagnostics=(),
        verdicts={},
        listing=None,
        parsed_files=0,
    )


class Life(RuleBasedStateMachine):
    """An owner's state through pulls, restarts, and clocks that jump."""

    def __init__(self) -> None:
        super().__init__()
        self.now = Instant(NOON, 1000.0)
        self.state = OwnerState()

    @rule(seconds=st.floats(0, 200))
    def time_passes(self, seconds: float) -> None:
        self.now = self.now.later(seconds)

    @rule(days=st.integers(-3650, 3650))
    def the_wall_clock_jumps(self, days: int) -> None:
        at = min(max(self.now.at + timedelta(days=days), NOON - timedelta(days=9000)), NOON)
        self.now = Instant(at, self.now.seconds)

    @rule()
    def a_pull_succeeds(self) -> None:
        self.state = OwnerState(nothing("a" * 40), pulled_at=self.now, attempted_at=self.now)

    @rule(fault=FAULTS)
    def a_pull_fails(self, fault: PullFault) -> None:
        before = self.state
        self.state = before.after_failure(fault, self.now)
        assert self.state.snapshot is before.snapshot
        assert self.state.pulled_at == before.pulled_at

    @rule(days=st.integers(-3650, 3650))
    def the_gateway_starts_again_with_a_copy(self, days: int) -> None:
        pulled_at = self.now.back_to(self.now.at + timedelta(days=days))
        self.state = OwnerState(nothing("b" * 40), pulled_at=pulled_at, attempted_at=pulled_at)

    @invariant()
    def ages_are_never_negative(self) -> None:
        age = pulled_age_seconds(self.state, self.now)
        assert (age is None) == (self.state.pulled_at is None)
        assert age is None or age >= 0

    @invariant()
    def a_request_pulls_when_status_says_so(self) -> None:
        for ref, ttl in (("main", TTL_SECONDS), ("main", 0), ("a" * 40, 0)):
            config = OwnerConfig("acme", "file:///a", ref, ttl)
            verdict = freshness(self.state, config.fresh_seconds, self.now)
            assert (verdict is Freshness.STALE) == self.state.is_stale
            assert (verdict is Freshness.UNKNOWN) == (self.state.snapshot is None)
            if self.state.fault is None and self.state.snapshot is not None:
                is_always_due = ttl == 0 and not config.is_pinned
                is_old = verdict is Freshness.STALE_TTL
                assert is_due(self.state, config, self.now) == (is_always_due or is_old)
            later = self.now.later(TTL_SECONDS + 2)  # one for the fractions of floats
            if not config.is_pinned and self.state.snapshot is not None:
                assert is_due(self.state, config, later)  # no owner is stuck

    @invariant()
    def the_name_says_what_there_is(self) -> None:
        expected = "failed" if self.state.fault else "loading"
        assert self.state.name == ("serving" if self.state.snapshot else expected)

    @invariant()
    def nobody_waits_longer_than_allowed(self) -> None:
        assert 0 <= wait_seconds(self.state, 5.0) <= (1.0 if self.state.fault else 5.0)


@pytest.mark.row("S1", "S2", "P2")
def test_an_owner_is_what_its_pulls_made_of_it_whatever_the_clocks_do() -> None:
    run_state_machine_as_test(Life, settings=examples(40))


@pytest.mark.row("P3")
@given(st.integers(1, 10**6))
@examples(100)
def test_the_back_off_grows_and_ends_at_a_minute(failures: int) -> None:
    assert 1.0 <= back_off_seconds(failures) <= back_off_seconds(failures + 1) <= 60.0
