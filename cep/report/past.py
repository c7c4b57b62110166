"""Stored pages of histories → the size of the retained past, and the retained past of one key, in words.

Tested by: tests/report/test_keyed_state.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN
from cep.base.schema import Kind, Type
from cep.base.utc import utc_text
from cep.columnar.route import KeyDomain
from cep.histories.rows import Block, HistoryRows
from cep.histories.store import Histories, StoredSegment
from cep.histories.values import tally_value
from cep.lang.show import show_expr
from cep.nfa.program import Program
from cep.report.past_parts import PastPart, RulesWithHistories, joined, parts_of
from cep.state.past import Load, StoredPast, decode_head, decode_segment

_EVENTS_SHOWN = 20
_SUB_KEYS_SHOWN = 5  # of each history


@dataclass(frozen=True, slots=True)
class PastShare:
    """The size of the retained past of a key domain.

    `size` is bytes of segments, `head_size` of heads; `panes` are rows of panes, which replace the events of
    approximate functions. `parts` divide it by rule.
    """

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
    """Measure the retained past by key domain. A key counts if it has a carried sum or a pinned event.

    `programs` are as in runs_of_key. Raises: StateError.
    """
    shares: dict[KeyDomain, PastShare] = {}
    readers: dict[KeyDomain, RulesWithHistories] = {}
    for past in pasts:
        share = shares.get(past.domain, PastShare(past.domain, 0, 0, 0, 0, 0, 0, 0))
        histories = decode_head(past.head, _unread)
        if past.domain not in readers:
            readers[past.domain] = RulesWithHistories(
                [level[past.domain] for level in programs if past.domain in level]
            )
        panes = sum(len(segment) for segment in histories.segments if segment.panes)
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
    """Yield the retained past of one key in every domain. Raises: StateError."""
    for past in pasts:
        readers = [level[past.domain] for level in programs if past.domain in level]
        if not readers:
            continue
        histories = decode_head(past.head, _loader(past))
        rows = [_of_key(Block(histories.keys, histories.pinned), key)]
        rows += [_of_key(segment.load(), key) for segment in histories.segments if not segment.panes]
        panes = sum(len(_of_key(segment.load(), key)) for segment in histories.segments if segment.panes)
        events = sorted((e for part in rows for e in _events(part, readers[0])), key=lambda e: e["event_time"])
        unique = [e for n, e in enumerate(events) if n == 0 or e != events[n - 1]]
        tallies = tuple(
            {name: value for program in readers for name, value in _tallies(histories, key, program)}.items()
        )
        if unique or tallies or panes:
            clock_ms = histories.facts.clock_ms
            clock = utc_text(clock_ms) if EVENT_TIME_MS_MIN <= clock_ms <= EVENT_TIME_MS_MAX else ""
            yield KeyPast(past.domain, clock, tallies, len(unique), tuple(unique[-_EVENTS_SHOWN:]), panes)


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
    columns = {name: [_in_words(v, types[name]) for v in c.to_pylist()] for name, c in rows.columns.items()}
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
    """Yield (history, value) of each carried tally of a key."""
    names = histories.keys.to_pylist()
    if key not in names or program.histories is None:
        return
    number, types = names.index(key), program.schema.columns()
    for history in program.histories.written:
        if history.tally in histories.tallies:
            yield show_expr(history.expr), tally_value(history, histories.tallies[history.tally][number : number + 1])
        elif history.tally in histories.sub_tallies:
            entries = histories.sub_tallies[history.tally]
            for entry in np.flatnonzero(entries.key == number)[:_SUB_KEYS_SHOWN].tolist():
                fields = zip(history.expr.by, entries.by, strict=True)
                sub_key = ", ".join(str(_in_words(values[entry].as_py(), types[name])) for name, values in fields)
                yield f"{show_expr(history.expr)} [{sub_key}]", tally_value(history, entries.sums[entry : entry + 1])
