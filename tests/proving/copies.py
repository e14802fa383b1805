"""Copies of the project that tests can run in, as if each were the only one.

Whatever a test starts from the environment of its copy, with whatever variables, imports the
packages of that copy: the environment has a path file of its own, and no installed package of ours.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

ENVIRONMENT = ".venv"


def copy_project(project: Path, folder: Path) -> None:
    """Copy what git has, or would take, to `folder`; it gets an environment of its own.

    It is a git repository too, without a commit: there are tests that ask what git would ignore.
    """
    listing = _git(project, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in {os.fsdecode(each) for each in listing.split(b"\0") if each}:
        if os.path.lexists(project / name):  # it isn't if it was removed since the last commit
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(project / name, folder / name, follow_symlinks=False)
    _git(folder, "init", "--quiet", "--template=")
    _make_environment(folder)


def copy_again(copy: Path, folder: Path) -> None:
    """Copy a copy, with what Python has compiled in it."""
    shutil.copytree(copy, folder, symlinks=True, ignore=shutil.ignore_patterns(ENVIRONMENT))
    _make_environment(folder)


def python_of(copy: Path) -> str:
    """Return the path of the copy's Python."""
    return str(copy / ENVIRONMENT / "bin" / "python")


def _git(folder: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout


def _make_environment(copy: Path) -> None:
    environment = copy / ENVIRONMENT
    venv.create(environment, symlinks=True)
    packages = next(environment.glob("lib/python*/site-packages"))
    # The path files of the environment that we run in are not read from here: what is installed
    # there as editable, our packages, isn't found by them.
    installed = [path for path in sys.path if Path(path).name == packages.name]
    paths = [*_source_folders(copy), *installed]
    (packages / "copy.pth").write_text("".join(f"{path}\n" for path in paths))
    for program in Path(sys.prefix, "bin").iterdir():
        _take_over(program, environment / "bin" / program.name)


def _source_folders(copy: Path) -> Iterator[Path]:
    project = tomllib.loads((copy / "pyproject.toml").read_text(encoding="utf-8"))
    for name in project["tool"]["hatch"]["build"]["dev-mode-dirs"]:
        yield copy / name


def _take_over(program: Path, place: Path) -> None:
    """Let a script of ours run under the copy's Python; what isn't one stays where it is."""
    if place.exists():
        return
    with program.open("rb") as file:
        is_script = file.read(2) == b"#!"
    if not is_script:
        place.symlink_to(program)
        return
    script = program.read_bytes()
    place.write_bytes(script.replace(os.fsencode(sys.prefix), os.fsencode(place.parent.parent)))
    place.chmod(0o755)
