"""Structure tree → positions: every occurrence of a variable, with the ways to continue from it.

The construction is Glushkov's ("The abstract theory of automata", 1961): for a node of the tree, its entries, its
exits, and whether it can match nothing; composing nodes joins exits to entries. An occurrence that repeats is one
position with a counter; groups that repeat are unrolled.

    a{2,} -> !x -> (b | c)?      0 start ──a──▶ 1 a ─┬─ a (relaxed, any count) ─▶ 1
                                                     ├─ b (relaxed, count ≥ 2, guard x) ─▶ 2, accepts
                                                     └─ c (the same) ─▶ 3, accepts;  1 accepts when count ≥ 2

This module must not depend on columns or kernels.
Tested by: tests/nfa/test_compile.py
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from cep.base.limits import NFA_STATES_MAX
from cep.base.schema import valueclass
from cep.lang import ir


class CompileError(Exception):
    """A checked, bound pattern that does not compile: `code` of its diagnostic, `variable` in the structure, if any."""

    def __init__(self, message: str, code: str = "CEP425", variable: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.variable = variable


@valueclass(frozen=True, slots=True)
class Bound:
    """The gap to the last taken event, or to the first event of a group (`mark`), lies in [min_ms, max_ms)."""

    min_ms: int
    max_ms: int | None
    mark: int | None = None


@valueclass(frozen=True, slots=True)
class Guard:
    """An event that closes a wait: it matches `variable`, `condition` holds, and no condition of `unless` holds.

    The event must satisfy all `bounds`. `moment` is the time at which the guard applies:
    - "before": before the wait may take the event; "after": after it.
    - "next": after, and only at the very next event.
    - "stop": after, unless a wait is open that also keeps this one open.
    - "greedy": before, until an event that "frees" it has come.

    The guard of a greedy loop has the bounds of the loop: an event that is too early or too late for another repetition
    does not close the waits after the loop.
    """

    moment: str
    variable: str | None = None
    condition: ir.Expr | None = None
    unless: tuple[ir.Expr, ...] = ()
    bounds: tuple[Bound, ...] = ()


@valueclass(frozen=True, slots=True)
class Wait:
    """One way to continue from a position: take an event that matches `target`'s variable.

    If `link` is None, the wait gets the link of the step that contains the fragment. `counted` is the half-open
    interval in which the loop counter of the position must lie. `loop` is set if the wait repeats something (_Loop).
    `reopens` is for a relaxed wait after a group that may have another round, and cannot begin it with nothing. Such a
    wait stays open after it has taken an event, as long as a wait for that round is open: one whose `loop` is in
    `reopens`.

    A wait without target is an absence. The match is complete if the wait is still open when its window closes, or
    (link NEXT) when the next event has come.
    """

    target: int | None
    link: ir.Link | None = None
    guards: tuple[Guard, ...] = ()
    bounds: tuple[Bound, ...] = ()
    counted: tuple[int, int | None] = (0, None)
    enters_loop: bool = True
    marks: tuple[int, ...] = ()
    untils: tuple[ir.Expr, ...] = ()
    loop: int | None = None
    reopens: tuple[int, ...] = ()


@valueclass(frozen=True, slots=True)
class Exit:
    """A position at which a part of the pattern may be complete: if its loop counter lies in [count_min, count_max).

    `guards` apply to the next wait: forbidden events, and for a greedy loop the events that continue it. `bounds` come
    from skipped optional steps. `absences_ms` are the step times of the absences at the end of the part (None: no time
    of its own). `window` is the window of a group that ends in an absence: the group is complete when it closes.
    `reopens`: the loops of groups that may have another round instead.
    """

    position: int
    count_min: int = 0
    count_max: int | None = None
    guards: tuple[Guard, ...] = ()
    bounds: tuple[Bound, ...] = ()
    absences_ms: tuple[int | None, ...] = ()
    window: Bound | None = None
    reopens: tuple[int, ...] = ()


@dataclass(slots=True)
class Position:
    """An occurrence of a variable. `loops`: a counter holds how often it has been taken in a row."""

    variable: str
    loops: bool = False
    waits: list[Wait] = field(default_factory=list)
    accepts: bool = False
    accept_min: int = 0


@dataclass(slots=True)
class Automaton:
    """The positions; position 0 is the start and has no variable. `marks` counts group windows."""

    positions: list[Position]
    marks: int


@valueclass(frozen=True, slots=True)
class _Loop:
    """The waits, numbered `number`, that repeat a loop or a group.

    `leaves_at` is the count of its position from which the loop may be left; None: only after one more repetition.
    """

    number: int
    leaves_at: int | None


@valueclass(frozen=True, slots=True)
class _Fragment:
    """A part of the pattern as waits: how to enter it, and where it ends.

    `nullable`: it may match no event. `skip_guards` apply to the waits that skip the part: a greedy loop that may be
    skipped, or a forbidden event after the skipped steps, with its time in `skip_absences_ms`. `skip_bounds` are the
    step times of skipped steps in it. `loops` are the loops at its end: an event that is forbidden after the part is
    also forbidden between their iterations. `opens_empty`: its first step may be skipped.
    """

    entries: tuple[Wait, ...]
    exits: tuple[Exit, ...]
    nullable: bool
    skip_guards: tuple[Guard, ...] = ()
    loops: tuple[_Loop, ...] = ()
    opens_empty: bool = False
    skip_absences_ms: tuple[int | None, ...] = ()
    skip_bounds: tuple[Bound, ...] = ()


_INNER_LINK = {
    ir.Inner.RELAXED: ir.Link.FOLLOWED_BY,
    ir.Inner.STRICT: ir.Link.NEXT,
    ir.Inner.ANY: ir.Link.FOLLOWED_BY_ANY,
}


def build(structure: ir.SequenceNode) -> Automaton:
    """Build the automaton of a bound structure. Raises: CompileError, also for an absence that nothing can follow."""
    builder = _Builder()
    fragment = builder.node(structure)
    builder.positions[0].waits = [
        replace(
            wait,
            link=ir.Link.FOLLOWED_BY_ANY,
            guards=tuple(g for g in wait.guards if g.moment in ("before", "greedy")),
            bounds=tuple(b for b in wait.bounds if b.mark is not None),
        )
        for wait in fragment.entries
    ]
    for exit_ in fragment.exits:
        position = builder.positions[exit_.position]
        if exit_.absences_ms:
            link = ir.Link.NEXT if all(g.moment != "after" for g in exit_.guards) else ir.Link.FOLLOWED_BY
            bounds = _certain(exit_.absences_ms) + (() if exit_.window is None else (exit_.window,))
            position.waits.append(Wait(None, link, exit_.guards, bounds, counted=(exit_.count_min, exit_.count_max)))
        else:
            position.accept_min = min(exit_.count_min, position.accept_min) if position.accepts else exit_.count_min
            position.accepts = True
    return Automaton(builder.positions, builder.marks)


def bound_number(value: int | ir.Param | None) -> int:
    """Return a number of a pattern: parameters are bound before compilation."""
    assert isinstance(value, int), "parameters are bound before compilation"
    return value


def _gap(min_ms: int, max_ms: int | None) -> tuple[Bound, ...]:
    """Return the bound of a step's time; empty for a step at any time."""
    return () if min_ms == 0 and max_ms is None else (Bound(min_ms, max_ms),)


def _certain(absences_ms: tuple[int | None, ...]) -> tuple[Bound, ...]:
    """Return the bound after which all absences at the end of a match are certain; empty if one lacks a time."""
    times_ms = [time_ms for time_ms in absences_ms if time_ms is not None]
    return (Bound(0, max(times_ms)),) if len(times_ms) == len(absences_ms) else ()


def _greed(variable: str, untils: tuple[ir.Expr, ...], bounds: tuple[Bound, ...]) -> tuple[Guard, ...]:
    """Return the guards that keep a run in a greedy loop: events that repeat the loop and do not stop it."""
    if not untils:
        return (Guard("before", variable, bounds=bounds),)
    return (
        Guard("greedy", variable, unless=untils, bounds=bounds),
        *(Guard("frees", condition=until) for until in untils),
    )


def _is_greed(guard: Guard) -> bool:
    return guard.moment in ("before", "greedy") and guard.variable is not None


def _bounded(guards: tuple[Guard, ...], bounds: tuple[Bound, ...]) -> tuple[Guard, ...]:
    """Add the bounds to the guards of greedy loops."""
    return tuple(replace(g, bounds=(*g.bounds, *bounds)) if _is_greed(g) else g for g in guards)


def _freed_by(until: ir.Expr, guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
    """Return the guards of greedy loops in a group with a stop event, which does not count as a repetition."""
    freed: list[Guard] = []
    for guard in guards:
        if not _is_greed(guard):
            freed.append(guard)
        else:
            freed += [replace(guard, moment="greedy", unless=(*guard.unless, until)), Guard("frees", condition=until)]
    return tuple(freed)


def _skipping(exit_: Exit, fragment: _Fragment, gap: tuple[Bound, ...]) -> Exit:
    """Return the exit before an optional part as the exit after it, if the part matches no event."""
    return replace(
        exit_,
        guards=exit_.guards + _bounded(fragment.skip_guards, gap + exit_.bounds),
        bounds=exit_.bounds + fragment.skip_bounds + tuple(replace(b, min_ms=0) for b in gap if b.max_ms is not None),
        absences_ms=exit_.absences_ms + fragment.skip_absences_ms,
    )


def _joined(entry: Wait, link: ir.Link | None, exit_: Exit, bounds: tuple[Bound, ...]) -> Wait:
    """Join an entry to an exit: the wait at `exit_` that takes the event of `entry`."""
    joined_link = entry.link or link
    return replace(
        entry,
        link=joined_link,
        guards=_bounded(entry.guards, bounds + exit_.bounds) + exit_.guards,
        bounds=entry.bounds + bounds + exit_.bounds,
        counted=(exit_.count_min, exit_.count_max),
        reopens=exit_.reopens if joined_link is ir.Link.FOLLOWED_BY else (),
    )


def guards_of(wait: Wait, variable: str) -> tuple[Guard, ...]:
    """Return the guards of a wait for `variable`, with its stop events.

    If a stop event matches the loop, a relaxed wait does not take or skip it: the wait ends. A stop event before the
    step's least time is skipped like any other event. So is one while the wait would stay open even after taking an
    event.
    """
    if wait.link is not ir.Link.FOLLOWED_BY:
        return wait.guards
    early_ms = max((b.min_ms for b in wait.bounds if b.mark is None), default=0)
    return (*wait.guards, *(Guard("stop", variable, until, (), _gap(early_ms, None)) for until in wait.untils))


class _Builder:
    """Collects positions while fragments are composed."""

    def __init__(self) -> None:
        self.positions: list[Position] = [Position("")]
        self.marks = 0
        self.loops = 0

    def node(self, node: ir.Node) -> _Fragment:
        if isinstance(node, ir.VarNode):
            return self._variable(node)
        if isinstance(node, ir.SequenceNode):
            return self._group(node)
        if isinstance(node, ir.AlternativeNode):
            options = [self.node(option) for option in node.options]
            return _Fragment(
                tuple(w for f in options for w in f.entries),
                tuple(e for f in options for e in f.exits),
                any(f.nullable for f in options),
                tuple(g for f in options if f.nullable for g in f.skip_guards),
                tuple(loop for f in options for loop in f.loops),
            )
        return self._any_order(node)

    def _variable(self, node: ir.VarNode) -> _Fragment:
        """Build one variable with its quantifier, such as `b{2,5}`. A loop has a wait back to itself."""
        quantifier, until = node.quantifier, node.quantifier.until
        count_min = bound_number(quantifier.min_count)
        count_max = None if quantifier.max_count is None else bound_number(quantifier.max_count)
        position = self._add(Position(node.variable, loops=count_max != 1))
        untils = () if until is None else (until,)
        skip_guards = _greed(node.variable, untils, ()) if quantifier.greedy and count_min == 0 else ()
        entry = Wait(position, untils=untils)
        if count_max == 1:
            return _Fragment((entry,), (Exit(position),), count_min == 0, skip_guards)
        gap = () if quantifier.gap_ms is None else (Bound(0, bound_number(quantifier.gap_ms)),)
        goes_on = _greed(node.variable, untils, gap) if quantifier.greedy else ()
        stop = () if until is None else (Guard("before", condition=until),)
        link = _INNER_LINK[quantifier.inner]
        loop = self._loop(count_min)
        self.positions[position].waits.append(
            Wait(position, link, stop, gap, (0, count_max), enters_loop=False, untils=untils, loop=loop.number)
        )
        exits = [Exit(position, max(count_min, 1), count_max if goes_on else None, goes_on)]
        if goes_on and count_max is not None:
            exits.append(Exit(position, count_max))
        return _Fragment((entry,), tuple(exits), count_min == 0, skip_guards, (loop,))

    def _loop(self, leaves_at: int | None) -> _Loop:
        self.loops += 1
        return _Loop(self.loops, leaves_at)

    def _add(self, position: Position) -> int:
        if len(self.positions) >= NFA_STATES_MAX:
            raise CompileError(f"the pattern unrolls to more than {NFA_STATES_MAX} NFA states")
        self.positions.append(position)
        return len(self.positions) - 1

    def _group(self, node: ir.SequenceNode) -> _Fragment:
        if node.within_ms is None:
            return self._repeat(node.quantifier, lambda: self._steps(node.steps))
        window = Bound(0, bound_number(node.within_ms), self.marks)
        self.marks += 1
        return self._repeat(node.quantifier, lambda: self._windowed(node.steps, window))

    def _windowed(self, steps: tuple[ir.Step, ...], window: Bound) -> _Fragment:
        """Build one round of a group that has a window. The window begins with the round's first event."""
        assert window.mark is not None, "a group's window is measured from its first event"
        first = len(self.positions)
        fragment = self._steps(steps)
        for position in self.positions[first:]:
            position.waits = [replace(w, bounds=(*w.bounds, window)) for w in position.waits]
        entries = tuple(replace(w, marks=(*w.marks, window.mark)) for w in fragment.entries)
        exits = tuple(
            replace(e, window=window if e.absences_ms else e.window, guards=_bounded(e.guards, (window,)))
            for e in fragment.exits
        )
        return replace(fragment, entries=entries, exits=exits)

    def _repeat(self, quantifier: ir.Quantifier, make: Callable[[], _Fragment]) -> _Fragment:
        """Unroll a group: the required copies, then optional ones, or a last one that repeats."""
        count_min = bound_number(quantifier.min_count)
        count_max = None if quantifier.max_count is None else bound_number(quantifier.max_count)
        if (count_min, count_max) == (1, 1):
            return make()
        until = quantifier.until
        if until is not None:
            once = make
            make = partial(self._stoppable, until, once)
        link = _INNER_LINK[quantifier.inner]
        copies = max(count_min, 1) if count_max is None else count_max
        entries: tuple[Wait, ...] = ()
        exits: list[Exit] = []
        open_exits: tuple[Exit, ...] = ()
        skip_guards: tuple[Guard, ...] = ()
        loops: list[_Loop] = []
        again = self._loop(None)
        nullable = count_min == 0
        for copy in range(1, copies + 1):
            fragment = make()
            may_leave = copy >= count_min
            loops += [loop if may_leave else replace(loop, leaves_at=None) for loop in fragment.loops]
            goes_on: tuple[Guard, ...] = ()
            if quantifier.greedy:
                goes_on = self._goes_on(self._rounds(fragment.entries, quantifier, again))
            if copy == 1:
                entries = fragment.entries
                # Guards inside a round do not apply when the group matches zero rounds.
                skip_guards = (self._goes_on(entries) if quantifier.greedy else ()) + (
                    fragment.skip_guards if fragment.nullable and count_min > 0 else ()
                )
                nullable = nullable or fragment.nullable
            else:
                loops.append(again)
                self._join(open_exits, self._rounds(fragment.entries, quantifier, again), link, ())
            open_exits, again = fragment.exits, self._loop(0 if may_leave else None)
            if may_leave:
                is_last = copy == copies and count_max is not None
                more = () if is_last else goes_on
                reopens = () if is_last or fragment.opens_empty else (again.number,)
                exits.extend(replace(e, guards=e.guards + more, reopens=e.reopens + reopens) for e in fragment.exits)
        if count_max is None:
            loops.append(again)
            self._join(open_exits, self._rounds(fragment.entries, quantifier, loops[-1]), link, ())
        return _Fragment(entries, tuple(exits), nullable, skip_guards, tuple(loops), fragment.opens_empty)

    def _goes_on(self, entries: tuple[Wait, ...]) -> tuple[Guard, ...]:
        """Return guards by which no step after a greedy group takes an event that begins another round."""
        targets = [(self.positions[w.target].variable, w) for w in entries if w.target is not None]
        return tuple(guard for variable, wait in targets for guard in _greed(variable, wait.untils, wait.bounds))

    @staticmethod
    def _rounds(entries: tuple[Wait, ...], quantifier: ir.Quantifier, loop: _Loop) -> tuple[Wait, ...]:
        """Return the waits for another round: the gap between rounds applies."""
        gap = () if quantifier.gap_ms is None else (Bound(0, bound_number(quantifier.gap_ms)),)
        return tuple(
            replace(w, bounds=w.bounds + gap, guards=_bounded(w.guards, gap), loop=loop.number) for w in entries
        )

    def _stoppable(self, until: ir.Expr, make: Callable[[], _Fragment]) -> _Fragment:
        """Build a round of a group with `until`. A stop event ends all its waits, and no element takes it."""
        first = len(self.positions)
        fragment = make()
        stop = Guard("before", condition=until)
        for position in self.positions[first:]:
            position.waits = [
                replace(w, untils=(*w.untils, until), guards=(*w.guards, stop)) if w.target is not None else w
                for w in position.waits
            ]
        entries = tuple(
            replace(w, untils=(*w.untils, until), guards=(*_freed_by(until, w.guards), stop)) for w in fragment.entries
        )
        exits = tuple(replace(e, guards=_freed_by(until, e.guards)) for e in fragment.exits)
        return replace(fragment, entries=entries, exits=exits, skip_guards=_freed_by(until, fragment.skip_guards))

    def _join(self, exits: Iterable[Exit], entries: tuple[Wait, ...], link: ir.Link, bounds: tuple[Bound, ...]) -> None:
        for exit_ in exits:
            if exit_.window is not None and entries:
                message = "nothing can follow a group that ends in an absence with a window of its own"
                target = entries[0].target
                raise CompileError(message, "CEP424", None if target is None else self.positions[target].variable)
            waits = self.positions[exit_.position].waits
            waits.extend(_joined(entry, link, exit_, bounds) for entry in entries)

    def _steps(self, steps: tuple[ir.Step, ...]) -> _Fragment:
        """Build a sequence, once. Optional steps at its beginning add entries to the whole."""
        entries: list[Wait] = []
        open_exits: list[Exit] = []
        loops: tuple[_Loop, ...] = ()
        opens_empty = False
        start = Exit(0)  # stands for the exit before the sequence: collects guards of entries past the first
        at_start = True
        for index, step in enumerate(steps):
            gap_min = 0 if step.gap_min_ms is None else bound_number(step.gap_min_ms)
            gap_max = None if step.gap_max_ms is None else bound_number(step.gap_max_ms)
            if step.negated:
                assert isinstance(step.node, ir.VarNode), "only a variable can be negated"
                moment = "next" if step.link is ir.Link.NEXT and index > 0 else "after"
                guard = Guard(moment, step.node.variable, bounds=_gap(gap_min, gap_max))
                self._forbid_between_repetitions(loops, guard)
                start, *open_exits = (
                    replace(e, guards=(*e.guards, guard), absences_ms=(*e.absences_ms, gap_max))
                    for e in (start, *open_exits)
                )
                continue
            fragment = self.node(step.node)
            gap = _gap(gap_min, gap_max)
            self._join(open_exits, fragment.entries, step.link, gap)
            if at_start:
                entries += [_joined(entry, None if index == 0 else step.link, start, gap) for entry in fragment.entries]
            loops = fragment.loops
            opens_empty = opens_empty or (index == 0 and (fragment.nullable or fragment.opens_empty))
            start, *passing = (_skipping(e, fragment, gap) for e in (start, *open_exits))
            open_exits = [*fragment.exits, *(passing if fragment.nullable else ())]
            at_start = at_start and fragment.nullable
        return _Fragment(
            tuple(entries), tuple(open_exits), at_start, start.guards, () if steps[-1].negated else loops, opens_empty,
            start.absences_ms, start.bounds,
        )  # fmt: skip

    def _forbid_between_repetitions(self, loops: tuple[_Loop, ...], guard: Guard) -> None:
        """Forbid an event between the repetitions of a loop, because it is forbidden after the loop.

        A guard for the next event only applies where the loop may be left: before that there is no next step. So a wait
        may be split by its loop counter into a part without and a part with the guard.
        """
        leaves_at = {loop.number: loop.leaves_at for loop in loops}
        for position in self.positions if loops else ():
            waits: list[Wait] = []
            for wait in position.waits:
                if wait.loop not in leaves_at:
                    waits.append(wait)
                    continue
                (low, high), guarded_from = wait.counted, 0 if guard.moment != "next" else leaves_at[wait.loop]
                if guarded_from is None or low < guarded_from:
                    unguarded_counts = (low, high if guarded_from is None else guarded_from)
                    waits.append(replace(wait, counted=unguarded_counts))
                if guarded_from is not None and (high is None or max(low, guarded_from) < high):
                    guarded_counts = (max(low, guarded_from), high)
                    waits.append(replace(wait, guards=(*wait.guards, guard), counted=guarded_counts))
            position.waits = waits

    def _any_order(self, node: ir.AnyOrderNode) -> _Fragment:
        """Build steps in any order: each item may be first. The check ensures that none can match zero events."""
        if len(node.items) == 1:
            return self.node(node.items[0])
        entries: list[Wait] = []
        exits: list[Exit] = []
        loops: list[_Loop] = []
        for index, item in enumerate(node.items):
            first = self.node(item)
            rest = self._any_order(ir.AnyOrderNode(node.items[:index] + node.items[index + 1 :]))
            self._join(tuple(replace(e, bounds=()) for e in first.exits), rest.entries, ir.Link.FOLLOWED_BY, ())
            entries.extend(first.entries)
            exits.extend(rest.exits)
            loops.extend(rest.loops)
        return _Fragment(tuple(entries), tuple(exits), nullable=False, loops=tuple(loops))
