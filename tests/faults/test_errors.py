"""Errors tell the operator what to do.

`last_pull_error` is git's own sentence, scrubbed; under `?diagnostics=true` stand its class, since
when the owner fails, and when it is tried again. What git and curl say is tested word by word in
`tests/gateway/source/test_error_class.py`, the times in `tests/gateway/routes/test_status.py`, the
faults of a disk in `test_disk.py`.
"""

import json
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from support.gateway_process import GatewayFactory, find_free_port, wait_until
from support.git_http import GitHttpServerFactory
from support.repositories import Repository, RepositoryFactory, git

pytestmark = pytest.mark.row("H9")

TOKEN = "canary-of-the-host"
DEADLINE_SECONDS = 4
ALL_FAILED_SECONDS = 60.0

Serve = Callable[[socket.socket], None]


@contextmanager
def tcp_host(serve: Serve) -> Generator[str]:
    """Hand each connection to `serve`, one after the other, and yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        is_over = False

        def accept() -> None:
            while not is_over:
                with suppress(OSError):  # nobody came, or whoever came is gone
                    connection, _ = listener.accept()
                    connection.settimeout(5.0)
                    with connection:
                        serve(connection)

        thread = Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            is_over = True
            thread.join(10.0)


def reset(connection: socket.socket) -> None:
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def answer(head: str, body: bytes) -> Serve:
    def serve(connection: socket.socket) -> None:
        connection.recv(65_536)
        length = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall(f"HTTP/1.1 200 OK\r\n{head}\r\n{length}".encode() + body)

    return serve


def packet(text: str) -> bytes:
    """Return a pkt-line of git's protocol."""
    return f"{len(text) + 4:04x}{text}".encode()


ADVERTISEMENT = "Content-Type: application/x-git-upload-pack-advertisement"
SAYS_ERR = packet("# service=git-upload-pack\n") + b"0000" + packet("ERR No space left on device")


def speak_tls(folder: Path) -> Serve:
    """Return a host whose certificate nobody knows."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
        timeout=60.0,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True):
            pass

    return serve


def damage(repository: Repository) -> None:
    """Cut an object of the source short."""
    blob = git("rev-parse", "main:a.md", folder=repository.bare).decode().strip()
    path = repository.bare / "objects" / blob[:2] / blob[2:]
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:10])


ACCESS = "fatal: unable to access '<url>/': "


class Faults:
    """Owners, each with a fault of its own, and how `/status` has to tell it."""

    def __init__(self, repository: Repository, new_host: GitHttpServerFactory) -> None:
        self.owners: dict[str, dict[str, str]] = {}
        self.credentials: dict[str, dict[str, str]] = {}
        self.classes: dict[str, str] = {}
        self.sentences: dict[str, str] = {}
        """How `last_pull_error` begins."""
        self._repository = repository
        self._new_host = new_host

    def add(self, name: str, url: str, error_class: str, words: str, ref: str = "main") -> None:
        self.owners[name] = {"url": url, "ref": ref}
        self.classes[name] = error_class
        self.sentences[name] = words

    def add_logins(self) -> None:
        unset = "the token of this host is not set: OKF_GIT_TOKEN_UNSET"
        for name, token_env, words in (
            ("anonymous", None, "fatal: could not read Username for '<url>"),
            ("wrong", "OKF_GIT_TOKEN_WRONG", "fatal: Authentication failed for '<url>/'"),
            ("unset", "OKF_GIT_TOKEN_UNSET", unset),
        ):
            host = self._new_host(user="x-access-token", password="another")
            if token_env:
                self.credentials[host.authority] = {"token_env": token_env}
            self.add(name, host.url_of(self._repository), "auth", words)

    def add_statuses(self) -> None:
        for status, error_class in (
            *((403, "auth"), (404, "not_found"), (429, "connect"), (500, "connect")),
            *((502, "connect"), (503, "connect"), (504, "connect")),
        ):
            host = self._new_host()
            host.refuse(status)
            words = f"{ACCESS}The requested URL returned error: {status}"
            if status == 404:
                words = "fatal: repository '<url>/' not found"
            self.add(f"status-{status}", host.url_of(self._repository), error_class, words)

    def add_refs(self) -> None:
        url, repository = self._repository.url, self._repository
        repository.git("tag", "words", repository.git("rev-parse", "HEAD:a.md"))
        repository.git("push", "--quiet", url, "refs/tags/words")
        gone = "the source has no branch and no tag 'gone'"
        blob = "what the source calls 'words' is not a commit"
        self.add("gone", url, "ref_missing", gone, ref="gone")
        self.add("blob", url, "ref_missing", blob, ref="words")

    def add_ways(self, unknown: Mapping[str, str]) -> None:
        """Add what may be wrong on the way; `unknown` are addresses of hosts that are no git's."""
        closed = f"http://127.0.0.1:{find_free_port()}/acme.git"
        hanging = self._new_host()
        hanging.hang()
        late = f"git ls-remote took longer than {DEADLINE_SECONDS} s"
        unresolved = f"{ACCESS}Could not resolve host: "
        plain = f"https://{self._new_host().authority}/team.git"
        self.add("dns", "http://no-such-host.invalid/acme.git", "dns", unresolved)
        self.add("refused", closed, "connect", f"{ACCESS}Failed to connect to ")
        self.add("reset", f"http://{unknown['reset']}/acme.git", "connect", ACCESS)
        self.add("hanging", hanging.url_of(self._repository), "timeout", late)
        self.add("proxied", "https://git.invalid/acme.git", "connect", ACCESS)
        self.add("plain", plain, "tls", ACCESS)
        if "tls" in unknown:
            self.add("tls", f"https://{unknown['tls']}/acme.git", "tls", ACCESS)

    def add_answers(self, unknown: Mapping[str, str], damaged: Repository, folder: Path) -> None:
        """Add what may be wrong with what is there; `folder` is no repository."""
        away, moved = self._new_host(), self._new_host()
        away.redirect("file:///srv")
        moved.redirect(self._new_host().url, when=lambda exchange: exchange.is_fetch)
        full = "fatal: remote error: No space left on device"
        nowhere = "fatal: '<url>' does not appear to be a git repository"
        self.add("away", away.url_of(self._repository), "policy", ACCESS)
        self.add("moved", moved.url_of(self._repository), "policy", "fatal: ")
        self.add("folder", folder.as_uri(), "not_found", nowhere)
        self.add("page", f"http://{unknown['page']}/acme.git", "not_found", "fatal: ")
        self.add("full", f"http://{unknown['full']}/acme.git", "other", full)
        self.add("damaged", damaged.url, "corrupt", "fatal: ")


@pytest.fixture
def unknown_hosts(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """The addresses of hosts that are not git's, by what they do."""
    serves = {
        "reset": reset,
        "full": answer(ADVERTISEMENT, SAYS_ERR),
        "page": answer("Content-Type: text/html", b"<p>Hello</p>\n"),
    }
    if shutil.which("openssl"):
        serves["tls"] = speak_tls(tmp_path)
    with ExitStack() as hosts:
        yield {name: hosts.enter_context(tcp_host(serve)) for name, serve in serves.items()}


@pytest.mark.row("S1", "H8")
def test_each_fault_of_a_source_has_its_class_and_its_sentence(
    new_repository: RepositoryFactory,
    git_http_server: GitHttpServerFactory,
    unknown_hosts: Mapping[str, str],
    gateway: GatewayFactory,
    tmp_path: Path,
) -> None:
    repository, damaged = new_repository("team"), new_repository("damaged")
    for each in (repository, damaged):
        each.document("a.md", id="a")
        each.publish()
    damage(damaged)
    faults = Faults(repository, git_http_server)
    faults.add_logins()
    faults.add_statuses()
    faults.add_refs()
    faults.add_ways(unknown_hosts)
    faults.add_answers(unknown_hosts, damaged, tmp_path)
    process = gateway(
        json.dumps({"owners": faults.owners, "credentials": faults.credentials}),
        environment={
            "OKF_GIT_TOKEN_WRONG": TOKEN,
            "OKF_GATEWAY_GIT_TIMEOUT": str(DEADLINE_SECONDS),
            "HTTPS_PROXY": git_http_server().url,  # which knows no CONNECT
            "NO_PROXY": "127.0.0.1",
        },
    )
    count = len(faults.owners)
    wait_until(lambda: process.status()["summary"]["failed"] == count, ALL_FAILED_SECONDS)
    rows = process.status("diagnostics=true")["owners"]
    shown = {name: row["diagnostics"]["error_class"] for name, row in rows.items()}
    assert shown == faults.classes
    for name, words in faults.sentences.items():
        assert rows[name]["last_pull_error"].startswith(words), (name, rows[name])
        assert rows[name]["error"]["type"] == "CloneError"
        assert rows[name]["diagnostics"]["failing_since"] is not None
    told = process.get("/status?diagnostics=true").text + process.log
    for private in (TOKEN, str(tmp_path), "team.git"):
        assert private not in told
