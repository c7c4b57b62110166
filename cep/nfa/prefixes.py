"""The beginning of a pattern → the conditions whose events can wait: what they do to its runs can be put off.

A *prefix* of a pattern is its first condition and those that follow, one by one, as long as no event of any of them
completes a match:

    a -> b -> x -> c      prefixes  a   a b   a b x       (an event of c completes a match)

As long as only such events come a rule has nothing to tell, so they can be kept and made up for later (shared.py). Of
those of the first condition each begins a run. One of another condition matters where a run waits for it; so all that
wait for it must be on ways that the prefix alone leads along (its *steps*), which can be followed without the rules
(kernels/match/prefix.py). How conditions of a prefix are numbered is part of what is stored: a page has a bit for each.
Tested by: tests/nfa/test_shared.py
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cep.kernels import layout as y
from cep.nfa.tables import DERIVED, NO_CODE, StateRow, WaitRow

NOT_SIMPLE = (y.SIMPLE_NONE, 0, 0, 0)
_ROW_ACTIONS = (y.ACT_COUNT, y.ACT_LAST, y.ACT_FIRST, y.ACT_PREVIOUS)
LENGTH_MAX = 32  # conditions of a prefix; there is a bit for each in an int64.

# The state that waits, the predicate of what it waits for, the state that it leads to, whether the wait is over then.
Step = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The longest prefix of a pattern: its conditions in order, as numbers of predicates. The prefix of length n + 1
    has those up to number n and the steps[n]. `columns` are read when its events are kept, and no more new ones."""

    predicates: tuple[int, ...] = ()
    steps: tuple[tuple[Step, ...], ...] = ()
    columns: frozenset[int] = frozenset()


def prefix_of(states: Sequence[StateRow]) -> Prefix:
    """Return the longest prefix of a plain rule (R_PLAIN), whose NFA states these are."""
    first = states[0].waits
    every = [wait for nfa_state in states for wait in nfa_state.waits]
    if len(first) != 1 or any(wait.predicate < 0 for wait in every) or not _can_wait(states, first[0].predicate):
        return Prefix()
    chosen = [first[0].predicate]
    steps = [_steps(states, chosen)]
    while len(chosen) < LENGTH_MAX:
        reached = _reached(states, chosen)
        asked = [wait.predicate for number in reached for wait in states[number].waits]
        following = next((p for p in asked if p not in chosen and _may_follow(states, chosen, p)), None)
        if following is None:
            break
        chosen.append(following)
        steps.append(_steps(states, chosen))
    columns = frozenset(column for predicate in chosen for column in _read(states, predicate))
    return Prefix(tuple(chosen), tuple(steps), columns)


def _waits_for(states: Sequence[StateRow], predicate: int) -> list[tuple[int, WaitRow]]:
    """Return the waits for events of the predicate, with the number of the state that they belong to."""
    return [(at, wait) for at, row in enumerate(states) for wait in row.waits if wait.predicate == predicate]


def _read(states: Sequence[StateRow], predicate: int) -> set[int]:
    """Return the columns that are read when an event of the predicate is taken."""
    entered = [states[wait.target] for _, wait in _waits_for(states, predicate)]
    return {column for nfa_state in entered for kind, _, column, _ in nfa_state.actions if kind not in _ROW_ACTIONS}


def _can_wait(states: Sequence[StateRow], predicate: int) -> bool:
    """Return True if what events of the predicate do can be put off.

    None of them completes a match. No wait for one asks for more than the predicate. All that taking it reads is
    kept with the event."""
    waits = [wait for _, wait in _waits_for(states, predicate)]
    asks_more = any((wait.code, wait.simple) != (NO_CODE, NOT_SIMPLE) for wait in waits)
    completes = any(states[wait.target].accept[0] for wait in waits)
    return not asks_more and not completes and all(column < DERIVED for column in _read(states, predicate))


def _may_follow(states: Sequence[StateRow], chosen: Sequence[int], predicate: int) -> bool:
    """Return True if a prefix may go on with the predicate: a run takes one such event, and on its way alone.

    Of one that a run takes again and again, as in `b+`, no number of starts would bound how many wait.
    """
    waits, predicates = _waits_for(states, predicate), [*chosen, predicate]
    reached = _reached(states, predicates)
    on_its_way = all(at in reached and wait.kind == y.WAIT_RELAXED for at, wait in waits)
    behind = {at for _, wait in waits for at in _reached(states, predicates, wait.target)}
    return on_its_way and not any(at in behind for at, _ in waits) and _can_wait(states, predicate)


def _reached(states: Sequence[StateRow], predicates: Collection[int], begin: int = 0) -> list[int]:
    """Return the NFA states that events of these predicates lead to from one, which is among them."""
    reached = [begin]
    for number in reached:
        targets = [wait.target for wait in states[number].waits if wait.predicate in predicates]
        reached += [target for target in dict.fromkeys(targets) if target not in reached]
    return reached


def _steps(states: Sequence[StateRow], predicates: Collection[int]) -> tuple[Step, ...]:
    return tuple(
        (number, wait.predicate, wait.target, int(wait.kind == y.WAIT_RELAXED))
        for number in sorted(_reached(states, predicates))
        for wait in states[number].waits
        if wait.predicate in predicates
    )
