"""The arrays that kernels fill: as large as they turn out to be needed.

Tested by: tests/engine/test_advance.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels import layout as y
from cep.kernels.layout import Int64
from cep.nfa.program import Program

_WORK_ROWS = 256
_FIRST_CAPACITY = 1_024


class Outputs:
    """Growing output arrays, shared by the rules of one call."""

    def __init__(self, program: Program, before: Int64, nodes_before: Int64, events_count: int) -> None:
        """Shapes: before int64[n, W] are the runs and nodes_before int64[m, NODE_WIDTH] the nodes that there are."""
        width = program.width
        self.work = np.empty((_WORK_ROWS, width), np.int64)
        self.picked = np.empty(_WORK_ROWS, np.int64)
        self.nodes = np.empty((len(nodes_before) + max(_FIRST_CAPACITY, events_count), y.NODE_WIDTH), np.int64)
        self.nodes[: len(nodes_before)] = nodes_before
        self.matches = np.empty((_FIRST_CAPACITY, y.MATCH_HEADER + program.measures_max), np.int64)
        self.runs = np.empty((len(before) + _FIRST_CAPACITY, width), np.int64)
        self.run_key = np.empty(len(self.runs), np.int32)
        self.trail = np.empty((_WORK_ROWS, 3), np.int64)
        self.cursor = np.zeros(y.CURSOR_WIDTH, np.int64)
        self.cursor[y.CURSOR_NODES] = len(nodes_before)
        self.counters = np.zeros(y.COUNTERS, np.int64)

    def enlarge(self, full: int) -> None:
        """Double what was full."""
        if full == y.FULL_WORK:
            self.work = np.empty((2 * len(self.work), self.work.shape[1]), np.int64)
            self.picked = np.empty(len(self.work), np.int64)
        elif full == y.FULL_NODES:
            self.nodes = _doubled(self.nodes)
        elif full == y.FULL_TRAIL:
            self.trail = np.empty((2 * len(self.trail), 3), np.int64)
        elif full == y.FULL_MATCHES:
            self.matches = _doubled(self.matches)
        else:
            self.runs, self.run_key = _doubled(self.runs), _doubled(self.run_key)


def _doubled(array: np.ndarray) -> np.ndarray:
    larger = np.zeros((2 * len(array), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
