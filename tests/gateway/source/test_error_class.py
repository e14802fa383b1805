"""The one word for what went wrong in a pull (H9)."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from okf_mcp_gateway.source.error_class import (
    SourceError,
    disk_sentence,
    error_class,
    git_class,
    lacks_room,
)
from okf_mcp_gateway.source.git import GitError, GitTimeoutError
from okf_mcp_gateway.source.mirror import Mirror
from okf_mcp_gateway.state import ErrorClass
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
        *[(401, "auth"), (403, "auth"), (404, "not_found"), (410, "not_found")],
        *[(302, "policy"), (400, "other"), (407, "connect"), (503, "connect")],
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
    server.refuse(404)
    assert class_of_probe(new_mirror(f"{server.url}/{path}.git")) == "not_found"


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
def test_a_host_that_says_our_disk_is_full_is_not_believed_though_git_says_nothing() -> None:
    said = "remote: No space left on device"
    error = GitError(said, (said,))
    assert (git_class(error), lacks_room(error)) == (None, False)


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
        (f"{ACCESS}Failed to connect to tls.example.com port 443: Could not connect", "connect"),
        (f"{ACCESS}CONNECT tunnel failed, response 403", "connect"),
        (f"{ACCESS}Received HTTP code 407 from proxy after CONNECT", "connect"),
        (f"{ACCESS}Recv failure: Connection reset by peer", "connect"),
        (f"{ACCESS}HTTP/2 stream 1 was not closed cleanly: INTERNAL_ERROR (err 2)", "connect"),
        (f"{ACCESS}Resolving timed out after 300000 milliseconds", "dns"),
        (f"{ACCESS}TLS connect error: error:0A00010B:lib(20)::reason(267)", "tls"),
        (f"{ACCESS}Operation too slow. Less than 1 bytes/sec transferred", "timeout"),
        (f'{ACCESS}Protocol "file" not supported or disabled in libcurl', "policy"),
        (f'{ACCESS}Protocol "file" disabled', "policy"),
        (f"{ACCESS}Maximum (20) redirects followed", "policy"),
        (f"{ACCESS}Empty reply from server", "connect"),
        (f"{ACCESS}The requested URL returned error: 500", "connect"),
        (f"{ACCESS}The requested URL returned error: 400", None),
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
        ("fatal: Could not read from remote repository.", None),
        ("fatal: couldn't find remote ref refs/heads/main", "ref_missing"),
        ("fatal: remote error: upload-pack: not our ref 1234", "ref_missing"),
        ("fatal: repository 'https://git.example.com/acme.git/' not found", "not_found"),
        ("fatal: '/srv/acme.git' does not appear to be a git repository", "not_found"),
        ("fatal: transport 'ext' not allowed", "policy"),
        (
            "fatal: unable to update url base from redirection:\n asked for: x\n redirect: y",
            "policy",
        ),
        (
            "fatal: https://git.example.com/x/info/refs not valid: is this a git repository?",
            "not_found",
        ),
        ("error: Server does not allow request for unadvertised object 1234", "ref_missing"),
        ("fatal: loose object 1234 (stored in '/srv/x') is corrupt", "corrupt"),
        ("fatal: pack has bad object at offset 12: inflate returned -3", "corrupt"),
        ("fatal: 'https://git.example.com/x' did not send all necessary objects", "corrupt"),
        ("fatal: remote error: access denied or repository not exported: /x", "auth"),
        ("fatal: remote error: Repository not found.", "not_found"),
        ("fatal: remote error: No space left on device", None),
        ("fatal: remote error: the pack is corrupt", None),
        ("fatal: Unable to create '/x/HEAD.lock': Permission denied", "disk"),
        ("fatal: Unable to create '/x/HEAD.lock': File exists", None),
        ("fatal: cannot mkdir /x: Not a directory", "disk"),
        ("fatal: could not set 'core.repositoryformatversion' to '0'", "disk"),
        ("fatal: write error: File too large", "disk"),
        ("fatal: write error: No space left on device", "disk"),
        ("error: unable to write file objects/ab: Disk quota exceeded", "disk"),
    ],
)
def test_the_words_of_git_and_curl_decide(message: str, name: ErrorClass | None) -> None:
    assert git_class(GitError(message)) == name


@pytest.mark.row("H9")
@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("error: RPC failed; HTTP 403 curl 22 The requested URL returned error: 403", "auth"),
        ("error: inflate: data stream error (incorrect header check)", "corrupt"),
        ("error: cannot write '/x/shallow.lock': Read-only file system", "disk"),
        ("remote: error: No space left on device", "connect"),
    ],
)
def test_a_vague_sentence_is_told_by_what_git_said_before(said: str, name: ErrorClass) -> None:
    vague = "fatal: the remote end hung up unexpectedly"
    assert git_class(GitError(vague, (said, vague))) == name


@pytest.mark.row("P4")
@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (GitError("fatal: write error: No space left on device"), True),
        (GitError("fatal: Unable to create '/x/HEAD.lock': Read-only file system"), True),
        (GitError("fatal: Unable to create '/x/HEAD.lock': Permission denied"), False),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), True),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "cache"), False),
        (SourceError("fatal: remote error: No space left on device", "other"), False),
    ],
    ids=repr,
)
def test_a_new_copy_is_made_for_missing_rights_and_not_for_missing_room(
    error: Exception, lacks: bool
) -> None:
    assert lacks_room(error) == lacks


@pytest.mark.row("H9")
@pytest.mark.parametrize(
    ("sentence", "reason", "told"),
    [
        (
            "fatal: write error: No space left on device",
            None,
            "fatal: write error: No space left on device (in /cache/acme)",
        ),
        (
            "fatal: cannot mkdir /cache/.acme.new: Read-only file system",
            None,
            "fatal: cannot mkdir /cache/.acme.new: Read-only file system",
        ),
        (
            "fatal: could not set 'core.bare' to 'true'",
            "error: could not write config file /cache/.acme.new/config: Disk quota exceeded",
            (
                "fatal: could not set 'core.bare' to 'true' (error: could not write config file "
                "/cache/.acme.new/config: Disk quota exceeded)"
            ),
        ),
    ],
    ids=["no folder", "all of it", "no reason"],
)
def test_a_fault_of_the_disk_is_told_with_its_reason_and_its_folder(
    sentence: str, reason: str | None, told: str
) -> None:
    error = GitError(sentence, (reason, sentence) if reason else (sentence,))
    assert disk_sentence(error, Path("/cache/acme")) == told


@pytest.mark.row("H9")
@pytest.mark.parametrize(
    ("error", "name"),
    [
        (SourceError("fatal: early EOF", "timeout"), "timeout"),
        (GitTimeoutError("git cat-file took longer than 5 s"), "timeout"),
        (GitError("the copy has lost the blob 1234"), "corrupt"),
        (GitError("fatal: bad object HEAD"), "corrupt"),
        (GitError("fatal: write error: No space left on device"), "disk"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "cache"), "disk"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "cache"), "disk"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "cache"), "disk"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "other"),
        (FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "git"), "other"),
        (OkfError("could not resolve"), "other"),
        (ValueError("no space left on device"), "other"),
    ],
    ids=repr,
)
def test_the_kind_of_an_error_decides_before_its_words(error: Exception, name: ErrorClass) -> None:
    assert error_class(error) == name
