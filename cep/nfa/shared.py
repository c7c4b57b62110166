"""Rules with the same prefix → events that are stored once for all of them.

No event of a prefix (prefixes.py) completes a match. So the effects of such events on a rule's runs can be deferred
until an event of another of its conditions arrives. Until then the events are stored once for all rules with the same
prefix; then the rule processes the deferred events in order (match/plain.py, engine/starts.py). They cost as much as a
single rule, however many rules begin with them.

    small -> login -> x -> large   ┐ three rules begin with small -> login; they have no longer prefix in common,
    small -> login -> y -> large   ├ so they share this one
    small -> login -> z -> large   ┘

    small -> large                   begins with small, which it may share with other rules with this prefix

A rule shares its longest prefix that enough other rules share as theirs. An event of the first condition is a *start*:
it can begin a run. Events of the other conditions are stored if a run may wait for them (kernels/match/prefix.py). A
run takes at most one of each, so the limit on starts limits all of them. An event with long texts is not deferred: each
rule takes it at once, and its own limits apply.

Tested by: tests/nfa/test_shared.py, tests/engine/test_starts.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cep.base.limits import TIME_MS_MAX
from cep.kernels import layout as y
from cep.kernels.layout import Int32, Int64
from cep.nfa.deployed import RuleIdentity
from cep.nfa.prefixes import LENGTH_MAX
from cep.nfa.symbols import PrefixSymbol

# Minimum number of rules with the same prefix. Sharing among fewer costs more than it saves.
SHARED_MIN = 4

_RULE_ID = ""  # no rule has this id
_LENGTH = "/"  # separates the numbers of rules from the length of their prefix, which is written from 2 on
Place = tuple[RuleIdentity, int, int]


@dataclass(frozen=True, slots=True)
class SharedStart:
    """A beginning (prefix) that several rules share: its events are stored once and not once per rule.

    In keyed state its events are rows like runs: of rule number `slot`, in NFA state `nfa_state`; if the prefix has
    several conditions, the ordinal of a row has a bit for each condition that holds for the event. `rules` int64 are
    the numbers of the sharing rules, ascending, `first_states` int64 their first NFA states, `predicates` int32 the
    conditions in order. `steps` int64[n, 4] are as in match/prefix.py, empty for one condition. Its events are in
    [from_ms, until_ms), and are needed while a run of `within_ms` is open: the maxima over its rules. `apart` is the
    number of the bitmap of events that are not deferred, although a run waits for them (engine/starts.py).
    """

    slot: int
    nfa_state: int
    rules: Int64
    first_states: Int64
    predicates: Int32
    steps: Int64
    from_ms: int
    until_ms: int
    within_ms: int
    apart: int

    @property
    def place(self) -> Place:
        """Return a place like the places of rules in `Program.places`.

        Stored events are tied to the rules that share them, and to the length of the prefix.
        """
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
    prefixes: Int64, rows: Int64, predicate_place: Int64, states_count: int, symbols: Sequence[PrefixSymbol],
    bitmaps_count: int,
) -> tuple[SharedStart, ...]:  # fmt: skip
    """Return the prefixes that several rules share.

    Shapes: prefixes int64[rules, lengths] are the prefixes of each rule, the shortest first, in numbers of the process,
    or -1; rows int64[rules, RULE_WIDTH]; predicate_place is a predicate's number in the program, which has
    `states_count` NFA states and `bitmaps_count` bitmaps of conditions. A version that ends shares only its first
    condition: otherwise, at the limit of starts, events that begin none of its runs would evict events that its older
    runs still need.
    """
    prefixes = prefixes[:, :LENGTH_MAX].copy()
    prefixes[rows[:, y.R_STARTS_UNTIL_MS] < TIME_MS_MAX, 1:] = -1
    chosen = sorted(_chosen(prefixes), key=lambda group: int(group[1][0]))
    return tuple(
        _shared_start(number, symbols[symbol], rules, rows, predicate_place, states_count, bitmaps_count)
        for number, (symbol, rules) in enumerate(chosen)
    )


def _chosen(prefixes: Int64) -> Iterator[tuple[int, Int64]]:
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
    number: int, prefix: PrefixSymbol, rules: Int64, rows: Int64, predicate_place: Int64, states_count: int,
    bitmaps_count: int,
) -> SharedStart:  # fmt: skip
    """Describe one shared prefix: its conditions in the program's numbers, and its interval over all sharing rules."""
    predicates, steps = prefix
    bits = {predicate: bit for bit, predicate in enumerate(predicates)}
    return SharedStart(
        slot=len(rows) + number,
        nfa_state=states_count + number,
        rules=rules,
        first_states=rows[rules, y.R_START_STATE],
        predicates=predicate_place[list(predicates)].astype(np.int32),
        steps=np.array([(offset, bits[predicate], *rest) for offset, predicate, *rest in steps], np.int64).reshape(
            -1, 4
        ),
        from_ms=int(rows[rules, y.R_FROM_MS].min()),
        until_ms=int(rows[rules, y.R_UNTIL_MS].max()),
        within_ms=int(rows[rules, y.R_WITHIN_MS].max()),
        apart=bitmaps_count + number,
    )


def without_starts(first: Int32, relevance: Int32, shared: Sequence[SharedStart]) -> tuple[Int32, Int32]:
    """Remove the deferred events of shared prefixes from the predicates that wake a rule, and add the other events.

    `first` and `relevance` are `Program.relevance_first` and `Program.relevance`: a range of predicates for each rule.
    """
    if not shared:
        return first, relevance
    rule = np.repeat(np.arange(len(first) - 1), np.diff(first))
    width = int(relevance.max(initial=0)) + 2  # -1 is all events
    shared_pairs = [(start.rules[:, None] * width + start.predicates[None, :] + 1).reshape(-1) for start in shared]
    is_not_shared = ~np.isin(rule * width + relevance + 1, np.concatenate(shared_pairs))
    long_starts = [start for start in shared if len(start.predicates) > 1]
    rule = np.concatenate([rule[is_not_shared], *(start.rules for start in long_starts)])
    relevance = np.concatenate(
        [relevance[is_not_shared], *(np.full(len(start.rules), start.apart) for start in long_starts)]
    )
    counts = np.bincount(rule, minlength=len(first) - 1)
    order = np.argsort(rule, kind="stable")
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), relevance[order].astype(np.int32)
