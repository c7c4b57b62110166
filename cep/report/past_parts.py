"""The head of a page of histories → stored history bytes, by rule.

    retained events by retention time, of segments                the rules and event types that need this time
    panes           of approximate functions, of busy keys        by history
    pinned events   that decide values alone, of heads            by event type
    carried         tallies, of heads                             by history

Data of several rules is stored once, so it is counted once and names all of them. Bytes are shares of the stored bytes,
in proportion to rows; the bytes of unneeded data have no rule.
Tested by: tests/report/test_keyed_state.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cep.base.limits import TIME_MS_MAX
from cep.histories.store import Histories, span_code
from cep.lang.show import show_duration, show_expr
from cep.lang.walk import histories as histories_in
from cep.nfa.histories import HistoryColumn, HistoryPlan
from cep.nfa.program import Program

_KINDS = ("kept events", "panes", "pinned events", "carried")


@dataclass(frozen=True, slots=True)
class PastPart:
    """A part of the stored past of a key domain, and the rules that need it.

    `kind` is one of the four words above, `of` is its object, `rows` counts events or entries, `size` is bytes.
    """

    kind: str
    of: str
    rows: int
    size: int
    rules: tuple[str, ...]


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
        """Return the event types and retention time that a span code (rows.py) stands for.

        The second value is the rules that need these events.
        """
        readers = [
            (column.expr.event_type, column.span_ms, rules)
            for column, rules in self._columns
            if not (column.is_single or column.is_approximate) and span_code(column.span_ms) == code
        ]
        readers += [(name, ms, (f"retain of {name}",)) for name, ms in self._retained if span_code(ms) == code]
        if not readers:
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
        """Return the histories of panes, and their rules."""
        return _histories_and_rules((column, rules) for column, rules in self._columns if column.panes == number)

    def tallied(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Return the histories of a tally, and their rules."""
        return _histories_and_rules((column, rules) for column, rules in self._columns if name in _carried_as(column))


def _carried_as(column: HistoryColumn) -> tuple[str, ...]:
    return column.tally, column.counted, column.ranked, column.band


def parts_of(histories: Histories, askers: RulesWithHistories) -> Iterator[PastPart]:
    """Divide the past of one page into parts by rule; the same part may come several times."""
    for segment in histories.segments:
        size = segment.stored.size if segment.stored is not None else 0
        if segment.panes:
            owner, rules = askers.panes(segment.panes)
            yield PastPart("panes", owner, len(segment), size, rules)
            continue
        for code, count in segment.spans.items():
            owner, rules = askers.retained(code)
            yield PastPart("kept events", owner, count, round(size * count / len(segment)), rules)
    pinned = histories.pinned
    codes, counts = np.unique(pinned.event_type, return_counts=True)
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        owner, rules = askers.pinned(code)
        yield PastPart("pinned events", owner, count, round(pinned.nbytes * count / len(pinned)), rules)
    sizes: Mapping[str, tuple[int, int]] = {
        **{name: (int((tally[:, 0] != 0).sum()), tally.nbytes) for name, tally in histories.tallies.items()},
        **{name: (len(entries), entries.nbytes) for name, entries in histories.sub_tallies.items()},
    }
    for name, (count, size) in sizes.items():
        owner, rules = askers.tallied(name)
        yield PastPart("carried", owner, count, size, rules)


def joined(parts: Iterable[PastPart]) -> tuple[PastPart, ...]:
    """Equal parts as one, kind by kind, the largest first."""
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
