import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from okf_mcp_gateway.config import ConfigError, load_configuration
from okf_mcp_gateway.registry import (
    RESERVED_NAMES,
    CredentialRef,
    Defaults,
    OwnerConfig,
    Registry,
)

CASES = Path(__file__).parents[1] / "fixtures" / "cases" / "servers-yaml"
EXPECTED: Mapping[str, Any] = yaml.safe_load((CASES / "expected.yaml").read_text())
URL = "https://git.example/acme/k.git"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def load_file(path: Path, **variables: str) -> Registry:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": "/home/okf",
        "OKF_GATEWAY_TOKEN": "north-token",
        "OKF_GATEWAY_SERVERS": str(path),
        **variables,
    }
    return load_configuration(environ, path.parent).registry


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "servers.yaml"


def load(file: Path, text: str, **variables: str) -> Registry:
    file.write_bytes(text.encode())
    return load_file(file, **variables)


def faults(file: Path, text: str | bytes) -> tuple[str, ...]:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as raised:
        load_file(file)
    return raised.value.faults


def as_yaml(value: object) -> str:
    return yaml.safe_dump(value, allow_unicode=True)  # pyright: ignore[reportUnknownMemberType]


def owner(**fields: object) -> str:
    """Return a registry with one owner, `acme`, whose other fields are these."""
    return as_yaml({"owners": {"acme": {"url": URL, **fields}}})


def with_credential(url: str, host: str) -> str:
    credential = {"token_env": "OKF_GIT_TOKEN_X"}
    return as_yaml({"owners": {"acme": {"url": url}}, "credentials": {host: credential}})


@pytest.mark.row("G2", "G3")
@pytest.mark.parametrize(
    "case", EXPECTED["files"], ids=[case["file"] for case in EXPECTED["files"]]
)
def test_a_case_is_taken_or_refused_as_expected(case: Mapping[str, Any]) -> None:
    path = CASES / case["file"]
    if case["valid"]:
        owners = load_file(path).owners
        for name, resolved in case.get("resolved", {}).items():
            assert {"ref": owners[name].ref, "ttl": owners[name].ttl_seconds} == resolved
        return
    with pytest.raises(ConfigError) as raised:
        load_file(path)
    message = str(raised.value)
    assert message.startswith(str(path))
    assert any(name in message for name in ("acme", "owners", "credentials", ", line "))
    for secret in case.get("must_not_print", []):
        assert secret not in message


def test_every_case_is_listed() -> None:
    listed = {case["file"] for case in EXPECTED["files"]} | {"expected.yaml"}
    assert {path.name for path in CASES.iterdir()} == listed


@pytest.mark.row("G2")
def test_the_sample_resolves_whole() -> None:
    registry = load_file(CASES / "v-sample.yaml", OKF_GIT_TOKEN_BITBUCKET="south")
    token = registry.credentials["bitbucket.example.invalid"].token
    bitbucket = CredentialRef(
        "bitbucket.example.invalid", "OKF_GIT_TOKEN_BITBUCKET", "x-token-auth", token
    )
    assert token.reveal() == "south"
    assert registry == Registry(
        defaults=Defaults("main", 60),
        owners={
            "acme": OwnerConfig(
                "acme", "https://git.example.invalid/acme/knowledge.git", "main", 60
            ),
            "beta": OwnerConfig(
                "beta",
                "https://bitbucket.example.invalid/beta/knowledge.git",
                "release",
                120,
                credential=bitbucket,
            ),
        },
        credentials={"bitbucket.example.invalid": bitbucket},
    )


@pytest.mark.row("G2")
def test_owners_and_credentials_keep_the_order_of_the_file(file: Path) -> None:
    text = (
        "owners: {zeta: {url: 'https://h/z'}, alpha: {url: 'https://h/a'}}\n"
        "credentials: {y: {token_env: OKF_GIT_TOKEN_Y}, B: {token_env: OKF_GIT_TOKEN_B}}\n"
    )
    registry = load(file, text)
    assert (list(registry.owners), list(registry.credentials)) == (["zeta", "alpha"], ["y", "b"])


@pytest.mark.row("G2")
def test_names_and_refs_are_the_text_as_written(file: Path) -> None:
    names = ["1.10", "007", "no", "null", "2026-05-01", "1e3"]
    text = "owners:\n" + "".join(f"  {name}: {{url: '{URL}', ref: {name}}}\n" for name in names)
    # null is no ref, though it may be a name
    text = text.replace("ref: null", "ref: 'null'")
    owners = load(file, text).owners
    assert [(name, owner.ref) for name, owner in owners.items()] == [(n, n) for n in names]


@pytest.mark.row("G2")
def test_an_owner_takes_the_defaults_that_it_does_not_override(file: Path) -> None:
    text = f"defaults: {{ref: trunk, ttl: 7}}\nowners: {{acme: {{url: '{URL}'}}}}\n"
    registry = load(file, text)
    assert registry.defaults == Defaults("trunk", 7)
    assert registry.owners == {"acme": OwnerConfig("acme", URL, "trunk", 7)}


@pytest.mark.row("G2")
@pytest.mark.parametrize("ttl", ["0", "1", "60", "31536000"])
def test_a_ttl_is_whole_seconds_in_plain_digits(file: Path, ttl: str) -> None:
    text = f"owners:\n  acme:\n    url: {URL}\n    ttl: {ttl}\n"
    assert load(file, text).owners["acme"].ttl_seconds == int(ttl)


@pytest.mark.row("G2", "G3")
@pytest.mark.parametrize(
    ("ttl", "shown"),
    [
        ("'60'", "'60'"),
        ('"60"', "'60'"),
        ('!!int "60"', "'60'"),
        ("|-\n      60", "'60'"),
        ("1m", "'1m'"),
        ("yes", "'yes'"),
        ("1_000", "'1_000'"),
        ("0x10", "'0x10'"),
        ("060", "'060'"),
        ("-1", "'-1'"),
        ("+1", "'+1'"),
        ("1:30", "'1:30'"),
        ("60.0", "'60.0'"),
        ("31536001", "'31536001'"),
        ("9" * 5000, f"'{'9' * 5000}'"),
        ("٦٠", "'٦٠'"),
        ("", "null"),
        ("~", "null"),
        ("null", "null"),
        ("[60]", "a list"),
        ("{s: 60}", "a mapping"),
    ],
    ids=lambda text: text[:12],
)
@pytest.mark.parametrize("place", ["defaults", "owners.acme"])
def test_any_other_ttl_is_refused(file: Path, ttl: str, shown: str, place: str) -> None:
    text = f"owners:\n  acme:\n    url: {URL}\n"
    text += f"    ttl: {ttl}\n" if place == "owners.acme" else f"defaults:\n    ttl: {ttl}\n"
    (fault,) = faults(file, text)
    line = 4 if place == "owners.acme" else 5
    assert fault == (
        f"{file}, line {line}: {place}.ttl is {shown}; allowed: a whole number of seconds from 0 to"
        " 31536000, as plain unquoted digits."
    )


@pytest.mark.row("G3")
@pytest.mark.parametrize(
    "name", ["a", "A.b_c-9", "0", "a" * 64, "git", "x.git.y", "locks", "healthz2", "well-known"]
)
def test_a_name_that_is_one_segment_and_one_folder_is_taken(file: Path, name: str) -> None:
    assert list(load(file, f"owners: {{'{name}': {{url: '{URL}'}}}}").owners) == [name]


@pytest.mark.row("G3")
@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            " ",
            ".",
            "..",
            ".a",
            "-a",
            "_a",
            "a/b",
            "a b",
            "a\\b",
            "é",
            "a\x7f",
            "a\n",
            "a" * 65,
        ),
        *("x.git", "x.lock", "x.GIT", "%61", "٣"),
        *("healthz", "readyz", "status", "config", "metrics", "mcp", "MCP", "Status"),
    ],
)
def test_any_other_name_is_refused(file: Path, name: str) -> None:
    text = as_yaml({"owners": {name: {"url": URL}}})
    (fault,) = faults(file, text)
    reason = "reserved" if name.lower() in RESERVED_NAMES else "not usable"
    assert f"has a name that is {reason}; allowed: 1 to 64 of A-Z" in fault
    assert fault.isprintable()


@pytest.mark.row("G3")
def test_names_that_differ_only_in_case_are_refused(file: Path) -> None:
    (fault,) = faults(file, f"owners:\n  acme: {{url: '{URL}'}}\n  Acme: {{url: '{URL}'}}\n")
    assert fault.startswith(f"{file}, line 3: owners.Acme differs only in case from line 2")


@pytest.mark.row("G3")
@pytest.mark.parametrize(
    "url",
    [
        "https://git.example/acme/k.git",
        "https://git.example",
        "http://git.example:8080/k",
        "https://[2001:db8::1]:8443/k",
        "https://xn--bcher-kva.example/k",
        "https://git_1.example/@scope/k%20x",
        "file:///srv/git/k.git",
        "file://localhost/srv/git/k.git",
        "file:///srv/a#b?c@d",
    ],
)
def test_a_url_that_git_may_fetch_from_is_taken(file: Path, url: str) -> None:
    assert load(file, owner(url=url)).owners["acme"].url == url


@pytest.mark.row("G3")
@pytest.mark.parametrize("url", ["https://[1:2]/x.git", "https://[::1/x.git", "http://[]/x.git"])
def test_a_url_that_no_program_could_ask_is_refused(file: Path, url: str) -> None:
    (fault,) = faults(file, owner(url=url))
    assert "owners.acme.url is" in fault


SECRET_URLS = [
    "https://s3cr3t@git.example/k",
    "https://u:s3cr3t@git.example/k",
    "https://:s3cr3t@git.example/k",
    "https://u:s3c/r3t@git.example/s3cr3t",
    "https://u%3As3cr3t%40git.example/k",
    "https://git.example\\@s3cr3t/k",
    "https://git.example/k?token=s3cr3t",
    "https://git.example/k#s3cr3t",
    "file://s3cr3t@localhost/k",
    "s3cr3t@git.example:k.git",
    "ssh://s3cr3t@git.example/k",
    "ftp://u:s3cr3t@git.example/k",
    "https://u:s3cr3t @git.example/k",
]


@pytest.mark.row("G3")
@pytest.mark.parametrize("url", SECRET_URLS)
def test_a_url_that_may_hold_a_secret_is_refused_and_not_repeated(file: Path, url: str) -> None:
    (fault,) = faults(file, owner(url=url))
    assert "owners.acme.url is not usable" in fault
    assert "s3cr3t" not in fault


@pytest.mark.row("G3")
@pytest.mark.parametrize(
    "url",
    [
        *("", " ", "k.git", "/srv/k.git", "./k.git", "git.example:k.git", "C:/k"),
        *("-x", "--upload-pack=touch /tmp/pwned", "-https://git.example/k"),
        *("ext::sh -c true", "fd::0", "git://git.example/k", "ssh://git.example/k"),
        *("HTTPS://git.example/k", "https:git.example/k", "https:/git.example/k", "https:///k"),
        *("https://", "http://:80/k", "https://git.example:/k", "https://git.example:0/k"),
        *("https://git.example:65536/k", "https://git.example:x/k", "https://-git.example/k"),
        *("https://bücher.example/k", "https://git.example\\k", "https://[::1/k"),
        *(" https://git.example/k", "https://git.example/k\n", "https://git.example/a b"),
        *("https://git.example/a\u00a0b", "https://git.example/a\x00b", "https://git.example/%0ab"),
        *("file://", "file://host/k", "file:k", "file:/srv/k", "file:///srv/a%00b"),
    ],
)
def test_any_other_url_is_refused(file: Path, url: str) -> None:
    (fault,) = faults(file, owner(url=url))
    assert f"owners.acme.url is {url!r}; allowed: https:// or http:// with a host" in fault


@pytest.mark.row("G2")
@pytest.mark.parametrize(
    ("ref", "is_pinned"),
    [
        ("main", False),
        ("feature/ünï.x", False),
        ("refs/heads/main", False),
        ("v1.0", False),
        ("abc1234", False),
        (COMMIT, True),
        (COMMIT.upper(), True),
        (COMMIT + "0" * 24, True),
        (COMMIT + "0", False),
        ("g" + COMMIT[1:], False),
    ],
)
def test_a_ref_is_pinned_if_it_is_a_full_commit_id(file: Path, ref: str, is_pinned: bool) -> None:
    found = load(file, owner(ref=ref)).owners["acme"]
    assert (found.ref, found.is_pinned) == (ref, is_pinned)


BAD_REFS = [
    *("", " ", "HEAD", "-x", "--upload-pack=touch /tmp/pwned", "--branch", "a..b", "a b", "a~1"),
    *("a^", "a:b", "a?", "a*", "a[", "a\\b", "/a", "a/", "a//b", ".a", "a/.b", "a.", "a.lock"),
    *("@{-1}", "@{u}", "main@{1}", "@{-1}/x", "a\nb", "a\x00b", "a\x7fb", "main\n"),
    "a\x9bb",  # git takes it, a line of the log doesn't
]


@pytest.mark.row("G3")
@pytest.mark.parametrize("ref", BAD_REFS)
def test_a_ref_that_git_does_not_take_is_refused(file: Path, ref: str) -> None:
    (fault,) = faults(file, owner(ref=ref))
    assert f"owners.acme.ref is {ref!r}; allowed: what `git check-ref-format --branch`" in fault


@pytest.mark.row("G3")
def test_a_bad_default_ref_is_one_fault_however_many_owners_take_it(file: Path) -> None:
    (fault,) = faults(
        file, f"defaults: {{ref: '@{{-1}}'}}\nowners: {{a: {{url: '{URL}'}}, b: {{url: '{URL}'}}}}"
    )
    assert f"{file}, line 1: defaults.ref is '@{{-1}}'" in fault


@pytest.mark.row("G2")
@pytest.mark.parametrize(
    ("roots", "expected"),
    [
        (["."], ["."]),
        (["docs/", "./design", "a/./b", ".hidden", "a b", "ünï"], None),
        (["docs", "./docs", "docs/"], ["docs"]),
    ],
    ids=["whole", "spellings", "twice"],
)
def test_roots_are_paths_inside_the_repository(
    file: Path, roots: list[str], expected: list[str] | None
) -> None:
    found = load(file, owner(roots=roots)).owners["acme"].roots
    assert found == tuple(PurePosixPath(root) for root in expected or roots)


@pytest.mark.row("G2")
def test_without_roots_the_whole_repository_is_searched(file: Path) -> None:
    assert load(file, owner()).owners["acme"].roots == (PurePosixPath("."),)


@pytest.mark.row("G3")
@pytest.mark.parametrize(
    "roots",
    [
        *([], "docs", None, {"docs": 1}, [None], [["docs"]], [""], [" "], ["/docs"], ["/"]),
        *(["../x"], ["a/../b"], [".."], ["a\\b"], ["a\nb"], ["a\x00"]),
    ],
    ids=repr,
)
def test_any_other_roots_are_refused(file: Path, roots: object) -> None:
    (fault,) = faults(file, owner(roots=roots))
    assert "owners.acme.roots is " in fault
    assert "relative paths inside the repository" in fault


@pytest.mark.row("G2")
@pytest.mark.parametrize(
    ("url", "host", "is_match"),
    [
        ("https://git.example/k", "git.example", True),
        ("https://GIT.example/k", "git.EXAMPLE", True),
        ("https://git.example/k", "git.example:443", True),
        ("https://git.example:443/k", "git.example", True),
        ("https://git.example:0443/k", "git.example:443", True),
        ("https://git.example:8443/k", "git.example:8443", True),
        ("https://git.example:8443/k", "git.example", False),
        ("https://git.example/k", "git.example:8443", False),
        ("https://git.example/k", "git.example:80", False),
        ("https://sub.git.example/k", "git.example", False),
        ("https://git.example.evil/k", "git.example", False),
        ("https://[2001:DB8::1]/k", "[2001:db8::1]", True),
        ("http://localhost/k", "localhost", True),
        ("http://localhost:3000/k", "localhost:3000", True),
        ("http://127.1.2.3:3000/k", "127.1.2.3:3000", True),
        ("http://[::1]/k", "[::1]:80", True),
        ("http://git.example:8080/k", "git.example", False),
        ("file:///srv/k", "localhost", False),
    ],
)
def test_a_credential_is_bound_to_its_host_and_port(
    file: Path, url: str, host: str, is_match: bool
) -> None:
    registry = load(file, with_credential(url, host))
    assert registry.owners["acme"].credential == (
        registry.credentials[host.lower()] if is_match else None
    )


@pytest.mark.row("G2")
def test_a_credential_for_the_port_wins_over_one_for_the_host(file: Path) -> None:
    text = (
        f"owners: {{acme: {{url: '{URL}'}}}}\n"
        "credentials:\n"
        "  git.example: {token_env: OKF_GIT_TOKEN_HOST}\n"
        "  git.example:443: {token_env: OKF_GIT_TOKEN_PORT}\n"
    )
    credential = load(file, text).owners["acme"].credential
    assert credential is not None
    assert credential.token_env == "OKF_GIT_TOKEN_PORT"


@pytest.mark.row("G3")
@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://git.example/k", "git.example"),
        ("http://git.example/k", "git.example:80"),
        ("http://git.example:8080/k", "git.example:8080"),
        ("http://10.0.0.1/k", "10.0.0.1"),
        ("http://127.1/k", "127.1"),
        ("http://localhost.evil/k", "localhost.evil"),
        ("http://[::2]/k", "[::2]"),
    ],
)
def test_a_credential_never_goes_over_http_to_another_machine(
    file: Path, url: str, host: str
) -> None:
    (fault,) = faults(file, with_credential(url, host))
    assert f"owners.acme.url is http, to which credentials.{host} would send a token" in fault


@pytest.mark.row("G3")
@pytest.mark.parametrize(
    "host",
    [
        *("", "https://git.example", "git.example/k", "git.example:", "git.example:x", "a b"),
        *("git.example:0", "git.example:65536", "u:s3cr3t@git.example", "https://u:s3cr3t@h"),
    ],
)
def test_a_credential_for_anything_but_a_host_is_refused_and_not_repeated(
    file: Path, host: str
) -> None:
    (fault,) = faults(file, with_credential(URL, host))
    assert "credentials has a key that is not usable; allowed: host or host:port" in fault
    assert "s3cr3t" not in fault


@pytest.mark.row("G3")
def test_hosts_that_differ_only_in_case_are_refused(file: Path) -> None:
    text = (
        f"owners: {{acme: {{url: '{URL}'}}}}\ncredentials:\n"
        "  git.example: {token_env: OKF_GIT_TOKEN_A}\n  GIT.example: {token_env: OKF_GIT_TOKEN_B}\n"
    )
    (fault,) = faults(file, text)
    assert fault.startswith(f"{file}, line 4: credentials has a key that is not usable")


@pytest.mark.row("G3")
@pytest.mark.parametrize(
    ("credential", "key"),
    [
        ({"token_env": "s3cr3t"}, "token_env"),
        ({"token_env": "OKF_GIT_TOKEN_"}, "token_env"),
        ({"token_env": "OKF_GIT_TOKEN_s3cr3t"}, "token_env"),
        ({"token_env": "OKF_GIT_TOKEN_S3CR3T_FILE"}, "token_env"),
        ({"token_env": "OKF_GATEWAY_TOKEN"}, "token_env"),
        ({"token_env": "PATH"}, "token_env"),
        ({"token_env": None}, "token_env"),
        ({"token_env": ["s3cr3t"]}, "token_env"),
        ({"token_env": "OKF_GIT_TOKEN_X", "token_user": "u:s3cr3t"}, "token_user"),
        ({"token_env": "OKF_GIT_TOKEN_X", "token_user": "s3cr3t\n"}, "token_user"),
        ({"token_env": "OKF_GIT_TOKEN_X", "token_user": " "}, "token_user"),
        ({"token_env": "OKF_GIT_TOKEN_X", "token_user": None}, "token_user"),
        ({"token_env": "OKF_GIT_TOKEN_X", "token": "s3cr3t"}, "token"),
        ({"token_user": "s3cr3t"}, "token_env"),
        ("s3cr3t", ""),
        (None, ""),
    ],
)
def test_a_wrong_credential_is_refused_and_its_values_are_not_repeated(
    file: Path, credential: object, key: str
) -> None:
    text = as_yaml({"owners": {"acme": {"url": URL}}, "credentials": {"git.example": credential}})
    (fault,) = faults(file, text)
    assert "credentials.git.example" in fault
    assert key in fault
    assert "s3cr3t" not in fault.lower()


@pytest.mark.row("G3")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["the registry can't be read"]),
        ("- a", ["the registry can't be read"]),
        ("owners: [", ["the registry can't be read"]),
        ("a: 1\n---\nb: 2", ["line 2: the registry can't be read"]),
        (b"owners: \xff", ["the registry can't be read: it is not UTF-8"]),
        ("owners: !!python/object:os.system {}", ["line 1: the registry can't be read"]),
        (
            f"owners:\n  acme: {{url: '{URL}'}}\n  acme: {{url: '{URL}'}}",
            ["line 3: owners.acme stands twice; allowed: each key once"],
        ),
        ("defaults: {}", ["line 1: the file has no owners"]),
        ("owners:", ["line 1: owners is null; allowed: a mapping"]),
        ("owners: {}", ["line 1: owners is empty; allowed: at least one owner"]),
        ("owners: acme", ["line 1: owners is 'acme'; allowed: a mapping"]),
        ("owners: {acme: }", ["owners.acme is null; allowed: a mapping"]),
        ("owners: {acme: {}}", ["owners.acme has no url; allowed: url is required"]),
        ("owners: {acme: {url: }}", ["owners.acme.url is null"]),
        ("owners: {acme: {url: [a]}}", ["owners.acme.url is a list"]),
        (owner() + "defaults:\n", ["line 4: defaults is null"]),
        (owner() + "credentials:\n", ["line 4: credentials is null"]),
        (owner() + "credentials: s3cr3t\n", ["line 4: credentials is not usable"]),
        (owner() + "defaults: {ref: }\n", ["line 4: defaults.ref is null"]),
        (owner() + "owner: {}\n", ["owner is not a known key; allowed: defaults, owners, cred"]),
        (
            owner(branch="x"),
            ["owners.acme.branch is not a known key; allowed: url, ref, ttl, roots"],
        ),
        (owner(Ttl=1), ["owners.acme.Ttl is not a known key"]),
        (owner() + "defaults: {url: x}\n", ["defaults.url is not a known key; allowed: ref, ttl"]),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, str | bytes) else "",
)
def test_a_registry_of_another_shape_is_refused(
    file: Path, text: str | bytes, expected: Sequence[str]
) -> None:
    found = faults(file, text)
    assert len(found) == len(expected)
    for fault, part in zip(found, expected, strict=True):
        assert fault.startswith(str(file))
        assert part in fault


@pytest.mark.row("G3")
def test_every_fault_of_the_file_is_found_at_once_with_its_line(file: Path) -> None:
    text = (
        "defaults:\n  ttl: -1\nowners:\n  a/b:\n    url: ext::sh\n    ref: a..b\n"
        "  ok:\n    rul: x\ncredentials:\n  h: {}\n"
    )
    assert [fault.split(";")[0].removeprefix(f"{file}, ") for fault in faults(file, text)] == [
        "line 2: defaults.ttl is '-1'",
        "line 4: owners.a/b has a name that is not usable",
        "line 5: owners.a/b.url is 'ext::sh'",
        "line 6: owners.a/b.ref is 'a..b'",
        "line 7: owners.ok has no url",
        "line 8: owners.ok.rul is not a known key",
        "line 10: credentials.h has no token_env",
    ]


def test_a_registry_can_not_be_changed(file: Path) -> None:
    registry = load(file, owner())
    for mapping in (registry.owners, registry.credentials):
        assert not hasattr(mapping, "__setitem__")


@pytest.mark.row("G3")
def test_every_key_that_stands_twice_is_found_with_all_other_faults(file: Path) -> None:
    text = (
        f"owners:\n  a:\n    url: {URL}\n    url: x\n    ttl: -1\n  b:\n    url: 5\n    q: 1\n"
        "    q: 2\nfoo: 1\ncredentials:\n  'https://u:s3cr3t@h': {}\n  'https://u:s3cr3t@h': {}\n"
    )
    found = faults(file, text)
    assert [fault.split(";")[0].removeprefix(f"{file}, ") for fault in found] == [
        "line 4: owners.a.url stands twice",
        "line 4: owners.a.url is 'x'",
        "line 5: owners.a.ttl is '-1'",
        "line 7: owners.b.url is '5'",
        "line 9: owners.b.q stands twice",
        "line 9: owners.b.q is not a known key",
        "line 10: foo is not a known key",
        "line 13: credentials has a key that stands twice",
        "line 13: credentials has a key that is not usable",
    ]
