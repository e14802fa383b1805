"""The official conformance suite, against a running gateway with a real git source."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from support.baselines import read_baseline
from support.children import Ended, run_child
from support.gateway_process import GatewayFactory
from support.http_proxy import HttpProxy, http_proxy
from support.npm import CONFORMANCE, NpmFolder
from support.repositories import Repository

pytestmark = pytest.mark.npm

RUN_DEADLINE_SECONDS = 120.0
BASELINES = Path(__file__).parent / "baselines"
REVISIONS = ("2026-07-28", "2025-11-25")

_RESULTS = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d{2}-\d{2}T[0-9-]+Z")


class Suite:
    """The suite, run against one endpoint."""

    def __init__(self, npm: NpmFolder, url: str, folder: Path) -> None:
        self._npm = npm
        self._url = url
        self._folder = folder
        self._results = folder / "results"

    def run(self, baseline: Path, *chosen: str) -> Ended:
        """Run the chosen scenarios; the status is 0 if they fail where the baseline says, only."""
        program = self._npm.program(CONFORMANCE, "conformance")
        options = ("--expected-failures", str(baseline), "--output-dir", str(self._results))
        return run_child(
            [program, "server", "--url", self._url, *chosen, *options],
            folder=self._folder,
            environment=self._npm.environment(self._folder / "home"),
            deadline=RUN_DEADLINE_SECONDS,
        )

    def required_scenarios(self, revision: str) -> frozenset[str]:
        """Return the scenarios that a revision requires of a server."""
        package = self._npm.install(CONFORMANCE).parent / "@modelcontextprotocol" / "conformance"
        required = yaml.safe_load((package / "requirements" / f"{revision}.yaml").read_text())
        return frozenset(required["server"])

    def statuses(self) -> Mapping[str, Mapping[str, set[str]]]:
        """Return what was found, by scenario and check; a check may be made more than once."""
        found: dict[str, dict[str, set[str]]] = {}
        for folder in self._results.iterdir():
            named = _RESULTS.fullmatch(folder.name)
            assert named, folder.name
            checks = found.setdefault(named["scenario"], {})
            for check in json.loads((folder / "checks.json").read_text()):
                checks.setdefault(check["id"], set()).add(check["status"])
        return found

    def failures(self) -> frozenset[str]:
        """Return what failed, as a baseline names it; the suite counts a warning as a failure."""
        return frozenset(
            f"{scenario}:{check}"
            for scenario, checks in self.statuses().items()
            for check, statuses in checks.items()
            if statuses & {"FAILURE", "WARNING"}
        )


@pytest.fixture
def proxy(repository: Repository, gateway: GatewayFactory) -> Iterator[HttpProxy]:
    """The way to a gateway with one owner, `acme`; what comes from there needs no token."""
    repository.document("guides/carrier.md", type="Guide", id="carrier", title="Add a carrier")
    repository.document("adr/adr-1 - One queue.md", type="Decision", body="# Why\n\nOne is less.\n")
    repository.write("README.md", "Not for agents.\n")
    repository.publish()
    registry = json.dumps({"owners": {"acme": {"url": repository.url}}})
    process = gateway(registry, is_started=False)
    with http_proxy(process.port, token=process.token) as proxy:
        # The suite checks that a page of the very address that it asks is let in.
        process.environment["OKF_GATEWAY_ALLOWED_ORIGINS"] = proxy.url
        process.start()
        process.wait_for_state("acme", "serving")
        yield proxy


@pytest.fixture
def suite(npm: NpmFolder, proxy: HttpProxy, tmp_path: Path) -> Suite:
    """The suite, against owner `acme`."""
    return Suite(npm, f"{proxy.url}/acme/mcp", tmp_path)


@pytest.mark.row("H2")
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_revision_is_met_but_for_what_can_not_apply(suite: Suite, revision: str) -> None:
    baseline = BASELINES / f"{revision}.yaml"
    required = suite.required_scenarios(revision)

    ended = suite.run(baseline, "--requirements", revision)

    assert ended.status == 0, ended.output
    # The suite lets an entry pass whose check wasn't made; to us it is one too many.
    failures = {each for each in suite.failures() if each.partition(":")[0] in required}
    assert failures == read_baseline(baseline).keys()
    assert suite.statuses().keys() >= required


@pytest.mark.row("H2")
def test_headers_that_contradict_the_body_are_refused(suite: Suite) -> None:
    """No revision requires this scenario yet."""
    baseline = BASELINES / "http-header-validation.yaml"
    chosen = ("--scenario", "http-header-validation", "--spec-version", "2026-07-28")
    ended = suite.run(baseline, *chosen)
    assert ended.status == 0, ended.output
    assert suite.failures() == read_baseline(baseline).keys()


def test_the_suite_fails_where_a_baseline_names_what_passes(suite: Suite, tmp_path: Path) -> None:
    baseline = tmp_path / "stale.yaml"
    text = (BASELINES / "2026-07-28.yaml").read_text()
    baseline.write_text(f"{text}  - tools-list:tools-list # it passes\n")
    ended = suite.run(baseline, "--requirements", "2026-07-28")
    assert ended.status == 1
    assert "Stale baseline entries" in ended.stdout
    assert "✓ tools-list:tools-list" in ended.stdout


def test_the_suite_fails_where_a_baseline_leaves_a_failure_out(
    suite: Suite, tmp_path: Path
) -> None:
    baseline = tmp_path / "short.yaml"
    text = (BASELINES / "2026-07-28.yaml").read_text()
    baseline.write_text(re.sub(r"  - prompts-list:.*\n", "", text))
    ended = suite.run(baseline, "--requirements", "2026-07-28")
    assert ended.status == 1
    assert "✗ prompts-list" in ended.stdout.partition("Unexpected failures (not in baseline)")[2]


def test_the_suite_asks_the_gateway_in_the_revision_that_is_tested(
    suite: Suite, proxy: HttpProxy
) -> None:
    suite.run(BASELINES / "2025-11-25.yaml", "--requirements", "2025-11-25")
    first = next(each for each in proxy.requests if each.rpc_method)
    assert (first.rpc_method, first.protocol_version) == ("initialize", "2025-11-25")
