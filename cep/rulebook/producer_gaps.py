"""Rules in force → the gaps of their producers: times before which derived events may be missing.

Point 4 of completeness.py. A match that depends on the *absence* of a derived event is certain only if every producer
of that event would have produced it. A producer misses events before its start, before the stored past of its
histories, and before the job's first event. It also misses the events that its own producers miss.

    a producer         ├── from_ms ─────────────────────▶
    looks back   ◀── its window ──┤◀─ its within ─┤◀─ the reader's window ─┤
                 ▲ before since_ms: derived events may be missing           a match of the reader

The lengths are added, so a gap is one number: how far before its first event a match is affected. A calendar unit
counts with its greatest length. A producer without a `within` looks back without limit, unless it binds one event. Like
a history without a window, its gap is relative to its own start, not to the job's first event.

A derived event that a match binds brings its own `history_from` (engine/produced.py). So only these parts of a reader
need gaps: an absence, a repetition, a directly following step, a window in events, a time-out, and a history of derived
events. Limit: the choice of a `skip` among several matches counts as certain. The gaps follow from the rules in force
when a match is detected, never from micro-batches or later rules.
Tested by: tests/rulebook/test_producer_gaps.py, tests/runners/test_producer_gaps.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from cep.base.limits import PRODUCER_GAPS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.lang.ir import ONCE, AnyOrderNode, History, Inner, Link, PatternIR, Quantifier, Step, VarNode
from cep.lang.walk import histories, nodes
from cep.nfa.deployed import FOR_EVER, DeployedRule, ProducerGap
from cep.nfa.histories import span_ms


def with_producer_gaps(rules: Sequence[DeployedRule], schema: Schema) -> list[DeployedRule]:
    """Return the rules in their order, each with its `gaps`. Costs nothing where no rule produces anything."""
    producers: dict[str, list[DeployedRule]] = {}
    for rule in rules:
        if rule.pattern.produces is not None and rule.status == "live":  # a shadow rule produces nothing
            producers.setdefault(rule.pattern.produces, []).append(rule)
    if not producers:
        return list(rules)
    gaps = _Gaps(producers, schema)
    return [replace(rule, gaps=lacks) if (lacks := gaps.of_reader(rule.pattern)) else rule for rule in rules]


class _Gaps:
    """The gaps of each derived event type, each worked out once."""

    def __init__(self, producers: dict[str, list[DeployedRule]], schema: Schema) -> None:
        self._producers, self._schema = producers, schema
        self._by_type: dict[str, tuple[ProducerGap, ...]] = {}

    def of_reader(self, pattern: PatternIR) -> tuple[ProducerGap, ...]:
        """Return the gaps seen from the first event of a match."""
        gaps = list(self._of_histories(pattern, 0))
        for name in absent_types(pattern, frozenset(self._producers)):
            gaps += self._of_type(name)
        return _widest(gaps)

    def _of_type(self, name: str) -> tuple[ProducerGap, ...]:
        if name not in self._by_type:
            self._by_type[name] = ()  # rules in a circle are matched at one level, which reads no derived events
            rules = self._producers.get(name, ())
            self._by_type[name] = _widest(gap for rule in rules for gap in self._of_producer(rule))
        return self._by_type[name]

    def _of_producer(self, rule: DeployedRule) -> Iterator[ProducerGap]:
        """Yield the gaps seen from an event that the rule produces, while it starts matches."""
        pattern, match_ms = rule.pattern, match_reach_ms(rule.pattern)
        whole_ms = rule.complete_ms[1:] or (TIME_MS_MIN,) * sum(1 for _ in histories(pattern))
        gaps = [ProducerGap(_lasting(match_ms), None), ProducerGap(match_ms, rule.from_ms)]
        for history, since_ms in zip(histories(pattern), whole_ms, strict=True):
            gaps.append(ProducerGap(_lasting(match_ms) + _lasting(_reach_ms(history)), None))
            gaps.append(ProducerGap(min(match_ms + _reach_ms(history), FOR_EVER), since_ms))
        gaps += self._of_histories(pattern, match_ms)
        gaps += [_further(match_ms, gap) for name in pattern.event_types for gap in self._of_type(name)]
        for gap in gaps:
            from_ms, until_ms = max(gap.from_ms, rule.from_ms), min(gap.until_ms, rule.starts_until_ms)
            if from_ms < until_ms and gap.since_ms != TIME_MS_MIN:
                yield replace(gap, from_ms=from_ms, until_ms=until_ms)

    def _of_histories(self, pattern: PatternIR, match_ms: int) -> Iterator[ProducerGap]:
        """Yield the gaps of the derived events that the pattern's histories count."""
        for history in histories(pattern):
            for name in self._types(history):
                for gap in self._of_type(name):
                    yield _further(match_ms, _further(_reach_ms(history), gap))

    def _types(self, history: History) -> list[str]:
        if history.event_type:
            return [history.event_type] if history.event_type in self._producers else []
        types = [self._schema.event_type(name) for name in self._producers]  # any that has the fields
        return [e.name for e in types if e is not None and all(e.field(name) is not None for name in history.by)]


def absent_types(pattern: PatternIR, derived: frozenset[str]) -> list[str]:
    """Return the derived event types whose absence decides: no event of them, or fewer than there might be."""
    read = [name for name in pattern.event_types if name in derived]
    parts = list(nodes(pattern.structure))
    if pattern.within_events is not None or pattern.timeout_measures is not None or any(map(_is_strict, parts)):
        return read
    open_parts = [part for part in parts if _is_open(part)]
    names = {node.variable for part in open_parts for node in nodes(part) if isinstance(node, VarNode)}
    return [name for name in read if any(v.event_type == name for v in pattern.variables if v.name in names)]


def _is_strict(part: object) -> bool:
    """Return True if any event in between, of any type, affects the match."""
    if isinstance(part, Quantifier):
        return part.inner is Inner.STRICT or part.until is not None
    return isinstance(part, Step) and part.link is Link.NEXT


def _is_open(part: object) -> bool:
    """Return True if it takes as many events as there are, or none."""
    quantifier = getattr(part, "quantifier", ONCE)
    return getattr(part, "negated", False) or quantifier.min_count != quantifier.max_count


def match_reach_ms(pattern: PatternIR) -> int:
    """Return how far before its detection a match of the pattern begins at most; FOR_EVER without a `within`."""
    if isinstance(pattern.within_ms, int):
        return pattern.within_ms  # an absence is certain at first + within
    binds_one = len(pattern.variables) == 1 and not any(
        isinstance(part, AnyOrderNode) or (isinstance(part, Quantifier) and part.max_count != 1)
        for part in nodes(pattern.structure)
    )
    return 0 if binds_one else FOR_EVER


def _reach_ms(history: History) -> int:
    """Return how far before an event its window begins at most."""
    return FOR_EVER if history.window is None else span_ms(history) - 1


def _lasting(reach_ms: int) -> int:
    """Return the part of a reach that says something of the job's first event: for ever says nothing of it."""
    return 0 if reach_ms >= FOR_EVER else reach_ms


def _further(reach_ms: int, gap: ProducerGap) -> ProducerGap:
    """Return the gap as it is seen from `reach_ms` later."""
    if gap.since_ms is None:
        return replace(gap, reach_ms=gap.reach_ms + _lasting(reach_ms))
    return replace(gap, reach_ms=min(gap.reach_ms + reach_ms, FOR_EVER))


def _widest(gaps: Iterable[ProducerGap]) -> tuple[ProducerGap, ...]:
    """Return one gap for each time and interval. If they are too many, return two that say as much or more."""
    reach_ms: dict[tuple[int | None, int, int], int] = {}
    for gap in gaps:
        if gap.reach_ms or gap.since_ms is not None:  # otherwise it does not reach back before the job's first event
            span = (gap.since_ms, gap.from_ms, gap.until_ms)
            reach_ms[span] = max(gap.reach_ms, reach_ms.get(span, 0))
    widest = tuple(ProducerGap(reach_ms[span], *span) for span in reach_ms)
    if len(widest) <= PRODUCER_GAPS_MAX:
        return widest
    times_ms = min(gap.from_ms for gap in widest), max(gap.until_ms for gap in widest)
    first_ms = max((gap.reach_ms for gap in widest if gap.since_ms is None), default=0)
    latest_ms = max((gap.since_ms for gap in widest if gap.since_ms is not None), default=TIME_MS_MIN)
    return (ProducerGap(first_ms, None, *times_ms), ProducerGap(FOR_EVER, latest_ms, *times_ms))
