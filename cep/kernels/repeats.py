"""Pairs (hash of an id, digest of the content) in the order of arrival → which of them came before.

A table of slots with open addressing, at most half full: slots int32[S], S a power of two, of which each has the number
of a kept pair, or is NO_PAIR.
Tested by: tests/step/test_duplicates.py, tests/runners/embedded/test_stored_parts.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels.jit import bare
from cep.kernels.layout import Int32, Int64, UInt8, UInt64

_U = np.uint64
NO_PAIR = -1
NEW, SAME, OTHER = 0, 1, 2  # the verdicts: a new id; the id and content of a kept pair; its id with another content


@bare
def fill_slots(kept: UInt64, count: int, slots: Int32) -> None:
    """Enter the first `count` kept pairs uint64[2, C], whose ids are all different, into empty slots."""
    last = _U(slots.shape[0] - 1)
    for k in range(count):
        at = kept[0, k] & last
        while slots[at] != NO_PAIR:
            at = (at + _U(1)) & last
        slots[at] = k


@bare
def judge_pairs(pairs: UInt64, kept: UInt64, count: int, slots: Int32, verdicts: UInt8) -> int:
    """Judge each pair of an id and a content by the earlier pairs, and add pairs with a new id.

    Return their new number.

    Shapes: pairs uint64[2, N]; kept uint64[2, C] has `count` pairs and room for N more; verdicts uint8[N] is filled.
    Cost: O(N).
    """
    last = _U(slots.shape[0] - 1)
    for i in range(pairs.shape[1]):
        at = pairs[0, i] & last
        while slots[at] != NO_PAIR and kept[0, slots[at]] != pairs[0, i]:
            at = (at + _U(1)) & last
        if slots[at] == NO_PAIR:
            slots[at] = count
            kept[0, count] = pairs[0, i]
            kept[1, count] = pairs[1, i]
            count += 1
            verdicts[i] = NEW
        else:
            verdicts[i] = SAME if kept[1, slots[at]] == pairs[1, i] else OTHER
    return count


@bare
def judge_against_sorted(pairs: UInt64, kept: UInt64, places: Int64, verdicts: UInt8) -> None:
    """Judge pairs by kept pairs uint64[2, C] alone, which are sorted by their ids; none of them is new to each other.

    Shapes: pairs uint64[2, N]; places int64[N] where each id belongs among the kept ones; verdicts uint8[N] is filled.
    """
    for i in range(pairs.shape[1]):
        k = places[i]
        if k == kept.shape[1] or kept[0, k] != pairs[0, i]:
            verdicts[i] = NEW
        else:
            verdicts[i] = SAME if kept[1, k] == pairs[1, i] else OTHER
