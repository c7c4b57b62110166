"""A rulebook → the compiled programs of each level, once a process.

Tested by: tests/step/test_job.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from cep.base.schema import Schema
from cep.columnar.route import KeyDomain
from cep.lists.timeline import Lists
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program
from cep.rulebook.completeness import with_producer_gaps
from cep.rulebook.levels import by_level
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.suppression import Policies
from cep.step.job import Job
from cep.step.rules import NamedRulebook

_PROGRAMS_CACHED = 64


@dataclass(frozen=True)
class InForce:
    """A rulebook with its derived values: the programs of each level, and the key domains with rules at any level."""

    rulebook: NamedRulebook
    programs: tuple[Mapping[KeyDomain, Program], ...]
    domains: frozenset[KeyDomain]

    @cached_property
    def policies(self) -> Policies:
        """The alerts that these rules suppress."""
        return Policies.of(self.rulebook.rulebook)


class Programs:
    """The compiled programs of a process, cached by rulebook and event types.

    A process compiles each rulebook once, however many key groups use it, and however often the lists change that rules
    use.
    """

    def __init__(self) -> None:
        self._programs: dict[tuple[str, Schema], list[dict[KeyDomain, Program]]] = {}
        self._lists: dict[tuple[str, Schema], Lists] = {}
        self._in_force: InForce | None = None

    def in_force(self, rulebook: NamedRulebook, job: Job) -> InForce:
        """Return a rulebook of this job with its derived values.

        The last one is cached: a fingerprint of thousands of rules takes milliseconds, and most micro-batches change no
        rule. A `NamedRulebook` belongs to one job and never changes.
        """
        if self._in_force is None or self._in_force.rulebook is not rulebook:
            programs = tuple(self.of(rulebook.rulebook, job.schema, level) for level in range(job.levels_count))
            domains = frozenset(domain for level in programs for domain in level)
            self._in_force = InForce(rulebook, programs, domains)
        return self._in_force

    def of(self, rulebook: Rulebook, schema: Schema, level: int = 0) -> Mapping[KeyDomain, Program]:
        """Return the program of each key domain that has rules at a level (rulebook/levels.py)."""
        key = (rulebook.fingerprint, schema)
        if key not in self._programs:
            if len(self._programs) >= _PROGRAMS_CACHED:
                oldest = next(iter(self._programs))
                del self._programs[oldest], self._lists[oldest]
            self._programs[key] = programs_by_level(rulebook, schema)
        elif self._lists[key] is not rulebook.lists.timelines():
            self._programs[key] = [_with_lists(rulebook, level) for level in self._programs[key]]
        self._lists[key] = rulebook.lists.timelines()
        levels = self._programs[key]
        return levels[level] if level < len(levels) else {}


def programs_by_level(rulebook: Rulebook, schema: Schema, levels_count: int = 1) -> list[dict[KeyDomain, Program]]:
    """Compile for each level of the rulebook (`by_level`) the program of each key domain that has rules there."""
    levels: list[dict[KeyDomain, Program]] = []
    for rules in by_level(with_producer_gaps(rulebook.deployed(), schema), schema, levels_count):
        domains: dict[KeyDomain, list[DeployedRule]] = {}
        for rule in rules:
            domains.setdefault(rule.pattern.key, []).append(rule)
        compiled = {domain: compile_rules(schema, domain, of_domain) for domain, of_domain in sorted(domains.items())}
        levels.append(_with_lists(rulebook, compiled))
    return levels


def _with_lists(rulebook: Rulebook, programs: Mapping[KeyDomain, Program]) -> dict[KeyDomain, Program]:
    """Return the programs with the lists as they are now."""
    return {domain: replace(program, lists=rulebook.lists.timelines()) for domain, program in programs.items()}
