"""Rule files (TOML) and control records (JSON) → checked values; and back to canonical JSON.

A rule file says which pattern is deployed, with which parameters. An upsert record is the same with the pattern's text
inside, so that a job needs no files: it is what the control topic carries. Nothing here knows whether the pattern
compiles; the rulebook does.

Unknown names and wrong types are problems, never ignored. Times are ISO 8601 with an offset and are kept in one
spelling (UTC, milliseconds), so that equal meanings have equal bytes.
Tested by: tests/model/test_rule.py
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)

from cep.base.limits import (
    CONTROL_RECORD_BYTES_MAX,
    PARAMS_MAX,
    RULE_FILE_BYTES_MAX,
    RULE_ID_CHARS_MAX,
    RULE_PRIORITY_MAX,
    RULE_SCORE_MAX,
    RULE_TEXT_CHARS_MAX,
    SOURCE_BYTES_MAX,
)
from cep.model.problem import Problem, problems_of

_INT64_MAX = 2**63 - 1
_TIME_MS_LAST = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last that datetime can write
_NAME = r"^[a-z][a-z0-9_]*$"
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def utc_ms(text: str) -> int:
    """Milliseconds UTC of an ISO 8601 time with an offset. Raises ValueError with a sentence for the author."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"{text!r} is not a time with an offset such as 2026-01-31T00:00:00Z")
    # Integer arithmetic: a float of seconds would be off by a millisecond for some times.
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    time_ms = (delta.days * 86_400 + delta.seconds) * 1_000 + delta.microseconds // 1_000
    if not 0 <= time_ms <= _TIME_MS_LAST:
        raise ValueError(f"{text!r} is outside the years 1970 to 9999 (UTC)")
    return time_ms


def utc_text(time_ms: int) -> str:
    """The one spelling of a time: 2026-01-31T00:00:00.000Z. Inverse of `utc_ms`."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
    if isinstance(value, int):  # a bool is one
        if -_INT64_MAX <= value <= _INT64_MAX:
            return value
        raise ValueError("is over 64 bits")
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and len(value) <= RULE_TEXT_CHARS_MAX:
        return value
    raise ValueError("should be a number, true, false, or a short text such as an enum's symbol or `10 min`")


def _message(value: str) -> str:
    rest = _PLACEHOLDER.sub("", value)
    if "{" in rest or "}" in rest:
        raise ValueError("a brace stands alone; write {name} with the name of a measure, or {key}")
    return value


UtcTime = Annotated[str, BeforeValidator(_time), WithJsonSchema({"type": "string", "format": "date-time"})]
Date = Annotated[str, BeforeValidator(_date), WithJsonSchema({"type": "string", "format": "date"})]
ParamValue = Annotated[
    bool | int | float | str,
    PlainValidator(_param),
    WithJsonSchema({"type": ["boolean", "integer", "number", "string"]}),
]
RuleId = Annotated[str, Field(pattern=_NAME, max_length=RULE_ID_CHARS_MAX)]
Version = Annotated[int, Field(ge=1, le=2**31 - 1)]  # an int32 on every alert
ShortText = Annotated[str, Field(min_length=1, max_length=RULE_TEXT_CHARS_MAX)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class RuleFields(_Strict):
    """What a rule file and an upsert record have in common.

    `priority` orders the alerts of one event, the smallest first. `on_update` says what becomes of the runs of the
    version before: `drain` lets them finish, `restart` drops them.
    """

    id: RuleId
    version: Version
    pattern: Annotated[str, Field(pattern=_NAME)]
    status: Literal["draft", "shadow", "live", "retired"]
    severity: Literal["low", "medium", "high", "critical"]
    priority: Annotated[int, Field(ge=0, le=RULE_PRIORITY_MAX)] = 100
    score: Annotated[int, Field(ge=0, le=RULE_SCORE_MAX)] = 0
    owner: ShortText
    message: Annotated[ShortText, BeforeValidator(lambda v: _message(v) if isinstance(v, str) else v)]
    params: Annotated[dict[str, ParamValue], Field(max_length=PARAMS_MAX)] = {}
    runbook: ShortText | None = None
    review_date: Date | None = None
    effective_at: UtcTime | None = None
    on_update: Literal["drain", "restart"] = "drain"

    @property
    def effective_ms(self) -> int | None:
        return None if self.effective_at is None else utc_ms(self.effective_at)

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The names in braces of the message, in order, with repetitions."""
        return tuple(_PLACEHOLDER.findall(self.message))


class RuleFile(RuleFields):
    """One TOML of rules/. `file` is the pattern file, relative to the rule file's folder."""

    file: ShortText


class UpsertRecord(RuleFields):
    """Deploy a version of a rule. `source` is the pattern's text with nothing left to import."""

    kind: Literal["upsert"] = "upsert"
    source: Annotated[str, Field(min_length=1, max_length=SOURCE_BYTES_MAX)]

    @property
    def content_hash(self) -> str:
        """SHA-256 of what decides the alerts: equal for two spellings of one rule, whoever owns it, whenever it starts.

        500 and 500.0 are one meaning; text of the pattern counts as it is.
        """
        params = {name: _one_number(value) for name, value in self.params.items()}
        meaning = {
            name: getattr(self, name)
            for name in ("pattern", "source", "status", "severity", "priority", "score", "message")
        }
        return hashlib.sha256(_canonical({**meaning, "params": params})).hexdigest()

    def to_json(self) -> bytes:
        return record_json(self)


class RetireRecord(_Strict):
    """End a rule. `version` counts on from the versions of the rule, so that an older upsert cannot bring it back."""

    kind: Literal["retire"] = "retire"
    id: RuleId
    version: Version
    effective_at: UtcTime | None = None

    @property
    def effective_ms(self) -> int | None:
        return None if self.effective_at is None else utc_ms(self.effective_at)

    def to_json(self) -> bytes:
        return record_json(self)


class HeartbeatRecord(_Strict):
    """No event before `event_time` is to be expected: moves the watermark while the sources are idle."""

    kind: Literal["heartbeat"] = "heartbeat"
    event_time: UtcTime

    @property
    def event_time_ms(self) -> int:
        return utc_ms(self.event_time)

    def to_json(self) -> bytes:
        return record_json(self)


ControlRecord = UpsertRecord | RetireRecord | HeartbeatRecord

_KINDS = ("upsert", "retire", "heartbeat")
_RECORDS: TypeAdapter[ControlRecord] = TypeAdapter(Annotated[ControlRecord, Field(discriminator="kind")])
_RECORD_NAMES = tuple(sorted({*UpsertRecord.model_fields, *RetireRecord.model_fields, *HeartbeatRecord.model_fields}))
_FILE_NAMES = tuple(RuleFile.model_fields)


def parse_control(data: bytes | str) -> tuple[ControlRecord | None, list[Problem]]:
    """Read one record of the control topic. Returns the record, or None and every problem found."""
    size = len(data) if isinstance(data, bytes) else len(data.encode())
    if size > CONTROL_RECORD_BYTES_MAX:
        return None, [Problem("$", f"{size} bytes are over the limit of {CONTROL_RECORD_BYTES_MAX}")]
    try:
        return _RECORDS.validate_json(data), []
    except ValidationError as error:
        return None, problems_of(error, _RECORD_NAMES, _KINDS)


def parse_rule_file(text: str) -> tuple[RuleFile | None, list[Problem]]:
    """Read one TOML of rules/. Returns the rule, or None and every problem found."""
    if len(text) > RULE_FILE_BYTES_MAX:
        return None, [Problem("$", f"{len(text)} characters are over the limit of {RULE_FILE_BYTES_MAX}")]
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return None, [Problem("$", f"not TOML: {error}")]
    try:
        return RuleFile.model_validate(table), []
    except ValidationError as error:
        return None, problems_of(error, _FILE_NAMES)


def upsert_of(rule: RuleFile, source: str) -> UpsertRecord:
    """The record that deploys a rule file whose pattern text, with nothing left to import, is `source`."""
    return UpsertRecord(source=source, **rule.model_dump(exclude={"file"}))


def record_json(record: ControlRecord) -> bytes:
    """Canonical JSON: names sorted, nothing that is unset. Equal records have equal bytes."""
    return _canonical(record.model_dump(exclude_none=True))


def control_json_schema() -> dict[str, Any]:
    """JSON schema of a control record, for those who publish rules from elsewhere."""
    return _RECORDS.json_schema()


def rule_file_json_schema() -> dict[str, Any]:
    """JSON schema of a rule file, for editors."""
    return RuleFile.model_json_schema()


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _one_number(value: bool | float | str) -> bool | float | str:
    return int(value) if isinstance(value, float) and value.is_integer() else value
