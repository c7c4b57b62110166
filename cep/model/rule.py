"""Rule files (TOML) and control records (JSON) → checked values; and back to canonical JSON.

An upsert record is a rule file with the text of its pattern, so that a job needs no files. This module does not know
whether the pattern compiles. Times are ISO 8601 with an offset and are stored in one spelling (UTC, milliseconds), so
that equal meanings have equal bytes. rulebook/trust.py defines the statement that `signed` signs:

    {"rule_set": "payments", "previous_version": 1, "previous": HASH,
     "author": {"key": "ed25519:…", "signature": HEX}, "approver": {…}}

Tested by: tests/model/test_rule.py, tests/rulebook/test_trust.py
"""

from __future__ import annotations

import json
import math
import re
from datetime import date, datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from cep.base import limits
from cep.base.text import utc_ms, utc_text
from cep.base.toml import parse_toml
from cep.model.setting_types import Problem, duration_ms, problems_of

_VERSION_MAX = 2**31 - 1


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    def to_json(self) -> bytes:
        """Return canonical JSON: names sorted, nothing that is unset. Equal records have equal bytes."""
        values = self.model_dump(exclude_none=True)
        return json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


class Signature(_Strict):
    """A public key, and its signature."""

    key: Annotated[str, Field(pattern=r"^ed25519:[0-9a-f]{64}$")]
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class Signed(_Strict):
    """Who stands for a record, in which rule set, and which version it changes: 0 and no hash for the first."""

    rule_set: Annotated[str, Field(min_length=1, max_length=limits.RULE_TEXT_CHARS_MAX)]
    previous_version: Annotated[int, Field(ge=0, le=_VERSION_MAX)] = 0
    previous: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    author: Signature
    approver: Signature | None = None


_INT64_MAX = 2**63 - 1
_NAME = r"^[a-z][a-z0-9_]*$"
_LIST_OF = r"^(string|int|prefix|cidr|decimal\(([0-9]|1[0-8])\))$"
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_DURATION = re.compile(r"(\d{1,9}) ?(ms|s|min|h|d)")


def _duration(value: object) -> str:
    parts = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if parts is None or int(parts[1]) == 0:
        raise ValueError("should be a time such as `30 s`, `10 min`, `1 h` or `2 d`, longer than nothing")
    return f"{int(parts[1])} {parts[2]}"


def _time(value: object) -> str:
    if isinstance(value, datetime):
        value = value.isoformat()
    if not isinstance(value, str):
        raise ValueError("should be a time such as 2026-01-31T00:00:00Z")  # noqa: TRY004 pydantic collects ValueError
    return utc_text(utc_ms(value))


def _date(value: object) -> str:
    try:
        return date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise ValueError("should be a date such as 2026-01-31") from None


def _param(value: object) -> object:
    """Check the value of a parameter. Raises: ValueError."""
    if isinstance(value, int):  # a bool is one
        if -_INT64_MAX <= value <= _INT64_MAX:
            return value
        raise ValueError("is over 64 bits")
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and len(value) <= limits.RULE_TEXT_CHARS_MAX:
        return value
    if isinstance(value, list) and len(value) <= limits.LIST_PARAM_ENTRIES_MAX:
        if all(isinstance(entry, int | float | str) and not isinstance(entry, bool) for entry in value):
            return [entry if isinstance(entry, str) else _param(entry) for entry in value]  # finite, and 64 bits
        raise ValueError("should be a list of numbers or texts")
    raise ValueError(
        "should be a number, true, false, a short text such as an enum's symbol or `10 min`, or a list of at most "
        f"{limits.LIST_PARAM_ENTRIES_MAX} numbers and texts"
    )


def _message(value: str) -> str:
    rest = _PLACEHOLDER.sub("", value)
    if "{" in rest or "}" in rest:
        raise ValueError("a brace stands alone; write {name} with the name of a measure, or {key}")
    return value


UtcTime = Annotated[str, BeforeValidator(_time), WithJsonSchema({"type": "string", "format": "date-time"})]
Date = Annotated[str, BeforeValidator(_date), WithJsonSchema({"type": "string", "format": "date"})]
DurationText = Annotated[str, BeforeValidator(_duration), WithJsonSchema({"type": "string", "examples": ["10 min"]})]
ParamValue = Annotated[
    bool | int | float | str | list[int | float | str],
    PlainValidator(_param),
    WithJsonSchema({"type": ["boolean", "integer", "number", "string", "array"]}),
]
RuleId = Annotated[str, Field(pattern=_NAME, max_length=limits.RULE_ID_CHARS_MAX)]
Version = Annotated[int, Field(ge=1, le=2**31 - 1)]  # an int32 on every alert
ShortText = Annotated[str, Field(min_length=1, max_length=limits.RULE_TEXT_CHARS_MAX)]
Source = Annotated[str, Field(min_length=1, max_length=limits.SOURCE_BYTES_MAX)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class RuleFields(_Strict):
    """The common fields of a rule file and an upsert record.

    `priority` orders the alerts of one event, the smallest first; only the first rule of an `exclusive` group fires.
    `suppress` suppresses the rule's alerts on a key for this time after an alert. `escalate` names a number of the
    alert: an alert with a greater one than before is sent all the same. `on_update` decides about the runs of the
    previous version: `drain` lets them finish, `restart` drops them, `carry` hands them over. `author` and
    `approved_by` are for publishers; they do not affect alerts.
    """

    id: RuleId
    version: Version
    pattern: Annotated[str, Field(pattern=_NAME)]
    status: Literal["draft", "shadow", "live", "retired"]
    severity: Literal["low", "medium", "high", "critical"]
    priority: Annotated[int, Field(ge=0, le=limits.RULE_PRIORITY_MAX)] = 100
    score: Annotated[int, Field(ge=0, le=limits.RULE_SCORE_MAX)] = 0
    owner: ShortText
    message: Annotated[ShortText, BeforeValidator(lambda v: _message(v) if isinstance(v, str) else v)]
    params: Annotated[dict[str, ParamValue], Field(max_length=limits.PARAMS_MAX)] = {}
    runbook: ShortText | None = None
    review_date: Date | None = None
    effective_at: UtcTime | None = None
    on_update: Literal["drain", "restart", "carry"] = "drain"
    exclusive: Annotated[str, Field(pattern=_NAME, max_length=limits.RULE_ID_CHARS_MAX)] | None = None
    suppress: DurationText | None = None
    escalate: Annotated[str, Field(pattern=_NAME)] | None = None
    author: ShortText | None = None
    approved_by: ShortText | None = None

    @property
    def effective_ms(self) -> int | None:
        return None if self.effective_at is None else utc_ms(self.effective_at)

    @property
    def suppress_ms(self) -> int:
        return 0 if self.suppress is None else duration_ms(self.suppress)

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The names in braces of the message, in order, with repetitions."""
        return tuple(_PLACEHOLDER.findall(self.message))


class RuleFile(RuleFields):
    """One TOML of rules/. `file` is the pattern file, relative to the rule file's folder."""

    file: ShortText


class Changes(_Strict):
    """The version that a record changes, and its hash (rulebook/ledger.py); 0 and none for the first."""

    version: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    hash: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""


class UpsertRecord(RuleFields):
    """Deploy a version of a rule. `source` is the pattern's text without imports.

    Here and in other records, `changes` is the version that the sender wanted to change. A job with another version
    refuses the record, so that two people cannot overwrite each other's changes. `by` is the sender, `signed` has the
    signatures. A random `nonce` makes the record's hash random, so that erased content cannot be guessed from it.
    `lists` has the hash of the entries of each declared list that the pattern reads: the signatures then cover them.
    """

    kind: Literal["upsert"] = "upsert"
    lists: Annotated[dict[str, Sha256], Field(max_length=limits.LISTS_MAX)] | None = None
    changes: Changes | None = None
    by: ShortText | None = None
    reason: ShortText | None = None
    nonce: Nonce | None = None
    signed: Signed | None = None
    source: Source


class _Change(_Strict):
    """The fields of a record that changes one thing. `changes`: the version that the sender wanted to change; `by`: the
    sender; `nonce`: random, so that erased content cannot be guessed from hashes; `signed`: the signatures."""

    id: RuleId
    version: Version
    effective_at: UtcTime | None = None
    changes: Changes | None = None
    by: ShortText | None = None
    reason: ShortText | None = None
    nonce: Nonce | None = None
    signed: Signed | None = None

    @property
    def effective_ms(self) -> int | None:
        return None if self.effective_at is None else utc_ms(self.effective_at)


class RetireRecord(_Change):
    """End a rule. `version` counts on from the versions of the rule, so that an older upsert cannot bring it back."""

    kind: Literal["retire"] = "retire"


class RollbackRecord(_Change):
    """Put an earlier version in force again, as a new one. `rule` is the earlier record, with its signatures.

    A job that asks for signatures accepts a `rule` that equals the version it had accepted then, or that is signed.
    """

    kind: Literal["rollback"] = "rollback"
    to_version: Version
    on_update: Literal["drain", "restart", "carry"] = "drain"  # open runs: finish, end, or go on in the new version
    rule: UpsertRecord

    @model_validator(mode="after")
    def _is_one_rule(self) -> Self:
        if (self.rule.id, self.rule.version) != (self.id, self.to_version):
            raise ValueError(f"`rule` should be version {self.to_version} of {self.id}")
        if self.to_version >= self.version:
            raise ValueError(f"`version` should be above {self.to_version}: it counts on")
        return self

    def as_upsert(self) -> UpsertRecord:
        """Return the earlier version under the new number."""
        new_values = {
            "version": self.version,
            "effective_at": self.effective_at,
            "on_update": self.on_update,
            **dict.fromkeys(("changes", "by", "reason", "nonce", "signed")),  # None: they belong to the earlier record
        }
        return self.rule.model_copy(update=new_values)


class PauseRecord(_Change):
    """Stop a rule until it is resumed; its runs are dropped. Pauses and resumes have versions of their own."""

    kind: Literal["pause"] = "pause"


class ResumeRecord(_Change):
    """Resume a paused rule, with the version that is then in force."""

    kind: Literal["resume"] = "resume"


class SnoozeRecord(_Change):
    """Hold back a rule's alerts (of one key, if `key` is there) until a date; a past date ends the snooze.

    Snoozes of a rule and key have versions of their own.
    """

    kind: Literal["snooze"] = "snooze"
    until: UtcTime
    key: ShortText | None = None
    by: ShortText  # as in other records, but required

    @property
    def until_ms(self) -> int:
        return utc_ms(self.until)


ListEntry = int | Annotated[float, Field(allow_inf_nan=False)] | str  # what has no JSON cannot be signed


class ListRecord(_Change):
    """Change the content of a list. Versions of a list count up by one; `add` and `remove` change the previous version,
    `replace` gives all entries and needs no previous version.

    A version may be divided into `parts` records, each with its `part` (from 1); it applies once all have arrived.
    `whole` is the hash of the entries of all parts; it keeps the parts of two senders apart. `stored` stands in place
    of `entries`: it is the hash of entries that a job has in its store. Only jobs write it, for declared lists.
    """

    kind: Literal["list"] = "list"
    of: Annotated[str, Field(pattern=_LIST_OF)]
    change: Literal["replace", "add", "remove"]
    entries: Annotated[list[ListEntry], Field(max_length=limits.LIST_ENTRIES_MAX)] = []
    part: Annotated[int, Field(ge=1, le=limits.LIST_PARTS_MAX)] = 1
    parts: Annotated[int, Field(ge=1, le=limits.LIST_PARTS_MAX)] = 1
    whole: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    stored: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _is_one_part(self) -> Self:
        if self.part > self.parts:
            raise ValueError(f"`part` {self.part} is above `parts` {self.parts}")
        if self.stored is not None and self.entries:
            raise ValueError("`entries` and `stored` exclude each other")
        return self


class HeartbeatRecord(_Strict):
    """Declare that no event before `event_time` will come: moves the watermark while the sources are idle.

    It counts once all earlier records of its source have been matched. A heartbeat ahead of the job's clock by more
    than `ahead_max` is refused. So is an unsigned one in a job with signed changes; `cep job heartbeat` and `cep rules
    sign --heartbeat` sign it.
    """

    kind: Literal["heartbeat"] = "heartbeat"
    event_time: UtcTime
    signed: Signed | None = None

    @property
    def event_time_ms(self) -> int:
        return utc_ms(self.event_time)


RuleChange = UpsertRecord | RetireRecord | RollbackRecord | PauseRecord | ResumeRecord
VersionedRecord = RuleChange | SnoozeRecord | ListRecord  # they change something, and may be refused
ControlRecord = VersionedRecord | HeartbeatRecord

_MODELS: tuple[type[BaseModel], ...] = get_args(ControlRecord)
_KINDS = tuple(str(model.model_fields["kind"].default) for model in _MODELS)
_SOURCE: TypeAdapter[str] = TypeAdapter(Source, config=ConfigDict(strict=True))
_ANY_SOURCE = "-"
_SOURCES_CACHED = 16
_RECORDS: TypeAdapter[ControlRecord] = TypeAdapter(Annotated[ControlRecord, Field(discriminator="kind")])
_RECORD_NAMES = tuple(sorted({name for model in _MODELS for name in model.model_fields}))
_FILE_NAMES = tuple(RuleFile.model_fields)


def name_problem(noun: str, name: str) -> str | None:
    """Return why a rule or a control record cannot name a pattern or a list like this; None if it can."""
    if re.fullmatch(_NAME, name) and len(name) <= limits.RULE_ID_CHARS_MAX:
        return None
    return (
        f"no rule can name the {noun} `{name[: limits.RULE_ID_CHARS_MAX]}`: a name has at most "
        f"{limits.RULE_ID_CHARS_MAX} small letters, digits and `_`, and begins with a letter; rename it"
    )


def parse_control(data: bytes | str) -> tuple[ControlRecord | None, list[Problem]]:
    """Read one record of the control topic. Returns the record, or None and every problem found."""
    size = len(data) if isinstance(data, bytes) else len(data.encode())
    if size > limits.CONTROL_RECORD_BYTES_MAX:
        return None, [Problem("$", f"{size} bytes are over the limit of {limits.CONTROL_RECORD_BYTES_MAX}")]
    try:
        return _RECORDS.validate_json(data), []
    except ValidationError as error:
        return None, problems_of(error, _RECORD_NAMES, _KINDS)


def topic_key(record: ControlRecord) -> str:
    """Return the key of a record in the control topic, for other senders: `cep rules publish` adds a random end to it.

    Compaction keeps the last record of each key, and a job that reads the topic from its start must get the same rules.
    A shadow version (on trial) has another key than the live version of its rule. Each record of a list has its own
    key, because the entries of a list are the sum of its records, until a replacement makes earlier ones unnecessary.
    Each signed record has its own key too: compaction must not remove it in favour of a later record that is refused.
    """
    key = _line_key(record)
    if isinstance(record, HeartbeatRecord | ListRecord) or record.signed is None:
        return key  # a later heartbeat replaces an earlier one, and the key of a list has its version already
    return f"{key}@{record.version}"


def _line_key(record: ControlRecord) -> str:
    """Return the key of a record's item: the rule, its shadow, its pause, its snooze, or one part of a list."""
    match record:
        case UpsertRecord(id=name, status="shadow"):
            return f"{name}/shadow"
        case UpsertRecord(id=name) | RetireRecord(id=name):
            return name
        case RollbackRecord(id=name):
            return f"{name}/shadow" if record.rule.status == "shadow" else name
        case PauseRecord(id=name) | ResumeRecord(id=name):
            return f"{name}/pause"
        case SnoozeRecord(id=name, key=key):
            return f"{name}/snooze" if key is None else f"{name}/snooze/{key}"
        case ListRecord(id=name, of=kind, version=version, part=part):
            return f"list:{name}/{kind}/{version}/{part}"
        case HeartbeatRecord():
            return "heartbeat"


def parse_rule_file(text: bytes | str) -> tuple[RuleFile | None, list[Problem]]:
    """Read one TOML of rules/. Returns the rule, or None and every problem found."""
    try:
        table = parse_toml(text, limits.RULE_FILE_BYTES_MAX)
    except ValueError as error:
        return None, [Problem("$", f"not TOML: {error}")]
    try:
        return RuleFile.model_validate(table), []
    except ValidationError as error:
        return None, problems_of(error, _FILE_NAMES)


def upsert_of(rule: RuleFile, source: str) -> UpsertRecord:
    """Make the record that deploys a rule file whose pattern text, with nothing left to import, is `source`."""
    fields = rule.model_dump(exclude={"file"})
    if not _is_source(source):
        return UpsertRecord(source=source, **fields)  # raises
    return UpsertRecord(source=_ANY_SOURCE, **fields).model_copy(update={"source": source})


@lru_cache(_SOURCES_CACHED)
def _is_source(text: str) -> bool:
    """Check the text of a record. Its characters are counted, which is not to be done for each rule of a large file."""
    try:
        return _SOURCE.validate_python(text) == text
    except ValidationError:
        return False


def control_json_schema() -> dict[str, Any]:
    """Return the JSON schema of a control record, for other publishers."""
    return _RECORDS.json_schema()


def rule_file_json_schema() -> dict[str, Any]:
    """JSON schema of a rule file, for editors."""
    return RuleFile.model_json_schema()
