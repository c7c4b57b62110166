"""Each cell of the table of conversions, in each form that has values of the kind."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from cep.api.frames import events_table, open_frame
from cep.api.naming import Naming
from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.columnar.convert import Written
from cep.columnar.decode import decode_json, decode_table, in_row_order
from cep.columnar.mapping import FieldMapping, mapping_of
from cep.sources.files import read_key
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import _columns, decode, fields_of
from tests.columnar.conversions import BLANK, MINOR, NOTHING, TYPES, Cells, rows

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


def of_json(type_: Type, values: Sequence[Any], mapping: FieldMapping) -> list[str]:
    lines = pa.array([orjson.dumps(record) for record in records(values)])
    return of_decoded(type_, decode_json(schema_of(type_), lines, mapping), len(values))


def of_file(type_: Type, path: Path, count: int, mapping: FieldMapping) -> list[str]:
    batch = read_key(path, schema_of(type_), ("k",), "k", mapping).batch
    return shown(type_, batch.event_id, batch.columns["v"], count)


def of_files(type_: Type, path: Path, count: int, mapping: FieldMapping) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the values of a file alone, and of folders in which other files differ from it."""
    yield path.suffix, of_file(type_, path, count, mapping)
    for name, folder in folders_of(path):
        yield f"{path.suffix} next to {name}", of_file(type_, folder, count, mapping)


def of_arrow(type_: Type, column: pa.Array, mapping: FieldMapping) -> list[str]:
    table = table_of(column)
    return of_decoded(type_, decode_table(schema_of(type_), table, str, mapping), len(column))


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
    parts = _columns(schema_of(type_), mapping, read, [b""] * len(values))
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
        yield "JSON", of_json(type_, values, mapping)
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
        yield f"Arrow {arrow}", of_arrow(type_, column, mapping)
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
