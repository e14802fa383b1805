"""The one word for what went wrong in a pull (H9)."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from okf_mcp_gateway.source.error_class import ErrorClass, SourceError, error_class
from okf_mcp_gateway.source.git import GitError, GitTimeoutError
from okf_mcp_gateway.source.mirror import Mirror
from okf_mcp_server.errors import OkfError
from support.gateway_process import find_free_port
from support.git_http import GitHttpServerFactory
from support.repositories import Repository

NewMirror = Callable[..., Mirror]

ACCESS = "fatal: unable to access 'https://git.example.com/acme.git/': "


def class_of_probe(mirror: Mirror) -> ErrorClass:
    with pytest.raises(SourceError) as caught:
        mirror.probe()
    return error_class(caught.value)


# What git itself says


@pytest.mark.row("H9")
@pytest.mark.parametrize(
    ("status", "name"),
    [
        *[(401, "auth"), (403, "auth"), (404, "not_found")],
        *[(status, "other") for status in (410, 429, 500, 503)],
    ],
)
def test_the_status_of_the_host_decides(
    repository: Repository,
    new_mirror: NewMirror,
    git_http_server: GitHttpServerFactory,
    status: int,
    name: ErrorClass,
) -> None:
    server = git_http_server()
    server.refuse(status)
    assert class_of_probe(new_mirror(server.url_of(repository))) == name


@pytest.mark.row("H9")
@pytest.mark.parametrize(
    "path",
    [
        "ssl/tls/certificate",
        "not%20found",
        "connect",
        "no-space-left-on-device",
        "could-not-resolve",
    ],
)
def test_words_in_the_url_decide_nothing(
    new_mirror: NewMirror, git_http_server: GitHttpServerFactory, path: str, tmp_path: Path
) -> None:
    server = git_http_server(tmp_path)
    server.refuse(403)
    assert class_of_probe(new_mirror(f"{server.url}/{path}.git")) == "auth"


@pytest.mark.row("H9")
def test_a_closed_port_is_a_fault_of_the_connection(new_mirror: NewMirror) -> None:
    url = f"http://127.0.0.1:{find_free_port()}/acme.git"
    assert class_of_probe(new_mirror(url)) == "connect"


@pytest.mark.row("H9")
@pytest.mark.parametrize("after_bytes", [0, 1, 50])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_host_that_hangs_up_is_a_fault_of_the_connection(
    repository: Repository,
    new_mirror: NewMirror,
    git_http_server: GitHttpServerFactory,
    method: str,
    after_bytes: int,
) -> None:
    server = git_http_server()
    server.break_off(after_bytes, when=lambda exchange: exchange.method == method)
    repository.publish()
    assert class_of_probe(new_mirror(server.url_of(repository))) == "connect"


@pytest.mark.row("H9")
def test_a_host_that_speaks_no_tls_is_a_fault_of_tls(
    new_mirror: NewMirror, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    url = f"https://{git_http_server(tmp_path).authority}/acme.git"
    assert class_of_probe(new_mirror(url)) == "tls"


@pytest.mark.row("H9")
def test_a_folder_that_is_no_repository_is_not_found(new_mirror: NewMirror, tmp_path: Path) -> None:
    assert class_of_probe(new_mirror(tmp_path.as_uri())) == "not_found"
    assert class_of_probe(new_mirror("file:///nowhere/at/all")) == "not_found"


@pytest.mark.row("H9")
def test_another_transport_is_a_matter_of_policy(new_mirror: NewMirror) -> None:
    assert class_of_probe(new_mirror("ssh://git@127.0.0.1/acme.git")) == "policy"


# What it says where no test can make it say so


@pytest.mark.row("H9")
@pytest.mark.parametrize(
    ("message", "name"),
    [
        (f"{ACCESS}Could not resolve host: git.example.com", "dns"),
        (f"{ACCESS}Could not resolve proxy: proxy.example.com", "dns"),
        (f"{ACCESS}SSL certificate problem: self-signed certificate", "tls"),
        (f"{ACCESS}server certificate verification failed. CAfile: none CRLfile: none", "tls"),
        (f"{ACCESS}gnutls_handshake() failed: Handshake failed", "tls"),
        (f"{ACCESS}OpenSSL SSL_connect: Connection reset by peer in connection to x:443", "tls"),
        (f"{ACCESS}Failed to connect to git.example.com port 443 after 2 ms: Refused", "connect"),
        (f"{ACCESS}Couldn't connect to server", "connect"),
        (f"{ACCESS}Connection timed out after 300000 milliseconds", "connect"),
        (f"{ACCESS}Empty reply from server", "connect"),
        (f"{ACCESS}The requested URL returned error: 500", "other"),
        ("fatal: the remote end hung up unexpectedly", "connect"),
        ("fatal: early EOF", "connect"),
        ("fatal: protocol error: bad pack header", "connect"),
        ("fatal: fetch-pack: invalid index-pack output", "connect"),
        ("fatal: Authentication failed for 'https://git.example.com/acme.git/'", "auth"),
        (
            (
                "fatal: could not read Username for 'https://git.example.com': "
                "terminal prompts disabled"
            ),
            "auth",
        ),
        ("fatal: Could not read from remote repository.", "other"),
        ("fatal: couldn't find remote ref refs/heads/main", "ref_missing"),
        ("fatal: remote error: upload-pack: not our ref 1234", "ref_missing"),
        ("fatal: repository 'https://git.example.com/acme.git/' not found", "not_found"),
        ("fatal: '/srv/acme.git' does not appear to be a git repository", "not_found"),
        ("fatal: transport 'ext' not allowed", "policy"),
        (
            "fatal: unable to update url base from redirection:\n asked for: x\n redirect: y",
            "policy",
        ),
        ("fatal: write error: No space left on device", "disk"),
        ("error: unable to write file objects/ab: Disk quota exceeded", "disk"),
        ("the source has no branch and no tag 'connect'", "ref_missing"),
        ("what the source calls 'not found' is not a commit", "other"),
        ("the token of this host is not set: OKF_GIT_TOKEN_SSL", "auth"),
    ],
)
def test_the_words_of_git_and_curl_and_ours_decide(message: str, name: ErrorClass) -> None:
    assert error_class(SourceError(message)) == name


@pytest.mark.row("H9")
@pytest.mark.parametrize(
    ("error", "name"),
    [
        (SourceError("git fetch took longer than 5 s", timed_out=True), "timeout"),
        (GitTimeoutError("git cat-file took longer than 5 s"), "timeout"),
        (GitError("the copy has lost the blob 1234"), "corrupt"),
        (GitError("fatal: bad object HEAD"), "corrupt"),
        (GitError("fatal: write error: No space left on device"), "disk"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "cache"), "disk"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "cache"), "disk"),
        (OkfError("could not resolve"), "other"),
        (ValueError("no space left on device"), "other"),
    ],
    ids=repr,
)
def test_the_kind_of_an_error_decides_before_its_words(error: Exception, name: ErrorClass) -> None:
    assert error_class(error) == name
