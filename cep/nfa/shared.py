"""Rules that start on the same events → what is kept once for all of them.

A *start* is an event that a rule's first condition holds for. It can begin a run and, where the condition comes again
(`small{3} -> large`), move one; but no start completes a match. So what starts do to a rule's runs can be put off until
an event of another of its conditions comes. Until then they are kept once for all rules with the same first condition;
then the rule makes up for those that it has not seen yet, in their order (kernels/plain.py, engine/starts.py). A start
then costs what it costs one rule, however many begin with it.

Tested by: tests/nfa/test_shared.py, tests/engine/test_starts.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cep.kernels import layout as y
from cep.kernels.layout import Int32, Int64
from cep.nfa.deployed import RuleIdentity

# From so many rules with the same first condition on, its starts are kept once. For fewer it costs more than it saves.
SHARED_MIN = 4
_RULE_ID = ""  # no rule has it
Place = tuple[RuleIdentity, int, int]


@dataclass(frozen=True, slots=True)
class SharedStart:
    """A first condition that several rules have.

    In keyed state its starts are rows like runs: of rule number `slot`, in NFA state `nfa_state`. `rules` int64 are the
    numbers of those that share it, ascending, `predicate` is that of the condition. Its starts are the events in
    [from_ms, until_ms), kept for `within_ms`: what its rules need among them.
    """

    slot: int
    nfa_state: int
    rules: Int64
    predicate: int
    from_ms: int
    until_ms: int
    within_ms: int

    @property
    def place(self) -> Place:
        """As those of rules in `Program.places`: what is stored is tied to the rules that share it."""
        return (_RULE_ID, 0, ",".join(map(str, self.rules.tolist()))), self.nfa_state, 1


def shares(identity: RuleIdentity) -> list[int]:
    """The numbers of the rules whose shared starts are stored under an identity; empty for the runs of a rule."""
    return [int(number) for number in identity[2].split(",")] if identity[0] == _RULE_ID else []


def shared_starts(start: Int64, rows: Int64, predicate_place: Int64, states_count: int) -> tuple[SharedStart, ...]:
    """The starts that several rules share.

    Shapes: start int64[rules] is the predicate of each rule's first condition, in numbers of the process, or -1 where
    it cannot be shared; rows int64[rules, RULE_WIDTH]; predicate_place gives a predicate's number in the program, which
    has `states_count` NFA states.
    """
    wanted, first, counts = np.unique(start, return_index=True, return_counts=True)
    often = np.flatnonzero((counts >= SHARED_MIN) & (wanted >= 0))
    found = []
    for number, at in enumerate(often[np.argsort(first[often])].tolist()):
        own = np.flatnonzero(start == wanted[at])
        found.append(
            SharedStart(
                slot=len(start) + number,
                nfa_state=states_count + number,
                rules=own,
                predicate=int(predicate_place[wanted[at]]),
                from_ms=int(rows[own, y.R_FROM_MS].min()),
                until_ms=int(rows[own, y.R_UNTIL_MS].max()),
                within_ms=int(rows[own, y.R_WITHIN_MS].max()),
            )
        )
    return tuple(found)


def without_starts(first: Int32, relevance: Int32, shared: Sequence[SharedStart]) -> tuple[Int32, Int32]:
    """What rules react to (`Program.relevance_first`, `relevance`) without the starts that they share."""
    if not shared:
        return first, relevance
    predicate = np.full(len(first) - 1, -2, np.int64)
    for start in shared:
        predicate[start.rules] = start.predicate
    owner = np.repeat(np.arange(len(first) - 1), np.diff(first))
    kept = relevance != predicate[owner]
    counts = np.bincount(owner[kept], minlength=len(first) - 1)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), relevance[kept]
