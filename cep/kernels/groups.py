"""Pairs of numbers → one number for each distinct pair, in order of first appearance.

    places   int32[2^n]   a table of groups, −1 for an empty place; more places than there are groups
    firsts   int64[G]     the first row of each group

A sender may choose both columns, so the hashes have a key (siphash.py).

Tested by: tests/kernels/test_groups.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels.jit import bare
from cep.kernels.layout import Int32, Int64, UInt64, int64
from cep.kernels.siphash import keyed_hash_of_pair


@bare
def _place(first: int, second: int, key: UInt64, places: Int32) -> int:
    """Return the first place for a pair."""
    return int64(keyed_hash_of_pair(first, second, key) & np.uint64(places.shape[0] - 1))


@bare
def group_pairs(first: Int64, second: Int64, key: UInt64, places: Int32, firsts: Int64, out: Int64) -> int:
    """Fill out int64[N] with the group of each pair (first, second int64[N]), firsts int64[N], and the table.

    Shapes: key uint64[2] of the hashes, which changes no group.
    Returns: the number of groups. Cost: O(N).
    """
    count = 0
    for i in range(first.shape[0]):
        place = _place(first[i], second[i], key, places)
        while places[place] >= 0:
            row = firsts[places[place]]
            if first[row] == first[i] and second[row] == second[i]:
                break
            place = (place + 1) & (places.shape[0] - 1)
        if places[place] < 0:
            places[place], firsts[count] = count, i
            count += 1
        out[i] = places[place]
    return count


@bare
def find_pairs(
    first: Int64, second: Int64, key: UInt64, places: Int32, firsts: Int64, wanted_first: Int64, wanted_second: Int64,
    out: Int64,
) -> None:  # fmt: skip
    """Fill out int64[M] with the groups of the wanted pairs int64[M], −1 if there is none.

    `group_pairs` has filled the other arrays.
    """
    for i in range(wanted_first.shape[0]):
        place = _place(wanted_first[i], wanted_second[i], key, places)
        out[i] = -1
        while places[place] >= 0:
            row = firsts[places[place]]
            if first[row] == wanted_first[i] and second[row] == wanted_second[i]:
                out[i] = places[place]
                break
            place = (place + 1) & (places.shape[0] - 1)
