"""A KeyedState → one for each of many disjoint sets of its keys, in one pass.

`select_keys` of each set would look at the whole state as often as there are sets. Here runs, nodes and events
are brought into the order of the sets once, with what points from one to another, and then cut. Histories are divided
apart (history_state.py).
Tested by: tests/engine/test_partition.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cep.columnar.batch import read_only
from cep.engine.history_state import keys_of, partition_histories, unplaced
from cep.engine.keyed_state import KeyedState, RetainedEvents
from cep.kernels.layout import Int64
from cep.kernels.parts import COUNTS, order_rows, point_anew


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Which rows of a keyed state belong to which of P parts of its keys, as `kernels.parts.order_rows` has it.

    `orders` are those of keys, runs, nodes and events; `most` is how many rows of a kind a part has at most.
    """

    bounds: Int64
    orders: tuple[Int64, Int64, Int64, Int64]
    key_place: Int64
    node_place: Int64
    event_place: Int64
    most: int


def order_of(keyed_state: KeyedState, part: Int64, parts_count: int) -> RowOrder:
    """Shapes: part int64[K] says for each key its part in [0, parts_count). Cost: O(state)."""
    run_key, event_key = read_only(keyed_state.run_key), read_only(keyed_state.events.key)
    nodes = read_only(keyed_state.nodes)
    bounds, cursor = np.zeros((COUNTS, parts_count + 1), np.int64), np.empty((COUNTS, parts_count), np.int64)
    keys, runs = np.empty(len(part), np.int64), np.empty(len(run_key), np.int64)
    node_order, events = np.empty(len(nodes), np.int64), np.empty(len(event_key), np.int64)
    key_place, node_place, event_place = np.empty_like(keys), np.empty_like(node_order), np.empty_like(events)
    most = order_rows(
        part, run_key, event_key, nodes, bounds, cursor, keys, runs, node_order, events,
        key_place, node_place, event_place,
    )  # fmt: skip
    return RowOrder(bounds, (keys, runs, node_order, events), key_place, node_place, event_place, most)


def partition_keys(
    keyed_state: KeyedState, part: Int64, parts_count: int, row_registers: np.ndarray
) -> list[KeyedState]:
    """What `select_keys` gives for each part; part int64[K] says for each key its own in [0, parts_count).

    Cost: O(state), and some 20 µs for each part. The parts share no memory with the state.
    """
    order = order_of(keyed_state, part, parts_count)
    arranged = _arranged(keyed_state, order, row_registers)
    return [_cut(arranged, order.bounds[:, at].tolist(), order.bounds[:, at + 1].tolist()) for at in range(parts_count)]


def divide(
    keyed_state: KeyedState, part_of: Callable[[pa.Array], Int64], row_registers: np.ndarray
) -> list[tuple[int, KeyedState]]:
    """The state with its histories by part: (part, what belongs to it) of each that has anything, ascending.

    `part_of` gives the part of each of an array of keys, any integers. Every segment of the histories is read.
    """
    run_part, past = part_of(keyed_state.keys), keyed_state.histories
    parts = np.union1d(run_part, part_of(keys_of(past)))
    shares = partition_keys(keyed_state, np.searchsorted(parts, run_part), len(parts), row_registers)
    pasts = partition_histories(replace(past, segments=unplaced(past.segments)), parts.tolist(), part_of)
    return [
        (part, replace(share, histories=replace(own, segments=unplaced(own.segments))))
        for part, share, own in zip(parts.tolist(), shares, pasts, strict=True)
    ]


def _arranged(keyed_state: KeyedState, order: RowOrder, row_registers: np.ndarray) -> KeyedState:
    """The state with its rows part by part, which point to each other as if each part were alone."""
    events, (keys, run_order, node_order, rows) = keyed_state.events, order.orders
    runs, run_rule = keyed_state.runs[run_order], keyed_state.run_rule[run_order]
    nodes = keyed_state.nodes[node_order]
    point_anew(runs, run_rule, nodes, row_registers, order.event_place, order.node_place)
    return KeyedState(
        keyed_state.layout,
        keyed_state.keys.take(pa.array(keys)),
        runs,
        run_rule,
        order.key_place[keyed_state.run_key[run_order]].astype(np.int32),
        nodes,
        RetainedEvents(
            order.key_place[events.key[rows]].astype(np.int32),
            events.event_id.take(pa.array(rows)),
            events.event_type[rows],
            events.time_ms[rows],
            {name: column.take(pa.array(rows)) for name, column in events.columns.items()},
        ),
    )


def _cut(whole: KeyedState, firsts: Sequence[int], ends: Sequence[int]) -> KeyedState:
    """A part of an arranged state: of keys, runs, nodes and events the rows first <= i < end."""
    keys, runs, nodes, own = (slice(first, end) for first, end in zip(firsts, ends, strict=True))
    events = whole.events
    return KeyedState(
        whole.layout,
        _copied(whole.keys, keys),
        whole.runs[runs].copy(),
        whole.run_rule[runs].copy(),
        whole.run_key[runs].copy(),
        whole.nodes[nodes].copy(),
        RetainedEvents(
            events.key[own].copy(),
            _copied(events.event_id, own),
            events.event_type[own].copy(),
            events.time_ms[own].copy(),
            {name: _copied(column, own) for name, column in events.columns.items()},
        ),
    )


def _copied(array: pa.Array, own: slice) -> pa.Array:
    """A part of an array that does not keep the rest alive."""
    return pa.concat_arrays([array.slice(own.start, own.stop - own.start), array.slice(0, 0)])
