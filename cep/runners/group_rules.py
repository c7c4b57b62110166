"""The rulebook of a key group: control records → the rules in force, once a process however many key groups ask.

Every key group sees the same control records in the same micro-batch and holds an equal rulebook: its state has the
digest of it, and the job's folder what stands behind the digest (rulebook/store.py). A worker serves many key groups,
so it keeps each rulebook, and what a list of records made of it, in memory.
Tested by: tests/runners/spark/test_live_rules.py
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cep.base.limits import TIME_MS_MIN
from cep.columnar.decode import Poison
from cep.lang.render import to_json
from cep.lists.store import ListStore
from cep.model.rule import (
    HeartbeatRecord,
    ListRecord,
    RollbackRecord,
    RuleChange,
    SnoozeRecord,
    UpsertRecord,
    parse_control,
)
from cep.rulebook.deploy import RefusedRecord
from cep.rulebook.meaning import content_hash
from cep.rulebook.outcome import Outcome
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_from_bytes, save
from cep.rulebook.store import RulebookStore
from cep.runners.job import Job
from cep.runners.letters import dead_letter, under_rules

_KEPT = 64
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class KnownRulebook:
    """A rulebook and the digest of all that it remembers.

    Its fingerprint is not enough to know it by: two rulebooks that match alike may differ in the versions of retired
    rules, and judge the next control record differently. `forget_ms` is the watermark at which something is over.
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


@dataclass(frozen=True, slots=True)
class JobRules:
    """Whose rules: the job, the records that it begins with, the folder of its rulebooks, if there is one, and where
    the entries of its lists are: in that folder, unless something else is given."""

    job: Job
    initial: tuple[bytes, ...]
    store: RulebookStore | None = None
    own_lists: ListStore | None = None

    @property
    def lists(self) -> ListStore | None:
        return self.store.lists if self.store is not None else self.own_lists


_RULEBOOKS: OrderedDict[tuple[JobRules, str], KnownRulebook] = OrderedDict()
_KEPT_IN_FOLDER: OrderedDict[tuple[JobRules, str], None] = OrderedDict()
_INITIAL: OrderedDict[JobRules, KnownRulebook] = OrderedDict()
_FORGOTTEN: OrderedDict[tuple[JobRules, str, int], KnownRulebook] = OrderedDict()
_TOLD: OrderedDict[tuple[JobRules, tuple[str, ...]], tuple[bytes, ...]] = OrderedDict()
_CHANGES: OrderedDict[tuple[JobRules, str, tuple[bytes, ...], int | None], Change] = OrderedDict()


def known(rules: JobRules, digest: str) -> KnownRulebook:
    """The rulebook of this digest; without one, what a key group begins with that has never seen a record.

    Raises: as RulebookStore.get.
    """
    if not digest:
        return _initial(rules)
    at = (rules, digest)
    if at not in _RULEBOOKS:
        assert rules.store is not None, "a digest is known by a folder"
        rulebook = rules.store.get(digest, rules.job.schema, rules.job.domains)
        rulebook.keep_levels(rules.job.levels_count)
        _keep(_RULEBOOKS, at, KnownRulebook(digest, rulebook, rulebook.forget_ms))
    return _RULEBOOKS[at]


def restored(rules: JobRules, data: bytes) -> KnownRulebook:
    """The rulebook of a job that keeps it as bytes. Raises: as rulebook_from_bytes."""
    rulebook = rulebook_from_bytes(data, rules.job.schema, rules.job.domains, rules.lists)
    rulebook.keep_levels(rules.job.levels_count)
    return _remember(rules, rulebook)


def keep(rules: JobRules, rulebook: KnownRulebook) -> None:
    """Put a rulebook into the job's folder, once a process. Raises: as RulebookStore.put."""
    at = (rules, rulebook.digest)
    if at not in _KEPT_IN_FOLDER:
        assert rules.store is not None, "rulebooks are kept in a folder"
        rules.store.put(save(rulebook.rulebook))
        _keep(_KEPT_IN_FOLDER, at, None)


def bundle(store: RulebookStore, records: Sequence[tuple[int, str, bytes]]) -> str:
    """Keep the control records that one task has read, at least one, and say where: what key groups are told instead.

    A record is (its place in the order of all, the name of its file or nothing, bytes). Of two files of one time the
    name decides; a file has a record a line. Raises: SinkError.
    """
    held: list[bytes] = []
    for _, name, data in sorted(records):
        held += [line for line in data.split(b"\n") if line.strip()] if name else [data]
    frames = b"".join(len(data).to_bytes(4, "little") + data for data in held)
    return f"{min(records)[0]:020} {store.put_control(frames)}"


def told(rules: JobRules, places: tuple[str, ...]) -> tuple[bytes, ...]:
    """The control records of a micro-batch in their order; `places` are what `bundle` gave. Raises: as the store."""
    at = (rules, places)
    if at not in _TOLD:
        assert rules.store is not None, "control records are told through a folder"
        records: list[bytes] = []
        for place in sorted(places):
            frames, start = rules.store.get_control(place.split(" ")[1]), 0
            while start < len(frames):
                end = start + 4 + int.from_bytes(frames[start : start + 4], "little")
                records.append(frames[start + 4 : end])
                start = end
        _keep(_TOLD, at, tuple(records))
    return _TOLD[at]


def changed(rules: JobRules, before: KnownRulebook, records: tuple[bytes, ...], seen_ms: int | None) -> Change:
    """Apply control records in their order. `seen_ms`: no later event has been matched, in any key group."""
    at = (rules, before.digest, records, seen_ms)
    if at not in _CHANGES:
        rulebook = before.rulebook.copy()
        letters, counters, heartbeat_ms = apply_records(rulebook, records, seen_ms)
        _keep(_CHANGES, at, Change(_remember(rules, rulebook), tuple(letters), counters, heartbeat_ms))
    return _CHANGES[at]


def forgotten(rules: JobRules, before: KnownRulebook, watermark_ms: int) -> KnownRulebook:
    """The rulebook without what is over; for a key group in which all is matched up to the watermark."""
    at = (rules, before.digest, watermark_ms)
    if at not in _FORGOTTEN:
        rulebook = before.rulebook.copy()
        rulebook.forget(watermark_ms)
        _keep(_FORGOTTEN, at, _remember(rules, rulebook))
    return _FORGOTTEN[at]


def apply_records(
    rulebook: Rulebook, records: tuple[bytes, ...], seen_ms: int | None
) -> tuple[list[bytes], Counter[str], int]:
    """Returns: dead letters of the records that are refused, counters, the latest heartbeat.

    Such a letter says what the rules were when its record was judged, whatever records came with it.
    """
    letters: list[bytes] = []
    counters: Counter[str] = Counter()
    heartbeat_ms, in_force = TIME_MS_MIN, None
    for data in records:
        record, problems = parse_control(data)
        if isinstance(record, HeartbeatRecord):
            counters["control_heartbeat"] += 1
            heartbeat_ms = max(heartbeat_ms, record.event_time_ms)
            continue
        if record is None:
            counters["control_unreadable"] += 1
            text = data.decode("utf-8", "backslashreplace")
            letter = dead_letter(Poison("control_unreadable", "; ".join(map(str, problems)), text))
        else:
            outcome = rulebook.apply(record, seen_ms)
            counters[f"control_{outcome.kind}"] += 1
            counters["rule_late_ms"] += outcome.late_ms
            if outcome.kind != "refused":
                in_force = None  # the last word on something may be another one
                continue
            letter = _refused(record, outcome, data)
        in_force = in_force or (rulebook.epoch, rulebook.content_hash)
        letters += under_rules([letter], *in_force)
    return letters, +counters, heartbeat_ms


def letters_of_refused(refused: Iterable[RefusedRecord]) -> list[bytes]:
    """The letters that a job wrote of these."""
    return [
        letter
        for found in refused
        for letter in under_rules(
            [_refused(found.record, found.outcome, found.record.to_json())], found.epoch, found.content_hash
        )
    ]


def _refused(record: RuleChange | SnoozeRecord | ListRecord, outcome: Outcome, data: bytes) -> bytes:
    """The letter of a record that was read and refused: which version it was, and what is wrong at which place."""
    upsert = record.rule if isinstance(record, RollbackRecord) else record
    sources = {upsert.id: upsert.source} if isinstance(upsert, UpsertRecord) else {}
    more = {
        "rule_id": f"list {record.id}" if isinstance(record, ListRecord) else record.id,
        "version": record.version,
        "content_hash": content_hash(upsert) if isinstance(upsert, UpsertRecord) else None,
        "diagnostics": [to_json(diagnostic, sources) for diagnostic in outcome.diagnostics],
    }
    return dead_letter(Poison("control_refused", outcome.full_reason, data.decode("utf-8", "backslashreplace")), more)


def _initial(rules: JobRules) -> KnownRulebook:
    if rules not in _INITIAL:
        rulebook = Rulebook(rules.job.schema, rules.job.domains, rules.lists)
        apply_records(rulebook, rules.initial, None)
        rulebook.place(rules.job.levels_count)
        _keep(_INITIAL, rules, _remember(rules, rulebook))
    return _INITIAL[rules]


def _remember(rules: JobRules, rulebook: Rulebook) -> KnownRulebook:
    digest = save(rulebook).digest
    at = (rules, digest)
    if at not in _RULEBOOKS:
        _keep(_RULEBOOKS, at, KnownRulebook(digest, rulebook, rulebook.forget_ms))
    return _RULEBOOKS[at]


def _keep(cache: OrderedDict[K, V], at: K, value: V) -> None:
    cache[at] = value
    while len(cache) > _KEPT:
        cache.popitem(last=False)
