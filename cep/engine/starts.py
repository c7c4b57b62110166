"""The prefixes that rules share (nfa/prefixes.py): found in the events of a call, stored between calls.

    stored rows of the prefix + new events of it ──▶ DeferredEvents, by key and row ──▶ the rules' kernels
                                                                                  └──▶ rows to store

The rules process the stored events when an event arrives that may take their runs further.

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
class DeferredEvents:
    """The S events that fulfil conditions of a prefix (first conditions that several rules share), by key and row.

    They are deferred: stored once, instead of in runs of each rule. A rule processes them when an event of one of its
    other conditions arrives. An event of the first condition is a start: it can begin a run."""

    keys: Int32
    rows: Int64
    masks: Int64  # a bit for each condition of the prefix that holds for the event; bit 0 marks a start
    starts_so_far: Int64  # the number of starts up to and including the event, for the limit on runs of a key.
    distinct_masks: Int64  # each mask once.
    mask_index: Int64  # the index of the event's mask in distinct_masks
    expiry: Int64  # the time (ms) from which no run needs the event
    new_starts_count: int  # starts among the events of this call's batch
    weights_so_far: Int64  # as starts_so_far, but long texts count as more events; empty if each event counts once


_NOTHING = np.empty(0, np.int64)
NO_STARTS = SharedStarts(
    np.empty(0, np.int32), _NOTHING, _NOTHING, _NOTHING, np.zeros((1, 1), np.uint64), np.zeros(1, np.int64), _NOTHING
)


def join_deferred(program: Program, events_of_prefixes: Sequence[DeferredEvents]) -> SharedStarts:
    """Join the deferred events of all prefixes (first conditions that rules share) to one table for the kernels.

    Deferred events are stored once until rules need them. A mask has the conditions that hold for an event, as bits.
    The table's `bits` have a row for each condition, and a column for each distinct mask."""
    if not events_of_prefixes:
        return NO_STARTS
    first_columns = np.cumsum([0, *(len(deferred.distinct_masks) for deferred in events_of_prefixes)])  # of each prefix
    bits = np.zeros((max(program.predicates.count, 1), int(first_columns[-1]) // 64 + 1), np.uint64)
    for shared, deferred, first in zip(program.shared, events_of_prefixes, first_columns, strict=False):
        index = first + np.arange(len(deferred.distinct_masks))
        for bit, predicate in enumerate(shared.predicates.tolist()):
            holding = index[deferred.distinct_masks >> bit & 1 != 0]  # the masks with this condition
            np.bitwise_or.at(bits[predicate], holding >> 6, np.uint64(1) << (holding & 63).astype(np.uint64))
    parts = [
        (deferred.keys, deferred.rows, deferred.starts_so_far, deferred.mask_index + first, deferred.weights_so_far)
        for deferred, first in zip(events_of_prefixes, first_columns, strict=False)
    ]
    keys, rows, starts_so_far, columns, weights_so_far = map(np.concatenate, zip(*parts, strict=True))
    bounds = np.cumsum([0, *(len(deferred.rows) for deferred in events_of_prefixes)])
    return SharedStarts(keys, rows, starts_so_far, columns, bits, bounds, weights_so_far)


def find_deferred(
    shared: SharedStart, prepared: PreparedEvents, keyed_state: KeyedState, bounds: Int64
) -> DeferredEvents:
    """Find the events of a prefix (first conditions that several rules share) to defer.

    Deferred events are stored once, instead of in runs of each rule, until an event of another condition of a rule
    arrives. Former ones are rows among the stored runs: number n (a rule or prefix) has the rows bounds[n] to bounds[n
    + 1]. New ones are deferred if a run may take them. In a mask, bit 0 marks a start: it can begin a run."""
    new = queue_of(prepared, shared.predicates).astype(np.int64)
    time_ms = prepared.columns[y.COLUMN_TIME, new]
    new = new[(time_ms >= shared.from_ms) & (time_ms < shared.until_ms)]
    stored = keyed_state.runs[bounds[shared.rule_number] : bounds[shared.rule_number + 1]]
    rows = np.concatenate([stored[:, y.RUN_START_ROW], new])
    order = np.lexsort((rows, prepared.columns[y.COLUMN_KEY, rows])) if len(stored) else np.arange(len(rows))
    rows = rows[order]
    keys = prepared.columns[y.COLUMN_KEY, rows].astype(np.int32)
    if len(shared.predicates) == 1:  # each event is a start, which no run has to wait for
        expiry = np.minimum(prepared.columns[y.COLUMN_TIME, rows] + shared.within_ms, TIME_MS_MAX)
        masks, starts_so_far = np.ones(len(rows), np.int64), np.arange(1, len(rows) + 1)
        return DeferredEvents(
            keys, rows, masks, starts_so_far, distinct_masks=masks[:1], mask_index=np.zeros(len(rows), np.int64),
            expiry=expiry, new_starts_count=len(new), weights_so_far=_weights_so_far(prepared, rows, masks),
        )  # fmt: skip
    stored_masks = stored[:, y.RUN_ORDINAL]  # where a run has its ordinal, a deferred event has its mask
    masks = np.concatenate([stored_masks, _condition_masks(shared, prepared, new)])[order]
    expiry = np.concatenate([stored[:, y.RUN_EXPIRY], np.full(len(new), NOT_TAKEN)])[order]
    _fill_expiry(shared, prepared, keyed_state, bounds, keys, rows, masks, expiry)
    is_taken = expiry != NOT_TAKEN  # by a run
    needed = np.flatnonzero(_choose_deferred(shared, prepared, rows, masks, is_taken))
    keys, rows, masks, expiry = keys[needed], rows[needed], masks[needed], expiry[needed]
    distinct_masks, mask_index = np.unique(masks, return_inverse=True)
    is_start = masks & 1
    return DeferredEvents(
        keys, rows, masks, np.cumsum(is_start), distinct_masks, mask_index.reshape(-1).astype(np.int64), expiry,
        new_starts_count=int(is_start[rows >= prepared.first_row].sum()),
        weights_so_far=_weights_so_far(prepared, rows, is_start),
    )  # fmt: skip


def _choose_deferred(shared: SharedStart, prepared: PreparedEvents, rows: Int64, masks: Int64, is_taken: Bool) -> Bool:
    """Choose the events of a prefix (first conditions that rules share) to defer: to store once, until rules need them.

    All events that a run may take (`is_taken`) are deferred, except new ones with long texts that cannot begin a run.
    Each rule has limits at which such an event counts as several. So the rules process it at once, and a bitmap marks
    it. In a mask (conditions as bits), bit 0 marks an event that can begin a run."""
    if not len(prepared.weights):  # no event has long texts
        return is_taken
    is_start, is_large, is_new = masks & 1 != 0, prepared.weights[rows] > 0, rows >= prepared.first_row
    is_undeferred: Bool = is_taken & ~is_start & is_large & is_new
    bit = rows[is_undeferred] - prepared.first_row
    np.bitwise_or.at(prepared.bitmaps[shared.undeferred_bitmap], bit >> 6, np.uint64(1) << (bit & 63).astype(np.uint64))
    return is_taken & ~is_undeferred


def _weights_so_far(prepared: PreparedEvents, rows: Int64, is_start: Int64) -> Int64:
    """Return the count as bound events of the starts up to and including each row; empty if each counts once."""
    if not len(prepared.weights):
        return _NOTHING
    return np.cumsum(is_start * (1 + prepared.weights[rows]))


def _condition_masks(shared: SharedStart, prepared: PreparedEvents, rows: Int64) -> Int64:
    bit = rows - prepared.first_row
    words = prepared.bitmaps[shared.predicates[:, None], bit >> 6]
    holds = (words >> (bit & 63).astype(np.uint64) & np.uint64(1)).astype(np.int64)
    masks: Int64 = (holds << np.arange(len(holds))[:, None]).sum(axis=0)
    return masks


def _fill_expiry(
    shared: SharedStart, prepared: PreparedEvents, keyed_state: KeyedState, bounds: Int64, keys: Int32, rows: Int64,
    masks: Int64, expiry: Int64,
) -> None:  # fmt: skip
    """Fill `expiry` of the new events of a prefix (first conditions that rules share): until when runs need them.

    An event is needed as long as a run that takes it is open; without one, `expiry` stays NOT_TAKEN. A run that takes
    it begins with this or an earlier event of the prefix, or it is a stored run of one rule. A stored run takes only
    events after its last one. `masks` have a bit for each condition that holds."""
    first, counts = bounds[shared.rules], bounds[shared.rules + 1] - bounds[shared.rules]
    runs = keyed_state.runs[join_ranges(first, counts)]
    run_keys = keyed_state.run_key[join_ranges(first, counts)]
    states = runs[:, y.RUN_STATE] - np.repeat(shared.first_states, counts)
    last_rows = keyed_state.nodes[runs[:, y.RUN_NODE], y.NODE_ROW]
    in_prefix = np.flatnonzero((states > 0) & np.isin(states, shared.steps[:, STEP_STATE]))  # runs that wait there
    in_prefix = in_prefix[np.lexsort((last_rows[in_prefix], run_keys[in_prefix]))]
    rule_runs = PrefixRuns(run_keys[in_prefix], last_rows[in_prefix], states[in_prefix], runs[in_prefix, y.RUN_EXPIRY])
    scratch = np.empty((2, len(shared.steps)), np.int64)
    follow_prefix(
        shared.steps, shared.within_ms, prepared.columns, PrefixEvents(keys, rows, masks, expiry), rule_runs, *scratch
    )


def write_deferred(
    program: Program, events_of_prefixes: Sequence[DeferredEvents], watermark_ms: int, nodes_before: int,
    counters: Counter[str], evicted_runs: list[EvictedRuns],
) -> LiveRuns:  # fmt: skip
    """Write the deferred events of prefixes (first conditions that rules share) as rows like runs, to store them.

    A key keeps its newest RUNS_PER_KEY_MAX starts (events that can begin a run), and none before a dropped one. With
    long texts it keeps fewer: they count as at most NODES_PER_KEY_MAX bound events."""
    runs, keys, rule_numbers = [], [], []
    for shared, deferred in zip(program.shared, events_of_prefixes, strict=True):
        is_start = deferred.masks & 1  # 1 for an event of the first condition
        is_open = np.flatnonzero(deferred.expiry > watermark_ms)
        last_of_key = np.searchsorted(deferred.keys, deferred.keys[is_open], side="right") - 1
        starts_from_here = deferred.starts_so_far[last_of_key] - deferred.starts_so_far[is_open] + is_start[is_open]
        fits = starts_from_here <= RUNS_PER_KEY_MAX
        if len(deferred.weights_so_far):  # some events have long texts, and count as several
            own_weight = np.diff(deferred.weights_so_far, prepend=0)[is_open]
            following_weight = deferred.weights_so_far[last_of_key] - deferred.weights_so_far[is_open]
            fits &= following_weight + own_weight <= NODES_PER_KEY_MAX
        live = is_open[fits]
        counters["runs_started"] += deferred.new_starts_count
        counters["runs_expired"] += int(is_start.sum() - is_start[is_open].sum())
        evicted = int(is_start[is_open].sum() - is_start[live].sum())
        if evicted:
            counters["runs_evicted"] += evicted
            numbers, counts = np.unique(deferred.keys[is_open[~fits & (is_start[is_open] != 0)]], return_counts=True)
            lost = list(zip(numbers.tolist(), counts.tolist(), strict=True))
            evicted_runs += [(rule, key, count) for rule in shared.rules.tolist() for key, count in lost]
            count_by_rule(program, "rule_runs_evicted", evicted * np.bincount(shared.rules), counters)
        rows = np.zeros((len(live), program.width), np.int64)
        rows[:, y.RUN_STATE], rows[:, y.RUN_OPEN_WAITS] = shared.nfa_state, 1
        rows[:, y.RUN_EXPIRY], rows[:, y.RUN_START_ROW] = deferred.expiry[live], deferred.rows[live]
        if len(shared.predicates) > 1:  # with one condition, each event is a start, and needs no mask
            rows[:, y.RUN_ORDINAL] = deferred.masks[live]
        runs.append(rows)
        keys.append(deferred.keys[live])
        rule_numbers.append(np.full(len(live), shared.rule_number, np.int32))
    every = np.concatenate(runs)
    every[:, y.RUN_NODE] = nodes_before + np.arange(len(every))
    nodes = np.column_stack([every[:, y.RUN_START_ROW], every[:, y.RUN_STATE], np.full(len(every), -1)])
    return LiveRuns(every, np.concatenate(rule_numbers), np.concatenate(keys), nodes)
