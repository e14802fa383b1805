"""The entries for `.mcp.json` that this project gives to its users, as they stand."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]

_JSON_BLOCK = re.compile(r"^```json\n(.*?)^```$", re.DOTALL | re.MULTILINE)

Entries = Mapping[str, Mapping[str, Any]]
"""Servers by name."""


def shipped_entries() -> Entries:
    """Return what the `.mcp.json` of the project says, which colleagues are given."""
    return _servers((PROJECT / ".mcp.json").read_text(encoding="utf-8"))


def readme_entries() -> Entries:
    """Return the README's entry for one repository; the command is this environment's own."""
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    (servers,) = (_servers(block) for block in _JSON_BLOCK.findall(readme) if "mcpServers" in block)
    return {name: {**each, "command": _own(each["command"])} for name, each in servers.items()}


def printed_entries(output: str) -> Entries:
    """Return the entry that `okf-mcp-gateway demo` printed."""
    begin, end = output.index("\n{") + 1, output.index("\n}") + 2
    return _servers(output[begin:end])


def _servers(text: str) -> Entries:
    return json.loads(text)["mcpServers"]


def _own(command: str) -> str:
    return str(Path(sys.executable).with_name(Path(command).name))
