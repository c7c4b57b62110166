"""Pairs of numbers → one number for each different pair, in the order in which they come first.

    places   int32[2^n]   a table of groups, −1 where there is none; more places than there are groups
    firsts   int64[G]     where each group came first

Both columns may be what a sender chooses, so the hashes have a key (siphash.py).

Tested by: tests/kernels/test_groups.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels.jit import bare
from cep.kernels.layout import Int32, Int64, UInt64, int64
from cep.kernels.siphash import keyed_hash_of_pair


@bare
def _place(first: int, second: int, key: UInt64, places: Int32) -> int:
    """Return where the search for a pair begins."""
    return int64(keyed_hash_of_pair(first, second, key) & np.uint64(places.shape[0] - 1))


@bare
def group_pairs(first: Int64, second: Int64, key: UInt64, places: Int32, firsts: Int64, out: Int64) -> int:
    """Fill out int64[N] with the group of each pair (first, second int64[N]), firsts int64[N], and the table.

    Shapes: key uint64[2] of the hashes, which changes no group.

    Returns: the number of groups. Cost: O(N).
    """
    count = 0
    for i in range(first.shape[0]):
        at = _place(first[i], second[i], key, places)
        while places[at] >= 0:
            row = firsts[places[at]]
            if first[row] == first[i] and second[row] == second[i]:
                break
            at = (at + 1) & (places.shape[0] - 1)
        if places[at] < 0:
            places[at], firsts[count] = count, i
            count += 1
        out[i] = places[at]
    return count


@bare
def find_pairs(
    first: Int64, second: Int64, key: UInt64, places: Int32, firsts: Int64, wanted_first: Int64, wanted_second: Int64,
    out: Int64,
) -> None:  # fmt: skip
    """Fill out int64[M] with the groups of the wanted pairs int64[M], −1 where there is none.

    The other arrays are those of `group_pairs`, as it left them.
    """
    for i in range(wanted_first.shape[0]):
        at = _place(wanted_first[i], wanted_second[i], key, places)
        out[i] = -1
        while places[at] >= 0:
            row = firsts[places[at]]
            if first[row] == wanted_first[i] and second[row] == wanted_second[i]:
                out[i] = places[at]
                break
            at = (at + 1) & (places.shape[0] - 1)
