"""Where a value belongs in a sorted array.

Tested by: tests/engine/test_starts.py, tests/engine/test_ranks.py
"""

from __future__ import annotations

from typing import Any

from cep.kernels.jit import bare


@bare
def first_at(ordered: Any, lo: Any, hi: Any, value: Any) -> Any:
    """The first place in [lo, hi) with the value or more; hi if there is none. Cost: O(log(hi - lo))."""
    while lo < hi:
        middle = (lo + hi) // 2
        if ordered[middle] < value:
            lo = middle + 1
        else:
            hi = middle
    return lo
