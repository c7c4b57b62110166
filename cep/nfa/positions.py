"""Structure tree → positions: every occurrence of a variable, and from each the ways to go on.

The construction is Glushkov's ("The abstract theory of automata", 1961): for a node of the tree its entries, its
exits, and whether it can match nothing; composing nodes joins exits to entries. An occurrence that repeats is one
position with a counter; groups that repeat are unrolled.

    a{2,} -> !x -> (b | c)?      0 start ──a──▶ 1 a ─┬─ a (relaxed, any count) ─▶ 1
                                                     ├─ b (relaxed, count ≥ 2, guard x) ─▶ 2, accepts
                                                     └─ c (the same) ─▶ 3, accepts;  1 accepts when count ≥ 2

It must not know columns or kernels.
Tested by: tests/nfa/test_positions.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cep.base.limits import NFA_STATES_MAX, REPETITIONS_MAX
from cep.lang.ir import (
    AlternativeNode,
    AnyOrderNode,
    Expr,
    Inner,
    Link,
    Node,
    Param,
    Quantifier,
    SequenceNode,
    Step,
    VarNode,
)


class PositionLimitError(Exception):
    """The pattern needs more NFA states than one rule may have; turned into a diagnostic by the compiler."""


@dataclass(frozen=True, slots=True)
class Guard:
    """An event that closes a wait: one that fits `variable`, or one for which `condition` holds.

    `moment` is "before" the wait may take the event, "after" it, or "next" (the very next event alone).
    """

    moment: str
    variable: str | None = None
    condition: Expr | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """The gap to an earlier event lies in [min_ms, max_ms). `mark` None: the last event taken, else a group's first."""

    min_ms: int
    max_ms: int | None
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """One way to go on from a position: take an event that fits `target`'s variable.

    `link` None takes the link of the step that the fragment becomes part of. `counted` is the half-open interval in
    which the loop counter of the position waited at must lie. A wait without target is an absence: the match is
    complete if the wait is still open when its window closes. `greedy` closes every wait listed after this one.
    """

    target: int | None
    link: Link | None = None
    guards: tuple[Guard, ...] = ()
    bounds: tuple[Bound, ...] = ()
    counted: tuple[int, int | None] = (0, None)
    enters_loop: bool = True
    marks: tuple[int, ...] = ()
    greedy: bool = False
    until: Expr | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """A position after which a node is complete, if its loop has run `count_min` times; what is forbidden next."""

    position: int
    count_min: int = 0
    guards: tuple[Guard, ...] = ()


@dataclass(slots=True)
class Position:
    """An occurrence of a variable. `loops`: a counter says how often it has been taken in a row."""

    variable: str
    loops: bool = False
    waits: list[Wait] = field(default_factory=list)
    accepts: bool = False
    accept_min: int = 0


@dataclass(slots=True)
class Automaton:
    """All positions; position 0 is the start, which stands for no variable. `marks` counts group windows."""

    positions: list[Position]
    marks: int


@dataclass(frozen=True, slots=True)
class _Fragment:
    entries: tuple[Wait, ...]
    exits: tuple[Exit, ...]
    nullable: bool


_INNER_LINK = {Inner.RELAXED: Link.FOLLOWED_BY, Inner.STRICT: Link.NEXT, Inner.ANY: Link.FOLLOWED_BY_ANY}


def build(structure: SequenceNode) -> Automaton:
    """The automaton of a bound structure (no Param left).

    Raises: PositionLimitError when groups unroll to more than NFA_STATES_MAX positions.
    """
    builder = _Builder()
    fragment = builder.node(structure)
    builder.positions[0].waits = [
        replace(w, link=Link.FOLLOWED_BY_ANY, guards=(), bounds=tuple(b for b in w.bounds if b.mark is not None))
        for w in fragment.entries
    ]
    for exit_ in fragment.exits:
        position = builder.positions[exit_.position]
        if exit_.guards:
            position.waits.append(Wait(None, Link.FOLLOWED_BY, exit_.guards, counted=(exit_.count_min, None)))
        else:
            position.accept_min = min(exit_.count_min, position.accept_min) if position.accepts else exit_.count_min
            position.accepts = True
    return Automaton(builder.positions, builder.marks)


def _number(value: int | Param | None) -> int:
    assert isinstance(value, int), "parameters are bound before the automaton is built"
    return value


def _joined(entry: Wait, link: Link, exit_: Exit, bounds: tuple[Bound, ...]) -> Wait:
    """The wait at `exit_` for what `entry` takes."""
    return replace(
        entry,
        link=entry.link or link,
        guards=entry.guards + exit_.guards,
        bounds=entry.bounds + bounds,
        counted=(exit_.count_min, None),
    )


class _Builder:
    """Grows the list of positions while fragments are composed."""

    def __init__(self) -> None:
        self.positions: list[Position] = [Position("")]
        self.marks = 0

    def node(self, node: Node) -> _Fragment:
        if isinstance(node, VarNode):
            return self._variable(node)
        if isinstance(node, SequenceNode):
            return self._group(node)
        if isinstance(node, AlternativeNode):
            options = [self.node(option) for option in node.options]
            return _Fragment(
                tuple(w for f in options for w in f.entries),
                tuple(e for f in options for e in f.exits),
                any(f.nullable for f in options),
            )
        return self._any_order(node)

    def _variable(self, node: VarNode) -> _Fragment:
        quantifier = node.quantifier
        count_min = _number(quantifier.min_count)
        count_max = None if quantifier.max_count is None else _number(quantifier.max_count)
        position = self._add(Position(node.variable, loops=count_max != 1))
        until = quantifier.until
        if count_max != 1:
            gap = () if quantifier.gap_ms is None else (Bound(0, _number(quantifier.gap_ms)),)
            self.positions[position].waits.append(
                Wait(
                    position,
                    _INNER_LINK[quantifier.inner],
                    () if until is None else (Guard("before", condition=until),),
                    gap,
                    (0, count_max),
                    enters_loop=False,
                    greedy=quantifier.greedy,
                    until=until,
                )
            )
        entry = Wait(position, greedy=quantifier.greedy and count_min == 0, until=until)
        loop_min = max(count_min, 1) if count_max != 1 else 0
        return _Fragment((entry,), (Exit(position, loop_min),), count_min == 0)

    def _add(self, position: Position) -> int:
        if len(self.positions) >= NFA_STATES_MAX:
            raise PositionLimitError
        self.positions.append(position)
        return len(self.positions) - 1

    def _group(self, node: SequenceNode) -> _Fragment:
        first = len(self.positions)
        fragment = self._repeat(node.quantifier, lambda: self._steps(node.steps))
        if node.within_ms is None:
            return fragment
        mark = self.marks
        self.marks += 1
        window = Bound(0, _number(node.within_ms), mark)
        for position in self.positions[first:]:
            position.waits = [replace(w, bounds=(*w.bounds, window)) for w in position.waits]
        entries = tuple(replace(w, marks=(*w.marks, mark)) for w in fragment.entries)
        return _Fragment(entries, fragment.exits, fragment.nullable)

    def _repeat(self, quantifier: Quantifier, make: Callable[[], _Fragment]) -> _Fragment:
        """Unroll a group: as many copies as must be, then optional ones, or a last one that goes round."""
        count_min = _number(quantifier.min_count)
        count_max = None if quantifier.max_count is None else _number(quantifier.max_count)
        if (count_min, count_max) == (1, 1):
            return make()
        link = _INNER_LINK[quantifier.inner]
        stop = () if quantifier.until is None else (Guard("before", condition=quantifier.until),)
        copies = max(count_min, 1) if count_max is None else count_max
        if copies > REPETITIONS_MAX:
            raise PositionLimitError
        entries: tuple[Wait, ...] = ()
        exits: list[Exit] = []
        open_exits: tuple[Exit, ...] = ()
        for copy in range(1, copies + 1):
            fragment = make()
            if copy == 1:
                entries = fragment.entries
            else:
                self._join(open_exits, self._rounds(fragment.entries, stop, quantifier), link, ())
            open_exits = fragment.exits
            if copy >= count_min:
                exits.extend(fragment.exits)
        if count_max is None:
            self._join(open_exits, self._rounds(fragment.entries, stop, quantifier), link, ())
        return _Fragment(entries, tuple(exits), count_min == 0 or fragment.nullable)

    @staticmethod
    def _rounds(entries: tuple[Wait, ...], stop: tuple[Guard, ...], quantifier: Quantifier) -> tuple[Wait, ...]:
        gap = () if quantifier.gap_ms is None else (Bound(0, _number(quantifier.gap_ms)),)
        return tuple(
            replace(w, guards=w.guards + stop, until=quantifier.until or w.until, bounds=w.bounds + gap) for w in entries
        )

    def _join(self, exits: tuple[Exit, ...], entries: tuple[Wait, ...], link: Link, bounds: tuple[Bound, ...]) -> None:
        for exit_ in exits:
            waits = self.positions[exit_.position].waits
            waits.extend(_joined(entry, link, exit_, bounds) for entry in entries)

    def _steps(self, steps: tuple[Step, ...]) -> _Fragment:
        """A sequence, once. What is not yet left open by an earlier step is an entry of the whole."""
        entries: list[Wait] = []
        open_exits: tuple[Exit, ...] = ()
        start_guards: tuple[Guard, ...] = ()
        at_start = True
        for index, step in enumerate(steps):
            if step.negated:
                assert isinstance(step.node, VarNode), "only a variable can be negated"
                guard = Guard("next" if step.link is Link.NEXT and index > 0 else "after", step.node.variable)
                open_exits = tuple(replace(e, guards=(*e.guards, guard)) for e in open_exits)
                start_guards = (*start_guards, guard) if at_start else ()
                continue
            fragment = self.node(step.node)
            bounds: tuple[Bound, ...] = ()
            if step.gap_max_ms is not None or step.gap_min_ms is not None:
                longest = None if step.gap_max_ms is None else _number(step.gap_max_ms)
                bounds = (Bound(0 if step.gap_min_ms is None else _number(step.gap_min_ms), longest),)
            self._join(open_exits, fragment.entries, step.link, bounds)
            if at_start:
                own_link = None if index == 0 else step.link
                entries.extend(
                    replace(w, link=w.link or own_link, guards=w.guards + start_guards, bounds=w.bounds + bounds)
                    for w in fragment.entries
                )
            open_exits = fragment.exits + (open_exits if fragment.nullable else ())
            at_start = at_start and fragment.nullable
        return _Fragment(tuple(entries), open_exits, at_start)

    def _any_order(self, node: AnyOrderNode) -> _Fragment:
        """Every item first, then the others in any order."""
        if len(node.items) == 1:
            return self.node(node.items[0])
        entries: list[Wait] = []
        exits: list[Exit] = []
        nullable = True
        for index, item in enumerate(node.items):
            rest = AnyOrderNode(node.items[:index] + node.items[index + 1 :])
            fragment = self._steps((Step(Link.FOLLOWED_BY, item), Step(Link.FOLLOWED_BY, rest)))
            entries.extend(fragment.entries)
            exits.extend(fragment.exits)
            nullable = nullable and fragment.nullable
        return _Fragment(tuple(entries), tuple(exits), nullable)
