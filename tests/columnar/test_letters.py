"""The dead letter of a record names the value of that record, in every form and however many other records are bad."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pyarrow.csv as pc_csv
import pytest

from cep.columnar.convert import Written
from cep.columnar.decode import Decoded, concat_decoded, decode_json, decode_table
from cep.columnar.mapping import mapping_of
from cep.sources.pieces import pieces_of_table
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import decode as decode_topic
from tests.columnar.common import GOOD, ONE

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
