"""Which seeds a test draws from: the first few in the inner loop, the others where time is less dear.

Tested by: every run of tests; `pytest --collect-only -m "not slow"` lists what the inner loop takes.
"""

from __future__ import annotations

from typing import Any

import pytest

# What ./tests/run takes and the inner loop does not.
LATER = (pytest.mark.slow, pytest.mark.always)


def seeds(count: int, inner: int = 1) -> list[Any]:
    """Parameters 0 … count - 1; those from `inner` on are `slow` and `always`."""
    return [pytest.param(seed, marks=LATER if seed >= inner else ()) for seed in range(count)]
