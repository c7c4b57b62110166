"""Control records → the rules in force: steps 2 and 8 of a micro-batch, once a process however many key groups ask.

Every key group of Spark sees the same control records in the same micro-batch and has an equal rulebook. Its state has
the digest of it, and the job's folder has the rulebook (rulebook/saved.py). A process caches each rulebook, and each
change of it. A job without a folder always has the rules that it is given; its state says which ones these were.

The head of a job's audit is signed if the process has a key of manifests (state/manifest.py):

    {"count": 12, "hash": HASH, "signature": HEX}

The status of a job and each checkpoint of `cep run` have the head. An attacker who can write there without the key
cannot forge a head for an audit that was cut or written again.

The status of a rulebook is one JSON value, for the status topic, the status file and the step that suppresses alerts:

    {"digest": …, "epoch": 7, "content_hash": …, "rules": [{"rule_id": …, "version": …, "from_ms": …}],
     "last_versions": {…}, "paused": […], "snoozes": […], "refused": [{"rule_id", "version", "reason"}],
     "policies": {…}, "audit": {"count", "hash"}}

An absent time, such as the end of a version without a successor, is null. `audit` is missing if the job writes none.

Tested by: tests/runners/spark/test_tasks.py, tests/step/test_step.py, tests/runners/test_output.py.
"""

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from cep.base.audit import Head, Trail, is_audit
from cep.base.errors import StateCorruptError, UsageError
from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.base.text import utc_text
from cep.columnar.decode import KeyDomain, Poison
from cep.columnar.tokens import hide_card_numbers
from cep.lang.explain.render import to_json
from cep.lists.store import Lists, ListStore
from cep.model import rule as model
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program
from cep.rulebook.audit import CHANGE, FIRST, UNREADABLE, has_new_signers, note, note_gaps, note_signers, writes_audit
from cep.rulebook.completeness import with_producer_gaps
from cep.rulebook.deploy import RefusedRecord, is_given, vouched_lists
from cep.rulebook.meaning import content_hash
from cep.rulebook.outcome import Outcome
from cep.rulebook.rulebook import Rulebook, by_level
from cep.rulebook.saved import RulebookStore, rulebook_from_bytes, save
from cep.rulebook.suppression import Policies
from cep.rulebook.trust import HEARTBEAT, reason_against_heartbeat
from cep.state.manifest import check_fact, fact_signature
from cep.step.dead_letters import dead_letter, under_rules
from cep.step.event_time import NO_CLOCK
from cep.step.job import Job

_CACHED_MAX = 64


@dataclass(frozen=True, slots=True)
class NamedRulebook:
    """A rulebook and the digest of all that it remembers. `forget_ms`: the watermark at which some version is over.

    Its fingerprint would not do: two rulebooks that match alike may judge the next control record differently.
    """

    digest: str
    rulebook: Rulebook = field(compare=False)
    forget_ms: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of some control records on a rulebook. `heartbeat_ms` is the latest of their heartbeats."""

    after: NamedRulebook
    dead_letters: tuple[bytes, ...]
    counters: Counter[str]
    heartbeat_ms: int


@dataclass(frozen=True, slots=True)
class JobRules:
    """The rules of one job: the job, and its first control records (changes of rules). Rulebook caches use it as key.

    store: the folder of its rulebooks. job_lists: the entries of its lists, for a job without such a folder."""

    job: Job
    initial: tuple[bytes, ...]
    store: RulebookStore | None = None
    job_lists: ListStore | None = None

    @property
    def lists(self) -> ListStore | None:
        return self.store.lists if self.store is not None else self.job_lists


@dataclass(frozen=True, slots=True)
class _Initial:
    """The rulebook that a job begins with, the lines of the audit about its rules, and the trail after them."""

    rulebook: NamedRulebook
    audit: tuple[bytes, ...]
    trail: Trail


_RULEBOOKS: OrderedDict[tuple[JobRules, str], NamedRulebook] = OrderedDict()


def rulebook_of(rules: JobRules, digest: str) -> NamedRulebook:
    """Return the rulebook with a digest, "" for the one that a job begins with. Raises: as RulebookStore.get."""
    if not digest:
        return _initial(rules).rulebook
    key = (rules, digest)
    if key not in _RULEBOOKS:
        assert rules.store is not None, "a digest is known by a folder"
        rulebook = rules.store.get(digest, rules.job.schema, rules.job.domains)
        rulebook.keep_levels(rules.job.levels_count)  # each version stays on the level (order of rules) of its state
        rules.job.govern(rulebook)  # the job, not the file, sets who is trusted, and if changes are audited
        return _remember(rules, rulebook)
    return _RULEBOOKS[key]


def restore_rulebook(rules: JobRules, data: bytes) -> NamedRulebook:
    """Read the rulebook of a job that has it as bytes. Raises: as rulebook_from_bytes."""
    rulebook = rulebook_from_bytes(data, rules.job.schema, rules.job.domains, rules.lists)
    rulebook.keep_levels(rules.job.levels_count)
    rules.job.govern(rulebook)
    return _remember(rules, rulebook)


@lru_cache(_CACHED_MAX)
def given_digest(rules: JobRules) -> str:
    """Return a name for the rules of a job that never change, and its terms: the inputs of its keyed state."""
    rulebook = _initial(rules).rulebook.rulebook
    lists = [
        record.decode() for record in rules.initial if isinstance(model.parse_control(record)[0], model.ListRecord)
    ]
    meaning = [rules.job.to_json(), rulebook.fingerprint, rulebook.content_hash, lists]
    return f"given {hashlib.sha256(json.dumps(meaning).encode()).hexdigest()}"


def given_rulebook(rules: JobRules, digest: str) -> NamedRulebook:
    """Return the rulebook of a job whose rules never change. Raises: UsageError if its state has another digest."""
    if digest not in ("", given_digest(rules)):
        raise UsageError(
            "the checkpoint of this query was begun with other rules, or on other terms: its keyed state would be "
            "misread; give them as they were, or a new checkpoint. With control= and folder= rules change while a "
            "query runs"
        )
    return _initial(rules).rulebook


@lru_cache(_CACHED_MAX)
def save_rulebook(rules: JobRules, rulebook: NamedRulebook) -> None:
    """Put a rulebook into the job's folder, once a process. Raises: as RulebookStore.put."""
    assert rules.store is not None, "rulebooks are kept in a folder"
    rules.store.put(save(rulebook.rulebook))


def bundle_records(store: RulebookStore, records: Sequence[tuple[int, str, bytes]], now_ms: int = NO_CLOCK) -> str:
    """Save the control records that one task has read as one file. Return its place, with the clock of the micro-batch.

    A record is (its place in the order of all, the name of its file or "", bytes). The name decides between two files
    of one time; a file has one record per line. Raises: SinkError.
    """
    ordered: list[bytes] = []
    for _, name, data in sorted(records):
        ordered += [line for line in data.split(b"\n") if line.strip()] if name else [data]
    frames = b"".join(len(data).to_bytes(4, "little") + data for data in ordered)
    return f"{min(records)[0]:020} {store.put_control(frames)} {now_ms}"


def clock_of(places: Iterable[str]) -> int:
    """Return the clock of the micro-batch to which these places belong (`bundle_records`)."""
    return min((int(place.split(" ")[2]) for place in places), default=NO_CLOCK)


@lru_cache(_CACHED_MAX)
def read_records(rules: JobRules, places: tuple[str, ...]) -> tuple[bytes, ...]:
    """Read the control records at these places (`bundle_records`), in order. Raises: as RulebookStore.get_control."""
    assert rules.store is not None, "control records come through a folder"
    records: list[bytes] = []
    for place in sorted(places):
        frames, start = rules.store.get_control(place.split(" ")[1]), 0
        while start < len(frames):
            end = start + 4 + int.from_bytes(frames[start : start + 4], "little")
            records.append(frames[start + 4 : end])
            start = end
    return tuple(records)


@lru_cache(_CACHED_MAX)
def change_rules(
    rules: JobRules, before: NamedRulebook, records: tuple[bytes, ...], seen_ms: int | None, now_ms: int = NO_CLOCK
) -> Change:
    """Apply control records to a copy of a rulebook, in order. `seen_ms`: no key group has matched a later event.

    If there are new signers (of rules), the result has audit lines about them. Otherwise the first change has audit
    lines about the rules that the job begins with. The trail of a rulebook is the hash that its next audit line
    continues."""
    rulebook, first_audit_lines = before.rulebook.copy(), tuple[bytes, ...]()
    if has_new_signers(rulebook):
        first_audit_lines = tuple(note_signers(rulebook))
    elif lacks_initial_audit(rules, before):
        rulebook.trail, first_audit_lines = _initial(rules).trail, _initial(rules).audit
    dead_letters, counters, heartbeat_ms = apply_records(rulebook, records, seen_ms, rules.job.latest_ms(now_ms))
    after = _remember(rules, rulebook)
    return Change(after, (*first_audit_lines, *dead_letters), counters, heartbeat_ms)


def lacks_initial_audit(rules: JobRules, rulebook: NamedRulebook) -> bool:
    """Return True if the audit of a job is still empty, and must get a line for each initial rule."""
    book = rulebook.rulebook
    if not writes_audit(book) or book.trail.head.count:
        return has_new_signers(book)
    return bool(_initial(rules).audit)


def with_gap(
    rules: JobRules, before: NamedRulebook, gaps: Mapping[str, tuple[int, int]], until_ms: int
) -> tuple[NamedRulebook, list[bytes]]:
    """Add to the audit that the job goes on without offsets [first, end) of partitions, from before `until_ms`."""
    rulebook = before.rulebook.copy()
    lines = note_gaps(rulebook, gaps, until_ms)
    return (_remember(rules, rulebook), lines) if lines else (before, [])


@lru_cache(_CACHED_MAX)
def forget_rules(rules: JobRules, before: NamedRulebook, watermark_ms: int) -> NamedRulebook:
    """Drop the versions that are over from a rulebook; all must be matched up to the watermark."""
    rulebook = before.rulebook.copy()
    rulebook.forget(watermark_ms)
    return _remember(rules, rulebook)


def apply_records(
    rulebook: Rulebook, records: tuple[bytes, ...], seen_ms: int | None, latest_ms: int = NO_CLOCK, *,
    are_first: bool = False,
) -> tuple[list[bytes], Counter[str], int]:  # fmt: skip
    """Apply control records in order; a heartbeat beyond `latest_ms` is refused.

    Returns: lines of the audit (base/audit.py) and dead letters of the refused records, counters, the latest heartbeat.
    A letter describes the rules at the time when its record was judged.
    """
    dead_letters: list[bytes] = []
    counters: Counter[str] = Counter()
    audit: list[bytes] = []
    heartbeat_ms, in_force = TIME_MS_MIN, None
    parsed = [(data, *model.parse_control(data)) for data in records]
    vouched = vouched_lists((record for _, record, _ in parsed), rulebook.trust) if are_first else None
    for data, record, problems in parsed:
        unverified = _heartbeat_refusal(rulebook, record, seen_ms)
        if isinstance(record, model.HeartbeatRecord) and unverified is None and record.event_time_ms <= latest_ms:
            counters["control_heartbeat"] += 1
            heartbeat_ms = max(heartbeat_ms, record.event_time_ms)
            continue
        if unverified is not None:
            counters["control_refused"] += 1
            counters["control_unverified"] += 1
            letter = dead_letter(
                Poison("control_refused", unverified.full_reason, _text(data)), {"cause": unverified.cause}
            )
            audit += note(rulebook, None, unverified, data, HEARTBEAT)
        elif isinstance(record, model.HeartbeatRecord):
            counters["control_ahead"] += 1
            reason = f"ahead of the job's clock: a heartbeat is {utc_text(latest_ms)} at the latest"
            letter = dead_letter(Poison("control_ahead", reason, _text(data)))
        elif record is None:
            counters["control_unreadable"] += 1
            reason = "; ".join(map(str, problems))
            letter = dead_letter(Poison("control_unreadable", hide_card_numbers(reason), _text(data)))
            audit += note(rulebook, None, Outcome("refused", reason), data, UNREADABLE)
        else:
            outcome = rulebook.apply(record, seen_ms, is_given=are_first and is_given(record, vouched))
            counters[f"control_{outcome.kind}"] += 1
            counters["control_unverified"] += bool(outcome.cause)
            counters["control_conflict"] += outcome.is_conflict
            counters["rule_late_ms"] += outcome.late_ms
            audit += note(rulebook, record, outcome, data, FIRST if are_first else CHANGE)
            if outcome.kind != "refused":
                in_force = None  # the last word on something may be another one
                continue
            letter = _refused(record, outcome, data)
        in_force = in_force or (rulebook.epoch, rulebook.content_hash)
        dead_letters += under_rules([letter], *in_force)
    return [*audit, *dead_letters], +counters, heartbeat_ms


def _heartbeat_refusal(rulebook: Rulebook, record: model.ControlRecord | None, seen_ms: int | None) -> Outcome | None:
    """Return why a heartbeat does not count in a job with signed changes; None for other records."""
    trust = rulebook.trust
    if trust is None or not isinstance(record, model.HeartbeatRecord):
        return None
    return reason_against_heartbeat(record, trust.after(seen_ms))


def refusal_dead_letters(refused: Iterable[RefusedRecord]) -> list[bytes]:
    """Write the dead letters of refused records."""
    return [
        letter
        for refusal in refused
        for letter in under_rules(
            [_refused(refusal.record, refusal.outcome, refusal.record.to_json())], refusal.epoch, refusal.content_hash
        )
    ]


def _refused(record: model.VersionedRecord, outcome: Outcome, data: bytes) -> bytes:
    """Write the dead letter of a valid control record that was refused: its version, and the problem with its place."""
    upsert = record.rule if isinstance(record, model.RollbackRecord) else record
    sources = {upsert.id: upsert.source} if isinstance(upsert, model.UpsertRecord) else {}
    more = {
        "rule_id": f"list {record.id}" if isinstance(record, model.ListRecord) else record.id,
        "version": record.version,
        "content_hash": content_hash(upsert) if isinstance(upsert, model.UpsertRecord) else None,
        "diagnostics": [to_json(diagnostic, sources) for diagnostic in outcome.diagnostics],
        **({"cause": outcome.cause} if outcome.cause else {}),
    }
    # CEP320 refuses a protected value, such as a card number. The dead letter must not show it either.
    has_protected_value = any(diagnostic.code == "CEP320" for diagnostic in outcome.diagnostics)
    shown = f"{len(data)} bytes" if has_protected_value else _text(data)
    return dead_letter(Poison("control_refused", outcome.full_reason, shown), more)


def _text(data: bytes) -> str:
    """Return a record as a letter shows it: a refused one may have a card number as a key, an entry or a reason."""
    return hide_card_numbers(data.decode("utf-8", "backslashreplace"))


@lru_cache(_CACHED_MAX)
def _initial(rules: JobRules) -> _Initial:
    rulebook = Rulebook(rules.job.schema, rules.job.domains, rules.lists)
    rules.job.govern(rulebook)
    lines, _, _ = apply_records(rulebook, rules.initial, None, are_first=True)
    # Its audit is still to be written: by the first micro-batch.
    trail, rulebook.trail = rulebook.trail, Trail()
    rulebook.assign_levels(rules.job.levels_count)
    audit = tuple(line for line in lines if is_audit(line))
    return _Initial(_remember(rules, rulebook), audit, trail)


def _remember(rules: JobRules, rulebook: Rulebook) -> NamedRulebook:
    digest = save(rulebook).digest
    key = (rules, digest)
    if key not in _RULEBOOKS:
        _RULEBOOKS[key] = NamedRulebook(digest, rulebook, rulebook.forget_ms)
        while len(_RULEBOOKS) > _CACHED_MAX:
            _RULEBOOKS.popitem(last=False)
    return _RULEBOOKS[key]


def head_values(head: Head) -> dict[str, Any]:
    """Return the head as JSON values, with a signature if there is a key. Raises: UsageError for an invalid key."""
    signature = fact_signature(_fact(head))
    return head.to_json() if signature is None else {**head.to_json(), "signature": signature}


def read_head(values: object, place: str) -> Head:
    """Parse and check the values of `head_values`; `place` is for messages. Raises: StateCorruptError, UsageError."""
    fields = values if isinstance(values, Mapping) else {}
    count, digest = fields.get("count"), fields.get("hash")
    if not isinstance(count, int) or isinstance(count, bool) or not isinstance(digest, str):
        raise StateCorruptError(f"the head of the audit in {place} cannot be read; name another place, or give --head")
    head = Head(count, digest)
    check_fact(_fact(head), fields.get("signature"), f"the head of the audit in {place}")
    return head


def sign_status(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a job's rules with the head of the audit signed, if it has one."""
    if "audit" not in status:
        return status
    saved = status["audit"]
    return {**status, "audit": head_values(Head(saved["count"], saved["hash"]))}


def _fact(head: Head) -> str:
    return f"audit head {head.count}:{head.hash}"


_COUNTS = ("applied_count", "ignored_count", "refused_count", "rule_late_ms")  # of one process: no fact about the job


def rule_status(rulebook: Rulebook) -> dict[str, Any]:
    """Describe the rules in force, the refused rules with their reasons, and the policies of suppression."""
    facts = _with_times({name: value for name, value in asdict(rulebook.report()).items() if name not in _COUNTS})
    if writes_audit(rulebook):
        facts["audit"] = rulebook.trail.head.to_json()
    return {"digest": save(rulebook).digest, **facts, "policies": Policies.of(rulebook).to_json()}


def _with_times(value: Any) -> Any:
    """Return the value with null for times before or after all events."""
    if isinstance(value, dict):
        # A rule or an event type may have the name of a time, too.
        return {
            name: _time(item) if name.endswith("_ms") and isinstance(item, int) else _with_times(item)
            for name, item in value.items()
        }
    return [_with_times(item) for item in value] if isinstance(value, list | tuple) else value


def _time(time_ms: int) -> int | None:
    return None if not TIME_MS_MIN < time_ms < TIME_MS_MAX else time_ms


_PROGRAMS_CACHED = 64


@dataclass(frozen=True)
class InForce:
    """A rulebook with its derived values: the programs of each level, and the key domains with rules at any level."""

    rulebook: NamedRulebook
    programs: tuple[Mapping[KeyDomain, Program], ...]
    domains: frozenset[KeyDomain]

    @cached_property
    def policies(self) -> Policies:
        return Policies.of(self.rulebook.rulebook)


class Programs:
    """The compiled programs of a process by rulebook and event types, with one for each level and key domain.

    Rules of a level read the events that lower levels produce. If only a list of values changes, the versions of the
    list (`timelines`) are replaced, and nothing is compiled."""

    def __init__(self) -> None:
        self._programs: dict[tuple[str, Schema], tuple[Lists, list[dict[KeyDomain, Program]]]] = {}
        self._in_force: InForce | None = None

    def in_force(self, rulebook: NamedRulebook, job: Job) -> InForce:
        """Return a rulebook with the values derived from it. The last one is cached, because it takes milliseconds."""
        if self._in_force is None or self._in_force.rulebook is not rulebook:
            programs = tuple(self.of(rulebook.rulebook, job.schema, level) for level in range(job.levels_count))
            domains = frozenset(domain for level in programs for domain in level)
            self._in_force = InForce(rulebook, programs, domains)
        return self._in_force

    def of(self, rulebook: Rulebook, schema: Schema, level: int = 0) -> Mapping[KeyDomain, Program]:
        """Return the program of each key domain that has rules at a level (rulebook/rulebook.py)."""
        key, lists = (rulebook.fingerprint, schema), rulebook.lists.timelines()
        if key not in self._programs:
            if len(self._programs) >= _PROGRAMS_CACHED:
                del self._programs[next(iter(self._programs))]
            self._programs[key] = lists, programs_by_level(rulebook, schema)
        elif self._programs[key][0] is not lists:
            self._programs[key] = lists, [_with_lists(rulebook, level) for level in self._programs[key][1]]
        levels = self._programs[key][1]
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
    return {domain: replace(program, lists=rulebook.lists.timelines()) for domain, program in programs.items()}
