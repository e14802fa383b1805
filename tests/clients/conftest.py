"""What real clients connect to: a gateway, and a repository."""

import json

import pytest

from support.gateway_process import GatewayFactory, GatewayProcess
from support.npm import NpmFolder, NpmUnreachableError
from support.repositories import Repository


@pytest.fixture(scope="session")
def npm(pytestconfig: pytest.Config) -> NpmFolder:
    """A place for the clients, kept from run to run; skips where npm does not answer."""
    assert pytestconfig.cache is not None, "run without -p no:cacheprovider"
    folder = NpmFolder(pytestconfig.cache.mkdir("npm"))
    try:
        folder.ping()
    except NpmUnreachableError as error:
        pytest.skip(str(error))
    return folder


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
