"""Records of other names and forms give the same columns as plain records."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import UsageError
from cep.columnar.convert import Written
from cep.columnar.decode import Decoded, decode_json, decode_table, in_row_order
from cep.columnar.mapping import PLAIN, FieldMapping, check_fields, mapping_of
from cep.lang.load import load_text
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import _decoded_columns
from tests.columnar.common import GOOD, ONE, TWO

RECORDS = [
    GOOD,
    {
        **GOOD,
        "tx_id": "t2",
        "amount": "7.10",
        "lat": None,
        "card_id": "c2",
        "event_time": "2026-03-01T10:00:00.5+02:00",
    },
    {**GOOD, "tx_id": "t3", "amount": 5, "status": "approved", "online": False, "retries": 0, "took": None},
]


def as_json(records: list[dict[str, Any]], mapping: FieldMapping = PLAIN) -> Decoded:
    return decode_json(ONE, pa.array([orjson.dumps(r) for r in records], pa.large_binary()), mapping)


def as_table(records: list[dict[str, Any]], mapping: FieldMapping = PLAIN) -> Decoded:
    texts = [{**r, "amount": str(r["amount"])} if "amount" in r else r for r in records]
    return decode_table(ONE, pa.Table.from_pylist(texts), str, mapping)


def as_rows(records: list[dict[str, Any]], mapping: FieldMapping = PLAIN) -> Decoded:
    """Decode rows of Python objects, as Avro and Protobuf give them."""
    form = RecordFormat(mapping=mapping)
    ((decoded, _),) = _decoded_columns(ONE, form.mapping, [{**r} for r in records])
    return decoded


def fields_of(decoded: Decoded) -> dict[str, Any]:
    assert not decoded.poison
    return {
        "ids": decoded.event_id.to_pylist(),
        "types": decoded.event_type.tolist(),
        "times": decoded.time_ms.tolist(),
        **{name: column.to_pylist() for name, column in decoded.columns.items()},
    }


@pytest.mark.parametrize("read", [as_json, as_rows])
def test_values_inside_of_others_are_those_outside(read: Callable[..., Decoded]) -> None:
    records = [{**r, "amount": str(r["amount"])} for r in RECORDS]
    expected = fields_of(read(records))
    renamed = [{f"{name}_x": value for name, value in r.items()} for r in records]
    flat = mapping_of([f"{name}={name}_x" for name in GOOD])
    assert fields_of(read(renamed, flat)) == expected
    envelope = [{"payload": {"op": "c", "after": r}, "amount": -1} for r in records]
    assert fields_of(read(envelope, mapping_of(["*=payload.after"]))) == expected
    mixed: list[dict[str, Any]] = [
        {"card": {"id": r["card_id"], "pin": 1}, **{n: v for n, v in r.items() if n != "card_id"}} for r in records
    ]
    assert fields_of(read(mixed, mapping_of(["card_id=card.id"]))) == expected


def test_columns_of_a_table_are_structs() -> None:
    expected = fields_of(as_table(RECORDS))
    envelope = [{"payload": {"after": {**r, "amount": str(r["amount"])}}} for r in RECORDS]
    assert fields_of(as_table(envelope, mapping_of(["*=payload.after"]))) == expected
    dotted = [{("card.id" if name == "card_id" else name): value for name, value in r.items()} for r in RECORDS]
    assert fields_of(as_table(dotted, mapping_of(['card_id="card.id"']))) == expected


def test_an_envelope_without_a_row_is_set_aside_alone() -> None:
    records: list[dict[str, Any]] = [{"after": GOOD}, {"after": None}, {}, {"after": {**GOOD, "tx_id": "t2"}}]
    decoded = as_json(records, mapping_of(["*=after"]))
    assert decoded.event_id.to_pylist() == ["t1", "t2"]
    assert {p.code for p in decoded.poison} == {"missing_field"}


def test_a_field_may_be_fixed_and_a_type_come_from_any_field() -> None:
    record = {"kind": "login", "login_id": "l1", "at": "2026-03-01T00:00:00Z"}
    mapping = mapping_of(["event_type=kind", "event_time=at"], ["device=d1", "card_id=c9"])
    decoded = decode_json(TWO, pa.array([orjson.dumps(record)], pa.large_binary()), mapping)
    assert (decoded.event_type.tolist(), decoded.columns["device"].to_pylist()) == ([1], ["d1"])
    assert decoded.columns["card_id"].to_pylist() == ["c9"]
    fixed = mapping_of(["event_time=at"], ["device=d1", "event_type=login"])
    assert decode_json(TWO, pa.array([orjson.dumps(record)], pa.large_binary()), fixed).event_type.tolist() == [1]
    wrong = as_json([GOOD], mapping_of(fixed=["amount=much"]))
    assert [p.reason for p in wrong.poison] == ["field `amount`: 'much' is not a value of type decimal(2)"]


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=6))
def test_times_of_any_unit_are_the_same_moments(moments_ms: list[int]) -> None:
    expected = fields_of(as_json([{**GOOD, "event_time": ms} for ms in moments_ms]))["times"]
    for unit, factor in (("us", 1_000), ("ns", 1_000_000), ("ms", 1)):
        mapping = mapping_of(time=Written(unit=unit))
        records = [{**GOOD, "event_time": ms * factor} for ms in moments_ms]
        assert (
            fields_of(as_json(records, mapping))["times"] == fields_of(as_table(records, mapping))["times"] == expected
        )
    seconds = mapping_of(time=Written(unit="s"))
    records = [{**GOOD, "event_time": ms / 1_000} for ms in moments_ms]
    assert fields_of(as_json(records, seconds))["times"] == fields_of(as_table(records, seconds))["times"] == expected
    whole = [{**GOOD, "event_time": ms // 1_000} for ms in moments_ms]
    assert fields_of(as_json(whole, seconds))["times"] == [ms // 1_000 * 1_000 for ms in moments_ms]


@pytest.mark.parametrize(
    ("text", "written", "moment"),
    [
        ("01.03.2026 10:00:00", Written(form="%d.%m.%Y %H:%M:%S", zone="Europe/Berlin"), "2026-03-01T09:00:00+00:00"),
        ("2026-07-01 10:00:00", Written(zone="Europe/Berlin"), "2026-07-01T08:00:00+00:00"),
        ("2026-07-01T10:00:00Z", Written(zone="Europe/Berlin"), "2026-07-01T10:00:00+00:00"),
        ("20260301100000+0100", Written(form="%Y%m%d%H%M%S%z"), "2026-03-01T09:00:00+00:00"),
        ("1772323200.250", Written(unit="s"), "2026-03-01T00:00:00.250+00:00"),
        (
            "2026-10-25 02:30:00",
            Written(zone="Europe/Berlin"),
            "2026-10-25T00:30:00+00:00",
        ),  # the first one
    ],
)
def test_times_in_other_forms(text: str, written: Written, moment: str) -> None:
    at_ms = int(datetime.fromisoformat(moment).timestamp() * 1_000)
    mapping = mapping_of(time=written)
    records = [{**GOOD, "event_time": text}]
    assert fields_of(as_json(records, mapping))["times"] == fields_of(as_table(records, mapping))["times"] == [at_ms]


def test_a_timestamp_without_a_zone_is_of_the_zone_that_is_given() -> None:
    bare = datetime(2026, 7, 1, 10)  # noqa: DTZ001 that is the point
    decoded = as_table([{**GOOD, "event_time": bare}], mapping_of(time=Written(zone="Europe/Berlin")))
    assert decoded.time_ms.tolist() == [int(datetime(2026, 7, 1, 8, tzinfo=UTC).timestamp() * 1_000)]


@pytest.mark.parametrize("read", [as_json, as_table, as_rows])
def test_minor_units(read: Callable[..., Decoded]) -> None:
    records = [{**GOOD, "amount": amount} for amount in ("1234", "-5")]
    mapping = mapping_of(minor=["amount"])
    assert fields_of(read(records, mapping))["amount"] == [1_234, -5]
    assert fields_of(as_json([{**GOOD, "amount": 1_234}], mapping))["amount"] == [1_234]
    assert len(as_json([{**GOOD, "amount": 12.5}], mapping).poison) == 1


def test_a_mapping_that_cannot_be_meant_is_refused() -> None:
    def refused(*columns: str, **more: Any) -> str:
        with pytest.raises(UsageError) as error:
            check_fields(mapping_of(columns, **more), ONE)
        return str(error.value)

    assert "no field `crd_id`; did you mean `card_id`?" in refused("crd_id=cc")
    assert "write FIELD=PATH" in refused("card_id")
    assert "names `lat` twice" in refused("lat=a", "lat=b")
    assert "both fixed and read" in refused("lat=a", fixed=["lat=1"])
    assert "only a decimal has minor units" in refused(minor=["retries"])
    assert "did you mean Europe/Berlin?" in refused(time=Written(zone="Europe/Berln"))
    assert "in which `amount` lies" in refused("card_id=card", "amount=card.amount")
    assert "values of different types" in refused("card_id=x", "retries=x")
    assert "a path is names with dots" in refused("card_id=a..b")


def test_a_mapping_travels_as_text() -> None:
    mapping = mapping_of(["card_id=a.b", '*="x.y"'], ["lat=1"], ["amount"], Written("s", "%Y-%m-%d", "UTC"))
    assert FieldMapping.from_json(mapping.to_json()) == mapping


TRANSFERS = [
    {**GOOD, "tx_id": "p1", "from": "c1", "to": "c2"},
    {**GOOD, "tx_id": "p2", "from": "c3", "to": None},
    {**GOOD, "tx_id": "p3", "from": None, "to": "c1", "amount": 5},
]
BOTH = mapping_of(["sent/card_id=from", "received/card_id=to"], ["sent/status=approved", "received/status=declined"])


@pytest.mark.parametrize("read", [as_json, as_table, as_rows])
def test_a_record_is_an_event_of_each_view(read: Callable[..., Decoded]) -> None:
    """The events equal events that were written one by one. A record without a view's column lacks that event."""
    records = [{**record, "amount": str(record["amount"])} for record in TRANSFERS]
    apart = [
        {**record, "tx_id": f"{record['tx_id']}#{view}", "card_id": record[key_field], "status": status}
        for record in records
        for view, key_field, status in (("sent", "from", "approved"), ("received", "to", "declined"))
        if record[key_field] is not None
    ]
    decoded = told_of_parts(read, records, BOTH)
    assert decoded == told_of_parts(read, apart, PLAIN)
    assert decoded["ids"] == ["p1#sent", "p1#received", "p2#sent", "p3#received"], "record by record"


def told_of_parts(read: Callable[..., Decoded], records: list[dict[str, Any]], mapping: FieldMapping) -> dict[str, Any]:
    """Return the values of all parts: events come record by record, from one part or one for each view."""
    if read is not as_rows:
        return fields_of(read(records, mapping))
    parts = [part for view in mapping.views for part in _decoded_columns(ONE, view, records)]
    return fields_of(in_row_order(ONE, parts)[0])


def test_a_record_that_is_none_is_set_aside_once_and_a_wrong_value_for_each_view() -> None:
    values = [b"no json", orjson.dumps({**GOOD, "event_time": "soon", "from": "c1", "to": "c2"})]
    decoded = decode_json(ONE, pa.array(values, pa.large_binary()), BOTH)
    assert sorted(p.code for p in decoded.poison) == ["unreadable", "wrong_value", "wrong_value"]
    assert len(decoded) == 0


def test_a_view_says_only_what_differs() -> None:
    first, second = mapping_of(
        ["*=after", "a/card_id=x.from", "b/card_id=to", "amount=cents"], ["status=all", "b/status=b"], ["amount"]
    ).views
    assert (first.view, second.view) == ("a", "b")
    assert first.path("card_id") == ("x", "from")
    assert (second.path("card_id"), second.path("tx_id"), second.path("amount")) == (
        ("to",),
        ("after", "tx_id"),
        ("cents",),
    )
    assert (first.constants, second.constants) == ({"status": "all"}, {"status": "b"})
    assert FieldMapping.from_json(BOTH.to_json()) == BOTH
    check_fields(BOTH, ONE)
    for columns, message in (["sent/no_such=x"], "no field `no_such`"), (["a/b/card_id=x"], "write VIEW/FIELD"):
        with pytest.raises(UsageError, match=message):
            check_fields(mapping_of(columns), ONE)


def test_values_of_records_have_words_in_fields() -> None:
    schema = load_text(
        "event t { id id event_time time way enum(incoming, outgoing) fine bool? kind string n int }"
    ).schema
    definitions = ["way.credit=incoming", "way.0=outgoing", "fine.ok=true", "kind.A.1=first"]
    mapping = mapping_of(values=definitions)
    check_fields(mapping, schema)
    assert FieldMapping.from_json(mapping.to_json()) == mapping
    times = pa.array([0] * 4, pa.timestamp("ms", "UTC"))
    table = pa.table({
        "id": ["a", "b", "c", "d"], "event_time": times, "way": ["credit", "0", "outgoing", "up"],
        "fine": ["ok", "no", "true", None], "kind": ["A.1", "B", "first", "A"], "n": [1, 2, 3, 4],
    })  # fmt: skip
    decoded = decode_table(schema, table, str, mapping)
    assert decoded.columns["way"].to_pylist() == [0, 1, 1, None]
    assert [bool(value) for value in decoded.columns["fine"].to_pylist()] == [True, False, True, False]
    assert decoded.columns["kind"].to_pylist() == ["first", "B", "first", "A"]
    numbers = table.set_column(2, "way", pa.array([0, 0, 1, 0]))
    assert decode_table(schema, numbers, str, mapping).columns["way"].to_pylist() == [1, 1, None, 1]
    wrong_ones = {
        "n.1=2": "only enums",
        "way.x=up": "has no symbol up",
        "way=in": "FIELD.VALUE=WORD",
        "so.x=y": "no field",
    }
    for wrong, reason in wrong_ones.items():
        with pytest.raises(UsageError, match=reason):
            check_fields(mapping_of(values=[wrong]), schema)
