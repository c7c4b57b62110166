"""Rules in force → the time from which the input of each of them is complete.

A replay sees every event. A live job has only the events that some rule, or `retain`, made it store. So an alert whose
windows reach back too far has a time in `history_from`. That time may be too late, never too early. The rule:

1. The input of a rule is complete from the job's first event on, if the rule existed before it.
2. A later rule has complete histories from its own start on. They are complete from an earlier time if all their events
   have been stored since then: by an equal history, a wider one of the same event type, or `retain`.
3. For a key so busy that old events were folded, only an equal history counts for 2.
4. The *absence* of a derived event is certain only while its producers existed: from the start of each producer, and
   from the time from which its own input is complete (`with_producer_gaps`).

Example: rule R, `count(payment over 1 h)`, starts at 12:00. Another rule stores payments for only 30 minutes, so R's
alerts have `history_from` 12:00 until 13:00. With `retain 1 h` in event type `payment` they have none.

    R's start 12:00 ├──────────── stored for R ─────────▶
    alert at 12:40   ◀── 1 h ──────────┤   reaches back to before 12:00: history_from = 12:00
    alert at 13:10              ◀── 1 h ──────────┤   complete

A condition that is written differently from another rule's counts as a different one.
Tested by: tests/rulebook/test_carry.py, tests/runners/test_later_rules.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cep.base.limits import PRODUCER_GAPS_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.lang.ir import (
    ONCE,
    AnyOrderNode,
    Binary,
    Call,
    CurrentField,
    Expr,
    History,
    Inner,
    Link,
    PatternIR,
    Quantifier,
    Step,
    VarNode,
)
from cep.lang.walk import histories, nodes
from cep.nfa.deployed import FOR_EVER, DeployedRule, ProducerGap
from cep.nfa.histories import is_approximate, is_foldable, is_single, pane_ms, span_ms


@dataclass(frozen=True, slots=True)
class Need:
    """The past events that a history, such as `count(payment over 1 h)`, needs to have stored.

    The events satisfy all `conditions`, have `columns` and stay for `span_ms`. Equal histories have equal `identity`.
    `keeps_events`: all events of its window are stored, so other histories can read them, too. This is False if one
    event decides (`last`, `exists`), and for an approximate history, which stores panes (partial aggregates of one time
    slice). `pane_ms` is the length of a pane, 0 without panes: the first pane may begin so long before the window.
    `folds`: the older events of a busy key are merged into an aggregate, which only equal histories can read.
    """

    identity: str
    event_type: str
    span_ms: int
    keeps_events: bool
    conditions: frozenset[str]
    columns: frozenset[str]
    pane_ms: int = 0
    folds: bool = False

    def covers(self, other: Need) -> bool:
        """Return True if all the events and columns that `other` needs are stored for this one."""
        return (
            self.keeps_events
            and self.event_type == other.event_type
            and self.span_ms >= other.span_ms
            and self.conditions <= other.conditions
            and self.columns >= other.columns
        )


def needs_of(pattern: PatternIR) -> tuple[Need, ...]:
    """Return the need of each history of the pattern, in the order of `walk.histories`."""
    return tuple(_need_of(history) for history in histories(pattern))


@lru_cache(4_096)
def _need_of(history: History) -> Need:
    """Find the past events and columns that a history reads. A pane is a partial aggregate of one time slice."""
    conditions = {repr(part) for part in _conjuncts(history.where)}
    conditions |= {f"{name} is not null" for name in history.by}
    argument = history.argument
    if argument is not None and history.fn not in ("first", "last"):  # these two also take an event with a null
        name = argument.field if isinstance(argument, CurrentField) else repr(argument)
        conditions.add(f"{name} is not null")
    columns = set(history.by)
    for node in nodes((history.argument, history.where)):
        if isinstance(node, CurrentField):
            columns.add(node.field)
        elif isinstance(node, Call) and node.fn == "in_list":
            columns.add(repr(node))  # the list's result is stored with the event, for the rules that use it
    is_of_panes = is_approximate(history)  # it stores panes in place of events
    reach_of_pane_ms = pane_ms(history) if is_of_panes else 0  # its first pane may begin before the window
    return Need(
        identity=repr(replace(history, percent=None) if is_of_panes else history),  # panes serve any percentage
        event_type=history.event_type,
        span_ms=span_ms(history) + reach_of_pane_ms,
        keeps_events=not (is_of_panes or is_single(history)),  # single: one event decides, as for `last`
        conditions=frozenset(conditions),
        columns=frozenset(columns),
        pane_ms=reach_of_pane_ms,
        folds=is_foldable(history),  # a busy key's old events may be merged into an aggregate
    )


def _conjuncts(where: Expr | None) -> Iterator[Expr]:
    if isinstance(where, Binary) and where.op == "and":
        yield from _conjuncts(where.left)
        yield from _conjuncts(where.right)
    elif where is not None:
        yield where


def with_completeness(
    rule: DeployedRule, needs: Sequence[Need], from_ms: int, neighbours: Sequence[tuple[DeployedRule, Sequence[Need]]],
    schema: Schema,
) -> DeployedRule:  # fmt: skip
    """Add to a rule that starts in a running job the times since when the past events of its histories are stored.

    Example: a rule that starts on day 30 (`from_ms`) reads 10 days of payments (`needs`). If a neighbour (a rule with
    the same key fields and level) has read 10 days or more since day 5, payments are stored since day 5; otherwise
    since day 30. The old events of a busy key are folded (merged into an aggregate), and only an equal history can read
    the aggregate: `folded_since_ms` has the times for such keys.
    """
    first_rule_ms = from_ms  # the first start of a rule with these key fields
    needs_since: list[tuple[Need, int]] = []  # each need of a neighbour, and the time since when its events are stored
    since_by_identity: dict[str, int] = {}  # by the text of an equal history: since when its folded events are there
    for other, needs_of_other in neighbours:
        always = (TIME_MS_MIN,) * len(needs_of_other)  # stored since the job's first event
        other_first_rule_ms, *history_times = other.complete_ms or (TIME_MS_MIN, *always)
        first_rule_ms = min(first_rule_ms, other_first_rule_ms)
        needs_since += zip(needs_of_other, history_times, strict=True)
        for need, since_ms in zip(needs_of_other, other.folded_since_ms or always, strict=True):
            since_by_identity[need.identity] = min(since_ms, since_by_identity.get(need.identity, TIME_MS_MAX))
    complete_ms = [first_rule_ms]  # then for each history the time since when its past events are stored
    for need in needs:
        since_ms = min(from_ms, _retained_since(need, needs_since, first_rule_ms, schema))
        first_pane_ms = need.pane_ms if since_ms > TIME_MS_MIN else 0  # a pane: partial aggregate of one time slice
        complete_ms.append(since_ms + first_pane_ms)  # the first pane lacks the events before `since_ms`
    folded_ms = [min(from_ms, since_by_identity.get(n.identity, from_ms)) if n.folds else TIME_MS_MIN for n in needs]
    return replace(rule, complete_ms=_empty_if_complete(complete_ms), folded_since_ms=_empty_if_complete(folded_ms))


def _retained_since(need: Need, needs_since: Sequence[tuple[Need, int]], first_rule_ms: int, schema: Schema) -> int:
    """Return the time from which all needed events are stored, TIME_MS_MAX if they are not."""
    equal = [since_ms for other, since_ms in needs_since if other.identity == need.identity]
    if equal:
        return min(equal)
    times = [since_ms for other, since_ms in needs_since if other.covers(need)]
    event_type = schema.event_type(need.event_type)
    if event_type is not None and (event_type.retain_ms or 0) >= need.span_ms:
        retained = {field.name for field in event_type.fields}  # but no answers of lists about the events
        times += [first_rule_ms] * (need.columns <= retained)
    return min(times, default=TIME_MS_MAX)


def _empty_if_complete(times_ms: Sequence[int]) -> tuple[int, ...]:
    """Return the times, or none of them if everything is complete since the job's first event (TIME_MS_MIN)."""
    return tuple(times_ms) if any(time_ms > TIME_MS_MIN for time_ms in times_ms) else ()


def with_producer_gaps(rules: Sequence[DeployedRule], schema: Schema) -> list[DeployedRule]:
    """Return the rules in their order, each with its `gaps`. Costs nothing where no rule produces anything."""
    producers: dict[str, list[DeployedRule]] = {}
    for rule in rules:
        if rule.pattern.produces is not None and rule.status == "live":  # a shadow rule produces nothing
            producers.setdefault(rule.pattern.produces, []).append(rule)
    if not producers:
        return list(rules)
    gaps = _Gaps(producers, schema)
    return [replace(rule, gaps=lacks) if (lacks := gaps.gaps_of_reader(rule.pattern)) else rule for rule in rules]


class _Gaps:
    """The gaps of each derived event type: times before which derived events may be missing.

    A match that depends on the *absence* of a derived event is certain only if every producer of that event would have
    produced it. A producer misses events before its start, before the stored past of its histories, and before the
    job's first event. It also misses the events that its own producers miss.

        a producer         ├── from_ms ─────────────────────▶
        looks back   ◀── its window ──┤◀─ its within ─┤◀─ the reader's window ─┤
                     ▲ before since_ms: derived events may be missing           a match of the reader

    The lengths are added, so a gap is one number: how far before its first event a match is affected. A calendar unit
    counts with its greatest length. A producer without a `within` looks back without limit, unless it binds one event.
    Like a history without a window, its gap is relative to its own start, not to the job's first event.

    A derived event that a match binds brings its own `history_from` (engine/produced.py). So only these parts of a
    reader need gaps: an absence, a repetition, a directly following step, a window in events, a time-out, and a history
    of derived events. Limit: the choice of a `skip` among several matches counts as certain.
    """

    def __init__(self, producers: dict[str, list[DeployedRule]], schema: Schema) -> None:
        self._producers, self._schema = producers, schema
        self._by_type: dict[str, tuple[ProducerGap, ...]] = {}

    def gaps_of_reader(self, pattern: PatternIR) -> tuple[ProducerGap, ...]:
        """Return the gaps seen from the first event of a match."""
        gaps = list(self._gaps_of_histories(pattern, 0))
        for name in absent_types(pattern, frozenset(self._producers)):
            gaps += self._gaps_of_type(name)
        return _merged_gaps(gaps)

    def _gaps_of_type(self, name: str) -> tuple[ProducerGap, ...]:
        if name not in self._by_type:
            self._by_type[name] = ()  # rules in a circle are matched at one level, which reads no derived events
            rules = self._producers.get(name, ())
            self._by_type[name] = _merged_gaps(gap for rule in rules for gap in self._gaps_of_producer(rule))
        return self._by_type[name]

    def _gaps_of_producer(self, rule: DeployedRule) -> Iterator[ProducerGap]:
        """Yield the gaps of a producer (a rule that produces events): it lacks the input from before `since_ms`.

        Example: a producer with `within 1 h` starts at 12:00. Until 13:00, some of its events may be missing, because
        their matches began before 12:00. This is a gap with `since_ms` 12:00 and `reach_ms` 1 h. In a second gap, the
        job's first event takes the place of the start (`since_ms` None). Each history brings two such gaps, too.
        """
        pattern, match_ms = rule.pattern, match_reach_ms(rule.pattern)  # match_ms: the longest time of a match
        # `complete_ms` is () if the input is complete. Its first time is for all events, the others are for histories.
        _, *history_times = rule.complete_ms or (TIME_MS_MIN,) * (1 + sum(1 for _ in histories(pattern)))
        gaps = [ProducerGap(_zero_if_unlimited(match_ms), since_ms=None), ProducerGap(match_ms, since_ms=rule.from_ms)]
        for history, since_ms in zip(histories(pattern), history_times, strict=True):
            reach_ms = _reach_ms(history)  # how far its window reaches back
            gaps.append(ProducerGap(_zero_if_unlimited(match_ms) + _zero_if_unlimited(reach_ms), since_ms=None))
            gaps.append(ProducerGap(min(match_ms + reach_ms, FOR_EVER), since_ms=since_ms))
        gaps += self._gaps_of_histories(pattern, match_ms)
        gaps += [_with_added_reach(match_ms, gap) for name in pattern.event_types for gap in self._gaps_of_type(name)]
        for gap in gaps:  # each counts only while the rule starts matches; TIME_MS_MIN: its input was always complete
            from_ms, until_ms = max(gap.from_ms, rule.from_ms), min(gap.until_ms, rule.starts_until_ms)
            if from_ms < until_ms and gap.since_ms != TIME_MS_MIN:
                yield replace(gap, from_ms=from_ms, until_ms=until_ms)

    def _gaps_of_histories(self, pattern: PatternIR, match_ms: int) -> Iterator[ProducerGap]:
        """Yield the gaps of the derived events that the pattern's histories count."""
        for history in histories(pattern):
            for name in self._types(history):
                for gap in self._gaps_of_type(name):
                    yield _with_added_reach(match_ms, _with_added_reach(_reach_ms(history), gap))

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


def _zero_if_unlimited(reach_ms: int) -> int:
    """Return the reach, or 0 if it is unlimited: an unlimited reach is not measured from the job's first event."""
    return 0 if reach_ms >= FOR_EVER else reach_ms


def _with_added_reach(reach_ms: int, gap: ProducerGap) -> ProducerGap:
    """Return the gap of a reader that looks back `reach_ms` further than the gap's own reach."""
    if gap.since_ms is None:
        return replace(gap, reach_ms=gap.reach_ms + _zero_if_unlimited(reach_ms))
    return replace(gap, reach_ms=min(gap.reach_ms + reach_ms, FOR_EVER))


def _merged_gaps(gaps: Iterable[ProducerGap]) -> tuple[ProducerGap, ...]:
    """Merge gaps that differ only in `reach_ms`: the largest reach covers the others. Too many become two wider ones.

    A gap says that a rule lacked the input from before `since_ms` (None: the job's first event). Its events may be
    missing for a match that begins less than `reach_ms` after `since_ms` and is detected in [from_ms, until_ms).
    """
    reach_ms: dict[tuple[int | None, int, int], int] = {}  # by since_ms, from_ms and until_ms
    for gap in gaps:
        if gap.reach_ms or gap.since_ms is not None:  # otherwise it reads nothing before the first event
            time_and_interval = (gap.since_ms, gap.from_ms, gap.until_ms)
            reach_ms[time_and_interval] = max(gap.reach_ms, reach_ms.get(time_and_interval, 0))
    merged = tuple(ProducerGap(reach, *time_and_interval) for time_and_interval, reach in reach_ms.items())
    if len(merged) <= PRODUCER_GAPS_MAX:
        return merged
    interval = min(gap.from_ms for gap in merged), max(gap.until_ms for gap in merged)  # covers all intervals
    longest_reach_ms = max((gap.reach_ms for gap in merged if gap.since_ms is None), default=0)
    latest_ms = max((gap.since_ms for gap in merged if gap.since_ms is not None), default=TIME_MS_MIN)
    return (ProducerGap(longest_reach_ms, None, *interval), ProducerGap(FOR_EVER, latest_ms, *interval))
