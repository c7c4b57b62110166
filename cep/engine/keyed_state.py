"""KeyedState: the runs of many keys, the events that they have bound, the tree that ties them together, and histories.

Everything is a column: `runs` rows (kernels/layout.py) sorted by rule, then key; `nodes` of the tree; `events` that
some run can still reach. It belongs to a program; `fit.fit` carries it over to another one by rule identity.
Tested by: tests/engine/test_keyed_state.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.batch import TEXT, arrow_type
from cep.engine.history_state import Histories, concat_histories
from cep.kernels import layout as y
from cep.kernels.layout import Int32, Int64
from cep.nfa.deployed import RuleIdentity
from cep.nfa.program import Program
from cep.nfa.shared import prefix_length, shares


@dataclass(frozen=True, slots=True)
class RetainedEvents:
    """Events that runs have bound: key int32[E] into KeyedState.keys, ids, types, times and retained columns."""

    key: Int32
    event_id: pa.Array
    event_type: Int64
    time_ms: Int64
    columns: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.time_ms)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the numbers in a KeyedState mean: for each rule its identity, its first NFA state and how many it has."""

    fingerprint: str
    rules: tuple[tuple[RuleIdentity, int, int], ...]

    @staticmethod
    def of(program: Program) -> Layout:
        return Layout(program.fingerprint, program.places)


@dataclass(frozen=True, slots=True)
class KeyedState:
    """Runs of many keys, and their histories. Shapes: keys text[K], of which each has a run; runs int64[n, W],
    run_rule and run_key int32[n]; nodes int64[m, 3]. Histories have keys of their own."""

    layout: Layout
    keys: pa.Array
    runs: Int64
    run_rule: Int32
    run_key: Int32
    nodes: Int64
    events: RetainedEvents
    histories: Histories = field(default_factory=Histories)

    def __len__(self) -> int:
        return len(self.runs)

    def __bool__(self) -> bool:
        """Whether anything is in it: a run, or something of a history."""
        return len(self.runs) > 0 or bool(self.histories)

    @property
    def notes(self) -> NDArray[np.bool_]:
        """bool[n]: which rows are no runs, but say which shared events their rule has taken over (kernels/plain.py)."""
        rules = self.layout.rules
        first = np.array([-1 if shares(identity) else at for identity, at, _ in rules] + [-1], np.int64)
        found: NDArray[np.bool_] = self.runs[:, y.RUN_STATE] == first[self.run_rule]
        return found

    @property
    def is_run(self) -> NDArray[np.bool_]:
        """bool[n]: which rows are a run, or a start that several rules share: neither notes nor later shared events."""
        lengths = np.array([prefix_length(identity) for identity, _, _ in self.layout.rules] + [0], np.int64)
        follows = (lengths[self.run_rule] > 1) & (self.runs[:, y.RUN_ORDINAL] & 1 == 0)
        found: NDArray[np.bool_] = ~self.notes & ~follows
        return found

    @property
    def expiry_min(self) -> int | None:
        """The earliest event time (ms) at which a run is over; None without runs."""
        return int(self.runs[:, y.RUN_EXPIRY].min()) if len(self.runs) else None


def empty_state(program: Program) -> KeyedState:
    """The state in which nothing has happened."""
    columns = {c.name: pa.array([], arrow_type(c.type)) for c in program.columns if c.retained}
    return KeyedState(
        Layout.of(program),
        pa.array([], TEXT),
        np.empty((0, program.width), np.int64),
        np.empty(0, np.int32),
        np.empty(0, np.int32),
        np.empty((0, y.NODE_WIDTH), np.int64),
        RetainedEvents(
            np.empty(0, np.int32), pa.array([], TEXT), np.empty(0, np.int64), np.empty(0, np.int64), columns
        ),
    )


def concat_states(states: Sequence[KeyedState], row_registers: np.ndarray) -> KeyedState:
    """Join states of disjoint keys that belong to the same program; at least one. Their pages are forgotten."""
    if len(states) == 1:
        return states[0]
    runs, nodes, events = [], [], []
    keys_before = nodes_before = rows_before = 0
    for keyed_state in states:
        runs.append(_shifted_runs(keyed_state, nodes_before, rows_before, row_registers))
        moved = keyed_state.nodes.copy()
        union = moved[:, y.NODE_ROW] < 0
        moved[:, y.NODE_ROW] += np.where(union, 0, rows_before)
        moved[:, y.NODE_STATE] += np.where(union, nodes_before, 0)
        moved[:, y.NODE_PREVIOUS] += np.where(moved[:, y.NODE_PREVIOUS] >= 0, nodes_before, 0)
        nodes.append(moved)
        events.append(replace(keyed_state.events, key=keyed_state.events.key + np.int32(keys_before)))
        keys_before, nodes_before, rows_before = (
            keys_before + len(keyed_state.keys), nodes_before + len(moved), rows_before + len(keyed_state.events),
        )  # fmt: skip
    offsets = np.cumsum([0, *(len(s.keys) for s in states)])
    run_key = np.concatenate([s.run_key + np.int32(at) for s, at in zip(states, offsets[:-1], strict=True)])
    run_rule = np.concatenate([s.run_rule for s in states])
    order = np.lexsort((np.arange(len(run_key)), run_key, run_rule))
    return KeyedState(
        states[0].layout,
        pa.concat_arrays([s.keys for s in states]),
        np.concatenate(runs)[order],
        run_rule[order],
        run_key[order],
        np.concatenate(nodes),
        RetainedEvents(
            np.concatenate([e.key for e in events]),
            pa.concat_arrays([e.event_id for e in events]),
            np.concatenate([e.event_type for e in events]),
            np.concatenate([e.time_ms for e in events]),
            {name: pa.concat_arrays([e.columns[name] for e in events]) for name in events[0].columns},
        ),
        concat_histories([(-1, s.histories) for s in states]),
    )


def _shifted_runs(keyed_state: KeyedState, nodes_before: int, rows_before: int, row_registers: np.ndarray) -> Int64:
    runs = keyed_state.runs.copy()
    runs[:, y.RUN_NODE] += nodes_before
    runs[:, y.RUN_START_ROW] += rows_before
    if row_registers.shape[1]:
        registers = runs[:, y.RUN_HEADER : y.RUN_HEADER + row_registers.shape[1]]
        holds_row = row_registers[keyed_state.run_rule].astype(bool) & (registers >= 0)
        registers += np.where(holds_row, rows_before, 0)
    return runs


def some_row(nodes: Int64) -> Int64:
    """For each node the row of an event that it leads to: its own, or for a union that of one of its ways."""
    rows = nodes[:, y.NODE_ROW].copy()
    open_ = np.flatnonzero(rows < 0)
    target = nodes[open_, y.NODE_STATE]
    while len(open_):
        rows[open_] = nodes[target, y.NODE_ROW]
        again = rows[open_] < 0
        open_, target = open_[again], nodes[target[again], y.NODE_STATE]
    return rows


def select_keys(keyed_state: KeyedState, wanted: np.ndarray, row_registers: np.ndarray) -> KeyedState:
    """The runs of the keys where the mask bool[K] is true. Order is unchanged."""
    in_runs = wanted[keyed_state.run_key]
    in_events = wanted[keyed_state.events.key]
    in_nodes = in_events[some_row(keyed_state.nodes)]
    new_key = np.cumsum(wanted, dtype=np.int64) - 1
    new_row = np.cumsum(in_events, dtype=np.int64) - 1
    new_node = np.cumsum(in_nodes, dtype=np.int64) - 1
    runs = keyed_state.runs[in_runs]
    runs[:, y.RUN_NODE] = new_node[runs[:, y.RUN_NODE]]
    runs[:, y.RUN_START_ROW] = new_row[runs[:, y.RUN_START_ROW]]
    run_rule = keyed_state.run_rule[in_runs]
    if row_registers.shape[1]:
        registers = runs[:, y.RUN_HEADER : y.RUN_HEADER + row_registers.shape[1]]
        holds_row = row_registers[run_rule].astype(bool) & (registers >= 0)
        registers[holds_row] = new_row[registers[holds_row]]
    nodes = keyed_state.nodes[in_nodes]
    single = nodes[:, y.NODE_ROW] >= 0
    nodes[single, y.NODE_ROW] = new_row[nodes[single, y.NODE_ROW]]
    nodes[~single, y.NODE_STATE] = new_node[nodes[~single, y.NODE_STATE]]
    has_previous = nodes[:, y.NODE_PREVIOUS] >= 0
    nodes[has_previous, y.NODE_PREVIOUS] = new_node[nodes[has_previous, y.NODE_PREVIOUS]]
    rows, events = pa.array(np.flatnonzero(in_events)), keyed_state.events
    return KeyedState(
        keyed_state.layout,
        keyed_state.keys.filter(pa.array(wanted)),
        runs,
        run_rule,
        new_key[keyed_state.run_key[in_runs]].astype(np.int32),
        nodes,
        RetainedEvents(
            new_key[events.key[in_events]].astype(np.int32),
            events.event_id.take(rows),
            events.event_type[in_events],
            events.time_ms[in_events],
            {name: column.take(rows) for name, column in events.columns.items()},
        ),
    )
