"""A tree of counts: what each code has, how much those up to it have, and which code has a rank, in O(log codes).

Fenwick, "A new data structure for cumulative frequency tables", 1994. The tree is int64[size + 1], size a power of two.
Tested by: tests/engine/test_sketches.py, tests/engine/test_histories.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels.jit import bare, kernel


@kernel
def new_tree(codes_count: Any) -> Any:
    """A tree in which codes below codes_count have nothing."""
    size = 1
    while size <= codes_count:
        size *= 2
    return np.zeros(size + 1, np.int64)


@bare
def add(tree: Any, code: Any, change: Any) -> None:
    """Give a code more, or less."""
    node = code + 1
    while node < tree.shape[0]:
        tree[node] += change
        node += node & -node


@bare
def find(tree: Any, wanted: Any) -> Any:
    """The code at this rank, from 1."""
    size = tree.shape[0] - 1
    node, step = 0, size
    while step > 0:
        if node + step <= size and tree[node + step] < wanted:
            node += step
            wanted -= tree[node]
        step >>= 1
    return node


@bare
def up_to(tree: Any, code: Any) -> Any:
    """How much the codes up to this one have."""
    node, total = code + 1, 0
    while node > 0:
        total += tree[node]
        node -= node & -node
    return total
