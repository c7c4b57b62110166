"""Records → typed columns, with what cannot be decoded set aside.

    JSON texts ──arrow's JSON reader──▶ table ─┐
    Parquet, CSV: a table ─────────────────────┴─ one conversion a column ─▶ Decoded (good rows) + Poison (the others)

A block of records is parsed as a whole. If that fails it is halved until the record that spoils it stands alone, so
a poison record costs a few more passes and nothing else is lost. No Python object is made for a good record.
Tested by: tests/columnar/test_decode.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from cep.base.schema import Schema
from cep.columnar.batch import TEXT, data_columns
from cep.columnar.convert import convert

TYPE_FIELD = "event_type"
_PARSE_BLOCK_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Poison:
    """A record that cannot be decoded: a stable code, the reason, and the record as text, cut to a limit."""

    code: str
    reason: str
    record: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """Good records as columns (see EventBatch, but without a key), and the poison ones."""

    event_id: pa.Array
    event_type: np.ndarray
    time_ms: np.ndarray
    columns: Mapping[str, pa.Array]
    poison: tuple[Poison, ...]

    def __len__(self) -> int:
        return len(self.time_ms)


def decode_json(schema: Schema, values: pa.Array) -> Decoded:
    """Decode JSON objects, one a value (binary or text).

    A field that the schema does not know is ignored. The field `event_type` names the type; it may be left out where
    the schema has a single one.
    """
    good, broken = _parse(schema, values.cast(pa.large_binary()))
    parts = [decode_table(schema, table, lambda row, v=texts: _text(v[row].as_py())) for table, texts in good]
    merged = _concat(schema, parts)
    return Decoded(
        merged.event_id, merged.event_type, merged.time_ms, merged.columns, (*merged.poison, *broken)
    )


def _parse(schema: Schema, values: pa.Array) -> tuple[list[tuple[pa.Table, pa.Array]], list[Poison]]:
    """Tables with the records they came from, and the records that are no JSON objects of the schema's shape."""
    good: list[tuple[pa.Table, pa.Array]] = []
    broken: list[Poison] = []
    blocks = [values] if len(values) else []
    while blocks:
        block = blocks.pop()
        try:
            good.append((_parse_block(schema, block), block))
        except (pa.ArrowInvalid, orjson.JSONDecodeError) as error:
            if len(block) == 1:
                broken.append(Poison("unreadable", str(error).split("\n")[0], _text(block[0].as_py())))
            else:
                half = len(block) // 2
                blocks += [block.slice(half), block.slice(0, half)]
    return good, broken


def _parse_block(schema: Schema, block: pa.Array) -> pa.Table:
    """All records of the block as one table, or an error if one of them spoils it."""
    if block.null_count:
        raise pa.ArrowInvalid("the record is empty")
    lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(block)], pa.int32()), block), b"\n")[0].as_py()
    if lines.count(b"\n") != len(block) - 1:  # a record with line breaks of its own
        lines = b"\n".join(orjson.dumps(orjson.loads(value)) for value in block.to_pylist())
    first = orjson.loads(block[0].as_py())
    if not isinstance(first, dict):
        raise pa.ArrowInvalid("the record is not a JSON object")
    table = pj.read_json(
        pa.BufferReader(lines),
        read_options=pj.ReadOptions(use_threads=False, block_size=max(len(lines) + 1, _PARSE_BLOCK_BYTES)),
        parse_options=pj.ParseOptions(
            explicit_schema=_json_shape(schema, first), unexpected_field_behavior="ignore", newlines_in_values=False
        ),
    )
    if table.num_rows != len(block):
        raise pa.ArrowInvalid("the record is empty")
    return table


def _json_shape(schema: Schema, sample: Mapping[str, object]) -> pa.Schema:
    """How to read each field: as its type wants it, or, for texts and times, as the sample writes it."""
    shape: dict[str, pa.DataType] = {TYPE_FIELD: pa.string()}
    for name, type_ in schema.columns().items():
        written = sample.get(name)
        whole = isinstance(written, int) and not isinstance(written, bool)
        shape[name] = pa.int64() if whole and _reads_numbers(type_.kind.value) else _JSON_TYPES[type_.kind.value](type_.scale)
    return pa.schema(list(shape.items()))


def _reads_numbers(kind: str) -> bool:
    return kind in ("id", "string", "time", "duration")


_JSON_TYPES = {
    "id": lambda _: pa.string(),
    "string": lambda _: pa.string(),
    "enum": lambda _: pa.string(),
    "time": lambda _: pa.string(),
    "duration": lambda _: pa.int64(),
    "int": lambda _: pa.int64(),
    "float": lambda _: pa.float64(),
    "bool": lambda _: pa.bool_(),
    "decimal": lambda scale: pa.decimal128(18 + scale, scale),
}


def decode_table(schema: Schema, table: pa.Table | pa.RecordBatch, show: object) -> Decoded:
    """Decode records that are columns already. `show(row)` gives a record as text, for those that are set aside.

    A column that is missing is null in every record. Conversions are those of convert.py.
    """
    rows = table.num_rows
    event_type, verdict = _event_types(schema, table, rows)
    columns: dict[str, pa.Array] = {}
    times = np.zeros(rows, np.int64)
    ids = pa.nulls(rows, TEXT)
    for name, type_ in schema.columns().items():
        converted = convert(_column(table, name), type_)
        verdict.refuse(converted.bad, "wrong_value", f"field `{name}`: {converted.reason}")
        required = np.array([_requires(schema, code, name) for code in range(len(schema.event_types))], bool)
        missing = converted.nulls & required[event_type] & ~converted.bad
        verdict.refuse(missing, "missing_field", f"field `{name}` is missing or null")
        roles = {e.time_field for e in schema.event_types}
        if name in roles:
            times = np.asarray(converted.values.fill_null(0))
            continue
        columns[name] = converted.values
        has_id = np.array([e.id_field == name for e in schema.event_types], bool)[event_type]
        if has_id.any():
            ids = converted.values if has_id.all() else pc.if_else(pa.array(has_id), converted.values, ids)
    if not verdict.any_bad:
        return Decoded(ids, event_type, times, columns, ())
    kept = np.flatnonzero(~verdict.bad)
    indices = pa.array(kept)
    return Decoded(
        ids.take(indices),
        event_type[kept],
        times[kept],
        {name: column.take(indices) for name, column in columns.items()},
        verdict.poison(show),
    )


class _Verdict:
    """Which rows are refused, and the first reason for each."""

    def __init__(self, rows: int) -> None:
        self.bad = np.zeros(rows, bool)
        self._reason = np.full(rows, -1, np.int32)
        self._reasons: list[tuple[str, str]] = []

    def refuse(self, rows: np.ndarray, code: str, reason: str) -> None:
        new = rows & ~self.bad
        if new.any():
            self._reason[new] = len(self._reasons)
            self._reasons.append((code, reason))
            self.bad |= new

    @property
    def any_bad(self) -> bool:
        return bool(self._reasons)

    def poison(self, show: object) -> tuple[Poison, ...]:
        assert callable(show), "show turns a row number into text"
        return tuple(Poison(*self._reasons[self._reason[row]], show(int(row))) for row in np.flatnonzero(self.bad))


def _event_types(schema: Schema, table: pa.Table | pa.RecordBatch, rows: int) -> tuple[np.ndarray, _Verdict]:
    verdict = _Verdict(rows)
    single = len(schema.event_types) == 1
    named = TYPE_FIELD in table.schema.names and TYPE_FIELD not in schema.columns()
    if not named:
        if not single:
            verdict.refuse(np.ones(rows, bool), "unknown_event_type", f"field `{TYPE_FIELD}` is missing")
        return np.zeros(rows, np.int16), verdict
    names = _column(table, TYPE_FIELD).cast(pa.string())
    codes = pc.index_in(names, value_set=pa.array([e.name for e in schema.event_types], pa.string()))
    unnamed = np.asarray(pc.is_null(names))
    unknown = np.asarray(pc.is_null(codes)) & ~(unnamed if single else np.zeros(rows, bool))
    for name in pc.unique(names.filter(pa.array(unknown))).to_pylist() if unknown.any() else ():
        which = unknown & (unnamed if name is None else np.asarray(pc.equal(names, name).fill_null(False)))
        known = ", ".join(e.name for e in schema.event_types)
        verdict.refuse(which, "unknown_event_type", f"event type {name!r} is not one of {known}")
    return np.asarray(codes.fill_null(0)).astype(np.int16), verdict


def _requires(schema: Schema, code: int, name: str) -> bool:
    field = schema.event_types[code].field(name)
    return field is not None and not field.type.nullable


def _column(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    if name not in table.schema.names:
        return pa.nulls(table.num_rows)
    column = table.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _text(record: bytes | None) -> str:
    return "" if record is None else record.decode("utf-8", "backslashreplace")


def _concat(schema: Schema, parts: Sequence[Decoded]) -> Decoded:
    if len(parts) == 1:
        return parts[0]
    names = data_columns(schema)
    if not parts:
        empty = decode_table(schema, pa.table({n: pa.nulls(0) for n in schema.columns()} | {TYPE_FIELD: pa.nulls(0)}), str)
        return empty
    return Decoded(
        pa.concat_arrays([p.event_id for p in parts]),
        np.concatenate([p.event_type for p in parts]),
        np.concatenate([p.time_ms for p in parts]),
        {name: pa.concat_arrays([p.columns[name] for p in parts]) for name in names},
        tuple(record for p in parts for record in p.poison),
    )


