"""Rules in force → the time from which the input of each of them is complete.

A replay sees every event. A live job has only the events that some rule, or `retain`, made it store. So an alert whose
windows reach back too far has a time in `history_from`. That time may be too late, never too early. The rule:

1. The input of a rule is complete from the job's first event on, if the rule existed before it.
2. A later rule has complete histories from its own start on. They are complete from an earlier time if all their events
   have been stored since then: by an equal history, a
   wider one of the same event type, or `retain`.
3. For a key so busy that old events were folded, only an equal history counts for 2.
4. The *absence* of a derived event is certain only while its producers existed: from the start of each producer, and
   from the time from which its own input is complete.

Example: rule R, `count(payment over 1 h)`, starts at 12:00. Another rule stores payments for only 30 minutes, so R's
alerts have `history_from` 12:00 until 13:00. With `retain 1 h` in event type `payment` they have none.

    R's start 12:00 ├──────────── stored for R ─────────▶
    alert at 12:40   ◀── 1 h ──────────┤   reaches back to before 12:00: history_from = 12:00
    alert at 13:10              ◀── 1 h ──────────┤   complete

A condition that is written differently from another rule's counts as a different one. producer_gaps.py has point 4.
Tested by: tests/rulebook/test_completeness.py, tests/runners/test_later_rules.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.lang.ir import Binary, Call, CurrentField, Expr, History, PatternIR
from cep.lang.walk import histories, nodes
from cep.nfa.deployed import DeployedRule
from cep.nfa.histories import is_approximate, is_foldable, is_single, pane_ms, span_ms


@dataclass(frozen=True, slots=True)
class Need:
    """The past events of one history: events that satisfy all `conditions`, for `span_ms`, with these `columns`.

    Equal histories have the same `identity`. Some histories store no events for others (`keeps_events`): histories that
    one event decides, and approximate ones. The window of an approximate one may reach back by a pane of `pane_ms` more
    than its length. `folds`: for a busy key the older events are folded, only for this `identity`.
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
        """Return True if all that `other` reads is kept for this one."""
        return (
            self.keeps_events
            and self.event_type == other.event_type
            and self.span_ms >= other.span_ms
            and self.conditions <= other.conditions
            and self.columns >= other.columns
        )


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A rule of the same key domain and level, with its needs. The times are as in DeployedRule."""

    needs: tuple[Need, ...]
    complete_ms: tuple[int, ...]
    unfolded_ms: tuple[int, ...] = ()

    @property
    def domain_ms(self) -> int:
        """The time since when the key domain has had a rule, as far as this rule knows."""
        return self.complete_ms[0] if self.complete_ms else TIME_MS_MIN

    def retained_needs(self) -> Iterator[tuple[Need, int]]:
        """Yield each need with the time since when its events are kept."""
        times = self.complete_ms[1:] or (TIME_MS_MIN,) * len(self.needs)
        return zip(self.needs, times, strict=True)


def needs_of(pattern: PatternIR) -> tuple[Need, ...]:
    """Return the need of each history of the pattern, in the order of `walk.histories`."""
    return tuple(_need(history) for history in histories(pattern))


@lru_cache(4_096)
def _need(history: History) -> Need:
    conditions = {repr(part) for part in _conjuncts(history.where)}
    conditions |= {f"{name} is not null" for name in history.by}
    argument = history.argument
    if argument is not None and history.fn not in ("first", "last"):  # a bad value of any field is null
        name = argument.field if isinstance(argument, CurrentField) else repr(argument)
        conditions.add(f"{name} is not null")
    columns = set(history.by)
    for node in nodes((history.argument, history.where)):
        if isinstance(node, CurrentField):
            columns.add(node.field)
        elif isinstance(node, Call) and node.fn == "in_list":
            columns.add(repr(node))  # the list's result is stored with the event, for the rules that use it
    rounded_ms = pane_ms(history) if is_approximate(history) else 0
    return Need(
        identity=repr(replace(history, percent=None) if rounded_ms else history),
        event_type=history.event_type,
        span_ms=span_ms(history) + rounded_ms,
        keeps_events=not (rounded_ms or is_single(history)),
        conditions=frozenset(conditions),
        columns=frozenset(columns),
        pane_ms=rounded_ms,
        folds=is_foldable(history),
    )


def _conjuncts(where: Expr | None) -> Iterator[Expr]:
    if isinstance(where, Binary) and where.op == "and":
        yield from _conjuncts(where.left)
        yield from _conjuncts(where.right)
    elif where is not None:
        yield where


def with_completeness(
    rule: DeployedRule, needs: Sequence[Need], from_ms: int, neighbours: Sequence[Neighbour], schema: Schema
) -> DeployedRule:
    """Add the times of points 2 and 3 to a rule that starts at `from_ms` in a job that has matched events already."""
    domain_ms = min([from_ms, *(neighbour.domain_ms for neighbour in neighbours)])
    retained_needs = [pair for neighbour in neighbours for pair in neighbour.retained_needs()]
    times = [(min(from_ms, _retained_since(need, retained_needs, domain_ms, schema)), need.pane_ms) for need in needs]
    complete_ms = (
        domain_ms,
        *(time_ms if time_ms == TIME_MS_MIN else time_ms + rounded_ms for time_ms, rounded_ms in times),
    )
    unfolded: dict[str, int] = {}
    for neighbour in neighbours:
        unfolded_ms = neighbour.unfolded_ms or (TIME_MS_MIN,) * len(neighbour.needs)
        for need, at_ms in zip(neighbour.needs, unfolded_ms, strict=True):
            unfolded[need.identity] = min(at_ms, unfolded.get(need.identity, TIME_MS_MAX))
    unfolded_ms = tuple(min(from_ms, unfolded.get(n.identity, from_ms)) if n.folds else TIME_MS_MIN for n in needs)
    return replace(rule, complete_ms=_or_none(complete_ms), unfolded_ms=_or_none(unfolded_ms))


def _retained_since(need: Need, retained_needs: Sequence[tuple[Need, int]], domain_ms: int, schema: Schema) -> int:
    """Return the time from which all needed events are stored, TIME_MS_MAX if they are not."""
    equal = [complete_ms for other, complete_ms in retained_needs if other.identity == need.identity]
    if equal:
        return min(equal)
    times = [complete_ms for other, complete_ms in retained_needs if other.covers(need)]
    event_type = schema.event_type(need.event_type)
    if event_type is not None and (event_type.retain_ms or 0) >= need.span_ms:
        retained = {field.name for field in event_type.fields}  # but no answers of lists about the events
        times += [domain_ms] * (need.columns <= retained)
    return min(times, default=TIME_MS_MAX)


def _or_none(times_ms: tuple[int, ...]) -> tuple[int, ...]:
    """Return no times if everything is complete since the job's first event."""
    return times_ms if any(time_ms > TIME_MS_MIN for time_ms in times_ms) else ()
