"""A tree of counts: the sum of the codes up to one, and the code at a rank, in O(log codes).

Fenwick, "A new data structure for cumulative frequency tables", 1994. The tree is int64[size + 1], size a power of two.
Tested by: tests/histories/test_panes.py, tests/histories/test_values.py
"""

import numpy as np

from cep.kernels.jit import bare, kernel
from cep.kernels.layout import Int64


@kernel
def new_tree(codes_count: int) -> Int64:
    """Create an empty tree for codes below codes_count."""
    size = 1
    while size <= codes_count:
        size *= 2
    return np.zeros(size + 1, np.int64)


@bare
def add(tree: Int64, code: int, change: int) -> None:
    """Change the count of a code."""
    node = code + 1
    while node < tree.shape[0]:
        tree[node] += change
        node += node & -node


@bare
def find(tree: Int64, rank: int) -> int:
    """Return the code at this rank, starting at 1."""
    size = tree.shape[0] - 1
    node, step = 0, size
    while step > 0:
        if node + step <= size and tree[node + step] < rank:
            node += step
            rank -= tree[node]
        step >>= 1
    return node


@bare
def up_to(tree: Int64, code: int) -> int:
    """Return the sum of the counts up to and including this code."""
    node, total = code + 1, 0
    while node > 0:
        total += tree[node]
        node -= node & -node
    return total
