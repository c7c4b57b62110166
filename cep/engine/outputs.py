"""The arrays that kernels fill: as large as they turn out to be needed.

Tested by: tests/engine/test_advance.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels import layout as y
from cep.kernels.layout import Int64
from cep.nfa.program import Program

_WORK_ROWS = 256
_ROOM_MIN, _ROOM_MAX = 1_024, 1 << 20
# How many runs and nodes an event may add before the arrays are enlarged. Memory that is not written to is not taken.
_ROWS_PER_EVENT = 4


class Outputs:
    """Growing output arrays, shared by the rules of one call."""

    def __init__(self, program: Program, before: Int64, nodes_before: Int64, events_count: int) -> None:
        """Shapes: before int64[n, W] are the runs and nodes_before int64[m, NODE_WIDTH] the nodes that there are."""
        width = program.width
        room = min(max(_ROOM_MIN, _ROWS_PER_EVENT * events_count), _ROOM_MAX)
        self.work = np.empty((_WORK_ROWS, width), np.int64)
        self.picked = np.empty(_WORK_ROWS, np.int64)
        self.nodes = np.empty((len(nodes_before) + room, y.NODE_WIDTH), np.int64)
        self.nodes[: len(nodes_before)] = nodes_before
        self.matches = np.empty((_ROOM_MIN, y.MATCH_HEADER + program.measures_max), np.int64)
        self.runs = np.empty((len(before) + room, width), np.int64)
        self.run_key = np.empty(len(self.runs), np.int32)
        self.run_rule = np.empty(len(self.runs), np.int32)
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
            self.nodes = _doubled(self.nodes, self.cursor[y.CURSOR_NODES])
        elif full == y.FULL_TRAIL:
            self.trail = np.empty((2 * len(self.trail), 3), np.int64)
        elif full == y.FULL_MATCHES:
            self.matches = _doubled(self.matches, self.cursor[y.CURSOR_MATCHES])
        else:
            used = self.cursor[y.CURSOR_OUT]
            self.runs, self.run_key = _doubled(self.runs, used), _doubled(self.run_key, used)
            self.run_rule = _doubled(self.run_rule, used)


def _doubled(array: np.ndarray, used: int) -> np.ndarray:
    larger = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
    larger[:used] = array[:used]
    return larger


def cut(array: np.ndarray, count: int) -> np.ndarray:
    """The first rows of an array of which nobody else has a view: itself, with the rest of its memory given back."""
    array.resize((count, *array.shape[1:]), refcheck=False)
    return array
