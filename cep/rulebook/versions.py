"""The changes of a rule → its versions, with the event times at which each is in force; and the snoozes.

    version 1   ├───────────┤            starts matches until version 2 does
    version 2               ├──────────▶
    paused            ├────────┤
    in force    ├─────┤        ├───────▶ version 1, then version 2 as its part after the pause

Changes are stored as they arrive, and intervals are derived from all of them, because a change that has not started yet
can still be overtaken: a higher version that starts before it takes its whole turn, and the version that it would have
ended continues. A started change stays; `settled` records it, so that changes can be forgotten. A snooze suppresses the
alerts of a rule and does not affect matching.
Tested by: tests/rulebook/test_rulebook.py, tests/rulebook/test_timeline.py
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from cep.base.limits import SNOOZES_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.lang.ir import PatternIR
from cep.model.rule import SnoozeRecord, UpsertRecord
from cep.nfa.deployed import DeployedRule, RuleIdentity
from cep.rulebook.compatible import chain_lengths_after
from cep.rulebook.completeness import Need, needs_of
from cep.rulebook.meaning import content_hash, earlier_hash
from cep.rulebook.outcome import Outcome, RunsReport, SnoozeReport, runs_of_before

Spans = tuple[tuple[int, int], ...]  # [from_ms, until_ms) in order; the last one may be open (TIME_MS_MAX)


@dataclass(frozen=True)  # without slots: it remembers its bytes
class Entry:
    """A version of a rule that matches events: its record (to save it) and its rule (to run it).

    `data` is the record as JSON and `digest` its SHA-256, computed when the rulebook is saved: a record carries the
    whole text of its file, and there may be thousands. `carries` is the number of the earlier version whose open runs
    it may take over, because both have the same automaton; 0: none. `needs` are the past events that its histories
    (aggregates over past events) read. The times at which it is in force depend on other versions: see RuleVersions.
    """

    record: UpsertRecord
    rule: DeployedRule
    carries: int = 0
    needs: tuple[Need, ...] = ()

    @cached_property
    def data(self) -> bytes:
        return self.record.to_json()

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class Change:
    """A version of a rule that starts at `from_ms`. Without an entry (retired, a draft) it only ends the previous one.

    `drops_runs`: the open runs of earlier versions end at `from_ms`; otherwise they go on to their end. Later changes
    and pauses decide the other three times, so each is set only when the watermark has passed it and it is final.
    """

    version: int
    from_ms: int
    drops_runs: bool
    entry: Entry | None
    starts_until_ms: int = TIME_MS_MAX  # it starts no matches from then on
    until_ms: int = TIME_MS_MAX  # it sees no events from then on, and its runs are dropped
    resumed_ms: int | None = None  # the end of its last pause

    def to_json(self) -> list[Any]:
        """Return the change as the list that saved.py stores; the entry's record is stored apart, under its hash."""
        entry = self.entry  # the version that begins; None: the change only ends the previous one
        saved_entry: list[Any] | None = None
        if entry is not None:
            rule = entry.rule
            last_facts: list[Any] = [rule.complete_ms, rule.folded_since_ms]  # since when all past events are stored
            if rule.level is not None:
                last_facts.append(rule.level)
            elif not any(last_facts):  # stored since the job's first event: left out, as by earlier builds
                last_facts = []
            saved_entry = [entry.digest, rule.epoch, entry.carries, *last_facts]  # epoch: number of the change
        times = [self.starts_until_ms, self.until_ms, self.resumed_ms]  # final ends of its starts, events, last pause
        return [self.version, self.from_ms, self.drops_runs, saved_entry, *times]


def with_pause_change(pauses: Spans, change_ms: int, *, is_paused: bool) -> Spans:
    """Pause or resume a rule from `change_ms` on, replacing any plan for later. Return its pauses."""
    spans = [(start, min(end, change_ms)) for start, end in pauses if start < change_ms]
    if is_paused and spans and spans[-1][1] == change_ms:
        spans[-1] = (spans[-1][0], TIME_MS_MAX)
    elif is_paused:
        spans.append((change_ms, TIME_MS_MAX))
    return tuple(spans)


def start_of(effective_ms: int | None, last_event_ms: int | None) -> tuple[int, int]:
    """(from_ms, late_ms) of a change. Without a time it means as early as can be: since ever, if nothing was seen."""
    if last_event_ms is None:
        return (TIME_MS_MIN if effective_ms is None else effective_ms), 0
    first_ms = last_event_ms + 1
    if effective_ms is None:
        return first_ms, 0
    return max(effective_ms, first_ms), max(0, first_ms - effective_ms)


def without_overtaken(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Sort the changes by version. Leave out changes that a higher version overtakes: it starts no later than they."""
    remaining: list[Change] = []
    for change in sorted(changes, key=lambda c: c.version, reverse=True):
        if not remaining or change.from_ms < remaining[-1].from_ms:
            remaining.append(change)
    return tuple(reversed(remaining))


def shadows_not_ended(shadows: Iterable[Change], live_change: Change) -> tuple[Change, ...]:
    """Leave out the shadow versions that a live change ends before they start: older ones that start no sooner.

    They go when the change comes. The change may be forgotten before they would start: nothing of a retirement goes on.
    """
    return tuple(c for c in shadows if c.version > live_change.version or c.from_ms < live_change.from_ms)


def timed_rules(changes: Sequence[Change], live: Sequence[Change] = ()) -> Iterator[tuple[Change, DeployedRule]]:
    """Yield each version that matches events, with its times. `changes` are all live or all shadow (on trial) versions.

    A match may start from `from_ms` until the next version begins (`starts_until_ms`), and may go on until `until_ms`.
    A higher `live` version ends a shadow version and its runs, unless a still higher shadow version has started.
    """
    for number, change in enumerate(changes):
        if change.entry is None:
            continue  # a retirement, for example, only ends the previous version
        later_changes = changes[number + 1 :]
        live_ends = [e.from_ms for e in live if e.version > change.version and not _is_overtaken(e, later_changes)]
        starts_until_ms = min([change.starts_until_ms, *(c.from_ms for c in later_changes[:1]), *live_ends])
        until_ms = min([change.until_ms, *(c.from_ms for c in later_changes if c.drops_runs), *live_ends])
        from_ms = change.from_ms if change.resumed_ms is None else change.resumed_ms  # after its last pause
        if from_ms >= starts_until_ms:  # another version begins before this one, or before the end of its pause
            continue
        previous = changes[number - 1].version if number else 0  # 0: it is the first version
        takes_over_runs = change.entry.carries == previous and change.resumed_ms is None  # a pause drops all runs
        carries = previous if takes_over_runs else 0  # the version whose runs it takes over
        rule, resumed_ms = change.entry.rule, change.resumed_ms
        before = (rule.from_ms, rule.starts_until_ms, rule.until_ms, rule.resumed_ms, rule.carries)
        if before != (from_ms, starts_until_ms, until_ms, resumed_ms, carries):
            rule = replace(
                rule, from_ms=from_ms, starts_until_ms=starts_until_ms, until_ms=until_ms, resumed_ms=resumed_ms,
                carries=carries,
            )  # fmt: skip
        yield change, rule


def inherited_runs(changes: Sequence[Change]) -> Iterator[tuple[int, RunsReport]]:
    """Yield each version that follows another one, with what becomes of the open runs of that one."""
    for before, after in pairwise(changes):
        if before.entry is not None and after.entry is not None:
            carries = after.entry.carries == before.version
            yield after.version, runs_of_before(before.version, after.entry.record.on_update, carries=carries)


def _is_overtaken(live_change: Change, later: Sequence[Change]) -> bool:
    return any(change.version > live_change.version and change.from_ms <= live_change.from_ms for change in later)


def parts(rule: DeployedRule, pauses: Spans) -> Iterator[DeployedRule]:
    """Divide a version at its pauses. A pause ends a part and its runs, and the next part begins without runs.

    A version that is paused until further notice has a part in any case: the job routes events by its key and keeps the
    past events that it will need.
    """
    for pause_ms, resumed_ms in pauses:
        if pause_ms > rule.from_ms:  # yield the part before this pause
            yield replace(
                rule, starts_until_ms=min(rule.starts_until_ms, pause_ms), until_ms=min(rule.until_ms, pause_ms)
            )
        elif resumed_ms == TIME_MS_MAX:  # paused before its start: a part without matches, so that its past is stored
            yield replace(rule, starts_until_ms=rule.from_ms, until_ms=rule.from_ms)
        if resumed_ms > rule.from_ms:
            rule = replace(rule, from_ms=resumed_ms, resumed_ms=resumed_ms, carries=0)  # takes over no runs
        if rule.from_ms >= rule.starts_until_ms:
            return  # the pause ends after the next version has begun
    yield rule


def settled(changes: Sequence[Change], live: Sequence[Change], pauses: Spans, watermark_ms: int) -> tuple[Change, ...]:
    """Return the changes of a rule that are not finished, with each end that is final: the watermark has passed it.

    A change starts its version at `from_ms` and ends earlier ones. It is finished when that has happened and its
    version can match no more. `live` versions also end shadow versions (on trial). All `pauses` are over.
    """
    rules = {change.version: rule for change, rule in timed_rules(changes, live)}  # without retirements
    remaining: list[Change] = []
    for change in changes:
        rule = rules.get(change.version)
        if rule is None or end_of(rule) <= watermark_ms:  # no version is left that could match
            if change.from_ms > watermark_ms:  # but the change has not ended earlier versions yet
                remaining.append(change)
            continue
        resumed_ms = max((end for _, end in pauses if end > rule.from_ms), default=change.resumed_ms)  # last pause
        if resumed_ms is not None and resumed_ms >= rule.starts_until_ms:
            continue  # the pause dropped its runs, and when it was over, the next version had begun
        starts_until_ms = rule.starts_until_ms if rule.starts_until_ms <= watermark_ms else change.starts_until_ms
        until_ms = rule.until_ms if rule.until_ms <= watermark_ms else change.until_ms
        remaining.append(replace(change, starts_until_ms=starts_until_ms, until_ms=until_ms, resumed_ms=resumed_ms))
    return tuple(remaining)


def end_of(rule: DeployedRule) -> int:
    """Return the watermark from which on a version can neither start a match nor have an open run, or TIME_MS_MAX."""
    within_ms = rule.pattern.within_ms
    if rule.starts_until_ms == TIME_MS_MAX or within_ms is None:
        return rule.until_ms
    assert isinstance(within_ms, int), "`bind` has left no open parameter"
    # The last start is before starts_until_ms, and a run lives while last − first < within.
    return min(rule.until_ms, rule.starts_until_ms + within_ms)


@dataclass(frozen=True, eq=False)
class RuleVersions:
    """The changes of one rule by version, shadows separately, and its pauses.

    The last version numbers stay in the ledger when the rest is forgotten, or an old record would restore a retired
    rule. Properties are computed once, so a change of one rule costs nothing for the others.
    """

    live: tuple[Change, ...] = ()
    shadow: tuple[Change, ...] = ()
    pauses: Spans = ()

    @property
    def is_paused(self) -> bool:
        return bool(self.pauses) and self.pauses[-1][1] == TIME_MS_MAX

    @cached_property
    def whole(self) -> tuple[DeployedRule, ...]:
        """Every version that matches, pauses not counted."""
        return tuple(rule for _, rule in (*timed_rules(self.live), *timed_rules(self.shadow, self.live)))

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
        return replace(self, live=_at_levels(self.live, levels), shadow=_at_levels(self.shadow, levels))

    @cached_property
    def is_unaffected_by_time(self) -> bool:
        """True if no version or pause is to end, so that `settled` would change nothing at any watermark."""
        is_open = all(rule.starts_until_ms == TIME_MS_MAX for rule in self.whole)
        return is_open and len(self.whole) == len(self.live) + len(self.shadow) and not self.pauses

    @cached_property
    def data(self) -> str:
        """JSON of the rule for saved.py, with records by their hash."""
        live, shadow = ([change.to_json() for change in changes] for changes in (self.live, self.shadow))
        return json.dumps({"pauses": self.pauses, "live": live, "shadow": shadow})

    def settled(self, watermark_ms: int) -> RuleVersions:
        """Return the same without the versions and pauses that are over at the watermark."""
        over_pauses = tuple(span for span in self.pauses if span[1] <= watermark_ms)
        # A live version ends versions in shadow, even if it is dropped now itself.
        shadow = settled(self.shadow, self.live, over_pauses, watermark_ms)
        live = settled(self.live, (), over_pauses, watermark_ms)
        return replace(self, live=live, shadow=shadow, pauses=self.pauses[len(over_pauses) :])


def _at_levels(changes: Iterable[Change], levels: Mapping[RuleIdentity, int]) -> tuple[Change, ...]:
    def moved(entry: Entry) -> Entry:
        return replace(entry, rule=replace(entry.rule, level=levels[entry.rule.identity]))

    return tuple(c if c.entry is None else replace(c, entry=moved(c.entry)) for c in changes)


def entry_of(record: UpsertRecord, rule: DeployedRule, carries: int = 0) -> Entry:
    """Return the version of a record, with the needs of its histories."""
    return Entry(record, rule, carries, needs_of(rule.pattern))


def deployed_rule(record: UpsertRecord, pattern: PatternIR, epoch: int) -> DeployedRule:
    """Convert a record to a rule that is in force at all times. `epoch` is the number of the change in the job."""
    return DeployedRule(
        rule_id=record.id,
        version=record.version,
        epoch=epoch,
        content_hash=content_hash(record),
        earlier_hash=earlier_hash(record),  # the content hash of builds before 0.3
        pattern=pattern,
        status=record.status,
        severity=record.severity,
        priority=record.priority,  # among alerts of one event, the lowest comes first
        score=record.score,  # passed on with each alert
        message=record.message,
        # How many patterns follow it at most: one reads its events, another reads the events of that one, and so on.
        patterns_after=0 if pattern.produces is None else chain_lengths_after(record.source)[record.pattern],
    )


RuleKey = tuple[str, str | None]


class Snoozes:
    """The snoozes of one job. The ledger has their versions."""

    def __init__(self, snoozes: Mapping[RuleKey, Spans] | None = None) -> None:
        self._snoozes = dict(snoozes or {})

    def copy(self) -> Snoozes:
        return Snoozes(self._snoozes)

    def apply(self, record: SnoozeRecord, from_ms: int) -> Outcome:
        rule_key = record.id, record.key
        if rule_key not in self._snoozes and len(self._snoozes) >= SNOOZES_MAX:
            return Outcome("refused", f"there are {SNOOZES_MAX} snoozes, which is the limit")
        spans = [(a, min(b, from_ms)) for a, b in self._snoozes.get(rule_key, ()) if a < from_ms]
        if from_ms < record.until_ms:
            spans.append((from_ms, record.until_ms))
        self._snoozes[rule_key] = tuple(spans)
        return Outcome("applied")

    def forget(self, watermark_ms: int) -> None:
        """Drop snoozes that are over. Their names stay until they are too many: the report has their versions."""
        for rule_key, spans in self._snoozes.items():
            self._snoozes[rule_key] = tuple(span for span in spans if span[1] > watermark_ms)
        if len(self._snoozes) >= SNOOZES_MAX:
            self._snoozes = {rule_key: spans for rule_key, spans in self._snoozes.items() if spans}

    def without(self, keys: Collection[str]) -> Snoozes:
        return Snoozes({rule_key: spans for rule_key, spans in self._snoozes.items() if rule_key[1] not in keys})

    @property
    def forget_ms(self) -> int:
        """The watermark at which a snooze ends; TIME_MS_MAX without one."""
        return min((end for spans in self._snoozes.values() for _, end in spans), default=TIME_MS_MAX)

    def report(self) -> tuple[SnoozeReport, ...]:
        """Report the snoozes that are not over, in the order of rule and key."""
        return tuple(SnoozeReport(*rule_key, *span) for rule_key in self.names() for span in self._snoozes[rule_key])

    def names(self) -> list[RuleKey]:
        """Return the rule and key of every snooze, in order."""
        return sorted(self._snoozes, key=lambda rule_key: (rule_key[0], rule_key[1] or ""))

    def to_json(self) -> list[Any]:
        return [[*rule_key, [list(span) for span in self._snoozes[rule_key]]] for rule_key in self.names()]

    @staticmethod
    def from_json(saved: Iterable[Any]) -> Snoozes:
        """Invert `to_json`. Raises: ValueError, TypeError for other values."""
        # A build before 0.3 put the version between the key and the times.
        return Snoozes(
            {(rule_id, key): tuple((start, end) for start, end in spans) for rule_id, key, *_, spans in saved}
        )
