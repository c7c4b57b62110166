"""The dead letter of a record names the value of that record, in every form and however many other records are bad."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pyarrow.csv as pc_csv
import pytest

from cep.columnar.convert import Written
from cep.columnar.decode import Decoded, concat_decoded, decode_json, decode_table, in_row_order
from cep.columnar.mapping import PLAIN, FieldMapping, mapping_of
from cep.sources.pieces import pieces_of_table
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import _decoded_columns
from cep.sources.registry.kafka import decode as decode_topic
from tests.columnar.common import GOOD, ONE, TWO, decode, record
from tests.seeds import seeds

FIELDS = ("event_time", "amount", "status", "lat", "retries", "online", "took")
Rows = list[dict[str, Any]]


def rows() -> Rows:
    """Return good records, and between them three bad ones for each field, each with another value."""
    bad = [(field, f"{field}-{number}") for number in range(3) for field in FIELDS]
    good_and_bad: Rows = []
    for number, (field, value) in enumerate(bad):
        good_and_bad += [{**GOOD, "tx_id": f"good-{number}"}, {**GOOD, "tx_id": f"bad-{number}", field: value}]
    return good_and_bad


def texts(rows: Rows) -> Rows:
    return [{name: "true" if value is True else str(value) for name, value in row.items()} for row in rows]


def in_json(rows: Rows, _folder: Path) -> Decoded:
    return decode_json(ONE, pa.array([orjson.dumps(row) for row in rows], pa.binary()))


def inside_others(rows: Rows, _folder: Path) -> Decoded:
    records = [orjson.dumps({"after": {"x": row}, "status": "declined"}) for row in rows]
    return decode_json(ONE, pa.array(records, pa.binary()), mapping_of(["*=after.x"]))


def shown(table: pa.Table) -> Callable[[int], str]:
    return lambda row: json.dumps(table.slice(row, 1).to_pylist()[0], default=str)


def in_columns(rows: Rows, _folder: Path) -> Decoded:
    table = pa.Table.from_pylist(texts(rows))
    return decode_table(ONE, table, shown(table))


def in_dictionaries(rows: Rows, _folder: Path) -> Decoded:
    table = pa.Table.from_pylist(texts(rows))
    encoded = pa.table({name: table[name].dictionary_encode() for name in table.column_names})
    return decode_table(ONE, encoded, shown(table))


def in_pieces(rows: Rows, _folder: Path) -> Decoded:
    table = pa.concat_tables([pa.Table.from_pylist(texts(rows[start : start + 5])) for start in range(0, len(rows), 5)])
    return concat_decoded(ONE, [piece.decode() for piece in pieces_of_table(table, ONE, shown(table)).pieces])


def in_csv(rows: Rows, folder: Path) -> Decoded:
    pc_csv.write_csv(pa.Table.from_pylist(texts(rows)), folder / "a.csv")
    options = pc_csv.ConvertOptions(column_types=dict.fromkeys(GOOD, pa.string()))
    table = pc_csv.read_csv(folder / "a.csv", convert_options=options)
    return decode_table(ONE, table, shown(table))


def in_other_forms(rows: Rows, _folder: Path) -> Decoded:
    """Decode minor units and times with a form, which have their own conversions."""
    table = pa.Table.from_pylist(texts([{**row, "amount": str(row["amount"]).replace(".", "")} for row in rows]))
    mapping = mapping_of(minor=["amount"], time=Written(form="%Y-%m-%dT%H:%M:%SZ", zone="UTC"))
    return decode_table(ONE, table, shown(table), mapping)


def in_avro(rows: Rows, folder: Path) -> Decoded:
    types = ["null", "string", "double", "long", "boolean"]
    schema = {"type": "record", "name": "p", "fields": [{"name": name, "type": types} for name in GOOD]}
    (folder / "p.avsc").write_text(json.dumps(schema))
    values = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        values.append(out.getvalue())
    form = RecordFormat("avro", schema_file=str(folder / "p.avsc"))
    return decode_topic(form, ONE, pa.array(values, pa.binary()), "payments")


@pytest.mark.parametrize(
    "decode", [in_json, inside_others, in_columns, in_dictionaries, in_pieces, in_csv, in_other_forms, in_avro]
)
def test_each_letter_names_the_value_of_its_own_record(
    decode: Callable[[Rows, Path], Decoded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cep.sources.pieces.PIECE_ROWS", 3)
    decoded = decode(rows(), tmp_path)
    is_time = [number for number in range(3 * len(FIELDS)) if FIELDS[number % len(FIELDS)] == "event_time"]
    others = [f"bad-{n}" for n in range(3 * len(FIELDS)) if n not in is_time]
    assert sorted(decoded.event_id.to_pylist()) == sorted([f"good-{n}" for n in range(3 * len(FIELDS))] + others)
    assert sum(not poison.bad_values for poison in decoded.poison) == len(is_time)
    named = {}
    for poison in decoded.poison:
        assert poison.code in ("wrong_value", "unreadable")
        fields = json.loads(poison.record)
        fields = fields["after"]["x"] if "after" in fields else fields
        named[fields["tx_id"]] = (poison.reason.split("'")[1], poison.reason)
    for number, (index, field) in enumerate((index, field) for index in range(3) for field in FIELDS):
        value, reason = named.pop(f"bad-{number}")
        assert value == f"{field}-{index}", reason
        assert f"`{field}`" in reason
    assert not named


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


def values_by_id(decoded: Decoded) -> dict[str, dict[str, object]]:
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
    good = values_by_id(decode([record()]))["t1"]
    expected = {
        str(number): good | {"tx_id": str(number)} | {name: None for name, _ in of_record}
        for number, of_record in enumerate(strays)
        if not {name for name, _ in of_record} & set(IDENTITY)
    }
    assert values_by_id(decoded) == expected
    assert list(values_by_id(decoded)) == list(expected), "events keep their order"
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
    assert (values_by_id(nested), nested.poison) == (values_by_id(decoded), decoded.poison)
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
    parts = _decoded_columns(ONE, PLAIN, messages)
    decoded, _ = in_row_order(ONE, parts)
    assert decoded.event_id.to_pylist() == [str(n) for n in range(12)]
    if stray != 2**70:  # a float can be as large
        assert [n for n, value in enumerate(decoded.columns["lat"].to_pylist()) if value is None] == [2, 7]
        assert [poison.bad_values for poison in decoded.poison] == [(("wrong_value", "lat"),)] * 2
