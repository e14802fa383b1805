"""The documentation is true: every setting, route, flag and command stands in the reference."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from okf_mcp_gateway.config import load_configuration
from okf_mcp_server.lint_formats import FORMATS
from okf_mcp_server.lint_rules import RULES, Rule

PROJECT = Path(__file__).parent.parent
SOURCES = [*PROJECT.glob("core/**/*.py"), *PROJECT.glob("gateway/**/*.py")]
REFERENCE = (PROJECT / "docs" / "reference.md").read_text()
README = (PROJECT / "README.md").read_text()
TEXTS = {"README": README, "reference": REFERENCE}
HELP_SECONDS = 60


def _found_in_sources(pattern: str) -> set[str]:
    return {found for path in SOURCES for found in re.findall(pattern, path.read_text())}


def _help(*command: str) -> str:
    """Return what a console script says of itself."""
    return subprocess.run(
        [str(Path(sys.executable).with_name(command[0])), *command[1:], "--help"],
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=HELP_SECONDS,
        check=True,
    ).stdout


def _flags(text: str) -> set[str]:
    return {
        flag for line in re.findall(r"^  (-.*)", text, re.MULTILINE) for flag in _long_flags(line)
    }


def _long_flags(text: str) -> list[str]:
    """Return the flags of a line of help, or of a command line, up to its explanation."""
    return re.findall(r"(?<![\w-])--[a-z][a-z-]*", re.split(r" {2,}", text.strip(), maxsplit=1)[0])


def _read_scripts() -> Mapping[str, set[str]]:
    """Return what can be called, such as `okf-mcp-gateway check`, with its flags."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    flags: dict[str, set[str]] = {}
    for script in project["scripts"]:
        text = _help(script)
        flags[script] = _flags(text)
        for command in re.findall(r"^    ([a-z][a-z-]*)(?: |$)", text, re.MULTILINE):
            flags[f"{script} {command}"] = _flags(_help(script, command))
    return flags


SCRIPTS = _read_scripts()
SETTINGS = _found_in_sources(r'"(OKF_(?:GATEWAY|MCP)_[A-Z_]+)"')
SECRETS = {"OKF_GATEWAY_TOKEN"}
"""The settings that may stand in a file instead."""
FLAGS = {flag for flags in SCRIPTS.values() for flag in flags} - {"--help"}
COMMANDS = {name for name in SCRIPTS if " " in name}
ROUTES = _found_in_sources(r'Route\("([^"]+)"')
STATUS_PARAMETERS = _found_in_sources(r'"([a-z]+)": \("(?:json|false)"')


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_of_the_linter_is_documented_with_its_severity(rule: Rule) -> None:
    assert f"| `{rule.name}` | {rule.severity} |" in REFERENCE


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_of_the_linter_is_documented(name: str) -> None:
    assert f"`{name}`" in REFERENCE.partition("## Linter")[2].partition("## Configuration")[0]


def test_the_sources_and_the_scripts_are_read_right() -> None:
    assert {"OKF_GATEWAY_TOKEN", "OKF_GATEWAY_PORT", "OKF_MCP_ROOTS"} <= SETTINGS
    assert {"okf-mcp-server", "okf-mcp-lint", "okf-mcp-gateway"} == SCRIPTS.keys() - COMMANDS
    assert SCRIPTS["okf-mcp-server"] == {"--roots", "--owner", "--version", "--help"}
    assert {"okf-mcp-gateway check", "okf-mcp-gateway demo"} <= COMMANDS
    assert {"/healthz", "/status", "/config", "/{owner}/mcp", "/{owner}/refresh"} <= ROUTES
    assert {"format", "artifacts", "diagnostics"} == STATUS_PARAMETERS


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_every_setting_is_documented(setting: str) -> None:
    assert f"`{setting}`" in REFERENCE


@pytest.mark.parametrize("flag", sorted(FLAGS))
def test_every_flag_is_documented(flag: str) -> None:
    assert re.search(rf"`[^`\n]*{flag}\b(?!-)[^`\n]*`", REFERENCE)


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_every_script_and_command_is_documented(script: str) -> None:
    assert f"`{script}`" in REFERENCE


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_setting_is_named_that_does_not_exist(text: str) -> None:
    names = set(re.findall(r"\bOKF_(?:GATEWAY|MCP)_[A-Z_]*[A-Z]\b", text))
    assert names - SETTINGS - {f"{name}_FILE" for name in SECRETS} == set()


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_flag_or_command_is_named_that_does_not_exist(text: str) -> None:
    calls = re.findall(r"\b(okf-mcp-(?:server|gateway|lint))((?: [\w{}.,/-]+)*)", text)
    spoken = re.findall(r"`(?:\S+/)?(okf-mcp-(?:server|gateway|lint)) ([a-z]+)[` ]", text)
    assert {f"{script} {word}" for script, word in spoken} <= SCRIPTS.keys()
    for script, words in calls:
        command = " ".join([script, *words.split()[:1]])
        known = SCRIPTS[script] | SCRIPTS.get(command, set())
        assert set(_long_flags(words)) <= known, command
    alone = {flag for flags in re.findall(r"`(--[^`\n]+)`", text) for flag in _long_flags(flags)}
    assert alone <= FLAGS | {"--help"}


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_every_route_is_documented(route: str) -> None:
    assert f"{route.rstrip('/')}`" in REFERENCE


@pytest.mark.parametrize("parameter", sorted(STATUS_PARAMETERS))
def test_every_query_parameter_is_documented(parameter: str) -> None:
    assert f"`?{parameter}=`" in REFERENCE


@pytest.mark.parametrize("text", [README, REFERENCE], ids=["README", "reference"])
def test_every_example_with_owners_is_a_registry(text: str, tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    registries = [example for example in examples if "owners" in yaml.safe_load(example)]
    assert registries
    for example in registries:
        (tmp_path / "servers.yaml").write_text(example)
        environ = {"OKF_GATEWAY_TOKEN": "a-token", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        assert load_configuration(environ, tmp_path).registry.owners


@pytest.mark.parametrize(
    "target",
    [
        "demo",
        "test",
        "check",
        "conformance",
        "clients",
        "prove",
        "soak",
        "fuzz",
        "bench",
        "format",
        "lock",
    ],
)
def test_every_make_target_that_we_name_exists(target: str) -> None:
    named = README + (PROJECT / "CONTRIBUTING.md").read_text()
    assert f"make {target}" in named
    assert re.search(rf"^{target}:.*## ", (PROJECT / "Makefile").read_text(), re.MULTILINE)


def test_the_readme_names_a_proof_for_each_promise() -> None:
    named = re.findall(r"\| `(test_\w+\.py)` \|", README)
    assert sorted(named) == sorted(path.name for path in PROJECT.glob("tests/faults/test_*.py"))


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/reference.md"]
)
def test_every_link_to_a_file_of_ours_leads_somewhere(document: str) -> None:
    path = PROJECT / document
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", path.read_text())
    missing = [link for link in links if not (path.parent / link).exists()]
    assert missing == []
