"""Starts that rules share (nfa/shared.py): found in the events of a call, kept between calls, given back to a rule.

    stored rows of the start + new events that its condition holds for ──▶ Starts, by key and row ──▶ the rules' kernels
                                                                                                 └──▶ rows to store

Of a key no more than RUNS_PER_KEY_MAX starts are kept, the newest; `runs_evicted` counts the others.
Tested by: tests/engine/test_starts.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cep.base.limits import RUNS_PER_KEY_MAX, TIME_MS_MAX
from cep.engine.keyed_state import KeyedState
from cep.engine.table import PreparedEvents, queue_of
from cep.kernels import layout as y
from cep.kernels.layout import Int32, Int64, UInt64
from cep.nfa.program import Program
from cep.nfa.shared import SharedStart


@dataclass(frozen=True, slots=True)
class Starts:
    """Starts by key and row of the event table: keys int32[S], rows int64[S]; `new_count` of them are of this call.

    `bits` uint64[P, 1] is what kernels take for the bitmaps of a start: no other condition of its rules holds for it,
    or it would not have been put off.
    """

    keys: Int32
    rows: Int64
    bits: UInt64
    new_count: int


NO_STARTS = Starts(np.empty(0, np.int32), np.empty(0, np.int64), np.zeros((1, 1), np.uint64), 0)


@dataclass(frozen=True, slots=True)
class LiveRuns:
    """Runs as a KeyedState has them, with the nodes that they lead to: runs int64[n, W], run_rule and run_key int32[n],
    nodes int64[m, NODE_WIDTH]."""

    runs: Int64
    run_rule: Int32
    run_key: Int32
    nodes: Int64


def find_starts(shared: SharedStart, prepared: PreparedEvents, fitted: KeyedState, own: slice) -> Starts:
    """The starts of a call: those kept in fitted.runs[own], and the new events that are one."""
    rows = queue_of(prepared, np.array([shared.predicate], np.int32)).astype(np.int64)
    time_ms = prepared.columns[y.COLUMN_TIME, rows]
    rows = rows[(time_ms >= shared.from_ms) & (time_ms < shared.until_ms)]
    bits = np.zeros((len(prepared.bitmaps), 1), np.uint64)
    bits[shared.predicate] = 1
    if own.start == own.stop:
        return Starts(prepared.columns[y.COLUMN_KEY, rows].astype(np.int32), rows, bits, len(rows))
    every = np.concatenate([fitted.runs[own, y.RUN_START_ROW], rows])
    keys = prepared.columns[y.COLUMN_KEY, every]
    order = np.lexsort((every, keys))
    return Starts(keys[order].astype(np.int32), every[order], bits, len(rows))


def keep_starts(
    program: Program, prepared: PreparedEvents, found: Sequence[Starts], watermark_ms: int, nodes_before: int,
    counters: Counter[str],
) -> LiveRuns:  # fmt: skip
    """What of the starts is kept after a call, behind `nodes_before` nodes; counts what began, is over, is evicted."""
    runs, keys, slots = [], [], []
    for shared, starts in zip(program.shared, found, strict=True):
        expiry = np.minimum(prepared.columns[y.COLUMN_TIME, starts.rows] + shared.within_ms, TIME_MS_MAX)
        is_open = np.flatnonzero(expiry > watermark_ms)
        end_of_key = np.searchsorted(starts.keys[is_open], starts.keys[is_open], side="right")
        kept = is_open[end_of_key - np.arange(len(is_open)) <= RUNS_PER_KEY_MAX]
        counters["runs_started"] += starts.new_count
        counters["runs_expired"] += len(expiry) - len(is_open)
        counters["runs_evicted"] += len(is_open) - len(kept)
        own = np.zeros((len(kept), program.width), np.int64)
        own[:, y.RUN_STATE], own[:, y.RUN_WAITS] = shared.nfa_state, 1
        own[:, y.RUN_EXPIRY], own[:, y.RUN_START_ROW] = expiry[kept], starts.rows[kept]
        runs.append(own)
        keys.append(starts.keys[kept])
        slots.append(np.full(len(kept), shared.slot, np.int32))
    every = np.concatenate(runs)
    every[:, y.RUN_NODE] = nodes_before + np.arange(len(every))
    nodes = np.column_stack([every[:, y.RUN_START_ROW], every[:, y.RUN_STATE], np.full(len(every), -1)])
    return LiveRuns(every, np.concatenate(slots), np.concatenate(keys), nodes)
