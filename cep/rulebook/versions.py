"""The changes of one rule → its versions, each with its interval.

    changes   version 1 ─▶ version 2 (drain) ─▶ pause ─▶ resume
    versions  1 ├──────────┤
              2            ├──────────────────┤        ├──────▶

The rulebook holds one `RuleVersions` for each rule. intervals.py derives the intervals.
Tested by: tests/rulebook/test_rulebook.py, tests/rulebook/test_timeline.py, tests/rulebook/test_pause.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from cep.base.limits import TIME_MS_MAX
from cep.lang.ir import PatternIR
from cep.model.rule import UpsertRecord
from cep.nfa.deployed import DeployedRule, RuleIdentity
from cep.rulebook.compatible import patterns_behind
from cep.rulebook.completeness import needs_of
from cep.rulebook.intervals import Change, Entry, Spans, end_of, parts, rules_of, settled
from cep.rulebook.meaning import content_hash, earlier_hash


@dataclass(frozen=True, eq=False)
class RuleVersions:
    """The changes of one rule by version, shadows separately, and its pauses.

    The last version numbers stay in the ledger when the rest is forgotten, or an old record would restore a retired
    rule. A value never changes, and its properties are computed once, so a change of one rule costs nothing for the
    others.
    """

    live: tuple[Change, ...] = ()
    shadow: tuple[Change, ...] = ()
    pauses: Spans = ()

    @property
    def is_paused(self) -> bool:
        """True if the last pause has not ended."""
        return bool(self.pauses) and self.pauses[-1][1] == TIME_MS_MAX

    @cached_property
    def whole(self) -> tuple[DeployedRule, ...]:
        """Every version that matches, pauses not counted."""
        return tuple(rule for _, rule in (*rules_of(self.live), *rules_of(self.shadow, self.live)))

    @cached_property
    def rules(self) -> tuple[DeployedRule, ...]:
        """Every part of a version that matches."""
        return tuple(part for rule in self.whole for part in parts(rule, self.pauses))

    @cached_property
    def forget_ms(self) -> int:
        """The watermark at which a version or a pause is over; TIME_MS_MAX if none ends."""
        return min((*map(end_of, self.whole), *(end for _, end in self.pauses)), default=TIME_MS_MAX)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The versions that match or are to match, with their records."""
        return tuple(change.entry for change in (*self.live, *self.shadow) if change.entry is not None)

    def at_levels(self, levels: Mapping[RuleIdentity, int]) -> RuleVersions:
        """Return the same versions at these levels."""
        return replace(self, live=_at_levels(self.live, levels), shadow=_at_levels(self.shadow, levels))

    @cached_property
    def is_at_rest(self) -> bool:
        """True if no time that passes changes anything: nothing is to end, drain, or come back from a pause."""
        is_open = all(rule.starts_until_ms == TIME_MS_MAX for rule in self.whole)
        return is_open and len(self.whole) == len(self.live) + len(self.shadow) and not self.pauses

    @cached_property
    def data(self) -> str:
        """JSON of the rule for saved.py, with records by their hash."""
        live, shadow = ([change.to_json() for change in changes] for changes in (self.live, self.shadow))
        return json.dumps({"pauses": self.pauses, "live": live, "shadow": shadow})

    def settled(self, watermark_ms: int) -> RuleVersions:
        """Return the same without the versions and pauses that are over at the watermark."""
        over = tuple(span for span in self.pauses if span[1] <= watermark_ms)
        # A version in shadow is ended by a live one, also by one that goes now.
        shadow = settled(self.shadow, self.live, over, watermark_ms)
        live = settled(self.live, (), over, watermark_ms)
        return replace(self, live=live, shadow=shadow, pauses=self.pauses[len(over) :])


def _at_levels(changes: Iterable[Change], levels: Mapping[RuleIdentity, int]) -> tuple[Change, ...]:
    entries = ((change, change.entry) for change in changes)
    return tuple(
        change
        if entry is None
        else replace(change, entry=replace(entry, rule=replace(entry.rule, level=levels[entry.rule.identity])))
        for change, entry in entries
    )


def entry_of(record: UpsertRecord, rule: DeployedRule, carries: int = 0) -> Entry:
    """Return the version of a record, with the needs of its histories."""
    return Entry(record, rule, carries, needs_of(rule.pattern))


def deployed_rule(record: UpsertRecord, pattern: PatternIR, epoch: int) -> DeployedRule:
    """Return the rule that a record deploys, for all time."""
    return DeployedRule(
        rule_id=record.id,
        version=record.version,
        epoch=epoch,
        content_hash=content_hash(record),
        earlier_hash=earlier_hash(record),
        pattern=pattern,
        status=record.status,
        severity=record.severity,
        priority=record.priority,
        score=record.score,
        message=record.message,
        behind=0 if pattern.produces is None else patterns_behind(record.source, record.pattern),
    )
