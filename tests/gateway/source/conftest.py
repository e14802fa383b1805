"""What the tests of the source share: a sealed git, tools of our own for it, and mirrors."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from okf_mcp_gateway.registry import CredentialRef, OwnerConfig
from okf_mcp_gateway.scrub import Secret
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.source.mirror import Mirror
from support.repositories import Repository

NewGit = Callable[..., Git]
NewMirror = Callable[..., Mirror]
AddTool = Callable[[str, str], None]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The empty folder that is every git's `HOME`."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder on git's `PATH`: an executable `git-x` in it is the command `git x`."""
    folder = tmp_path / "tools"
    folder.mkdir()
    return folder


@pytest.fixture
def add_tool(tools: Path) -> AddTool:
    """Let `git {name}` run a shell script, as a child of git."""

    def add(name: str, script: str) -> None:
        path = tools / f"git-{name}"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return add


@pytest.fixture
def new_git(home: Path, tools: Path) -> Iterator[NewGit]:
    """Make runners of git that are closed after the test."""
    with ExitStack() as stack:

        def create(*, deadline: float = 30.0) -> Git:
            environ = {"PATH": f"{tools}:{os.environ['PATH']}"}
            git = Git(environ=environ, home=home, deadline_seconds=deadline)
            stack.callback(git.close)
            return git

        yield create


@pytest.fixture
def git(new_git: NewGit) -> Git:
    return new_git()


@pytest.fixture
def new_mirror(git: Git, cache: Path) -> NewMirror:
    """Make mirrors of one owner, `acme`, in the same cache."""

    def create(
        source: Repository | str, ref: str = "main", *, token: Secret | None = None
    ) -> Mirror:
        url = source if isinstance(source, str) else source.url
        credential = (
            CredentialRef("a host", "OKF_GIT_TOKEN_ACME", "x-access-token", token)
            if token
            else None
        )
        config = OwnerConfig("acme", url, ref, 0, credential=credential)
        return Mirror(config, cache, git)

    return create
