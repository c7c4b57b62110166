"""The rows of sub-keys → the sub-keys whose past a key still remembers: the last ones, up to a limit.

    value int64[M]       the number of each row's value; rows are sorted by key and event order
    place int64[M]       of each row among all rows and the previous memory, by (key, time, sub-key)

A tree of counts (count_tree.py) has the place of the last event of each value, so an event costs O(log rows).
Tested by: tests/histories/test_known_sub_keys.py
"""

import numpy as np

from cep.kernels.histories.count_tree import add, find, new_tree, up_to
from cep.kernels.histories.records import Memory, Places, RowAnswers, ValueRows
from cep.kernels.jit import kernel


@kernel
def follow_values(rows: ValueRows, places: Places, most: int, never: int, memory: Memory, answers: RowAnswers) -> None:
    """Follow from row to row which values each key remembers: those after which fewer than `most` other values came.

    The memory before the rows becomes the memory after them. By value: `last` is the place of its last event or -1.
    `since` is the time of its first remembered event, `lacks` the time until which earlier events may have been
    forgotten (`never`: none). `is_lasting` is 1 if the value has been remembered since before the rows; `is_remembered`
    is filled with 1 if it still is. By row: `begins` is the row from which on its value is remembered (-1: from before
    the rows; itself: it was not remembered), `lacking` is like `lacks`, `forgotten` is 1 before the remembered part.
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
