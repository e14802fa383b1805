"""The measuring of processes that tests start with an environment of their own."""

import os


def measured() -> dict[str, str]:
    """Return the variables by which coverage follows a process; none if nothing is measured."""
    return {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
