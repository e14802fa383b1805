"""The parts that the tests stand on do what they say."""

import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from support.clients import Mode, mcp_client
from support.gateway_process import (
    GatewayExitedError,
    GatewayFactory,
    GatewayProcess,
    wait_until,
)
from support.git_http import Exchange, GitHttpServer, GitHttpServerFactory
from support.repositories import GitError, Repository, RepositoryFactory, git, git_environment
from support.rows import read_row_ids

LOGIN = {"user": "reader", "password": "s3cret/with:signs"}


def fetched_head(url: str, folder: Path, *flags: str, ref: str = "main") -> str:
    """Fetch one commit of `url` into a new bare repository and return its id."""
    git("init", "--quiet", "--bare", "--template=", str(folder), folder=folder.parent)
    git(*flags, "fetch", "--quiet", "--depth", "1", url, ref, folder=folder)
    return git("rev-parse", "FETCH_HEAD", folder=folder).decode().strip()


def listed_refs(url: str, folder: Path, *flags: str) -> dict[str, str]:
    """Return what `git ls-remote` says, ids by ref."""
    lines = git(*flags, "ls-remote", url, folder=folder).decode().splitlines()
    return {ref: commit for commit, ref in (line.split("\t") for line in lines)}


def with_login(url: str, user: str, password: str) -> tuple[str, ...]:
    """Return the flags that make git log in without being asked."""
    helper = f"!f() {{ echo username={user}; echo 'password={password}'; }}; f"
    return ("-c", f"credential.{url}.helper={helper}")


@contextmanager
def asking(url: str, folder: Path) -> Generator[subprocess.Popen[bytes]]:
    """Start `git ls-remote`, and kill it if the test leaves it running."""
    with subprocess.Popen(
        ["git", "ls-remote", url],
        cwd=folder,
        env=git_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as waiting:
        try:
            yield waiting
        finally:
            waiting.kill()


@pytest.fixture
def published(repository: Repository) -> Repository:
    """A repository with one commit of one document, pushed."""
    repository.document("design/a.md", id="a")
    repository.publish()
    return repository


# Repositories


def test_a_document_is_committed_as_written(repository: Repository) -> None:
    repository.document(
        "a b/ü.md", type="Decision", id="010", title="A: b", body="Hi\n", fields={"tags": ["x"]}
    )
    commit = repository.commit()
    assert repository.show(commit, "a b/ü.md").decode() == (
        '---\nexport: true\ntype: "Decision"\nid: "010"\ntitle: "A: b"\ntags: ["x"]\n---\nHi\n'
    )


def test_bytes_are_committed_untouched_whatever_git_is_told_to_ignore(
    repository: Repository,
) -> None:
    raw = b"\xef\xbb\xbfa\r\nb\rc\xff"
    repository.write(".gitignore", "*\n")
    repository.write("raw.md", raw)
    assert repository.show(repository.commit(), "raw.md") == raw


def test_a_folder_a_link_and_a_file_replace_one_another(repository: Repository) -> None:
    repository.write("x/one.md", "1")
    repository.write("x/two.md", "2")
    repository.commit()
    repository.write("x", "a file")
    as_file = repository.commit()
    repository.link("x", "elsewhere")
    as_link = repository.commit()
    repository.remove("x")
    assert repository.show(as_file, "x") == b"a file"
    assert repository.git("ls-tree", "-r", as_file).count("\n") == 0
    assert repository.git("ls-tree", as_link).startswith("120000 blob")
    assert repository.git("ls-tree", repository.commit()) == ""


def test_a_path_that_is_not_there_cant_be_removed(repository: Repository) -> None:
    with pytest.raises(FileNotFoundError):
        repository.remove("nothing.md")


def test_a_folder_of_files_is_copied_whole(repository: Repository, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "a.md").write_bytes(b"a\r\n")
    (source / "link.md").symlink_to("deep/a.md")
    repository.write_tree(source)
    commit = repository.commit()
    assert repository.show(commit, "deep/a.md") == b"a\r\n"
    assert repository.show(commit, "link.md") == b"deep/a.md"


def test_the_same_calls_give_the_same_commits_and_later_ones_others(
    new_repository: RepositoryFactory,
) -> None:
    one, two = new_repository("one"), new_repository("two")
    first = one.commit()
    assert two.commit() == first
    one.start_over()
    assert one.commit() != first


def test_thousands_of_files_come_in_one_commit_and_later_ones_keep_them(
    repository: Repository,
) -> None:
    repository.write("kept.md", "kept")
    repository.commit()
    files = {f"d{n % 50}/{n}.md": b"%d\n" % n for n in range(5000)} | {'odd "\\\n.md': b"odd"}
    repository.fast_import(files)
    repository.write("later.md", "later")
    repository.remove("d1/1.md")
    commit = repository.publish()
    assert repository.git("ls-tree", "-r", "--name-only", commit).count("\n") + 1 == 5002
    assert repository.show(commit, "d2/2.md") == b"2\n"
    assert repository.show(commit, 'odd "\\\n.md') == b"odd"
    assert listed_refs(repository.url, repository.bare)["refs/heads/main"] == commit


def test_a_rewritten_branch_needs_force(published: Repository) -> None:
    published.start_over()
    with pytest.raises(GitError, match="rejected"):
        published.publish()
    published.push(force=True)
    assert listed_refs(published.url, published.bare)["refs/heads/main"] == published.head
    assert published.git("rev-list", "--count", "HEAD") == "1"


def test_a_branch_goes_back_to_an_older_commit(published: Repository) -> None:
    first = published.head
    published.document("design/b.md")
    published.publish()
    published.reset(first)
    published.push(force=True)
    assert listed_refs(published.url, published.bare)["refs/heads/main"] == first


def test_tags_are_pushed_moved_and_annotated(published: Repository) -> None:
    light = published.tag("v1")
    assert light == published.head
    published.commit()
    annotated = published.tag("v1", annotated=True, force=True)
    refs = listed_refs(published.url, published.bare)
    assert refs["refs/tags/v1"] == annotated
    assert refs["refs/tags/v1^{}"] == published.head


def test_branches_come_and_go_the_default_one_too(published: Repository) -> None:
    published.push("side")
    published.delete_branch("main")
    assert set(listed_refs(published.url, published.bare)) == {"refs/heads/side"}


def test_a_repository_is_taken_away_and_brought_back(published: Repository, tmp_path: Path) -> None:
    published.take_away()
    with pytest.raises(GitError, match="does not appear to be a git repository"):
        listed_refs(published.url, tmp_path)
    published.bring_back()
    assert listed_refs(published.url, tmp_path)["HEAD"] == published.head


def test_a_shallow_fetch_works_over_a_file_url(published: Repository, tmp_path: Path) -> None:
    assert fetched_head(published.url, tmp_path / "mirror") == published.head


# The git host


def test_a_shallow_fetch_works_over_http_and_all_requests_are_on_the_list(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    url = server.url_of(published)
    assert listed_refs(url, tmp_path)["refs/heads/main"] == published.head
    probe = [
        ("GET", "/origin.git/info/refs", 200),
        ("POST", "/origin.git/git-upload-pack", 200),
    ]
    assert list(server.requests) == probe
    server.forget()
    assert fetched_head(url, tmp_path / "mirror") == published.head
    assert list(server.requests) == [*probe, ("POST", "/origin.git/git-upload-pack", 200)]
    assert [each.is_fetch for each in server.exchanges] == [False, False, True]
    assert server.exchanges[0].query == "service=git-upload-pack"


@pytest.mark.parametrize("version", ["0", "1", "2"])
def test_every_protocol_version_is_served(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path, version: str
) -> None:
    server = git_http_server()
    flags = ("-c", f"protocol.version={version}")
    assert fetched_head(server.url_of(published), tmp_path / "mirror", *flags) == published.head
    assert [each.is_fetch for each in server.exchanges][-1] is True


@pytest.mark.parametrize(
    ("buffer_bytes", "header", "value"),
    [(1_000_000, "Content-Encoding", "gzip"), (65_536, "Transfer-Encoding", "chunked")],
)
def test_long_requests_are_understood_packed_and_in_chunks(
    published: Repository,
    git_http_server: GitHttpServerFactory,
    tmp_path: Path,
    buffer_bytes: int,
    header: str,
    value: str,
) -> None:
    server = git_http_server()
    mirror = tmp_path / "mirror"
    git("init", "--quiet", "--bare", "--template=", str(mirror), folder=tmp_path)
    # A client tells of every commit that it has, in the hope that the server has it too.
    stream = "".join(
        f"commit refs/heads/own{n}\ncommitter A <a@example.com> {n} +0000\ndata 0\n\n"
        for n in range(300)
    )
    git("fast-import", "--quiet", folder=mirror, stdin=stream.encode())
    flags = ("-c", f"http.postBuffer={buffer_bytes}")
    git(*flags, "fetch", "--quiet", server.url_of(published), "main", folder=mirror)
    posts = [each for each in server.exchanges if each.method == "POST"]
    assert {each.status for each in posts} == {200}
    assert value in {each.headers[header] for each in posts}
    assert any(b"have " in each.body for each in posts)
    assert git("rev-parse", "FETCH_HEAD", folder=mirror).decode().strip() == published.head


def test_a_chunked_body_is_put_together(
    published: Repository, git_http_server: GitHttpServerFactory
) -> None:
    server = git_http_server()
    lines = [b"0014command=ls-refs\n", b"0001", b"0000"]
    connection = HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=10)
    headers = {
        "Content-Type": "application/x-git-upload-pack-request",
        "Git-Protocol": "version=2",
    }
    connection.request(
        "POST", "/origin.git/git-upload-pack", iter(lines), headers, encode_chunked=True
    )
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    assert (response.status, published.head.encode() in answer) == (200, True)
    assert server.exchanges[0].headers["Transfer-Encoding"] == "chunked"
    assert server.exchanges[0].body == b"".join(lines)


def test_without_the_login_it_is_401_and_with_it_all_works(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server(user=LOGIN["user"], password=LOGIN["password"])
    url = server.url_of(published)
    with pytest.raises(GitError, match="could not read Username"):
        listed_refs(url, tmp_path)
    assert list(server.requests) == [("GET", "/origin.git/info/refs", 401)]
    with pytest.raises(GitError, match="Authentication failed"):
        listed_refs(url, tmp_path, *with_login(server.url, LOGIN["user"], "wrong"))
    assert {status for _, _, status in server.requests} == {401}
    server.forget()
    flags = with_login(server.url, LOGIN["user"], LOGIN["password"])
    assert fetched_head(url, tmp_path / "mirror", *flags) == published.head
    assert [status for _, _, status in server.requests] == [401, 200, 200, 200]
    server.require_login(LOGIN["user"], "rotated")
    with pytest.raises(GitError, match="Authentication failed"):
        listed_refs(url, tmp_path, *flags)
    server.allow_everyone()
    assert listed_refs(url, tmp_path)["HEAD"] == published.head


def test_a_repository_that_is_not_there_is_404(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    published.take_away()
    with pytest.raises(GitError, match="not found"):
        listed_refs(server.url_of(published), tmp_path)
    assert list(server.requests) == [("GET", "/origin.git/info/refs", 404)]


@pytest.mark.parametrize("status", [404, 500])
def test_it_refuses_as_told_until_released(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path, status: int
) -> None:
    server = git_http_server()
    url = server.url_of(published)
    server.refuse(status)
    with pytest.raises(GitError):
        listed_refs(url, tmp_path)
    assert list(server.requests) == [("GET", "/origin.git/info/refs", status)]
    server.release()
    assert listed_refs(url, tmp_path)["HEAD"] == published.head


def test_only_what_is_chosen_is_refused(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    server.refuse(500, when=lambda exchange: exchange.is_fetch)
    assert listed_refs(server.url_of(published), tmp_path)["HEAD"] == published.head
    with pytest.raises(GitError, match="500"):
        fetched_head(server.url_of(published), tmp_path / "mirror")


def test_a_hanging_host_answers_those_who_wait_when_it_is_released(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    server.hang()
    with asking(server.url_of(published), tmp_path) as waiting:
        (arrived,) = server.wait_for_requests(1)
        assert (arrived.status, waiting.poll()) == (None, None)
        server.release()
        output, _ = waiting.communicate(timeout=20)
    assert output.decode().startswith(published.head)
    assert server.requests[0] == ("GET", "/origin.git/info/refs", 200)


def test_a_hanging_host_is_closed_at_once_and_leaves_no_thread(
    published: Repository, repositories_folder: Path, tmp_path: Path
) -> None:
    before = set(threading.enumerate())
    with GitHttpServer(repositories_folder) as server:
        server.hang()
        with asking(server.url_of(published), tmp_path) as waiting:
            server.wait_for_requests(1)
            server.close()
            _, errors = waiting.communicate(timeout=20)
    assert waiting.returncode == 128
    assert b"unable to access" in errors
    assert set(threading.enumerate()) == before


def test_waiting_for_requests_that_dont_come_ends(git_http_server: GitHttpServerFactory) -> None:
    with pytest.raises(TimeoutError, match="0 of 1"):
        git_http_server().wait_for_requests(1, timeout=0.01)


def test_a_redirect_is_followed_to_another_host_that_sees_no_login(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    old = git_http_server(user=LOGIN["user"], password=LOGIN["password"])
    new = git_http_server(host="127.0.0.2")
    flags = with_login(old.url, LOGIN["user"], LOGIN["password"])
    old.redirect(new.url)
    assert listed_refs(old.url_of(published), tmp_path, *flags)["HEAD"] == published.head
    assert list(old.requests) == [("GET", "/origin.git/info/refs", 302)]
    assert [status for _, _, status in new.requests] == [200, 200]
    assert {each.headers["Authorization"] for each in new.exchanges} == {None}


def test_a_trickling_answer_is_right_and_ends_when_released(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    server.trickle(30.0)
    url = server.url_of(published)
    slow = ("-c", "http.lowSpeedLimit=100", "-c", "http.lowSpeedTime=1")
    with pytest.raises(GitError, match="too slow"):
        listed_refs(url, tmp_path, *slow)
    server.trickle(0.001)
    assert listed_refs(url, tmp_path)["HEAD"] == published.head
    server.trickle(30.0)
    server.forget()
    with asking(url, tmp_path) as waiting:
        server.wait_for_requests(1)
        server.release()
        output, _ = waiting.communicate(timeout=20)
    assert output.decode().startswith(published.head)


def test_a_broken_off_pack_is_half_a_pack(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    server.break_off(100, when=lambda exchange: exchange.is_fetch)
    with pytest.raises(GitError, match="bytes of body are still expected"):
        fetched_head(server.url_of(published), tmp_path / "mirror")


def test_many_clients_are_served_at_once(
    published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    server = git_http_server()
    server.hang()
    with ExitStack() as stack:
        url = server.url_of(published)
        clients = [stack.enter_context(asking(url, tmp_path)) for _ in range(8)]
        server.wait_for_requests(8)
        server.release()
        outputs = [client.communicate(timeout=30)[0].decode() for client in clients]
    assert {output.split()[0] for output in outputs} == {published.head}
    assert [status for _, _, status in server.requests] == [200] * 16


def test_a_fault_of_the_host_itself_comes_out(published: Repository, tmp_path: Path) -> None:
    def fail(_: Exchange) -> bool:
        raise ZeroDivisionError

    server = GitHttpServer(published.bare.parent)
    server.refuse(500, when=fail)
    with pytest.raises(ExceptionGroup) as caught, server, pytest.raises(GitError):
        listed_refs(server.url_of(published), tmp_path)
    assert caught.group_contains(ZeroDivisionError)


# The gateway's process

STAND_IN = """
import http.server, json, os, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        length = int(self.headers.get("Content-Length") or 0)
        said = {"path": self.path, "token": self.headers.get("Authorization"),
                "body": self.rfile.read(length).decode(), "own": os.environ["OKF_GATEWAY_TOKEN"],
                "type": self.headers.get("Content-Type"), "owners": {"a": {"state": "serving"}}}
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
address = (os.environ["OKF_GATEWAY_HOST"], int(os.environ["OKF_GATEWAY_PORT"]))
server = http.server.ThreadingHTTPServer(address, Handler)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(os.environ.get("STATUS", "0"))))
print("started", open(os.environ["OKF_GATEWAY_SERVERS"]).read(), file=sys.stderr, flush=True)
server.serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[[], GatewayProcess]:
    """Make a process that answers as little as it takes to see that `GatewayProcess` works."""

    def create() -> GatewayProcess:
        return GatewayProcess(
            tmp_path / "gateway",
            "owners: {}",
            environment={"STATUS": "7"},
            command=(sys.executable, "-c", STAND_IN),
        )

    return create


def test_a_process_is_started_asked_and_stopped(
    stand_in: Callable[[], GatewayProcess],
) -> None:
    with stand_in() as process:
        assert process.log.startswith("started owners: {}")
        said = process.get("/x?y=1").json
        assert (said["path"], said["token"]) == ("/x?y=1", f"Bearer {process.token}")
        assert said["own"] == process.token
        assert process.get("/", token=False).json["token"] is None
        assert process.get("/", token="other").json["token"] == "Bearer other"
        said = process.post("/", {"a": 1}, headers={"X": "y"}).json
        assert (said["body"], said["type"]) == ('{"a": 1}', "application/json")
        assert process.status("artifacts=true")["path"] == "/status?artifacts=true"
        assert process.wait_for_state("a", "serving") == {"state": "serving"}
        assert process.refresh("a").json["path"] == "/a/refresh"
        assert process.stop() == 7
    assert process.is_running is False


def test_a_process_is_killed_and_started_again_on_its_port(
    stand_in: Callable[[], GatewayProcess],
) -> None:
    with stand_in() as process:
        process.kill()
        assert process.returncode == -9
        process.start()
        assert process.get("/").status == 200
        assert process.log.count("started") == 2


def test_a_start_that_fails_is_told_with_status_and_log(tmp_path: Path) -> None:
    process = GatewayProcess(
        tmp_path, "", command=(sys.executable, "-c", "raise SystemExit('a sentence')")
    )
    with pytest.raises(GatewayExitedError) as caught:
        process.start()
    assert (caught.value.returncode, caught.value.log) == (1, "a sentence\n")
    assert process.run() == 1


def test_a_process_that_never_answers_is_killed_at_the_deadline(tmp_path: Path) -> None:
    process = GatewayProcess(
        tmp_path, "", command=(sys.executable, "-c", "import signal; signal.pause()")
    )
    with pytest.raises(TimeoutError):
        process.start(timeout=0.3)
    assert process.is_running is False


def test_a_process_that_ignores_sigterm_is_killed_at_the_deadline(tmp_path: Path) -> None:
    code = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True); signal.pause()"
    )
    process = GatewayProcess(tmp_path, "", command=(sys.executable, "-c", code))
    process.launch()
    wait_until(lambda: "deaf" in process.stdout)
    with pytest.raises(TimeoutError, match="runs on"):
        process.stop(timeout=0.2)
    assert process.returncode == -9


def test_a_variable_is_taken_away_by_none(gateway: GatewayFactory) -> None:
    process = gateway("", environment={"OKF_GATEWAY_TOKEN": None, "X": "y"}, is_started=False)
    assert "OKF_GATEWAY_TOKEN" not in process.environment
    assert process.environment["X"] == "y"
    assert process.environment["OKF_GATEWAY_SERVERS"] == str(process.folder / "servers.yaml")


@pytest.mark.anyio
async def test_the_real_gateway_serves_a_real_repository_of_a_real_host(
    published: Repository, git_http_server: GitHttpServerFactory, gateway: GatewayFactory
) -> None:
    host = git_http_server(user=LOGIN["user"], password=LOGIN["password"])
    servers = f"""\
owners:
  acme: {{url: "{host.url_of(published)}"}}
credentials:
  "{host.authority}": {{token_env: OKF_GIT_TOKEN_HOST, token_user: {LOGIN["user"]}}}
"""
    process = gateway(servers, environment={"OKF_GIT_TOKEN_HOST": LOGIN["password"]})
    assert process.wait_for_state("acme", "serving")["served_commit"] == published.head
    async with mcp_client(process.mcp_url("acme"), process.token) as client:
        listed = await client.list_resources()
    assert [each.uri for each in listed.resources] == ["knowledge://acme/note/a"]
    assert process.stop() == 0


def test_waiting_returns_the_answer_and_ends() -> None:
    answers = iter([0, 0, 3])
    assert wait_until(lambda: next(answers)) == 3
    with pytest.raises(TimeoutError, match="still 0"):
        wait_until(lambda: 0, timeout=0.01)


# The MCP client


async def list_resources(
    _: ServerRequestContext[Any], __: types.PaginatedRequestParams | None
) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=[types.Resource(uri="knowledge://a/b/c", name="c")])


@asynccontextmanager
async def served_mcp(seen: list[tuple[bytes, bytes]]) -> AsyncGenerator[str]:
    """Serve one MCP server of the SDK on a real port, and note the headers of all requests."""
    server = Server("stand-in", version="1", on_list_resources=list_resources)
    manager = StreamableHTTPSessionManager(server, stateless=True, json_response=True)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(scope["headers"])
        await manager.handle_request(scope, receive, send)

    http = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
    # Who connects before the server has started waits in the backlog.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with manager.run(), anyio.create_task_group() as tasks:
            tasks.start_soon(http.serve, [listener])
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
            finally:
                http.should_exit = True


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("mode", "version"),
    [("auto", "2026-07-28"), ("legacy", "2025-11-25"), ("2026-07-28", "2026-07-28")],
)
async def test_the_client_speaks_both_eras_and_brings_its_token(mode: Mode, version: str) -> None:
    seen: list[tuple[bytes, bytes]] = []
    with anyio.fail_after(30):
        async with served_mcp(seen) as url, mcp_client(url, "north", mode) as client:
            listed = await client.list_resources()
            assert client.protocol_version == version
    assert [each.uri for each in listed.resources] == ["knowledge://a/b/c"]
    assert {value for name, value in seen if name == b"authorization"} == {b"Bearer north"}


@pytest.mark.anyio
async def test_the_client_can_come_without_a_token() -> None:
    seen: list[tuple[bytes, bytes]] = []
    with anyio.fail_after(30):
        async with (
            served_mcp(seen) as url,
            mcp_client(url, None, headers={"Origin": "http://x.example"}) as client,
        ):
            await client.list_resources()
    assert b"authorization" not in dict(seen)
    assert dict(seen)[b"origin"] == b"http://x.example"


# The rows of the contract

REFERENCE = """\
# Reference
| id | rule |
|---|---|
| D1 | one |
| D2 S | two |
### S1 · states
```
| X9 | only an example |
```
Text about D7. | D8 |
"""
CONFTEST = """
from pathlib import Path
from support.rows import RowLedger
def pytest_configure(config):
    config.addinivalue_line("markers", "row(*ids): rows")
    config.pluginmanager.register(RowLedger(Path(__file__).parent / "reference.md"))
"""
PROVING = """
import pytest
@pytest.mark.row("D1", "D2")
def test_one(): pass
@pytest.mark.row("S1")
def test_two(): pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of its own that the ledger holds against `REFERENCE`."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\ntestpaths = checks\naddopts = --strict-markers")
    pytester.makeconftest(CONFTEST)
    pytester.path.joinpath("reference.md").write_text(REFERENCE)
    pytester.mkdir("checks")
    return pytester


def run(project: pytest.Pytester, tests: str, *arguments: str) -> pytest.RunResult:
    project.path.joinpath("checks", "test_it.py").write_text(tests)
    return project.runpytest_subprocess(*arguments, timeout=60)


def test_rows_are_table_rows_and_headings_that_begin_with_an_id() -> None:
    assert read_row_ids(REFERENCE) == {"D1", "D2", "S1"}
    assert read_row_ids('| <a id="h1"></a>**H1** | x |\n## `P10`\n| H1b |') == {"H1", "P10"}


@pytest.mark.parametrize("arguments", [(), ("checks",), (".",)], ids=["bare", "folder", "dot"])
def test_a_full_run_that_proves_every_row_passes(
    project: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    result = run(project, PROVING, *arguments)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*rows of the contract*")


@pytest.mark.parametrize(
    ("tests", "complaint"),
    [
        (PROVING.replace(', "D2"', ""), "D2: no test claims it"),
        (
            PROVING.replace("(): pass\n@", "(): pytest.skip('later')\n@"),
            "D1: no test that claims it ran and passed: checks/test_it.py::test_one",
        ),
        (
            PROVING.replace('"S1")', '"S1")\n@pytest.mark.xfail(strict=False)'),
            "S1: no test that claims it ran and passed: checks/test_it.py::test_two",
        ),
        (
            PROVING.replace('"D2"', '"D2", "X9"'),
            "X9: the reference knows no such row: checks/test_it.py::test_one",
        ),
    ],
    ids=["unclaimed", "skipped", "may fail", "unknown"],
)
@pytest.mark.parametrize("arguments", [(), ("checks",)], ids=["bare", "folder"])
def test_a_full_run_that_differs_from_the_reference_fails(
    project: pytest.Pytester, tests: str, complaint: str, arguments: tuple[str, ...]
) -> None:
    result = run(project, tests, *arguments)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*rows of the contract*", complaint])


@pytest.mark.parametrize(
    "arguments",
    [
        ("-k", "two"),
        ("-m", "row"),
        ("checks/test_it.py",),
        ("checks/test_it.py::test_two",),
        ("--deselect", "checks/test_it.py::test_one"),
        ("--collect-only",),
    ],
    ids=["-k", "-m", "path", "node", "deselect", "collect"],
)
def test_a_part_of_the_tests_is_not_held_against_the_reference(
    project: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    result = run(project, PROVING.replace(', "D2"', ""), *arguments)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*rows of the contract*")


def test_a_plain_run_leaves_out_what_is_from_npm_and_is_a_full_run(
    project: pytest.Pytester,
) -> None:
    ini = "[pytest]\ntestpaths = checks\naddopts = -m 'not npm'\nmarkers =\n  npm\n  row"
    project.makeini(ini)
    of_npm = "@pytest.mark.npm\ndef test_three(): raise AssertionError\n"
    assert run(project, PROVING + of_npm).ret == pytest.ExitCode.OK
    result = run(project, PROVING.replace(', "D2"', "") + of_npm)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["D2: no test claims it"])


def test_it_does_not_matter_how_many_processes_ran_the_tests(project: pytest.Pytester) -> None:
    workers = ("-p", "xdist.plugin", "-n", "2")
    assert run(project, PROVING, *workers).ret == pytest.ExitCode.OK
    later = PROVING.replace("(): pass\n@", "(): pytest.skip('later')\n@").replace(', "D2"', "")
    result = run(project, later, *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    unproven = "D1: no test that claims it ran and passed: checks/test_it.py::test_one"
    result.stdout.fnmatch_lines(["*rows of the contract*", unproven, "D2: no test claims it"])


def test_an_absent_reference_is_told_and_tolerated(project: pytest.Pytester) -> None:
    project.path.joinpath("reference.md").unlink()
    result = run(project, PROVING)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*reference.md is not there: no row was checked"])
