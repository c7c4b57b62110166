"""KeyedState of one program → the same runs in the numbers of another program.

Rules are matched by their identity. A migration has four steps:

1. Renumber rules, NFA states and columns. This changes data only.
2. Catch up the rules that no longer share a prefix. Only this step runs the matcher.
3. Note the progress of a rule with runs of its own in a prefix that it shares now.
4. Sort the runs by rule and key again.

Rules with a common prefix store its events once (nfa/prefixes.py), and each rule defers their effects on its own runs.
In step 2, a rule gets the runs that it would have had alone: the matcher processes the deferred events in order. This
cannot wait for `advance`: pages are stored in between, and the migrated state has no place for the events.

Averages and standard deviations of runs stored by 0.2.0 get the registers of this build. Sums of decimals are exact in
both. A standard deviation continues from the rounded sums of 0.2.0, and is only as exact until the run ends.

Tested by: tests/engine/test_keyed_state.py, tests/engine/test_starts.py, tests/upgrade/test_upgrade.py.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cep.columnar.batch import arrow_type, read_only, slots
from cep.engine.keyed_state import KeyedState, Layout, retained_weights
from cep.engine.outputs import Outputs
from cep.engine.starts import NO_STARTS
from cep.kernels import layout as y
from cep.kernels.layout import Int32, Int64, UInt8, UInt64
from cep.kernels.match.rules import advance_plain_rules
from cep.kernels.pages.packed import renumber_pointers
from cep.kernels.records import AllRuns, Events
from cep.kernels.records import Program as Tables
from cep.nfa.earlier_registers import Registers, as_float, changed_registers
from cep.nfa.prefixes import prefix_length, shares
from cep.nfa.program import Program
from cep.nfa.rule_tables import ROW_KINDS, RegisterKey


@dataclass(frozen=True, slots=True)
class DeferredRows:
    """The S stored events of a prefix (first conditions of rules), by key and row: rows int64[S, W] like runs."""

    conditions_count: int
    rows: Int64
    keys: Int32


def process_deferred(keyed_state: KeyedState, program: Program, rule: int, deferred: DeferredRows) -> KeyedState:
    """Advance a rule's runs over the stored events of a prefix (first conditions) that it no longer shares with others.

    While rules shared the prefix, these events were stored once for all of them, to be processed later (deferred). A
    note is a row among the runs of a rule: it names the last of the events that the rule has processed. The retained
    events of the state must be sorted by key. The returned runs are not sorted."""
    of_rule = keyed_state.run_rule == rule
    last_processed = np.full(len(keyed_state.keys), -1, np.int64)  # by key: the last event of the rule's runs and notes
    last_rows = keyed_state.nodes[keyed_state.runs[of_rule, y.RUN_NODE], y.NODE_ROW]
    np.maximum.at(last_processed, keyed_state.run_key[of_rule], last_rows)
    unprocessed = deferred.rows[deferred.rows[:, y.RUN_START_ROW] > last_processed[deferred.keys]]
    event_rows = unprocessed[:, y.RUN_START_ROW]
    open_runs = np.flatnonzero(of_rule & ~keyed_state.is_note)
    open_runs = open_runs[np.argsort(keyed_state.run_key[open_runs], kind="stable")]
    columns, nulls = _retained_columns(keyed_state, program)
    bitmaps = _bitmaps(keyed_state, program, rule, deferred.conditions_count, unprocessed)
    outputs = Outputs(program, keyed_state.runs, keyed_state.nodes, len(event_rows))
    runs, run_key = read_only(keyed_state.runs[open_runs]), read_only(keyed_state.run_key[open_runs])
    open_runs_of_rule = AllRuns(runs, run_key, np.array([0, len(runs)]))
    program_of_rule = _program_of_rule(program, rule, deferred.conditions_count)
    table = Events(columns, nulls, bitmaps, 0, retained_weights(program, keyed_state.events))
    nothing_shared = NO_STARTS._replace(bounds=np.zeros(len(program.shared) + 1, np.int64))  # no events of any prefix
    while True:
        full = advance_plain_rules(
            program_of_rule, table, open_runs_of_rule, nothing_shared, -y.FOREVER,  # at a time when no run expires
            outputs.work, outputs.scratch, outputs.runs,
        )  # fmt: skip
        if full == y.NOT_FULL:
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


def _program_of_rule(program: Program, rule: int, length: int) -> Tables:
    """Return a program of one rule alone, which reacts to the first `length` conditions of its prefix."""
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


_HALF_BITS = 32
_ROUNDING_SHARE = 2.0**-48  # possible error of rounded sums: below it, all values are equal
_PROGRAMS_CACHED = 16
_CHANGES: OrderedDict[tuple[str, str], dict[int, Registers]] = OrderedDict()


def with_current_registers(keyed_state: KeyedState, program: Program) -> KeyedState:
    """Translate the registers (counts, sums, … of bound events) of runs that version 0.2.0 stored to this build's."""
    changes = _changed_registers(keyed_state.layout, program)
    counts = [len(registers.current) for registers in changes.values()]
    stored = keyed_state.runs
    runs = np.zeros((len(stored), max(stored.shape[1], y.RUN_HEADER + max(counts, default=0))), np.int64)
    runs[:, : stored.shape[1]] = stored
    for rule, registers in changes.items():
        of_rule = np.flatnonzero(keyed_state.run_rule == rule)
        earlier = {key: stored[of_rule, y.RUN_HEADER + index] for index, key in enumerate(registers.earlier)}
        runs[of_rule, y.RUN_HEADER :] = 0
        for index, key in enumerate(registers.current):
            runs[of_rule, y.RUN_HEADER + index] = _current_register(key, earlier)
    return replace(keyed_state, runs=runs, layout=replace(keyed_state.layout, is_earlier=False))


def earlier_row_registers(row_registers: np.ndarray, layout: Layout, program: Program) -> np.ndarray:
    """Mark the registers of 0.2.0 that hold rows: uint8[rules, registers], the rules as in the layout."""
    marked = row_registers.copy()
    for slot, registers in _changed_registers(layout, program).items():
        kinds = [kind in ROW_KINDS for kind, _, _ in registers.earlier]
        marked[slot] = 0
        marked[slot, : len(kinds)] = kinds
    return marked


def _changed_registers(layout: Layout, program: Program) -> dict[int, Registers]:
    """Find the rules whose registers (counts and sums of a run) are in other places now than in a state of 0.2.0.

    Return the registers of both builds by the rule's number in the stored layout; cached for other stored states."""
    programs = layout.fingerprint, program.fingerprint
    if programs in _CHANGES:
        return _CHANGES[programs]
    current_numbers = program.rules.numbers_by_identity
    changes = {}
    for number, (identity, _, _) in enumerate(layout.rules):
        rule = program.rules[current_numbers[identity]] if identity in current_numbers else None
        registers = None if rule is None else changed_registers(rule.deployed.pattern, program.schema)
        if registers is not None:
            changes[number] = registers
    _CHANGES[programs] = changes
    while len(_CHANGES) > _PROGRAMS_CACHED:
        _CHANGES.popitem(last=False)
    return changes


def _current_register(key: RegisterKey, earlier: dict[RegisterKey, Int64]) -> Int64:
    """Compute a register (a number that each run has, int64) of this build from the registers of version 0.2.0.

    This build keeps the halves of an integer sum (high, low), and the rounding error of a float sum (rest). For
    deviations it keeps a value (base, here the mean) and the sums of the distances from that value (offset, offset
    squared)."""
    kind, variable, argument = key
    if key in earlier:
        return earlier[key]
    assert argument is not None, "only averages and spreads have changed"
    if kind in ("high", "low"):
        whole = earlier["sum", variable, argument]
        return whole >> _HALF_BITS if kind == "high" else whole & ((1 << _HALF_BITS) - 1)  # its low bits
    if kind == "rest":
        return np.zeros_like(earlier["sum", variable, argument])  # 0.2.0 did not keep the error
    counts = earlier["present", variable, argument].astype(np.longdouble)  # of the values that are not null
    total, sum_of_squares = (
        np.ascontiguousarray(earlier[part, variable, as_float(argument)]).view(np.float64).astype(np.longdouble)
        for part in ("sum", "squares")  # 0.2.0 kept both as floats
    )
    unit = 10**argument.type.scale  # this build counts decimals in their smallest unit
    with np.errstate(all="ignore"):  # floats may be infinite
        mean = total * unit / np.maximum(counts, 1)
        if argument.type.is_float:
            center, stored_center = mean, _float_bits(mean)
        else:
            center = np.rint(mean)
            stored_center = center.astype(np.int64)
        if kind == "base":
            return stored_center
        center = center.astype(np.float64).astype(np.longdouble)  # the base has the digits of a float64
        offsets = total * unit - counts * center
        if kind == "offset":
            return _float_bits(offsets)
        least = offsets * offsets / np.maximum(counts, 1)  # if all values are equal: their deviation is 0
        squares: np.ndarray = sum_of_squares * unit * unit
        offsets_squared = squares - center * (2 * total * unit - counts * center)
        # A difference of large sums that is this small is only their rounding error.
        return _float_bits(np.where(offsets_squared - least > squares * _ROUNDING_SHARE, offsets_squared, least))


def _float_bits(numbers: np.ndarray) -> Int64:
    return numbers.astype(np.float64).view(np.int64)


@dataclass(frozen=True, slots=True)
class _Moves:
    """The new numbers of rules (-1 for removed ones) and of NFA states (0 for removed ones), by their previous numbers.

    `leaving` are (previous number of a shared prefix, number of a rule that no longer shares it). `joining` are (number
    of a continued shared prefix, number of a rule with runs of its own that shares it now)."""

    rule_numbers: Int32
    nfa_states: Int64
    leaving: tuple[tuple[int, int], ...]
    joining: tuple[tuple[int, int], ...]


_MOVES_CACHED = 16
_MOVES: OrderedDict[tuple[str, str], tuple[Layout, _Moves]] = OrderedDict()


def _moves(before: Layout, program: Program) -> _Moves:
    fingerprints = before.fingerprint, program.fingerprint
    cached = _MOVES.get(fingerprints)
    if cached is not None and (cached[0].rules is before.rules or cached[0].rules == before.rules):
        return cached[1]
    slot_of = program.rules.numbers_by_identity
    start_of = {
        (rule, prefix_length(identity)): slot
        for slot, (identity, _, _) in enumerate(program.places)
        for rule in shares(identity)
    }
    moved_to: list[tuple[int, int]] = []
    leaving: list[tuple[int, int]] = []
    shared: set[tuple[int, int]] = set()
    for number, (identity, _, _) in enumerate(before.rules):
        sharing = shares(identity)
        if not sharing:
            slot = slot_of.get(identity, -1)
            moved_to.append((slot, program.places[slot][1] if slot >= 0 else 0))
            continue
        length = prefix_length(identity)
        numbers = [moved_to[rule][0] for rule in sharing if moved_to[rule][0] >= 0]
        staying = {rule: start_of.get((rule, length), -1) for rule in numbers}
        goes_on = max(staying.values(), default=-1)  # a rule has one prefix of each length, so there is no other
        moved_to.append((goes_on, program.places[goes_on][1]) if goes_on >= 0 else (-1, 0))
        leaving += [(number, rule) for rule, start in staying.items() if start < 0]
        shared |= {(goes_on, rule) for rule, start in staying.items() if start >= 0}
    old, going_on = {slot for slot, _ in moved_to}, {start for start, _ in shared}
    joining = [(start, rule) for (rule, _), start in start_of.items() if start in going_on and rule in old]
    counts = np.array([count for _, _, count in before.rules], np.int64)
    firsts = np.array([first for _, first in moved_to], np.int64)
    slots = np.array([*(slot for slot, _ in moved_to), -1], np.int32)
    moved = np.arange(int(counts.sum())) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    moves = _Moves(
        slots,
        np.where(np.repeat(slots[:-1] >= 0, counts), moved, 0),
        tuple(leaving),
        tuple(one for one in joining if one not in shared),
    )
    _MOVES[fingerprints] = before, moves
    while len(_MOVES) > _MOVES_CACHED:
        _MOVES.popitem(last=False)
    return moves


def migrate_state(keyed_state: KeyedState, program: Program) -> tuple[KeyedState, int]:
    """Convert a keyed state to another program. Return it, and the number of runs whose rule no longer exists.

    Rules that share their first conditions (a prefix) store its events once, and process them later. A rule that no
    longer shares them processes the stored events now. A rule that newly shares them has done that: a note (a row among
    its runs) says so. Newly retained columns are null in earlier events: no run of an older rule reads them."""
    if keyed_state.layout.is_earlier:
        keyed_state = with_current_registers(keyed_state, program)
    elif keyed_state.layout.fingerprint == program.fingerprint:
        return keyed_state, 0
    moves = _moves(keyed_state.layout, program)
    migrated = _renumbered(keyed_state, program, moves)
    if moves.leaving:
        migrated, new_row = _ordered_by_key(migrated, program)
        for prefix, rule in moves.leaving:
            migrated = process_deferred(migrated, program, rule, _deferred_rows(keyed_state, prefix, new_row))
    for prefix, rule in moves.joining:
        migrated = _add_notes(migrated, program, prefix, rule)
    order = np.lexsort((np.arange(len(migrated)), ~migrated.is_note, migrated.run_key, migrated.run_rule))
    runs, run_rule, run_key = migrated.runs[order], migrated.run_rule[order], migrated.run_key[order]
    is_lost = (moves.rule_numbers[keyed_state.run_rule] < 0) & keyed_state.is_run
    is_lost &= ~np.isin(keyed_state.run_rule, [prefix for prefix, _ in moves.leaving])  # its rules have them
    return replace(migrated, runs=runs, run_rule=run_rule, run_key=run_key), int(is_lost.sum())


def fit_state(keyed_state: KeyedState, program: Program) -> tuple[KeyedState, Counter[str]]:
    """Do as `migrate_state`. Return also what that adds to the counters of runs, by name."""
    migrated, orphans = migrate_state(keyed_state, program)
    if migrated is keyed_state:
        return migrated, Counter()
    before = count_runs(keyed_state)
    changes = Counter({name: count - before[name] for name, count in count_runs(migrated).items()})
    changes["runs_orphaned"] += orphans
    return migrated, changes


def count_runs(keyed_state: KeyedState) -> Counter[str]:
    """Count the runs in all and by rule, under the names of a job's totals."""
    rules = keyed_state.layout.rules
    by_rule = np.bincount(keyed_state.run_rule, minlength=len(rules)).tolist()
    counts = Counter(runs=len(keyed_state))
    for ((rule_id, version, _), *_), count in zip(rules, by_rule, strict=True):
        if rule_id:  # without one they are events that rules share
            counts[f"rule_runs[{rule_id}@{version}]"] += count
    return counts


def _renumbered(keyed_state: KeyedState, program: Program, moves: _Moves) -> KeyedState:
    """Renumber the rules and NFA states of runs for another program; drop the runs of rules that it does not have."""
    run_rule = moves.rule_numbers[keyed_state.run_rule]
    stays = run_rule >= 0  # -1: the program does not have the rule
    runs = np.zeros((int(stays.sum()), program.width), np.int64)
    common_width = min(program.width, keyed_state.runs.shape[1])  # the rest are registers that no common rule has
    runs[:, :common_width] = keyed_state.runs[stays, :common_width]
    runs[:, y.RUN_STATE] = moves.nfa_states[runs[:, y.RUN_STATE]]
    nodes = keyed_state.nodes.copy()
    has_event = nodes[:, y.NODE_ROW] >= 0  # the others join two nodes, without an NFA state
    nodes[has_event, y.NODE_STATE] = moves.nfa_states[nodes[has_event, y.NODE_STATE]]
    columns = {
        c.name: keyed_state.events.columns.get(c.name, pa.nulls(len(keyed_state.events), arrow_type(c.type)))
        for c in program.columns
        if c.retained
    }
    return replace(
        keyed_state,
        layout=Layout.of(program),
        runs=runs,
        run_rule=run_rule[stays],
        run_key=keyed_state.run_key[stays],
        nodes=nodes,
        events=replace(keyed_state.events, columns=columns),
    )


def _ordered_by_key(keyed_state: KeyedState, program: Program) -> tuple[KeyedState, Int64]:
    """Sort the retained events by key, as the matcher takes them. Return also the new row of each former one."""
    order = np.argsort(keyed_state.events.key, kind="stable")
    new_row = np.empty(len(order), np.int64)
    new_row[order] = np.arange(len(order))
    runs, nodes = keyed_state.runs.copy(), keyed_state.nodes.copy()
    renumber_pointers(runs, keyed_state.run_rule, nodes, program.row_registers, new_row, np.arange(len(nodes)))
    ordered = keyed_state.events.take(order, np.arange(len(keyed_state.keys)))
    return replace(keyed_state, runs=runs, nodes=nodes, events=ordered), new_row


def _deferred_rows(keyed_state: KeyedState, prefix: int, new_row: Int64) -> DeferredRows:
    """Return the events of a shared prefix, given its previous number, with their new rows."""
    of_prefix = keyed_state.run_rule == prefix
    length = prefix_length(keyed_state.layout.rules[prefix][0])
    rows = keyed_state.runs[of_prefix]
    rows[:, y.RUN_START_ROW] = new_row[rows[:, y.RUN_START_ROW]]
    return DeferredRows(length, rows, keyed_state.run_key[of_prefix])


def _add_notes(keyed_state: KeyedState, program: Program, prefix: int, rule: int) -> KeyedState:
    """Note for each key that a rule has processed all stored events of a prefix, which it now shares with other rules.

    The events of a prefix (first conditions of rules) are stored as rows of the runs, with the rule number `prefix`.
    Without a note the rule would process them again. A note looks like a run in the rule's first state that begins with
    the last of the events. The matcher continues after that event."""
    of_prefix = np.flatnonzero(keyed_state.run_rule == prefix)
    last = of_prefix[np.flatnonzero(np.diff(keyed_state.run_key[of_prefix], append=-1))]  # of each key; they are sorted
    rows, sharing = keyed_state.runs[last, y.RUN_START_ROW], program.rules[rule]
    notes = np.repeat(program.start_runs[rule : rule + 1], len(last), axis=0)
    notes[:, y.RUN_START_ROW], notes[:, y.RUN_NODE] = rows, len(keyed_state.nodes) + np.arange(len(last))
    notes[:, y.RUN_EXPIRY] = np.minimum(keyed_state.events.time_ms[rows] + sharing.row[y.R_WITHIN_MS], y.FOREVER)
    nodes = np.column_stack([rows, np.full(len(last), sharing.first_state), np.full(len(last), -1)])  # no parent
    return replace(
        keyed_state,
        runs=np.concatenate([keyed_state.runs, notes]),
        run_rule=np.concatenate([keyed_state.run_rule, np.full(len(last), rule, np.int32)]),
        run_key=np.concatenate([keyed_state.run_key, keyed_state.run_key[last]]),
        nodes=np.concatenate([keyed_state.nodes, nodes]),
    )


def hand_over(keyed_state: KeyedState, program: Program, giver: int, taker: int) -> KeyedState:
    """Give the runs of the rule `giver` to the rule `taker`, which has the same NFA states with other numbers."""
    is_moved = keyed_state.run_rule == giver
    if not is_moved.any():
        return keyed_state
    old, new = program.rules[giver], program.rules[taker]
    assert old.states_count == new.states_count, "rules that carry have the same automaton"
    moved = new.first_state - old.first_state
    runs, nodes = keyed_state.runs.copy(), keyed_state.nodes.copy()
    runs[is_moved, y.RUN_STATE] += moved
    is_of_giver = nodes[:, y.NODE_ROW] >= 0  # without a row, a node only joins two nodes and has no NFA state
    is_of_giver &= (nodes[:, y.NODE_STATE] >= old.first_state) & (
        nodes[:, y.NODE_STATE] < old.first_state + old.states_count
    )
    nodes[is_of_giver, y.NODE_STATE] += moved
    run_rule = np.where(is_moved, np.int32(taker), keyed_state.run_rule)
    order = np.lexsort((np.arange(len(runs)), keyed_state.run_key, run_rule))  # by rule, then by key
    return replace(
        keyed_state, runs=runs[order], run_rule=run_rule[order], run_key=keyed_state.run_key[order], nodes=nodes
    )
