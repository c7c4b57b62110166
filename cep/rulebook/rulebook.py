"""Control records, one after the other → the rules in force.

A rule has versions; a version sees the events from its start up to its successor's. The rulebook holds every version
that is waiting for its start, in force, or draining, each with its interval resolved at the moment it was applied:

    from_ms          the first event time that it sees
    starts_until_ms  the first that no longer starts a match: its successor's from_ms
    until_ms         the first that it no longer sees: open after `drain`, its successor's from_ms after `restart`

The resolved interval is kept, not worked out again: it depends on what the job had seen when the record came, and a
restored rulebook has to say the same as the one that was saved.
Knows nothing of Spark or Kafka. Every key group applies the same records in the same order and holds an equal rulebook.
Tested by: tests/rulebook/test_rulebook.py, tests/rulebook/test_rulebook_properties.py
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from cep.base.errors import StateCorruptError, StateFormatError
from cep.base.limits import RULES_MAX, TIME_MS_MAX, TIME_MS_MIN, VERSIONS_PER_RULE_MAX
from cep.base.schema import Schema
from cep.lang.ir import PatternIR
from cep.model.rule import ControlRecord, HeartbeatRecord, RetireRecord, UpsertRecord, parse_control
from cep.nfa.deployed import DeployedRule
from cep.rulebook.compatible import KeyDomains, Refused, compile_rule
from cep.rulebook.outcome import Outcome, Refusal, RulebookReport, RuleReport

FORMAT = 1
# Versions with one of these are matched; the others only end their predecessor.
_MATCHING = ("shadow", "live")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One version: the record it came from (to save it) and the rule (to run it). `rule` holds the interval."""

    record: UpsertRecord
    rule: DeployedRule


class Rulebook:
    """The rules of one job. `key_domains` are the keys that it routes events by; None routes by any key."""

    def __init__(self, schema: Schema, key_domains: KeyDomains | None) -> None:
        self._schema = schema
        self._key_domains = key_domains
        self._epoch = 0
        # Rule id → last applied version; a retired rule stays, or an old record would bring it back.
        self._last_versions: dict[str, int] = {}
        self._entries: dict[tuple[str, int], _Entry] = {}
        self._refusals: dict[str, Refusal] = {}
        self._counts: Counter[str] = Counter()

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def fingerprint(self) -> str:
        """Equal for rulebooks that match alike: what a compiled program is cached by. Refused records do not count."""
        rules = [
            [r.rule_id, r.version, r.epoch, r.content_hash, r.from_ms, r.starts_until_ms, r.until_ms]
            for r in self.deployed()
        ]
        return hashlib.sha256(_json({"rules": rules, "schema": self._schema.to_json()})).hexdigest()

    # -------------------------------------------------------------------------------------------- changes

    def apply(self, record: ControlRecord, seen_ms: int | None) -> Outcome:
        """Apply one control record.

        `seen_ms` is the largest event time that has been matched, None before the first event: a change cannot start
        before or at it, starts right after it instead, and says by how much it is late.
        Returns: the outcome; `refused` and `ignored` leave the rules in force unchanged. Raises: nothing.
        """
        if isinstance(record, HeartbeatRecord):
            return Outcome("ignored", "a heartbeat moves the watermark, not the rulebook")
        outcome = self._outcome(record, seen_ms)
        self._counts[outcome.kind] += 1
        self._counts["late_ms"] += outcome.late_ms
        if outcome.kind == "refused":
            self._set_aside(Refusal(record.id, record.version, _full_reason(outcome)))
        return outcome

    def forget(self, watermark_ms: int) -> int:
        """Drop every version that can neither start a match nor have a run alive at the watermark.

        A drained version without a `within` has no such time and stays until it is restarted or retired.
        Returns: how many versions were dropped; the epoch stays.
        """
        done = [at for at, entry in self._entries.items() if _is_done(entry.rule, watermark_ms)]
        for at in done:
            del self._entries[at]
        return len(done)

    def _outcome(self, record: UpsertRecord | RetireRecord, seen_ms: int | None) -> Outcome:
        last_version = self._last_versions.get(record.id)
        if last_version is not None and record.version <= last_version:
            return Outcome("ignored", f"version {record.version} is not newer than {last_version}")
        if last_version is None and len(self._last_versions) >= RULES_MAX:
            return Outcome("refused", f"the rulebook knows {RULES_MAX} rules, which is the limit")
        from_ms, late_ms = _start(record.effective_ms, seen_ms)
        entry = None
        if isinstance(record, UpsertRecord):
            versions_count = sum(rule_id == record.id for rule_id, _ in self._entries)
            if versions_count >= VERSIONS_PER_RULE_MAX:
                return Outcome("refused", f"{versions_count} older versions still wait or drain; retire the rule first")
            compiled = compile_rule(record, self._schema, self._key_domains)
            if isinstance(compiled, Refused):
                return Outcome("refused", compiled.reason, compiled.diagnostics)
            if record.status in _MATCHING:
                rule = _deployed_rule(record, compiled, self._epoch + 1)
                entry = _Entry(record, replace(rule, from_ms=from_ms))
        self._end_predecessors(record, from_ms)
        if entry is not None:
            self._entries[record.id, record.version] = entry
        self._epoch += 1
        self._last_versions[record.id] = record.version
        refusal = self._refusals.get(record.id)
        if refusal is not None and refusal.version <= record.version:
            del self._refusals[record.id]
        return Outcome("applied", late_ms=late_ms)

    def _set_aside(self, refusal: Refusal) -> None:
        known = self._refusals.get(refusal.rule_id)
        if known is not None and known.version > refusal.version:
            return  # the newest counts, or a repeated record would change what is reported
        self._refusals[refusal.rule_id] = refusal
        while len(self._refusals) > RULES_MAX:  # ids that were only ever refused: forget the oldest
            del self._refusals[next(iter(self._refusals))]

    def _end_predecessors(self, record: UpsertRecord | RetireRecord, change_ms: int) -> None:
        """No older version starts a match at or after the change; unless it may drain, it sees nothing either."""
        drains = isinstance(record, UpsertRecord) and record.status in _MATCHING and record.on_update == "drain"
        for at, entry in list(self._entries.items()):
            if at[0] != record.id:
                continue
            rule = replace(entry.rule, starts_until_ms=min(entry.rule.starts_until_ms, change_ms))
            if not drains:
                rule = replace(rule, until_ms=min(rule.until_ms, change_ms))
            if rule.starts_until_ms <= rule.from_ms:  # its successor starts first: it never had its turn
                del self._entries[at]
            else:
                self._entries[at] = _Entry(entry.record, rule)

    # ------------------------------------------------------------------------------------------ questions

    def deployed(self) -> tuple[DeployedRule, ...]:
        """Every version in force, waiting or draining, in the order in which alerts of one event come out."""
        rules = (entry.rule for entry in self._entries.values())
        return tuple(sorted(rules, key=lambda r: (r.priority, r.rule_id, r.version)))

    def domains(self) -> dict[tuple[str, ...], tuple[DeployedRule, ...]]:
        """The deployed rules by the key they match on, keys in order, rules in the order of `deployed`."""
        found: dict[tuple[str, ...], list[DeployedRule]] = {}
        for rule in self.deployed():
            found.setdefault(rule.pattern.key, []).append(rule)
        return {key: tuple(found[key]) for key in sorted(found)}

    def report(self) -> RulebookReport:
        """What is in force, what was refused and why, and how many records came to which end."""
        return RulebookReport(
            epoch=self._epoch,
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
                )
                for rule in self.deployed()
            ),
            refused=tuple(self._refusals[rule_id] for rule_id in sorted(self._refusals)),
            applied_count=self._counts["applied"],
            ignored_count=self._counts["ignored"],
            refused_count=self._counts["refused"],
            rule_late_ms=self._counts["late_ms"],
        )

    # ---------------------------------------------------------------------------------------- save, restore

    def to_bytes(self) -> bytes:
        """The applied facts as JSON: equal rulebooks have equal bytes. Counters are not saved."""
        versions = [
            {
                "record": entry.record.to_json().decode(),
                "epoch": entry.rule.epoch,
                "from_ms": entry.rule.from_ms,
                "starts_until_ms": entry.rule.starts_until_ms,
                "until_ms": entry.rule.until_ms,
            }
            for _, entry in sorted(self._entries.items())
        ]
        return _json(
            {
                "format": FORMAT,
                "epoch": self._epoch,
                "last_versions": self._last_versions,
                "versions": versions,
                "refused": [self._refusals[rule_id].to_json() for rule_id in sorted(self._refusals)],
            }
        )

    @staticmethod
    def from_bytes(data: bytes, schema: Schema, key_domains: KeyDomains | None) -> Rulebook:
        """The rulebook that `to_bytes` wrote.

        A version that this build or this job no longer accepts is set aside as refused, as it would be on arrival.
        Raises: StateFormatError for an unknown format, StateCorruptError for bytes that are not a rulebook.
        """
        book = Rulebook(schema, key_domains)
        try:
            saved = json.loads(data)
            if saved["format"] != FORMAT:
                raise StateFormatError(
                    f"the rulebook was saved in format {saved['format']}, this build reads {FORMAT}; "
                    "start with the build that wrote it, or from a new checkpoint directory"
                )
            book._epoch = saved["epoch"]
            book._last_versions = dict(saved["last_versions"])
            book._refusals = {r["rule_id"]: Refusal(**r) for r in saved["refused"]}
            for version in saved["versions"]:
                book._restore(version)
        except (ValueError, KeyError, TypeError) as error:
            raise StateCorruptError(
                f"{len(data)} bytes are not a saved rulebook ({error!r}); restore an older checkpoint"
            ) from error
        return book

    def _restore(self, saved: dict[str, Any]) -> None:
        record, problems = parse_control(saved["record"])
        if not isinstance(record, UpsertRecord):
            raise ValueError("; ".join(str(problem) for problem in problems) or "not an upsert")  # noqa: TRY004 of bytes
        compiled = compile_rule(record, self._schema, self._key_domains)
        if isinstance(compiled, Refused):
            reason = _full_reason(Outcome("refused", compiled.reason, compiled.diagnostics))
            self._set_aside(Refusal(record.id, record.version, reason))
            return
        rule = replace(
            _deployed_rule(record, compiled, saved["epoch"]),
            from_ms=saved["from_ms"],
            starts_until_ms=saved["starts_until_ms"],
            until_ms=saved["until_ms"],
        )
        self._entries[record.id, record.version] = _Entry(record, rule)


def _start(effective_ms: int | None, seen_ms: int | None) -> tuple[int, int]:
    """(from_ms, late_ms) of a change. Without a time it means as early as can be: since ever, if nothing was seen."""
    if seen_ms is None:
        return (TIME_MS_MIN if effective_ms is None else effective_ms), 0
    first_ms = seen_ms + 1
    if effective_ms is None:
        return first_ms, 0
    return max(effective_ms, first_ms), max(0, first_ms - effective_ms)


def _is_done(rule: DeployedRule, watermark_ms: int) -> bool:
    if rule.until_ms <= watermark_ms:
        return True
    within_ms = rule.pattern.within_ms
    if rule.starts_until_ms == TIME_MS_MAX or within_ms is None:
        return False
    assert isinstance(within_ms, int)  # `bind` has left no open parameter
    # The last start is before starts_until_ms, and a run lives while last − first < within.
    return rule.starts_until_ms + within_ms <= watermark_ms


def _deployed_rule(record: UpsertRecord, pattern: PatternIR, epoch: int) -> DeployedRule:
    return DeployedRule(
        rule_id=record.id,
        version=record.version,
        epoch=epoch,
        content_hash=record.content_hash,
        pattern=pattern,
        status=record.status,
        severity=record.severity,
        priority=record.priority,
        score=record.score,
        message=record.message,
    )


def _full_reason(outcome: Outcome) -> str:
    return "; ".join([outcome.reason, *(f"{d.code} {d.message}" for d in outcome.diagnostics)])


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
