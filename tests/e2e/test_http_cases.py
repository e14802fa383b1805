"""The handed HTTP rows, one by one, against the real gateway.

A row is a request and what must come, both in words. Words that are not known here fail the row.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
import yaml

from support.gateway_process import Answer, GatewayProcess
from support.git_http import GitHttpServer
from support.repositories import Repository

CASES: Final = Path(__file__).parents[1] / "fixtures" / "cases" / "http"
FILES: Final[dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_bytes()) for path in sorted(CASES.glob("*.yaml"))
}
ROWS: Final[list[dict[str, Any]]] = [row for file in FILES.values() for row in file["rows"]]
SETUP: Final = (
    "gateway on a free port; token in $TOKEN; owner acme healthy, owner beta failed"
    " (unless a row says otherwise)"
)
ALWAYS: Final = [
    "no 5xx except where a row says so",
    "no secret in any body, header or log line",
]
REQUEST: Final = re.compile(
    r"(?P<method>GET|POST) (?P<path>\S+)"
    r"(?: (?P<how>(?! ).+?))?(?:  [Aa]uthorization: (?P<given>.*))?"
)
NORTH_TOKEN: Final = "north/canary+of=the tests".replace(" ", "-")
SOUTH_TOKEN: Final = "south/canary+of=the-tests"
PULL_WAIT_SECONDS: Final = 0.5
ACCEPT: Final = {"Accept": "application/json, text/event-stream"}


@dataclass(frozen=True, slots=True)
class House:
    """The gateway of all rows, and the host that its owner `acme` comes from."""

    gateway: GatewayProcess
    host: GitHttpServer
    urls: tuple[str, ...]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway whose owner acme is healthy, beta failed, and slow loading for ever."""
    folder = tmp_path_factory.mktemp("http-cases")
    repository = Repository(folder / "repositories", "private-knowledge")
    repository.document("a.md", id="a")
    repository.publish()
    with ExitStack() as stack:
        host = stack.enter_context(
            GitHttpServer(folder / "repositories", user="git", password=SOUTH_TOKEN)
        )
        slow = stack.enter_context(GitHttpServer(folder / "repositories"))
        slow.hang()
        missing = (folder / "repositories" / "private-nothing.git").as_uri()
        urls = (host.url_of(repository), missing, slow.url_of(repository))
        registry = {
            "defaults": {"ttl": 0},
            "owners": {
                name: {"url": url} for name, url in zip(("acme", "beta", "slow"), urls, strict=True)
            },
            "credentials": {host.authority: {"token_env": "OKF_GIT_TOKEN_A", "token_user": "git"}},
        }
        gateway = stack.enter_context(
            GatewayProcess(
                folder / "gateway",
                json.dumps(registry),
                token=NORTH_TOKEN,
                environment={
                    "OKF_GIT_TOKEN_A": SOUTH_TOKEN,
                    "OKF_GATEWAY_PULL_WAIT": str(PULL_WAIT_SECONDS),
                    "OKF_GATEWAY_LOG_LEVEL": "debug",
                },
            )
        )
        gateway.wait_for_state("acme", "serving")
        gateway.wait_for_state("beta", "failed")
        slow.wait_for_requests(1)
        yield House(gateway, host, urls)


def ask(
    house: House,
    method: str,
    path: str,
    given: str | None,
    content: object = None,
    **headers: str,
) -> Answer:
    """Send a request with this `Authorization`, and see that what always holds does."""
    sent = {"Content-Type": "application/json", **ACCEPT, **headers}
    if given is not None:
        sent["Authorization"] = given
    body = b"" if content is None else json.dumps(content).encode()
    answer = house.gateway.request(method, path, token=False, headers=sent, body=body)
    shown = f"{answer.headers}\n{answer.text}\n{house.gateway.log}"
    for secret in spellings(NORTH_TOKEN, SOUTH_TOKEN):
        assert secret not in shown
    return answer


def spellings(*secrets: str) -> set[str]:
    """Return the ways in which a secret may turn up."""
    plain = {*secrets, *(f"git:{secret}" for secret in secrets)}
    encoded = {b64encode(secret.encode()).decode().rstrip("=") for secret in plain}
    return {*plain, *(quote(secret, safe="") for secret in secrets), *encoded}


def message(method: str) -> dict[str, Any]:
    """Return a JSON-RPC request of a client from before 2026-07-28."""
    client = {"name": "tests", "version": "1"}
    params: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": client,
        },
        "resources/read": {"uri": "knowledge://acme/note/a"},
    }.get(method, {})
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


# How the requests are sent: by the words between path and header.


def send_plainly(house: House, method: str, path: str, given: str | None) -> list[Answer]:
    return [ask(house, method, path, given)]


def send_initialize(house: House, method: str, path: str, given: str | None) -> list[Answer]:
    return [ask(house, method, path, given, message("initialize"))]


def send_initialize_to_docker(
    house: House, method: str, path: str, given: str | None
) -> list[Answer]:
    host = "host.docker.internal:8080"
    return [ask(house, method, path, given, message("initialize"), Host=host)]


def send_50_times(house: House, method: str, path: str, given: str | None) -> list[Answer]:
    return [ask(house, method, path, given) for _ in range(50)]


def send_for_yaml_too(house: House, method: str, path: str, given: str | None) -> list[Answer]:
    return [ask(house, method, path, given), ask(house, method, f"{path}?format=yaml", given)]


def send_what_needs_content_and_what_does_not(
    house: House, method: str, path: str, given: str | None
) -> list[Answer]:
    methods = ("initialize", "ping", "tools/list", "resources/list", "resources/read")
    modern = {
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "server/discover",
    }
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    discover = {**message("server/discover"), "params": {"_meta": meta}}
    legacy = [ask(house, method, path, given, message(each)) for each in methods]
    return [ask(house, method, path, given, discover, **modern), *legacy]


SENDERS: Final[dict[str | None, Callable[[House, str, str, str | None], list[Answer]]]] = {
    None: send_plainly,
    "initialize": send_initialize,
    "initialize with Host: host.docker.internal:8080": send_initialize_to_docker,
    "50 times while ttl is 0": send_50_times,
    "and ?format=yaml": send_for_yaml_too,
    "while the first clone is still running": send_what_needs_content_and_what_does_not,
    "for an owner in state failed": send_what_needs_content_and_what_does_not,
}
GIVEN: Final = {
    "Basic (base64 of x:$TOKEN)": f"Basic {b64encode(f'x:{NORTH_TOKEN}'.encode()).decode()}",
    r"Bearer \xe9\xff (raw bytes)": "Bearer \xe9\xff",
}

# What must come: by the words of the row. A plain status is one answer of that status.


def is_ok(_: House, answers: list[Answer]) -> None:
    assert [(answer.status, answer.text) for answer in answers] == [(200, "ok")]


def has_status(status: int) -> Callable[[House, list[Answer]], None]:
    def check(_: House, answers: list[Answer]) -> None:
        assert [answer.status for answer in answers] == [status]
        if status >= 400:
            assert isinstance(answers[0].json["error"], str)
        if status == 401:
            assert answers[0].headers["WWW-Authenticate"] == "Bearer"
        if status == 405:
            assert answers[0].headers["Allow"]

    return check


def is_json(house: House, answers: list[Answer]) -> None:
    has_status(200)(house, answers)
    assert answers[0].headers["Content-Type"] == "application/json"
    assert list(answers[0].json)[:4] == ["process", "defaults", "owners", "credentials"]


def is_the_same_as_yaml(house: House, answers: list[Answer]) -> None:
    has_status(200)(house, answers)
    assert answers[0].headers["Content-Type"] == "application/yaml"
    assert json.dumps(yaml.safe_load(answers[0].text)) == json.dumps(
        house.gateway.get("/config").json
    )


def has_artifacts(house: House, answers: list[Answer]) -> None:
    has_status(200)(house, answers)
    shown = {name: row["artifacts"] for name, row in answers[0].json["owners"].items()}
    assert {name: len(artifacts) for name, artifacts in shown.items()} == {
        "acme": 1,
        "beta": 0,
        "slow": 0,
    }


def has_artifacts_in_yaml(house: House, answers: list[Answer]) -> None:
    has_status(200)(house, answers)
    assert answers[0].headers["Content-Type"] == "application/yaml"
    shown = yaml.safe_load(answers[0].text)["owners"]
    assert [artifact["id"] for artifact in shown["acme"]["artifacts"]] == ["a"]
    assert (shown["beta"]["artifacts"], shown["slow"]["artifacts"]) == ([], [])


def has_no_artifacts(house: House, answers: list[Answer]) -> None:
    has_status(200)(house, answers)
    assert all("artifacts" not in row for row in answers[0].json["owners"].values())


def is_pure(house: House, answers: list[Answer]) -> None:
    assert house.gateway.get("/config").json["owners"]["acme"]["ttl"] == 0
    seen = [(each.status, each.json["owners"]["acme"]["last_pull_attempt_at"]) for each in answers]
    assert len(seen) == 50
    assert set(seen) == {(200, seen[0][1])}
    assert house.host.requests == ()


def names_the_variables(_: House, answers: list[Answer]) -> None:
    # That no token is shown, `ask` has seen.
    assert [answer.status for answer in answers] == [200, 200]
    assert all("OKF_GIT_TOKEN_A" in answer.text for answer in answers)


def shows_no_url(house: House, answers: list[Answer]) -> None:
    has_status(200)(house, answers)
    for url in house.urls:
        assert url not in answers[0].text
    assert "private-" not in answers[0].text
    assert "file:" not in answers[0].text


def is_unauthorized_without_a_pull(house: House, answers: list[Answer]) -> None:
    has_status(401)(house, answers)
    assert house.host.requests == ()


def is_405_without_a_pull(house: House, answers: list[Answer]) -> None:
    has_status(405)(house, answers)
    assert house.host.requests == ()


def is_no_redirect(house: House, answers: list[Answer]) -> None:
    has_status(200)(house, answers)
    assert answers[0].headers["Location"] is None
    assert answers[0].json["result"]["protocolVersion"] == "2025-11-25"


def is_answered_without_content_or_503(_: House, answers: list[Answer]) -> None:
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 503, 503]
    assert all("result" in answer.json for answer in answers[:4])
    for answer in answers[4:]:
        assert answer.json == {"error": "slow has nothing to serve: it is loading, see /status"}
        assert answer.headers["Retry-After"] == "1"


def is_503_for_everything(_: House, answers: list[Answer]) -> None:
    assert [answer.status for answer in answers] == [503] * 6
    for answer in answers:
        assert answer.json == {"error": "beta has nothing to serve: it is failed, see /status"}
        assert int(answer.headers["Retry-After"]) >= 1


CHECKS: Final[dict[str, Callable[[House, list[Answer]], None]]] = {
    **{str(status): has_status(status) for status in (200, 400, 401, 404, 405)},
    "200, body ok": is_ok,
    "401, never 500": has_status(401),
    "401 and no pull is made": is_unauthorized_without_a_pull,
    "405 and no pull": is_405_without_a_pull,
    "200 application/json": is_json,
    "200, same structure as YAML": is_the_same_as_yaml,
    "200, every owner has artifacts": has_artifacts,
    "200, no artifacts key": has_no_artifacts,
    "200 YAML with artifacts": has_artifacts_in_yaml,
    "last_pull_attempt_at never moves": is_pure,
    "the values of the token variables appear nowhere; their names do": names_the_variables,
    "no owner url in the body": shows_no_url,
    "200, no redirect": is_no_redirect,
    "200, never a redirect": is_no_redirect,
    (
        "initialize, server/discover, ping, tools/list are answered; list and read wait for the"
        " pull, pull_wait after its start at most, then 503 with Retry-After"
    ): is_answered_without_content_or_503,
    ("503 at once, with a JSON error; never 500 and never an empty list"): is_503_for_everything,
}


def rows_but(*ids: str) -> list[Any]:
    return [
        pytest.param(row, id=row["id"])
        for file in FILES.values()
        for row in file["rows"]
        if row["id"] not in ids
    ]


@pytest.mark.row("H1", "H2", "H6", "H7", "H8")
@pytest.mark.parametrize("row", rows_but("no-token-configured"))
def test_a_handed_row_is_answered_as_it_says(row: dict[str, Any], house: House) -> None:
    request = REQUEST.fullmatch(row["request"])
    assert request, row["request"]
    given = request["given"]
    if given is not None:
        given = GIVEN.get(given, given.replace("$TOKEN", NORTH_TOKEN))
    path = request["path"].replace("$TOKEN", quote(NORTH_TOKEN, safe=""))
    house.host.forget()
    answers = SENDERS[request["how"]](house, request["method"], path, given)
    CHECKS[row["expect"]](house, answers)


@pytest.mark.row("G1")
@pytest.mark.parametrize("token", [None, "", "  "], ids=["absent", "empty", "blank"])
def test_no_token_configured(token: str | None, tmp_path: Path) -> None:
    [row] = [row for row in ROWS if row["id"] == "no-token-configured"]
    assert row["request"] == "start without OKF_GATEWAY_TOKEN, and with it empty or blank"
    assert row["expect"] == "refuses to start"
    process = GatewayProcess(
        tmp_path / "gateway",
        "owners: {acme: {url: 'file:///nonexistent'}}",
        environment={"OKF_GATEWAY_TOKEN": token},
    )
    assert process.run() == 1
    assert "OKF_GATEWAY_TOKEN is required" in process.log


def test_every_file_says_what_is_done_here() -> None:
    found = {name: (file["setup"], file["always"]) for name, file in FILES.items()}
    assert found == dict.fromkeys(("auth", "formats", "routing"), (SETUP, ALWAYS))
    assert len(ROWS) == len({row["id"] for row in ROWS}) == 40


def test_no_answer_of_ours_was_an_error_of_the_server(house: House) -> None:
    assert "Traceback" not in house.gateway.log
    assert "Request crashed" not in house.gateway.log
