"""Percentiles and distinct counts of windows whose older members are panes: codes with weights.

    codes, weights int64[C]   by key, then pane; a code is the number of a bucket or hash, in their order
    lows, highs int64[Q]      the window of each new event: codes[low:high]; neither ever decreases

A tree of counts (count_tree.py) follows the window, so an event costs O(log distinct codes).
Tested by: tests/histories/test_panes.py
"""

import numpy as np

from cep.kernels.histories.count_tree import add, find, new_tree, up_to
from cep.kernels.jit import bare, kernel
from cep.kernels.layout import Int64, UInt8


@bare
def follow_panes(key: Int64, pane: Int64, starts: Int64, first_panes: Int64, highs: Int64, lows: Int64) -> None:
    """Fill lows int64[Q] with the first entry of each new event's window. A window begins with a pane, a slice of time.

    An entry stands for events of one pane: a code of their value, and their number. Shapes: key, pane int64[C] of the
    entries, by key; by new event: starts int64[Q], the first entry of its key; first_panes int64[Q], the first pane of
    its window; highs int64[Q], the end of its entries. A late event may have an older pane than the entry before it. It
    is counted in that newer pane, which is written to `pane`, so that a key's panes ascend.
    """
    for i in range(1, key.shape[0]):
        if key[i] == key[i - 1] and pane[i] < pane[i - 1]:
            pane[i] = pane[i - 1]
    low = 0
    for q in range(starts.shape[0]):
        low = max(low, starts[q])
        while low < highs[q] and pane[low] < first_panes[q]:
            low += 1
        lows[q] = low


@kernel
def find_weighted_rank(
    codes: Int64, weights: Int64, codes_count: int, percent: int, lows: Int64, highs: Int64, out: Int64
) -> None:
    """Fill out int64[Q] with the code at the nearest rank, ⌈percent · n / 100⌉ of the weights' sum n; -1 if n is 0."""
    tree = new_tree(codes_count)  # the weights in the window, codes[low:high], by code
    total = low = high = 0
    for q in range(lows.shape[0]):
        while high < highs[q]:  # the bounds of windows never fall
            add(tree, codes[high], weights[high])
            total += weights[high]
            high += 1
        while low < lows[q]:
            add(tree, codes[low], -weights[low])
            total -= weights[low]
            low += 1
        out[q] = find(tree, (percent * total + 99) // 100) if total > 0 else -1


@kernel
def count_different(
    codes: Int64, codes_count: int, rank: int, lows: Int64, highs: Int64, counts: Int64, out: Int64
) -> None:
    """Fill counts int64[Q] with the number of distinct codes, and out int64[Q] with the code at this rank, or -1."""
    tree, times = new_tree(codes_count), np.zeros(codes_count + 1, np.int64)
    different = low = high = 0
    for q in range(lows.shape[0]):
        while high < highs[q]:
            code = codes[high]
            if times[code] == 0:
                add(tree, code, 1)
                different += 1
            times[code] += 1
            high += 1
        while low < lows[q]:
            code = codes[low]
            times[code] -= 1
            if times[code] == 0:
                add(tree, code, -1)
                different -= 1
            low += 1
        counts[q] = different
        out[q] = find(tree, rank) if different >= rank else -1


@kernel
def keep_least(group: Int64, pane: Int64, panes_count: int, hashes_max: int, is_retained: UInt8) -> None:
    """Clear is_retained uint8[C] for hashes that no later window can have among its hashes_max least ones.

    The least hashes of a window estimate its number of distinct values: the smaller they are, the more values (KMV). A
    window begins at a pane (a slice of time) and includes all later ones. A hash is dropped if hashes_max smaller
    ones are in the same or later panes. The tree counts the group's retained hashes by pane. Shapes: group (a key's
    or sub-key's number), pane int64[C] by group, then ascending by hash, each hash of a group once, with its newest
    pane; panes are numbers below panes_count, later ones greater.
    """
    tree = new_tree(panes_count)
    group_start = 0
    for i in range(group.shape[0]):
        if i > 0 and group[i] != group[i - 1]:
            for j in range(group_start, i):  # empty the tree
                if is_retained[j] != 0:
                    add(tree, pane[j], -1)
            group_start = i
        smaller_count = up_to(tree, panes_count - 1)  # the retained hashes so far, in all panes
        earlier_count = up_to(tree, pane[i] - 1) if pane[i] > 0 else 0  # of them, in earlier panes
        is_retained[i] = smaller_count - earlier_count < hashes_max
        if is_retained[i] != 0:
            add(tree, pane[i], 1)
