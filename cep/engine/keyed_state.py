"""KeyedState: the runs of many keys, the events that they have bound, the tree of bound events, and histories.

All of it is columns: `runs` rows (kernels/layout.py) sorted by rule, then key; `nodes` of the tree; `events` that some
run can still reach. A state belongs to a program; `migrate_state` moves it to another program by rule identity.

To divide a state by many disjoint sets of its keys, runs, nodes and events are sorted by set once, with adjusted
pointers, and then cut, so the whole state is read once and not once per set.

Tested by: tests/engine/test_keyed_state.py, tests/kernels/test_room.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.limits import NODE_TEXT_BYTES
from cep.columnar.batch import NO_TEXTS, arrow_type, read_only, text_offsets
from cep.histories.pages import concat_histories, detach_segments, keys_with_past, partition_histories
from cep.histories.store import Histories, no_histories
from cep.kernels import layout as y
from cep.kernels.layout import Int32, Int64, UInt8
from cep.kernels.pages.packed import COUNTS, order_rows, renumber_pointers, shift_pointers
from cep.kernels.records import PartOrder
from cep.kernels.text.texts import longest_text
from cep.nfa.deployed import RuleIdentity
from cep.nfa.prefixes import prefix_length, shares
from cep.nfa.program import Program


@dataclass(frozen=True, slots=True)
class RetainedEvents:
    """The events that runs have bound: key int32[E] into KeyedState.keys, ids, types, times and retained columns."""

    key: Int32
    event_id: pa.Array
    event_type: Int64
    time_ms: Int64
    columns: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.time_ms)

    def take(self, rows: Int64, new_key: Int64) -> RetainedEvents:
        places = pa.array(rows)
        return RetainedEvents(
            new_key[self.key[rows]].astype(np.int32),
            self.event_id.take(places),
            self.event_type[rows],
            self.time_ms[rows],
            {name: column.take(places) for name, column in self.columns.items()},
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """The numbering of rules and NFA states in a KeyedState, by which its runs find their rules in another program."""

    fingerprint: str  # of the rules and the schema: equal layouts need no renumbering
    rules: tuple[tuple[RuleIdentity, int, int], ...]  # identity, first NFA state and number of states
    is_earlier: bool = False  # version 0.2.0 stored it, with other registers for averages and standard deviations

    @staticmethod
    def of(program: Program) -> Layout:
        return Layout(program.fingerprint, program.places)


@dataclass(frozen=True, slots=True)
class KeyedState:
    """Runs of many keys, and histories, which have keys of their own.

    Shapes: keys text[K], each with a run; runs int64[n, W], run_rule and run_key int32[n]; nodes int64[m, 3]."""

    layout: Layout
    keys: pa.Array
    runs: Int64
    run_rule: Int32
    run_key: Int32
    nodes: Int64
    events: RetainedEvents
    histories: Histories = field(default_factory=no_histories)

    def __len__(self) -> int:
        return len(self.runs)

    def __bool__(self) -> bool:
        return len(self.runs) > 0 or bool(self.histories)

    @property
    def is_note(self) -> NDArray[np.bool_]:
        """bool[n]: rows that are notes of the shared events that their rule has processed (match/plain.py)."""
        rules = self.layout.rules
        first = np.array([-1 if shares(identity) else number for identity, number, _ in rules] + [-1], np.int64)
        is_note: NDArray[np.bool_] = self.runs[:, y.RUN_STATE] == first[self.run_rule]
        return is_note

    @property
    def is_run(self) -> NDArray[np.bool_]:
        """bool[n]: the rows that are runs or shared starts, not notes or later shared events."""
        lengths = np.array([prefix_length(identity) for identity, _, _ in self.layout.rules] + [0], np.int64)
        follows = (lengths[self.run_rule] > 1) & (self.runs[:, y.RUN_ORDINAL] & 1 == 0)
        is_run: NDArray[np.bool_] = ~self.is_note & ~follows
        return is_run

    @property
    def expiry_min(self) -> int | None:
        """The earliest event time (ms) at which a run expires; None without runs."""
        return int(self.runs[:, y.RUN_EXPIRY].min()) if len(self.runs) else None


def empty_state(program: Program) -> KeyedState:
    """Return a keyed state without runs."""
    columns = {c.name: pa.array([], arrow_type(c.type)) for c in program.columns if c.retained}
    no_codes, no_numbers = np.empty(0, np.int32), np.empty(0, np.int64)
    no_runs, no_nodes = np.empty((0, program.width), np.int64), np.empty((0, y.NODE_WIDTH), np.int64)
    no_events = RetainedEvents(no_codes, NO_TEXTS, no_numbers, no_numbers, columns)
    return KeyedState(Layout.of(program), NO_TEXTS, no_runs, no_codes, no_codes, no_nodes, no_events)


def concat_states(states: Sequence[KeyedState], row_registers: np.ndarray) -> KeyedState:
    """Join states of one program that have no key in common. row_registers is 1 for registers that hold event rows."""
    if len(states) == 1:
        return states[0]
    runs, nodes = np.concatenate([s.runs for s in states]), np.concatenate([s.nodes for s in states])
    run_rule = np.concatenate([s.run_rule for s in states])
    lengths = np.array([(len(s.runs), len(s.nodes), len(s.events), len(s.keys)) for s in states], np.int64)
    bounds = np.concatenate([np.zeros((1, 4), np.int64), np.cumsum(lengths, axis=0)])  # where each state begins
    run_bounds, node_bounds, row_bounds, key_bounds = (np.ascontiguousarray(column) for column in bounds.T)
    shift_pointers(runs, run_rule, nodes, row_registers, run_bounds, node_bounds, row_bounds)  # in place
    keys_before = key_bounds[:-1].astype(np.int32)
    run_key = np.concatenate([s.run_key + before for s, before in zip(states, keys_before, strict=True)])
    events = [s.events for s in states]
    order = np.lexsort((np.arange(len(run_key)), run_key, run_rule))  # by rule, then by key
    return KeyedState(
        layout=states[0].layout,
        keys=pa.concat_arrays([s.keys for s in states]),
        runs=runs[order],
        run_rule=run_rule[order],
        run_key=run_key[order],
        nodes=nodes,
        events=RetainedEvents(
            key=np.concatenate([e.key + before for e, before in zip(events, keys_before, strict=True)]),
            event_id=pa.concat_arrays([e.event_id for e in events]),
            event_type=np.concatenate([e.event_type for e in events]),
            time_ms=np.concatenate([e.time_ms for e in events]),
            columns={name: pa.concat_arrays([e.columns[name] for e in events]) for name in events[0].columns},
        ),
        histories=concat_histories([(-1, s.histories) for s in states]),  # -1: in no stored page
    )


def order_of(keyed_state: KeyedState, part: Int64, parts_count: int) -> tuple[PartOrder, int]:
    """Sort the rows of a keyed state by part, int64[K] of keys. Return also the most rows of one kind in a part."""
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
    """Divide a keyed state into parts by key: part int64[K] is the part of each key, in [0, parts_count).

    Keys keep their order within a part. A register of a run with row_registers[rule, register] 1 holds an event row,
    which gets its number within the part. The parts share no memory with the state. Cost: O(state), and about 20 µs for
    each part."""
    order, _ = order_of(keyed_state, part, parts_count)
    sorted_state = _sorted_by_part(keyed_state, order, row_registers)
    return [
        _cut(sorted_state, order.bounds[:, index].tolist(), order.bounds[:, index + 1].tolist())
        for index in range(parts_count)
    ]


def divide(
    keyed_state: KeyedState, part_of: Callable[[pa.Array], Int64], row_registers: np.ndarray
) -> list[tuple[int, KeyedState]]:
    """Divide a state with its histories (past events). Return (part, state) of each non-empty part, ascending.

    `part_of` returns for an array of keys the part of each key, any integer. Every segment of the histories is read."""
    run_part, past = part_of(keyed_state.keys), keyed_state.histories
    parts = np.union1d(run_part, part_of(keys_with_past(past)))
    states = partition_keys(keyed_state, np.searchsorted(parts, run_part), len(parts), row_registers)
    # Segments are blocks of past events. To divide them, their links to pages are removed, before and after the cut.
    pasts = partition_histories(replace(past, segments=detach_segments(past.segments)), parts.tolist(), part_of)
    return [
        (part, replace(keyed_part, histories=replace(past_of_part, segments=detach_segments(past_of_part.segments))))
        for part, keyed_part, past_of_part in zip(parts.tolist(), states, pasts, strict=True)
    ]


def _sorted_by_part(keyed_state: KeyedState, order: PartOrder, row_registers: np.ndarray) -> KeyedState:
    """Sort the rows of a state by part (a set of keys). The rows, and references to them, count from 0 in each part.

    `order` has the new order of the rows, and each row's number in its part. A run refers to a node (a bound event),
    and to events by registers with row_registers[rule, register] 1. A node refers to nodes and an event."""
    run_order = order.runs
    runs, run_rule = keyed_state.runs[run_order], keyed_state.run_rule[run_order]
    nodes = keyed_state.nodes[order.nodes]  # a copy, as `runs`: the next call changes both in place
    renumber_pointers(runs, run_rule, nodes, row_registers, order.event_place, order.node_place)
    return KeyedState(  # without histories: `divide` adds them
        layout=keyed_state.layout,
        keys=keyed_state.keys.take(pa.array(order.keys)),
        runs=runs,
        run_rule=run_rule,
        run_key=order.key_place[keyed_state.run_key[run_order]].astype(np.int32),
        nodes=nodes,
        events=keyed_state.events.take(order.events, order.key_place),
    )


def _cut(whole: KeyedState, firsts: Sequence[int], ends: Sequence[int]) -> KeyedState:
    """Copy one part of a state that is sorted by part: rows first <= i < end of its keys, runs, nodes and events."""
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


NO_WEIGHTS = np.empty(0, np.int64)  # each event counts once


def table_weights(
    program: Program, texts: pa.Array, columns: Int64, nulls: UInt8, ids: tuple[pa.Array, ...], order: Int64
) -> Int64:
    """Return how much more than 1 each event counts in the limit of bound events of a key, because of its long texts.

    It counts 1 more for each NODE_TEXT_BYTES of its id and stored texts. The result is empty if no event has so many.
    columns and nulls [C, N] have indices in `texts`. Row n has the id order[n] of the joined `ids`."""
    numbers = program.retained_texts
    longest = max(longest_text(text_offsets(part)) for part in ids)
    if numbers:
        longest += len(numbers) * longest_text(text_offsets(texts))
    if longest < NODE_TEXT_BYTES:  # no row can have texts that count
        return NO_WEIGHTS
    lengths = _lengths(texts)
    sizes = np.concatenate([_lengths(part) for part in ids])[order]
    for number in numbers if len(lengths) else ():  # without a dictionary all texts are null
        sizes += np.where(nulls[number] == 0, lengths[columns[number]], 0)
    return _weights(sizes)


def retained_weights(program: Program, events: RetainedEvents) -> Int64:
    """Return what `table_weights` gives, for a table of retained events alone."""
    sizes = _lengths(events.event_id)
    for number in program.retained_texts:
        sizes = sizes + _lengths(events.columns[program.columns[number].name])
    return _weights(sizes)


def _lengths(texts: pa.Array) -> Int64:
    return np.diff(text_offsets(texts))


def _weights(sizes: Int64) -> Int64:
    weights: Int64 = sizes // NODE_TEXT_BYTES
    return weights if weights.any() else NO_WEIGHTS
