"""`okf-mcp-gateway demo`: the gateway on this machine, with a sample owner to try it on.

The sample ships with the package and becomes a git repository in the cache, so that nothing but
this machine is needed. It is made once: what is pushed to it later stays, and is served.
"""

import json
import secrets
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from okf_mcp_gateway.config import user_cache_dir
from okf_mcp_gateway.source.git import Git, GitError
from okf_mcp_server.errors import OkfError

OWNER: Final = "sample"

_SAMPLE: Final = Path(__file__).parent / "sample"
"""Its files end in `.md.txt`: a repository that holds a virtual environment would serve them."""
_AUTHOR: Final = "Sample <sample@example.invalid> 1767225600 +0000"
_TTL_SECONDS: Final = 5
_GIT_SECONDS: Final = 30


class DemoError(OkfError):
    """The sample can't be set up."""


def demo_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Make the sample repository, and return the environment that serves it.

    The address is this machine's alone, and the token is made up, unless the environment says
    otherwise. A token is kept for the next start, so that a client's entry goes on working. Raises
    `DemoError` if there is no git, or no room to write.
    """
    cache_dir = Path(environ.get("OKF_GATEWAY_CACHE_DIR") or _default_cache_dir(environ)).absolute()
    # An owner's name never begins with a dot, so this is nobody's copy.
    folder = cache_dir / ".demo"
    registry = folder / "servers.yaml"
    defaults = {"OKF_GATEWAY_HOST": "127.0.0.1"}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        repository = folder / f"{OWNER}.git"
        _make_repository(repository, environ)
        entry = {"url": repository.as_uri(), "ttl": _TTL_SECONDS}
        registry.write_text(json.dumps({"owners": {OWNER: entry}}))
        if not environ.get("OKF_GATEWAY_TOKEN_FILE"):
            defaults["OKF_GATEWAY_TOKEN"] = _token(folder / "token")
    except OSError as error:
        message = f"the demo can't be set up in {folder}: {error.strerror}: {error.filename}"
        raise DemoError(message) from None
    fixed = {"OKF_GATEWAY_CACHE_DIR": str(cache_dir), "OKF_GATEWAY_SERVERS": str(registry)}
    return {**defaults, **{name: value for name, value in environ.items() if value}, **fixed}


def print_demo(address: str, *, token: str) -> None:
    """Print what the person who started the demo reads: what to paste, and where."""
    url = f"{address}/{OWNER}/mcp"
    header = f"Authorization: Bearer {token}"
    entry = {"type": "http", "url": url, "headers": {"Authorization": f"Bearer {token}"}}
    snippet = json.dumps({"mcpServers": {f"{OWNER}-knowledge": entry}}, indent=2)
    authorised = f"curl -sS -H {shlex.quote(header)}"
    status = shlex.quote(f"{address}/status?artifacts=true")
    refresh = f"{address}/{OWNER}/refresh"
    print(  # noqa: T201 - what was asked for
        "The gateway serves its sample owner. Ctrl-C stops it.",
        f"URL:    {url}\nToken:  {token}",
        f"For an MCP client, as .mcp.json:\n\n{snippet}",
        f"What is served, and pull now, from a shell:\n\n"
        f"{authorised} {status}\n{authorised} -X POST {refresh}\n",
        sep="\n\n",
        flush=True,
    )


def _default_cache_dir(environ: Mapping[str, str]) -> Path:
    """Return a place beside the cache of a gateway that may run here for real."""
    base = user_cache_dir(environ.get("XDG_CACHE_HOME"), environ.get("HOME"))
    return (base or Path("~/.cache").expanduser()) / "okf-mcp-gateway-demo"


def _token(path: Path) -> str:
    path.touch(mode=0o600)
    token = path.read_text().strip()
    if not token:
        token = secrets.token_urlsafe(24)
        path.write_text(token)
    return token


def _make_repository(repository: Path, environ: Mapping[str, str]) -> None:
    """Make the sample repository unless it is there: one commit on `main`."""
    with (
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryFile() as commands,
        closing(Git(environ=environ, home=Path(home), deadline_seconds=_GIT_SECONDS)) as git,
    ):
        try:
            git.run(["rev-parse", "--quiet", "--verify", "refs/heads/main"], git_dir=repository)
        except GitError:
            commands.writelines(_commit())
            commands.seek(0)
            branch = "--initial-branch=main"
            git.run(["init", "--quiet", "--bare", "--template=", branch, "--", str(repository)])
            git.run(["fast-import", "--quiet"], git_dir=repository, stdin=commands)


def _commit() -> Iterator[bytes]:
    """Yield the sample as one commit, in the language of `git fast-import`."""
    message = b"Write down what we know"
    yield f"commit refs/heads/main\ncommitter {_AUTHOR}\ndata {len(message)}\n".encode()
    yield message + b"\n"
    for path in sorted(_SAMPLE.rglob("*.md.txt")):
        content = path.read_bytes()
        name = json.dumps(path.relative_to(_SAMPLE).with_suffix("").as_posix())
        yield f"M 100644 inline {name}\ndata {len(content)}\n".encode()
        yield content + b"\n"
