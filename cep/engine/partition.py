"""A KeyedState → one for each of many disjoint sets of its keys, in one pass.

`select_keys` of each set would look at the whole state as often as there are sets. Here runs, nodes and events
are brought into the order of the sets once, with what points from one to another, and then cut. Histories are divided
apart (history_state.py).
Tested by: tests/engine/test_partition.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cep.engine.history_state import keys_of, partition_histories, unplaced
from cep.engine.keyed_state import KeyedState, RetainedEvents, some_row
from cep.kernels.layout import Int64
from cep.kernels.parts import order_by_part, point_anew


@dataclass(frozen=True, slots=True)
class Arranged:
    """A keyed state whose rows stand part by part, and point to each other as if each part were alone.

    Shapes: each of the bounds is int64[P + 1]; the rows bounds[p] <= i < bounds[p + 1] belong to part p.
    """

    whole: KeyedState
    keys: Int64
    events: Int64
    nodes: Int64
    runs: Int64


def arrange_keys(keyed_state: KeyedState, part: Int64, parts_count: int, row_registers: np.ndarray) -> Arranged:
    """The state part by part. Shapes: part int64[K] says for each key its part in [0, parts_count). Cost: O(state)."""
    events = keyed_state.events
    keys = _Order(part, parts_count)
    rows = _Order(part[events.key], parts_count)
    nodes_ = _Order(part[events.key][some_row(keyed_state.nodes)], parts_count)
    runs_ = _Order(part[keyed_state.run_key], parts_count)
    runs, run_rule = keyed_state.runs[runs_.order], keyed_state.run_rule[runs_.order]
    nodes = keyed_state.nodes[nodes_.order]
    point_anew(runs, run_rule, nodes, row_registers, rows.place, nodes_.place)
    whole = KeyedState(
        keyed_state.layout,
        keyed_state.keys.take(pa.array(keys.order)),
        runs,
        run_rule,
        keys.place[keyed_state.run_key[runs_.order]].astype(np.int32),
        nodes,
        RetainedEvents(
            keys.place[events.key[rows.order]].astype(np.int32),
            events.event_id.take(pa.array(rows.order)),
            events.event_type[rows.order],
            events.time_ms[rows.order],
            {name: column.take(pa.array(rows.order)) for name, column in events.columns.items()},
        ),
    )
    return Arranged(whole, keys.bounds, rows.bounds, nodes_.bounds, runs_.bounds)


def partition_keys(
    keyed_state: KeyedState, part: Int64, parts_count: int, row_registers: np.ndarray
) -> list[KeyedState]:
    """What `select_keys` gives for each part, of `arrange_keys`.

    Cost: O(state), and some 20 µs for each part. The parts share no memory with the state.
    """
    arranged = arrange_keys(keyed_state, part, parts_count, row_registers)
    return [_cut(arranged, at) for at in range(parts_count)]


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


class _Order:
    """Rows in the order of their parts: `order` says which row comes where, `place` where a row is within its part."""

    def __init__(self, part: Int64, parts_count: int) -> None:
        self.order, self.place = np.empty(len(part), np.int64), np.empty(len(part), np.int64)
        self.bounds = np.zeros(parts_count + 1, np.int64)
        order_by_part(part, self.bounds, np.zeros(parts_count + 1, np.int64), self.order, self.place)


def _cut(arranged: Arranged, at: int) -> KeyedState:
    whole, runs, nodes = arranged.whole, _slice(arranged.runs, at), _slice(arranged.nodes, at)
    own, events = _slice(arranged.events, at), whole.events
    return KeyedState(
        whole.layout,
        _copied(whole.keys, _slice(arranged.keys, at)),
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


def _slice(bounds: Int64, at: int) -> slice:
    return slice(int(bounds[at]), int(bounds[at + 1]))


def _copied(array: pa.Array, own: slice) -> pa.Array:
    """A part of an array that does not keep the rest alive."""
    return pa.concat_arrays([array.slice(own.start, own.stop - own.start), array.slice(0, 0)])
