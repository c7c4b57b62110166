"""The prefixes that rules share (nfa/prefixes.py): found in the events of a call, stored between calls.

    stored rows of the prefix + new events of it ──▶ Starts, by key and row ──▶ the rules' kernels
                                                                          └──▶ rows to store

The rules process the stored events when an event arrives that may take their runs further. At most RUNS_PER_KEY_MAX
starts of a key are stored, the newest, and no event from before a dropped one. Starts with long texts are fewer:
together they count as at most NODES_PER_KEY_MAX bound events.

Tested by: tests/engine/test_starts.py
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cep.base.limits import NODES_PER_KEY_MAX, RUNS_PER_KEY_MAX, TIME_MS_MAX
from cep.engine.keyed_state import KeyedState
from cep.engine.outputs import count_by_rule
from cep.engine.table import PreparedEvents, queue_of
from cep.kernels import layout as y
from cep.kernels.layout import Bool, Int32, Int64
from cep.kernels.match.rules import NOT_TAKEN, STEP_STATE, follow_prefix
from cep.kernels.records import LiveRuns, PrefixEvents, PrefixRuns, SharedStarts
from cep.nfa.image import join_ranges
from cep.nfa.prefixes import SharedStart
from cep.nfa.program import Program

EvictedRuns = tuple[int, int, int]  # the number of a rule, the number of a key, and how many runs the key has lost


@dataclass(frozen=True, slots=True)
class Starts:
    """The events of a prefix that several rules share, by key and row of the event table: keys int32[S], rows int64[S].

    `masks` int64[S] have a bit for each condition of the prefix that holds; bit 1 is a start. `counts` int64[S] is the
    number of starts up to and including the event; `weights` int64[S] is their count as bound events, or empty if each
    counts once. `different` int64[D] are the distinct masks, and `columns` int64[S] is the index of the event's mask.
    `expiry` int64[S] is the time from which no run needs the event. `new_count` starts are from this call.
    """

    keys: Int32
    rows: Int64
    masks: Int64
    counts: Int64
    different: Int64
    columns: Int64
    expiry: Int64
    new_count: int
    weights: Int64


_NOTHING = np.empty(0, np.int64)
NO_STARTS = SharedStarts(
    np.empty(0, np.int32), _NOTHING, _NOTHING, _NOTHING, np.zeros((1, 1), np.uint64), np.zeros(1, np.int64), _NOTHING
)


def all_starts(program: Program, starts_of_prefix: Sequence[Starts]) -> SharedStarts:
    """Join the events of all shared prefixes to one table for the kernels, in the order of `program.shared`.

    The bits have a column for each distinct mask, because no other condition of the rules holds for a deferred event.
    """
    if not starts_of_prefix:
        return NO_STARTS
    columns_first = np.cumsum([0, *(len(starts.different) for starts in starts_of_prefix)])
    bits = np.zeros((max(program.predicates.count, 1), int(columns_first[-1]) // 64 + 1), np.uint64)
    for shared, starts, first in zip(program.shared, starts_of_prefix, columns_first, strict=False):
        index = first + np.arange(len(starts.different))
        for bit, predicate in enumerate(shared.predicates.tolist()):
            holding = index[starts.different >> bit & 1 != 0]
            np.bitwise_or.at(bits[predicate], holding >> 6, np.uint64(1) << (holding & 63).astype(np.uint64))
    parts = [
        (starts.keys, starts.rows, starts.counts, starts.columns + first, starts.weights)
        for starts, first in zip(starts_of_prefix, columns_first, strict=False)
    ]
    keys, rows, counts, columns, weights = map(np.concatenate, zip(*parts, strict=True))
    bounds = np.cumsum([0, *(len(starts.rows) for starts in starts_of_prefix)])
    return SharedStarts(keys, rows, counts, columns, bits, bounds, weights)


def find_starts(shared: SharedStart, prepared: PreparedEvents, fitted: KeyedState, bounds: Int64) -> Starts:
    """Find the events of a prefix: the stored ones, and the new ones that a run may wait for.

    Shapes: the runs of rule or shared prefix number n are fitted.runs[bounds[n] : bounds[n + 1]].
    """
    new = queue_of(prepared, shared.predicates).astype(np.int64)
    time_ms = prepared.columns[y.COLUMN_TIME, new]
    new = new[(time_ms >= shared.from_ms) & (time_ms < shared.until_ms)]
    stored = fitted.runs[bounds[shared.slot] : bounds[shared.slot + 1]]
    rows = np.concatenate([stored[:, y.RUN_START_ROW], new])
    order = np.lexsort((rows, prepared.columns[y.COLUMN_KEY, rows])) if len(stored) else np.arange(len(rows))
    rows = rows[order]
    keys = prepared.columns[y.COLUMN_KEY, rows].astype(np.int32)
    if len(shared.predicates) == 1:  # each is a start, and stored
        expiry = np.minimum(prepared.columns[y.COLUMN_TIME, rows] + shared.within_ms, TIME_MS_MAX)
        masks, counts = np.ones(len(rows), np.int64), np.arange(1, len(rows) + 1)
        return Starts(keys, rows, masks, counts, masks[:1], np.zeros(len(rows), np.int64), expiry, len(new),
                      _weights(prepared, rows, masks))  # fmt: skip
    masks = np.concatenate([stored[:, y.RUN_ORDINAL], _masks(shared, prepared, new)])[order]
    expiry = np.concatenate([stored[:, y.RUN_EXPIRY], np.full(len(new), NOT_TAKEN)])[order]
    _follow(shared, prepared, fitted, bounds, keys, rows, masks, expiry)
    needed = np.flatnonzero(_put_off(shared, prepared, rows, masks, expiry != NOT_TAKEN))
    keys, rows, masks, expiry = keys[needed], rows[needed], masks[needed], expiry[needed]
    different, columns = np.unique(masks, return_inverse=True)
    is_start = masks & 1
    return Starts(
        keys, rows, masks, np.cumsum(is_start), different, columns.reshape(-1).astype(np.int64), expiry,
        int(is_start[rows >= prepared.first_row].sum()), _weights(prepared, rows, is_start),
    )  # fmt: skip


def _put_off(shared: SharedStart, prepared: PreparedEvents, rows: Int64, masks: Int64, is_taken: Bool) -> Bool:
    """Choose the events to defer: all that a run takes, except new events with long texts that are not starts.

    Each start keeps at most one event per later condition, however heavy it is. Later events with long texts go to each
    rule at once.
    """
    if not len(prepared.weights):
        return is_taken
    apart: Bool = is_taken & (masks & 1 == 0) & (prepared.weights[rows] > 0) & (rows >= prepared.first_row)
    bit = rows[apart] - prepared.first_row
    np.bitwise_or.at(prepared.bitmaps[shared.undeferred_bitmap], bit >> 6, np.uint64(1) << (bit & 63).astype(np.uint64))
    is_taken &= ~apart
    return is_taken


def _weights(prepared: PreparedEvents, rows: Int64, is_start: Int64) -> Int64:
    """Return the count as bound events of the starts up to and including each row; empty if each counts once."""
    if not len(prepared.weights):
        return _NOTHING
    return np.cumsum(is_start * (1 + prepared.weights[rows]))


def _masks(shared: SharedStart, prepared: PreparedEvents, rows: Int64) -> Int64:
    bit = rows - prepared.first_row
    words = prepared.bitmaps[shared.predicates[:, None], bit >> 6]
    holds = (words >> (bit & 63).astype(np.uint64) & np.uint64(1)).astype(np.int64)
    masks: Int64 = (holds << np.arange(len(holds))[:, None]).sum(axis=0)
    return masks


def _follow(
    shared: SharedStart, prepared: PreparedEvents, fitted: KeyedState, bounds: Int64, keys: Int32, rows: Int64,
    masks: Int64, expiry: Int64,
) -> None:  # fmt: skip
    """Compute when each new event of a prefix expires: NOT_TAKEN if no run waits for it.

    The run may be one that the events begin, or a run of a single rule, which has seen the events up to its last one.
    """
    first, counts = bounds[shared.rules], bounds[shared.rules + 1] - bounds[shared.rules]
    runs = fitted.runs[join_ranges(first, counts)]
    run_keys = fitted.run_key[join_ranges(first, counts)]
    states = runs[:, y.RUN_STATE] - np.repeat(shared.first_states, counts)
    last_rows = fitted.nodes[runs[:, y.RUN_NODE], y.NODE_ROW]
    waits = np.flatnonzero((states > 0) & np.isin(states, shared.steps[:, STEP_STATE]))
    waits = waits[np.lexsort((last_rows[waits], run_keys[waits]))]
    steps = len(shared.steps)
    rule_runs = PrefixRuns(run_keys[waits], last_rows[waits], states[waits], runs[waits, y.RUN_EXPIRY])
    follow_prefix(
        shared.steps, shared.within_ms, prepared.columns, PrefixEvents(keys, rows, masks, expiry), rule_runs,
        np.empty(steps, np.int64), np.empty(steps, np.int64),
    )  # fmt: skip


def keep_starts(
    program: Program, starts_of_prefix: Sequence[Starts], watermark_ms: int, nodes_before: int, counters: Counter[str],
    evicted_runs: list[EvictedRuns],
) -> LiveRuns:  # fmt: skip
    """Return the rows of the prefixes to store after a call, after `nodes_before` nodes; count evicted starts."""
    runs, keys, slots = [], [], []
    for shared, starts in zip(program.shared, starts_of_prefix, strict=True):
        is_start = starts.masks & 1
        is_open = np.flatnonzero(starts.expiry > watermark_ms)
        last_of_key = np.searchsorted(starts.keys, starts.keys[is_open], side="right") - 1
        following = starts.counts[last_of_key] - starts.counts[is_open] + is_start[is_open]
        fits = following <= RUNS_PER_KEY_MAX
        if len(starts.weights):
            alone = np.diff(starts.weights, prepend=0)[is_open]
            fits &= starts.weights[last_of_key] - starts.weights[is_open] + alone <= NODES_PER_KEY_MAX
        live = is_open[fits]
        counters["runs_started"] += starts.new_count
        counters["runs_expired"] += int(is_start.sum() - is_start[is_open].sum())
        evicted = int(is_start[is_open].sum() - is_start[live].sum())
        if evicted:
            counters["runs_evicted"] += evicted
            numbers, counts = np.unique(starts.keys[is_open[~fits & (is_start[is_open] != 0)]], return_counts=True)
            lost = list(zip(numbers.tolist(), counts.tolist(), strict=True))
            evicted_runs += [(rule, key, count) for rule in shared.rules.tolist() for key, count in lost]
            count_by_rule(program, "rule_runs_evicted", evicted * np.bincount(shared.rules), counters)
        rows = np.zeros((len(live), program.width), np.int64)
        rows[:, y.RUN_STATE], rows[:, y.RUN_WAITS] = shared.nfa_state, 1
        rows[:, y.RUN_EXPIRY], rows[:, y.RUN_START_ROW] = starts.expiry[live], starts.rows[live]
        if len(shared.predicates) > 1:
            rows[:, y.RUN_ORDINAL] = starts.masks[live]
        runs.append(rows)
        keys.append(starts.keys[live])
        slots.append(np.full(len(live), shared.slot, np.int32))
    every = np.concatenate(runs)
    every[:, y.RUN_NODE] = nodes_before + np.arange(len(every))
    nodes = np.column_stack([every[:, y.RUN_START_ROW], every[:, y.RUN_STATE], np.full(len(every), -1)])
    return LiveRuns(every, np.concatenate(slots), np.concatenate(keys), nodes)
