"""The list of protections: how each is taken away, and which tests must then fail."""

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError


class ListError(Exception):
    """The list can't be used."""


class Protection(BaseModel, frozen=True, extra="forbid"):
    """One protection of the product."""

    name: str
    """The sentence that says what it protects."""
    file: str
    """Where it is, from the top of the project."""
    old: str = Field(min_length=1)
    """A text that stands there exactly once."""
    new: str
    """What takes its place, so that this protection is gone and nothing else."""
    tests: tuple[str, ...] = Field(min_length=1)
    """The ids of the tests that must fail then; one without parameters stands for all its cases."""

    def faults(self, project: Path) -> Iterator[str]:
        """Yield why it doesn't fit the project."""
        path = project / self.file
        if not path.is_file():
            yield f"there is no file {self.file}"
        elif (count := path.read_text(encoding="utf-8").count(self.old)) != 1:
            yield f"its old text stands {count} times in {self.file}, not once"
        if self.old == self.new:
            yield "its new text is the old one"
        for test in self.tests:
            if not _is_there(test, project):
                yield f"there is no test {test}"

    def remove_from(self, project: Path) -> None:
        """Take the protection away."""
        path = project / self.file
        text, before = path.read_text(encoding="utf-8"), path.stat().st_mtime
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        # Python knows by size and second whether what it compiled before still counts.
        os.utime(path, (before + 60, before + 60))


class _List(BaseModel, extra="forbid"):
    protection: tuple[Protection, ...]


def read_protections(path: Path) -> tuple[Protection, ...]:
    """Read the list, each name once. Raises `ListError`."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        protections = _List.model_validate(tables).protection
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise ListError(f"{path.name}: {error}") from None
    names = [each.name for each in protections]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ListError(f"{path.name}: these stand twice: {', '.join(repeated)}")
    return protections


def _is_there(test: str, project: Path) -> bool:
    """Whether its file has a function of this name; parameters only show when it runs."""
    file, _, name = test.partition("[")[0].partition("::")
    path = project / file
    if not path.is_file():
        return False
    definition = rf"^(?:async )?def {re.escape(name)}\("
    return re.search(definition, path.read_text(encoding="utf-8"), re.MULTILINE) is not None
