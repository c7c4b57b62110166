"""The beginning of a pattern → the conditions whose events can be deferred.

A *prefix* of a pattern is its first condition and the conditions that follow, as long as their events complete no
match:

    a -> b -> x -> c      prefixes  a   a b   a b x       (an event of c completes a match)

As long as only such events arrive, a rule reports nothing, so they can be stored and processed later (shared.py). Each
event of the first condition begins a run. An event of another condition matters only if a run waits for it, so all
waits for it must be on paths of the prefix alone (its *steps*), which can be followed without the rules
(kernels/match/prefix.py). The numbering of a prefix's conditions is part of the stored state: a page has a bit for
each.

Tested by: tests/nfa/test_shared.py
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cep.kernels import layout as y
from cep.nfa.tables import DERIVED, NO_CODE, StateRow, WaitRow

NOT_SIMPLE = (y.SIMPLE_NONE, 0, 0, 0)
_ROW_ACTIONS = (y.ACT_COUNT, y.ACT_LAST, y.ACT_FIRST, y.ACT_PREVIOUS)
LENGTH_MAX = 32  # conditions of a prefix; an int64 has a bit for each

# The waiting state, the predicate of the awaited event, the target state, and whether the wait then ends.
Step = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The longest prefix of a pattern: its conditions in order, as numbers of predicates.

    The prefix of length n + 1 has the conditions up to number n, and the steps[n]. `columns` are read when its deferred
    events are processed.
    """

    predicates: tuple[int, ...] = ()
    steps: tuple[tuple[Step, ...], ...] = ()
    columns: frozenset[int] = frozenset()


def prefix_of(states: Sequence[StateRow]) -> Prefix:
    """Return the longest beginning of a plain rule (R_PLAIN) that other rules could share, from its NFA states."""
    first = states[0].waits
    all_waits = [wait for nfa_state in states for wait in nfa_state.waits]
    if len(first) != 1 or any(wait.predicate < 0 for wait in all_waits) or not _can_wait(states, first[0].predicate):
        return Prefix()
    chosen = [first[0].predicate]
    steps = [_steps(states, chosen)]
    while len(chosen) < LENGTH_MAX:
        reached = _reached(states, chosen)
        used = [wait.predicate for number in reached for wait in states[number].waits]
        following = next((p for p in used if p not in chosen and _may_follow(states, chosen, p)), None)
        if following is None:
            break
        chosen.append(following)
        steps.append(_steps(states, chosen))
    columns = frozenset(column for predicate in chosen for column in _read(states, predicate))
    return Prefix(tuple(chosen), tuple(steps), columns)


def _waits_for(states: Sequence[StateRow], predicate: int) -> list[tuple[int, WaitRow]]:
    """Return the waits for events of the predicate, with the number of their state."""
    return [(number, wait) for number, row in enumerate(states) for wait in row.waits if wait.predicate == predicate]


def _read(states: Sequence[StateRow], predicate: int) -> set[int]:
    """Return the columns that are read when an event of the predicate is taken."""
    entered = [states[wait.target] for _, wait in _waits_for(states, predicate)]
    return {column for nfa_state in entered for kind, _, column, _ in nfa_state.actions if kind not in _ROW_ACTIONS}


def _can_wait(states: Sequence[StateRow], predicate: int) -> bool:
    """Return True if events of the predicate can be deferred.

    They must complete no match, each wait for them must depend on the predicate alone, and every value that taking them
    reads must be stored with the event.
    """
    waits = [wait for _, wait in _waits_for(states, predicate)]
    asks_more = any((wait.code, wait.simple) != (NO_CODE, NOT_SIMPLE) for wait in waits)
    completes = any(states[wait.target].accept[0] for wait in waits)
    return not asks_more and not completes and all(column < DERIVED for column in _read(states, predicate))


def _may_follow(states: Sequence[StateRow], chosen: Sequence[int], predicate: int) -> bool:
    """Return True if the prefix can be extended by the predicate: a run takes one such event, and only on its path.

    If a run takes such events repeatedly, as in `b+`, no number of starts limits the number of deferred events.
    """
    waits, predicates = _waits_for(states, predicate), [*chosen, predicate]
    reached = _reached(states, predicates)
    on_its_way = all(nfa_state in reached and wait.kind == y.WAIT_RELAXED for nfa_state, wait in waits)
    behind = {nfa_state for _, wait in waits for nfa_state in _reached(states, predicates, wait.target)}
    return on_its_way and not any(nfa_state in behind for nfa_state, _ in waits) and _can_wait(states, predicate)


def _reached(states: Sequence[StateRow], predicates: Collection[int], begin: int = 0) -> list[int]:
    """Return the NFA states that events of these predicates lead to from `begin`, which is included."""
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
