"""The rows of sub-keys → the sub-keys whose past a key still remembers: the last ones, up to a limit.

    value int64[M]       the number of each row's value; rows are sorted by key and event order
    position int64[M]    of each row among all rows and the previous memory, by (key, time, sub-key)

A tree of counts (count_tree.py) has the position of the last event of each value, so an event costs O(log rows).
Tested by: tests/histories/test_known_sub_keys.py
"""

import numpy as np

from cep.kernels.histories.count_tree import add, find, new_tree, up_to
from cep.kernels.histories.records import KeyOrder, Memory, RowAnswers, ValueRows
from cep.kernels.jit import kernel


@kernel
def follow_values(rows: ValueRows, order: KeyOrder, most: int, never: int, memory: Memory, answers: RowAnswers) -> None:
    """Follow from row to row which values of a sub-key (such as the merchants of a card) each key remembers.

    A key remembers the last `most` values. After a, b, c, a with `most` 2 these are a and c, and a since its second
    event. The tree counts each value at the position of its last event, so that the values after it are a
    difference of two sums. `memory` is changed from its content before the rows to the content after them. By value:
    `last` is the position of its last event or -1; `since` the time of its first remembered event; `forgotten_until`
    the time until which earlier events may have been forgotten (`never`: none); `is_lasting` is 1 if it was remembered
    before the rows and ever since; `is_remembered` is filled. `answers` by row: `first_rows` is the first row that is
    remembered of its value (-1: one before the rows; the row itself: the value was not remembered); `is_forgotten` is 1
    if the row itself is older than the remembered events of its value.
    """
    last, since, forgotten_until = memory.last, memory.since, memory.forgotten_until
    first_row = np.full(last.shape[0], -1, np.int64)
    tree = new_tree(order.time.shape[0])
    for g in range(last.shape[0]):
        if last[g] >= 0:
            add(tree, last[g], 1)
    for m in range(rows.value.shape[0]):
        g = rows.value[m]
        total = up_to(tree, order.ends[g] - 1)
        answers.is_forgotten[m] = 0
        answers.first_rows[m], answers.forgotten_until[m] = m, forgotten_until[g]
        if last[g] >= 0 and total - up_to(tree, last[g]) < most:  # the value is remembered
            if memory.is_lasting[g] != 0 and rows.time[m] < since[g]:
                answers.is_forgotten[m] = 1
                continue
            answers.first_rows[m] = first_row[g]
        else:
            is_full = total - up_to(tree, order.starts[g] - 1) >= most
            answers.forgotten_until[m] = order.time[find(tree, total - most + 1)] if is_full else never
            if rows.member[m] != 0:
                first_row[g], since[g], memory.is_lasting[g] = m, rows.time[m], 0
                forgotten_until[g] = answers.forgotten_until[m]
        if rows.member[m] != 0 and rows.position[m] > last[g]:
            if last[g] >= 0:
                add(tree, last[g], -1)
            add(tree, rows.position[m], 1)
            last[g] = rows.position[m]
    for g in range(last.shape[0]):
        memory.is_remembered[g] = last[g] >= 0 and up_to(tree, order.ends[g] - 1) - up_to(tree, last[g]) < most
