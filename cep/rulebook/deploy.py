"""Control records of a job → its event types, and the rulebook in force.

A job takes its schema and its keys from its initial rules, and judges later records by them (rulebook.py). Two rules
may describe one event type differently: their fields are joined, and a rule that contradicts an earlier one is set
aside.

    rule 1:  payment { tx_id id  event_time time  card string  amount int }
    rule 2:  payment { tx_id id  event_time time  card pan     country string }
    job:     payment { tx_id id  event_time time  card pan     amount int?  country string? }

A field is required if every text that declares the event type requires it. So a rule that declares another field does
not affect other rules: in an event without the field, the rule itself reads null. If a text declares a field `pan` or
`sensitive`, the job protects the field. Otherwise the first text decides the type of a field, the id of an event type
and the order of its events.

The entries of a list are not a part of a rule's meaning, so a signature of the rule alone would not notice an edited
list. `cep rules sign` puts the name of each list's entries (lists/store.py) into the record. A job takes a declared
list only if its signed rules name these entries, or if a signed change of the list in `signed/` has the same entries.
Tested by: tests/step/test_step.py, tests/rulebook/test_levels.py, tests/rulebook/test_files.py,
tests/rulebook/test_signers.py
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cep.base.errors import UsageError
from cep.base.process import paused
from cep.base.schema import TIME_FIELD, EventType, Field, Kind, Schema, Type
from cep.lang.diagnostics import Diagnostic
from cep.lang.load import Checked
from cep.lists.entries import keys_of
from cep.lists.store import Content, ListStore, given_name
from cep.model.rule import ControlRecord, HeartbeatRecord, ListRecord, RollbackRecord, UpsertRecord, VersionedRecord
from cep.nfa.lists import GivenList, asked_lists
from cep.rulebook.compatible import KeyDomains, checked_text
from cep.rulebook.files import change_path, declared_lists, read_change
from cep.rulebook.outcome import Outcome
from cep.rulebook.rulebook import Rulebook, levels_needed
from cep.rulebook.trust import Trust, reason_against


@dataclass(frozen=True, slots=True)
class SetAside:
    """A rule that is not in force, and the reason. Diagnostics refer to `source` by the name `rule_id`."""

    rule_id: str
    version: int
    reason: str
    diagnostics: tuple[Diagnostic, ...]
    source: str
    status: str = "live"

    @property
    def full_reason(self) -> str:
        """The reason and the text of each diagnostic, with its next step, as one line."""
        messages = (f"{d.code} {d.message}" + (f" ({d.help})" if d.help else "") for d in self.diagnostics)
        return "; ".join([self.reason, *messages])


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that a running job refuses, with its rules at that time: how many changes it had applied, their hash."""

    record: VersionedRecord
    outcome: Outcome
    epoch: int
    content_hash: str


@dataclass(frozen=True, slots=True)
class Deployment:
    """The event types and rules of a job, and the control records that brought them: taken and refused ones."""

    schema: Schema
    rulebook: Rulebook
    set_aside: tuple[SetAside, ...]  # all refused rules and lists: the job runs without them and reports them
    taken: tuple[ControlRecord, ...] = ()  # records that were not refused
    refused: tuple[RefusedRecord, ...] = ()  # records that came after the initial rules and were refused

    @property
    def key_domains(self) -> tuple[tuple[str, ...], ...]:
        return tuple(self.rulebook.domains())


def deploy(records: Iterable[ControlRecord], lists: ListStore | None = None, trust: Trust | None = None) -> Deployment:
    """Deploy a job's first records in their order, before any event: a version begins at the time that it asks for.

    `lists` has the entries that list records name (files.read_lists). With `trust`, a record without valid signatures
    is refused, but a declared list needs none if signed rules name its entries. The job runs without refused rules.
    """
    ordered = list(records)
    accepted = (record for record in ordered if isinstance(record, UpsertRecord))
    if trust is not None:
        accepted = (record for record in accepted if reason_against(record, trust) is None)
    with paused():  # without Python's cyclic garbage collector, which would take long
        rulebook = Rulebook(schema_of(accepted), None, lists)
        rulebook.trust = trust
        deployment = _applied(Deployment(rulebook.schema, rulebook, ()), ordered, are_first=True)
        return replace(deployment, refused=())  # only for changes of a running job; `set_aside` has these, too


def deploy_to_job(
    begun: Deployment, later: Iterable[ControlRecord], keys: KeyDomains | None, levels_count: int
) -> Deployment:
    """Apply later records, in order, to a job that began with `begun`, which is consumed.

    `keys` are further keys that the job routes by, None any. Rules run in `levels_count` levels, one after the other.
    A change without a start applies from the beginning of time, because its arrival time is unknown.
    """
    rulebook = begun.rulebook
    rulebook.key_domains = None if keys is None else tuple(sorted({*begun.key_domains, *keys}))
    rulebook.assign_levels(levels_count)  # a later rule that needs more levels is refused
    deployment = _applied(begun, later)
    rulebook.assign_levels(levels_needed(rulebook.deployed()))  # all rules are here: no more levels than they need
    return deployment


def vouched_lists(records: Iterable[ControlRecord | None], trust: Trust | None) -> frozenset[str] | None:
    """Find the lists whose entries all signed first records name alike, as `NAME/KIND SET`; None without `trust`."""
    if trust is None:
        return None
    named: dict[str, set[str]] = {}
    for record in records:
        if isinstance(record, UpsertRecord) and record.lists and reason_against(record, trust) is None:
            for name, stored in record.lists.items():
                named.setdefault(name, set()).add(stored)
    return frozenset(f"{name} {stored}" for name, sets in named.items() if len(sets) == 1 for stored in sets)


def is_given(record: ControlRecord, vouched: frozenset[str] | None) -> bool:
    """Return True for a declared list of the job's first patterns. A later record must not use content of the store."""
    if not isinstance(record, ListRecord) or record.stored is None:
        return False
    return vouched is None or f"{record.id}/{record.of} {record.stored}" in vouched


def _applied(deployment: Deployment, records: Iterable[ControlRecord], *, are_first: bool = False) -> Deployment:
    """Apply records in order, before any event. A refused rule or list is also set aside: the job runs without it."""
    rulebook = deployment.rulebook
    set_aside: list[SetAside] = list(deployment.set_aside)
    accepted: list[ControlRecord] = list(deployment.taken)
    refused: list[RefusedRecord] = []
    ordered = list(records)
    # A list of the job's first rules needs no signature if signed rules name its entries.
    vouched = vouched_lists(ordered, rulebook.trust) if are_first else None
    for record in ordered:
        outcome = rulebook.apply(record, None, is_given=are_first and is_given(record, vouched))
        if outcome.kind != "refused" or isinstance(record, HeartbeatRecord):  # no rule is lost with a heartbeat
            accepted.append(record)
            continue
        refused.append(RefusedRecord(record, outcome, rulebook.epoch, rulebook.content_hash))
        upsert = record.as_upsert() if isinstance(record, RollbackRecord) else record
        if isinstance(upsert, UpsertRecord):
            aside = SetAside(
                upsert.id, upsert.version, outcome.reason, outcome.diagnostics, upsert.source, upsert.status
            )
            set_aside.append(aside)
        elif isinstance(record, ListRecord):
            set_aside.append(SetAside(f"list {record.id}", record.version, outcome.reason, (), ""))
    return replace(deployment, set_aside=tuple(set_aside), taken=tuple(accepted), refused=tuple(refused))


def schema_of(records: Iterable[UpsertRecord]) -> Schema:
    """Join the event types of all valid records, in order. A field that clashes with an earlier one is left out."""
    joined = JoinedTypes()
    last: Checked | None = None
    for record in records:
        checked = checked_text(record.source)
        if checked is last or not checked.ok:
            continue
        last = checked  # rules of one file follow each other, and say the same
        joined.add(checked.schema)
    return joined.schema()


@dataclass
class _JoinedEventType:
    """An event type of a job. Each rule's text declares it with the fields that the rule needs: these are joined."""

    order_field: str  # it orders events of one time
    declarations_count: int = 0  # the number of texts that declare the event type
    names: dict[str, None] = field(default_factory=dict)  # of all fields, in the order of their declaration
    required: Counter[str] = field(default_factory=Counter)  # by field: how many texts say that it is never null
    id_field: str | None = None
    retain_ms: int | None = None  # how long its events are stored, even if no rule needs them
    derived: bool = False  # rules emit its events

    def is_required_by_all(self, name: str) -> bool:
        return name in (TIME_FIELD, self.id_field) or self.required[name] == self.declarations_count


class JoinedTypes:
    """The event types of a job, joined from the texts of its rules, the oldest first."""

    def __init__(self) -> None:
        self._types: dict[str, _JoinedEventType] = {}
        self._columns: dict[str, Type] = {}  # by the name of a field, not nullable; one for all event types

    def add(self, schema: Schema) -> None:
        for event_type in schema.event_types:
            joined = self._types.setdefault(event_type.name, _JoinedEventType(event_type.order_field))
            joined.declarations_count += 1
            joined.derived |= event_type.derived
            if event_type.retain_ms is not None:
                joined.retain_ms = max(event_type.retain_ms, joined.retain_ms or 0)
            for declared in event_type.fields:
                self._add_field(joined, declared)

    def _add_field(self, joined: _JoinedEventType, declared: Field) -> None:
        """Join a field that a rule's text declares to its event type, unless it has another type in the job already."""
        name, type_ = declared.name, declared.type.as_nullable(False)
        column = self._columns.setdefault(name, type_)
        if type_.protected and not column.protected and _may_be_protected(name, column):
            column = self._columns[name] = type_  # protected (`pan`, `sensitive`) for one rule: for all
        joined.required[name] += not declared.type.nullable
        reads_token = bool(column.protected) and _may_be_protected(name, type_)  # a token: a keyed hash
        if type_ != column and not reads_token:  # another type, and the job stores no token here
            return  # the rule will be refused
        if type_.kind is Kind.ID:
            if joined.id_field not in (None, name):  # an event has one id
                return
            joined.id_field = name
        joined.names.setdefault(name)

    def schema(self) -> Schema:
        """Return the joined event types. A field may be null unless all texts that declare the event require it."""
        complete_types = {
            name: joined
            for name, joined in self._types.items()
            if joined.id_field is not None and TIME_FIELD in joined.names  # each event has an id and a time
        }
        # A field that one text requires and another lacks may be null. A rule can copy this null into its own events.
        may_emit_null = any(
            0 < joined.required[name] < joined.declarations_count  # some texts require it, others do not
            for joined in complete_types.values()
            for name in joined.names
            if not joined.is_required_by_all(name)
        )
        return Schema(tuple(self._event_type(name, joined, may_emit_null) for name, joined in complete_types.items()))

    def _event_type(self, name: str, joined: _JoinedEventType, may_emit_null: bool) -> EventType:
        fields = []
        for field_name in joined.names:
            is_identity = field_name in (TIME_FIELD, joined.id_field)
            is_nullable = not joined.is_required_by_all(field_name) or (joined.derived and may_emit_null)
            fields.append(Field(field_name, self._columns[field_name].as_nullable(is_nullable and not is_identity)))
        order_field = joined.order_field if joined.order_field in joined.names else ""
        return EventType(name, tuple(fields), joined.retain_ms, joined.derived, order_field)


def _may_be_protected(name: str, type_: Type) -> bool:
    """Return False for the fields by which an event is identified: their types never change."""
    return type_.kind is not Kind.ID and name != TIME_FIELD


def entries_by_name(lists: Iterable[GivenList]) -> dict[str, str]:
    """Return the name of each list's entries, by the name of the list as `lists` of a record has it."""
    return {f"{each.name}/{each.kind}": given_name(each.kind, each.content.digest) for each in lists}


def with_lists(directory: Path, record: UpsertRecord) -> UpsertRecord:
    """Return the rule with the names of the entries of the declared lists that it reads. Raises: UsageError."""
    list_keys = _asked([record])
    lists, problems = declared_lists(directory) if list_keys else ([], [])
    if problems:
        raise UsageError("; ".join(problems))
    entries = entries_by_name(each for each in lists if (each.name, each.kind) in list_keys)
    return record.model_copy(update={"lists": entries or None})


def first_lists(directory: Path, lists: Sequence[ListRecord], rules: Sequence[UpsertRecord]) -> list[ListRecord]:
    """Return the lists that a job's first signed rules read, or signed changes that have the declared entries."""
    list_keys = _asked(rules) if lists else set()
    first: list[ListRecord] = []
    for record in lists:
        if (record.id, record.of) in list_keys:
            first += _newest_change(directory, record) or [record]
    return first


def _asked(rules: Sequence[UpsertRecord]) -> set[tuple[str, str]]:
    return asked_lists(rule.pattern for rule in deploy(rules).rulebook.deployed())


def _newest_change(directory: Path, record: ListRecord) -> list[ListRecord]:
    """Return the newest change in `signed/` that gives the list the declared entries; empty if no file does."""
    name = change_path(directory, record).name.removesuffix(f".{record.version}.json")  # without its version
    newest: list[ListRecord] = []
    for path in sorted((directory / "signed").glob(f"{name}.*.json")):
        try:
            change = [part for part in read_change(path) if isinstance(part, ListRecord)]  # the parts of one version
        except UsageError:
            continue
        is_newer = not newest or (bool(change) and change[0].version > newest[0].version)
        if change and is_newer and _changed_entries(change) == record.stored:
            newest = change  # the hash of its entries is the hash of the declared ones
    return newest


def _changed_entries(change: Sequence[ListRecord]) -> str | None:
    """Return the name of the entries that a whole change gives a list; None for a change that adds or removes."""
    if any(record.change != "replace" for record in change) or len(change) != change[0].parts:
        return None
    kind = change[0].of
    keys, wrong = keys_of([str(entry) for record in change for entry in record.entries], kind)
    return None if wrong else given_name(kind, Content(kind).changed("replace", keys).digest)
