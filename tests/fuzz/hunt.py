"""One target under the fuzzer, in a process of its own, for libFuzzer ends the process it runs in.

`python -m fuzz.hunt TARGET OPTION...`; the options are libFuzzer's.
"""

import sys
from importlib import import_module


def main() -> None:
    """Hunt until an option of libFuzzer, or a crash, ends the process."""
    atheris = import_module("atheris")
    # What is to be guided by coverage has to be imported here first.
    with atheris.instrument_imports(include=["okf_mcp_server", "okf_mcp_gateway", "mcp"]):
        targets = import_module("fuzz.targets")
    program, name, *options = sys.argv
    with targets.TARGETS[name]() as attempt:
        atheris.Setup([program, *options], targets.bounded(attempt))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
