"""The repository of `examples/`, copied to where a test runs it."""

import re
import shutil
from pathlib import Path
from typing import Final

from support.repositories import git

PROJECT: Final = Path(__file__).parents[2]
EXAMPLE: Final = PROJECT / "examples" / "repository"

SOURCE: Final = re.compile(
    r"^# okf-mcp-server = \{ git = \"(?P<url>[^\"]+)\", tag = \"(?P<tag>[^\"]+)\" \}$", re.MULTILINE
)
"""The line of the script that says where this project comes from."""


def copy_example(folder: Path, source: str) -> Path:
    """Copy the example to `folder` as a git repository; return its top, the folder `acme`.

    `source` is what uv takes the project from: `path = "…"`, or `git = "…", tag = "…"`.
    """
    top = folder / "acme"
    shutil.copytree(EXAMPLE, top)
    git("init", "--quiet", folder=top)
    script = top / "mcp/server.py"
    text, count = SOURCE.subn(f"# okf-mcp-server = {{ {source} }}", script.read_text())
    if count != 1:
        raise AssertionError(f"{count} lines of {script} name a source")
    script.write_text(text)
    return top
