"""A value → its position in a sorted array.

Tested by: tests/engine/test_starts.py, tests/histories/test_rank.py
"""

from __future__ import annotations

from cep.kernels.jit import bare
from cep.kernels.layout import Int32, Int64


@bare
def first_at(ordered: Int64 | Int32, lo: int, hi: int, value: int) -> int:
    """Return the first position in [lo, hi) with at least this value; hi if there is none. Cost: O(log(hi - lo))."""
    while lo < hi:
        middle = (lo + hi) // 2
        if ordered[middle] < value:
            lo = middle + 1
        else:
            hi = middle
    return lo
