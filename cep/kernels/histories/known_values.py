"""The rows of sub-keys → of which of them a key still knows the past: those that have come last, so many of them.

    value int64[M]       the number of the value that each row has, rows key by key, those of a key in their order
    place int64[M]       of each row among all rows and what was known before, by (key, time, sub-key)

A tree of counts (count_tree.py) has the place of the last event of each value, so that an event costs O(log of the
rows).
Tested by: tests/histories/test_known_sub_keys.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels.histories.count_tree import add, find, new_tree, up_to
from cep.kernels.histories.records import Memory, Places, RowAnswers, ValueRows
from cep.kernels.jit import kernel


@kernel
def follow_values(rows: ValueRows, places: Places, most: int, never: int, memory: Memory, answers: RowAnswers) -> None:
    """Follow what a key knows through its rows. A value is known while fewer than `most` others have come later.

    The memory before the rows becomes that behind them. By value: `last` is the place of its last event or -1. `since`
    is the time of the first event that is known of it, `lacks` up to what time earlier ones may have been forgotten
    (`never`: none). `is_lasting` is 1 if it has been known since before the rows, `is_remembered` is filled with 1
    if it still is. Answers by row: `begins` is the row from which on its value is known (-1: from before the rows;
    itself: it was not known), `lacking` as `lacks`, `forgotten` 1 for rows of before what is known of their value.
    """
    last, since, lacks = memory.last, memory.since, memory.lacks
    first = np.full(last.shape[0], -1, np.int64)
    tree = new_tree(places.time.shape[0])
    for g in range(last.shape[0]):
        if last[g] >= 0:
            add(tree, last[g], 1)
    for m in range(rows.value.shape[0]):
        g = rows.value[m]
        total = up_to(tree, places.ends[g] - 1)
        answers.forgotten[m] = 0
        answers.begins[m], answers.lacking[m] = m, lacks[g]
        if last[g] >= 0 and total - up_to(tree, last[g]) < most:
            if memory.is_lasting[g] != 0 and rows.time[m] < since[g]:
                answers.forgotten[m] = 1
                continue
            answers.begins[m] = first[g]
        else:
            is_full = total - up_to(tree, places.starts[g] - 1) >= most
            answers.lacking[m] = places.time[find(tree, total - most + 1)] if is_full else never
            if rows.member[m] != 0:
                first[g], since[g], lacks[g], memory.is_lasting[g] = m, rows.time[m], answers.lacking[m], 0
        if rows.member[m] != 0 and rows.place[m] > last[g]:
            if last[g] >= 0:
                add(tree, last[g], -1)
            add(tree, rows.place[m], 1)
            last[g] = rows.place[m]
    for g in range(last.shape[0]):
        memory.is_remembered[g] = last[g] >= 0 and up_to(tree, places.ends[g] - 1) - up_to(tree, last[g]) < most
