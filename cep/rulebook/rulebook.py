"""Control records, one after the other → the rules in force.

A rule has versions; a version sees the events from its start up to its successor's. The rulebook holds every version
that is waiting for its start, in force, or draining, each with its interval resolved at the moment it was applied:

    from_ms          the first event time that it sees
    starts_until_ms  the first that no longer starts a match: its successor's from_ms
    until_ms         the first that it no longer sees: open after `drain`, its successor's from_ms after `restart`

The start of a change is kept, not worked out again: it depends on what the job had seen when the record came, and a
restored rulebook has to say the same as the one that was saved (intervals.py). A shadow version stands beside the live
one and ends only an earlier shadow; a live version ends both, but no shadow that a still higher one has followed.
Whatever the order in which records come and however often: of each thing the highest version is the last word.
Knows nothing of Spark or Kafka. Every key group applies the same records in the same order and holds an equal rulebook.
Tested by: tests/rulebook/test_rulebook.py, tests/rulebook/test_rulebook_properties.py, tests/rulebook/test_timeline.py,
tests/rulebook/test_pause.py, tests/rulebook/test_edges.py
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from cep.base.limits import (
    CHANGES_BEFORE_EVENTS_MAX,
    PAUSES_PER_RULE_MAX,
    RULES_MAX,
    TIME_MS_MAX,
    TIME_MS_MIN,
    VERSIONS_PER_RULE_MAX,
)
from cep.base.schema import Schema
from cep.lang.ir import PatternIR
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
from cep.nfa.deployed import DeployedRule, RuleIdentity
from cep.nfa.given_lists import asked_lists
from cep.rulebook.carry import same_automaton
from cep.rulebook.compatible import KeyDomains, Refused, compile_rule, patterns_behind
from cep.rulebook.intervals import (
    Change,
    Entry,
    Switch,
    end_of,
    not_overtaken,
    parts,
    rules_of,
    settled,
    start_of,
    with_turns,
)
from cep.rulebook.known_past import Neighbour, busy_since, known_since, past_in_words, past_of, wanted_of
from cep.rulebook.levels import Places, by_level, earliest, place_among, place_at_first, placed
from cep.rulebook.lists import RuleLists
from cep.rulebook.meaning import content_hash
from cep.rulebook.outcome import Outcome, Refusal, RulebookReport, RuleReport
from cep.rulebook.snoozes import Snoozes

# Versions with one of these are matched; the others only end their predecessor.
_MATCHING = ("shadow", "live")


@dataclass(frozen=True, eq=False)
class Known:
    """All that is known of one rule: its changes in the order of versions, those of shadows apart, and its pauses.

    The last versions stay when all else is forgotten, or an old record would bring a retired rule back. It never
    changes, and what follows from it is worked out once: a change of one rule costs the thousands of others nothing.
    """

    version: int = 0
    shadow_version: int = 0
    live: tuple[Change, ...] = ()
    shadow: tuple[Change, ...] = ()
    switch: Switch = field(default_factory=Switch)

    @property
    def last_shadow(self) -> int:
        """The last version in shadow, 0 if a later live one has ended it: then it may be compacted away."""
        return self.shadow_version if self.shadow_version > self.version else 0

    @cached_property
    def whole(self) -> tuple[DeployedRule, ...]:
        """Every version that matches, pauses not counted."""
        return tuple(rule for _, rule in (*rules_of(self.live), *rules_of(self.shadow, self.live)))

    @cached_property
    def rules(self) -> tuple[DeployedRule, ...]:
        """Every part of a version that matches."""
        return tuple(part for rule in self.whole for part in parts(rule, self.switch.spans))

    @cached_property
    def forget_ms(self) -> int:
        """The watermark at which something of it is over; TIME_MS_MAX if nothing ends."""
        return min((*map(end_of, self.whole), *(end for _, end in self.switch.spans)), default=TIME_MS_MAX)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The versions that match or are to match, with their records."""
        return tuple(change.entry for change in (*self.live, *self.shadow) if change.entry is not None)

    def at_levels(self, levels: Mapping[RuleIdentity, int]) -> Known:
        """The same with the versions at these levels."""
        return replace(self, live=_at_levels(self.live, levels), shadow=_at_levels(self.shadow, levels))

    @cached_property
    def is_at_rest(self) -> bool:
        """Whether no time that passes changes anything: nothing is to end, drain, or come back from a pause."""
        is_open = all(rule.starts_until_ms == TIME_MS_MAX for rule in self.whole)
        return is_open and len(self.whole) == len(self.live) + len(self.shadow) and not self.switch.spans

    @cached_property
    def data(self) -> str:
        """The rule as saved.py keeps it, as JSON; records by their hash."""
        versions = [self.version, self.shadow_version, self.switch.version]
        live, shadow = ([change.to_json() for change in changes] for changes in (self.live, self.shadow))
        return json.dumps({"versions": versions, "pauses": self.switch.spans, "live": live, "shadow": shadow})

    def settled(self, watermark_ms: int) -> Known:
        """The same without what is over at the watermark."""
        spans = self.switch.spans
        over = tuple(span for span in spans if span[1] <= watermark_ms)
        # A version in shadow is ended by a live one, also by one that goes now.
        shadow = settled(self.shadow, self.live, over, watermark_ms)
        live = settled(self.live, (), over, watermark_ms)
        return replace(self, live=live, shadow=shadow, switch=replace(self.switch, spans=spans[len(over) :]))


class Rulebook:
    """The rules of one job. `key_domains` are the keys that it routes events by; None routes by any key."""

    def __init__(self, schema: Schema, key_domains: KeyDomains | None, lists: ListStore | None = None) -> None:
        """`lists` is where the entries of lists are kept; in memory if it is None."""
        self.lists = RuleLists(lists or ListStore())
        self.schema = schema
        self.key_domains = key_domains
        self.levels_count: int | None = None
        self.places: Places | None = None
        self.epoch = 0
        self.known: dict[str, Known] = {}
        self.snoozes = Snoozes()
        self.refusals: dict[str, Refusal] = {}
        self._counts: Counter[str] = Counter()
        self._deployed: tuple[DeployedRule, ...] | None = None

    def copy(self) -> Rulebook:
        """A rulebook of its own that says the same; patterns and records are shared, they never change."""
        other = copy.copy(self)
        vars(other)["_counts"] = Counter(self._counts)
        other.known = dict(self.known)
        other.snoozes = self.snoozes.copy()
        other.lists = self.lists.copy()
        other.refusals = dict(self.refusals)
        return other

    @property
    def fingerprint(self) -> str:
        """Equal for rulebooks that match alike: what a compiled program is cached by. Refused records do not count."""
        text = "\n".join(
            [
                repr(self.schema),
                *(f"{rule.epoch} {rule.mark} {rule.known_ms} {rule.busy_ms} {rule.level}" for rule in self.deployed()),
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def content_hash(self) -> str:
        """What the rulebook comes to once its last change has started: SHA-256 of the last word on each rule.

        Unlike the epoch, which counts the changes that this job has applied, it does not depend on the order in which
        records came, how often, or whether older ones had been compacted away.
        """
        rules = [
            [rule.rule_id, rule.version, rule.status, rule.content_hash]
            for rule in self.deployed()
            if rule.starts_until_ms == TIME_MS_MAX
        ]
        last = [[name, known.version, known.last_shadow, known.switch.version] for name, known in self.known.items()]
        text = json.dumps([sorted(rules), sorted(last), self.snoozes.versions(), self.lists.last()])
        return hashlib.sha256(text.encode()).hexdigest()

    # -------------------------------------------------------------------------------------------- changes

    def apply(self, record: ControlRecord, seen_ms: int | None) -> Outcome:
        """Apply one control record.

        `seen_ms` is the largest event time that has been matched, None before the first event: a change cannot start
        before or at it, starts right after it instead, and says by how much it is late.
        Returns: the outcome; `refused` and `ignored` leave the rules in force unchanged.
        Raises: StateError if the store of the lists refuses.
        """
        if isinstance(record, HeartbeatRecord):
            return Outcome("ignored", "a heartbeat moves the watermark, not the rulebook")
        outcome = self._outcome(record, seen_ms)
        self._counts[outcome.kind] += 1
        self._counts["late_ms"] += outcome.late_ms
        if outcome.kind == "applied":
            self.epoch += 1
            self._deployed = None
            is_version = isinstance(record, UpsertRecord | RollbackRecord)
            if is_version and self.levels_count is not None and outcome.from_ms == TIME_MS_MIN:
                self.place(self.levels_count)  # nothing has a run yet
        elif outcome.kind == "refused":
            name = f"list {record.id}" if isinstance(record, ListRecord) else record.id
            self.set_aside(Refusal(name, record.version, outcome.full_reason))
        return outcome

    def place(self, levels_count: int) -> None:
        """Give every version its level of so many, as long as nothing has been matched (levels.py). What comes later
        and finds none is refused."""
        self.levels_count, rules = levels_count, [entry.rule for entry in self._entries()]
        self._take_levels(rules, placed(rules, self.schema, levels_count))
        self.places = Places.of(entry.rule for entry in self._entries())

    def keep_levels(self, levels_count: int) -> None:
        """The same, of a rulebook that was saved: every version stays where its keyed state is."""
        self.levels_count, rules = levels_count, [entry.rule for entry in self._entries()]
        if any(rule.level is None for rule in rules):
            self._take_levels(rules, earliest(rules))  # so had them builds that did not say
        if self.places is None:  # nor what had stood where before
            self.places = Places.of(entry.rule for entry in self._entries())

    def forget(self, watermark_ms: int) -> int:
        """Drop every version that can neither start a match nor have a run alive at the watermark, and what is over of
        pauses and snoozes.

        A drained version without a `within` has no such time and stays until it is restarted or retired.
        Returns: how many versions were dropped; the epoch stays.
        """
        count = 0
        for name, known in tuple(self.known.items()):
            if known.is_at_rest and watermark_ms < TIME_MS_MAX:
                continue
            self.known[name] = known.settled(watermark_ms)
            count += len(known.entries) - len(self.known[name].entries)
            self._deployed = None
        self.snoozes.forget(watermark_ms)
        self.lists.forget(watermark_ms)
        return count

    def _outcome(self, record: Any, seen_ms: int | None) -> Outcome:
        if isinstance(record, ListRecord):
            return self._change_list(record, seen_ms)
        from_ms, late_ms = start_of(record.effective_ms, seen_ms)
        if isinstance(record, SnoozeRecord):
            outcome = self.snoozes.apply(record, from_ms)
        else:
            outcome = self._change_rule(record, from_ms, has_matched=seen_ms is not None)
        return replace(outcome, from_ms=from_ms, late_ms=late_ms) if outcome.kind == "applied" else outcome

    def _change_list(self, record: ListRecord, seen_ms: int | None) -> Outcome:
        outcome = self.lists.apply(record, seen_ms)
        refusal = self.refusals.get(f"list {record.id}")
        if outcome.kind == "applied" and refusal is not None and refusal.version <= record.version:
            del self.refusals[refusal.rule_id]
        return outcome

    def _change_rule(self, record: RuleChange, from_ms: int, *, has_matched: bool) -> Outcome:
        if record.id not in self.known and len(self.known) >= RULES_MAX:
            return Outcome("refused", f"the rulebook knows {RULES_MAX} rules, which is the limit")
        known = self.known.get(record.id, Known())
        if isinstance(record, PauseRecord | ResumeRecord):
            limit = PAUSES_PER_RULE_MAX if has_matched else CHANGES_BEFORE_EVENTS_MAX
            outcome, known = _turn(known, record, from_ms, limit)
        elif isinstance(record, RollbackRecord):
            outcome, known = self._change_version(known, record.as_upsert(), from_ms, has_matched=has_matched)
        elif isinstance(record, UpsertRecord | RetireRecord):
            outcome, known = self._change_version(known, record, from_ms, has_matched=has_matched)
        if outcome.kind == "applied":
            self.known[record.id] = known
        return outcome

    def _change_version(
        self, known: Known, record: UpsertRecord | RetireRecord, from_ms: int, *, has_matched: bool
    ) -> tuple[Outcome, Known]:
        is_shadow = isinstance(record, UpsertRecord) and record.status == "shadow"
        last_version = max(known.version, known.shadow_version if is_shadow else 0)
        if record.version <= last_version:
            return Outcome("ignored", f"version {record.version} is not newer than {last_version}"), known
        changes_count = len(known.live) + len(known.shadow)
        limit = VERSIONS_PER_RULE_MAX if has_matched else CHANGES_BEFORE_EVENTS_MAX
        if changes_count >= limit and not isinstance(record, RetireRecord):
            return Outcome(
                "refused", f"{changes_count} older versions still wait or drain; retire the rule first"
            ), known
        entry, note = None, ""
        if isinstance(record, UpsertRecord):
            compiled = compile_rule(record, self.schema, self.key_domains)
            if isinstance(compiled, Refused):
                return Outcome("refused", compiled.reason, compiled.diagnostics), known
            if record.status in _MATCHING:
                rule = self._with_level(deployed_rule(record, compiled, self.epoch + 1), from_ms)
                if isinstance(rule, str):
                    return Outcome("refused", rule), known
                entry = entry_of(record, rule)
                if has_matched:
                    entry, note = self._with_past(entry, from_ms)
        drops = entry is None or entry.record.on_update == "restart"
        changes = with_turns(
            (*(known.shadow if is_shadow else known.live), Change(record.version, from_ms, drops, entry))
        )
        if entry is not None and entry.record.on_update == "carry" and len(changes) > 1:
            entry, note = self._carrying(changes[-2].entry, entry, note)
            changes = (*changes[:-1], replace(changes[-1], entry=entry))
        if entry is not None and self.places is not None:
            self.places = self.places.joined(Places.of([entry.rule]))
        if is_shadow:
            known = replace(known, shadow=changes, shadow_version=record.version)
        else:
            shadow = not_overtaken(known.shadow, changes[-1])
            known = replace(known, live=changes, version=record.version, shadow=shadow)
        refusal = self.refusals.get(record.id)
        if refusal is not None and refusal.version <= record.version:
            del self.refusals[record.id]
        return Outcome("applied", note), known

    def _entries(self) -> list[Entry]:
        return [entry for known in self.known.values() for entry in known.entries]

    def _take_levels(self, rules: Sequence[DeployedRule], found: Sequence[int]) -> None:
        self._deployed = None
        levels = {rule.identity: level for rule, level in zip(rules, found, strict=True)}
        for name, known in tuple(self.known.items()):
            if any(entry.rule.level != levels[entry.rule.identity] for entry in known.entries):
                self.known[name] = known.at_levels(levels)

    def _with_level(self, rule: DeployedRule, from_ms: int) -> DeployedRule | str:
        """The rule with its level, or why there is none for it. A start since ever has only a job in which nothing has
        been matched: there the others find their levels anew."""
        if self.levels_count is None or self.places is None:
            return rule
        if from_ms == TIME_MS_MIN:
            others = [entry.rule for entry in self._entries()]
            level = place_at_first(rule, others, self.schema, self.levels_count)
        else:
            level = place_among(rule, self.places, self.schema, self.levels_count)
        return level if isinstance(level, str) else replace(rule, level=level)

    def _with_past(self, entry: Entry, from_ms: int) -> tuple[Entry, str]:
        """The version with since when its past is kept, and what there is to say of that."""
        if not entry.wanted and all(event_type.retain_ms is None for event_type in self.schema.event_types):
            return entry, ""
        rules, own = self._entries(), entry.rule
        (level,) = (some for some in by_level([*(other.rule for other in rules), own], self.schema) if own in some)
        beside = {other.identity for other in level if other.pattern.key == entry.rule.pattern.key}
        there = [
            Neighbour(other.wanted, other.rule.known_ms, other.rule.busy_ms)
            for other in rules
            if other.rule.identity in beside
        ]
        known_ms = known_since(entry.wanted, from_ms, there, self.schema)
        past = past_of(entry.rule.pattern, known_ms)
        busy_ms = busy_since(entry.wanted, from_ms, there)
        return replace(entry, rule=replace(entry.rule, known_ms=known_ms, busy_ms=busy_ms)), "; ".join(
            map(past_in_words, past)
        )

    def _carrying(self, before: Entry | None, entry: Entry, note: str) -> tuple[Entry, str]:
        """The version with those whose runs it may take over, and what there is to say if it may not."""
        if before is None:
            return entry, note
        version = before.rule.version
        if same_automaton(before.rule.pattern, entry.rule.pattern, self.schema):
            return replace(entry, rule=replace(entry.rule, level=before.rule.level), carries=version), note
        return entry, note or f"version {version} has another automaton or other windows: its runs drain"

    def set_aside(self, refusal: Refusal) -> None:
        """Remember the newest refusal of each rule."""
        known = self.refusals.get(refusal.rule_id)
        if known is not None and known.version > refusal.version:
            return  # the newest counts, or a repeated record would change what is reported
        self.refusals[refusal.rule_id] = refusal
        while len(self.refusals) > RULES_MAX:  # ids that were only ever refused: forget the oldest
            del self.refusals[next(iter(self.refusals))]

    # ------------------------------------------------------------------------------------------ questions

    def deployed(self) -> tuple[DeployedRule, ...]:
        """Every part of a version in force, waiting or draining, in the order in which alerts of one event come out."""
        if self._deployed is None:
            rules = [rule for known in self.known.values() for rule in known.rules]
            self._deployed = tuple(sorted(rules, key=attrgetter("place")))
        return self._deployed

    def domains(self) -> dict[tuple[str, ...], tuple[DeployedRule, ...]]:
        """The deployed rules by the key they match on, keys in order, rules in the order of `deployed`."""
        found: dict[tuple[str, ...], list[DeployedRule]] = {}
        for rule in self.deployed():
            found.setdefault(rule.pattern.key, []).append(rule)
        return {key: tuple(found[key]) for key in sorted(found)}

    def record_of(self, rule_id: str, version: int) -> UpsertRecord | None:
        """The record of a version that is waiting, in force or draining."""
        entries = self.known[rule_id].entries if rule_id in self.known else ()
        return next((entry.record for entry in entries if entry.rule.version == version), None)

    def _missing_lists(self) -> tuple[tuple[str, str], ...]:
        asked = asked_lists(rule.pattern for rule in self.deployed())
        return tuple(sorted(asked - self.lists.timelines().keys()))

    @property
    def forget_ms(self) -> int:
        """The watermark at which there is something to forget; TIME_MS_MAX if nothing ends."""
        own = [known.forget_ms for known in self.known.values()]
        return min([self.snoozes.forget_ms, self.lists.forget_ms, *own])

    def report(self) -> RulebookReport:
        """What is in force, what was refused and why, and how many records came to which end."""
        return RulebookReport(
            epoch=self.epoch,
            content_hash=self.content_hash,
            rules=tuple(
                RuleReport(
                    rule_id=rule.rule_id,
                    version=rule.version,
                    epoch=rule.epoch,
                    status=rule.status,
                    content_hash=rule.content_hash,
                    from_ms=rule.from_ms,
                    starts_until_ms=rule.starts_until_ms,
                    until_ms=rule.until_ms,
                    past=past_of(rule.pattern, rule.known_ms) if rule.known_ms else (),
                )
                for rule in self.deployed()
            ),
            last_versions={
                name: max(known.version, known.shadow_version) for name, known in sorted(self.known.items())
            },
            paused=tuple(name for name, known in sorted(self.known.items()) if known.switch.is_open),
            snoozes=self.snoozes.report(),
            snooze_versions=self.snoozes.versions(),
            refused=tuple(self.refusals[rule_id] for rule_id in sorted(self.refusals)),
            lists=self.lists.report(),
            lists_missing=self._missing_lists(),
            applied_count=self._counts["applied"],
            ignored_count=self._counts["ignored"],
            refused_count=self._counts["refused"],
            rule_late_ms=self._counts["late_ms"],
        )


def _at_levels(changes: Iterable[Change], levels: Mapping[RuleIdentity, int]) -> tuple[Change, ...]:
    entries = ((change, change.entry) for change in changes)
    return tuple(
        change
        if entry is None
        else replace(change, entry=replace(entry, rule=replace(entry.rule, level=levels[entry.rule.identity])))
        for change, entry in entries
    )


def _turn(known: Known, record: PauseRecord | ResumeRecord, from_ms: int, limit: int) -> tuple[Outcome, Known]:
    if record.version <= known.switch.version:
        return Outcome("ignored", f"version {record.version} is not newer than {known.switch.version}"), known
    if len(known.switch.spans) >= limit:
        return Outcome("refused", f"{limit} pauses of the rule are still to come, which is the limit"), known
    switch = known.switch.turned(record.version, isinstance(record, PauseRecord), from_ms)
    return Outcome("applied"), replace(known, switch=switch)


def entry_of(record: UpsertRecord, rule: DeployedRule, carries: int = 0) -> Entry:
    """A version with its bytes."""
    data = record.to_json()
    return Entry(record, rule, data, hashlib.sha256(data).hexdigest(), carries, wanted_of(rule.pattern))


def deployed_rule(record: UpsertRecord, pattern: PatternIR, epoch: int) -> DeployedRule:
    """What a record deploys, for all time."""
    return DeployedRule(
        rule_id=record.id,
        version=record.version,
        epoch=epoch,
        content_hash=content_hash(record),
        pattern=pattern,
        status=record.status,
        severity=record.severity,
        priority=record.priority,
        score=record.score,
        message=record.message,
        behind=0 if pattern.produces is None else patterns_behind(record.source, record.pattern),
    )
