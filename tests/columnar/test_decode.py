"""Decode many sorts of records; a bad one is set aside alone. The kernel for plain records gives the bits of Arrow."""

import decimal
from datetime import UTC, datetime
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.csv as pc_csv
import pytest

from cep.base.limits import FIELD_BYTES_MAX
from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.columnar import parse_json as parse_module
from cep.columnar.decode import Decoded, decode_json, decode_table
from cep.columnar.parse_json import plain_shape, read_plain
from cep.columnar.shown import RowTexts
from tests.columnar.common import GOOD, GOOD_MS, ONE, TWO, decode, record


def values(decoded: Decoded, name: str) -> list[Any]:
    return list(decoded.columns[name].to_pylist())


def test_a_good_record_becomes_one_row() -> None:
    decoded = decode([record()])
    assert decoded.poison == ()
    assert decoded.event_id.to_pylist() == ["t1"]
    assert decoded.time_ms.tolist() == [GOOD_MS]
    assert decoded.event_type.tolist() == [0]
    row = {name: column.to_pylist()[0] for name, column in decoded.columns.items()}
    assert row == {
        "tx_id": "t1", "card_id": "c1", "amount": 1234, "status": 1, "lat": 48.5, "retries": 2, "online": True,
        "took": 1500,
    }  # fmt: skip


def test_many_records_that_are_none_are_what_each_is_alone() -> None:
    """Many bad records together: a sender must not make the job repeat the work of a block for each of them."""
    random = Random(7)
    bad = [b"{", b"", None, record(amount="x"), record(online=3), record(card_id=[1]), record() * 2, b'{"a":{}']
    good = [record(), record(card_id="c\n"), record(other={"a": 1}), b" " + record() + b"\n", record(amount=1.005)]
    for shares in ((1, 1), (9, 1), (1, 9), (40, 1)):
        values = [random.choice(random.choices((good, bad), shares)[0]) for _ in range(60)]
        whole, alone = decode(values), [decode([value]) for value in values]
        assert whole.event_id.to_pylist() == [e for one in alone for e in one.event_id.to_pylist()]
        assert sorted(whole.poison, key=repr) == sorted((p for one in alone for p in one.poison), key=repr)


def test_a_time_that_python_does_not_have_is_set_aside() -> None:
    for type_, value in ((pa.timestamp("us"), -(2**63) + 1), (pa.timestamp("s"), 2**55)):
        table = pa.table({"tx_id": ["t1"], "event_time": pa.array([value], type_)})
        poison = decode_table(ONE, table, RowTexts(table)).poison
        assert [p.code for p in poison] == ["wrong_value"]
        assert "t1" in poison[0].record


@pytest.mark.parametrize(
    ("bad", "code", "reason"),
    [
        (b"", "unreadable", "the record is empty"),
        (b"   ", "unreadable", "the record is empty"),
        (None, "unreadable", "the record is empty"),
        (b"not json", "unreadable", "the record is not a JSON object"),
        (b"[1, 2]", "unreadable", "the record is not a JSON object"),
        (b'"{}"', "unreadable", "the record is not a JSON object"),
        (b"{broken}", "unreadable", ""),
        (b'{"a":{}', "unreadable", ""),
        (record() + record(), "unreadable", ""),
        (record(tx_id=...), "missing_field", "field `tx_id` is missing or null"),
        (record(event_time=None), "missing_field", "field `event_time` is missing or null"),
        (record(event_time="yesterday"), "wrong_value", "field `event_time`: 'yesterday' is not a value of type time"),
        (record(event_time="2026-13-01T00:00:00Z"), "wrong_value", "field `event_time`"),
        (record(event_type="refund"), "unknown_event_type", "event type 'refund' is not one of payment"),
        (record(event_type="r" * 99), "unknown_event_type", f"event type {'r' * 64!r} is not one of payment"),
        (record(amount=None), "missing_field", "field `amount` is missing or null"),
        (record(tx_id="t" * 65_537), "too_long", "field `tx_id` has more than 65536 bytes"),
    ],
)  # fmt: skip
def test_a_poison_record_is_set_aside_alone(bad: bytes | None, code: str, reason: str) -> None:
    around = [record(tx_id=f"t{i}") for i in range(7)]
    decoded = decode([*around[:3], bad, *around[3:]])
    assert sorted(decoded.event_id.to_pylist()) == [f"t{i}" for i in range(7)]
    (poison,) = decoded.poison
    assert poison.code == code
    assert reason in poison.reason
    assert poison.record == ("" if bad is None else bad.decode("utf-8", "backslashreplace"))


@pytest.mark.parametrize(
    ("bad", "field", "code", "reason"),
    [
        (record(card_id={"nested": 1}), "card_id", "wrong_value", """field `card_id`: an object is not a value"""),
        (record().replace(b"c1", b"c\xff"), "card_id", "wrong_value", "field `card_id`: 'c\\udcff' is not"),
        (record(amount=1.005), "amount", "wrong_value", "field `amount`: '1.0050000000000000000' is not a value"),
        (record(amount=1e17), "amount", "wrong_value", "field `amount`"),
        (record(amount="x"), "amount", "wrong_value", "field `amount`: 'x' is not a value of type decimal(2)"),
        (record(status="lost"), "status", "wrong_value", "field `status`: 'lost' is not a value of type enum(app"),
        (record(status=7), "status", "wrong_value", "field `status`: '7' is not a value of type enum(app"),
        (record(lat="x"), "lat", "wrong_value", "field `lat`: 'x' is not a value of type float"),
        (record(lat=True), "lat", "wrong_value", "field `lat`: 'True' is not a value of type float"),
        (record().replace(b"12.34", b"NaN"), "amount", "wrong_value", "field `amount`: NaN or an infinite"),
        (record(retries=9).replace(b":9", b":%d" % 2**70), "retries", "wrong_value", "field `retries`"),
        (record(card_id="\u00e9" * 40_000), "card_id", "too_long", "field `card_id` has more than 65536 bytes"),
    ],
)  # fmt: skip
def test_a_bad_value_is_null_and_its_record_is_an_event(bad: bytes, field: str, code: str, reason: str) -> None:
    around = [record(tx_id=f"t{i}") for i in range(7)]
    bad = bad.replace(b'"t1"', b'"bad"')
    decoded = decode([*around[:3], bad, *around[3:]])
    row = decoded.event_id.to_pylist().index("bad")
    (poison,) = decoded.poison
    assert (poison.code, poison.bad_values) == (code, ((code, field),))
    assert reason in poison.reason
    assert poison.record == bad.decode("utf-8", "backslashreplace")
    assert {name: c[row].as_py() for name, c in decoded.columns.items() if name not in ("tx_id", field)} == {
        name: c[row - 1].as_py() for name, c in decoded.columns.items() if name not in ("tx_id", field)
    }
    assert decoded.columns[field][row].as_py() is None
    assert decoded.records_count == len(decoded) == 8


def test_a_name_that_an_object_has_twice_is_a_bad_value() -> None:
    twice = record(lat="x").replace(b"{", b'{"amount":1,', 1)
    decoded = decode([twice, record(tx_id="t2"), record(tx_id="t3").replace(b"{", b'{"tx_id":"t4",', 1)])
    assert decoded.event_id.to_pylist() == ["t1", "t2"]
    assert [sorted(p.bad_values) for p in decoded.poison] == [
        [("wrong_value", "amount"), ("wrong_value", "lat")],
        [],
    ]
    assert "one of two values is not a value of type decimal(2)" in decoded.poison[0].reason


def test_events_keep_their_order_whatever_is_wrong_with_them() -> None:
    """If two events have one id, their order decides which one counts."""
    bad = [record(**{name: value}) for name, value in (("lat", {}), ("amount", "x"), ("online", 1), ("retries", "7"))]
    bad += [record(lat=1.5).replace(b"1.5", b"NaN"), record(retries=77).replace(b"77", b"%d" % 2**70), record()]
    for count in (3, 60, 5_000):
        records = [bad[n * 3 % 7].replace(b'"t1"', b'"%d"' % n) for n in range(count)]
        assert decode(records).event_id.to_pylist() == [str(n) for n in range(count)]


def test_a_reason_names_the_value_of_its_own_record() -> None:
    wrong = ["lost", "", "gone"]
    decoded = decode([record(tx_id=f"t{i}", status=status) for i, status in enumerate(["approved", *wrong])])
    assert [p.reason.split("'")[1] for p in decoded.poison] == wrong
    assert [orjson.loads(p.record)["status"] for p in decoded.poison] == wrong


def test_records_that_complete_each_other_are_not_mixed() -> None:
    halves = [b'{"tx_id":"evil",', record()[1:]]
    decoded = decode([*halves, record(tx_id="a") + record(tx_id="b"), record(tx_id="good")])
    assert decoded.event_id.to_pylist() == ["good"]
    assert len(decoded.poison) == 3


@pytest.mark.parametrize("seed", range(8))
def test_every_poison_record_is_found_wherever_it_is(seed: int) -> None:
    random = Random(seed)
    bad = [b"{", b"", b"null", record(amount="x"), record(status="lost"), record(tx_id=None)]
    records = [random.choice(bad) if random.random() < 0.1 else record(tx_id=str(i)) for i in range(300)]
    decoded = decode(records)
    stray = [r for r in records if r in bad[3:5]]
    whole = [str(i) for i, r in enumerate(records) if r not in bad]
    assert sorted(decoded.event_id.to_pylist()) == sorted([*whole, *["t1"] * len(stray)])
    assert decoded.records_count == len(records)
    assert sorted(p.record for p in decoded.poison) == sorted(r.decode() for r in records if r in bad)


def test_decimals_are_exact() -> None:
    texts = ["0.1", "-0.01", "90071992547409.93", "1e2", "12345678901234567.89", "0"]
    decoded = decode([record().replace(b"12.34", text.encode()) for text in texts])
    assert decoded.poison == ()
    assert values(decoded, "amount") == [int(decimal.Decimal(t).scaleb(2)) for t in texts]


def test_decimals_that_went_through_doubles_are_what_was_meant() -> None:
    texts = ["24.150000000000002", "0.30000000000000004", "1.1", "99.999999999999986"]
    decoded = decode([record().replace(b"12.34", text.encode()) for text in texts])
    assert decoded.poison == ()
    assert values(decoded, "amount") == [2415, 30, 110, 10000]


def test_decimals_may_be_text() -> None:
    assert values(decode([record(amount="12.30"), record(amount="-7")]), "amount") == [1230, -700]


@pytest.mark.parametrize(
    ("written", "expected_ms"),
    [
        ("2026-03-01T00:00:00Z", GOOD_MS),
        ("2026-03-01T00:00:00", GOOD_MS),
        ("2026-03-01 00:00:00.123456", GOOD_MS + 123),
        ("2026-03-01T01:00:00+01:00", GOOD_MS),
        ("2026-02-28T18:30:00-0530", GOOD_MS),
        ("2026-03-01T02:00:00+02", GOOD_MS),
        ("2026-03-01", GOOD_MS),
        (GOOD_MS, GOOD_MS),
        ("1969-12-31T23:59:59.9999Z", -1),
    ],
)
def test_times_are_milliseconds_utc(written: str | int, expected_ms: int) -> None:
    decoded = decode([record(event_time=written)])
    assert decoded.poison == ()
    assert decoded.time_ms.tolist() == [expected_ms]


def test_times_with_and_without_a_zone_may_be_mixed() -> None:
    texts = ["2026-03-01T00:00:00Z", "2026-03-01T00:00:00", "2026-03-01T01:00:00+01:00", "2026-03-01"]
    assert decode([record(event_time=t) for t in texts]).time_ms.tolist() == [GOOD_MS] * 4


def test_whole_numbers_may_be_ids() -> None:
    decoded = decode([record(tx_id=17, card_id=9007199254740993), record(tx_id=18, card_id=5)])
    assert decoded.event_id.to_pylist() == ["17", "18"]
    assert values(decoded, "card_id") == ["9007199254740993", "5"]


def test_numbers_and_texts_may_be_mixed_in_ids() -> None:
    decoded = decode([record(tx_id=17), record(tx_id="a"), record(tx_id=18)])
    assert decoded.poison == ()
    assert sorted(decoded.event_id.to_pylist()) == ["17", "18", "a"]


def test_unknown_fields_are_ignored_and_optional_ones_may_be_missing() -> None:
    decoded = decode([record(unknown=[1, 2], lat=..., retries=None)])
    assert decoded.poison == ()
    assert values(decoded, "lat") == [None]
    assert values(decoded, "retries") == [None]


def test_a_record_may_have_line_breaks_and_space_around_it() -> None:
    pretty = orjson.dumps({**GOOD, "amount": 0.5}, option=orjson.OPT_INDENT_2)
    decoded = decode([pretty, b"  " + record() + b"\r\n", record()])
    assert decoded.poison == ()
    assert values(decoded, "amount") == [50, 1234, 1234]


def test_a_line_break_inside_a_text_is_no_json() -> None:
    broken = record().replace(b"c1", b"c\n1")
    assert [p.record for p in decode([broken, record()]).poison] == [broken.decode()]


def test_nothing_decodes_to_nothing() -> None:
    decoded = decode([])
    assert (len(decoded), decoded.poison) == (0, ())
    assert set(decoded.columns) == {f.name for f in ONE.event_types[0].fields} - {"event_time"}


# ------------------------------------------------------------------------------------------- several event types

LOGIN = b'{"event_type":"login","login_id":"l1","event_time":1772323200000,"device":"d"}'


def test_event_types_have_their_own_fields() -> None:
    decoded = decode([record(event_type="payment"), LOGIN], TWO)
    assert decoded.poison == ()
    assert decoded.event_type.tolist() == [0, 1]
    assert decoded.event_id.to_pylist() == ["t1", "l1"]
    assert values(decoded, "device") == [None, "d"]
    assert values(decoded, "amount") == [1234, None]


def test_a_field_of_another_event_type_is_ignored() -> None:
    decoded = decode(
        [record(event_type="payment", device="x"), LOGIN.replace(b'"device"', b'"status":"lost","device"')], TWO
    )
    assert decoded.poison == ()
    assert values(decoded, "device") == [None, "d"]
    assert values(decoded, "status") == [1, None]


@pytest.mark.parametrize("event_type", [..., None])
def test_with_several_event_types_each_record_names_its_own(event_type: Any) -> None:
    (poison,) = decode([record(event_type=event_type)], TWO).poison
    assert (poison.code, poison.reason) == ("unknown_event_type", "field `event_type` is missing or null")


def test_a_flood_of_unknown_event_types_is_bounded() -> None:
    reasons = {p.reason for p in decode([record(event_type=f"x{i}") for i in range(100)]).poison}
    assert len(reasons) == 17
    assert "the event type is not one of payment" in reasons


# -------------------------------------------------------------------------------------------------------- tables


def show(row: int) -> str:
    return f"row {row}"


def test_a_table_with_the_types_of_parquet() -> None:
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    table = pa.table(
        {
            "tx_id": pa.array([1, 2], pa.int64()),
            "event_time": pa.array([moment, moment], pa.timestamp("us", tz="UTC")),
            "card_id": pa.array(["a", "b"]).dictionary_encode(),
            "amount": pa.array([12.34, 0.07]),
            "status": pa.array(["approved", "declined"], pa.large_string()),
            "lat": pa.array([1, None], pa.int32()),
        }
    )
    decoded = decode_table(ONE, table, show)
    assert decoded.poison == ()
    assert decoded.time_ms.tolist() == [GOOD_MS, GOOD_MS]
    assert values(decoded, "amount") == [1234, 7]
    assert values(decoded, "lat") == [1.0, None]
    assert values(decoded, "online") == [None, None]


def test_a_table_of_texts_as_csv_has_them() -> None:
    names = "tx_id,event_time,card_id,amount,status,retries,online"
    text = f"{names}\n1,2026-03-01,a,1.5,approved,3,true\n2,x,a,1,approved,,\n".encode()
    types = dict.fromkeys(names.split(","), pa.string())
    as_text = pc_csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    decoded = decode_table(ONE, pc_csv.read_csv(pa.BufferReader(text), convert_options=as_text), show)
    assert decoded.event_id.to_pylist() == ["1"]
    assert (values(decoded, "amount"), values(decoded, "retries"), values(decoded, "online")) == ([150], [3], [True])
    assert [(p.code, p.record) for p in decoded.poison] == [("wrong_value", "row 1")]


def test_a_missing_column_is_missing_in_every_record() -> None:
    table = pa.table({"tx_id": ["1", "2"]})
    decoded = decode_table(ONE, table, show)
    assert len(decoded) == 0
    assert {p.code for p in decoded.poison} == {"missing_field"}


def test_a_text_at_the_limit_is_taken_in_every_form() -> None:
    texts = ["c" * FIELD_BYTES_MAX, "c" * (FIELD_BYTES_MAX + 1), "c"]
    table = pa.table({"login_id": ["a", "b", "c"], "event_time": [1, 2, 3], "card_id": texts, "device": ["d"] * 3})
    table = table.append_column("event_type", pa.array(["login"] * 3))
    lines = [orjson.dumps(row) for row in table.to_pylist()]
    for decoded in (decode_table(TWO, table, show), decode(lines, TWO)):
        assert decoded.event_id.to_pylist() == ["a", "b", "c"]
        assert values(decoded, "card_id") == [texts[0], None, texts[2]]
        assert [poison.code for poison in decoded.poison] == ["too_long"]


def test_a_letter_names_each_bad_value() -> None:
    (poison,) = decode([record(lat="y", amount="x")]).poison
    assert poison.bad_values == (("wrong_value", "amount"), ("wrong_value", "lat"))
    assert "field `amount`: 'x' is not" in poison.reason
    assert "field `lat`: 'y' is not" in poison.reason


def test_the_first_reason_of_a_record_that_is_set_aside_counts() -> None:
    (poison,) = decode([record(card_id=None, amount="x", event_time="y")]).poison
    assert poison.bad_values == ()
    assert poison.code in ("missing_field", "wrong_value")


def test_columns_are_as_long_as_the_events() -> None:
    decoded = decode([record(), record(tx_id=None), record()])
    assert {len(c) for c in decoded.columns.values()} == {2}
    assert isinstance(decoded.time_ms, np.ndarray)


def test_a_text_that_is_not_utf8_is_a_bad_value() -> None:
    """Parquet does not check texts. A text that is not UTF-8 must not end a replay and must not get into an alert."""
    rows = 9
    data = b"".join(b"t%d" % n if n != 5 else b"\xff5" for n in range(rows))
    offsets = np.arange(0, 2 * rows + 1, 2, dtype=np.int32)
    texts = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(data))
    row_values = {name: GOOD.get(name) for name in ONE.columns()}
    table = pa.table({name: [None if value is None else str(value)] * rows for name, value in row_values.items()})
    for name in ("tx_id", "card_id", "amount", "status", "lat", "event_time"):
        broken = table.set_column(table.schema.get_field_index(name), name, texts)
        decoded = decode_table(ONE, broken, lambda row: f"row {row}")
        assert decoded.records_count == rows
        is_bad = {poison.record: poison for poison in decoded.poison}["row 5"]
        assert is_bad.code == "wrong_value"
        assert "xff5" in is_bad.reason
        if name in ("tx_id", "card_id"):
            assert len(decoded.poison) == 1
            assert len(decoded) == rows - (name == "tx_id")


def test_each_record_of_json_is_read_however_the_others_write_their_values() -> None:
    written = [
        record(amount="12.34"),
        record(tx_id=2, online="true"),
        record(retries="3.0", took="1.5s"),
        record(amount=True),
    ]
    for records in (written, written[::-1], written * 20):
        decoded = decode(records)
        assert len(decoded) == len(records)
        assert decoded.columns["amount"].null_count == len(decoded.poison) == len(records) // 4
        assert {poison.code for poison in decoded.poison} == {"wrong_value"}


def test_decimals_of_eighteen_digits_are_exact_beside_any_other_record() -> None:
    fields = (("id", Type(Kind.ID)), ("event_time", Type(Kind.TIME)), ("fine", Type(Kind.DECIMAL, scale=18)),
              ("large", Type(Kind.DECIMAL, scale=9)))  # fmt: skip
    schema = Schema((EventType("e", tuple(Field(name, type_) for name, type_ in fields)),))
    values = [
        '1.5,"large":123456789.123456789',
        '"0.123456789123456789","large":"1e3"',
        '-9.1,"large":24.150000000000002',
    ]
    records = [f'{{"id":"{number}","event_time":1,"fine":{value}}}'.encode() for number, value in enumerate(values)]
    fine, large = [1_500_000_000_000_000_000, 123_456_789_123_456_789, -9_100_000_000_000_000_000], [
        123_456_789_123_456_789, 1_000_000_000_000, 24_150_000_000]  # fmt: skip
    for rows in ([0, 1, 2], [0], [1], [2], [2, 0]):
        decoded = decode_json(schema, pa.array([records[row] for row in rows], pa.binary()))
        assert decoded.columns["fine"].to_pylist() == [fine[row] for row in rows]
        assert decoded.columns["large"].to_pylist() == [large[row] for row in rows]


_NAMES = [*ONE.columns(), "event_type", "other", "", "tx", "tx_idd", "zz"]
_VALUES = [
    "0", "-0", "7", "-7", "01", "1.", ".5", "-", "+1", "1e2", "1E+2", "1e-2", "1e", "1e0002", "-1.50", "24.15",
    "24.150", "0.001", "0.1", "2.5e-7", "48.8566", "-0.0", "1e22", "1e23", "123456789012345.678",
    "9007199254740993", "9007199254740992.0", "123456789012345678", "1234567890123456789", "9223372036854775807",
    "9223372036854775808", "-9223372036854775807", "-9223372036854775808", "18446744073709551616",
    "92233720368547758.07", "92233720368547758.08", "1e400", "1e-400", "0.00000000000000000001",
    "0.30000000000000004", "12345678901234567890123", "1772323200000", "true", "false", "null", "nul", "True",
    "NaN", "Infinity", "truefalse", "nullx", '""', '"t1"', '"approved"', '"2026-03-01T00:00:00Z"', '"payment"',
    '"login"', '"12.5"', '" "', '"a}"', '"a,b:c"', '"caf\u00e9"', '"\u4e2d\U0001f600"', '"a\\nb"', '"\\u00e9"',
    '"\\"', '"tab\there"', '"\x7f"', '"\x01"', "{}", "[1]", '{"a":1}', "'a'", "",
]  # fmt: skip


def _by_arrow(schema: Schema, records: list[bytes]) -> Decoded:
    with patch.object(parse_module, "read_plain", lambda *_: None):
        return decode_json(schema, pa.array(records, pa.large_binary()))


def _is_plain(records: list[bytes], schema: Schema = ONE) -> bool:
    return read_plain(parse_module._plain_shape(schema), pa.array(records, pa.large_binary())) is not None


def _assert_same(schema: Schema, records: list[bytes]) -> None:
    """Check that the kernel and Arrow return the same bits, and set aside the same records for the same reasons."""
    ours, theirs = decode_json(schema, pa.array(records, pa.large_binary())), _by_arrow(schema, records)
    assert ours.poison == theirs.poison, records
    assert ours.event_id.equals(theirs.event_id), records
    assert ours.event_type.tolist() == theirs.event_type.tolist(), records
    assert ours.time_ms.tolist() == theirs.time_ms.tolist(), records
    assert ours.columns.keys() == theirs.columns.keys()
    for name, column in ours.columns.items():
        column.validate(full=True)
        assert column.type == theirs.columns[name].type
        assert column.equals(theirs.columns[name]), (name, records)
    floats = [np.asarray(decoded.columns["lat"].fill_null(0)).view(np.int64).tolist() for decoded in (ours, theirs)]
    assert floats[0] == floats[1], records


def _written(random: Random, values: list[str]) -> bytes:
    """Return a record of some fields in some order, mostly well-formed."""
    good = {name: orjson.dumps(value).decode() for name, value in orjson.loads(record()).items()}
    for name in random.sample(_NAMES, random.choice([0, 0, 1, 1, 2, 4])):
        good[name] = random.choice(values)
    for name in random.sample(sorted(good), random.choice([0, 0, 0, 1, 2])):
        del good[name]
    members = [(f'"{name}"', value) for name, value in good.items()]
    if random.random() < 0.2:
        random.shuffle(members)
    if random.random() < 0.03:
        members.append(random.choice(members or [('"a"', "1")]))
    blank = [random.choice(["", "", "", "", " ", "\t", "\r", "\n"]) if random.random() < 0.1 else "" for _ in range(5)]
    text = f",{blank[0]}".join(f"{name}{blank[1]}:{blank[2]}{value}" for name, value in members)
    written = f"{{{blank[3]}{text}{blank[4]}}}"
    if random.random() < 0.1:
        position = random.randrange(len(written) + 1)
        written = (
            written[:position] + random.choice(['"', "}", "{", ",", ":", "\\", "1", "", "x"]) + written[position + 1 :]
        )
    return written.encode()


@pytest.mark.parametrize("schema", [ONE, TWO], ids=["one type", "two types"])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 40))])
def test_a_record_is_read_as_arrow_reads_it(seed: int, schema: Schema) -> None:
    random = Random(seed)
    for _ in range(150):
        _assert_same(schema, [_written(random, _VALUES)])


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 40))])
def test_records_are_read_as_arrow_reads_them(seed: int) -> None:
    random = Random(seed)
    for _ in range(30):
        common = random.sample(_VALUES, random.choice([1, 2, 4]))
        _assert_same(random.choice([ONE, TWO]), [_written(random, common) for _ in range(random.choice([2, 3, 8]))])


def test_each_value_is_read_in_each_field_as_arrow_reads_it() -> None:
    for name in (*ONE.columns(), "event_type", "other"):
        for value in _VALUES:
            fields = {**orjson.loads(record()), name: "@"}
            _assert_same(ONE, [orjson.dumps(fields).replace(b'"@"', value.encode())])


def test_what_producers_write_is_plain() -> None:
    assert _is_plain([record(tx_id=f"t{n}", amount=n / 4) for n in range(50)])
    assert _is_plain([record(event_time=1_772_323_200_000 + n, tx_id=n) for n in range(9)])
    assert _is_plain(
        [b'{ "tx_id" : "t1" , "amount": 3, "lat": 1e-5, "online": null, "unknown": [] }'.replace(b"[]", b"true")]
    )
    assert _is_plain([record(card_id="caf\u00e9"), b"{}", record(retries=..., lat=None)])
    assert not _is_plain([record(), record(card_id='"')])
    assert not _is_plain([record(), record()[:-1]])
    assert not _is_plain([record(lat=0.30000000000000004)])


def test_text_that_is_not_utf_8_is_not_plain() -> None:
    spoiled = record().replace(b"c1", b"c\xff")
    assert not _is_plain([record(), spoiled])
    _assert_same(ONE, [record(), spoiled, record()])


def test_more_members_than_a_record_has_are_not_plain() -> None:
    members = ",".join(f'"f{n}":1' for n in range(300))
    _assert_same(ONE, [record()[:-1] + b"," + members.encode() + b"}"])
    assert not _is_plain([record()[:-1] + b"," + members.encode() + b"}"])


@pytest.mark.parametrize("value", [b'"\xff"', b"[" * 1_200 + b"]" * 1_200, b"1e400", b'"\\ud800"', b'"\x01"'])
def test_a_record_is_taken_or_set_aside_wherever_it_stands(value: bytes) -> None:
    """orjson, which reads the first record of a block, refuses some records that Arrow accepts."""
    for good in (record(), record(tx_id=5, event_time=1_772_323_200_000)):
        odd = good[:-1] + b',"unknown":' + value + b"}"
        escaped = record(card_id='"')  # makes the block not plain
        counts = [len(_by_arrow(ONE, block)) for block in ([odd], [odd, escaped], [escaped, odd])]
        assert counts == [counts[0], counts[0] + 1, counts[0] + 1]
        assert len(decode_json(ONE, pa.array([odd], pa.large_binary()))) == counts[0]


def test_part_of_an_array_is_read() -> None:
    records = pa.array([record(tx_id=f"t{n}") for n in range(9)], pa.large_binary())
    columns = read_plain(parse_module._plain_shape(ONE), records.slice(3, 4))
    assert columns is not None
    assert columns["tx_id"].to_pylist() == ["t3", "t4", "t5", "t6"]


def test_a_field_is_a_number_if_the_first_record_says_so() -> None:
    fields = pa.schema([("id", pa.large_string())])
    shape = plain_shape(fields, {"id"})
    for lines, expected in (
        ([b'{"id":1}', b'{"id":2}'], pa.array([1, 2])),
        ([b'{"id":"1"}', b'{"id":"2"}'], pa.array(["1", "2"], pa.large_string())),
        ([b'{"id":null}', b'{"id":"2"}'], pa.array([None, "2"], pa.large_string())),
        ([b"{}", b'{"id":"2"}'], pa.array([None, "2"], pa.large_string())),
    ):
        columns = read_plain(shape, pa.array(lines, pa.large_binary()))
        assert columns is not None
        assert columns["id"].equals(expected)
    assert read_plain(shape, pa.array([b"{}", b'{"id":null}'], pa.large_binary())) == {}
    for lines in ([b'{"id":1}', b'{"id":"2"}'], [b'{"id":null}', b'{"id":2}'], [b'{"id":1.5}']):
        assert read_plain(shape, pa.array(lines, pa.large_binary())) is None


def test_a_schema_may_have_more_fields_than_a_word_has_bits() -> None:
    fields = [Field("id", Type(Kind.ID)), Field("event_time", Type(Kind.TIME))]
    fields += [Field(f"f{n}", Type(Kind.INT, nullable=True)) for n in range(120)]
    wide = Schema((EventType("wide", tuple(fields)),))
    written = [
        orjson.dumps({"id": "a", "event_time": 1_772_323_200_000, **{f"f{n}": n for n in range(0, 120, step)}})
        for step in (1, 3)
    ]
    decoded, theirs = decode_json(wide, pa.array(written, pa.large_binary())), _by_arrow(wide, written)
    assert decoded.columns["f119"].to_pylist() == [119, None]
    assert all(column.equals(theirs.columns[name]) for name, column in decoded.columns.items())
    assert _is_plain(written, wide)
