"""What every test may ask for: real repositories, git hosts and gateways in its own folder."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.gateway_process import GatewayFactory, GatewayProcess
from support.git_http import GitHttpServer, GitHttpServerFactory
from support.repositories import Repository, RepositoryFactory
from support.rows import RowLedger

pytest_plugins = ["pytester"]


def pytest_configure(config: pytest.Config) -> None:
    """Hold the run against the reference."""
    ledger = RowLedger(config.rootpath / "docs" / "reference.md")
    config.pluginmanager.register(ledger, "row-ledger")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run each `@pytest.mark.anyio` test on asyncio, once."""
    return "asyncio"


@pytest.fixture
def repositories_folder(tmp_path: Path) -> Path:
    """The folder that `new_repository` fills and `git_http_server` serves."""
    return tmp_path / "repositories"


@pytest.fixture
def new_repository(repositories_folder: Path) -> RepositoryFactory:
    """Make repositories, each with a name of its own, without a commit."""

    def create(name: str = "origin") -> Repository:
        return Repository(repositories_folder, name)

    return create


@pytest.fixture
def repository(new_repository: RepositoryFactory) -> Repository:
    """A repository named `origin`, without a commit."""
    return new_repository()


@pytest.fixture
def published(repository: Repository) -> Repository:
    """A repository with one document, `a`, pushed."""
    repository.document("a.md", id="a")
    repository.publish()
    return repository


@pytest.fixture
def git_http_server(repositories_folder: Path) -> Iterator[GitHttpServerFactory]:
    """Start git hosts that are closed after the test."""
    with ExitStack() as stack:

        def start(
            root: Path | None = None,
            *,
            user: str | None = None,
            password: str | None = None,
            host: str = "127.0.0.1",
        ) -> GitHttpServer:
            served = root or repositories_folder
            return stack.enter_context(
                GitHttpServer(served, user=user, password=password, host=host)
            )

        yield start


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayFactory]:
    """Start gateways that are stopped after the test."""
    with ExitStack() as stack:

        def prepare(
            servers: str,
            *,
            name: str = "gateway",
            cache: Path | None = None,
            environment: Mapping[str, str | None] | None = None,
            is_started: bool = True,
        ) -> GatewayProcess:
            process = GatewayProcess(tmp_path / name, servers, cache=cache, environment=environment)
            stack.callback(process.close)
            if is_started:
                process.start()
            return process

        yield prepare
