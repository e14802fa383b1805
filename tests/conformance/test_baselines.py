"""The lists of what the official suite finds failing."""

from pathlib import Path

import pytest
import yaml

from support.baselines import BaselineError, read_baseline

BASELINES = sorted((Path(__file__).parent / "baselines").glob("*.yaml"))


@pytest.mark.parametrize("path", BASELINES, ids=lambda path: path.stem)
def test_every_entry_is_one_check_with_the_reason_why_it_can_not_apply(path: Path) -> None:
    assert list(read_baseline(path)) == yaml.safe_load(path.read_text(encoding="utf-8"))["server"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("  - ping:ping", "b.yaml:2: say behind ping:ping why it can't apply"),
        ("  - ping:ping # no", "b.yaml:2: say behind ping:ping why it can't apply"),
        ("  - ping # a whole scenario", "b.yaml:2: write an entry as"),
        ("client:", "b.yaml:2: write an entry as"),
        ("  - ping:ping # nobody is there\n  - ping:ping # nobody is there", "b.yaml:3: ping:ping"),
    ],
    ids=["no reason", "a word for a reason", "a whole scenario", "another key", "twice"],
)
def test_a_line_that_says_less_is_refused(tmp_path: Path, line: str, fault: str) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(f"server:\n{line}\n")
    with pytest.raises(BaselineError) as raised:
        read_baseline(path)
    assert str(raised.value).startswith(fault)
