"""Of which values of a sub-key a key still knows the past: those that have come last, so many of them.

    value int64[M]       the number of the value that each row has, rows key by key, those of a key in their order
    place int64[M]       of each row among all rows and what was known before, by (key, time, sub-key)

A tree of counts (tree.py) has the place of the last event of each value, so that an event costs O(log of the rows).
Tested by: tests/engine/test_known_values.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels.jit import kernel
from cep.kernels.tree import add, find, new_tree, up_to


@kernel
def follow_values(
    value: Any, place: Any, time: Any, member: Any, time_at: Any, starts: Any, ends: Any, most: Any, never: Any,
    last: Any, since: Any, lacks: Any, is_kept: Any, is_known: Any, begins: Any, lacking: Any, forgotten: Any,
) -> None:  # fmt: skip
    """Follow what a key knows through its rows. A value is known while fewer than `most` others have come later.

    Shapes, by row: value, place, time int64[M]; member uint8[M], 0: the row asks for its value, and does not count; by
    place: time_at int64[P]; by value: starts, ends int64[G], from where to where the places of its key are.
    What was known before, which is changed to what is known behind the rows: last int64[G] the place of its last event
    or -1, since int64[G] the time of the first event that is known of it, lacks int64[G] up to what time earlier ones
    may have been forgotten (`never`: none), is_kept uint8[G] 1 if it has been known all the time from before the rows.
    Fills is_known uint8[G] with whether it still is; and by row begins int64[M], the row from which on its value is
    known (-1: from before the rows; itself: it was not known), lacking int64[M] as `lacks`, and forgotten uint8[M], 1
    for rows of before what is known of their value.
    """
    first = np.full(last.shape[0], -1, np.int64)
    tree = new_tree(time_at.shape[0])
    for g in range(last.shape[0]):
        if last[g] >= 0:
            add(tree, last[g], 1)
    for m in range(value.shape[0]):
        g = value[m]
        total = up_to(tree, ends[g] - 1)
        forgotten[m] = 0
        begins[m], lacking[m] = m, lacks[g]
        if last[g] >= 0 and total - up_to(tree, last[g]) < most:
            if is_kept[g] != 0 and time[m] < since[g]:
                forgotten[m] = 1
                continue
            begins[m] = first[g]
        else:
            is_full = total - up_to(tree, starts[g] - 1) >= most
            lacking[m] = time_at[find(tree, total - most + 1)] if is_full else never
            if member[m] != 0:
                first[g], since[g], lacks[g], is_kept[g] = m, time[m], lacking[m], 0
        if member[m] != 0 and place[m] > last[g]:
            if last[g] >= 0:
                add(tree, last[g], -1)
            add(tree, place[m], 1)
            last[g] = place[m]
    for g in range(last.shape[0]):
        is_known[g] = last[g] >= 0 and up_to(tree, ends[g] - 1) - up_to(tree, last[g]) < most
