"""A random pattern, and two more, over the beginning of random events: the state of their runs, in two pages."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np

from cep.columnar.batch import EventBatch
from cep.columnar.route import key_groups
from cep.engine.advance import advance
from cep.engine.keyed_state import KeyedState, select_keys
from cep.nfa.compile import problems
from cep.nfa.program import Program
from cep.state.pages import StoredPage, encode_page
from tests.engine.bridge import batch_of, program_of
from tests.oracle.random_cases import SCHEMA, random_case

DOMAIN: tuple[str, ...] = ("key",)


@dataclass(frozen=True)
class RandomState:
    """The rules, the events so far, and the stored state: whole, by key group, and as pages."""

    rules: Program
    events: EventBatch
    keyed_state: KeyedState
    parts: list[KeyedState]
    pages: list[StoredPage]


def random_state(seed: int) -> RandomState | None:
    """Return the state of a seed; None if its pattern cannot be compiled."""
    case = random_case(seed, 3)
    if problems(case.pattern, SCHEMA):
        return None
    rules = program_of(SCHEMA, case.pattern, *(random_case(10_000 + seed + i, 1).pattern for i in range(2)))
    events = batch_of(SCHEMA, case.events)
    first = events.take(np.arange(Random(seed).randint(0, len(events))))
    keyed_state = advance(rules, None, first, -(2**60)).keyed_state
    group_of_key = key_groups(keyed_state.keys, 2)
    parts = [select_keys(keyed_state, group_of_key == group, rules.row_registers) for group in range(2)]
    pages = [StoredPage(group, DOMAIN, encode_page(part)) for group, part in enumerate(parts)]
    return RandomState(rules, first, keyed_state, parts, pages)
