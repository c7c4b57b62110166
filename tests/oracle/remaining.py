"""The rest of a pattern → all possible next waits.

The rest of a pattern, as seen from one wait, is a linked list of frames: the remaining part of each group, loop and
any-order around the wait. `enter` and `proceed` walk it forward to the next waits; nothing here knows of events.
Tested by: tests/oracle/test_oracle.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from cep.lang import ir

C = TypeVar("C", bound=type)


def hashed_once(cls: C) -> C:
    """Cache the hash of each instance: the hash of a tree is needed again and again, and never changes."""
    compute: Any = cls.__hash__  # of the class, so it takes the instance

    def cached(self: Any) -> int:
        value: int | None = self.__dict__.get("_hash")
        if value is None:
            value = int(compute(self))
            object.__setattr__(self, "_hash", value)
        return value

    cls.__hash__ = cached  # type: ignore[assignment]
    return cls


@hashed_once
@dataclass(frozen=True)
class Steps:
    """The rest of one round of a group: the steps from `index` on.

    `began_ms` is the time of the round's first event, which must come at least `least_ms` after the event before it.
    """

    node: ir.SequenceNode
    index: int
    round: int
    began_ms: int | None
    rest: Rest
    least_ms: int = 0


@hashed_once
@dataclass(frozen=True)
class Repeat:
    """A variable that has been taken `done` times and may be taken again."""

    node: ir.VarNode
    done: int
    rest: Rest


@hashed_once
@dataclass(frozen=True)
class Items:
    """The items of an any-order that have not been met yet."""

    items: tuple[ir.Node, ...]
    rest: Rest


Rest = Steps | Repeat | Items | None


@dataclass(frozen=True)
class Absence:
    """`-> !variable`, `, !variable`: breaks the run while the time since its last event lies in [gap_min, gap_max)."""

    variable: str
    gap_min_ms: int
    gap_max_ms: int | None


@hashed_once
@dataclass(frozen=True)
class Arrival:
    """How the next event has to come.

    The first event of the match has a `link` of None. `times_ms` are the step times of the absences, including `, !x`.
    `greedy` holds the waits with which greedy loops that have been left would have gone on.
    """

    link: ir.Link | None
    gap_min_ms: int = 0
    gap_max_ms: int | None = None
    absences: tuple[Absence, ...] = ()
    not_next: tuple[Absence, ...] = ()
    greedy: tuple[Wait, ...] = ()
    times_ms: tuple[int | None, ...] = ()

    @property
    def holds_absence(self) -> bool:
        return bool(self.absences or self.not_next)


@hashed_once
@dataclass(frozen=True)
class Wait:
    """A wait for an event that fits `variable`, then `rest`. Without a variable, a wait for the absences to be certain.

    `rounds` holds the open waits for another round of the group before this wait. An outer group's round begins after a
    round of the inner group that ends it, so its waits have rounds as well.
    """

    variable: str | None
    arrival: Arrival
    rest: Rest
    rounds: tuple[Wait, ...] = ()

    @property
    def is_certain(self) -> bool:
        """Whether the match is complete, without a wait for an event or an absence."""
        return self.variable is None and not self.arrival.holds_absence


FRESH = Arrival(ir.Link.FOLLOWED_BY)
_INNER_LINK = {
    ir.Inner.RELAXED: ir.Link.FOLLOWED_BY,
    ir.Inner.STRICT: ir.Link.NEXT,
    ir.Inner.ANY: ir.Link.FOLLOWED_BY_ANY,
}


def proceed(rest: Rest, arrival: Arrival) -> list[Wait]:
    """Return all possible next waits when `rest` remains."""
    return list(_proceed(rest, arrival))


@lru_cache(4096)
def _proceed(rest: Rest, arrival: Arrival) -> list[Wait]:
    """Compute `proceed` once for many keys: the result depends only on the arguments."""
    match rest:
        case None:
            return [Wait(None, arrival, None)]
        case Steps(node=node, index=index) if index == len(node.steps):
            return _finish_round(rest, arrival)
        case Steps(node=node, index=index):
            step, after = node.steps[index], replace(rest, index=index + 1)
            if step.negated:
                return proceed(after, _forbidding(arrival, step))
            # The first step of a round arrives as the caller that entered the round says.
            return enter(step.node, arrival if index == 0 else _linked(arrival, step), after)
        case Repeat(node=node, done=done, rest=outer):
            return _repeat(node, done, arrival, outer)
        case Items(items=(), rest=outer):
            return proceed(outer, arrival)
        case Items(items=items, rest=outer):
            return _any_order(items, replace(arrival, link=ir.Link.FOLLOWED_BY, gap_min_ms=0, gap_max_ms=None), outer)


def enter(node: ir.Node, arrival: Arrival, rest: Rest) -> list[Wait]:
    """Return all possible next waits when `node` comes next and then `rest`."""
    match node:
        case ir.VarNode():
            return _repeat(node, 0, arrival, rest)
        case ir.SequenceNode():
            return _rounds(node, 0, arrival, rest)
        case ir.AlternativeNode(options=options):
            return [wait for option in options for wait in enter(option, arrival, rest)]
        case ir.AnyOrderNode(items=items):
            return _any_order(items, arrival, rest)


def _any_order(items: tuple[ir.Node, ...], arrival: Arrival, rest: Rest) -> list[Wait]:
    """Return the waits for any of the items first, and the others after it."""
    waits = []
    for i, item in enumerate(items):
        waits += enter(item, arrival, Items(items[:i] + items[i + 1 :], rest))
    return waits


def _repeat(node: ir.VarNode, count: int, arrival: Arrival, rest: Rest) -> list[Wait]:
    """Return the waits for one more repetition of a variable, or for the part after it."""
    more = []
    if _may_repeat(node.quantifier, count):
        how = arrival if count == 0 else _again(node.quantifier, count, arrival, rest)
        more = [Wait(node.variable, how, Repeat(node, count + 1, rest))]
    return more + _leave(node.quantifier, count, more, arrival, rest)


def _rounds(node: ir.SequenceNode, count: int, arrival: Arrival, rest: Rest) -> list[Wait]:
    """Return the waits for one more round of a group, or for the part after it."""
    more = []
    if _may_repeat(node.quantifier, count):
        how = arrival if count == 0 else _again(node.quantifier, count, arrival, rest)
        more = proceed(Steps(node, 0, count + 1, None, rest, how.gap_min_ms), how)
    after = _leave(node.quantifier, count, more, arrival, rest)
    if count > 0 and not _opens_empty(node):
        after = [_behind(wait, more) for wait in after]
    return more + after


def _behind(wait: Wait, more: list[Wait]) -> Wait:
    """Return the wait after a group, with `more`, the waits for another round of the group.

    They are open in addition to other rounds that keep the wait open.
    """
    return replace(wait, rounds=(*(_behind(other, more) for other in wait.rounds), *more))


def _opens_empty(node: ir.SequenceNode) -> bool:
    """Whether a round may leave out its first step: then no round stays open after the group."""
    head = node.steps[0].node
    if isinstance(head, ir.AlternativeNode | ir.AnyOrderNode):
        return False
    return integer(head.quantifier.min_count) == 0 or (isinstance(head, ir.SequenceNode) and _opens_empty(head))


def _leave(quantifier: ir.Quantifier, count: int, more: list[Wait], arrival: Arrival, rest: Rest) -> list[Wait]:
    """Return the waits after a loop that has enough repetitions. A greedy loop is not left while it can go on."""
    if count < integer(quantifier.min_count):
        return []
    if quantifier.greedy:
        arrival = replace(arrival, greedy=arrival.greedy + tuple(wait for wait in more if wait.variable is not None))
    return proceed(rest, arrival)


def _finish_round(steps: Steps, arrival: Arrival) -> list[Wait]:
    """Finish a round: first its own absences, then one more round or the part after the group."""
    if arrival.holds_absence and steps.node.within_ms is not None:
        return [Wait(None, arrival, steps)]
    # A round without events is not a round if the group may be left out; otherwise it is the last one.
    if steps.began_ms is None:
        return proceed(steps.rest, arrival) if integer(steps.node.quantifier.min_count) else []
    return _rounds(steps.node, steps.round, arrival, steps.rest)


def _may_repeat(quantifier: ir.Quantifier, count: int) -> bool:
    return quantifier.max_count is None or count < integer(quantifier.max_count)


def _again(quantifier: ir.Quantifier, count: int, arrival: Arrival, rest: Rest) -> Arrival:
    """Return how the next repetition arrives.

    An event that is forbidden right after a loop is also forbidden between its repetitions: `a+ -> !x -> b` ends at an
    x, it does not go on collecting.
    """
    bounds = [integer(ms) for ms in (quantifier.gap_ms, arrival.gap_max_ms) if ms is not None]
    gap_max_ms = min(bounds, default=None)  # an optional step that ends a round and is left out bounds the next one
    how = replace(arrival, link=_INNER_LINK[quantifier.inner], gap_min_ms=0, gap_max_ms=gap_max_ms)
    for step in _following_absences(rest, can_leave=count >= integer(quantifier.min_count)):
        how = _forbidding(how, step)
    return how


def _following_absences(rest: Rest, *, can_leave: bool) -> list[ir.Step]:
    """Return the negated steps right after the frames that end; include `, !x` only if all of them may be left."""
    absences: list[ir.Step] = []
    while (isinstance(rest, Steps) and rest.index == len(rest.node.steps)) or (
        isinstance(rest, Items) and not rest.items
    ):
        if isinstance(rest, Steps):
            can_leave = can_leave and rest.round >= integer(rest.node.quantifier.min_count)
        rest = rest.rest
    if isinstance(rest, Steps):
        for step in rest.node.steps[rest.index :]:
            if not step.negated:
                break
            if step.link is not ir.Link.NEXT or can_leave:
                absences.append(step)
    return absences


def _forbidding(arrival: Arrival, step: ir.Step) -> Arrival:
    """Return the arrival with the absence of the negated step."""
    assert isinstance(step.node, ir.VarNode)
    gap_max_ms = None if step.gap_max_ms is None else integer(step.gap_max_ms)
    absence = Absence(step.node.variable, integer(step.gap_min_ms or 0), gap_max_ms)
    arrival = replace(arrival, times_ms=(*arrival.times_ms, gap_max_ms))
    if step.link is ir.Link.NEXT:
        return replace(arrival, not_next=(*arrival.not_next, absence))
    return replace(arrival, absences=(*arrival.absences, absence))


def _linked(arrival: Arrival, step: ir.Step) -> Arrival:
    """Return the arrival of a step after the first, with its own link and times.

    Earlier absences stay, and an optional step that is left out still bounds the wait.
    """
    bounds = [integer(ms) for ms in (step.gap_max_ms, arrival.gap_max_ms) if ms is not None]
    gap_max_ms = min(bounds, default=None)
    return replace(arrival, link=step.link, gap_min_ms=integer(step.gap_min_ms or 0), gap_max_ms=gap_max_ms)


def least_ms(rest: Rest) -> int:
    """Return the least time since the event before, as required by the groups that begin with the next event."""
    least = 0
    while rest is not None:
        if isinstance(rest, Steps) and rest.began_ms is None:
            least = max(least, rest.least_ms)
        rest = rest.rest
    return least


def untils_around(rest: Rest) -> tuple[ir.Expr, ...]:
    """Return the stop conditions of all loops around a wait with this rest."""
    conditions = []
    while rest is not None:
        if not isinstance(rest, Items) and rest.node.quantifier.until is not None:
            conditions.append(rest.node.quantifier.until)
        rest = rest.rest
    return tuple(conditions)


def begun_untils_around(rest: Rest) -> tuple[ir.Expr, ...]:
    """Return the stop conditions of all groups, and of loops that have taken an event before the wait.

    A stop event ends a group even before the group's first event.
    """
    conditions = []
    while rest is not None:
        begun = isinstance(rest, Steps) or (isinstance(rest, Repeat) and rest.done > 1)
        if begun and not isinstance(rest, Items) and rest.node.quantifier.until is not None:
            conditions.append(rest.node.quantifier.until)
        rest = rest.rest
    return tuple(conditions)


def stamped(rest: Rest, time_ms: int) -> Rest:
    """Return the rest after an event has been taken: rounds that had not begun begin with it."""
    match rest:
        case None:
            return None
        case Steps(began_ms=None):
            return replace(rest, began_ms=time_ms, rest=stamped(rest.rest, time_ms))
        case _:
            return replace(rest, rest=stamped(rest.rest, time_ms))


def integer(value: int | ir.Param) -> int:
    assert isinstance(value, int), f"parameter {value} has not been bound"
    return value
