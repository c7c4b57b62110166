"""Values that no column can hold: each is null in its field, and every other value stays the same."""

from __future__ import annotations

from random import Random

import orjson
import pyarrow as pa
import pytest

from cep.columnar.decode import Decoded, decode_json, decode_table, in_row_order
from cep.columnar.mapping import PLAIN, FieldMapping, mapping_of
from cep.sources.registry.kafka import _columns
from tests.columnar.common import GOOD, ONE, TWO, decode, record
from tests.seeds import seeds

STRAYS = (
    b"{}", b'{"a":{"b":[]}}', b"[1]", b"[]", b'"a\xff"', b'"\\ud800"', b"NaN", b"-Infinity", b"1e400", b"1" * 40,
    b'"x","NAME":"y"',
)  # fmt: skip
IDENTITY = ("tx_id", "event_time")
Stray = tuple[str, bytes]


def written(number: int, strays: list[Stray]) -> bytes:
    """Return a record whose values in some fields are strays."""
    values = {name: orjson.dumps(value) for name, value in {**GOOD, "tx_id": str(number)}.items()}
    values |= {name: stray.replace(b"NAME", name.encode()) for name, stray in strays}
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in values.items()) + b"}"


def drawn(random: Random) -> list[Stray]:
    """Draw the strays of a record: none, one, or a few."""
    names = random.sample(list(GOOD), random.choice((0, 0, 0, 1, 1, 3)))
    strays = [(name, random.choice(STRAYS)) for name in names]
    return [(name, stray) for name, stray in strays if name != "lat" or stray != b"1" * 40]  # a float can be as large


def rows(decoded: Decoded) -> dict[str, dict[str, object]]:
    columns = {name: column.to_pylist() for name, column in decoded.columns.items()}
    return {
        event_id: {name: column[row] for name, column in columns.items()}
        for row, event_id in enumerate(decoded.event_id.to_pylist())
    }


@pytest.mark.parametrize("seed", seeds(12))
@pytest.mark.parametrize("mapping", [PLAIN, mapping_of(["*=after.x"])], ids=["flat", "nested"])
def test_a_stray_is_null_in_its_own_field(seed: int, mapping: FieldMapping) -> None:
    random = Random(seed)
    strays = [drawn(random) for _ in range(random.choice((1, 2, 40, 300)))]
    texts = [written(number, of_record) for number, of_record in enumerate(strays)]
    if mapping is not PLAIN:
        texts = [b'{"after":{"x":%s}}' % text for text in texts]
    decoded = decode_json(ONE, pa.array(texts, pa.binary()), mapping)
    good = rows(decode([record()]))["t1"]
    expected = {
        str(number): good | {"tx_id": str(number)} | {name: None for name, _ in of_record}
        for number, of_record in enumerate(strays)
        if not {name for name, _ in of_record} & set(IDENTITY)
    }
    assert rows(decoded) == expected
    assert list(rows(decoded)) == list(expected), "events keep their order"
    assert decoded.records_count == len(texts)
    flawed = {poison.record: {name for _, name in poison.bad_values} for poison in decoded.poison}
    expected_flaws = {
        text.decode("utf-8", "backslashreplace"): {name for name, _ in of_record}
        if not {name for name, _ in of_record} & set(IDENTITY) else set()
        for text, of_record in zip(texts, strays, strict=True) if of_record
    }  # fmt: skip
    assert flawed == expected_flaws


@pytest.mark.parametrize("stray", STRAYS)
def test_a_stray_event_type_sets_the_record_aside(stray: bytes) -> None:
    """The record is set aside even if the schema has one type, which records need not name."""
    for schema in (ONE, TWO):
        text = written(1, [("event_type", stray), ("lat", b"{}")])
        decoded = decode([text], schema)
        assert len(decoded) == 0
        assert [poison.bad_values for poison in decoded.poison] == [()]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.parametrize("name", list(GOOD))
def test_a_text_of_a_table_that_is_not_utf8_is_a_bad_value(name: str, type_: pa.DataType) -> None:
    table = pa.Table.from_pylist(
        [{field: "true" if value is True else str(value) for field, value in GOOD.items()} for _ in range(4)]
    ).set_column(0, "tx_id", pa.array(list("abcd")))
    values = [value.encode() for value in table[name].to_pylist()]
    values[1], values[3] = b"\xff", None
    broken = pa.array(values, pa.binary()).view(pa.string())
    if pa.types.is_dictionary(type_):
        broken = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None], pa.int32()), broken, safe=False)
    elif type_ == pa.large_string():
        broken = pa.array(values, pa.large_binary()).view(pa.large_string())
    table = table.set_column(table.schema.get_field_index(name), name, broken).append_column("note", broken)
    decoded = decode_table(ONE, table, str)
    inside = pa.table({"x": pa.StructArray.from_arrays([c.chunk(0) for c in table.columns], table.column_names)})
    nested = decode_table(ONE, inside, str, mapping_of(["*=x"]))
    assert (rows(nested), nested.poison) == (rows(decoded), decoded.poison)
    assert decoded.records_count == 4
    good_ids = ["a", "c"] if name in IDENTITY else ["a", "b", "c"]
    null_is_good = name in ("lat", "retries", "took", "online", "status") and any(
        field.name == name and field.type.nullable for field in ONE.event_types[0].fields
    )
    assert decoded.event_id.to_pylist() == good_ids + ["d"] * null_is_good
    if name not in IDENTITY:
        assert decoded.columns[name].to_pylist()[1] is None
        assert (("wrong_value", name),) in [poison.bad_values for poison in decoded.poison]


@pytest.mark.parametrize("place", [4, 155, -1])
@pytest.mark.parametrize("name", list(GOOD))
def test_a_place_outside_of_a_dictionary_is_an_unreadable_record(name: str, place: int) -> None:
    """A damaged Parquet file has such places; they ended the job."""
    table = pa.Table.from_pylist([{**GOOD, "tx_id": str(n)} for n in range(4)])
    table = pa.table({field: [str(value) for value in table[field].to_pylist()] for field in table.column_names})
    places, values = pa.array([0, place, 2, 3], pa.int32()), table[name].combine_chunks()
    broken = pa.DictionaryArray.from_arrays(places, values, safe=False)
    table = table.set_column(table.schema.get_field_index(name), name, broken)
    wanted = decode_table(ONE, table.take([0, 2, 3]).set_column(
        table.schema.get_field_index(name), name, values.take([0, 2, 3])), str)  # fmt: skip
    for given, mapping in (
        (table, PLAIN),
        (pa.table({"x": table.to_struct_array().combine_chunks()}), mapping_of(["*=x"])),
    ):
        decoded = decode_table(ONE, given, str, mapping)
        assert decoded.event_id.to_pylist() == wanted.event_id.to_pylist()
        assert decoded.records_count == 4
        assert [poison.code for poison in decoded.poison if poison.code == "unreadable"] == ["unreadable"]


@pytest.mark.parametrize("stray", [[1, "a"], {1: 2}, 2**70, [{}, 1], {"a": [1, "b"]}])
def test_a_value_of_a_message_that_no_column_can_hold_is_a_bad_value(stray: object) -> None:
    """Avro and Protobuf values come as Python objects."""
    messages = [{**GOOD, "tx_id": str(n), **({"lat": stray} if n % 5 == 2 else {})} for n in range(12)]
    parts = _columns(ONE, PLAIN, messages, [b""] * len(messages))
    decoded, _ = in_row_order(ONE, parts)
    assert decoded.event_id.to_pylist() == [str(n) for n in range(12)]
    if stray != 2**70:  # a float can be as large
        assert [n for n, value in enumerate(decoded.columns["lat"].to_pylist()) if value is None] == [2, 7]
        assert [poison.bad_values for poison in decoded.poison] == [(("wrong_value", "lat"),)] * 2
