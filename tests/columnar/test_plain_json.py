"""The kernel for plain records returns the same bits as Arrow's JSON reader, or it declines the block."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import numpy as np
import orjson
import pyarrow as pa
import pytest

from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.columnar import parse_json as parse_module
from cep.columnar.decode import Decoded, decode_json
from cep.columnar.parse_json import plain_shape, read_plain
from tests.columnar.common import ONE, TWO, record

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
