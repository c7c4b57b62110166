"""Stored pages of histories → the size of the retained past by rule, and the retained past of one key, in words.

    retained events by retention time, of segments                the rules and event types that need this time
    panes           of approximate functions, of busy keys        by history
    pinned events   that decide values alone, of heads            by event type
    carried         tallies, of heads                             by history

Data of several rules is stored once, so it is counted once and names all of them. Bytes are shares of the stored bytes,
in proportion to rows; the bytes of unneeded data have no rule.
Tested by: tests/report/test_report.py
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN, TIME_MS_MAX
from cep.base.schema import Kind, Type
from cep.base.text import utc_text
from cep.columnar.decode import KeyDomain
from cep.histories.store import Block, Histories, HistoryRows, StoredSegment, span_code
from cep.histories.values import tally_value
from cep.lang.show import show_duration, show_expr
from cep.lang.walk import histories as histories_in
from cep.nfa.histories import HistoryColumn, HistoryPlan
from cep.nfa.program import Program
from cep.state.past import Load, StoredPast, decode_head, decode_segment

_KINDS = ("kept events", "panes", "pinned events", "carried")


@dataclass(frozen=True, slots=True)
class PastPart:
    """A part of the stored past of a key domain, and the rules that need it. `kind` is a word of `_KINDS`, `of` is its
    object, `rows` counts events or entries, `size` is bytes."""

    kind: str
    of: str
    rules: tuple[str, ...]
    rows: int
    size: int


class RulesWithHistories:
    """The rules of a key domain that need parts of the past. `programs` are the domain's programs, one per level."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self._columns: list[tuple[HistoryColumn, tuple[str, ...]]] = []
        self._retained: list[tuple[str, int]] = []
        self._types: tuple[str, ...] = ()
        for program in programs:
            plan = program.histories
            if plan is not None:
                self._columns += _with_rules(program, plan)
                self._types = tuple(event_type.name for event_type in program.schema.event_types)
                self._retained = [(self._types[code], ms) for code, ms in plan.retained_ms.items()]

    def retained(self, code: int) -> tuple[str, tuple[str, ...]]:
        """Return the event types with their retention time in words, and the rules that need the events. The span code
        stands for retention times above 2^(code - 1) and up to 2^code ms. A column (a history in rules, such as
        `count(…)`) keeps no events if one event alone decides its value, or if it is approximate."""
        readers = [
            (column.expr.event_type, column.span_ms, rules)
            for column, rules in self._columns
            if not (column.is_single or column.is_approximate) and span_code(column.span_ms) == code
        ]
        readers += [(name, ms, (f"retain of {name}",)) for name, ms in self._retained if span_code(ms) == code]
        if not readers:  # their rules were removed
            return f"up to {show_duration(min(2**code, TIME_MS_MAX))}", ()
        longest_ms = max(ms for _, ms, _ in readers)
        types = ", ".join(sorted({name for name, _, _ in readers}))
        return f"{types} for {show_duration(longest_ms)}", _names(rules for _, _, rules in readers)

    def pinned(self, code: int) -> tuple[str, tuple[str, ...]]:
        """Return the name of an event type, and the rules for which its events are pinned."""
        rules = [
            names
            for column, names in self._columns
            if (column.is_single or column.is_sparse) and column.event_type in (-1, code)
        ]
        return (self._types[code] if code < len(self._types) else str(code)), _names(rules)

    def panes(self, number: int) -> tuple[str, tuple[str, ...]]:
        return _histories_and_rules((column, rules) for column, rules in self._columns if column.panes == number)

    def tallied(self, name: str) -> tuple[str, tuple[str, ...]]:
        return _histories_and_rules(
            (column, rules)
            for column, rules in self._columns
            if name in (column.tally, column.counted, column.ranked, column.band)
        )


def parts_of(histories: Histories, rules: RulesWithHistories) -> Iterator[PastPart]:
    """Divide the stored past of one page (a group of keys) into parts, each with the rules that need it. The same part
    may come several times. Panes are aggregates of one time slice. Pinned events can each become a result by
    themselves. Carried tallies are running counts or sums that replace events. A span code is a retention time."""
    for segment in histories.segments:
        size = segment.stored.size if segment.stored is not None else 0
        if segment.panes_number:
            yield PastPart("panes", *rules.panes(segment.panes_number), len(segment), size)
            continue
        for code, count in segment.counts_by_span.items():  # how many events have this span code
            yield PastPart("kept events", *rules.retained(code), count, round(size * count / len(segment)))
    pinned = histories.pinned
    codes, counts = np.unique(pinned.event_type, return_counts=True)
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        yield PastPart("pinned events", *rules.pinned(code), count, round(pinned.nbytes * count / len(pinned)))
    sizes: Mapping[str, tuple[int, int]] = {  # keys (or sub-keys) with events, bytes; column 0 counts a key's events
        **{name: (int((tally[:, 0] != 0).sum()), tally.nbytes) for name, tally in histories.tallies.items()},
        **{name: (len(entries), entries.nbytes) for name, entries in histories.sub_tallies.items()},
    }
    for name, (count, size) in sizes.items():
        yield PastPart("carried", *rules.tallied(name), count, size)


def joined(parts: Iterable[PastPart]) -> tuple[PastPart, ...]:
    """Join equal parts. Return them kind by kind, the largest first."""
    by_part: dict[tuple[str, str, tuple[str, ...]], PastPart] = {}
    for part in parts:
        key = (part.kind, part.of, part.rules)
        earlier = by_part.get(key)
        by_part[key] = (
            part if earlier is None else replace(part, rows=earlier.rows + part.rows, size=earlier.size + part.size)
        )
    return tuple(sorted(by_part.values(), key=lambda part: (_KINDS.index(part.kind), -part.size, part.of)))


def _with_rules(program: Program, plan: HistoryPlan) -> Iterator[tuple[HistoryColumn, tuple[str, ...]]]:
    """Each history with the rules that ask for it."""
    rules: dict[object, dict[str, None]] = {}
    for rule in program.rules:
        for expr in histories_in(rule.deployed.pattern):
            rules.setdefault(expr, {})[f"{rule.deployed.rule_id} v{rule.deployed.version}"] = None
    for column in plan.written:
        yield column, tuple(rules.get(column.expr, ()))


def _histories_and_rules(columns: Iterable[tuple[HistoryColumn, tuple[str, ...]]]) -> tuple[str, tuple[str, ...]]:
    asking_columns = list(columns)
    return ", ".join(sorted({show_expr(column.expr) for column, _ in asking_columns})), _names(
        rules for _, rules in asking_columns
    )


def _names(rules: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for names in rules for name in names}))


_EVENTS_SHOWN = 20
_SUB_KEYS_SHOWN = 5  # of each history


@dataclass(frozen=True, slots=True)
class PastShare:
    """The size of the past events that are kept for a key domain (the fields of a key). They are stored in pages, each
    for some keys. A page has segments (blocks of events, `size` in bytes) and a head that refers to them (`head_size`).
    `panes` counts rows of panes, which are aggregates of a time slice. `parts` has the sizes by rule."""

    domain: KeyDomain
    pages: int
    keys: int
    events: int
    panes: int
    segments: int
    size: int
    head_size: int
    parts: tuple[PastPart, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyPast:
    """The retained past of a key: by history its value at `clock`, past events, oldest first, and rows of panes."""

    domain: KeyDomain
    clock: str
    tallies: tuple[tuple[str, int | float], ...]
    events_count: int
    events: tuple[dict[str, Any], ...]
    panes_count: int


def past_shares(pasts: Iterable[StoredPast], programs: Sequence[Mapping[KeyDomain, Program]]) -> tuple[PastShare, ...]:
    """Measure the stored past by key domain, from the heads of its pages. A page has a group of keys. Its head is the
    record of its segments: blocks of events, or of panes (aggregates of a time slice). `keys` counts the keys for which
    the head itself has a value: a running sum that replaces events, or a pinned event (kept as a possible result).
    `programs` are the compiled rules by domain, for each level (order in which rules run). Raises: StateError."""
    shares: dict[KeyDomain, PastShare] = {}
    readers: dict[KeyDomain, RulesWithHistories] = {}
    for past in pasts:
        share = shares.get(past.domain, PastShare(past.domain, 0, 0, 0, 0, 0, 0, 0))  # the sums so far
        histories = decode_head(past.head, _unread)  # the segments are counted, not read
        if past.domain not in readers:
            readers[past.domain] = RulesWithHistories(
                [level[past.domain] for level in programs if past.domain in level]
            )
        panes = sum(len(segment) for segment in histories.segments if segment.panes_number)
        shares[past.domain] = replace(
            share,
            pages=share.pages + 1,
            keys=share.keys + len(histories.keys),
            events=share.events + len(histories),
            panes=share.panes + panes,
            segments=share.segments + len(histories.segments),
            size=share.size + sum(s.stored.size for s in histories.segments if s.stored),
            head_size=share.head_size + len(past.head),
            parts=joined((*share.parts, *parts_of(histories, readers[past.domain]))),
        )
    return tuple(shares[domain] for domain in sorted(shares))


def past_of_key(
    pasts: Iterable[StoredPast], key: str, programs: Sequence[Mapping[KeyDomain, Program]]
) -> Iterator[KeyPast]:
    """Yield the stored past of one key in every domain: events, tallies (running sums that replace events) and panes
    (partial aggregates of a time slice). `programs` are compiled rules by domain, per level. Raises: StateError."""
    for past in pasts:
        readers = [level[past.domain] for level in programs if past.domain in level]  # all have the same schema
        if not readers:  # the rules of this domain were removed
            continue
        histories = decode_head(past.head, _loader(past))
        pinned_rows = _of_key(Block(histories.keys, histories.pinned), key)  # kept apart, each as a result
        rows = [_of_key(segment.load(), key) for segment in histories.segments if not segment.panes_number]
        pane_count = sum(len(_of_key(segment.load(), key)) for segment in histories.segments if segment.panes_number)
        kept = [event for part in rows for event in _events(part, readers[0])]
        pinned = list(_events(pinned_rows, readers[0]))
        texts_kept, texts_pinned = ([repr(sorted(event.items())) for event in part] for part in (kept, pinned))
        by_text = dict(zip(texts_pinned, pinned, strict=True))
        lone = Counter(texts_pinned) - Counter(texts_kept)  # the other pinned events are in a segment, too
        events = sorted([*(by_text[text] for text in lone.elements()), *kept], key=lambda event: event["event_time"])
        tallies = tuple(
            {name: value for program in readers for name, value in _tallies(histories, key, program)}.items()
        )
        if events or tallies or pane_count:
            clock_ms = histories.facts.clock_ms
            clock = utc_text(clock_ms) if EVENT_TIME_MS_MIN <= clock_ms <= EVENT_TIME_MS_MAX else ""
            yield KeyPast(past.domain, clock, tallies, len(events), tuple(events[-_EVENTS_SHOWN:]), pane_count)


def _unread(segment: StoredSegment) -> Block:
    raise AssertionError(f"segment {segment.number} is only counted")


def _loader(past: StoredPast) -> Load:
    return lambda segment: decode_segment(past.segments[segment.number])


def _of_key(block: Block, key: str) -> HistoryRows:
    names = block.keys.to_pylist()
    number = names.index(key) if key in names else -1
    return block.rows.take(np.flatnonzero(block.rows.key == number))


def _events(rows: HistoryRows, program: Program) -> Iterator[dict[str, Any]]:
    names = [event_type.name for event_type in program.schema.event_types]
    types = program.schema.columns()
    columns = {
        name: [_in_words(value, types[name]) for value in column.to_pylist()]
        for name, column in rows.columns.items()
        if name in types  # the schema may have dropped the field since
    }
    for number, (code, time_ms) in enumerate(zip(rows.event_type.tolist(), rows.time_ms.tolist(), strict=True)):
        fields = {name: values[number] for name, values in columns.items() if values[number] is not None}
        yield {"event_time": utc_text(time_ms), "event_type": names[code], **fields}


def _in_words(value: Any, type_: Type) -> Any:
    if value is None:
        return None
    if type_.kind is Kind.ENUM:
        return type_.symbols[value]
    return value / 10**type_.scale if type_.kind is Kind.DECIMAL else value


def _tallies(histories: Histories, key: str, program: Program) -> Iterator[tuple[str, int | float]]:
    """Yield (text, value for the key) of each history that stores a running count or sum (its tally) instead of events.
    A history that groups by a field has a value for each sub-key (value of the field), and only some are shown."""
    key_texts = histories.keys.to_pylist()
    if key not in key_texts or program.histories is None:
        return
    index, types = key_texts.index(key), program.schema.columns()
    for history in program.histories.written:
        if history.tally in histories.tallies:
            yield show_expr(history.expr), tally_value(history, histories.tallies[history.tally][index : index + 1])
        elif history.tally in histories.sub_tallies:
            entries = histories.sub_tallies[history.tally]
            for entry in np.flatnonzero(entries.key == index)[:_SUB_KEYS_SHOWN].tolist():  # a row for each sub-key
                fields = zip(history.expr.by, entries.by, strict=True)
                sub_key = ", ".join(str(_in_words(values[entry].as_py(), types[name])) for name, values in fields)
                yield f"{show_expr(history.expr)} [{sub_key}]", tally_value(history, entries.sums[entry : entry + 1])
