"""The order of things: the variables that are bound before each place of a pattern, and the level of each pattern.

Tested by: tests/lang/test_structure.py, tests/lang/test_check.py
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from cep.base.limits import PRODUCE_DEPTH_MAX
from cep.base.schema import valueclass
from cep.lang import syntax
from cep.lang.diagnostics import Span

Names = frozenset[str]


@valueclass(frozen=True, slots=True)
class Before:
    """The variables that may have an event (`maybe`) or must have one when a place of the pattern is reached."""

    maybe: Names = frozenset()
    surely: Names = frozenset()

    def joined(self, other: Before) -> Before:
        """After both."""
        return Before(self.maybe | other.maybe, self.surely | other.surely)

    def either(self, other: Before) -> Before:
        """After one of two."""
        return Before(self.maybe | other.maybe, self.surely & other.surely)


@dataclass(slots=True)
class Order:
    """The variables of a structure as written, and the variables bound before each of them, each `until`, the end."""

    before: dict[str, Before] = field(default_factory=dict)
    before_until: dict[Span, Before] = field(default_factory=dict)  # by the span of the `until`
    variables: list[tuple[syntax.VariableSyntax, bool]] = field(default_factory=list)  # with: is it negated?
    end: Before = field(default_factory=Before)

    @property
    def negated(self) -> Names:
        return frozenset(v.name for v, negated in self.variables if negated)


def order_of(structure: syntax.SequenceSyntax) -> Order:
    """Walk a structure once from left to right."""
    order = Order()
    order.end = _body(structure, Before(), order)
    return order


def spans_of(structure: syntax.SequenceSyntax | None) -> dict[str, Span]:
    """Return the span of each variable of a structure; nothing without a structure."""
    return {} if structure is None else {variable.name: variable.span for variable, _ in order_of(structure).variables}


def may_be_empty(repeat: syntax.RepeatSyntax | None) -> bool:
    """Return True if this repetition allows none. A minimum that is a parameter is at least 1."""
    return repeat is not None and isinstance(repeat.minimum, syntax.Literal) and repeat.minimum.value == 0


def is_loop(repeat: syntax.RepeatSyntax | None) -> bool:
    """Return True if this repetition allows more than one."""
    if repeat is None:
        return False
    return not (isinstance(repeat.maximum, syntax.Literal) and repeat.maximum.value in (0, 1))


def _body(body: syntax.SequenceSyntax | syntax.ChoiceSyntax, before: Before, order: Order) -> Before:
    """Write into `order` which variables may or must have events before each element. Return the same for the end."""
    if isinstance(body, syntax.SequenceSyntax):
        for step in body.steps:
            after = _element(step.element, before, order, negated=step.negated)
            before = before if step.negated else after  # an absence binds no event
        return before
    if body.op == "&":  # in any order: all other items may have come before each
        with_all_items = before.joined(Before(frozenset(n for item in body.items for n in names_of(item))))
        ends = [_element(item, with_all_items, order) for item in body.items]
        return Before(with_all_items.maybe, frozenset(n for end in ends for n in end.surely))
    result, *ends = (_element(item, before, order) for item in body.items)
    for end in ends:
        result = result.either(end)  # only one of the items matches
    return result


def _element(element: syntax.ElementSyntax, before: Before, order: Order, *, negated: bool = False) -> Before:
    """Write into `order` which variables have events before an element. Return which have events after it."""
    suffix = element.suffix
    if isinstance(element, syntax.VariableSyntax):
        order.variables.append((element, negated))
        order.before.setdefault(element.name, before)
        afterwards = before.joined(Before(maybe=frozenset((element.name,)), surely=frozenset((element.name,))))
    else:
        start = before
        if is_loop(suffix.repeat):  # an earlier round may have bound the variables of the group
            start = before.joined(Before(maybe=frozenset(names_of(element))))
        afterwards = _body(element.body, start, order)
    if suffix.until_span is not None:  # the condition that ends a repetition
        order.before_until[suffix.until_span] = Before(maybe=before.maybe | afterwards.maybe, surely=before.surely)
    return Before(maybe=afterwards.maybe, surely=before.surely) if may_be_empty(suffix.repeat) else afterwards


def names_of(element: syntax.ElementSyntax) -> list[str]:
    """Return the variables of an element that can be bound."""
    if isinstance(element, syntax.VariableSyntax):
        return [element.name]
    if isinstance(element.body, syntax.ChoiceSyntax):
        return [n for item in element.body.items for n in names_of(item)]
    return [n for step in element.body.steps if not step.negated for n in names_of(step.element)]


def can_be_empty(element: syntax.ElementSyntax) -> bool:
    """Return True if this element can match no event at all."""
    if may_be_empty(element.suffix.repeat):
        return True
    return isinstance(element, syntax.GroupSyntax) and body_can_be_empty(element.body)


def body_can_be_empty(body: syntax.SequenceSyntax | syntax.ChoiceSyntax) -> bool:
    """Return True if this sequence or choice can match no event at all."""
    if isinstance(body, syntax.SequenceSyntax):
        return all(step.negated or can_be_empty(step.element) for step in body.steps)
    return (any if body.op == "|" else all)(can_be_empty(item) for item in body.items)


def may_be_last(body: syntax.SequenceSyntax | syntax.ChoiceSyntax) -> Names:
    """Return the variables of which an event may be the last one that a match binds."""
    if not isinstance(body, syntax.SequenceSyntax):
        return frozenset(name for item in body.items for name in _last_of(item))
    last: Names = frozenset()
    for step in reversed(body.steps):
        if not step.negated:
            last |= _last_of(step.element)
            if not can_be_empty(step.element):
                break
    return last


def _last_of(element: syntax.ElementSyntax) -> Names:
    return frozenset((element.name,)) if isinstance(element, syntax.VariableSyntax) else may_be_last(element.body)


N = TypeVar("N", bound=Hashable)
Feeds = tuple[tuple[str, ...], str | None]  # the event types that a pattern reads, and the one that it produces


def levels_of(feeds: Mapping[N, Feeds]) -> dict[N, int]:
    """Return the level of each pattern: 0 if it reads only source events, otherwise one above its highest producer.

    A pattern is matched after all patterns whose events it reads. No level is above PRODUCE_DEPTH_MAX.
    """
    levels = dict.fromkeys(feeds, 0)
    for _ in range(PRODUCE_DEPTH_MAX + 1):  # each round raises some levels; patterns in a circle reach the maximum
        level_by_type: dict[str, int] = {}  # produced event type → the least level of its readers
        for name, (_, produced) in feeds.items():  # (types that it reads, type that it produces)
            if produced is not None:
                level_by_type[produced] = max(level_by_type.get(produced, 0), levels[name] + 1)
        new_levels = {
            name: max((level_by_type.get(t, 0) for t in read), default=0) for name, (read, _) in feeds.items()
        }
        new_levels = {name: min(level, PRODUCE_DEPTH_MAX) for name, level in new_levels.items()}
        if new_levels == levels:
            break
        levels = new_levels
    return levels
