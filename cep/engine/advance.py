"""advance(program, keyed_state, batch, watermark_ms) → new keyed state, matches, counters. Pure.

1. Sort the batch, compute histories (histories/values.py), evaluate conditions of single events (table.py).
2. For each rule, advance its runs over the events that it may react to (kernels/match/rules.py).
3. Read the matches from the tree of bound events.
4. Keep the nodes, events and keys that live runs can still reach.

To limit memory, the events are split if they complete very many matches:

    events ──▶ advance_within ─┬─ few matches ──▶ Advanced
                               └─ too many ─────▶ the first half of the events, then the other half; recursively

Halves are by (key, time, event id): earlier events of a key are matched first. The first half ends with a watermark
that no event of the call is behind.

Tested by: tests/engine/test_advance.py, tests/engine/test_against_oracle.py, tests/engine/test_keyed_state.py.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cep.base.limits import BINDINGS_AT_ONCE_MAX, MATCHES_AT_ONCE_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import DERIVED_COMPLETE_FROM, DERIVED_FLAGS, DERIVED_ORIGINS, FLAG_CUT, FLAG_FOLDED
from cep.columnar.batch import NO_TEXTS, EventBatch, column_of_slots, no_order, read_only
from cep.columnar.texts import table_key, taken
from cep.engine.keyed_state import KeyedState, Layout, RetainedEvents, empty_state
from cep.engine.migrate import migrate_state
from cep.engine.outputs import Outputs, count_by_rule, count_overflows, cut
from cep.engine.starts import NO_STARTS, DeferredEvents, EvictedRuns, find_deferred, join_deferred, write_deferred
from cep.engine.table import PreparedEvents, prepare
from cep.kernels import layout as y
from cep.kernels.layout import Int32, Int64, UInt8
from cep.kernels.match.matches import match_bindings, match_hashes, match_lengths
from cep.kernels.match.merge import compact
from cep.kernels.match.rules import advance_plain_rules, advance_rules
from cep.kernels.records import AllRuns, LiveRuns, NewNumbers, Remaining, SharedStarts
from cep.nfa.columns import INCOMPLETE
from cep.nfa.deployed import DeployedRule
from cep.nfa.image import join_ranges
from cep.nfa.program import Program, RuleProgram

_COUNTER_NAMES = (  # in the order of layout.COUNT_STARTED …
    "runs_started", "runs_expired", "runs_evicted", "matches_dropped", "arithmetic_overflows", "run_steps",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Matches:
    """Completed and timed-out runs of one call, M of them, with B bound events in all.

    A history is an aggregate of past events. A rule can make a derived event of a match; the origins of that event are
    the source events of the match."""

    rule: Int32
    key: Int32  # index in `keys`
    detected_ms: Int64  # event time of the completing event, or the deadline
    completed: np.ndarray  # bool[M]
    timed_out: np.ndarray  # bool[M]; both are True if time completes a match and ends the run's wait for more events
    measures: Int64  # int64[M, X], as 64-bit numbers: the values of measures of matches, then of time-outs
    measures_null: UInt8
    offsets: Int64  # the bound events of match m are offsets[m] to offsets[m + 1] of the next columns, in binding order
    variable: Int32  # index in the rule's variables
    event_id: pa.Array
    event_time_ms: Int64
    keys: pa.Array
    texts: pa.Array  # the dictionary of text measures
    history_flags: Int64  # FLAG_CUT: a history lacked older events; FLAG_FOLDED: it had only sums of them
    derived_from_ms: Int64  # the time from which the past of the match's derived events is complete; TIME_MS_MIN: all
    origins: pa.Array | None = None  # text[B] written by alerts.py; null for a source event. None: no derived events
    order: Int64 | None = None  # int64[B, 3]: sorts bound events of one millisecond; unset for events of former calls

    def __len__(self) -> int:
        return len(self.rule)

    @property
    def rules(self) -> list[int]:
        return list(np.flatnonzero(np.bincount(self.rule)).tolist())


@dataclass(frozen=True, slots=True)
class Evicted:
    """The runs of a rule that one key has lost to a limit in one call."""

    rule: DeployedRule
    key: str
    runs_count: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """The result of a call: the new keyed state, the matches in no particular order, counters, and lost runs by key."""

    keyed_state: KeyedState
    matches: Matches
    counters: Mapping[str, int]
    evicted: Sequence[Evicted] = ()


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """The maximum number of matches of a call, and of the events that they have bound together."""

    matches: int = TIME_MS_MAX
    bindings: int = TIME_MS_MAX


_NO_LIMITS = OutputLimits()
_NO_CODES, _NO_TIMES, _NO_FLAGS = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, bool)
MATCHERS = (advance_plain_rules, advance_rules)


def advance(
    program: Program, keyed_state: KeyedState | None, batch: EventBatch, watermark_ms: int, *, is_end: bool = False
) -> Advanced:
    """Advance the runs of all keys over a batch of events, and process deadlines up to the watermark.

    The batch may hold any keys in any order; no event of a key may be earlier than the key's events of former calls.
    `keyed_state` None is the initial state. Inputs are not changed. `is_end`: no event follows the batch, so the new
    keyed state is empty. Cost: O(N) for the columns read, plus for each rule its events times their keys' open runs.
    """
    advanced = advance_within(program, keyed_state, batch, watermark_ms, _NO_LIMITS, is_end=is_end)  # it never gives up
    assert isinstance(advanced, Advanced), "nothing is over no bounds"
    return advanced


def advance_within(
    program: Program, keyed_state: KeyedState | None, batch: EventBatch, watermark_ms: int, limits: OutputLimits, *,
    is_end: bool = False,
) -> Advanced | Int64:  # fmt: skip
    """Like `advance`, but give up beyond the bounds and return the event order, rows int64[N] of the batch."""
    migrated, orphans = migrate_state(empty_state(program) if keyed_state is None else keyed_state, program)
    if len(batch) == 0 and (migrated.expiry_min is None or migrated.expiry_min > watermark_ms):
        nothing = _no_matches(program, migrated.keys)
        return Advanced(migrated, nothing, {"runs_orphaned": orphans} if orphans else {})
    # At the end of time histories retain no events.
    prepared = prepare(program, migrated, batch, TIME_MS_MAX if is_end else watermark_ms)
    bounds = migrated.run_rule.searchsorted(np.arange(len(program.places) + 1))
    deferred = [find_deferred(shared, prepared, migrated, bounds) for shared in program.shared]
    outputs = Outputs(program, migrated.runs, migrated.nodes, len(batch), len(prepared.keys))
    shared = join_deferred(program, deferred)
    if not _advance_rules(program, prepared, migrated, bounds, shared, watermark_ms, outputs, limits):
        return prepared.batch_rows
    matches = _read_matches(program, migrated, batch, prepared, outputs, limits)
    if matches is None:
        return prepared.batch_rows
    of_rules = outputs.runs.counters
    counts = zip(_COUNTER_NAMES, outputs.work.counters.tolist(), strict=True)
    counters = Counter({name: count for name, count in counts if count})
    evicted = _noted_evictions(outputs)
    live = _live_runs(program, outputs, deferred, watermark_ms, counters, evicted)
    next_state = empty_state(program) if is_end else _next_state(program, migrated, batch, prepared, live)
    counters["arithmetic_overflows"] = 0  # counted by rule
    count_overflows(program, prepared.overflows, of_rules[y.COUNT_OVERFLOW], counters)
    counters["histories_folded"] = prepared.folded
    counters["histories_cut"] = prepared.cut
    counters["history_values_dropped"] = prepared.dropped
    counters["runs_orphaned"] = orphans
    counters["matches"] = int(np.count_nonzero(matches.completed))
    counters["timeouts"] = int(np.count_nonzero(matches.timed_out))
    if counters["runs_evicted"]:
        count_by_rule(program, "rule_runs_evicted", of_rules[y.COUNT_EVICTED], counters)
    if counters["matches_dropped"]:
        count_by_rule(program, "rule_matches_dropped", of_rules[y.COUNT_DROPPED], counters)
    for number in program.compared:
        _count_cost(program.rules[number], batch, int(of_rules[y.COUNT_STEPS, number]), counters)
    return Advanced(next_state, matches, {name: count for name, count in counters.items() if count}, [
        Evicted(program.rules[rule].deployed, prepared.keys[key].as_py(), count) for rule, key, count in evicted
    ])  # fmt: skip


def _noted_evictions(outputs: Outputs) -> list[EvictedRuns]:
    if not outputs.work.counters[y.COUNT_EVICTED]:
        return []
    notes = outputs.matches[outputs.matches[:, y.MATCH_KIND] == y.KIND_EVICTED]
    columns = (notes[:, column].tolist() for column in (y.MATCH_RULE, y.MATCH_KEY, y.MATCH_COUNT))
    return list(zip(*columns, strict=True))


def _count_cost(rule: RuleProgram, batch: EventBatch, steps: int, counters: Counter[str]) -> None:
    """Count the events that a compared version processed, and the runs to which they were offered."""
    deployed = rule.deployed
    is_seen = (batch.time_ms >= deployed.from_ms) & (batch.time_ms < deployed.until_ms)
    counters[f"rule_events[{deployed.rule_id}@{deployed.version}]"] += int(is_seen.sum())
    counters[f"rule_steps[{deployed.rule_id}@{deployed.version}]"] += steps


def matcher_of(program: Program) -> Any:
    """Return the kernel that advances the runs of these rules, one of MATCHERS."""
    return MATCHERS[0] if program.is_plain else MATCHERS[1]


def compile_matcher(program: Program, nothing: EventBatch) -> None:
    """Call the kernel that advances the runs of these rules with a batch without events."""
    migrated = empty_state(program)
    prepared = prepare(program, migrated, nothing, TIME_MS_MIN)
    bounds = np.searchsorted(migrated.run_rule, np.arange(len(program.places) + 1))
    outputs = Outputs(program, migrated.runs, migrated.nodes, 0)
    _advance_rules(program, prepared, migrated, bounds, NO_STARTS, TIME_MS_MIN, outputs, _NO_LIMITS)


def _advance_rules(
    program: Program, prepared: PreparedEvents, migrated: KeyedState, bounds: Int64, shared: SharedStarts,
    watermark_ms: int, outputs: Outputs, limits: OutputLimits,
) -> bool:  # fmt: skip
    """Advance the runs of each rule over the new events. Return False if there are more matches than the limit.

    The runs of rule number r are bounds[r] to bounds[r + 1]. `shared` are stored events of steps that rules share."""
    # Rules with texts need the image (compiled rules) of this call: a text has another number in each call.
    rules = program.tables if prepared.image is program.image else program.tables._replace(image=prepared.image)
    runs = AllRuns(read_only(migrated.runs), read_only(migrated.run_key), bounds)
    matcher = matcher_of(program)
    while True:  # the matcher stops when an array of the outputs is full, and goes on from there
        full = matcher(rules, prepared.events, runs, shared, watermark_ms, outputs.work, outputs.scratch, outputs.runs)
        if full == y.NOT_FULL:  # all events are processed
            return len(outputs.matches) <= limits.matches
        if full == y.FULL_MATCHES and len(outputs.work.matches) > limits.matches:
            return False
        outputs.enlarge(full)


def _read_matches(program: Program, migrated: KeyedState, batch: EventBatch, prepared: PreparedEvents,
                  outputs: Outputs, limits: OutputLimits) -> Matches | None:  # fmt: skip
    """Read the matches from the tree of bound events; None if they have bound too many events together."""
    finished, nodes = outputs.matches, outputs.work.nodes
    if outputs.work.counters[y.COUNT_EVICTED]:
        finished = finished[finished[:, y.MATCH_KIND] != y.KIND_EVICTED]
    count = len(finished)
    if count == 0:
        return _no_matches(program, prepared.keys)
    offsets = np.zeros(count + 1, np.int64)
    match_lengths(finished, nodes, offsets[1:])
    np.cumsum(offsets, out=offsets)
    if offsets[-1] > limits.bindings:
        return None
    rows = np.empty(int(offsets[-1]), np.int64)
    variables = np.empty(len(rows), np.int32)
    match_bindings(prepared.image, finished, nodes, offsets, rows, variables)
    if _may_repeat(program, finished):
        distinct = _distinct_rows(finished, offsets, rows, variables)
        lengths = (offsets[1:] - offsets[:-1])[distinct]
        flat = join_ranges(offsets[distinct], lengths)
        finished, rows, variables = finished[distinct], rows[flat], variables[flat]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    flags = finished[:, y.MATCH_NULLS, None] >> np.arange(program.measures_max)
    return Matches(
        rule=finished[:, y.MATCH_RULE].astype(np.int32),
        key=finished[:, y.MATCH_KEY].astype(np.int32),
        detected_ms=finished[:, y.MATCH_DETECTED].copy(),
        completed=finished[:, y.MATCH_KIND] != y.KIND_TIMEOUT,
        timed_out=finished[:, y.MATCH_KIND] != y.KIND_MATCH,
        measures=finished[:, y.MATCH_HEADER :],
        measures_null=(flags & 1).astype(np.uint8),
        offsets=offsets,
        variable=variables,
        event_id=_ids(migrated, batch, prepared, rows),
        event_time_ms=prepared.columns[y.COLUMN_TIME, rows],
        keys=prepared.keys,
        texts=prepared.texts,
        history_flags=_history_flags(program, prepared, finished[:, y.MATCH_RULE], offsets, rows),
        derived_from_ms=_derived_from_ms(program, prepared, offsets, rows),
        origins=_origins(program, prepared, rows),
        order=_orders(batch, prepared, rows),
    )


def _orders(batch: EventBatch, prepared: PreparedEvents, rows: Int64) -> Int64 | None:
    """Return the order of the new rows of the event table, without an order for retained ones."""
    if batch.order is None:
        return None
    order, is_new = no_order(len(rows)), rows >= prepared.first_row
    order[is_new] = batch.order[prepared.batch_rows[rows[is_new] - prepared.first_row]]
    return order


def _history_flags(program: Program, prepared: PreparedEvents, rule: Int64, offsets: Int64, rows: Int64) -> Int64:
    """Return the flags of each match: FLAG_CUT if a history lacks older events, FLAG_FOLDED if it has only their sums.

    A bound event has a text that names its incomplete histories (aggregates of past events), in the column INCOMPLETE.
    A derived event, which a rule has made of another match, passes on the flags of that match."""
    flags = np.zeros(len(offsets) - 1, np.int64)
    column, derived_column = program.column(INCOMPLETE), program.column(DERIVED_FLAGS)  # -1: no such column
    if derived_column >= 0 and len(rows):
        flags = np.bitwise_or.reduceat(prepared.columns[derived_column, rows], offsets[:-1])
    incomplete = np.flatnonzero(prepared.nulls[column, rows] == 0) if column >= 0 else np.empty(0, np.int64)
    if len(incomplete):
        match = np.searchsorted(offsets, incomplete, side="right") - 1
        rule_and_text = np.stack([rule[match], prepared.columns[column, rows[incomplete]]], axis=1)
        distinct, index = np.unique(rule_and_text, axis=0, return_inverse=True)  # to read each text once
        bits = [_flags_of(program.rules[number], prepared.texts[text].as_py()) for number, text in distinct.tolist()]
        np.bitwise_or.at(flags, match, np.array(bits, np.int64)[index.reshape(-1)])
    return flags


def _flags_of(rule: RuleProgram, incomplete: str) -> int:
    """Return a rule's flags for an event with these incomplete histories (columns.INCOMPLETE)."""
    names = incomplete.split(" ")
    return FLAG_CUT * (not rule.may_be_cut.isdisjoint(names)) | FLAG_FOLDED * (not rule.may_be_folded.isdisjoint(names))


def _derived_from_ms(program: Program, prepared: PreparedEvents, offsets: Int64, rows: Int64) -> Int64:
    """Return for each match the latest time from which the past of its derived events is complete."""
    column = program.column(DERIVED_COMPLETE_FROM)
    if column < 0 or not len(rows):
        return np.full(len(offsets) - 1, TIME_MS_MIN, np.int64)
    times = np.where(prepared.nulls[column, rows] != 0, TIME_MS_MIN, prepared.columns[column, rows])
    return np.maximum.reduceat(times, offsets[:-1])


def _origins(program: Program, prepared: PreparedEvents, rows: Int64) -> pa.Array | None:
    column = program.column(DERIVED_ORIGINS)
    if column < 0:
        return None
    texts, nulls = prepared.columns[column, rows], prepared.nulls[column, rows]
    return prepared.texts.take(pa.array(texts, mask=nulls != 0))


def _may_repeat(program: Program, finished: Int64) -> bool:
    """Return True if a rule with a match may bind the same events to the same variables in two ways."""
    by_rule = np.bincount(finished[:, y.MATCH_RULE], minlength=len(program.rules))
    return any(program.rules[number].repeats for number in np.flatnonzero(by_rule).tolist())


def _distinct_rows(finished: Int64, offsets: Int64, rows: Int64, variables: Int32) -> Int64:
    """Return the rows of `finished` without repeated bindings (the same events bound to the same variables), in order.

    Each binding keeps its first match and its first time-out. One row can be a match and a time-out. If only one of the
    two repeats an earlier row, the row remains the other one: its kind is changed in `finished`."""
    hashes = np.zeros(len(finished), np.uint64)
    match_hashes(finished, offsets, rows, variables, table_key(), hashes)  # table_key: a secret seed
    kind = finished[:, y.MATCH_KIND]
    completed, timed_out = _first_of(kind != y.KIND_TIMEOUT, hashes), _first_of(kind != y.KIND_MATCH, hashes)
    kind[completed & ~timed_out] = y.KIND_MATCH
    kind[timed_out & ~completed] = y.KIND_TIMEOUT
    return np.flatnonzero(completed | timed_out)


def _first_of(is_wanted: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """bool[M]: the first row of each hash among the wanted rows."""
    rows = np.flatnonzero(is_wanted)
    _, first = np.unique(hashes[rows], return_index=True)
    is_first = np.zeros(len(hashes), bool)
    is_first[rows[first]] = True
    return is_first


def _ids(migrated: KeyedState, batch: EventBatch, prepared: PreparedEvents, rows: Int64) -> pa.Array:
    return taken(prepared.event_of.take(rows), migrated.events.event_id, batch.event_id)


def _live_runs(program: Program, outputs: Outputs, deferred: Sequence[DeferredEvents], watermark_ms: int,
               counters: Counter[str], evicted: list[EvictedRuns]) -> LiveRuns:  # fmt: skip
    """Join the open runs and deferred events (stored once for rules that begin alike). Shrinks `outputs` in place."""
    run_output = outputs.runs
    runs_count, nodes_count = int(run_output.cursor[y.CURSOR_OUT]), int(run_output.cursor[y.CURSOR_NODES])
    rule_runs = LiveRuns(
        cut(run_output.runs, runs_count), cut(run_output.rules, runs_count), cut(run_output.keys, runs_count),
        cut(outputs.work.nodes, nodes_count),
    )  # fmt: skip
    if not any(len(events.rows) for events in deferred):
        return rule_runs
    deferred_rows = write_deferred(program, deferred, watermark_ms, nodes_count, counters, evicted)
    both: list[tuple[np.ndarray, ...]] = [rule_runs, deferred_rows]
    return LiveRuns(*map(np.concatenate, zip(*both, strict=True)))


def _next_state(program: Program, migrated: KeyedState, batch: EventBatch, prepared: PreparedEvents,
          live: LiveRuns) -> KeyedState:  # fmt: skip
    """Return the new keyed state: live runs, their keys, and the nodes (bound events) and events that they reach."""
    rows_count, keys_count = prepared.rows_count, len(prepared.keys)
    remaining = Remaining(
        np.empty(rows_count, np.int64), np.empty(rows_count, np.int32), np.empty(keys_count, np.int64)
    )
    numbers = NewNumbers(
        np.empty(len(live.nodes), np.int64), np.empty(rows_count, np.int64), np.empty(keys_count, np.int32)
    )
    key_of_row = prepared.columns[y.COLUMN_KEY]
    # compact drops the other nodes in place. It fills `numbers` (new by old), and `remaining` (old rows and keys).
    nodes_left, rows_left, keys_left = compact(live, program.row_registers, key_of_row, numbers, remaining)
    rows = remaining.rows[:rows_left]
    columns: dict[str, pa.Array] = {}
    for number, column in program.retained:  # the columns that are stored with bound events
        values, nulls = prepared.columns[number].take(rows), prepared.nulls[number].take(rows)
        columns[column.name] = column_of_slots(values, nulls, column.type, prepared.texts)
    return KeyedState(
        Layout.of(program),
        prepared.keys if keys_left == keys_count else taken(remaining.keys[:keys_left], prepared.keys),
        live.runs,
        live.rules,
        live.keys,
        cut(live.nodes, nodes_left),
        RetainedEvents(
            cut(remaining.row_keys, rows_left),
            _ids(migrated, batch, prepared, rows),
            prepared.columns[y.COLUMN_TYPE].take(rows),
            prepared.columns[y.COLUMN_TIME].take(rows),
            columns,
        ),
        prepared.histories,
    )


def _no_matches(program: Program, keys: pa.Array) -> Matches:
    return Matches(
        _NO_CODES, _NO_CODES, _NO_TIMES, _NO_FLAGS, _NO_FLAGS,
        np.empty((0, program.measures_max), np.int64), np.empty((0, program.measures_max), np.uint8),
        np.zeros(1, np.int64), _NO_CODES, NO_TEXTS, _NO_TIMES, keys,
        NO_TEXTS, _NO_TIMES, _NO_TIMES,
    )  # fmt: skip


def advance_in_slices(
    program: Program, keyed_state: KeyedState | None, batch: EventBatch, watermark_ms: int, *, is_end: bool = False
) -> Iterator[Advanced]:
    """Yield the results of `advance` in parts, to limit memory. The last part has the keyed state after all events."""
    limits = OutputLimits(MATCHES_AT_ONCE_MAX, BINDINGS_AT_ONCE_MAX)
    waiting = [(batch, watermark_ms, is_end)]
    while waiting:
        events, until_ms, is_last = waiting.pop()
        part_limits = limits if len(events) > 1 else _NO_LIMITS  # one event cannot be halved
        result = advance_within(program, keyed_state, events, until_ms, part_limits, is_end=is_last)
        if isinstance(result, Advanced):
            keyed_state = result.keyed_state
            yield result
        else:  # too many matches: the result is the order of the events, to be halved
            half = len(result) // 2
            waiting.append((events.take(result[half:]), until_ms, is_last))
            first_until_ms = min(until_ms, int(events.time_ms.min()))  # so no event of the second half is late
            waiting.append((events.take(result[:half]), first_until_ms, False))
