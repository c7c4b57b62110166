"""The beginnings of patterns, whose events are stored once for all rules that share one; the numbers of equal parts.

A *prefix* of a pattern is its first condition and the conditions that follow, as long as their events complete no
match: the prefixes of `a -> b -> x -> c` are a, a b, and a b x. While only such events arrive, a rule reports nothing.
So they are stored once for all rules with the same prefix, until an event of another condition of a rule arrives; then
the rule processes the deferred events in order (match/plain.py, engine/starts.py).

    small -> login -> x -> large   ┐ three rules begin with small -> login; they have no longer prefix in common,
    small -> login -> y -> large   ├ so they share this one
    small -> login -> z -> large   ┘

    small -> large                   begins with small, which it may share with other rules with this prefix

A rule shares its longest prefix that enough other rules share as theirs. An event of the first condition is a *start*:
it can begin a run. An event of another condition matters only if a run waits for it, so all waits for it must be on
paths of the prefix alone (its *steps*), which can be followed without the rules (kernels/match/rules.py). A run takes
at most one of each, so the limit on starts limits all of them. The numbering of a prefix's conditions is part of the
stored state: a page has a bit for each. An event with long texts is not deferred: each rule takes it at once, and its
own limits apply.
Tested by: tests/nfa/test_shared.py, tests/engine/test_starts.py
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Type
from cep.kernels import layout as y
from cep.kernels.layout import Int32, Int64
from cep.lang.ir import Call, Expr, History
from cep.nfa.code import Instruction
from cep.nfa.deployed import RuleIdentity
from cep.nfa.tables import DERIVED, NO_CODE, StateRow, WaitRow

NOT_SIMPLE = (y.SIMPLE_NONE, 0, 0, 0)
_ROW_ACTIONS = (y.ACT_COUNT, y.ACT_LAST, y.ACT_FIRST, y.ACT_PREVIOUS)
LENGTH_MAX = 32  # conditions of a prefix; an int64 has a bit for each

# The waiting state, the predicate of the awaited event, the target state, and whether the wait then ends.
Step = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The longest prefix of a pattern: its conditions in order, as numbers of predicates.

    The prefix of length n + 1 has the conditions up to number n, and steps[n]. Its deferred events need `columns`.
    """

    predicates: tuple[int, ...] = ()
    steps: tuple[tuple[Step, ...], ...] = ()
    columns: frozenset[int] = frozenset()


def prefix_of(states: Sequence[StateRow]) -> Prefix:
    """Return the longest beginning of a pattern whose events can be stored once for all rules that begin like it.

    Such events are deferred: rules process them when an event of another condition arrives. `states` belong to a plain
    rule: its runs only take or skip events. The beginning is empty if the pattern may begin with several conditions. It
    is also empty if a wait takes any event (predicate -1), because then no event can be deferred."""
    first = states[0].waits
    all_waits = [wait for nfa_state in states for wait in nfa_state.waits]
    takes_any = any(wait.predicate < 0 for wait in all_waits)
    if len(first) != 1 or takes_any or not _can_defer(states, first[0].predicate):
        return Prefix()
    prefix = [first[0].predicate]
    steps = [_steps_of(states, prefix)]
    while len(prefix) < LENGTH_MAX:
        reached = _reached(states, prefix)  # the NFA states to which events of the prefix lead
        awaited = [wait.predicate for number in reached for wait in states[number].waits]
        following = next((p for p in awaited if p not in prefix and _may_follow(states, prefix, p)), None)
        if following is None:
            break
        prefix.append(following)
        steps.append(_steps_of(states, prefix))
    columns = frozenset(column for predicate in prefix for column in _read(states, predicate))
    return Prefix(tuple(prefix), tuple(steps), columns)


def _waits_for(states: Sequence[StateRow], predicate: int) -> list[tuple[int, WaitRow]]:
    """Return the waits for events of the predicate, with the number of their state."""
    return [(number, wait) for number, row in enumerate(states) for wait in row.waits if wait.predicate == predicate]


def _read(states: Sequence[StateRow], predicate: int) -> set[int]:
    """Return the columns that are read when an event of the predicate is taken."""
    entered = [states[wait.target] for _, wait in _waits_for(states, predicate)]
    return {column for nfa_state in entered for kind, _, column, _ in nfa_state.actions if kind not in _ROW_ACTIONS}


def _can_defer(states: Sequence[StateRow], predicate: int) -> bool:
    """Return True if events of the predicate can be deferred: they complete no match, the waits for them depend on
    nothing else, and every value that taking them reads is stored with the event.
    """
    waits = [wait for _, wait in _waits_for(states, predicate)]
    asks_more = any((wait.code, wait.simple) != (NO_CODE, NOT_SIMPLE) for wait in waits)
    completes = any(states[wait.target].accept[0] for wait in waits)
    return not asks_more and not completes and all(column < DERIVED for column in _read(states, predicate))


def _may_follow(states: Sequence[StateRow], chosen: Sequence[int], predicate: int) -> bool:
    """Return True if the predicate may extend the prefix: a run takes at most one such event, and only on its path."""
    waits, predicates = _waits_for(states, predicate), [*chosen, predicate]
    reached = _reached(states, predicates)
    on_its_way = all(nfa_state in reached and wait.kind == y.WAIT_RELAXED for nfa_state, wait in waits)
    behind = {nfa_state for _, wait in waits for nfa_state in _reached(states, predicates, wait.target)}
    return on_its_way and not any(nfa_state in behind for nfa_state, _ in waits) and _can_defer(states, predicate)


def _reached(states: Sequence[StateRow], predicates: Collection[int], begin: int = 0) -> list[int]:
    """Return the NFA states that events of these predicates lead to from `begin`, which is included."""
    reached = [begin]
    for number in reached:
        targets = [wait.target for wait in states[number].waits if wait.predicate in predicates]
        reached += [target for target in dict.fromkeys(targets) if target not in reached]
    return reached


def _steps_of(states: Sequence[StateRow], predicates: Collection[int]) -> tuple[Step, ...]:
    return tuple(
        (number, wait.predicate, wait.target, int(wait.kind == y.WAIT_RELAXED))
        for number in sorted(_reached(states, predicates))
        for wait in states[number].waits
        if wait.predicate in predicates
    )


T = TypeVar("T", bound=Hashable)


class Numbers(Generic[T]):
    """The numbers of distinct items, 0, 1, 2, …: equal items have equal numbers."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._number_of: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self.items)

    def number(self, item: T) -> int:
        """Return the number of an item, a new one if the item is new."""
        number = self._number_of.setdefault(item, len(self.items))
        if number == len(self.items):
            self.items.append(item)
        return number


# A constant: whether it is a text, and its slot or that text.
Constant = tuple[bool, int | str]
# A column of the event table: its name from columns.ColumnMap, the column that it is a function of, and the function.
Symbol = tuple[str, int, Call | History | None]

# A prefix: its predicates in order, and its steps, which are empty for the shortest.
PrefixSymbol = tuple[tuple[int, ...], tuple[Step, ...]]


@dataclass(frozen=True, slots=True)
class Symbols:
    """The numbers that all compiled rules of one process and one schema share: equal items have equal numbers.

    So rules are linked to a program by arithmetic on arrays. An item gets its number when the process first meets it.
    A program then gives its items other numbers, in the order of its rules."""

    constants: Numbers[Constant] = field(default_factory=Numbers)
    columns: Numbers[Symbol] = field(default_factory=Numbers)
    predicates: Numbers[tuple[frozenset[Expr], int | None]] = field(default_factory=Numbers)  # conjuncts, event type
    instructions: Numbers[Instruction] = field(default_factory=Numbers)  # operands are numbers in these tables
    groups: Numbers[tuple[int, int]] = field(default_factory=Numbers)  # indexes that find predicates: kind, column
    derived: Numbers[tuple[int, Type]] = field(default_factory=Numbers)  # computed columns: last instruction, type
    streams: Numbers[tuple[int, ...]] = field(default_factory=Numbers)  # sets of event types whose order matters
    prefixes: Numbers[PrefixSymbol] = field(default_factory=Numbers)  # beginnings of patterns, which rules may share

    def __len__(self) -> int:
        """Count the items of the tables that grow most, for the limit of the compiler (SYMBOLS_MAX)."""
        tables = (self.constants, self.columns, self.predicates, self.instructions, self.prefixes)
        return sum(len(numbers) for numbers in tables)


SHARED_MIN = 4  # rules with the same prefix: sharing among fewer costs more than it saves
_RULE_ID = ""  # no rule has this id
_LENGTH = "/"  # separates the numbers of rules from the length of their prefix, which is written from 2 on
Place = tuple[RuleIdentity, int, int]


@dataclass(frozen=True, slots=True)
class SharedStart:
    """A beginning (prefix) that several rules share: its events are stored once and not once per rule.

    Its events are deferred: the rules process them when an event of another condition arrives. The state of a key
    stores such an event as a row of the same form as a run. If the prefix has several conditions, the row's RUN_ORDINAL
    has a bit for each that holds."""

    rule_number: int  # in place of a rule's number in these rows; it is greater than the numbers of rules.
    nfa_state: int  # in place of an NFA state in these rows.
    rules: Int64  # the numbers of the sharing rules, ascending
    first_states: Int64  # the first NFA state of each of these rules.
    predicates: Int32  # the conditions in order
    steps: Int64  # transitions int64[n, 4]: state, bit of the condition, target, 1 if the wait ends
    from_ms: int  # the time from which the first of the rules processes events
    until_ms: int  # the time before which the last of the rules processes events
    within_ms: int  # the longest window of the rules: after this time, no rule needs an event of the prefix
    undeferred_bitmap: int  # the number of a bitmap: events with long texts, which the rules process at once

    @property
    def place(self) -> Place:
        """Return (identity, NFA state, number of states). The identity names the rules and the length of the prefix."""
        numbers = ",".join(map(str, self.rules.tolist()))
        length = len(self.predicates)
        return (_RULE_ID, 0, numbers if length == 1 else f"{numbers}{_LENGTH}{length}"), self.nfa_state, 1


def shares(identity: RuleIdentity) -> list[int]:
    """Return the rules whose shared events are stored under an identity, as numbers; empty for the runs of a rule."""
    return [int(number) for number in identity[2].split(_LENGTH)[0].split(",")] if identity[0] == _RULE_ID else []


def prefix_length(identity: RuleIdentity) -> int:
    """Return the length of the prefix whose events an identity stores; 0 for the runs of a rule."""
    if identity[0] != _RULE_ID:
        return 0
    _, _, length = identity[2].partition(_LENGTH)
    return int(length or 1)


def shared_starts(
    prefixes: Int64, rows: Int64, program_predicate: Int64, states_count: int, symbols: Sequence[PrefixSymbol],
    bitmaps_count: int,
) -> tuple[SharedStart, ...]:  # fmt: skip
    """Return the prefixes (first conditions of patterns) that several rules share; their events are stored once.

    prefixes int64[rules, lengths] are the prefixes of each rule, the shortest first, as indexes of `symbols`, or -1.
    rows int64[rules, RULE_WIDTH] are the compiled rules. program_predicate int64 translates a condition's number in the
    process to its number in the program. The numbers of prefixes' NFA states and bitmaps follow the program's own."""
    prefixes = prefixes[:, :LENGTH_MAX].copy()
    # A rule version that begins no match from some time on shares only its first condition: at the limit of stored
    # events of a key, newer events of other rules would otherwise evict events that its older runs still need.
    prefixes[rows[:, y.R_STARTS_UNTIL_MS] < TIME_MS_MAX, 1:] = -1
    chosen = sorted(_choose_prefixes(prefixes), key=lambda group: int(group[1][0]))
    return tuple(
        _shared_start(number, symbols[symbol], rules, rows, program_predicate, states_count, bitmaps_count)
        for number, (symbol, rules) in enumerate(chosen)
    )


def _choose_prefixes(prefixes: Int64) -> Iterator[tuple[int, Int64]]:
    """Yield prefixes with the rules that share them, the longest first. Each rule is in at most one of them."""
    is_free = np.ones(len(prefixes), bool)
    for length in range(prefixes.shape[1] - 1, -1, -1):
        rules = np.flatnonzero(is_free & (prefixes[:, length] >= 0))
        rules = rules[np.argsort(prefixes[rules, length], kind="stable")]
        symbols, first = np.unique(prefixes[rules, length], return_index=True)
        for symbol, sharing in zip(symbols.tolist(), np.split(rules, first[1:]), strict=False):
            if len(sharing) >= SHARED_MIN:
                is_free[sharing] = False
                yield symbol, sharing


def _shared_start(
    number: int, prefix: PrefixSymbol, rules: Int64, rows: Int64, program_predicate: Int64, states_count: int,
    bitmaps_count: int,
) -> SharedStart:  # fmt: skip
    """Describe one prefix (the first conditions of a pattern) that `rules` share, in the numbers of the program.

    Its steps are the transitions of a run through its conditions: state, condition, next state, 1 if the wait ends.
    rows int64[rules, RULE_WIDTH] are the compiled rules, program_predicate int64 the program's number by condition."""
    predicates, steps = prefix
    bits = {predicate: bit for bit, predicate in enumerate(predicates)}
    numbered_steps = [(nfa_state, bits[predicate], target, ends) for nfa_state, predicate, target, ends in steps]
    return SharedStart(
        rule_number=len(rows) + number,  # numbered after the rules, their NFA states and their bitmaps
        nfa_state=states_count + number,
        rules=rules,
        first_states=rows[rules, y.R_START_STATE],
        predicates=program_predicate[list(predicates)].astype(np.int32),
        steps=np.array(numbered_steps, np.int64).reshape(-1, 4),
        from_ms=int(rows[rules, y.R_FROM_MS].min()),
        until_ms=int(rows[rules, y.R_UNTIL_MS].max()),
        within_ms=int(rows[rules, y.R_WITHIN_MS].max()),
        undeferred_bitmap=bitmaps_count + number,  # marks events with long texts, which the rules process at once
    )


def without_deferred(first: Int32, relevance: Int32, shared: Sequence[SharedStart]) -> tuple[Int32, Int32]:
    """Remove the conditions of shared prefixes (first conditions of patterns) from the ones that rules react to.

    Rule r reacts to the bitmaps relevance[first[r] : first[r + 1]], one for each condition. Events of a prefix are
    deferred: stored once until rules need them. But an event with long texts counts as several at each rule's limits.
    So it is deferred only for the first condition; the rules of a longer prefix react to a bitmap of such events."""
    if not shared:
        return first, relevance
    rule = np.repeat(np.arange(len(first) - 1), np.diff(first))
    width = int(relevance.max(initial=0)) + 2  # for a number of each (rule, condition); condition -1 is all events
    shared_pairs = [(start.rules[:, None] * width + start.predicates[None, :] + 1).reshape(-1) for start in shared]
    is_not_shared = ~np.isin(rule * width + relevance + 1, np.concatenate(shared_pairs))
    longer = [start for start in shared if len(start.predicates) > 1]
    undeferred = [np.full(len(start.rules), start.undeferred_bitmap) for start in longer]
    rule = np.concatenate([rule[is_not_shared], *(start.rules for start in longer)])
    relevance = np.concatenate([relevance[is_not_shared], *undeferred])
    counts = np.bincount(rule, minlength=len(first) - 1)
    order = np.argsort(rule, kind="stable")
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), relevance[order].astype(np.int32)
