"""The rules in force, after each control record, and their order where rules feed each other.

A rule has versions; a version sees the events from its start up to its successor's. The rulebook holds every version
that is waiting for its start, in force, or draining, each with its interval, resolved when it was applied:

    from_ms          the first event time that it sees
    starts_until_ms  the first that no longer starts a match: its successor's from_ms
    until_ms         the first that it no longer sees: open after `drain`, its successor's from_ms after `restart`

The start of a change is stored, not computed again: it depends on the events that the job had seen when the record
came, and a restored rulebook must equal the saved one (versions.py). A shadow version exists next to the live one and
ends only an earlier shadow; a live version ends both, except a shadow with a still higher version. The highest version
wins, in any order of arrival and for any repetition of records. The rulebook does not know Spark or Kafka. Every key
group applies the same records in the same order and holds an equal rulebook.

Rules are matched by level. A level reads the events that earlier levels produce:

    level 0                    rules that read no derived events
    1 … levels_count - 2       rules that read derived events and produce others, as late as their readers allow
    levels_count - 1           rules that read derived events and produce none

Keyed state is stored by level. So a version in a job keeps its first level, although its producers may be added or
removed later. For this reason a reader of derived events is placed as late as possible: its producers find a level
before it, and after it there is one for each pattern of its text that reads its events. A rule without a free level is
refused. The initial rules and the order of records decide the levels, not their times, earlier matches, or expired
versions (`LevelBounds`). So a replay of the records refuses the same rules as the job.
Tested by: tests/rulebook/test_rulebook.py, tests/rulebook/test_timeline.py, tests/rulebook/test_levels.py,
tests/runners/test_produced.py, tests/runners/test_level_changes.py.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from cep.base.audit import Trail
from cep.base.limits import (
    CHANGES_BEFORE_EVENTS_MAX,
    PAUSES_PER_RULE_MAX,
    PRODUCE_DEPTH_MAX,
    RULES_MAX,
    TIME_MS_MAX,
    TIME_MS_MIN,
    VERSIONS_PER_RULE_MAX,
)
from cep.base.schema import Schema
from cep.lang.check.order import levels_of
from cep.lang.ir import PatternIR
from cep.lang.walk import histories
from cep.lists.store import ListStore
from cep.model.rule import (
    ControlRecord,
    HeartbeatRecord,
    ListRecord,
    PauseRecord,
    ResumeRecord,
    RetireRecord,
    RollbackRecord,
    RuleChange,
    SnoozeRecord,
    UpsertRecord,
)
from cep.nfa.deployed import DeployedRule
from cep.nfa.lists import asked_lists
from cep.rulebook.compatible import KeyDomains, compile_rule, raw_entries, raw_key, raw_lists, same_automaton
from cep.rulebook.completeness import with_completeness
from cep.rulebook.ledger import Ledger
from cep.rulebook.lists import RuleLists
from cep.rulebook.outcome import OTHER_AUTOMATON, Outcome, Refusal, RulebookReport, RuleReport, incomplete_histories
from cep.rulebook.trust import (
    Signable,
    Trust,
    reason_against,
    reason_against_rollback,
    reason_against_signers,
    snooze_line,
)
from cep.rulebook.versions import (
    Change,
    Entry,
    RuleVersions,
    Snoozes,
    deployed_rule,
    entry_of,
    inherited_runs,
    shadows_not_ended,
    start_of,
    with_pause_change,
    without_overtaken,
)


@dataclass(frozen=True, slots=True)
class LevelBounds:
    """The levels that new rules can have: a reader above `highest_producer`, a producer below `lowest_reader`.

    Rules run level by level: a rule that reads events runs at a later level than the rules that produce them. A rule
    keeps its level, so past versions count, too. Both mappings are by event type; `lowest_reader` also names the rule.
    """

    highest_producer: Mapping[str, int]
    lowest_reader: Mapping[str, tuple[int, str]]

    @staticmethod
    def of(rules: Iterable[DeployedRule]) -> LevelBounds:
        """Collect the bounds of rules that have their levels."""
        producers: dict[str, int] = {}
        readers: dict[str, tuple[int, str]] = {}
        for rule in rules:
            level = _level_of(rule)
            if rule.pattern.produces is not None:
                producers[rule.pattern.produces] = max(level, producers.get(rule.pattern.produces, 0))
            for name in _types_read(rule.pattern):
                readers[name] = min((level, rule.rule_id), readers.get(name, (level, rule.rule_id)))
        return LevelBounds(producers, readers)

    def joined(self, other: LevelBounds) -> LevelBounds:
        producers, readers = dict(self.highest_producer), dict(self.lowest_reader)
        producers |= {name: max(level, producers.get(name, 0)) for name, level in other.highest_producer.items()}
        readers |= {name: min(reader, readers.get(name, reader)) for name, reader in other.lowest_reader.items()}
        return LevelBounds(producers, readers)

    def to_json(self) -> list[Any]:
        readers = {name: [level, rule_id] for name, (level, rule_id) in self.lowest_reader.items()}
        return [dict(self.highest_producer), readers]

    @staticmethod
    def from_json(data: Sequence[Any]) -> LevelBounds:
        producers, readers = data
        return LevelBounds(dict(producers), {name: (level, rule_id) for name, (level, rule_id) in readers.items()})


def by_level(rules: Iterable[DeployedRule], schema: Schema, levels_count: int = 1) -> list[list[DeployedRule]]:
    """Group rules by level. If a rule has none, all get one of `levels_count`, or of as many as they need."""
    rule_list = list(rules)
    if any(rule.level is None for rule in rule_list):
        levels = initial_levels(rule_list, schema, max(levels_count, levels_needed(rule_list)))
    else:
        levels = [_level_of(rule) for rule in rule_list]
    grouped: list[list[DeployedRule]] = [[] for _ in range(max([levels_count - 1, *levels]) + 1)]
    for rule, level in zip(rule_list, levels, strict=True):
        grouped[level].append(rule)
    return grouped


def levels_needed(rules: Sequence[DeployedRule]) -> int:
    """Count the levels that the rules need at least."""
    return max(earliest_levels(rules), default=0) + 1


def earliest_levels(rules: Sequence[DeployedRule]) -> list[int]:
    """Return the level of each rule directly after the rules that feed it."""
    if all(rule.pattern.produces is None for rule in rules):
        return [0] * len(rules)  # visiting the patterns of thousands of rules takes longer than all the rest
    levels = levels_of({index: (_types_read(rule.pattern), rule.pattern.produces) for index, rule in enumerate(rules)})
    return [levels[index] for index in range(len(rules))]


def initial_levels(rules: Sequence[DeployedRule], schema: Schema, levels_count: int) -> list[int]:
    """Return the level of each rule of a new job. Rules run level by level, producers of events before their readers.

    A reader is as late as possible, so that producers can still be added before it. Other rules are at level 0.
    """
    if levels_count == 1:
        return [0] * len(rules)
    last = levels_count - 1
    reads = [_types_read(rule.pattern) for rule in rules]
    produced = [rule.pattern.produces for rule in rules]
    latest = [_latest_level(rule, levels_count) for rule in rules]  # the last level that each may have
    for _ in range(levels_count):  # each pass moves one more rule of a chain before its reader
        least_levels: dict[str, int] = {}  # by event type: the first level with a reader
        for names, level in zip(reads, latest, strict=True):
            for name in names:
                least_levels[name] = min(level, least_levels.get(name, level))
        latest = [
            level if name is None else min(level, least_levels.get(name, last) - 1)  # before its first reader
            for name, level in zip(produced, latest, strict=True)
        ]
    return [
        max(last_level, first_level) if first_level or _is_any_derived(names, schema) else 0  # 0: needs no producer
        for first_level, last_level, names in zip(earliest_levels(rules), latest, reads, strict=True)
    ]


def level_of_new_rule(rule: DeployedRule, bounds: LevelBounds, schema: Schema, levels_count: int) -> int | str:
    """Return the level of a rule that is added to a job, or the reason why none is free. Other rules keep their levels.

    Rules run level by level: producers of derived events before their readers. `bounds` has the levels of both.
    """
    produced, names = rule.pattern.produces, _types_read(rule.pattern)
    producers, readers = bounds.highest_producer, bounds.lowest_reader
    first = max((producers[name] + 1 for name in names if name in producers), default=0)  # after its producers
    if first >= levels_count:
        return _too_deep(levels_count, first + 1)
    last = max(first, _latest_level(rule, levels_count))  # the latest that leaves levels for its readers
    if produced is not None and produced in readers:
        level, reader = readers[produced]
        last = min(last, level - 1)
        if first > last:
            return (
                f"it produces `{produced}`, and must be matched before `{reader}`, which reads that and stands at "
                f"level {level + 1} of the job's {levels_count}, where its runs are; start a job with both rules and "
                "more `--levels`, in a new checkpoint folder"
            )
    reads_derived_events = first > 0 or _is_any_derived(names, schema)  # otherwise no rule has to run before it: 0
    return last if reads_derived_events else 0  # as late as possible, so that a producer can still come before it


def _latest_level(rule: DeployedRule, levels_count: int) -> int:
    """Return the last level that leaves a level for each pattern that may read the rule's events, one after another."""
    return levels_count - 1 - max(rule.patterns_after, int(rule.pattern.produces is not None))


def _level_of(rule: DeployedRule) -> int:
    assert rule.level is not None, "it has been put somewhere"
    return rule.level


def _is_any_derived(names: Iterable[str], schema: Schema) -> bool:
    return any(declared is not None and declared.derived for declared in map(schema.event_type, names))


def _types_read(pattern: PatternIR) -> tuple[str, ...]:
    past = tuple(history.event_type for history in histories(pattern))
    return (*pattern.event_types, *past)


def _too_deep(levels_count: int, needed: int) -> str:
    if needed > PRODUCE_DEPTH_MAX:
        return f"what patterns produce comes back to them, or the chain is longer than {PRODUCE_DEPTH_MAX} patterns"
    return (
        f"it reads what other patterns produce, and the job has {levels_count} level(s) of patterns that feed each "
        f"other, which are too few; start a job with `--levels {needed}`, in a new checkpoint folder"
    )


_REPORTED = RuleReport.__slots__[:8]  # the facts of a rule that its report begins with
_MATCHING_STATUSES = ("shadow", "live")  # a version with another status only ends the previous one


class Rulebook:
    """The rules of one job. `key_domains` are the keys that it routes events by; None routes by any key.

    `trust` and `is_audited` are terms of the job (step/job.py), which are not saved with the rules: who may sign
    changes, and whether changes go into an audit without signatures, too. `trail` is where the audit has got to.
    """

    def __init__(self, schema: Schema, key_domains: KeyDomains | None, lists: ListStore | None = None) -> None:
        """Begin without rules. `lists` is the store of the entries of lists, by default in memory."""
        self.lists = RuleLists(lists or ListStore())
        self.schema = schema
        self.key_domains = key_domains  # the key fields by which the job routes events; None: any
        self.levels_count: int | None = None  # a rule of a later level reads events that earlier levels produce
        self.level_bounds: LevelBounds | None = None  # the levels that a new rule may still have
        self.epoch = 0  # the number of changes applied so far
        self.rules: dict[str, RuleVersions] = {}  # by rule id
        self.snoozes = Snoozes()
        self.ledger = Ledger()  # the last versions of every rule and list, with hash, author and reason
        self.trust: Trust | None = None  # who may sign changes; None: signatures are not checked
        self.is_audited = False  # changes go into an audit even without `trust`
        self.trail = Trail()  # the end of the audit written so far
        self._counts: Counter[str] = Counter()  # of records by outcome, for the report
        self._deployed: tuple[DeployedRule, ...] | None = None  # cached result of `deployed`

    def copy(self) -> Rulebook:
        """Return an equal rulebook that changes on its own. Patterns and records are shared: they never change."""
        other = copy.copy(self)
        vars(other)["_counts"] = Counter(self._counts)
        other.rules = dict(self.rules)
        other.snoozes = self.snoozes.copy()
        other.lists = self.lists.copy()
        other.ledger = self.ledger.copy()
        return other

    @property
    def fingerprint(self) -> str:
        """Equal for rulebooks with the same matches: the key of cached programs. Refused records do not count."""
        rules = (f"{r.epoch} {r.mark} {r.complete_ms} {r.folded_since_ms} {r.level}" for r in self.deployed())
        text = "\n".join([repr(self.schema), *rules])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def content_hash(self) -> str:
        """Compute the SHA-256 of the newest versions of all rules, pauses, snoozes and lists.

        Jobs with the same records have the same hash, in any order, also if replaced records are gone from the topic.
        """
        rules = [
            [rule.rule_id, rule.version, rule.status, rule.content_hash]
            for rule in self.deployed()
            if rule.starts_until_ms == TIME_MS_MAX  # the newest version: no other one ends it
        ]
        last = [self._last_versions(name) for name in self.rules]
        text = json.dumps([sorted(rules), sorted(last), self._snooze_versions(), self.lists.last()])
        return hashlib.sha256(text.encode()).hexdigest()

    # -------------------------------------------------------------------------------------------- changes

    def apply(self, record: ControlRecord, last_event_ms: int | None, *, is_given: bool = False) -> Outcome:
        """Apply one control record. Return its outcome. Raises: StateError if the store of the lists refuses.

        `last_event_ms` is the largest event time that has been matched, None before the first event. A change starts
        after it, and the outcome says how much later than the record asks. If the job has signers (`trust`), the record
        needs signatures, unless it is a list that comes with the job's first rules (`is_given`).
        """
        if isinstance(record, HeartbeatRecord):
            return Outcome("ignored", "a heartbeat moves the watermark, not the rulebook")
        trust = None if is_given or self.trust is None else self.trust.after(last_event_ms)  # keys expire in event time
        unverified = None if trust is None else self._unverified(record, trust)
        # The ledger refuses a record that does not follow the last one of its rule or list. The others are applied.
        outcome = unverified or self.ledger.outcome(record) or self._outcome(record, last_event_ms)
        if outcome.kind in ("applied", "waiting"):
            signers_version = None if self.trust is None else self.trust.version
            self.ledger.take(record, is_applied=outcome.kind == "applied", signers_version=signers_version)
        self._counts[outcome.kind] += 1
        self._counts["late_ms"] += outcome.late_ms
        if outcome.kind == "applied":
            self.epoch += 1
            self._deployed = None
            is_version = isinstance(record, UpsertRecord | RollbackRecord)
            if is_version and self.levels_count is not None and outcome.from_ms == TIME_MS_MIN:  # before any event
                self.assign_levels(self.levels_count)  # again to all rules: a producer runs before its readers
        elif outcome.kind == "refused":
            self.ledger.refuse(record, outcome)
        return outcome

    def _unverified(self, record: Signable, trust: Trust) -> Outcome | None:
        """Return the outcome of a record whose signatures do not count, or not as the next change; otherwise None."""
        list_version = self.lists.version(record.id, record.of) if isinstance(record, ListRecord) else 0
        return (
            reason_against_signers(trust, self.ledger.signers_version)
            or reason_against(record, trust)
            or self.ledger.outcome_of_signed(record, list_version)
            or reason_against_rollback(record, self.ledger.rollback_target_hash(record), trust)
        )

    def assign_levels(self, levels_count: int) -> None:
        """Give every version its level of so many, before any match. A later version without a level is refused."""
        self.levels_count, rules = levels_count, [entry.rule for entry in self._entries()]
        self._take_levels(rules, initial_levels(rules, self.schema, levels_count))
        self.level_bounds = LevelBounds.of(entry.rule for entry in self._entries())

    def keep_levels(self, levels_count: int) -> None:
        """Leave every version of a saved rulebook at the level where its keyed state is."""
        self.levels_count, rules = levels_count, [entry.rule for entry in self._entries()]
        if any(rule.level is None for rule in rules):
            self._take_levels(rules, earliest_levels(rules))  # as earlier builds had them, which did not save levels
        if self.level_bounds is None:  # nor the bounds that earlier versions set
            self.level_bounds = LevelBounds.of(entry.rule for entry in self._entries())

    def forget(self, watermark_ms: int) -> int:
        """Drop every version that can neither start a match nor have an open run at the watermark. Return how many.

        Expired pauses, snoozes and versions of lists are dropped too. A draining version (it only finishes its runs)
        whose pattern has no `within` stays until it is restarted or retired.
        """
        count = 0
        for name, versions in tuple(self.rules.items()):
            if versions.is_unaffected_by_time and watermark_ms < TIME_MS_MAX:  # TIME_MS_MAX: everything has ended
                continue
            self.rules[name] = versions.settled(watermark_ms)
            count += len(versions.entries) - len(self.rules[name].entries)
            self._deployed = None
        self.snoozes.forget(watermark_ms)
        self.ledger.forget(itertools.starmap(snooze_line, self.snoozes.names()))  # all but these
        self.lists.forget(watermark_ms)
        return count

    def _outcome(self, record: Any, last_event_ms: int | None) -> Outcome:
        """Apply a list, snooze or rule change whose signatures and order have been checked.

        The change starts after `last_event_ms`, the time of the last matched event; None: no event was matched yet.
        """
        if isinstance(record, ListRecord):
            stored_entries = self.lists.store.get
            patterns = [rule.pattern for rule in self.deployed()]
            # Refuse raw values, such as card numbers, where a rule sees tokens (keyed hashes).
            refusal = raw_entries(record, patterns, lambda name: stored_entries(name).keys)
            return refusal or self.lists.apply(record, last_event_ms)
        from_ms, late_ms = start_of(record.effective_ms, last_event_ms)
        if isinstance(record, SnoozeRecord):
            patterns = [rule.pattern for rule in self.deployed() if rule.rule_id == record.id]
            refusal = raw_key(record, patterns, self.schema)  # a raw value as the snoozed key
            outcome = refusal or self.ledger.not_newer(record) or self.snoozes.apply(record, from_ms)
        else:
            outcome = self.ledger.not_newer(record) or self._change_rule(record, from_ms, last_event_ms is not None)
        return replace(outcome, from_ms=from_ms, late_ms=late_ms) if outcome.kind == "applied" else outcome

    def _change_rule(self, record: RuleChange, from_ms: int, has_matched: bool) -> Outcome:
        """Change a rule's pauses or versions from `from_ms` on. `has_matched`: the job has matched events already."""
        if record.id not in self.rules and len(self.rules) >= RULES_MAX:
            return Outcome("refused", f"the rulebook knows {RULES_MAX} rules, which is the limit")
        versions = self.rules.get(record.id, RuleVersions())
        if isinstance(record, PauseRecord | ResumeRecord):
            limit = PAUSES_PER_RULE_MAX if has_matched else CHANGES_BEFORE_EVENTS_MAX  # a job reads old changes first
            if len(versions.pauses) >= limit:
                return Outcome("refused", f"{limit} pauses of the rule are still to come, which is the limit")
            pauses = with_pause_change(versions.pauses, from_ms, is_paused=isinstance(record, PauseRecord))
            outcome, versions = Outcome("applied"), replace(versions, pauses=pauses)
            if not any(self.ledger.versions(record.id)):  # no version of the rule, live or shadow, has come yet
                outcome = Outcome("waiting", _lacking_rule(record.id))  # the pause counts once a version comes
        else:
            upsert = record.as_upsert() if isinstance(record, RollbackRecord) else record
            outcome, versions = self._change_version(versions, upsert, from_ms, has_matched=has_matched)
        if outcome.kind in ("applied", "waiting"):
            self.rules[record.id] = versions
        return outcome

    def _change_version(
        self, versions: RuleVersions, record: UpsertRecord | RetireRecord, from_ms: int, *, has_matched: bool
    ) -> tuple[Outcome, RuleVersions]:
        """Add a version of a rule from `from_ms` on, or refuse it. Return the outcome and the rule's versions then."""
        is_shadow = isinstance(record, UpsertRecord) and record.status == "shadow"
        changes_count = len(versions.live) + len(versions.shadow)  # that wait, match, or drain (finish their runs)
        limit = VERSIONS_PER_RULE_MAX if has_matched else CHANGES_BEFORE_EVENTS_MAX  # a job reads old changes first
        if changes_count >= limit and not isinstance(record, RetireRecord):
            return Outcome(
                "refused", f"{changes_count} older versions still wait or drain; retire the rule first"
            ), versions
        entry, note = None, ""  # note: a sentence for the outcome; without an entry, the change only ends a version
        if isinstance(record, UpsertRecord):
            compiled = compile_rule(record, self.schema, self.key_domains)
            if isinstance(compiled, Outcome):
                return compiled, versions
            refusal = raw_lists(compiled, self.lists.timelines())  # raw values where rules see tokens (keyed hashes)
            if refusal is not None:
                return refusal, versions
            if record.status in _MATCHING_STATUSES:
                rule = self._with_level(deployed_rule(record, compiled, self.epoch + 1), from_ms)
                if isinstance(rule, str):  # the reason why no level is free
                    return Outcome("refused", rule), versions
                entry = entry_of(record, rule)
                if has_matched:  # events before the rule may not be stored
                    entry, note = self._with_completeness(entry, from_ms)
        drops_runs = entry is None or entry.record.on_update == "restart"
        change = Change(record.version, from_ms, drops_runs, entry)
        changes = without_overtaken((*(versions.shadow if is_shadow else versions.live), change))  # a higher one wins
        if entry is not None and entry.record.on_update == "carry" and len(changes) > 1:  # continue its open runs
            entry, note = self._with_carried_runs(changes[-2].entry, entry, note)
            changes = (*changes[:-1], replace(changes[-1], entry=entry))
        if entry is not None and self.level_bounds is not None:  # it bounds the levels that later rules can have
            self.level_bounds = self.level_bounds.joined(LevelBounds.of([entry.rule]))
        if is_shadow:
            versions = replace(versions, shadow=changes)
        else:
            versions = replace(versions, live=changes, shadow=shadows_not_ended(versions.shadow, changes[-1]))
        return Outcome("applied", note), versions

    def _entries(self) -> list[Entry]:
        return [entry for versions in self.rules.values() for entry in versions.entries]

    def _take_levels(self, rules: Sequence[DeployedRule], new_levels: Sequence[int]) -> None:
        self._deployed = None
        levels = {rule.identity: level for rule, level in zip(rules, new_levels, strict=True)}
        for name, versions in tuple(self.rules.items()):
            if any(entry.rule.level != levels[entry.rule.identity] for entry in versions.entries):
                self.rules[name] = versions.at_levels(levels)

    def _with_level(self, rule: DeployedRule, from_ms: int) -> DeployedRule | str:
        """Return a rule with its level, or why no level is free. A rule reads events of earlier levels only."""
        if self.levels_count is None or self.level_bounds is None:
            return rule  # `assign_levels` gives all rules their levels at the job's start
        if from_ms == TIME_MS_MIN:  # no event is matched yet: `apply` then gives all other rules new levels, too
            rules = [*(entry.rule for entry in self._entries()), rule]
            needed = levels_needed(rules)
            if needed > self.levels_count:
                return _too_deep(self.levels_count, needed)
            *_, new_level = initial_levels(rules, self.schema, self.levels_count)  # the last level is the new rule's
            return replace(rule, level=new_level)
        # Other rules keep their levels, so the new rule must fit between its producers and its readers.
        level = level_of_new_rule(rule, self.level_bounds, self.schema, self.levels_count)
        return level if isinstance(level, str) else replace(rule, level=level)

    def _with_completeness(self, entry: Entry, from_ms: int) -> tuple[Entry, str]:
        """Note from when the input of a new version is complete. Return it, and a sentence about incomplete input."""
        if not entry.needs and all(event_type.retain_ms is None for event_type in self.schema.event_types):
            return entry, ""
        rules, new = self._entries(), entry.rule
        levels = by_level([*(other.rule for other in rules), new], self.schema)
        (level,) = (level_rules for level_rules in levels if new in level_rules)
        same_key = {other.identity for other in level if other.pattern.key == entry.rule.pattern.key}
        neighbours = [(other.rule, other.needs) for other in rules if other.rule.identity in same_key]
        rule = with_completeness(entry.rule, entry.needs, from_ms, neighbours, self.schema)
        return replace(entry, rule=rule), "; ".join(report.text for report in incomplete_histories(rule))

    def _with_carried_runs(self, before: Entry | None, entry: Entry, note: str) -> tuple[Entry, str]:
        """Say whose runs the version takes over. Return it, and a note if it may take over none."""
        if before is None:
            return entry, note
        version = before.rule.version
        if same_automaton(before.rule.pattern, entry.rule.pattern, self.schema):
            return replace(entry, rule=replace(entry.rule, level=before.rule.level), carries=version), note
        return entry, note or f"version {version} has {OTHER_AUTOMATON}: its runs drain"

    # ------------------------------------------------------------------------------------------ questions

    def deployed(self) -> tuple[DeployedRule, ...]:
        """Every part of a version in force, waiting or draining, in the order in which alerts of one event come out."""
        if self._deployed is None:
            rules = [rule for versions in self.rules.values() for rule in versions.rules]
            self._deployed = tuple(sorted(rules, key=attrgetter("place")))
        return self._deployed

    def domains(self) -> dict[tuple[str, ...], tuple[DeployedRule, ...]]:
        """Group the deployed rules by the key they match on, keys in order, rules in the order of `deployed`."""
        by_key: dict[tuple[str, ...], list[DeployedRule]] = {}
        for rule in self.deployed():
            by_key.setdefault(rule.pattern.key, []).append(rule)
        return {key: tuple(by_key[key]) for key in sorted(by_key)}

    def record_of(self, rule_id: str, version: int) -> UpsertRecord | None:
        """Return the record of a version that is waiting, in force or draining."""
        entries = self.rules[rule_id].entries if rule_id in self.rules else ()
        return next((entry.record for entry in entries if entry.rule.version == version), None)

    def _last_versions(self, name: str) -> tuple[str, int, int, int]:
        """Return the last version of a rule, of its shadow, and of its pauses.

        A shadow that a later live version has ended counts as 0, because it may then be compacted away.
        """
        (version, shadow), (pause, _) = self.ledger.versions(name), self.ledger.versions(f"{name}/pause")
        return name, version, shadow if shadow > version else 0, pause

    def _snooze_versions(self) -> tuple[tuple[str, str | None, int], ...]:
        """Return (rule, key, last version) of every snooze."""
        names = self.snoozes.names()
        return tuple((*rule_key, self.ledger.versions(snooze_line(*rule_key))[0]) for rule_key in names)

    @property
    def forget_ms(self) -> int:
        """The watermark at which there is something to forget; TIME_MS_MAX if nothing ends."""
        times = [versions.forget_ms for versions in self.rules.values()]
        return min([self.snoozes.forget_ms, self.lists.forget_ms, *times])

    def report(self) -> RulebookReport:
        """Report the rules, snoozes and lists. A rule that has pauses but no version is reported as refused."""
        inherited = {
            (name, version): runs
            for name, versions in self.rules.items()
            for track in (versions.live, versions.shadow)
            for version, runs in inherited_runs(track)
        }
        list_keys = asked_lists(rule.pattern for rule in self.deployed())
        last_versions = {name: max(self.ledger.versions(name)) for name in sorted(self.rules)}
        only_paused = [self._last_versions(name) for name, version in last_versions.items() if not version]
        return RulebookReport(
            epoch=self.epoch,
            content_hash=self.content_hash,
            rules=tuple(
                RuleReport(
                    **{name: getattr(rule, name) for name in _REPORTED},
                    past=incomplete_histories(rule),
                    runs=inherited.get((rule.rule_id, rule.version)),
                )
                for rule in self.deployed()
                if rule.from_ms < rule.starts_until_ms  # not paused before its start
            ),
            last_versions={name: version for name, version in last_versions.items() if version},
            paused=tuple(name for name, version in last_versions.items() if version and self.rules[name].is_paused),
            snoozes=self.snoozes.report(),
            snooze_versions=self._snooze_versions(),
            refused=(
                *(self.ledger.refusals[name] for name in sorted(self.ledger.refusals)),
                *(Refusal(rule_id, pause, _lacking_rule(rule_id)) for rule_id, _, _, pause in only_paused),
                *self.ledger.unverified.values(),
            ),
            lists=self.lists.report(),
            lists_missing=tuple(sorted(list_keys - self.lists.timelines().keys())),
            taken=self.ledger.report(),
            levels_count=self.levels_count,
            places=None if self.level_bounds is None else self.level_bounds.to_json(),
            applied_count=self._counts["applied"],
            ignored_count=self._counts["ignored"],
            refused_count=self._counts["refused"],
            rule_late_ms=self._counts["late_ms"],
        )


def _lacking_rule(rule_id: str) -> str:
    """Say that the rule of a pause is missing. The pause stays: compaction may have put it before its rule."""
    return f"no rule {rule_id} is there, so nothing is paused or resumed; mend the name, or publish the rule"
