"""Convert one column at a time: a bad value changes no other value; each cell of the table of conversions holds."""

import csv
import decimal
import io
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import numpy as np
import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from cep.api.frames import Naming, events_table, open_frame
from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN
from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.columnar.convert import WIDE_DECIMAL, Written, convert, whole_ms
from cep.columnar.decode import decode_json, decode_table, in_row_order
from cep.columnar.mapping import FieldMapping, mapping_of
from cep.sources.files import read_key
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import _decoded_columns, decode, fields_of
from tests.columnar.conversions import BLANK, MINOR, NOTHING, TYPES, Cells, rows

AMOUNT = Type(Kind.DECIMAL, scale=2)
ENUM = Type(Kind.ENUM, symbols=("a", "1"))
INT64 = st.integers(-(2**63), 2**63 - 1)


class Found(NamedTuple):
    """Like `Converted`, with both masks."""

    values: pa.Array
    nulls: np.ndarray
    bad: np.ndarray
    reason: str


TIMES_MS = st.one_of(st.integers(EVENT_TIME_MS_MIN, EVENT_TIME_MS_MAX), INT64)


@given(st.lists(TIMES_MS, min_size=1), st.integers(0, 3))
def test_a_column_of_whole_milliseconds_is_read_as_its_values_are_with_a_null_among_them(
    values: list[int], first: int
) -> None:
    column = pa.array(values, pa.int64())[min(first, len(values) - 1) :]
    converted = convert(pa.concat_arrays([column, pa.nulls(1, pa.int64())]), Type(Kind.TIME)).values[:-1].to_pylist()
    assert convert(column, Type(Kind.TIME)).values.to_pylist() == converted
    fast = whole_ms(column)
    assert (fast is None) == (None in converted)
    assert fast is None or fast.tolist() == converted


def given_as(values: list[Any], arrow: pa.DataType | None, type_: Type) -> Found:
    converted = convert(pa.array(values, arrow), type_)
    none = np.zeros(len(values), bool)
    nulls = none if converted.nulls is None else converted.nulls
    bad = none if converted.bad is None else converted.bad
    assert len(converted.values) == len(nulls) == len(bad) == len(values)
    assert nulls.tolist() == [v is None for v in values]
    reason = converted.reason(int(np.flatnonzero(bad)[0])) if bad.any() else ""
    return Found(converted.values, nulls, bad, reason)


@given(st.lists(st.integers(-(2**53) // 100, 2**53 // 100).map(lambda units: units / 100) | st.none()))
def test_a_double_of_cents_is_those_cents(values: list[float | None]) -> None:
    converted = given_as(values, pa.float64(), AMOUNT)
    assert not converted.bad.any()
    assert converted.values.to_pylist() == [None if v is None else round(v * 100) for v in values]


@given(st.integers(0, 9), st.lists(INT64))
def test_a_decimal_of_64_bits_of_units_is_exact(scale: int, units: list[int]) -> None:
    exact = [decimal.Decimal(u).scaleb(-scale) for u in units]
    as_text = [format(d, "f") for d in exact]
    for values, arrow in ((exact, pa.decimal128(38, scale)), (as_text, pa.string())):
        converted = given_as(values, arrow, Type(Kind.DECIMAL, scale=scale))
        assert not converted.bad.any()
        assert converted.values.to_pylist() == units


@given(st.lists(st.tuples(st.integers(-(10**12), 10**12), st.integers(1, 99))))
def test_digits_behind_the_last_are_no_noise(parts: list[tuple[int, int]]) -> None:
    values = [decimal.Decimal(units * 100 + rest).scaleb(-4) for units, rest in parts]
    for arrow in (pa.decimal128(38, 4), WIDE_DECIMAL):
        assert given_as(values, arrow, AMOUNT).bad.all()


def test_text_of_doubles_is_what_was_meant() -> None:
    converted = given_as(["251.20000000000002", "1.005", "7", None, "x", "0.30000000000000004"], pa.string(), AMOUNT)
    assert converted.values.to_pylist() == [25120, None, 700, None, None, 30]
    assert converted.bad.tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize("value", [0.005, 1.001, 10_000.005, 1e15, float("nan"), float("inf"), -float("inf")])
def test_a_double_that_is_no_number_of_cents_is_bad(value: float) -> None:
    converted = given_as([1.0, value, 2.5], pa.float64(), AMOUNT)
    assert converted.bad.tolist() == [False, True, False]
    assert converted.values.to_pylist() == [100, None, 250]


@given(st.lists(INT64 | st.none()))
def test_whole_numbers_survive_as_ids_and_integers(values: list[int | None]) -> None:
    texts = [None if v is None else str(v) for v in values]
    assert given_as(values, pa.int64(), Type(Kind.ID)).values.to_pylist() == texts
    assert given_as(texts, pa.string(), Type(Kind.INT)).values.to_pylist() == values
    assert given_as(values, pa.int64(), Type(Kind.DURATION)).values.to_pylist() == values


@given(st.lists(st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)), max_size=20), st.integers(-14, 14))  # noqa: DTZ001
def test_a_time_is_the_same_however_it_is_written(moments: list[datetime], zone_h: int) -> None:
    naive = [m.replace(microsecond=m.microsecond // 1000 * 1000) for m in moments]
    epoch = datetime(1970, 1, 1)  # noqa: DTZ001 compared with naive ones
    expected = [round((m - epoch).total_seconds() * 1000) for m in naive]
    hours = pa.timestamp("ms", tz=f"{zone_h:+03d}:00")
    for values, arrow in (
        (naive, pa.timestamp("us")),
        ([m.replace(tzinfo=UTC) for m in naive], hours),
        ([m.isoformat() for m in naive], pa.string()),
        ([m.isoformat(sep=" ") + "Z" for m in naive], pa.large_string()),
        (expected, pa.int64()),
    ):
        assert given_as(values, arrow, Type(Kind.TIME)).values.to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "arrow", "type_", "expected"),
    [
        ([17.0, 17.5, None], pa.float64(), Type(Kind.ID), ["17", None, None]),
        ([17.0, 17.5], pa.float64(), Type(Kind.INT), [17, None]),
        (["1", "x", "2"], pa.string(), Type(Kind.INT), [1, None, 2]),
        ([2**64 - 1, 1], pa.uint64(), Type(Kind.INT), [None, 1]),
        (["1.5", "x"], pa.string(), Type(Kind.FLOAT), [1.5, None]),
        ([1.5, float("nan")], pa.float64(), Type(Kind.FLOAT), [1.5, None]),
        (["true", "maybe", "false"], pa.string(), Type(Kind.BOOL), [True, None, False]),
        (["a", "b", "x", None], pa.string(), Type(Kind.ENUM, symbols=("b", "a")), [1, 0, None, None]),
        ([date(2026, 3, 1)], pa.date32(), Type(Kind.TIME), [1_772_323_200_000]),
        ([datetime(2026, 3, 1)], pa.timestamp("s"), Type(Kind.TIME), [1_772_323_200_000]),  # noqa: DTZ001
        ([1.5], pa.float64(), Type(Kind.TIME), [1]),
        ([10**17, 5, -(10**14)], pa.int64(), Type(Kind.TIME), [None, 5, None]),
        (["1772323200000", "17", None], pa.string(), Type(Kind.TIME), [1_772_323_200_000, None, None]),
        ([7, -7], pa.int32(), AMOUNT, [700, -700]),
        ([True], pa.bool_(), AMOUNT, [None]),
        (["1.234", "1.20", "9" * 40], pa.string(), AMOUNT, [None, 120, None]),
        ([[1]], pa.list_(pa.int64()), Type(Kind.STRING), [None]),
        ([None, None], pa.null(), AMOUNT, [None, None]),
    ],
)  # fmt: skip
def test_what_fits_and_what_does_not(values: list[Any], arrow: pa.DataType, type_: Type, expected: list[Any]) -> None:
    converted = given_as(values, arrow, type_)
    assert converted.values.to_pylist() == expected
    assert converted.bad.tolist() == [e is None and v is not None for v, e in zip(values, expected, strict=True)]
    assert bool(converted.reason) == converted.bad.any()


def test_a_slice_is_converted_like_its_copy() -> None:
    column = pa.array([decimal.Decimal(i) / 4 for i in range(100)], pa.decimal128(10, 2))
    assert convert(column.slice(37, 20), AMOUNT).values.to_pylist() == [25 * i for i in range(37, 57)]


def test_there_is_one_zero() -> None:
    values = convert(pa.array([-0.0, 0.0, None]), Type(Kind.FLOAT, nullable=True)).values
    assert np.signbit(np.asarray(values.drop_null())).tolist() == [False, False]


@given(
    st.lists(st.none() | st.text("a1.-T:Z ", max_size=12)),
    st.sampled_from(
        (*(Type(kind) for kind in (Kind.STRING, Kind.INT, Kind.FLOAT, Kind.TIME, Kind.BOOL)), AMOUNT, ENUM)
    ),
)
def test_a_view_of_texts_is_those_texts(values: list[str | None], type_: Type) -> None:
    view, texts = (given_as(values, arrow, type_) for arrow in (pa.string_view(), pa.large_string()))
    assert view.values.equals(texts.values)
    assert (view.bad.tolist(), view.reason) == (texts.bad.tolist(), texts.reason)


@given(st.integers(-13_107_199, 13_107_199))
def test_float32_money_is_the_money_that_it_was(units: int) -> None:
    single = np.float32(units / 100)
    assert given_as([single], pa.float32(), AMOUNT).values.to_pylist() == [units]
    assert given_as([float(single)], pa.float64(), AMOUNT).values.to_pylist() == [units]  # Avro gives a float like this


@given(st.floats(-131_000, 131_000, width=32))
def test_a_float32_that_is_no_number_of_cents_is_bad(single: float) -> None:
    is_money = np.float32(round(single, 2)) == np.float32(single) or abs(single * 100 - round(single * 100)) < 1e-6
    assert given_as([single], pa.float32(), AMOUNT).bad.tolist() == [not is_money]


DECLARED = dict(zip(TYPES, (
    Type(Kind.STRING), Type(Kind.INT), Type(Kind.FLOAT), Type(Kind.DECIMAL, scale=2), Type(Kind.BOOL),
    Type(Kind.ENUM, symbols=("a", "b", "1")), Type(Kind.TIME), Type(Kind.DURATION),
), strict=True))  # fmt: skip
SHOWN: dict[Kind, Callable[[Any], str]] = {
    Kind.STRING: str, Kind.INT: str, Kind.FLOAT: repr, Kind.DECIMAL: lambda units: str(Decimal(units).scaleb(-2)),
    Kind.BOOL: lambda truth: str(truth).lower(), Kind.ENUM: lambda code: ("a", "b", "1")[code],
    Kind.TIME: lambda ms: (datetime(1970, 1, 1) + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds") + "Z",  # noqa: DTZ001
    Kind.DURATION: lambda ms: f"{ms} ms",
}  # fmt: skip
VALUES: dict[str, Callable[[str], Any]] = {
    "text": lambda text: text.replace(BLANK, " "),
    "grouped digits": str, "whole number": int, "double": float, "special double": float, "float32": float,
    "boolean": lambda text: text == "true", "decimal": Decimal, "list, object": json.loads,
    "bytes": lambda text: text.encode().decode("unicode_escape").encode("latin-1"),
    "timestamp": datetime.fromisoformat, "date": date.fromisoformat, "duration": lambda _: timedelta(seconds=7200),
}  # fmt: skip
ARROW: dict[str, list[pa.DataType]] = {
    "text": [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    "grouped digits": [pa.string(), pa.large_string()],
    "whole number": [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    "double": [pa.float64()], "special double": [pa.float64(), pa.float32()], "float32": [pa.float32()],
    "bytes": [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)],
    "boolean": [pa.bool_()], "list, object": [pa.list_(pa.int64())],
    "decimal": [pa.decimal64(10, 2), pa.decimal128(20, 2), pa.decimal256(50, 3)],
    "timestamp": [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in ("UTC", "Asia/Tokyo")],
    "date": [pa.date32(), pa.date64()], "duration": [pa.duration(unit) for unit in ("s", "ms", "us", "ns")],
}  # fmt: skip
AVRO: dict[str, list[Any]] = {
    "text": ["string"], "whole number": ["int", "long"], "double": ["double"], "special double": ["double", "float"],
    "float32": ["float"], "boolean": ["boolean"], "list, object": [{"type": "array", "items": "long"}],
    "decimal": [
        {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        {"type": "fixed", "name": "f", "size": 9, "logicalType": "decimal", "precision": 18, "scale": 2},
    ],
    "timestamp": [{"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros")],
    "date": [{"type": "int", "logicalType": "date"}],
    "bytes": ["bytes", {"type": "fixed", "name": "f", "size": 3}],
}  # fmt: skip


PLAIN = mapping_of()
# Kinds of values of a column of pandas that has others, too.
SEVERAL = (
    "text",
    "double",
    "boolean",
    "whole number",
    "decimal",
    "bytes",
    "duration",
    "list, object",
    "timestamp",
    "date",
)
SEVERAL_KINDS = "pandas of several kinds"
VIEWS = (pa.types.is_string_view, pa.types.is_binary_view)  # which Arrow does not write
# Kinds of fields of messages, by their numbers in a descriptor.
PROTOBUF = {
    "text": (9,), "grouped digits": (9,), "whole number": (3, 5, 15, 16, 17, 18), "double": (1,),
    "special double": (1, 2), "float32": (2,), "boolean": (8,), "bytes": (12,),
}  # fmt: skip


def schema_of(type_: Type) -> Schema:
    value = ("v", type_.as_nullable())  # NaN in a frame of pandas is null
    fields = (("i", Type(Kind.ID)), ("k", Type(Kind.STRING)), ("event_time", Type(Kind.TIME)), value)
    return Schema((EventType("e", tuple(Field(name, of_field) for name, of_field in fields)),))


def shown(type_: Type, ids: pa.Array, values: Any, count: int) -> list[str]:
    """Return the values that were read, in the order of the records."""
    listed = values.to_pylist() if isinstance(values, pa.Array) else values.tolist()
    read = dict(zip(ids.to_pylist(), listed, strict=True))
    return [NOTHING if read.get(str(n)) is None else SHOWN[type_.kind](read[str(n)]) for n in range(count)]


def of_decoded(type_: Type, decoded: Any, count: int) -> list[str]:
    """Return the values that were read. Each bad one is null in its event, and a letter names the field."""
    assert decoded.event_id.to_pylist() == [str(n) for n in range(count)]
    assert {poison.bad_values for poison in decoded.poison} <= {(("wrong_value", "v"),)}
    assert len(decoded.poison) <= decoded.columns["v"].null_count
    return shown(type_, decoded.event_id, decoded.columns["v"], count)


def records(values: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"i": str(n), "k": "k", "event_time": "2026-01-01T00:00:00Z", "v": v} for n, v in enumerate(values)]


def table_of(column: pa.Array) -> pa.Table:
    rest = {name: [record[name] for record in records([None] * len(column))] for name in ("i", "k", "event_time")}
    return pa.table({**rest, "v": column})


def of_file(type_: Type, path: Path, count: int, mapping: FieldMapping) -> list[str]:
    batch = read_key(path, schema_of(type_), ("k",), "k", mapping).batch
    return shown(type_, batch.event_id, batch.columns["v"], count)


def of_files(type_: Type, path: Path, count: int, mapping: FieldMapping) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the values of a file alone, and of folders in which other files differ from it."""
    yield path.suffix, of_file(type_, path, count, mapping)
    for name, folder in folders_of(path):
        yield f"{path.suffix} next to {name}", of_file(type_, folder, count, mapping)


def of_frame(type_: Type, frame: Any, count: int, mapping: FieldMapping) -> list[str]:
    naming = Naming(tz="UTC", forms={"minor": sorted(mapping.minor)})
    schema = schema_of(type_)
    table = events_table(open_frame(frame), schema, naming)
    return of_decoded(type_, decode_table(schema, table, str, naming.values(schema)), count)


def of_avro(type_: Type, values: Sequence[Any], avro: Any, place: Path, mapping: FieldMapping) -> list[str]:
    fields = [{"name": name, "type": "string"} for name in ("i", "k", "event_time")]
    written = {"type": "record", "name": "e", "fields": [*fields, {"name": "v", "type": avro}]}
    path = place / f"{hash(str(avro))}.avsc"  # schemas are remembered by their file
    path.write_text(json.dumps(written), encoding="utf-8")
    encoded = []
    for record in records(values):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(written), record)
        encoded.append(stream.getvalue())
    form = RecordFormat("avro", schema_file=str(path), mapping=mapping)
    return of_decoded(type_, decode(form, schema_of(type_), pa.array(encoded, pa.binary()), "t"), len(values))


@cache
def message_of(kind: int) -> Any:
    """Return the class of a message whose field `v` is of this kind."""
    file = descriptor_pb2.FileDescriptorProto(name=f"e{kind}.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="E")
    for number, (name, of_field) in enumerate({"i": 9, "k": 9, "event_time": 9, "v": kind}.items(), start=1):
        message.field.add(name=name, number=number, type=of_field, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.E"))


def of_protobuf(type_: Type, values: Sequence[Any], kind: int, mapping: FieldMapping) -> list[str]:
    """Read serialized messages."""
    message = message_of(kind)
    read = [fields_of(message.FromString(message(**record).SerializeToString())) for record in records(values)]
    parts = _decoded_columns(schema_of(type_), mapping, read)
    decoded, _ = in_row_order(schema_of(type_), parts)
    return of_decoded(type_, decoded, len(values))


def folders_of(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield folders of the file and of another one: there the column has texts, or the column is missing."""
    texts = [{**record, "i": f"text {n}"} for n, record in enumerate(records(["x", None]))]
    for name, others in (("texts", texts), ("a file without it", [drop(record, "v") for record in texts])):
        folder = path.with_name(f"{path.suffix} {name}")
        folder.mkdir(exist_ok=True)
        shutil.copy(path, folder / f"b{path.suffix}")
        for number, other in enumerate((folder / f"a{path.suffix}", folder / f"c{path.suffix}")):
            write_file(other, [{**record, "i": f"{record['i']} {number}"} for record in others])
        yield name, folder


def drop(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}


def write_file(path: Path, written: Sequence[dict[str, Any]]) -> None:
    """Write records as CSV, as JSON lines, or as Parquet, as the name of the file says."""
    match path.suffix:
        case ".csv":
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(written[0]))
                writer.writeheader()
                writer.writerows(written)
        case ".jsonl":
            path.write_bytes(b"\n".join(map(orjson.dumps, written)))
        case _:
            pq.write_table(pa.Table.from_pylist(list(written)), path)


@pytest.mark.parametrize("declared", TYPES)
@pytest.mark.parametrize("kind", VALUES)
def test_each_cell_holds_in_each_form(kind: str, declared: str, tmp_path: Path) -> None:
    type_, chosen = DECLARED[declared], [row for row in rows() if row.kind == kind]
    values = [VALUES[kind](row.value) for row in chosen]
    expected = [row.expected[TYPES.index(declared)] for row in chosen]
    read = dict(forms(type_, kind, values, tmp_path))
    expected = [cell.replace(BLANK, " ") for cell in expected]
    if type_.kind is Kind.TIME and kind in ("whole number", "double", "decimal"):
        # A number that is a time is read like a text there, which needs nine digits.
        several = [cell if abs(value) >= 10**8 else NOTHING for value, cell in zip(values, expected, strict=True)]
        assert read.pop(SEVERAL_KINDS) == several
    assert read == dict.fromkeys(read, expected)


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in MINOR}))
def test_minor_units_are_read_alike_in_each_form(kind: str, tmp_path: Path) -> None:
    chosen = [(value, cell) for of_kind, value, cell in MINOR if of_kind == kind]
    values = [VALUES[kind](value) for value, _ in chosen]
    read = dict(forms(DECLARED["decimal(2)"], kind, values, tmp_path, mapping_of(minor=("v",))))
    expected = [cell for _, cell in chosen]
    assert read == dict.fromkeys(read, expected)


def forms(type_: Type, kind: str, values: Sequence[Any], place: Path, mapping: FieldMapping = PLAIN) -> Any:
    """Yield each form that can hold values of this kind: its name, and the values that cep reads from it."""
    if kind in ("text", "grouped digits", "whole number", "double", "boolean", "list, object"):
        lines = pa.array([orjson.dumps(record) for record in records(values)])
        yield "JSON", of_decoded(type_, decode_json(schema_of(type_), lines, mapping), len(values))
        write_file(place / "values.jsonl", records(values))
        yield from of_files(type_, place / "values.jsonl", len(values), mapping)
    if kind == "text":
        write_file(place / "values.csv", records(values))
        yield from of_files(type_, place / "values.csv", len(values), mapping)
    for number in PROTOBUF.get(kind, ()):
        if number not in (17, 18) or min(values) < 0:  # a negative number of these kinds has another notation
            yield f"Protobuf {number}", of_protobuf(type_, values, number, mapping)
    for arrow in ARROW[kind]:
        column = pa.array(values).cast(arrow) if pa.types.is_decimal(arrow) else pa.array(values, arrow)
        decoded = decode_table(schema_of(type_), table_of(column), str, mapping)
        yield f"Arrow {arrow}", of_decoded(type_, decoded, len(column))
        if not any(is_kind(arrow) for is_kind in (pa.types.is_decimal64, *VIEWS)):
            path = place / "values.parquet"
            pq.write_table(table_of(column), path)
            for name, read in of_files(type_, path, len(values), mapping):
                yield f"{arrow} {name}", read
        if kind not in ("special double", "list, object"):  # frames refuse a column of lists by its name
            table = table_of(column)
            if pa.types.is_decimal256(arrow) or pa.types.is_decimal64(arrow):
                continue
            yield f"pandas {arrow}", of_frame(type_, table.to_pandas(), len(values), mapping)
            if arrow != pa.date64():  # polars makes a timestamp of this type
                yield f"polars {arrow}", of_frame(type_, pl.from_arrow(table), len(values), mapping)
    if kind in ("text", "date", "timestamp", "boolean", "decimal", "bytes", "duration"):
        objects = pd.DataFrame(records(values), dtype=object)
        yield "pandas object", of_frame(type_, objects, len(values), mapping)
    if kind == "timestamp" and type_.kind is Kind.TIME:
        path, moments = place / "int96.parquet", pa.array(values, pa.timestamp("us", "UTC"))
        pq.write_table(table_of(moments), path, use_deprecated_int96_timestamps=True)
        yield "Parquet INT96", of_file(type_, path, len(values), replace(mapping, time=Written(zone="UTC")))
    if kind in SEVERAL:
        objects = pd.DataFrame(records([*values, {"a": 1}, "x", 0.5]), dtype=object)
        yield SEVERAL_KINDS, of_frame(type_, objects, len(objects), mapping)[: len(values)]
    for avro in AVRO.get(kind, ()):
        yield f"Avro {avro}", of_avro(type_, values, avro, place, mapping)


def test_the_table_is_whole() -> None:
    assert {row.kind for row in rows()} == VALUES.keys()
    assert all(len(row.expected) == len(TYPES) for row in rows())
    assert all(isinstance(row, Cells) for row in rows())
