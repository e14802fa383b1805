"""What a killed git, another user or an intruder left in a copy, and how it goes."""

import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Final

_OWN_CONFIGURATION: Final = re.compile(
    r"\[(?:core|extensions)\]"
    r"|\t(?:repositoryformatversion|filemode|bare|ignorecase|precomposeunicode|symlinks"
    r"|objectformat|refstorage) = \w+"
)
"""The lines that `git init` writes into the configuration of a copy."""


def remove(path: Path) -> None:
    """Remove what is at `path`, be it a folder, a file or a link, or nothing.

    What can't be removed, such as another user's folder, is moved out of the way.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    if os.path.lexists(path):
        path.rename(path.with_stem(f"{path.stem}.{secrets.token_hex(4)}"))


def restore_configuration(git_dir: Path) -> None:
    """Take what isn't ours out of a copy's configuration, and out of git's other place for it.

    No option of a command undoes another address (`url.insteadOf`) or a proxy that stands there.
    """
    remove(git_dir / "commondir")
    path = git_dir / "config"
    if not path.is_file():  # a pipe would never end; git judges the copy
        return
    lines = path.read_text(errors="replace").split("\n")
    own = [line for line in lines if _OWN_CONFIGURATION.fullmatch(line)]
    if [*own, ""] != lines:
        written = git_dir / "tmp_config"
        written.write_text("\n".join([*own, ""]))
        written.replace(path)


def remove_leftovers(git_dir: Path) -> None:
    """Remove the locks and half-written files of a git that was killed: no other one runs here."""
    for folder, _, files in os.walk(git_dir):
        for name in files:
            if (
                name.endswith((".lock", ".keep"))
                or name.startswith(("tmp_", ".tmp-"))
                or _is_half(folder, name)
            ):
                Path(folder, name).unlink(missing_ok=True)


def _is_half(folder: str, name: str) -> bool:
    """Say whether this is a part of a pack without the other: git moves them one by one."""
    path = Path(folder, name)
    other = {".pack": ".idx", ".idx": ".pack", ".rev": ".pack"}.get(path.suffix)
    return other is not None and not path.with_suffix(other).exists()
