"""`make fuzz`: hunt for inputs that break us, each target for its share of the time.

Status 1 if anything crashed. What is found and what was learned stays in `.fuzz`, which git
ignores, and the next run goes on from there.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fuzz.corpus import dictionary, seeds
from fuzz.targets import MAX_BYTES, TARGETS

FOLDER: Final = Path(__file__).parents[2] / ".fuzz"

_INPUT_SECONDS: Final = 30
"""When libFuzzer takes an input for one that never ends."""

_MAX_MIB: Final = 2048
_GRACE_SECONDS: Final = 120
"""How much longer than asked a hunt may take: it starts a gateway, and ends within its input."""


def main(name: str, seconds: int) -> int:
    """Hunt with one target, or with `all`; return the process's status."""
    names = list(TARGETS) if name == "all" else [name]
    if not set(names) <= set(TARGETS) or seconds < len(names):
        known = ", ".join(["all", *TARGETS])
        sys.stderr.write(f"fuzz: TARGET is one of {known}; SECONDS at least one a target\n")
        return 2
    if find_spec("atheris") is None:
        sys.stderr.write("fuzz: atheris is not installed; `make fuzz` installs it\n")
        return 2
    found = [crash for each in names for crash in hunt(each, seconds // len(names))]
    for target, crash in found:
        sys.stdout.write(as_test(target, crash))
    sys.stdout.write(f"fuzz: {len(found)} crashes, in {FOLDER.name}\n")
    return 1 if found else 0


def hunt(target: str, seconds: int) -> list[tuple[str, Path]]:
    """Run one target under the fuzzer; return the crashes that it found, each with the target."""
    folder = FOLDER / target
    corpus, seeded, crashes = folder / "corpus", folder / "seeds", folder / "crashes"
    for each in (corpus, seeded, crashes):
        each.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(target)):
        (seeded / str(number)).write_bytes(seed)
    words = folder / "words"
    words.write_text(dictionary(target))
    before = set(crashes.iterdir())
    options = {
        "max_total_time": seconds,
        "max_len": MAX_BYTES,
        "timeout": _INPUT_SECONDS,
        "rss_limit_mb": _MAX_MIB,
        "dict": words,
        "artifact_prefix": f"{crashes}/",
        "print_final_stats": 1,
    }
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "fuzz.hunt", target),
            *(f"-{name}={value}" for name, value in options.items()),
            *(str(corpus), str(seeded)),
        ],
        timeout=seconds + _GRACE_SECONDS,
        check=False,
    )
    found = sorted(set(crashes.iterdir()) - before)
    if ended.returncode != 0 and not found:
        lost = crashes / f"ended-with-{ended.returncode}"  # killed by a signal, or not started
        lost.write_bytes(b"")
        found = [lost]
    return [(target, crash) for crash in found]


def as_test(target: str, crash: Path) -> str:
    """Return the test that a crash becomes, once its name says what is right."""
    return (
        f"\n# {crash.name}\n"
        "def test_name_what_is_right() -> None:\n"
        f'    with TARGETS["{target}"]() as attempt:\n'
        f"        bounded(attempt)({crash.read_bytes()!r})\n\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
