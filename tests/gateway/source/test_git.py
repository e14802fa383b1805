"""One git command: what reaches it, when it ends, what it says (G4, P7, S1)."""

import base64
import hashlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from queue import Queue
from urllib.parse import quote

import pytest

from okf_mcp_gateway.source import git as git_module
from okf_mcp_gateway.source.error_class import error_class
from okf_mcp_gateway.source.git import (
    PASSED_ON,
    Git,
    GitError,
    GitStoppedError,
    GitTimeoutError,
)
from okf_mcp_gateway.source.login import Login
from support.descendants import is_alive, is_watchdog, processes_below
from support.gateway_process import wait_until
from support.git_http import Exchange, GitHttpServerFactory
from support.repositories import Repository
from support.repositories import git as run_git

NewGit = Callable[..., Git]
AddTool = Callable[[str, str], None]

JOIN_SECONDS = 20.0
TOKEN = "south-token-of-the-tests"
USER = "x-access-token"
GITCONFIG = Path(git_module.__file__).parent / "gitconfig"


class Running:
    """A command in a thread, and the processes that it started."""

    def __init__(self, command: Callable[[], bytes]) -> None:
        self._outcome: Queue[bytes | Exception] = Queue()
        self._command = command
        self._before = processes_below(os.getpid())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def processes(self) -> frozenset[int]:
        """Return git and all that it started, as long as they run."""
        new = processes_below(os.getpid()) - self._before
        return frozenset(pid for pid in new if not is_watchdog(pid))

    def named(self, name: str) -> Iterator[int]:
        """Yield those of them that are called so, in the order of their start."""
        for pid in sorted(self.processes()):
            with suppress(OSError):  # it ended meanwhile
                if names(frozenset({pid})) == {name}:
                    yield pid

    def outcome(self) -> bytes | Exception:
        self._thread.join(JOIN_SECONDS)
        assert not self._thread.is_alive()
        return self._outcome.get(timeout=JOIN_SECONDS)

    def _run(self) -> None:
        try:
            self._outcome.put(self._command())
        except Exception as error:  # noqa: BLE001 - `outcome` hands it on
            self._outcome.put(error)


def names(pids: frozenset[int]) -> set[str]:
    """Return what the processes are called, cut to 15 characters as the kernel does."""
    return {Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids}


def environment_of(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def numbers_in(path: Path, count: int) -> list[int]:
    """Wait until a tool has written so many process ids, and return them."""

    def written() -> list[int]:
        words = path.read_text().split() if path.exists() else []
        return [int(word) for word in words] if len(words) == count else []

    return wait_until(written)


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%s" % (len(content), content), usedforsecurity=False).hexdigest()


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """After each test neither a child nor a zombie of it is left, and no descriptor is open."""
    children, descriptors = processes_below(os.getpid()), open_descriptors()
    yield
    left = wait_until(lambda: [processes_below(os.getpid()) - children])
    assert left == [frozenset()]
    assert open_descriptors() == descriptors


@pytest.fixture
def mute_url() -> Iterator[str]:
    """The URL of a host that takes every connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/acme.git"


def ls_remote(git: Git, url: str, login: Login | None = None) -> bytes:
    return git.run(["ls-remote", "--quiet", "--", url], login=login)


# The environment and the configuration


@pytest.mark.row("G4", "P7")
def test_git_gets_an_environment_that_is_built_from_nothing(
    home: Path, mute_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        *("CANARY", "OKF_GATEWAY_TOKEN", "OKF_GIT_TOKEN_ACME", "HOME", "XDG_CONFIG_HOME"),
        *("GIT_DIR", "GIT_SSH_COMMAND", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_PARAMETERS", "LD_PRELOAD"),
        *("GIT_EXEC_PATH", "GIT_PROXY_COMMAND", "SSH_ASKPASS", "DISPLAY", "LANG", "LC_MESSAGES"),
    ):
        monkeypatch.setenv(name, "canary")
    passed_on = dict.fromkeys(PASSED_ON, "") | {"PATH": os.environ["PATH"]}
    git = Git(environ={**os.environ, **passed_on}, home=home, deadline_seconds=30)
    running = Running(lambda: ls_remote(git, mute_url))
    (leader, *_) = wait_until(lambda: [*running.named("git")])
    environment = environment_of(leader)
    everyone = wait_until(lambda: {"git-remote-http"} <= names(running.processes()))
    below = [environment_of(pid) for pid in running.processes()]
    git.close()
    assert isinstance(running.outcome(), GitStoppedError)
    assert everyone
    assert environment == passed_on | {
        "HOME": str(home),
        "GIT_HTTP_LOW_SPEED_LIMIT": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_HTTP_LOW_SPEED_TIME": "30",
        "LC_ALL": "C",
        "GIT_ALLOW_PROTOCOL": "file:http:https",
        "GIT_ASKPASS": "",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_GLOBAL": str(GITCONFIG),
        "GIT_CONFIG_KEY_0": "include.path",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_VALUE_0": str(GITCONFIG),
        "GIT_DIR": "/dev/null",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    assert [each for each in below if "canary" in each.values()] == []


@pytest.mark.row("P7")
def test_only_our_configuration_is_read_whatever_lies_in_the_home_or_the_environment(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted"
    planted.write_text("[user]\n\tname = canary\n")
    for path in (home / ".gitconfig", home / ".config/git/config", tmp_path / "git/config"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(planted.read_bytes())
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(planted))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(planted))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "user.name")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "canary")
    with closing(Git(environ=os.environ, home=home, deadline_seconds=30)) as git:
        listing = git.run(["config", "--list", "--show-origin", "-z"]).decode().split("\0")
    assert set(listing[:-1:2]) == {f"file:{GITCONFIG}", "command line:"}
    assert "canary" not in "".join(listing)


@pytest.mark.row("P7")
def test_git_looks_for_no_repository_by_itself(git: Git) -> None:
    with pytest.raises(GitError, match="not a git repository: '/dev/null'"):
        git.run(["rev-parse", "--git-dir"])


@pytest.mark.row("P7")
def test_git_runs_in_a_session_of_its_own_without_a_terminal(git: Git, add_tool: AddTool) -> None:
    add_tool("reveal", "cut -d' ' -f5,6,7 /proc/$PPID/stat; echo $PPID")
    group, session, terminal, leader = git.run(["reveal"]).decode().split()
    assert (group, session, terminal) == (leader, leader, "0")


# Deadlines and stops


@pytest.mark.row("P7")
def test_a_host_that_never_answers_meets_the_deadline_and_nothing_survives(
    new_git: NewGit, mute_url: str
) -> None:
    git = new_git(deadline=1.5)
    begun = time.monotonic()
    running = Running(lambda: ls_remote(git, mute_url))
    wait_until(lambda: "git-remote-http" in names(running.processes()), timeout=1.4)
    pids = running.processes()
    error = running.outcome()
    assert isinstance(error, GitTimeoutError)
    assert str(error) == "git ls-remote took longer than 1.5 s"
    assert error_class(error) == "timeout"
    assert 1.5 <= time.monotonic() - begun < 4
    assert len(pids) > 1
    wait_until(lambda: not any(map(is_alive, pids)))


@pytest.mark.row("P7")
def test_a_child_that_ignores_sigterm_is_killed_all_the_same(
    new_git: NewGit, add_tool: AddTool, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    add_tool("deaf", f"trap '' TERM\nsleep 60 &\necho $PPID $$ $! >{pids}\nsleep 60")
    begun = time.monotonic()
    with pytest.raises(GitTimeoutError):
        new_git(deadline=0.5).run(["deaf"])
    assert time.monotonic() - begun < 5
    wait_until(lambda: not any(map(is_alive, numbers_in(pids, 3))))


@pytest.mark.row("P7")
def test_git_may_remove_its_temporary_files_before_it_is_killed(
    new_git: NewGit, add_tool: AddTool, tmp_path: Path
) -> None:
    add_tool("tidy", f"trap 'touch {tmp_path}/tidied; exit 1' TERM\nwhile :; do sleep 0.01; done")
    with pytest.raises(GitTimeoutError):
        new_git(deadline=0.5).run(["tidy"])
    wait_until((tmp_path / "tidied").exists)


@pytest.mark.row("P7")
def test_the_children_of_a_git_that_died_first_are_killed(
    new_git: NewGit, add_tool: AddTool, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    add_tool("orphan", f"sleep 60 &\necho $$ $! >{pids}\nkill -KILL $PPID\nsleep 60")
    with pytest.raises(GitTimeoutError):
        new_git(deadline=0.5).run(["orphan"])
    wait_until(lambda: not any(map(is_alive, numbers_in(pids, 2))))


@pytest.mark.row("P7")
def test_what_git_leaves_in_the_background_ends_with_it(
    git: Git, add_tool: AddTool, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    add_tool("background", f"sleep 60 </dev/null >/dev/null 2>&1 &\necho $! >{pids}; echo done")
    assert git.run(["background"]) == b"done\n"
    wait_until(lambda: not any(map(is_alive, numbers_in(pids, 1))))


@pytest.mark.row("P7")
def test_a_git_that_closed_its_pipes_and_lives_on_meets_the_deadline(
    new_git: NewGit, tools: Path
) -> None:
    # Real git keeps its pipes to its end: this is what runs if it should ever not.
    (tools / "git").write_text("#!/bin/sh\nexec >&- 2>&-\nsleep 60\n")
    (tools / "git").chmod(0o755)
    with pytest.raises(GitTimeoutError):
        new_git(deadline=0.5).run(["version"])


@pytest.mark.row("P7")
def test_a_flood_of_words_meets_the_deadline(new_git: NewGit, add_tool: AddTool) -> None:
    add_tool("flood", "for each in 1 2 3 4 5 6; do yes >&2 & done; yes >&2")
    with pytest.raises(GitTimeoutError):
        new_git(deadline=0.5).run(["flood"])


def test_the_time_of_a_slow_reader_is_not_gits(
    new_git: NewGit, add_tool: AddTool, tmp_path: Path
) -> None:
    add_tool("wait", f"echo one; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo two")
    with closing(new_git(deadline=1.0).stream(["wait"])) as chunks:
        assert next(chunks) == b"one\n"
        over = time.monotonic() + 1.2
        wait_until(lambda: time.monotonic() > over)
        (tmp_path / "go").touch()
        assert list(chunks) == [b"two\n"]


@pytest.mark.row("P7")
def test_a_command_that_is_not_read_to_its_end_is_killed(
    git: Git, add_tool: AddTool, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    add_tool("endless", f"echo $PPID $$ >{pids}; yes")
    chunks = git.stream(["endless"])
    assert next(chunks).startswith(b"y\n")
    assert all(map(is_alive, numbers_in(pids, 2)))
    chunks.close()
    wait_until(lambda: not any(map(is_alive, numbers_in(pids, 2))))


@pytest.mark.row("P8")
def test_closing_kills_what_runs_and_lets_nothing_start(git: Git, mute_url: str) -> None:
    running = [Running(lambda: ls_remote(git, mute_url)) for _ in range(4)]
    wait_until(lambda: len(processes_below(os.getpid())) >= 8)
    pids = processes_below(os.getpid())
    begun = time.monotonic()
    git.close()
    outcomes = [each.outcome() for each in running]
    assert time.monotonic() - begun < 3
    assert [type(each) for each in outcomes] == [GitStoppedError] * 4
    wait_until(lambda: not any(map(is_alive, pids)))
    with pytest.raises(GitStoppedError):
        git.run(["version"])
    assert git.started_processes == 4
    git.close()


def test_a_stop_is_no_fault_of_git() -> None:
    assert not issubclass(GitStoppedError, GitError)


def test_commands_of_many_threads_leave_neither_processes_nor_descriptors(git: Git) -> None:
    def work() -> bytes:
        return b"".join(git.run(["version"]) for _ in range(10))

    running = [Running(work) for _ in range(8)]
    assert {each.outcome() for each in running} == {git.run(["version"]) * 10}
    assert git.started_processes == 81


# What git says


@pytest.mark.row("S1")
@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo 'fatal: first' >&2; echo 'fatal: second' >&2; exit 128", "fatal: first"),
        ("printf 'hint: a\\nfatal: b\\nhint: c\\n' >&2; exit 128", "fatal: b"),
        ("printf 'remote: fatal: a\\nerror: b\\n\\n' >&2; exit 1", "error: b"),
        ("printf 'progress 1\\rprogress 2\\rfatal: b\\n' >&2; exit 1", "fatal: b"),
        ("printf 'caf\\303\\251 \\377' >&2; exit 1", "café \ufffd"),
        ("exit 7", "git talk ended with status 7"),
        ("echo '  ' >&2; exit 7", "git talk ended with status 7"),
    ],
    ids=["two", "amid hints", "no fatal", "progress", "not UTF-8", "nothing", "blank"],
)
def test_the_sentence_is_gits_first_fatal_line_or_its_last_or_ours(
    git: Git, add_tool: AddTool, script: str, sentence: str
) -> None:
    add_tool("talk", script)
    with pytest.raises(GitError) as caught:
        git.run(["talk"])
    assert str(caught.value) == sentence


@pytest.mark.row("S1")
@pytest.mark.parametrize(
    "script",
    ["echo 'fatal: why' >&2; {flood} >&2; exit 1", "{flood} >&2; echo 'fatal: why' >&2; exit 1"],
    ids=["before", "after"],
)
def test_a_fatal_line_is_found_before_and_after_megabytes_of_words(
    git: Git, add_tool: AddTool, script: str
) -> None:
    add_tool("talk", script.format(flood="yes remote: words | head -n 400000"))
    with pytest.raises(GitError) as caught:
        git.run(["talk"])
    assert str(caught.value) == "fatal: why"


def test_megabytes_without_a_line_end_are_not_kept(git: Git, add_tool: AddTool) -> None:
    add_tool("talk", "head -c 5000000 /dev/zero | tr '\\0' x >&2; exit 1")
    with pytest.raises(GitError) as caught:
        git.run(["talk"])
    assert len(str(caught.value)) <= 64 * 1024


def test_words_on_stderr_are_no_failure(git: Git, add_tool: AddTool) -> None:
    add_tool("talk", "echo out; echo 'fatal: but not really' >&2")
    assert git.run(["talk"]) == b"out\n"


def test_more_output_than_the_bound_is_refused_and_git_killed(
    git: Git, add_tool: AddTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_module, "MAX_OUTPUT_BYTES", 1024 * 1024)
    add_tool("endless", "yes")
    with pytest.raises(GitError) as caught:
        git.run(["endless"])
    assert str(caught.value) == "git endless wrote more than 1 MiB"


def test_a_command_reads_its_standard_input_from_a_file(git: Git, tmp_path: Path) -> None:
    (tmp_path / "question").write_bytes(b"words")
    with (tmp_path / "question").open("rb") as question:
        answer = git.run(["hash-object", "--stdin"], stdin=question)
        nothing = git.run(["hash-object", "--stdin"])
    assert answer.decode() == blob_id(b"words") + "\n"
    assert nothing.decode() == blob_id(b"") + "\n"


# Tokens


@pytest.mark.row("G4")
@pytest.mark.parametrize(
    ("user", "token"),
    [
        (USER, TOKEN),
        (USER, "two words"),
        (USER, "\"quoted\" 'twice' `thrice`"),
        (USER, "100%25 $HOME $(id) ${PATH}"),
        (USER, "back\\slash\\n\\\\"),
        (USER, "tökén-☃-\U0001f511"),
        (USER, "-n"),
        (USER, "a:b@c/d?e#f"),
        (USER, "x" * 4096),
        ("writer@example.com", TOKEN),
        ("ünï cödé", TOKEN),
        ("{user}%41'$(id)", TOKEN),
        ("*", TOKEN),
    ],
    ids=repr,
)
def test_a_login_reaches_its_host_as_written(
    git: Git,
    repository: Repository,
    git_http_server: GitHttpServerFactory,
    user: str,
    token: str,
) -> None:
    commit = repository.publish()
    server = git_http_server(user=user, password=token)
    url = server.url_of(repository)
    assert ls_remote(git, url, Login(url, user, token)).decode().startswith(commit)


@pytest.mark.row("G4")
def test_the_question_is_known_as_newer_versions_of_git_write_it_too() -> None:
    login = Login("https://git.example.com:8443/x.git", "a b@c", "t")
    variables = login.variables(3)
    assert variables["OKF_ASKPASS_PROMPT"] == (
        "Password for 'https://a b@c@git.example.com:8443': "
    )
    assert variables["OKF_ASKPASS_PROMPT_ENCODED"] == (
        "Password for 'https://a%20b%40c@git.example.com:8443': "
    )
    user = {"credential.https://git.example.com:8443.username": "a b@c"}
    assert login.configuration == user


@pytest.mark.row("G4")
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Password for 'https://a@b@git.example.com': ", TOKEN),
        ("Password for 'https://a%40b@git.example.com': ", TOKEN),
        ("Username for 'https://git.example.com': ", None),
        ("Password for 'http://a@b@git.example.com': ", None),
        ("Password for 'https://a@b@git.example.com:8443': ", None),
        ("Password for 'https://a@b@git.example.com.evil.example': ", None),
        ("Password for 'https://a@b@git.example.com@evil.example': ", None),
        ("Password for 'https://other@git.example.com': ", None),
        ("Password for 'https://git.example.com': ", None),
        ("Password: ", None),
        ("*", None),
        ("", None),
    ],
    ids=repr,
)
def test_the_token_is_the_answer_to_one_question_only(question: str, answer: str | None) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as pipe:
        pipe.write(TOKEN.encode())
    try:
        variables = Login("https://git.example.com/acme.git", "a@b", TOKEN).variables(read_end)
        asked = subprocess.run(
            [variables["GIT_ASKPASS"], question],
            env={"PATH": os.environ["PATH"], **variables},
            pass_fds=[read_end],
            capture_output=True,
            timeout=JOIN_SECONDS,
            check=False,
        )
    finally:
        os.close(read_end)
    assert (asked.returncode, asked.stdout.decode()) == ((0, TOKEN) if answer else (1, ""))


@pytest.mark.row("G4")
def test_a_token_of_4096_bytes_passes_and_one_byte_more_is_a_sentence(
    repository: Repository, git_http_server: GitHttpServerFactory, git: Git
) -> None:
    commit = repository.publish()
    server = git_http_server(user=USER, password="x" * 4096)
    url = server.url_of(repository)
    assert ls_remote(git, url, Login(url, USER, "x" * 4096)).decode().startswith(commit)
    with pytest.raises(ValueError, match="the token of this host is longer than 4096 bytes"):
        Login(url, USER, "x" * 4095 + "é")


@pytest.mark.row("G4")
def test_no_process_shows_the_token_and_no_file_holds_it(
    git: Git, repository: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    repository.publish()
    server = git_http_server(user=USER, password=TOKEN)
    server.hang(when=lambda exchange: exchange.is_fetch)
    url, copy = server.url_of(repository), tmp_path / "copy"
    git.run(["init", "--quiet", "--bare", "--", str(copy)])
    fetch = ["fetch", "--depth=1", "--", url, "refs/heads/main:refs/okf/next"]
    running = Running(lambda: git.run(fetch, git_dir=copy, login=Login(url, USER, TOKEN)))
    (asked, *_) = server.wait_for_requests(1, when=lambda exchange: exchange.is_fetch)
    assert asked.headers["Authorization"] is not None
    pids = running.processes()
    assert {"git", "git-remote-http"} <= names(pids)
    shown = b"".join(
        Path(f"/proc/{pid}/{file}").read_bytes() for pid in pids for file in ("environ", "cmdline")
    )
    basic = base64.b64encode(f"{USER}:{TOKEN}".encode())
    written = b"".join(
        path.read_bytes()
        for path in [*copy.rglob("*"), *(tmp_path / "home").rglob("*")]
        if path.is_file()
    )
    server.release()
    assert running.outcome() == b""
    for form in (TOKEN.encode(), basic, quote(TOKEN).encode()):
        assert form not in shown + written
    assert b"OKF_ASKPASS_FD=" in shown


@pytest.mark.row("G4")
def test_a_process_without_a_login_gets_no_askpass(git: Git, add_tool: AddTool) -> None:
    add_tool("reveal", "env")
    assert "OKF_ASKPASS" not in git.run(["reveal"]).decode()


@pytest.mark.row("G4")
def test_a_login_shows_no_token() -> None:
    login = Login("https://git.example.com/x.git", USER, TOKEN)
    assert repr(login) == f"Login(url='https://git.example.com/x.git', user='{USER}', token=***)"
    assert TOKEN not in f"{login} {login!r} {[login]}"
    assert TOKEN not in str(login.variables(3))


@pytest.mark.row("G4")
def test_a_wrong_token_is_an_authentication_fault(
    git: Git, repository: Repository, git_http_server: GitHttpServerFactory
) -> None:
    repository.publish()
    url = git_http_server(user=USER, password=TOKEN).url_of(repository)
    for login in (Login(url, USER, "wrong"), Login(url, "nobody", TOKEN), None):
        with pytest.raises(GitError) as caught:
            ls_remote(git, url, login)
        assert error_class(caught.value) == "auth"


def has_login(exchange: Exchange) -> bool:
    return exchange.headers["Authorization"] is not None


@pytest.mark.row("G4", "P7")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
@pytest.mark.parametrize("is_asked_first", [False, True], ids=["at once", "after the login"])
def test_a_redirect_takes_no_token_to_another_host_or_port(
    git: Git,
    repository: Repository,
    git_http_server: GitHttpServerFactory,
    host: str,
    is_asked_first: bool,
) -> None:
    repository.publish()
    own = git_http_server(user=USER, password=TOKEN)
    other = git_http_server(user=USER, password=TOKEN, host=host)
    other_url = f"http://{host}:{other.url.rpartition(':')[2]}"
    own.redirect(other_url, when=has_login if is_asked_first else lambda _: True)
    url = own.url_of(repository)
    with pytest.raises(GitError) as caught:
        ls_remote(git, url, Login(url, USER, TOKEN))
    assert error_class(caught.value) == "auth"
    assert other.exchanges != ()
    assert [each for each in other.exchanges if has_login(each)] == []


@pytest.mark.row("G4", "P7")
@pytest.mark.parametrize(
    "target",
    [
        "http://{user}@{other}",
        "http://{user}@{own}@{other}",
        "http://{user}@{own}%00@{other}",
        "http://{user}@{own}%2f@{other}",
        "http://{user}@{own}%0a@{other}",
        "http://{user}:@{own}:x@{other}",
        "http://{user}@{own}\\@{other}",
    ],
)
def test_a_redirect_whose_url_looks_like_the_own_host_takes_no_token_along(
    git: Git, repository: Repository, git_http_server: GitHttpServerFactory, target: str
) -> None:
    repository.publish()
    own = git_http_server(user=USER, password=TOKEN)
    other = git_http_server(user="nobody", password="nothing", host="127.0.0.2")
    own.redirect(target.format(user=USER, own=own.authority, other=other.authority))
    url = own.url_of(repository)
    with pytest.raises(GitError):
        ls_remote(git, url, Login(url, USER, TOKEN))
    brought = "".join(each.headers["Authorization"] or "" for each in other.exchanges)
    decoded = [base64.b64decode(each) for each in brought.split("Basic ") if each]
    assert TOKEN not in str(decoded)


@pytest.mark.row("P7")
def test_only_the_first_request_may_be_redirected(
    git: Git, repository: Repository, git_http_server: GitHttpServerFactory
) -> None:
    commit = repository.publish()
    own, other = git_http_server(), git_http_server(host="127.0.0.2")
    own.redirect(other.url, when=lambda exchange: exchange.method == "GET")
    assert ls_remote(git, own.url_of(repository)).decode().startswith(commit)
    other.forget()
    own.redirect(other.url, when=lambda exchange: exchange.method == "POST")
    with pytest.raises(GitError):
        ls_remote(git, own.url_of(repository))
    assert other.exchanges == ()


# What may not be asked


@pytest.mark.row("P7")
@pytest.mark.parametrize(
    "url",
    [
        "ext::touch {canary}",
        "ext::sh -c touch% {canary}",
        "ssh://git@127.0.0.1/x.git",
        "git@127.0.0.1:x.git",
        "git://127.0.0.1/x.git",
        "ftp://127.0.0.1/x.git",
        "fd::17/x",
    ],
)
def test_no_other_transport_is_spoken(git: Git, tmp_path: Path, url: str) -> None:
    canary = tmp_path / "canary"
    with pytest.raises(GitError, match=r"transport '.*' not allowed") as caught:
        ls_remote(git, url.format(canary=canary))
    assert error_class(caught.value) == "policy"
    assert not canary.exists()


@pytest.mark.row("P7")
def test_no_configuration_can_allow_another_transport(git: Git, tmp_path: Path) -> None:
    canary, copy = tmp_path / "canary", tmp_path / "copy"
    run_git("init", "--quiet", "--bare", str(copy), folder=tmp_path)
    with (copy / "config").open("a") as config:
        config.write('[protocol]\n\tallow = always\n[protocol "ext"]\n\tallow = always\n')
    with pytest.raises(GitError, match="transport 'ext' not allowed"):
        git.run(["ls-remote", "--", f"ext::touch {canary}"], git_dir=copy)
    assert not canary.exists()


def test_a_path_is_what_it_is_and_no_pattern(git: Git, repository: Repository) -> None:
    repository.write(":odd*/a.md", "words")
    commit = repository.publish()
    names = git.run(["ls-tree", "--name-only", commit, "--", ":odd*/"], git_dir=repository.bare)
    assert names == b":odd*/a.md\n"


@pytest.mark.row("P7")
def test_a_signal_to_the_gateway_does_not_reach_git(git: Git, mute_url: str) -> None:
    running = Running(lambda: ls_remote(git, mute_url))
    pids = wait_until(running.processes)
    assert {os.getpgid(pid) for pid in pids}.isdisjoint({os.getpgid(os.getpid())})
    assert signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN
    git.close()
    assert isinstance(running.outcome(), GitStoppedError)


@pytest.mark.row("P7")
def test_a_watchdog_that_is_lost_is_followed_by_one_that_knows_what_runs(
    git: Git, mute_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    hanging = Running(lambda: ls_remote(git, mute_url))
    wait_until(lambda: [*hanging.named("git-remote-http")])
    (lost,) = filter(is_watchdog, processes_below(os.getpid()))
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: not is_alive(lost))
    for _ in range(2):  # the first of them finds that it is lost
        git.run(["version"])
    (watchdog,) = filter(is_watchdog, processes_below(os.getpid()))
    assert watchdog != lost
    assert len(caplog.records) == 1
    git.close()
    assert isinstance(hanging.outcome(), GitStoppedError)
