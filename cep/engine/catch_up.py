"""A rule that leaves a shared prefix → the runs that it would have had alone.

Rules with a common prefix store its events once (nfa/shared.py), and each rule defers their effects on its own runs. A
rule that no longer shares the prefix catches up here: the matcher processes the deferred events in order.

Tested by: tests/engine/test_starts.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cep.columnar.batch import read_only, slots
from cep.engine.keyed_state import KeyedState
from cep.engine.outputs import Outputs
from cep.engine.starts import NO_STARTS
from cep.engine.weights import retained_weights
from cep.kernels import layout as y
from cep.kernels.layout import Int32, Int64, UInt8, UInt64
from cep.kernels.match.rules import advance_plain_rules
from cep.kernels.records import AllRuns, Events
from cep.kernels.records import Program as Tables
from cep.nfa.program import Program


@dataclass(frozen=True, slots=True)
class PutOff:
    """The events of a shared prefix with `length` conditions.

    Shapes: runs int64[S, W] by key and row, keys int32[S].
    """

    length: int
    runs: Int64
    keys: Int32


def catch_up(keyed_state: KeyedState, program: Program, rule: int, put_off: PutOff) -> KeyedState:
    """Advance a rule's runs over the deferred events: the shared events after the last one that it has processed.

    The state belongs to the program, with its retained events sorted by key; its runs are returned unsorted.
    """
    of_rule = keyed_state.run_rule == rule
    last_taken = np.full(len(keyed_state.keys), -1, np.int64)
    last_rows = keyed_state.nodes[keyed_state.runs[of_rule, y.RUN_NODE], y.NODE_ROW]
    np.maximum.at(last_taken, keyed_state.run_key[of_rule], last_rows)
    events = put_off.runs[put_off.runs[:, y.RUN_START_ROW] > last_taken[put_off.keys]]
    event_rows = events[:, y.RUN_START_ROW]
    open_runs = np.flatnonzero(of_rule & ~keyed_state.notes)
    open_runs = open_runs[np.argsort(keyed_state.run_key[open_runs], kind="stable")]
    columns, nulls = _retained_columns(keyed_state, program)
    bitmaps = _bitmaps(keyed_state, program, rule, put_off.length, events)
    outputs = Outputs(program, keyed_state.runs, keyed_state.nodes, len(event_rows))
    runs, run_key = read_only(keyed_state.runs[open_runs]), read_only(keyed_state.run_key[open_runs])
    open_runs_alone = AllRuns(runs, run_key, np.array([0, len(runs)]))
    alone = _alone(program, rule, put_off.length)
    table = Events(columns, nulls, bitmaps, 0, retained_weights(program, keyed_state.events))
    none_shared = NO_STARTS._replace(bounds=np.zeros(len(program.shared) + 1, np.int64))
    while True:
        full = advance_plain_rules(
            alone, table, open_runs_alone, none_shared, -y.FOREVER, outputs.work, outputs.scratch, outputs.runs
        )
        if full == y.FULL_NOT:
            break
        outputs.enlarge(full)
    output = outputs.runs
    count = int(output.cursor[y.CURSOR_OUT])
    return replace(
        keyed_state,
        runs=np.concatenate([keyed_state.runs[~of_rule], output.runs[:count]]),
        run_rule=np.concatenate([keyed_state.run_rule[~of_rule], np.full(count, rule, np.int32)]),
        run_key=np.concatenate([keyed_state.run_key[~of_rule], output.keys[:count]]),
        nodes=outputs.work.nodes[: int(output.cursor[y.CURSOR_NODES])].copy(),
    )


def _alone(program: Program, rule: int, length: int) -> Tables:
    """Return a program of the rule alone, which reacts to the conditions of its prefix."""
    return program.tables._replace(
        rules=program.rules[rule].row[np.newaxis],
        relevance_first=np.array([0, length], np.int32),
        relevance=program.prefix_of(rule)[:length],
        start_runs=program.start_runs[rule][np.newaxis],
    )


def _bitmaps(keyed_state: KeyedState, program: Program, rule: int, length: int, events: Int64) -> UInt64:
    """Return the bits of the conditions of the rule's prefix for the events: uint64[predicates, words]."""
    bitmaps = np.zeros((max(program.predicates.count, 1), len(keyed_state.events) // 64 + 1), np.uint64)
    event_rows = events[:, y.RUN_START_ROW]
    for bit, predicate in enumerate(program.prefix_of(rule)[:length].tolist()):
        rows = event_rows if length == 1 else event_rows[events[:, y.RUN_ORDINAL] >> bit & 1 != 0]
        np.bitwise_or.at(bitmaps[predicate], rows >> 6, np.uint64(1) << (rows & 63).astype(np.uint64))
    return bitmaps


def _retained_columns(keyed_state: KeyedState, program: Program) -> tuple[Int64, UInt8]:
    """Make the event table of the retained events, with the retained columns."""
    events = keyed_state.events
    columns = np.zeros((len(program.columns), len(events)), np.int64)
    nulls = np.zeros(columns.shape, np.uint8)
    columns[y.COLUMN_TIME], columns[y.COLUMN_KEY] = events.time_ms, events.key
    for number, column in enumerate(program.columns):
        if column.retained and not column.type.is_text:
            columns[number], nulls[number] = slots(events.columns[column.name])
    return columns, nulls
