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

from collections.abc import Callable, Sequence
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
    """The gap to the last taken event, or to the first event of a group with a window, lies in [min_ms, max_ms)."""

    min_ms: int
    max_ms: int | None
    group: int | None = None


@valueclass(frozen=True, slots=True)
class Guard:
    """An event that closes a wait (a transition for which a run waits), for example x while `a -> !x -> b` waits for b.

    `moment` says when the guard is checked:
    - "before": before the wait may take the event. "after": only after the wait has had the chance to take the event.
    - "next": as "after", but only for the very next event.
    - "stop": as "after", for the stop event s of `a -> b+ until s`. Another open wait may keep this one open (reopens).
    - "greedy": as "before", for the wait for c in `a -> b+ greedy until s -> c`: the loop takes a b that is also a c.
    - "frees": as "after", for s in the same pattern. It closes no wait, but "greedy" guards no longer apply after s.

    The guard of a greedy loop has the bounds of the loop: an event that is too early or too late for another repetition
    does not close the waits after the loop."""

    moment: str
    variable: str | None = None  # the event matches it; None: any event
    condition: ir.Expr | None = None  # and this condition holds
    unless: tuple[ir.Expr, ...] = ()  # and none of these holds
    bounds: tuple[Bound, ...] = ()  # and its time is within all of these


@valueclass(frozen=True, slots=True)
class Wait:
    """One way to continue from a position of the pattern: the run waits for an event of the variable at `target`.

    A wait without target is an absence: the run waits for the time in which a forbidden event may not come. The match
    is complete if the wait is still open after this time. If only the next event is forbidden (link NEXT), the match
    is complete when another event has come.

    `reopens` is for the wait for c in `(a -> b)+ -> c`. This wait stays open after it has taken an event, as long as
    the run also waits for another round of the group, because another c may follow that round."""

    target: int | None  # the position that the run reaches
    link: ir.Link | None = None  # whether it takes only the next event; None: the step before it is not yet known
    guards: tuple[Guard, ...] = ()  # events that close the wait
    bounds: tuple[Bound, ...] = ()  # limits of time
    counted: tuple[int, int | None] = (0, None)  # open if min <= loop count < max; (2, None) is for b in a{2,} -> b
    enters_loop: bool = True  # the target's loop counter begins at 0; False for a repetition, which goes on counting.
    begins_groups: tuple[int, ...] = ()  # groups whose window begins with the taken event
    untils: tuple[ir.Expr, ...] = ()  # conditions of stop events, which the wait does not take.
    loop: int | None = None  # the number of the loop or group (_Loop) that the wait repeats
    reopens: tuple[int, ...] = ()  # numbers of the loops that keep it open


@valueclass(frozen=True, slots=True)
class Exit:
    """A position at which a part of the pattern may be complete: if its loop counter lies in [count_min, count_max)."""

    position: int
    count_min: int = 0
    count_max: int | None = None
    guards: tuple[Guard, ...] = ()  # for the next wait: forbidden events, and events that continue a greedy loop
    bounds: tuple[Bound, ...] = ()  # time limits for the next wait, from skipped optional steps
    absences_ms: tuple[int | None, ...] = ()  # the times of forbidden steps at the end; None: without a time
    windows: tuple[Bound, ...] = ()  # of groups that end in an absence: they are complete when the first one closes
    reopens: tuple[int, ...] = ()  # the loops of groups that may have another round instead of going on


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
    """The positions; position 0 is the start and has no variable. `groups_count` counts groups with a window."""

    positions: list[Position]
    groups_count: int


@valueclass(frozen=True, slots=True)
class _Loop:
    """The waits, numbered `number`, that repeat a loop or a group.

    `leaves_at` is the count of its position from which the loop may be left; None: only after one more repetition.
    """

    number: int
    leaves_at: int | None


@valueclass(frozen=True, slots=True)
class _Fragment:
    """A part of the pattern: the waits (transitions that a run waits for) which enter it, and the exits where it ends.

    The skip fields apply to a wait that skips the part, such as the wait for c after a in `a -> (b* -> !x) -> c`.
    """

    entries: tuple[Wait, ...]
    exits: tuple[Exit, ...]
    may_be_empty: bool  # it may match no event
    skip_guards: tuple[Guard, ...] = ()  # events that close the wait for c: x, and also b if the loop is greedy
    loops: tuple[_Loop, ...] = ()  # loops at its end: an event that is forbidden after the part may not interrupt them
    may_skip_first: bool = False  # its first step is optional
    skip_absences_ms: tuple[int | None, ...] = ()  # how long each forbidden event (x) is forbidden; None: always
    skip_bounds: tuple[Bound, ...] = ()  # time limits of the skipped steps


_INNER_LINK = {
    ir.Inner.RELAXED: ir.Link.FOLLOWED_BY, ir.Inner.STRICT: ir.Link.NEXT, ir.Inner.ANY: ir.Link.FOLLOWED_BY_ANY,
}  # fmt: skip


def build(structure: ir.SequenceNode) -> Automaton:
    """Build the automaton of a structure with bound parameters. Raises: CompileError.

    Its waits are transitions that a run waits for. A guard is an event that closes a wait. A bound limits the time of
    a wait: since the last event, or since the first event of a group."""
    builder = _Builder()
    fragment = builder.node(structure)
    # The first wait has no event before it, so guards after an event and time limits since the last event do not apply.
    builder.positions[0].waits = [
        replace(
            wait,
            link=ir.Link.FOLLOWED_BY_ANY,
            guards=tuple(g for g in wait.guards if g.moment in ("before", "greedy")),
            bounds=tuple(b for b in wait.bounds if b.group is not None),  # without group: since the last event
        )
        for wait in fragment.entries
    ]
    for exit_ in fragment.exits:
        position = builder.positions[exit_.position]
        if exit_.absences_ms:  # it ends in !x: a wait without target, until a time or the next event (NEXT) has come
            link = ir.Link.NEXT if all(g.moment != "after" for g in exit_.guards) else ir.Link.FOLLOWED_BY
            bounds = _bound_of_absences(exit_.absences_ms) + exit_.windows
            counted = exit_.count_min, exit_.count_max  # of the loop counter
            position.waits.append(Wait(target=None, link=link, guards=exit_.guards, bounds=bounds, counted=counted))
        else:
            position.accept_min = min(exit_.count_min, position.accept_min) if position.accepts else exit_.count_min
            position.accepts = True  # the match is complete here if the loop count is at least accept_min
    return Automaton(builder.positions, builder.groups_count)


def bound_number(value: int | ir.Param | None) -> int:
    """Return a number of a pattern: parameters are bound before compilation."""
    assert isinstance(value, int), "parameters are bound before compilation"
    return value


def _gap(min_ms: int, max_ms: int | None) -> tuple[Bound, ...]:
    """Return the bound of a step's time; empty for a step at any time."""
    return () if min_ms == 0 and max_ms is None else (Bound(min_ms, max_ms),)


def _bound_of_absences(absences_ms: tuple[int | None, ...]) -> tuple[Bound, ...]:
    """Return the bound after which all absences at the end of a match are certain; empty if one lacks a time."""
    times_ms = [time_ms for time_ms in absences_ms if time_ms is not None]
    return (Bound(0, max(times_ms)),) if len(times_ms) == len(absences_ms) else ()


def _greed_guards(variable: str, untils: tuple[ir.Expr, ...], bounds: tuple[Bound, ...]) -> tuple[Guard, ...]:
    """Return the guards that keep a run in a greedy loop: events that repeat the loop and do not stop it."""
    if not untils:
        return (Guard("before", variable, bounds=bounds),)
    return (
        Guard("greedy", variable, unless=untils, bounds=bounds),
        *(Guard("frees", condition=until) for until in untils),
    )


def _is_greed_guard(guard: Guard) -> bool:
    return guard.moment in ("before", "greedy") and guard.variable is not None


def _with_greed_bounds(guards: tuple[Guard, ...], bounds: tuple[Bound, ...]) -> tuple[Guard, ...]:
    """Add the bounds to the guards of greedy loops."""
    return tuple(replace(g, bounds=(*g.bounds, *bounds)) if _is_greed_guard(g) else g for g in guards)


def _end_greed(until: ir.Expr, guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
    """Return the guards of greedy loops in a group with a stop event, which does not count as a repetition."""
    freed: list[Guard] = []
    for guard in guards:
        if not _is_greed_guard(guard):
            freed.append(guard)
        else:
            freed += [replace(guard, moment="greedy", unless=(*guard.unless, until)), Guard("frees", condition=until)]
    return tuple(freed)


def _exit_past(exit_: Exit, fragment: _Fragment, gap: tuple[Bound, ...]) -> Exit:
    """Return the exit before an optional part as the exit after it, if the part matches no event."""
    return replace(
        exit_,
        guards=exit_.guards + _with_greed_bounds(fragment.skip_guards, gap + exit_.bounds),
        bounds=exit_.bounds + fragment.skip_bounds + tuple(replace(b, min_ms=0) for b in gap if b.max_ms is not None),
        absences_ms=exit_.absences_ms + fragment.skip_absences_ms,
    )


def _refuse_after_window(exits: Sequence[Exit], variable: str | None) -> None:
    """Refuse a step, with its first variable, after a group that ends when its window closes."""
    if any(exit_.windows for exit_ in exits):
        message = "nothing can follow a group that ends in an absence with a window of its own"
        raise CompileError(message, "CEP424", variable)


def _joined(entry: Wait, link: ir.Link | None, exit_: Exit, bounds: tuple[Bound, ...]) -> Wait:
    """Join an entry to an exit: the wait at `exit_` that takes the event of `entry`."""
    joined_link = entry.link or link
    return replace(
        entry,
        link=joined_link,
        guards=_with_greed_bounds(entry.guards, bounds + exit_.bounds) + exit_.guards,
        bounds=entry.bounds + bounds + exit_.bounds,
        counted=(exit_.count_min, exit_.count_max),
        reopens=exit_.reopens if joined_link is ir.Link.FOLLOWED_BY else (),
    )


def guards_of(wait: Wait, variable: str) -> tuple[Guard, ...]:
    """Return the guards of a wait for `variable`, with its stop events.

    If a stop event matches the loop, a relaxed wait does not take or skip it: the wait ends. A stop event before the
    step's least time is skipped like any other event, and so is one if a take would leave the wait open (reopens).
    """
    if wait.link is not ir.Link.FOLLOWED_BY:
        return wait.guards
    early_ms = max((b.min_ms for b in wait.bounds if b.group is None), default=0)
    return (*wait.guards, *(Guard("stop", variable, until, (), _gap(early_ms, None)) for until in wait.untils))


class _Builder:
    """Collects positions while fragments are composed."""

    def __init__(self) -> None:
        self.positions: list[Position] = [Position("")]
        self.groups_count = 0
        self.loops = 0

    def node(self, node: ir.Node) -> _Fragment:
        """Build any part of a pattern: a variable, a sequence, alternatives, or steps in any order."""
        if isinstance(node, ir.VarNode):
            return self._variable(node)
        if isinstance(node, ir.SequenceNode):
            return self._group(node)
        if isinstance(node, ir.AlternativeNode):
            options = [self.node(option) for option in node.options]
            return _Fragment(
                entries=tuple(wait for option in options for wait in option.entries),
                exits=tuple(exit_ for option in options for exit_ in option.exits),
                may_be_empty=any(option.may_be_empty for option in options),
                # of a wait that skips this part: it is closed by the events that close a wait which skips an option
                skip_guards=tuple(guard for option in options if option.may_be_empty for guard in option.skip_guards),
                loops=tuple(loop for option in options for loop in option.loops),
            )
        return self._any_order(node)

    def _variable(self, node: ir.VarNode) -> _Fragment:
        """Build one variable with its quantifier, such as `b{2,5}`: the wait that enters it and its exits.

        A loop has a wait (transition) back to itself. A greedy loop takes each b that it can: when b comes, guards
        close the waits after the loop. If the loop may match nothing, skip guards close a wait that skips it."""
        quantifier, until = node.quantifier, node.quantifier.until
        count_min = bound_number(quantifier.min_count)
        count_max = None if quantifier.max_count is None else bound_number(quantifier.max_count)
        position = self._add(Position(node.variable, loops=count_max != 1))
        untils = () if until is None else (until,)
        skip_guards = _greed_guards(node.variable, untils, ()) if quantifier.greedy and count_min == 0 else ()
        entry = Wait(position, untils=untils)
        if count_max == 1:  # not a loop
            return _Fragment((entry,), (Exit(position),), may_be_empty=count_min == 0, skip_guards=skip_guards)
        gap = () if quantifier.gap_ms is None else (Bound(0, bound_number(quantifier.gap_ms)),)
        greed_guards = _greed_guards(node.variable, untils, gap) if quantifier.greedy else ()  # no later step takes b
        stop_guards = () if until is None else (Guard("before", condition=until),)
        link = _INNER_LINK[quantifier.inner]
        loop = self._loop(count_min)
        repetition = Wait(position, link, stop_guards, gap, counted=(0, count_max), enters_loop=False, untils=untils)
        self.positions[position].waits.append(replace(repetition, loop=loop.number))
        # Only an event that cannot repeat a greedy loop leaves it. After count_max repetitions, any event leaves it.
        exits = [Exit(position, max(count_min, 1), count_max if greed_guards else None, guards=greed_guards)]
        if greed_guards and count_max is not None:
            exits.append(Exit(position, count_min=count_max))
        return _Fragment((entry,), tuple(exits), may_be_empty=count_min == 0, skip_guards=skip_guards, loops=(loop,))

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
        window = Bound(0, bound_number(node.within_ms), group=self.groups_count)
        self.groups_count += 1
        return self._repeat(node.quantifier, lambda: self._windowed(node.steps, window))

    def _windowed(self, steps: tuple[ir.Step, ...], window: Bound) -> _Fragment:
        """Build one round (repetition) of a group with a window: a limit of the time since the round's first event.

        All waits of the round get this time limit. The guards by which a greedy loop closes the waits after it get the
        limit, too, because an event after the window cannot repeat the loop. A round that ends in a forbidden step is
        complete when the window closes, so its exit gets the window."""
        assert window.group is not None, "a group's window is measured from its first event"
        first = len(self.positions)  # the number of the round's first position
        fragment = self._steps(steps)
        for position in self.positions[first:]:
            position.waits = [replace(w, bounds=(*w.bounds, window)) for w in position.waits]
        entries = tuple(replace(w, begins_groups=(*w.begins_groups, window.group)) for w in fragment.entries)
        exits = tuple(replace(e, guards=_with_greed_bounds(e.guards, (window,))) for e in fragment.exits)
        # absences_ms has an entry for each forbidden event at the end
        exits = tuple(replace(e, windows=(*e.windows, window)) if e.absences_ms else e for e in exits)
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
        may_be_empty = count_min == 0
        for copy in range(1, copies + 1):
            fragment = make()
            may_leave = copy >= count_min
            loops += [loop if may_leave else replace(loop, leaves_at=None) for loop in fragment.loops]
            greed_guards: tuple[Guard, ...] = ()
            if quantifier.greedy:
                greed_guards = self._group_greed_guards(self._rounds(fragment.entries, quantifier, again))
            if copy == 1:
                entries = fragment.entries
                # Guards inside a round do not apply when the group matches zero rounds.
                skip_guards = (self._group_greed_guards(entries) if quantifier.greedy else ()) + (
                    fragment.skip_guards if fragment.may_be_empty and count_min > 0 else ()
                )
                may_be_empty = may_be_empty or fragment.may_be_empty
            else:
                loops.append(again)
                self._join(open_exits, self._rounds(fragment.entries, quantifier, again), link, ())
            open_exits, again = fragment.exits, self._loop(0 if may_leave else None)
            if may_leave:
                is_last = copy == copies and count_max is not None
                more = () if is_last else greed_guards
                reopens = () if is_last or fragment.may_skip_first else (again.number,)
                exits.extend(replace(e, guards=e.guards + more, reopens=e.reopens + reopens) for e in fragment.exits)
        if count_max is None:
            loops.append(again)
            self._join(open_exits, self._rounds(fragment.entries, quantifier, loops[-1]), link, ())
        return _Fragment(entries, tuple(exits), may_be_empty, skip_guards, tuple(loops), fragment.may_skip_first)

    def _group_greed_guards(self, entries: tuple[Wait, ...]) -> tuple[Guard, ...]:
        """Return guards by which no step after a greedy group takes an event that begins another round."""
        targets = [(self.positions[w.target].variable, w) for w in entries if w.target is not None]
        return tuple(guard for variable, wait in targets for guard in _greed_guards(variable, wait.untils, wait.bounds))

    @staticmethod
    def _rounds(entries: tuple[Wait, ...], quantifier: ir.Quantifier, loop: _Loop) -> tuple[Wait, ...]:
        """Return the waits for another round: the gap between rounds applies."""
        gap = () if quantifier.gap_ms is None else (Bound(0, bound_number(quantifier.gap_ms)),)
        return tuple(
            replace(w, bounds=w.bounds + gap, guards=_with_greed_bounds(w.guards, gap), loop=loop.number)
            for w in entries
        )

    def _stoppable(self, until: ir.Expr, make: Callable[[], _Fragment]) -> _Fragment:
        """Build one round (repetition) of a group with a stop event (`until`).

        The stop event closes the waits of the round (guard `stop`), and no wait takes it (`untils`). After it, the
        guards by which a greedy loop in the round closes the waits after the loop no longer apply (_end_greed)."""
        first = len(self.positions)  # the number of the round's first position
        fragment = make()
        stop = Guard("before", condition=until)
        for position in self.positions[first:]:
            position.waits = [
                replace(w, untils=(*w.untils, until), guards=(*w.guards, stop)) if w.target is not None else w
                for w in position.waits  # an absence (no target) waits for no event, so it stays as it is
            ]
        entries = tuple(
            replace(w, untils=(*w.untils, until), guards=(*_end_greed(until, w.guards), stop)) for w in fragment.entries
        )
        exits = tuple(replace(e, guards=_end_greed(until, e.guards)) for e in fragment.exits)
        return replace(fragment, entries=entries, exits=exits, skip_guards=_end_greed(until, fragment.skip_guards))

    def _join(self, exits: Sequence[Exit], entries: tuple[Wait, ...], link: ir.Link, bounds: tuple[Bound, ...]) -> None:
        target = next((entry.target for entry in entries), None)
        _refuse_after_window(exits, None if target is None else self.positions[target].variable)
        for exit_ in exits:
            waits = self.positions[exit_.position].waits
            waits.extend(_joined(entry, link, exit_, bounds) for entry in entries)

    def _steps(self, steps: tuple[ir.Step, ...]) -> _Fragment:
        """Build the steps of a sequence: its waits for a first event (entries), and where it may be complete (exits).

        If the first steps are optional, the step after them has entries, too. A forbidden step, such as !x, takes no
        event. It becomes a guard: x closes the waits after it. Its time is kept, in case the sequence ends with it."""
        entries: list[Wait] = []
        open_exits: list[Exit] = []  # where the steps so far may be complete
        loops: tuple[_Loop, ...] = ()  # the loops at the end of the last step
        may_skip_first = False  # the first step is optional
        start = Exit(position=0)  # for entries after skipped first steps: it collects their guards and time limits
        all_optional = True  # all steps so far
        for index, step in enumerate(steps):
            gap_min = 0 if step.gap_min_ms is None else bound_number(step.gap_min_ms)
            gap_max = None if step.gap_max_ms is None else bound_number(step.gap_max_ms)
            if step.negated:  # forbidden: a guard of the waits that follow
                assert isinstance(step.node, ir.VarNode), "only a variable can be negated"
                _refuse_after_window(open_exits, step.node.variable)
                moment = "next" if step.link is ir.Link.NEXT and index > 0 else "after"  # "next": only the next event
                guard = Guard(moment, step.node.variable, bounds=_gap(gap_min, gap_max))
                self._forbid_between_repetitions(loops, guard)
                start, *open_exits = (
                    replace(e, guards=(*e.guards, guard), absences_ms=(*e.absences_ms, gap_max))
                    for e in (start, *open_exits)
                )
                continue
            fragment = self.node(step.node)
            gap = _gap(gap_min, gap_max)
            self._join(open_exits, fragment.entries, step.link, gap)  # waits from the steps before to this step
            if all_optional:  # then this step may be the first
                entries += [_joined(entry, None if index == 0 else step.link, start, gap) for entry in fragment.entries]
            loops = fragment.loops
            may_skip_first = may_skip_first or (index == 0 and (fragment.may_be_empty or fragment.may_skip_first))
            start, *skipping = (_exit_past(e, fragment, gap) for e in (start, *open_exits))  # exits that skip this step
            open_exits = [*fragment.exits, *(skipping if fragment.may_be_empty else ())]
            all_optional = all_optional and fragment.may_be_empty
        return _Fragment(
            tuple(entries), tuple(open_exits), may_be_empty=all_optional, skip_guards=start.guards,
            loops=() if steps[-1].negated else loops, may_skip_first=may_skip_first,
            skip_absences_ms=start.absences_ms, skip_bounds=start.bounds,
        )  # fmt: skip

    def _forbid_between_repetitions(self, loops: tuple[_Loop, ...], guard: Guard) -> None:
        """Forbid an event between the repetitions of a loop if it is forbidden after the loop, as x in `a+ -> !x -> b`.

        The guard (the forbidden event x) closes the waits for another repetition. If only the very next event is
        forbidden (moment "next"), x may come while the loop has too few repetitions to be left. Then each wait becomes
        two: one without the guard for the loop counts up to there, and one with the guard for the higher counts."""
        # by number of the loop: the count from which it may be left, or None: only after one more repetition
        leaves_at = {loop.number: loop.leaves_at for loop in loops}
        for position in self.positions if loops else ():
            waits: list[Wait] = []
            for wait in position.waits:
                if wait.loop not in leaves_at:
                    waits.append(wait)
                    continue
                low, high = wait.counted  # a half-open interval of the loop counter; high None: no end
                guarded_from = leaves_at[wait.loop] if guard.moment == "next" else 0  # None: at no count
                if guarded_from is None or low < guarded_from:
                    unguarded_counts = (low, high if guarded_from is None else guarded_from)
                    waits.append(replace(wait, counted=unguarded_counts))
                if guarded_from is not None and (high is None or max(low, guarded_from) < high):
                    guarded_counts = (max(low, guarded_from), high)
                    waits.append(replace(wait, guards=(*wait.guards, guard), counted=guarded_counts))
            position.waits = waits

    def _any_order(self, node: ir.AnyOrderNode) -> _Fragment:
        """Build steps in any order: each item, followed by the others in any order. No item can match zero events."""
        if len(node.items) == 1:
            return self.node(node.items[0])
        entries: list[Wait] = []
        exits: list[Exit] = []
        loops: list[_Loop] = []
        for index, item in enumerate(node.items):
            first = self.node(item)
            rest = self._any_order(ir.AnyOrderNode(node.items[:index] + node.items[index + 1 :]))
            # An exit's bounds are time limits for the next event. Here the next item may come at any time: no bounds.
            first_exits = tuple(replace(exit_, bounds=()) for exit_ in first.exits)
            self._join(first_exits, rest.entries, ir.Link.FOLLOWED_BY, bounds=())
            entries.extend(first.entries)
            exits.extend(rest.exits)
            loops.extend(rest.loops)  # a part's `loops` are the loops at its end, and `first` is not at the end
        return _Fragment(tuple(entries), tuple(exits), may_be_empty=False, loops=tuple(loops))
