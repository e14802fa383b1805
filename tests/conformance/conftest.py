"""The official suite, and what it is run against."""

import pytest

from support.npm import NpmFolder, NpmUnreachableError


@pytest.fixture(scope="session")
def npm(pytestconfig: pytest.Config) -> NpmFolder:
    """A place for the suite, kept from run to run; skips where npm does not answer."""
    assert pytestconfig.cache is not None, "run without -p no:cacheprovider"
    folder = NpmFolder(pytestconfig.cache.mkdir("npm"))
    try:
        folder.ping()
    except NpmUnreachableError as error:
        pytest.skip(str(error))
    return folder
