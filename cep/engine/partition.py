"""A KeyedState → one state for each of many disjoint sets of its keys, in one pass.

`select_keys` for each set would read the whole state once per set. Here runs, nodes and events are sorted by set once,
with adjusted pointers, and then cut. Histories are divided separately (histories/pages.py).

Tested by: tests/engine/test_keyed_state.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cep.columnar.batch import read_only
from cep.engine.keyed_state import KeyedState, RetainedEvents
from cep.histories.pages import detach_segments, keys_with_past, partition_histories
from cep.kernels.layout import Int64
from cep.kernels.pages.parts import COUNTS, order_rows, point_anew
from cep.kernels.records import PartOrder


def order_of(keyed_state: KeyedState, part: Int64, parts_count: int) -> tuple[PartOrder, int]:
    """Sort the rows of a keyed state by the P parts of its keys; part int64[K] in [0, P). Cost: O(state).

    Returns the new order, and the largest number of rows of one kind in a part.
    """
    run_key, event_key = read_only(keyed_state.run_key), read_only(keyed_state.events.key)
    nodes = read_only(keyed_state.nodes)
    keys, runs = np.empty(len(part), np.int64), np.empty(len(run_key), np.int64)
    node_order, events = np.empty(len(nodes), np.int64), np.empty(len(event_key), np.int64)
    places = np.empty_like(keys), np.empty_like(node_order), np.empty_like(events)
    order = PartOrder(np.zeros((COUNTS, parts_count + 1), np.int64), keys, runs, node_order, events, *places)
    most = order_rows(part, run_key, event_key, nodes, order, np.empty((COUNTS, parts_count), np.int64))
    return order, most


def partition_keys(
    keyed_state: KeyedState, part: Int64, parts_count: int, row_registers: np.ndarray
) -> list[KeyedState]:
    """Divide a keyed state by keys, as `select_keys` would for each part. part int64[K] is in [0, parts_count).

    Cost: O(state), and about 20 µs for each part. The parts share no memory with the state.
    """
    order, _ = order_of(keyed_state, part, parts_count)
    arranged = _arranged(keyed_state, order, row_registers)
    return [
        _cut(arranged, order.bounds[:, index].tolist(), order.bounds[:, index + 1].tolist())
        for index in range(parts_count)
    ]


def divide(
    keyed_state: KeyedState, part_of: Callable[[pa.Array], Int64], row_registers: np.ndarray
) -> list[tuple[int, KeyedState]]:
    """Divide a state with its histories. Return (part, state) of each non-empty part, ascending.

    `part_of` returns the part of each key of an array, any integers. Every segment of the histories is read.
    """
    run_part, past = part_of(keyed_state.keys), keyed_state.histories
    parts = np.union1d(run_part, part_of(keys_with_past(past)))
    shares = partition_keys(keyed_state, np.searchsorted(parts, run_part), len(parts), row_registers)
    pasts = partition_histories(replace(past, segments=detach_segments(past.segments)), parts.tolist(), part_of)
    return [
        (part, replace(share, histories=replace(past_of_part, segments=detach_segments(past_of_part.segments))))
        for part, share, past_of_part in zip(parts.tolist(), shares, pasts, strict=True)
    ]


def _arranged(keyed_state: KeyedState, order: PartOrder, row_registers: np.ndarray) -> KeyedState:
    """Sort the rows of a state by part, and make pointers relative to each part."""
    run_order = order.runs
    runs, run_rule = keyed_state.runs[run_order], keyed_state.run_rule[run_order]
    nodes = keyed_state.nodes[order.nodes]
    point_anew(runs, run_rule, nodes, row_registers, order.event_place, order.node_place)
    return KeyedState(
        keyed_state.layout,
        keyed_state.keys.take(pa.array(order.keys)),
        runs,
        run_rule,
        order.key_place[keyed_state.run_key[run_order]].astype(np.int32),
        nodes,
        keyed_state.events.take(order.events, order.key_place),
    )


def _cut(whole: KeyedState, firsts: Sequence[int], ends: Sequence[int]) -> KeyedState:
    """Cut a part out of an arranged state: the rows first <= i < end of keys, runs, nodes and events."""
    keys, runs, nodes, rows = (slice(first, end) for first, end in zip(firsts, ends, strict=True))
    events = whole.events
    return KeyedState(
        whole.layout,
        _copied(whole.keys, keys),
        whole.runs[runs].copy(),
        whole.run_rule[runs].copy(),
        whole.run_key[runs].copy(),
        whole.nodes[nodes].copy(),
        RetainedEvents(
            events.key[rows].copy(),
            _copied(events.event_id, rows),
            events.event_type[rows].copy(),
            events.time_ms[rows].copy(),
            {name: _copied(column, rows) for name, column in events.columns.items()},
        ),
    )


def _copied(array: pa.Array, rows: slice) -> pa.Array:
    """Copy a part of an array, so that the rest can be freed."""
    return pa.concat_arrays([array.slice(rows.start, rows.stop - rows.start), array.slice(0, 0)])
