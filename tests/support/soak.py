"""How long the tests of faults run: a normal run is short, `make soak` asks for more."""

import os


def soak_scale() -> float:
    """Return by what a test multiplies its rounds; 1.0 in a normal run (`OKF_SOAK`)."""
    return float(os.getenv("OKF_SOAK", "1"))


def soak_seconds() -> float:
    """Return how long the mixed load with random faults goes on (`OKF_SOAK_SECONDS`)."""
    return float(os.getenv("OKF_SOAK_SECONDS", "12"))
