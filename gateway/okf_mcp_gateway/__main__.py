"""The console script `okf-mcp-gateway`: its commands, and what a fault at the start says."""

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path

from okf_mcp_gateway.config import ConfigError, load_configuration
from okf_mcp_gateway.demo import demo_environment, print_demo
from okf_mcp_gateway.registry import Registry
from okf_mcp_gateway.serving import StartError, serve
from okf_mcp_server.errors import OkfError


def main() -> None:
    """Run the command line; a fault at the start is a sentence on stderr and status 1 (G1)."""
    parser = argparse.ArgumentParser(
        prog="okf-mcp-gateway",
        allow_abbrev=False,
        description="Serve the exported Markdown of many git repositories over MCP.",
        epilog="Settings come from the environment, or from .env in the working directory.",
    )
    parser.add_argument("--version", action="version", version=version("okf-mcp-server"))
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("check", help="check the configuration, and do no more")
    commands.add_parser("demo", help="serve a sample owner on this machine, to try it out")
    command = parser.parse_args().command
    try:
        environ = demo_environment(os.environ) if command == "demo" else os.environ
        configuration = load_configuration(environ, _working_directory())
        if command == "check":
            print(*_verdict(configuration.registry), sep="\n")  # noqa: T201 - the command's answer
        elif command == "demo":
            show = partial(print_demo, token=configuration.settings.token.reveal() or "")
            serve(configuration, environ, on_listening=show)
        else:
            serve(configuration, environ)
    except ConfigError as error:
        sys.exit("\n".join(f"okf-mcp-gateway: {fault}" for fault in error.faults))
    except OkfError as error:
        sys.exit(f"okf-mcp-gateway: {error}")


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise StartError(f"the working directory can't be used: {error.strerror}") from None


def _verdict(registry: Registry) -> Iterator[str]:
    """Yield what `check` says of a configuration without faults."""
    yield f"The configuration is good. Owners: {', '.join(registry.owners)}."
    for name, owner in registry.owners.items():
        if owner.credential and owner.credential.token.reveal() is None:
            yield f"Note: {owner.credential.token_env} is not set, so {name} can't be pulled."
    used = [owner.credential.host for owner in registry.owners.values() if owner.credential]
    for host in registry.credentials:
        if host not in used:
            yield f"Note: no owner has a URL that credentials.{host} is for."


if __name__ == "__main__":
    main()
