"""Rule files and control records: strict reading, one spelling, one hash for one meaning."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from cep.base.limits import CONTROL_RECORD_BYTES_MAX, SOURCE_BYTES_MAX
from cep.base.text import utc_ms, utc_text
from cep.model import rule as control

RULE = """
id = "card_testing"
pattern = "card_testing"
file = "../patterns/cards.cep"
version = 2
status = "live"
severity = "high"
owner = "cards"
message = "{probes} probes on {key}"
review_date = 2027-01-01
effective_at = 2026-03-01T01:00:00+01:00
[params]
tries = 4
small = 2.50
"""

UPSERT: dict[str, Any] = {
    "kind": "upsert", "id": "r", "version": 1, "pattern": "p", "status": "live", "severity": "low", "owner": "o",
    "message": "m", "source": "event …",
}  # fmt: skip


def upsert(**changes: Any) -> control.UpsertRecord:
    record, problems = control.parse_control(json.dumps({**UPSERT, **changes}))
    assert isinstance(record, control.UpsertRecord), problems
    return record


def test_reads_a_rule_file() -> None:
    rule, problems = control.parse_rule_file(RULE)
    assert problems == []
    assert rule is not None
    assert rule.params == {"tries": 4, "small": 2.5}
    assert rule.effective_at == "2026-03-01T00:00:00.000Z"
    assert rule.review_date == "2027-01-01"
    assert rule.placeholders == ("probes", "key")
    assert (rule.priority, rule.score, rule.on_update) == (100, 0, "drain")


def test_every_problem_of_a_file_is_reported_with_its_path() -> None:
    text = RULE.replace("version = 2", 'version = "2"').replace("owner", "owners") + "bad = {}\nworse = [true]\n"
    rule, problems = control.parse_rule_file(text)
    assert rule is None
    assert {str(p) for p in problems} == {
        "$.version: input should be a valid integer",
        "$.owner: is missing",
        (
            "$.params.bad: should be a number, true, false, a short text such as an enum's symbol or `10 min`, or a "
            "list of at most 1000 numbers and texts"
        ),
        "$.params.worse: should be a list of numbers or texts",
        "$.owners: no such name here; did you mean `owner`?",
    }


@pytest.mark.parametrize(
    ("change", "path", "fragment"),
    [
        ({"effective_at": "2026-01-01T00:00:00"}, "$.effective_at", "offset"),
        ({"effective_at": 5}, "$.effective_at", "time such as"),
        ({"effective_at": "1900-01-01T00:00:00Z"}, "$.effective_at", "1970"),
        ({"message": "{a"}, "$.message", "brace"),
        ({"message": ""}, "$.message", "at least 1"),
        ({"severity": "urgent"}, "$.severity", "'low'"),
        ({"version": 0}, "$.version", "greater than or equal to 1"),
        ({"version": True}, "$.version", "integer"),
        ({"id": "Bad Id"}, "$.id", "pattern"),
        ({"params": {"x": None}}, "$.params.x", "number"),
        ({"params": {"x": 2**70}}, "$.params.x", "64 bits"),
        ({"kind": "delete"}, "$", "upsert"),
        ({"review_date": "soon"}, "$.review_date", "date"),
        ({"file": "x.cep"}, "$.file", "no such name"),
    ],
)
def test_a_bad_record_names_the_place(change: dict[str, Any], path: str, fragment: str) -> None:
    record, problems = control.parse_control(json.dumps({**UPSERT, **change}))
    assert record is None
    assert [p.path for p in problems] == [path]
    assert fragment in problems[0].message


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"null"])
def test_what_is_no_record_is_a_problem(data: bytes) -> None:
    record, problems = control.parse_control(data)
    assert record is None
    assert problems


def test_a_record_over_the_limit_is_refused_before_it_is_read() -> None:
    record, problems = control.parse_control(b" " * (CONTROL_RECORD_BYTES_MAX + 1))
    assert record is None
    assert str(CONTROL_RECORD_BYTES_MAX) in problems[0].message


def test_the_other_kinds() -> None:
    retire, _ = control.parse_control(
        '{"kind": "retire", "id": "r", "version": 3, "effective_at": "2026-01-01T00:00:00Z"}'
    )
    assert retire == control.RetireRecord(id="r", version=3, effective_at="2026-01-01T00:00:00Z")
    assert isinstance(retire, control.RetireRecord)
    assert retire.effective_ms == 1_767_225_600_000
    heartbeat, _ = control.parse_control('{"kind": "heartbeat", "event_time": "1970-01-01T00:00:01.5Z"}')
    assert isinstance(heartbeat, control.HeartbeatRecord)
    assert heartbeat.event_time_ms == 1_500


def test_a_file_becomes_a_record() -> None:
    rule, _ = control.parse_rule_file(RULE)
    assert rule is not None
    record = control.upsert_of(rule, "text")
    assert record.source == "text"
    assert control.parse_control(record.to_json()) == (record, [])


@pytest.mark.parametrize("text", ["", "x" * (SOURCE_BYTES_MAX + 1), "a\ud800"])
def test_a_text_that_no_record_may_have_is_refused_each_time(text: str) -> None:
    rule, _ = control.parse_rule_file(RULE)
    assert rule is not None
    for _ in range(2):
        with pytest.raises(ValidationError, match="source"):
            control.upsert_of(rule, text)
    record = control.upsert_of(rule, "text")
    whole = control.UpsertRecord(source="text", **rule.model_dump(exclude={"file"}))
    assert (record, record.model_fields_set, list(dict(record))) == (whole, whole.model_fields_set, list(dict(whole)))


def test_the_schemas_can_be_published() -> None:
    assert json.loads(json.dumps(control.control_json_schema()))["discriminator"]["propertyName"] == "kind"
    assert control.rule_file_json_schema()["additionalProperties"] is False


@given(st.integers(0, 253_402_300_799_999))
def test_times_survive_their_spelling(time_ms: int) -> None:
    assert utc_ms(utc_text(time_ms)) == time_ms


PARAMS = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.one_of(st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    max_size=4,
)


@given(st.lists(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()), max_size=3))
@example([float("nan")])
def test_a_list_of_parameters_is_refused_or_survives_its_json(entries: list[Any]) -> None:
    record, problems = control.parse_control(json.dumps({**json.loads(upsert().to_json()), "params": {"x": entries}}))
    assert problems if record is None else control.parse_control(record.to_json())[0] == record


@given(PARAMS, st.sampled_from(["drain", "restart"]), st.integers(1, 1_000))
def test_records_survive_their_json(params: dict[str, Any], on_update: str, version: int) -> None:
    record = upsert(params=params, on_update=on_update, version=version)
    again, problems = control.parse_control(record.to_json())
    assert problems == []
    assert again == record
    assert again.to_json() == record.to_json()
