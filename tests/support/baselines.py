"""Lists of the checks of the official suite that are expected to fail, each with its reason.

The suite reads them as YAML; the reason is the comment behind an entry, so they are read as text.
"""

import re
from collections.abc import Mapping
from pathlib import Path

_ENTRY = re.compile(r"  - (?P<check>[a-z0-9-]+:[a-z0-9-]+)(?: # (?P<reason>\S.*))?")
_MIN_WORDS = 3


class BaselineError(Exception):
    """A line of a baseline is no entry, or an entry without a reason."""


def read_baseline(path: Path) -> Mapping[str, str]:
    """Return the reasons by check (`scenario:check-id`).

    Raises `BaselineError` for a line that says something else, for an entry without a reason of
    three words at least, and for one that stands twice.
    """
    reasons: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line == "server:" or line.startswith("#"):
            continue
        where = f"{path.name}:{number}"
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            raise BaselineError(f"{where}: write an entry as '  - scenario:check-id # the reason'")
        if len((entry["reason"] or "").split()) < _MIN_WORDS:
            raise BaselineError(f"{where}: say behind {entry['check']} why it can't apply")
        if entry["check"] in reasons:
            raise BaselineError(f"{where}: {entry['check']} stands twice")
        reasons[entry["check"]] = entry["reason"]
    return reasons
