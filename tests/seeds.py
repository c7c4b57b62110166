"""The seeds of a test: the first few in the inner loop, more in each whole run, all before a release.

Tested by: every run of tests; `pytest --collect-only -m "not slow"` lists what the inner loop takes.
"""

from typing import Any

import pytest

# For ./tests/run, not for the inner loop.
LATER = (pytest.mark.slow, pytest.mark.always)


# For ./tests/run --release only.
RELEASE = (pytest.mark.slow,)


def seeds(count: int, inner: int = 1) -> list[Any]:
    """Return parameters 0 … count - 1: the first `inner` for the inner loop, a sixth of the others for each whole run.

    A whole run has at least one.
    """
    whole = max(inner + (count - inner) // 6, 1)
    return [
        pytest.param(seed, marks=() if seed < inner else LATER if seed < whole else RELEASE) for seed in range(count)
    ]
