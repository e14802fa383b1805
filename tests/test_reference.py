"""The documentation is true: every setting, route, flag and command stands in the reference."""

import re
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).parent.parent
SOURCES = [*PROJECT.glob("core/**/*.py"), *PROJECT.glob("gateway/**/*.py")]
REFERENCE = (PROJECT / "docs" / "reference.md").read_text()
README = (PROJECT / "README.md").read_text()


def _found_in_sources(pattern: str) -> set[str]:
    return {found for path in SOURCES for found in re.findall(pattern, path.read_text())}


SETTINGS = _found_in_sources(r'"(OKF_(?:GATEWAY|MCP)_[A-Z_]+)"')
FLAGS = _found_in_sources(r'add_argument\(\s*"(--[a-z-]+)"')
COMMANDS = _found_in_sources(r'add_parser\(\s*"([a-z-]+)"')
ROUTES = _found_in_sources(r'Route\("([^"]+)"')
STATUS_PARAMETERS = _found_in_sources(r'"([a-z]+)": \("(?:json|false)"')


def test_the_sources_are_read_right() -> None:
    assert {"OKF_GATEWAY_TOKEN", "OKF_GATEWAY_PORT", "OKF_MCP_ROOTS"} <= SETTINGS
    assert {"--roots", "--owner", "--version"} <= FLAGS
    assert {"check", "demo"} <= COMMANDS
    assert {"/healthz", "/status", "/config", "/{owner}/mcp", "/{owner}/refresh"} <= ROUTES
    assert STATUS_PARAMETERS == {"format", "artifacts", "diagnostics"}


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_every_setting_is_documented(setting: str) -> None:
    assert f"`{setting}`" in REFERENCE


@pytest.mark.parametrize("flag", sorted(FLAGS))
def test_every_flag_is_documented(flag: str) -> None:
    assert f"{flag}`" in REFERENCE


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_is_documented(command: str) -> None:
    assert f"`okf-mcp-gateway {command}`" in REFERENCE


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_every_route_is_documented(route: str) -> None:
    assert f"{route.rstrip('/')}`" in REFERENCE


@pytest.mark.parametrize("parameter", sorted(STATUS_PARAMETERS))
def test_every_query_parameter_is_documented(parameter: str) -> None:
    assert f"`?{parameter}=`" in REFERENCE


@pytest.mark.parametrize("text", [README, REFERENCE], ids=["README", "reference"])
def test_every_yaml_example_is_a_registry(text: str, tmp_path: Path) -> None:
    from okf_mcp_gateway.config import load_configuration

    examples = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert examples
    for example in examples:
        assert yaml.safe_load(example)
        (tmp_path / "servers.yaml").write_text(example)
        environ = {"OKF_GATEWAY_TOKEN": "a-token", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        assert load_configuration(environ, tmp_path).registry.owners


@pytest.mark.parametrize("target", ["demo", "test", "check", "format", "lock"])
def test_every_make_target_that_we_name_exists(target: str) -> None:
    named = README + (PROJECT / "CONTRIBUTING.md").read_text()
    assert f"make {target}" in named
    assert re.search(rf"^{target}:.*## ", (PROJECT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/reference.md"])
def test_every_link_to_a_file_of_ours_leads_somewhere(document: str) -> None:
    path = PROJECT / document
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", path.read_text())
    missing = [link for link in links if not (path.parent / link).exists()]
    assert missing == []
