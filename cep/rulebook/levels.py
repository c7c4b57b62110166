"""Rules in force → the same by level: a level reads what the levels before it produce.

Tested by: tests/runners/test_produced.py
"""

from __future__ import annotations

from collections.abc import Iterable

from cep.lang.levels import levels_of
from cep.lang.walk import histories
from cep.nfa.deployed import DeployedRule


def by_level(rules: Iterable[DeployedRule]) -> list[list[DeployedRule]]:
    """The rules by level, in their order; one level if no rule produces what another one reads."""
    given = list(rules)
    if all(rule.pattern.produces is None for rule in given):
        return [given]  # walking through the patterns of thousands of rules takes longer than all else
    feeds = {number: (_read_by(rule), rule.pattern.produces) for number, rule in enumerate(given)}
    levels = levels_of(feeds)
    found: list[list[DeployedRule]] = [[] for _ in range(max(levels.values(), default=0) + 1)]
    for number, rule in enumerate(given):
        found[levels[number]].append(rule)
    return found


def _read_by(rule: DeployedRule) -> tuple[str, ...]:
    past = tuple(history.event_type for history in histories(rule.pattern))
    return (*rule.pattern.event_types, *past)
