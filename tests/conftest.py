"""What every test may ask for: real repositories, git hosts and gateways in its own folder."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.gateway_process import GatewayFactory, GatewayProcess
from support.git_http import GitHttpServer, GitHttpServerFactory
from support.npm import NpmFolder, NpmUnreachableError
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


@pytest.fixture
def knowledge(repository: Repository) -> Repository:
    """A repository with two documents, `carrier` and `adr-1`, and a file that isn't one."""
    repository.document("guides/carrier.md", type="Guide", id="carrier", title="Add a carrier")
    repository.document("adr/adr-1 - One queue.md", type="Decision", body="# Why\n\nOne is less.\n")
    repository.write("README.md", "Not for agents.\n")
    repository.publish()
    return repository


@pytest.fixture
def acme(knowledge: Repository, gateway: GatewayFactory) -> GatewayProcess:
    """A gateway that serves that repository as owner `acme`."""
    process = gateway(json.dumps({"owners": {"acme": {"url": knowledge.url}}}))
    process.wait_for_state("acme", "serving")
    return process


@pytest.fixture(scope="session")
def npm(pytestconfig: pytest.Config) -> NpmFolder:
    """A place for programs from npm, kept from run to run; skips where npm does not answer."""
    assert pytestconfig.cache is not None, "run without -p no:cacheprovider"
    folder = NpmFolder(pytestconfig.cache.mkdir("npm"))
    try:
        folder.ping()
    except NpmUnreachableError as error:
        pytest.skip(str(error))
    return folder
