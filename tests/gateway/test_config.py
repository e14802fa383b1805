import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from okf_mcp_gateway.config import ConfigError, Configuration, Settings, load_configuration
from okf_mcp_gateway.registry import CredentialRef, Defaults, OwnerConfig

REGISTRY = "owners: {acme: {url: 'https://git.example/acme/k.git'}}\n"
SECRET = "s3cr3tvalue"


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "servers.yaml").write_text(REGISTRY)
    return tmp_path


def environment(**variables: str) -> dict[str, str]:
    base = {"PATH": os.environ["PATH"], "HOME": "/home/okf", "OKF_GATEWAY_TOKEN": SECRET}
    return {**base, **variables}


def load(directory: Path, environ: Mapping[str, str] | None = None) -> Configuration:
    return load_configuration(environment() if environ is None else environ, directory)


def settings(directory: Path, **variables: str) -> Settings:
    return load(directory, environment(**variables)).settings


def faults(directory: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as raised:
        load_configuration(environ, directory)
    assert str(raised.value) == "\n".join(raised.value.faults)
    assert SECRET not in str(raised.value)
    return raised.value.faults


@pytest.mark.row("G1")
def test_only_the_token_is_required_and_the_rest_has_defaults(directory: Path) -> None:
    found = settings(directory)
    assert found == Settings(
        token=found.token,
        servers_path=directory / "servers.yaml",
        cache_dir=Path("/home/okf/.cache/okf-mcp-gateway"),
        host="0.0.0.0",  # noqa: S104 - the contract's default
        port=8080,
        pull_wait_seconds=5.0,
        git_timeout_seconds=120.0,
        allowed_origins=(),
        log_format="text",
        log_level="info",
        max_requests=1000,
        keeps_answers=True,
    )
    assert found.token.reveal() == SECRET


@pytest.mark.row("G1")
def test_the_environment_sets_everything(directory: Path) -> None:
    (directory / "other.yaml").write_text(REGISTRY)
    found = settings(
        directory,
        OKF_GATEWAY_SERVERS="other.yaml",
        OKF_GATEWAY_CACHE_DIR="cache",
        OKF_GATEWAY_HOST="::1",
        OKF_GATEWAY_PORT="0",
        OKF_GATEWAY_PULL_WAIT="2.5",
        OKF_GATEWAY_GIT_TIMEOUT="30",
        OKF_GATEWAY_ALLOWED_ORIGINS="https://App.example, http://localhost:3000,,https://app.example",
        OKF_GATEWAY_LOG_FORMAT="JSON",
        OKF_GATEWAY_LOG_LEVEL="Debug",
        OKF_GATEWAY_MAX_REQUESTS="7",
    )
    assert found == Settings(
        token=found.token,
        servers_path=directory / "other.yaml",
        cache_dir=directory / "cache",
        host="::1",
        port=0,
        pull_wait_seconds=2.5,
        git_timeout_seconds=30.0,
        allowed_origins=("https://app.example", "http://localhost:3000"),
        log_format="json",
        log_level="debug",
        max_requests=7,
        keeps_answers=True,
    )


def test_a_configuration_shows_no_token(directory: Path) -> None:
    assert SECRET not in repr(load(directory))


@pytest.mark.row("G1")
@pytest.mark.parametrize(
    ("variables", "cache_dir"),
    [
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/okf-mcp-gateway"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/okf/.cache/okf-mcp-gateway"),
        ({"XDG_CACHE_HOME": " "}, "/home/okf/.cache/okf-mcp-gateway"),
        ({"XDG_CACHE_HOME": "/xdg", "HOME": ""}, "/xdg/okf-mcp-gateway"),
        ({"OKF_GATEWAY_CACHE_DIR": "/own", "HOME": ""}, "/own"),
    ],
    ids=["xdg", "xdg-relative", "xdg-blank", "no-home", "own"],
)
def test_the_cache_is_found_by_the_first_place_that_is_set(
    directory: Path, variables: dict[str, str], cache_dir: str
) -> None:
    assert settings(directory, **variables).cache_dir == Path(cache_dir)


@pytest.mark.row("G1")
def test_without_any_place_for_the_cache_the_fault_asks_for_one(directory: Path) -> None:
    (fault,) = faults(directory, environment(HOME=""))
    assert fault.startswith("environment: OKF_GATEWAY_CACHE_DIR is not set")


@pytest.mark.row("G1")
def test_dot_env_is_read_as_written_and_the_environment_wins(directory: Path) -> None:
    (directory / ".env").write_bytes(
        b"\xef\xbb\xbfOKF_GATEWAY_TOKEN='pa$HOME ${x}'\r\n"
        b"export OKF_GATEWAY_PORT=81\r\nOKF_GATEWAY_HOST=127.0.0.1\r\n"
    )
    environ = environment(OKF_GATEWAY_PORT="82", OKF_GATEWAY_TOKEN=" ")
    found = load(directory, environ).settings
    assert (found.token.reveal(), found.port, found.host) == ("pa$HOME ${x}", 82, "127.0.0.1")


def test_dot_env_stays_out_of_the_environment(directory: Path) -> None:
    (directory / ".env").write_text("OKF_GATEWAY_LOG_LEVEL=debug\n")
    environ = environment()
    before = dict(environ), dict(os.environ)
    load(directory, environ)
    assert (environ, dict(os.environ)) == before


def test_a_virtual_environment_that_is_named_dot_env_is_not_read(directory: Path) -> None:
    (directory / ".env").mkdir()
    assert load(directory).settings.port == 8080


def test_a_dot_env_that_is_not_text_is_a_fault(directory: Path) -> None:
    (directory / ".env").write_bytes(b"A=\xff\n")
    (fault,) = faults(directory, environment())
    assert fault.startswith(f"{directory}/.env: can't be read")


@pytest.mark.row("G1")
def test_a_fault_in_dot_env_names_it(directory: Path) -> None:
    (directory / ".env").write_text("OKF_GATEWAY_PORT=http\n")
    (fault,) = faults(directory, environment())
    assert fault == (
        f"{directory}/.env, line 1: OKF_GATEWAY_PORT is 'http'; allowed: a whole number from 0"
        " (any free port) to 65535."
    )


@pytest.mark.row("G1")
def test_a_line_of_dot_env_that_sets_nothing_is_a_fault(directory: Path) -> None:
    (directory / ".env").write_text("# ours\nOKF_GATEWAY_PORT: 8300\nOKF_GATEWAY_HOST='::1\n")
    assert faults(directory, environment()) == (
        f"{directory}/.env, line 2: can't be read; allowed: NAME=value, quotes closed.",
        f"{directory}/.env, line 3: can't be read; allowed: NAME=value, quotes closed.",
    )


@pytest.mark.row("G1")
def test_a_misspelt_setting_in_dot_env_is_a_fault(directory: Path) -> None:
    (directory / ".env").write_text("OKF_GATEWAY_TOCKEN=a\nMCP_GATEWAY_TOKEN=b\n")
    (fault,) = faults(directory, environment())
    assert fault.startswith(f"{directory}/.env, line 1: OKF_GATEWAY_TOCKEN is not a setting;")
    assert "OKF_GATEWAY_TOKEN, OKF_GATEWAY_TOKEN_FILE" in fault


@pytest.mark.row("G1")
def test_a_name_like_ours_in_the_environment_is_somebody_elses(directory: Path) -> None:
    load_configuration(environment(OKF_GATEWAY_SERVICE_HOST="10.0.0.1"), directory)


@pytest.mark.row("G1")
@pytest.mark.parametrize(
    "variables",
    [
        {"OKF_GATEWAY_TOKEN": ""},
        {"OKF_GATEWAY_TOKEN": " \t"},
        {"OKF_GATEWAY_TOKEN": "", "OKF_GATEWAY_TOKEN_FILE": "absent"},
        {"OKF_GATEWAY_TOKEN": "", "OKF_GATEWAY_TOKEN_FILE": "blank"},
        {"OKF_GATEWAY_TOKEN": "", "OKF_GATEWAY_TOKEN_FILE": "."},
    ],
    ids=["empty", "blank", "absent-file", "blank-file", "directory"],
)
def test_the_north_token_is_required(directory: Path, variables: dict[str, str]) -> None:
    (directory / "blank").write_text("\n")
    (fault,) = faults(directory, environment(**variables))
    assert fault.startswith("environment: OKF_GATEWAY_TOKEN is required")


@pytest.mark.row("G1")
def test_the_north_token_may_come_from_a_file_that_rotates(directory: Path) -> None:
    (directory / "token").write_text("first\n")
    clock = ManualClock()
    environ = environment(OKF_GATEWAY_TOKEN="", OKF_GATEWAY_TOKEN_FILE="token")
    token = load_configuration(environ, directory, clock=clock).settings.token
    assert token.reveal() == "first"
    (directory / "token").write_text("second\n")
    clock.seconds += 1
    assert token.reveal() == "second"


@pytest.mark.row("G1")
def test_a_token_and_its_file_are_not_both_set(directory: Path) -> None:
    (directory / "token").write_text(SECRET)
    (fault,) = faults(directory, environment(OKF_GATEWAY_TOKEN_FILE="token"))
    assert "OKF_GATEWAY_TOKEN and OKF_GATEWAY_TOKEN_FILE are both set" in fault


@pytest.mark.parametrize("token", [f"{SECRET}\nX-Evil: 1", f"{SECRET}\x00", f"a\u2028{SECRET}"])
@pytest.mark.parametrize("is_file", [False, True], ids=["value", "file"])
def test_a_token_that_no_header_could_carry_is_a_fault_and_not_repeated(
    directory: Path, token: str, is_file: bool
) -> None:
    (directory / "token").write_bytes(token.encode())
    variables = {"OKF_GATEWAY_TOKEN": token}
    if is_file:
        variables = {"OKF_GATEWAY_TOKEN": "", "OKF_GATEWAY_TOKEN_FILE": "token"}
    (fault,) = faults(directory, environment(**variables))
    assert "holds a control character or a line break" in fault


BAD_VALUES = [
    ("OKF_GATEWAY_PORT", ["65536", "-1", "80.0", "http", "٨٠", "tcp://10.0.0.1:8080", "9" * 5000]),
    ("OKF_GATEWAY_PULL_WAIT", ["-1", "inf", "nan", "1e3", "3601", "5s", ".5", "9" * 5000]),
    ("OKF_GATEWAY_ANSWER_CACHE", ["yes", "1", "offf"]),
    ("OKF_GATEWAY_MAX_REQUESTS", ["0", "-1", "1.5", "100000", "many", "9" * 5000]),
    ("OKF_GATEWAY_GIT_TIMEOUT", ["0", "0.05", "86401", "forever"]),
    (
        "OKF_GATEWAY_ALLOWED_ORIGINS",
        ["*", "null", "app.example", "https://app.example/", "https://a.example https://b.example"],
    ),
    ("OKF_GATEWAY_LOG_FORMAT", ["xml"]),
    ("OKF_GATEWAY_LOG_LEVEL", ["loud", "10"]),
    ("OKF_GATEWAY_HOST", ["a b", "http://localhost"]),
    ("OKF_GATEWAY_CACHE_DIR", ["/a\nb"]),
    ("OKF_GATEWAY_SERVERS", ["a\x00b"]),
]


@pytest.mark.row("G1")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, id=f"{name}-{value[:24]!a}")
        for name, values in BAD_VALUES
        for value in values
    ],
)
def test_a_wrong_value_is_a_fault_that_names_it_and_what_is_allowed(
    directory: Path, name: str, value: str
) -> None:
    (fault,) = faults(directory, environment(**{name: value}))
    assert fault.startswith(f"environment: {name} is {value!r}; allowed: ")


@pytest.mark.row("G1")
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OKF_GATEWAY_PORT", "65535", {"port": 65535}),
        ("OKF_GATEWAY_PORT", " ", {"port": 8080}),
        ("OKF_GATEWAY_PULL_WAIT", "0", {"pull_wait_seconds": 0.0}),
        ("OKF_GATEWAY_PULL_WAIT", "3600", {"pull_wait_seconds": 3600.0}),
        ("OKF_GATEWAY_MAX_REQUESTS", "1", {"max_requests": 1}),
        ("OKF_GATEWAY_MAX_REQUESTS", "99999", {"max_requests": 99_999}),
        ("OKF_GATEWAY_ANSWER_CACHE", "Off", {"keeps_answers": False}),
        ("OKF_GATEWAY_ANSWER_CACHE", "on", {"keeps_answers": True}),
        ("OKF_GATEWAY_GIT_TIMEOUT", "0.1", {"git_timeout_seconds": 0.1}),
        ("OKF_GATEWAY_GIT_TIMEOUT", "86400", {"git_timeout_seconds": 86400.0}),
        (
            "OKF_GATEWAY_ALLOWED_ORIGINS",
            "vscode-webview://abc,http://[::1]:80",
            {"allowed_origins": ("vscode-webview://abc", "http://[::1]:80")},
        ),
    ],
)
def test_a_value_at_the_edge_of_what_is_allowed_is_taken(
    directory: Path, name: str, value: str, expected: dict[str, object]
) -> None:
    found = settings(directory, **{name: value})
    assert found == replace(found, **expected)


@pytest.mark.row("G1", "G3")
def test_all_faults_of_environment_and_registry_come_at_once(directory: Path) -> None:
    (directory / "servers.yaml").write_text(
        "owners:\n  acme: {url: /srv/x}\n  beta: {url: 'https://h/x', ttl: 1m}\nextra: 1\n"
    )
    environ = environment(OKF_GATEWAY_TOKEN="", OKF_GATEWAY_PORT="x", OKF_GATEWAY_LOG_FORMAT="x")
    found = [fault.split("; allowed:")[0] for fault in faults(directory, environ)]
    file = directory / "servers.yaml"
    assert found[0].startswith("environment: OKF_GATEWAY_TOKEN is required")
    assert found[1:] == [
        "environment: OKF_GATEWAY_PORT is 'x'",
        "environment: OKF_GATEWAY_LOG_FORMAT is 'x'",
        f"{file}, line 2: owners.acme.url is '/srv/x'",
        f"{file}, line 3: owners.beta.ttl is '1m'",
        f"{file}, line 4: extra is not a known key",
    ]


@pytest.mark.row("G3")
@pytest.mark.parametrize("place", ["ref: {}", "url: {}", "ttl: {}", "roots: [/{}]", "{}: 1"])
def test_a_token_pasted_into_the_registry_is_not_repeated(directory: Path, place: str) -> None:
    pasted = place.format(SECRET)
    (directory / "servers.yaml").write_text(f"owners:\n  acme:\n    {pasted}\n    {pasted}..\n")
    faults(directory, environment())
    (directory / "servers.yaml").write_text(f"owners:\n  acme:\n    {pasted}\n")
    faults(directory, environment())


CREDENTIALS = """
owners:
  acme: {url: 'https://git.example/acme/k.git'}
credentials:
  git.example: {token_env: OKF_GIT_TOKEN_ACME}
"""


@pytest.mark.row("G1")
def test_an_unset_south_token_is_no_fault(directory: Path) -> None:
    (directory / "servers.yaml").write_text(CREDENTIALS)
    configuration = load(directory)
    token = configuration.registry.credentials["git.example"].token
    assert token.reveal() is None
    assert configuration.secrets == (configuration.settings.token, token)


@pytest.mark.row("G1", "G2")
def test_a_south_token_is_found_by_its_name_in_dot_env(directory: Path) -> None:
    (directory / "servers.yaml").write_text(CREDENTIALS)
    (directory / ".env").write_text("OKF_GIT_TOKEN_ACME=south\n")
    registry = load(directory).registry
    token = registry.credentials["git.example"].token
    credential = CredentialRef("git.example", "OKF_GIT_TOKEN_ACME", "x-access-token", token)
    assert token.reveal() == "south"
    assert registry.owners["acme"] == OwnerConfig(
        "acme",
        "https://git.example/acme/k.git",
        Defaults().ref,
        Defaults().ttl_seconds,
        credential=credential,
    )


@pytest.mark.row("G1")
def test_a_south_token_may_come_from_a_file_that_appears_later(directory: Path) -> None:
    (directory / "servers.yaml").write_text(CREDENTIALS)
    clock = ManualClock()
    environ = environment(OKF_GIT_TOKEN_ACME_FILE="south")
    registry = load_configuration(environ, directory, clock=clock).registry
    token = registry.credentials["git.example"].token
    assert token.reveal() is None
    (directory / "south").write_text("late\n")
    clock.seconds += 1
    assert token.reveal() == "late"


@pytest.mark.row("G1")
@pytest.mark.parametrize(
    "variables",
    [
        {"OKF_GIT_TOKEN_ACME": SECRET, "OKF_GIT_TOKEN_ACME_FILE": "x"},
        {"OKF_GIT_TOKEN_ACME": f"two\n{SECRET}"},
    ],
    ids=["twice", "two-lines"],
)
def test_an_unusable_south_token_is_a_fault(directory: Path, variables: dict[str, str]) -> None:
    (directory / "servers.yaml").write_text(CREDENTIALS)
    (fault,) = faults(directory, environment(**variables))
    assert fault.startswith("environment: OKF_GIT_TOKEN_ACME")


@pytest.mark.row("G1")
def test_neither_the_cache_nor_anything_else_is_written(directory: Path) -> None:
    before = sorted(directory.rglob("*"))
    load(directory, environment(OKF_GATEWAY_CACHE_DIR="cache"))
    assert sorted(directory.rglob("*")) == before


@pytest.mark.row("G1")
def test_a_registry_that_is_not_there_is_a_fault_with_its_path(directory: Path) -> None:
    (fault,) = faults(directory, environment(OKF_GATEWAY_SERVERS="absent.yaml"))
    assert fault.startswith(f"{directory}/absent.yaml: the registry can't be read")


@pytest.mark.row("G3")
def test_a_missing_git_is_a_fault_and_no_traceback(directory: Path) -> None:
    (directory / "servers.yaml").write_text(
        "owners: {a: {url: 'https://h/x', ref: one}, b: {url: 'https://h/x', ref: two}}"
    )
    (fault,) = faults(directory, environment(PATH=str(directory)))
    assert fault == "environment: PATH leads to no git; install git."


@pytest.mark.row("G1")
def test_a_secret_of_the_environment_wins_over_its_file_in_dot_env(directory: Path) -> None:
    (directory / "token").write_text("from the file\n")
    (directory / ".env").write_text("OKF_GATEWAY_TOKEN_FILE=token\n")
    found = load_configuration(environment(OKF_GATEWAY_TOKEN="from-the-environment"), directory)
    assert found.settings.token.reveal() == "from-the-environment"

    (directory / ".env").write_text("OKF_GATEWAY_TOKEN=from-dot-env\n")
    environ = environment(OKF_GATEWAY_TOKEN="", OKF_GATEWAY_TOKEN_FILE="token")
    assert load_configuration(environ, directory).settings.token.reveal() == "from the file"


@pytest.mark.row("G3")
def test_a_south_token_that_nothing_names_is_not_repeated_either(directory: Path) -> None:
    (directory / "servers.yaml").write_text(f"owners: {{a: {{url: x, ref: '{SECRET} x'}}}}\n")
    found = faults(directory, environment(OKF_GIT_TOKEN_UNNAMED=SECRET))
    assert not any(SECRET in fault for fault in found)
