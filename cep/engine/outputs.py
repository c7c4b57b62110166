"""The arrays that the matcher fills, enlarged when they are full.

Tested by: tests/engine/test_advance.py
"""

from __future__ import annotations

import numpy as np

from cep.columnar.table_key import table_key
from cep.kernels import layout as y
from cep.kernels.layout import Int64
from cep.kernels.records import RuleScratch, RunOutput, Work
from cep.nfa.program import Program

_WORK_ROWS = 256
_ROOM_MIN, _ROOM_MAX = 1_024, 1 << 20
# Runs and nodes that an event may add before the arrays are enlarged. Memory that is never written costs nothing.
_ROWS_PER_EVENT = 4


class Outputs:
    """Growing output arrays, shared by the rules of one call."""

    def __init__(
        self, program: Program, before: Int64, nodes_before: Int64, events_count: int, keys_count: int = 0
    ) -> None:
        """Shapes: before int64[n, W] are the present runs and nodes_before int64[m, NODE_WIDTH] the present nodes."""
        width = program.width
        room = min(max(_ROOM_MIN, _ROWS_PER_EVENT * events_count), _ROOM_MAX)
        nodes = np.empty((len(nodes_before) + room, y.NODE_WIDTH), np.int64)
        nodes[: len(nodes_before)] = nodes_before
        self.work = Work(
            np.empty((_WORK_ROWS, width), np.int64),
            nodes,
            np.empty((_ROOM_MIN, y.MATCH_HEADER + program.measures_max), np.int64),
            np.zeros(2 * program.machine_size, np.int64),
            np.zeros(y.COUNTERS, np.int64),
            table_key(),
        )
        self.scratch = RuleScratch(
            np.empty(events_count, np.int32),
            np.empty(keys_count, np.int32),
            np.empty(_WORK_ROWS, np.int64),
            np.empty((_WORK_ROWS, 3), np.int64),
            np.empty(y.COUNTERS, np.int64),
            np.empty(0, np.int64),
        )
        runs_max = len(before) + room
        cursor = np.zeros(y.CURSOR_WIDTH, np.int64)
        cursor[y.CURSOR_NODES] = cursor[y.CURSOR_OLD_NODES] = len(nodes_before)
        self.runs = RunOutput(
            np.empty((runs_max, width), np.int64),
            np.empty(runs_max, np.int32),
            np.empty(runs_max, np.int32),
            np.zeros((y.COUNTERS, len(program.rules)), np.int64),
            cursor,
        )

    @property
    def matches(self) -> Int64:
        """The matches that have been written: int64[M, MATCH_HEADER + measures]."""
        return self.work.matches[: self.runs.cursor[y.CURSOR_MATCHES]]

    def enlarge(self, full: int) -> None:
        """Double the array that is full."""
        work, runs, cursor = self.work, self.runs, self.runs.cursor
        if full == y.FULL_WORK:
            rows_count = 2 * len(work.runs)
            self.work = work._replace(runs=np.empty((rows_count, work.runs.shape[1]), np.int64))
            self.scratch = self.scratch._replace(picked=np.empty(rows_count, np.int64))
        elif full == y.FULL_NODES:
            self.work = work._replace(nodes=_doubled(work.nodes, cursor[y.CURSOR_NODES]))
        elif full == y.FULL_TRAIL:
            self.scratch = self.scratch._replace(trail=np.empty((2 * len(self.scratch.trail), 3), np.int64))
        elif full == y.FULL_MARKS:
            self.scratch = self.scratch._replace(marks=np.zeros(len(work.nodes), np.int64))
        elif full == y.FULL_MATCHES:
            self.work = work._replace(matches=_doubled(work.matches, cursor[y.CURSOR_MATCHES]))
        else:
            used = cursor[y.CURSOR_OUT]
            self.runs = runs._replace(
                runs=_doubled(runs.runs, used), keys=_doubled(runs.keys, used), rules=_doubled(runs.rules, used)
            )


def _doubled(array: np.ndarray, used: int) -> np.ndarray:
    larger = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
    larger[:used] = array[:used]
    return larger


def cut(array: np.ndarray, count: int) -> np.ndarray:
    """Return the first rows of an array without other views, and free the rest of its memory."""
    array.resize((count, *array.shape[1:]), refcheck=False)
    return array
