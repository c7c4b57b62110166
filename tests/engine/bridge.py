"""A pattern and the oracle's events → the engine's answer, in the oracle's words, so that the two can be compared.

An answer is a set of (key, bindings by variable, detected_ms, measures), one for matches and one for time-outs.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import numpy as np
import pyarrow as pa

from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Schema, Type
from cep.columnar.batch import TEXT, EventBatch, arrow_type, data_columns
from cep.engine.advance import Advanced, Matches, advance
from cep.engine.keyed_state import KeyedState
from cep.histories.store import Block, StoredSegment
from cep.histories.values import compact_page
from cep.lang.ir import PatternIR
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program
from cep.state import past
from tests.oracle.expressions import Value
from tests.oracle.matcher import Event, Match, find_matches

END_MS = TIME_MS_MAX
RULE_ID = "subject"

Found = tuple[str, tuple[tuple[str, tuple[str, ...]], ...], int, tuple[tuple[str, Value], ...]]
EventsByKey = Mapping[str, Sequence[Event]]
# The arguments of one call of `advance`: events, and the watermark that follows them.
Delivery = tuple[EventBatch, int]


@dataclass(frozen=True)
class Answers:
    """The answer of the engine or of the oracle."""

    matches: frozenset[Found]
    timeouts: frozenset[Found]


def joined(parts: Iterable[Answers]) -> Answers:
    """Return the answers of several parts together."""
    listed = list(parts)
    return Answers(frozenset().union(*(a.matches for a in listed)), frozenset().union(*(a.timeouts for a in listed)))


def event_id(order: int) -> str:
    """Return the id of an event, which sorts like the order."""
    return f"{order:06d}"


def rule_of(pattern: PatternIR, rule_id: str = RULE_ID) -> DeployedRule:
    # Stored runs are tied to the hash, so it has to distinguish patterns, like the hash of a real rule.
    return DeployedRule(rule_id, 1, 1, hashlib.sha256(repr(pattern).encode()).hexdigest(), pattern)


def program_of(schema: Schema, *patterns: PatternIR) -> Program:
    """Compile the first pattern as the subject, and the others as further rules."""
    rules = [rule_of(pattern, f"beside_{i}" if i else RULE_ID) for i, pattern in enumerate(patterns)]
    return compile_rules(schema, patterns[0].key, rules)


# ------------------------------------------------------------------------------------------------------- events


def batch_of(schema: Schema, events: EventsByKey) -> EventBatch:
    """Return all events, in the order of (time, order)."""
    rows = [(key, event) for key, key_events in events.items() for event in key_events]
    rows.sort(key=lambda row: (row[1].time_ms, row[1].order))
    ids = pa.array([event_id(event.order) for _, event in rows], TEXT)
    columns = {
        name: ids
        if name in {e.id_field for e in schema.event_types}
        else pa.array([event.fields.get(name) for _, event in rows], arrow_type(type_))
        for name, type_ in data_columns(schema).items()
    }
    return EventBatch(
        pa.array([key for key, _ in rows], TEXT),
        ids,
        np.array([schema.code(event.type) for _, event in rows], np.int16),
        np.array([event.time_ms for _, event in rows], np.int64),
        columns,
    )


def whole(batch: EventBatch) -> list[Delivery]:
    """Return a single delivery of all events."""
    return [(batch, END_MS)]


def split(batch: EventBatch, random: Random, cuts_max: int = 4) -> list[Delivery]:
    """Cut the batch at random places, shuffle the times of each part, and add watermarks that later events allow.

    Events of one time stay in their order of arrival.
    """
    cuts = sorted(random.choices(range(len(batch) + 1), k=random.randint(1, cuts_max)))
    bounds = [0, *cuts, len(batch)]
    deliveries: list[Delivery] = []
    watermark_ms = -END_MS
    for start, end in pairwise(bounds):
        ranks = {time_ms: random.random() for time_ms in batch.time_ms[start:end].tolist()}
        rows = sorted(range(start, end), key=lambda row: ranks[int(batch.time_ms[row])])
        latest_ms = int(batch.time_ms[end]) if end < len(batch) else END_MS
        choices = [watermark_ms, latest_ms, int(batch.time_ms[end - 1]) if end else watermark_ms]
        watermark_ms = max(watermark_ms, min(latest_ms, random.choice(choices)))
        deliveries.append((batch.take(np.array(rows, np.int64)), watermark_ms))
    return [*deliveries, (batch.take(np.empty(0, np.int64)), END_MS)]


# ------------------------------------------------------------------------------------------------------ answers


def engine_answers(
    programs: Program | Sequence[Program], deliveries: Sequence[Delivery], *, keyed_state: KeyedState | None = None
) -> Answers:
    """Return the engine's answer for the subject, with one program or with another one at every call.

    Between two calls the keyed state is written to bytes and read back.
    """
    by_kind: dict[bool, list[Found]] = {False: [], True: []}
    compacted_ms = -END_MS
    for number, (batch, watermark_ms) in enumerate(deliveries):
        program = programs if isinstance(programs, Program) else programs[number]
        advanced = advance(program, keyed_state, batch, watermark_ms)
        # As in a runner (cep/step/level.py), a page without new events keeps its past unchanged.
        compacted_ms = watermark_ms if len(batch) else compacted_ms
        keyed_state = through_bytes(program, advanced.keyed_state, compacted_ms)
        for timed_out, one in _found(program, advanced.matches):
            by_kind[timed_out].append(one)
    for answers in by_kind.values():
        assert len(answers) == len(set(answers)), "the engine has emitted something twice"
    return Answers(frozenset(by_kind[False]), frozenset(by_kind[True]))


def through_bytes(program: Program, after: KeyedState, watermark_ms: int) -> KeyedState:
    """Return the state as a runner has it at the next micro-batch, with every segment read again."""
    state = past.decode_page(past.encode_page(after))
    if program.histories is None:
        return state
    written: dict[int, bytes] = {}

    def load(stored: StoredSegment) -> Block:
        return past.decode_segment(written[stored.number])

    compacted = compact_page(program.histories, after.histories, watermark_ms)
    for segment in compacted.segments:
        if segment.stored is not None:
            written[segment.stored.number] = past.encode_segment(segment.load())
    head = past.encode_head(past.store_segments(compacted, written.__setitem__, load, past.SegmentCache(0)))
    return replace(state, histories=past.decode_head(head, load))


def state_after(program: Program, deliveries: Iterable[Delivery]) -> KeyedState:
    """Return the keyed state after these calls; between two calls it is bytes."""
    state: KeyedState | None = None
    for batch, watermark_ms in deliveries:
        state = through_bytes(program, advance(program, state, batch, watermark_ms).keyed_state, watermark_ms)
    assert state is not None
    return state


def in_calls(program: Program, events: EventBatch, ends: Iterable[int]) -> Iterator[Advanced]:
    """Match events in calls that end at the numbers in `ends`; between two calls the keyed state is bytes."""
    keyed_state, start = None, 0
    for end in ends:
        watermark_ms = int(events.time_ms[end]) if end < len(events) else END_MS
        advanced = advance(program, keyed_state, events.take(np.arange(start, end)), watermark_ms)
        keyed_state, start = past.decode_page(past.encode_page(advanced.keyed_state)), end
        yield advanced


def _found(program: Program, matches: Matches) -> Iterator[tuple[bool, Found]]:
    (number,) = (n for n, rule in enumerate(program.rules) if rule.deployed.rule_id == RULE_ID)
    rule = program.rules[number]
    for row in np.flatnonzero(matches.rule == number):
        bound: dict[str, list[str]] = {}
        for place in range(matches.offsets[row], matches.offsets[row + 1]):
            bound.setdefault(rule.variables[matches.variable[place]], []).append(matches.event_id[place].as_py())
        key = matches.keys[int(matches.key[row])].as_py()
        one = (key, _sorted(bound), int(matches.detected_ms[row]))
        if matches.completed[row]:
            yield False, (*one, _measures(matches, int(row), rule.measures))
        if matches.timed_out[row]:
            yield True, (*one, _measures(matches, int(row), rule.timeout_measures, len(rule.measures)))


def _measures(
    matches: Matches, row: int, types: Sequence[tuple[str, Type]], first: int = 0
) -> tuple[tuple[str, Value], ...]:
    return tuple(
        (
            name,
            None
            if matches.measures_null[row, number]
            else _value(matches, matches.measures[row, number : number + 1], type_),
        )
        for number, (name, type_) in enumerate(types, start=first)
    )


def _value(matches: Matches, slot: np.ndarray, type_: Type) -> Value:
    if type_.is_text:
        return str(matches.texts[int(slot[0])].as_py())
    return float(slot.view(np.float64)[0]) if type_.is_float else int(slot[0])


def oracle_answers(pattern: PatternIR, events: EventsByKey) -> Answers:
    """Return the oracle's answer on every key."""
    matches: set[Found] = set()
    timeouts: set[Found] = set()
    for key, key_events in events.items():
        answer = find_matches(pattern, key_events)
        orders = {event.id: event.order for event in key_events}
        matches |= {oracle_match(key, match, orders) for match in answer.matches}
        if pattern.timeout_measures is not None:
            timeouts |= {oracle_match(key, match, orders) for match in answer.timeouts}
    return Answers(frozenset(matches), frozenset(timeouts))


def oracle_match(key: str, match: Match, orders: Mapping[int | str, int]) -> Found:
    """Return a match of the oracle in the form of the engine's answers. `orders`: event id → number of its row."""
    bound = {name: [event_id(orders[i]) for i in ids] for name, ids in match.by_variable().items()}
    return key, _sorted(bound), match.detected_ms, tuple(match.measures.items())


def _sorted(bound: Mapping[str, Sequence[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(sorted((name, tuple(ids)) for name, ids in bound.items()))
