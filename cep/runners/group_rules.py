"""The rulebook of a key group: control records → the rules in force, once a process however many key groups ask.

Every key group sees the same control records in the same micro-batch and holds an equal rulebook in its state. A worker
serves many key groups, so it keeps each rulebook, and what a list of records made of it, in memory.
Tested by: tests/runners/spark/test_live_rules.py
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.decode import Poison
from cep.model.rule import HeartbeatRecord, parse_control
from cep.nfa.deployed import DeployedRule
from cep.rulebook.rulebook import Rulebook
from cep.runners.job import Job
from cep.runners.letters import dead_letter

_KEPT = 64
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class KnownRulebook:
    """A rulebook and the digest of all that it remembers.

    Its fingerprint is not enough to know it by: two rulebooks that match alike may differ in the versions of retired
    rules, and judge the next control record differently. `forget_ms` is the watermark at which some version is over.
    """

    digest: str
    rulebook: Rulebook
    forget_ms: int


@dataclass(frozen=True, slots=True)
class Change:
    """What a list of control records made of a rulebook. `heartbeat_ms` is the latest of their heartbeats."""

    after: KnownRulebook
    dead_letters: tuple[bytes, ...]
    counters: Counter[str]
    heartbeat_ms: int


_RULEBOOKS: OrderedDict[str, KnownRulebook] = OrderedDict()
_INITIAL: OrderedDict[tuple[Job, tuple[bytes, ...]], KnownRulebook] = OrderedDict()
_FORGOTTEN: OrderedDict[tuple[str, int], KnownRulebook] = OrderedDict()
_CHANGES: OrderedDict[tuple[str, tuple[bytes, ...], int | None], Change] = OrderedDict()


def known(digest: str) -> KnownRulebook | None:
    """The rulebook of this digest, if the process has it."""
    return _RULEBOOKS.get(digest)


def restored(job: Job, data: bytes) -> KnownRulebook:
    """The rulebook that a key group has kept as bytes. Raises: as Rulebook.from_bytes."""
    return _remember(job, Rulebook.from_bytes(data, job.schema, job.domains))


def initial_rulebook(job: Job, records: tuple[bytes, ...]) -> KnownRulebook:
    """What a key group begins with that has never seen an event or a control record."""
    at = (job, records)
    if at not in _INITIAL:
        rulebook = Rulebook(job.schema, job.domains)
        apply_records(rulebook, records, None)
        _keep(_INITIAL, at, _remember(job, rulebook))
    return _INITIAL[at]


def changed(job: Job, before: KnownRulebook, records: tuple[bytes, ...], seen_ms: int | None) -> Change:
    """Apply control records in their order. `seen_ms`: no later event has been matched, in any key group."""
    at = (before.digest, records, seen_ms)
    if at not in _CHANGES:
        rulebook = Rulebook.from_bytes(before.rulebook.to_bytes(), job.schema, job.domains)
        letters, counters, heartbeat_ms = apply_records(rulebook, records, seen_ms)
        _keep(_CHANGES, at, Change(_remember(job, rulebook), tuple(letters), counters, heartbeat_ms))
    return _CHANGES[at]


def forgotten(job: Job, before: KnownRulebook, watermark_ms: int) -> KnownRulebook:
    """The rulebook without the versions that are over; for a key group in which all is matched up to the watermark."""
    at = (before.digest, watermark_ms)
    if at not in _FORGOTTEN:
        rulebook = Rulebook.from_bytes(before.rulebook.to_bytes(), job.schema, job.domains)
        rulebook.forget(watermark_ms)
        _keep(_FORGOTTEN, at, _remember(job, rulebook))
    return _FORGOTTEN[at]


def apply_records(
    rulebook: Rulebook, records: tuple[bytes, ...], seen_ms: int | None
) -> tuple[list[bytes], Counter[str], int]:
    """Returns: dead letters of the records that are refused, counters, the latest heartbeat."""
    letters: list[bytes] = []
    counters: Counter[str] = Counter()
    heartbeat_ms = TIME_MS_MIN
    for data in records:
        record, problems = parse_control(data)
        text = data.decode("utf-8", "backslashreplace")
        if record is None:
            counters["control_unreadable"] += 1
            reason = "; ".join(str(problem) for problem in problems)
            letters.append(dead_letter(Poison("control_unreadable", reason, text)))
            continue
        if isinstance(record, HeartbeatRecord):
            counters["control_heartbeat"] += 1
            heartbeat_ms = max(heartbeat_ms, record.event_time_ms)
            continue
        outcome = rulebook.apply(record, seen_ms)
        counters[f"control_{outcome.kind}"] += 1
        if outcome.late_ms:
            counters["rule_late_ms"] += outcome.late_ms
        if outcome.kind == "refused":
            reason = "; ".join([outcome.reason, *(f"{d.code} {d.message}" for d in outcome.diagnostics)])
            letters.append(dead_letter(Poison("control_refused", reason, text)))
    return letters, counters, heartbeat_ms


def _remember(job: Job, rulebook: Rulebook) -> KnownRulebook:
    digest = hashlib.sha256(repr((job.schema, job.domains)).encode() + rulebook.to_bytes()).hexdigest()
    found = _RULEBOOKS.get(digest)
    if found is None:
        found = KnownRulebook(
            digest, rulebook, min((_end_ms(rule) for rule in rulebook.deployed()), default=TIME_MS_MAX)
        )
        _keep(_RULEBOOKS, digest, found)
    return found


def _end_ms(rule: DeployedRule) -> int:
    """The watermark from which on a version can neither start a match nor have a run alive."""
    within_ms = rule.pattern.within_ms
    if rule.starts_until_ms == TIME_MS_MAX or not isinstance(within_ms, int):
        return rule.until_ms
    return min(rule.until_ms, rule.starts_until_ms + within_ms)


def _keep(cache: OrderedDict[K, V], at: K, value: V) -> None:
    cache[at] = value
    while len(cache) > _KEPT:
        cache.popitem(last=False)
