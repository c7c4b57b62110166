"""Rules in force → the same rules by level: a level reads the events that earlier levels produce.

    level 0                    rules that read no derived events
    1 … levels_count - 2       rules that read derived events and produce others, as late as their readers allow
    levels_count - 1           rules that read derived events and produce none

Keyed state is stored by level. So a version in a job keeps its first level, independent of later changes: its producers
may be added later, or removed, and its runs and its past stay in place. For this reason a reader of derived events is
placed as late as possible: its producers find a level before it, and after it there is one for each pattern of its text
that reads its events. A rule without a free level is refused. The initial rules and the order of records decide the
levels, not their times, earlier matches, or expired versions (`Places`). So a replay of the records refuses the same
rules as the job.
Tested by: tests/rulebook/test_levels.py, tests/runners/test_produced.py, tests/runners/test_level_changes.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cep.base.limits import PRODUCE_DEPTH_MAX
from cep.base.schema import Schema
from cep.lang.check.levels import levels_of
from cep.lang.ir import PatternIR
from cep.lang.walk import histories
from cep.nfa.deployed import DeployedRule


@dataclass(frozen=True, slots=True)
class Places:
    """The levels that new versions may have because of all past versions, by event type.

    `made` is the highest level of the type's producers, `read` the lowest of its readers, with a rule at that level.
    """

    made: Mapping[str, int]
    read: Mapping[str, tuple[int, str]]

    @staticmethod
    def of(rules: Iterable[DeployedRule]) -> Places:
        """Collect the places of rules that have their levels."""
        levels_by_type: dict[str, int] = {}
        read: dict[str, tuple[int, str]] = {}
        for rule in rules:
            level = _level(rule)
            if rule.pattern.produces is not None:
                levels_by_type[rule.pattern.produces] = max(level, levels_by_type.get(rule.pattern.produces, 0))
            for name in _read_by(rule.pattern):
                read[name] = min((level, rule.rule_id), read.get(name, (level, rule.rule_id)))
        return Places(levels_by_type, read)

    def joined(self, other: Places) -> Places:
        """Join both."""
        levels_by_type = {
            name: max(self.made.get(name, 0), other.made.get(name, 0)) for name in {**self.made, **other.made}
        }
        read = {**self.read, **other.read}
        both = self.read.keys() & other.read.keys()
        return Places(levels_by_type, {**read, **{name: min(self.read[name], other.read[name]) for name in both}})

    def to_json(self) -> list[Any]:
        """Return the places as JSON values for saved.py; `from_json` reads them."""
        return [dict(self.made), {name: list(levels) for name, levels in self.read.items()}]

    @staticmethod
    def from_json(data: Sequence[Any]) -> Places:
        levels_by_type, read = data
        return Places(dict(levels_by_type), {name: (level, rule_id) for name, (level, rule_id) in read.items()})


def by_level(rules: Iterable[DeployedRule], schema: Schema, levels_count: int = 1) -> list[list[DeployedRule]]:
    """Group rules by level, in their order.

    A rule keeps the level that it was given. If no rule has one, all get a level of `levels_count`, or of as many as
    they need.
    """
    rule_list = list(rules)
    if any(rule.level is None for rule in rule_list):
        levels = placed(rule_list, schema, max(levels_count, levels_needed(rule_list)))
    else:
        levels = [_level(rule) for rule in rule_list]
    grouped: list[list[DeployedRule]] = [[] for _ in range(max([levels_count - 1, *levels]) + 1)]
    for rule, level in zip(rule_list, levels, strict=True):
        grouped[level].append(rule)
    return grouped


def levels_needed(rules: Sequence[DeployedRule]) -> int:
    """Count the levels that the rules need at least."""
    return max(earliest(rules), default=0) + 1


def earliest(rules: Sequence[DeployedRule]) -> list[int]:
    """Return the level of each rule directly after the rules that feed it."""
    if all(rule.pattern.produces is None for rule in rules):
        return [0] * len(rules)  # visiting the patterns of thousands of rules takes longer than all the rest
    levels = levels_of({index: (_read_by(rule.pattern), rule.pattern.produces) for index, rule in enumerate(rules)})
    return [levels[index] for index in range(len(rules))]


def placed(rules: Sequence[DeployedRule], schema: Schema, levels_count: int) -> list[int]:
    """Assign levels to rules before any match. A rule that reads its own events has no valid level."""
    if levels_count == 1:
        return [0] * len(rules)
    first, last = earliest(rules), levels_count - 1
    reads = [_read_by(rule.pattern) for rule in rules]
    produced = [rule.pattern.produces for rule in rules]
    latest = [_last(rule, levels_count) for rule in rules]
    for _ in range(levels_count):
        least_levels: dict[str, int] = {}
        for names, level in zip(reads, latest, strict=True):
            for name in names:
                least_levels[name] = min(level, least_levels.get(name, level))
        latest = [
            level if name is None else min(level, least_levels.get(name, last) - 1)
            for name, level in zip(produced, latest, strict=True)
        ]
    return [
        max(late, early) if early or _is_any_derived(names, schema) else 0
        for early, late, names in zip(first, latest, reads, strict=True)
    ]


def place_at_first(rule: DeployedRule, others: Sequence[DeployedRule], schema: Schema, levels_count: int) -> int | str:
    """Return the level of a new rule, or why it has none. Before any match, the other rules are placed again."""
    rules = [*others, rule]
    needed = levels_needed(rules)
    return placed(rules, schema, levels_count)[-1] if needed <= levels_count else _too_deep(levels_count, needed)


def place_among(rule: DeployedRule, places: Places, schema: Schema, levels_count: int) -> int | str:
    """Return the level of a new rule, or the reason why it has none. The other rules keep their levels."""
    produced, names = rule.pattern.produces, _read_by(rule.pattern)
    first = max((places.made[name] + 1 for name in names if name in places.made), default=0)
    if first >= levels_count:
        return _too_deep(levels_count, first + 1)
    last = max(first, _last(rule, levels_count))
    if produced is not None and produced in places.read:
        level, reader = places.read[produced]
        last = min(last, level - 1)
        if first > last:
            return (
                f"it produces `{produced}`, and must be matched before `{reader}`, which reads that and stands at "
                f"level {level + 1} of the job's {levels_count}, where its runs are; start a job with both rules and "
                "more `--levels`, in a new checkpoint folder"
            )
    return last if first or _is_any_derived(names, schema) else 0


def _last(rule: DeployedRule, levels_count: int) -> int:
    """Return the last level that leaves room for the patterns after the rule."""
    return levels_count - 1 - max(rule.behind, int(rule.pattern.produces is not None))


def _level(rule: DeployedRule) -> int:
    assert rule.level is not None, "it has been put somewhere"
    return rule.level


def _is_any_derived(names: Iterable[str], schema: Schema) -> bool:
    return any(declared is not None and declared.derived for declared in map(schema.event_type, names))


def _read_by(pattern: PatternIR) -> tuple[str, ...]:
    past = tuple(history.event_type for history in histories(pattern))
    return (*pattern.event_types, *past)


def _too_deep(levels_count: int, needed: int) -> str:
    if needed > PRODUCE_DEPTH_MAX:
        return f"what patterns produce comes back to them, or the chain is longer than {PRODUCE_DEPTH_MAX} patterns"
    return (
        f"it reads what other patterns produce, and the job has {levels_count} level(s) of patterns that feed each "
        f"other, which are too few; start a job with `--levels {needed}`, in a new checkpoint folder"
    )
