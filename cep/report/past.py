"""Stored pages of histories → how much is kept of the past, and what is kept of one key's, in words.

Tested by: tests/report/test_past.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN
from cep.base.schema import Kind, Type
from cep.columnar.route import KeyDomain
from cep.engine.float_tallies import float_values
from cep.engine.history_rows import Block, HistoryRows
from cep.engine.history_state import Histories, Kept
from cep.engine.tallies import spreads, whole_sums
from cep.lang.show import show_expr
from cep.model.rule import utc_text
from cep.nfa.histories import HistoryColumn
from cep.nfa.program import Program
from cep.report.past_parts import Asking, PastPart, joined, parts_of
from cep.state.past import Load, StoredPast, decode_head, decode_segment

_EVENTS_SHOWN = 20
_SUB_KEYS_SHOWN = 5  # of each history


@dataclass(frozen=True, slots=True)
class PastShare:
    """What is kept of the past for the rules of a key domain. `size` is bytes of segments, `head_size` of heads;
    `panes` are rows of panes, what approximate functions keep instead of events. `parts`: for which rules it is."""

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
    """What is kept of a key's past: by history its value at `clock`, past events, oldest first, and rows of panes."""

    domain: KeyDomain
    clock: str
    tallies: tuple[tuple[str, int | float], ...]
    events_count: int
    events: tuple[dict[str, Any], ...]
    panes_count: int


def past_held(pasts: Iterable[StoredPast], programs: Sequence[Mapping[KeyDomain, Program]]) -> tuple[PastShare, ...]:
    """Count, by key domain. Keys are those with a carried sum or a pinned event. `programs` are as in runs_of_key.

    Raises: StateError.
    """
    found: dict[KeyDomain, PastShare] = {}
    asking: dict[KeyDomain, Asking] = {}
    for past in pasts:
        known = found.get(past.domain, PastShare(past.domain, 0, 0, 0, 0, 0, 0, 0))
        histories = decode_head(past.head, _unread)
        if past.domain not in asking:
            asking[past.domain] = Asking([level[past.domain] for level in programs if past.domain in level])
        panes = sum(len(segment) for segment in histories.segments if segment.panes)
        found[past.domain] = replace(
            known,
            pages=known.pages + 1,
            keys=known.keys + len(histories.keys),
            events=known.events + len(histories),
            panes=known.panes + panes,
            segments=known.segments + len(histories.segments),
            size=known.size + sum(s.kept.size for s in histories.segments if s.kept),
            head_size=known.head_size + len(past.head),
            parts=joined((*known.parts, *parts_of(histories, asking[past.domain]))),
        )
    return tuple(found[domain] for domain in sorted(found))


def past_of_key(
    pasts: Iterable[StoredPast], key: str, programs: Sequence[Mapping[KeyDomain, Program]]
) -> Iterator[KeyPast]:
    """What is kept of one key, in whatever domain it is one. Raises: StateError."""
    for past in pasts:
        asking = [level[past.domain] for level in programs if past.domain in level]
        if not asking:
            continue
        histories = decode_head(past.head, _loader(past))
        rows = [_of_key(Block(histories.keys, histories.pinned), key)]
        rows += [_of_key(segment.load(), key) for segment in histories.segments if not segment.panes]
        panes = sum(len(_of_key(segment.load(), key)) for segment in histories.segments if segment.panes)
        events = sorted((e for part in rows for e in _events(part, asking[0])), key=lambda e: e["event_time"])
        unique = [e for at, e in enumerate(events) if at == 0 or e != events[at - 1]]
        tallies = tuple(
            {name: value for program in asking for name, value in _tallies(histories, key, program)}.items()
        )
        if unique or tallies or panes:
            clock_ms = histories.facts.clock_ms
            clock = utc_text(clock_ms) if EVENT_TIME_MS_MIN <= clock_ms <= EVENT_TIME_MS_MAX else ""
            yield KeyPast(past.domain, clock, tallies, len(unique), tuple(unique[-_EVENTS_SHOWN:]), panes)


def _unread(kept: Kept) -> Block:
    raise AssertionError(f"segment {kept.number} is only counted")


def _loader(past: StoredPast) -> Load:
    return lambda kept: decode_segment(past.segments[kept.number])


def _of_key(block: Block, key: str) -> HistoryRows:
    names = block.keys.to_pylist()
    at = names.index(key) if key in names else -1
    return block.rows.take(np.flatnonzero(block.rows.key == at))


def _events(rows: HistoryRows, program: Program) -> Iterator[dict[str, Any]]:
    names = [event_type.name for event_type in program.schema.event_types]
    types = program.schema.columns()
    columns = {name: [_in_words(v, types[name]) for v in c.to_pylist()] for name, c in rows.columns.items()}
    for at, (code, time_ms) in enumerate(zip(rows.event_type.tolist(), rows.time_ms.tolist(), strict=True)):
        fields = {name: values[at] for name, values in columns.items() if values[at] is not None}
        yield {"event_time": utc_text(time_ms), "event_type": names[code], **fields}


def _in_words(value: Any, type_: Type) -> Any:
    if value is None:
        return None
    if type_.kind is Kind.ENUM:
        return type_.symbols[value]
    return value / 10**type_.scale if type_.kind is Kind.DECIMAL else value


def _tallies(histories: Histories, key: str, program: Program) -> Iterator[tuple[str, int | float]]:
    names = histories.keys.to_pylist()
    if key not in names or program.histories is None:
        return
    at, types = names.index(key), program.schema.columns()
    for history in program.histories.histories:
        if history.tally in histories.tallies:
            yield show_expr(history.expr), _value(history, histories.tallies[history.tally][at : at + 1])
        elif history.tally in histories.sub_tallies:
            entries = histories.sub_tallies[history.tally]
            for entry in np.flatnonzero(entries.key == at)[:_SUB_KEYS_SHOWN].tolist():
                fields = zip(history.expr.by, entries.by, strict=True)
                sub_key = ", ".join(str(_in_words(values[entry].as_py(), types[name])) for name, values in fields)
                yield f"{show_expr(history.expr)} [{sub_key}]", _value(history, entries.sums[entry : entry + 1])


def _value(history: HistoryColumn, tally: np.ndarray) -> int | float:
    count = int(tally[0, 0])
    if history.expr.fn == "count" or history.expr.argument is None:
        return count
    if history.has_float_tally:
        found = float(float_values(tally)[0])
        return found / count if history.expr.fn == "avg" and count else found
    scale: int = 10**history.expr.argument.type.scale
    if history.expr.fn == "stddev":
        return float(spreads(tally)[0]) / scale
    total = int(whole_sums(tally)[0][0]) / scale
    return total if history.expr.fn == "sum" else total / count if count else 0
