"""The linter: what is wrong with a repository's documents, before anybody serves them (T4, T5).

stdout holds the findings and nothing else; what is said about the run goes to stderr.
"""

import argparse
import logging
import os
import signal
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from okf_mcp_server.documents import printable
from okf_mcp_server.errors import OkfError
from okf_mcp_server.lint_formats import FORMATS, Report
from okf_mcp_server.lint_rules import find_all
from okf_mcp_server.lint_survey import survey
from okf_mcp_server.roots import Scope, add_scope_flags, choose_scope

log = logging.getLogger(__name__)

_CLEAN: Final = 0
_FAULTY: Final = 1
_BAD_USAGE: Final = 2


class OutputError(OkfError):
    """The findings can't be written."""


def main() -> None:
    """Check the repository of the working directory: the console script `okf-mcp-lint`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, without a traceback
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    arguments = _read_arguments()
    try:
        scope = choose_scope(
            Path(), roots=arguments.roots, owner=arguments.owner, environ=os.environ
        )
        report = lint(scope)
        _write(FORMATS[arguments.format](report))
    except OkfError as error:
        if sys.stderr is not None:
            with suppress(OSError):
                sys.stderr.write(f"okf-mcp-lint: {error}\n")
                sys.stderr.flush()
        sys.exit(_BAD_USAGE)
    is_faulty = report.errors or (arguments.strict and report.warnings)
    sys.exit(_FAULTY if is_faulty else _CLEAN)


def lint(scope: Scope) -> Report:
    """Return what is wrong in a repository, and how many documents the server would serve."""
    found = survey(scope)
    for each in found.snapshot.diagnostics:
        if each not in found.diagnostics:  # a default root, which is no finding
            log.warning("%s: %s", each.path, each.message)
    documents = len(found.snapshot.documents)
    if not documents:
        log.warning(
            "Nothing is served from %s: a file opts in with 'export: true' and a 'type' in its "
            "frontmatter",
            ", ".join(map(printable, scope.roots)),
        )
    return Report(findings=find_all(found), documents=documents)


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="okf-mcp-lint",
        allow_abbrev=False,
        description="Say what is wrong with the exported Markdown of this git repository.",
        epilog="Status: 1 if there is an error (with --strict: or a warning), 2 for bad usage, "
        "else 0. To check what a gateway serves: --roots .",
    )
    add_scope_flags(parser)
    parser.add_argument(
        "--format", choices=tuple(FORMATS), default="text", help="how findings are written (text)"
    )
    parser.add_argument("--strict", action="store_true", help="let a warning fail the check, too")
    parser.add_argument("--version", action="version", version=version("okf-mcp-server"))
    return parser.parse_args()


def _write(text: str) -> None:
    """Write to stdout as UTF-8, whatever the locale; a reader that has gone is no fault.

    Raises `OutputError` for a disk that is full, and the like.
    """
    if sys.stdout is None:
        raise OutputError("the findings can't be written: stdout is closed")
    try:
        # A file of our own: Python writes at exit what stdout's still holds, and complains.
        with os.fdopen(sys.stdout.fileno(), "wb", closefd=False) as stdout:
            stdout.write(text.encode("utf-8", "backslashreplace"))
    except BrokenPipeError:
        return
    except OSError as error:
        raise OutputError(f"the findings can't be written: {error.strerror}") from None
