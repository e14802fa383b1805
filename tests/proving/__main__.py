"""Prove the protections of this project: `python -m proving [PART_OF_A_NAME]`."""

import sys
from pathlib import Path

from proving.proof import prove
from proving.protections import ListError

PROJECT = Path(__file__).parent.parent.parent
PROTECTIONS = PROJECT / "tests" / "faults" / "protections.toml"

if __name__ == "__main__":
    try:
        sys.exit(0 if prove(PROJECT, PROTECTIONS, only=" ".join(sys.argv[1:])) else 1)
    except ListError as error:
        sys.exit(str(error))
