"""KeyedState of one program → the same runs in the numbers of another.

Rules are known by their identity. What rules share of how they begin (nfa/shared.py) goes on as that of the rules that
still share as much; a rule that does not makes up at once for what it has put off.
Tested by: tests/engine/test_keyed_state.py, tests/engine/test_starts.py
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cep.columnar.batch import arrow_type, read_only, slots
from cep.engine.keyed_state import KeyedState, Layout
from cep.engine.outputs import Outputs
from cep.engine.starts import NO_STARTS
from cep.kernels import layout as y
from cep.kernels.layout import Int32, Int64, UInt8
from cep.kernels.plain import advance_plain
from cep.nfa.program import Program
from cep.nfa.shared import prefix_length, shares


@dataclass(frozen=True, slots=True)
class _Moves:
    """What the numbers of rules and of NFA states become: -1 and 0 for those that are gone. `parted` are (number before
    of a shared prefix, number of a rule that shares it no more), `joined` (number of a shared prefix that goes on,
    number of a rule that has not shared it before, but had runs of its own)."""

    slots: Int32
    nfa_states: Int64
    parted: tuple[tuple[int, int], ...]
    joined: tuple[tuple[int, int], ...]


_MOVES_KEPT = 16
_MOVES: OrderedDict[tuple[str, str], tuple[Layout, _Moves]] = OrderedDict()


def _moves(before: Layout, after: Layout) -> _Moves:
    """After a change of the rules every page of the process moves in the same way, so it is worked out once."""
    at = before.fingerprint, after.fingerprint
    kept = _MOVES.get(at)
    if kept is not None and (kept[0].rules is before.rules or kept[0].rules == before.rules):
        return kept[1]
    places = {identity: (slot, first) for slot, (identity, first, _) in enumerate(after.rules)}
    start_of = {
        (rule, prefix_length(identity)): slot
        for slot, (identity, _, _) in enumerate(after.rules)
        for rule in shares(identity)
    }
    found: list[tuple[int, int]] = []
    parted: list[tuple[int, int]] = []
    shared: set[tuple[int, int]] = set()
    for slot, (identity, _, _) in enumerate(before.rules):
        sharing = shares(identity)
        if not sharing:
            found.append(places.get(identity, (-1, 0)))
            continue
        length = prefix_length(identity)
        numbers = [found[rule][0] for rule in sharing if found[rule][0] >= 0]
        staying = {rule: start_of.get((rule, length), -1) for rule in numbers}
        goes_on = max(staying.values(), default=-1)  # a rule has one prefix of a length, so there is no other
        found.append((goes_on, after.rules[goes_on][1]) if goes_on >= 0 else (-1, 0))
        parted += [(slot, rule) for rule, start in staying.items() if start < 0]
        shared |= {(goes_on, rule) for rule, start in staying.items() if start >= 0}
    old, going_on = {slot for slot, _ in found}, {start for start, _ in shared}
    joined = [(start, rule) for (rule, _), start in start_of.items() if start in going_on and rule in old]
    counts = np.array([count for _, _, count in before.rules], np.int64)
    firsts = np.array([first for _, first in found], np.int64)
    slots = np.array([*(slot for slot, _ in found), -1], np.int32)
    moved = np.arange(int(counts.sum())) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    moves = _Moves(
        slots,
        np.where(np.repeat(slots[:-1] >= 0, counts), moved, 0),
        tuple(parted),
        tuple(one for one in joined if one not in shared),
    )
    _MOVES[at] = before, moves
    while len(_MOVES) > _MOVES_KEPT:
        _MOVES.popitem(last=False)
    return moves


def fit(keyed_state: KeyedState, program: Program) -> tuple[KeyedState, int]:
    """The same runs in the numbers of another program; returns (state, runs dropped because their rule is gone).

    Columns that the program newly retains are null in events bound before: no run of an older rule reads them.
    """
    if keyed_state.layout.fingerprint == program.fingerprint:
        return keyed_state, 0
    moves = _moves(keyed_state.layout, Layout.of(program))
    run_rule = moves.slots[keyed_state.run_rule]
    kept = run_rule >= 0
    runs = np.zeros((int(kept.sum()), program.width), np.int64)
    shared = min(program.width, keyed_state.runs.shape[1])
    runs[:, :shared] = keyed_state.runs[kept, :shared]
    runs[:, y.RUN_STATE] = moves.nfa_states[runs[:, y.RUN_STATE]]
    nodes = keyed_state.nodes.copy()
    single = nodes[:, y.NODE_ROW] >= 0
    nodes[single, y.NODE_STATE] = moves.nfa_states[nodes[single, y.NODE_STATE]]
    columns = {
        c.name: keyed_state.events.columns.get(c.name, pa.nulls(len(keyed_state.events), arrow_type(c.type)))
        for c in program.columns
        if c.retained
    }
    fitted = replace(
        keyed_state,
        layout=Layout.of(program),
        runs=runs,
        run_rule=run_rule[kept],
        run_key=keyed_state.run_key[kept],
        nodes=nodes,
        events=replace(keyed_state.events, columns=columns),
    )
    for start, rule in moves.parted:
        is_start = keyed_state.run_rule == start
        length = prefix_length(keyed_state.layout.rules[start][0])
        fitted = _on_its_own(fitted, program, rule, length, keyed_state.runs[is_start], keyed_state.run_key[is_start])
    for start, rule in moves.joined:
        fitted = _noted(fitted, program, start, rule)
    order = np.lexsort((np.arange(len(fitted)), ~fitted.notes, fitted.run_key, fitted.run_rule))
    fitted = replace(fitted, runs=fitted.runs[order], run_rule=fitted.run_rule[order], run_key=fitted.run_key[order])
    return fitted, _orphans(keyed_state, moves)


def _orphans(keyed_state: KeyedState, moves: _Moves) -> int:
    """How many runs belong to no rule any more."""
    is_lost = (moves.slots[keyed_state.run_rule] < 0) & keyed_state.is_run
    return int((is_lost & ~np.isin(keyed_state.run_rule, [start for start, _ in moves.parted])).sum())


def _on_its_own(
    keyed_state: KeyedState, program: Program, rule: int, length: int, shared: Int64, keys: Int32
) -> KeyedState:
    """The same runs, and what the shared events of its prefix of this length, rows by key and row, do to a rule's own
    if it has put them off: those after what any of its runs or notes has seen."""
    own = program.rules[rule]
    is_own = keyed_state.run_rule == rule
    taken = np.full(len(keyed_state.keys), -1, np.int64)
    last_rows = keyed_state.nodes[keyed_state.runs[is_own, y.RUN_NODE], y.NODE_ROW]
    np.maximum.at(taken, keyed_state.run_key[is_own], last_rows)
    shared = shared[shared[:, y.RUN_START_ROW] > taken[keys]]
    put_off = shared[:, y.RUN_START_ROW]
    mine = np.flatnonzero(is_own & ~keyed_state.notes)
    mine = mine[np.argsort(keyed_state.run_key[mine], kind="stable")]
    columns, nulls = _retained_columns(keyed_state, program)
    bitmaps = np.zeros((max(program.predicates.count, 1), len(keyed_state.events) // 64 + 1), np.uint64)
    for bit, predicate in enumerate(program.prefix_of(rule)[:length].tolist()):
        rows = put_off if length == 1 else put_off[shared[:, y.RUN_ORDINAL] >> bit & 1 != 0]
        np.bitwise_or.at(bitmaps[predicate], rows >> 6, np.uint64(1) << (rows & 63).astype(np.uint64))
    outputs = Outputs(program, keyed_state.runs, keyed_state.nodes, len(put_off))
    held, machine = np.zeros(y.COUNTERS, np.int64), np.zeros(2 * program.machine_size, np.int64)
    runs, run_key = read_only(keyed_state.runs[mine]), read_only(keyed_state.run_key[mine])
    while True:
        full = advance_plain(
            program.image, own.row, columns, nulls, bitmaps, 0, put_off.astype(np.int32), program.start_runs[rule],
            runs, run_key, -y.FOREVER, outputs.work, outputs.nodes, outputs.matches, outputs.runs, outputs.run_key,
            outputs.picked, NO_STARTS.keys, NO_STARTS.rows, NO_STARTS.counts, NO_STARTS.bits, NO_STARTS.columns,
            machine, outputs.cursor, outputs.counters, held,
        )  # fmt: skip
        if full == y.FULL_NOT:
            break
        outputs.enlarge(full)
    count = int(outputs.cursor[y.CURSOR_OUT])
    return replace(
        keyed_state,
        runs=np.concatenate([keyed_state.runs[~is_own], outputs.runs[:count]]),
        run_rule=np.concatenate([keyed_state.run_rule[~is_own], np.full(count, rule, np.int32)]),
        run_key=np.concatenate([keyed_state.run_key[~is_own], outputs.run_key[:count]]),
        nodes=outputs.nodes[: int(outputs.cursor[y.CURSOR_NODES])].copy(),
    )


def _retained_columns(keyed_state: KeyedState, program: Program) -> tuple[Int64, UInt8]:
    """The event table of kept events alone, with what is asked of those that are shared."""
    events = keyed_state.events
    columns = np.zeros((len(program.columns), len(events)), np.int64)
    nulls = np.zeros(columns.shape, np.uint8)
    columns[y.COLUMN_TIME], columns[y.COLUMN_KEY] = events.time_ms, events.key
    for number, column in enumerate(program.columns):
        if column.retained and not column.type.is_text:
            columns[number], nulls[number] = slots(events.columns[column.name])
    return columns, nulls


def _noted(keyed_state: KeyedState, program: Program, start: int, rule: int) -> KeyedState:
    """The same runs, and the note that a rule has taken over all shared events that there are: it had its own runs."""
    is_start = np.flatnonzero(keyed_state.run_rule == start)
    last = is_start[np.flatnonzero(np.diff(keyed_state.run_key[is_start], append=-1))]  # they are by key and row
    rows, own = keyed_state.runs[last, y.RUN_START_ROW], program.rules[rule]
    notes = np.repeat(program.start_runs[rule : rule + 1], len(last), axis=0)
    notes[:, y.RUN_START_ROW], notes[:, y.RUN_NODE] = rows, len(keyed_state.nodes) + np.arange(len(last))
    notes[:, y.RUN_EXPIRY] = np.minimum(keyed_state.events.time_ms[rows] + own.row[y.R_WITHIN_MS], y.FOREVER)
    nodes = np.column_stack([rows, np.full(len(last), own.first_state), np.full(len(last), -1)])
    return replace(
        keyed_state,
        runs=np.concatenate([keyed_state.runs, notes]),
        run_rule=np.concatenate([keyed_state.run_rule, np.full(len(last), rule, np.int32)]),
        run_key=np.concatenate([keyed_state.run_key, keyed_state.run_key[last]]),
        nodes=np.concatenate([keyed_state.nodes, nodes]),
    )


def hand_over(keyed_state: KeyedState, program: Program, giver: int, taker: int) -> KeyedState:
    """The same runs, those of one rule as runs of another that has the same automaton. The state fits the program."""
    given = keyed_state.run_rule == giver
    if not given.any():
        return keyed_state
    old, new = program.rules[giver], program.rules[taker]
    assert old.states_count == new.states_count, "rules that carry have the same automaton"
    moved = new.first_state - old.first_state
    runs, nodes = keyed_state.runs.copy(), keyed_state.nodes.copy()
    runs[given, y.RUN_STATE] += moved
    is_given = nodes[:, y.NODE_ROW] >= 0
    is_given &= (nodes[:, y.NODE_STATE] >= old.first_state) & (
        nodes[:, y.NODE_STATE] < old.first_state + old.states_count
    )
    nodes[is_given, y.NODE_STATE] += moved
    run_rule = np.where(given, np.int32(taker), keyed_state.run_rule)
    order = np.lexsort((np.arange(len(runs)), keyed_state.run_key, run_rule))
    return replace(
        keyed_state, runs=runs[order], run_rule=run_rule[order], run_key=keyed_state.run_key[order], nodes=nodes
    )
