"""Records → typed columns, with what cannot be decoded set aside.

    JSON texts ──parse_json.py──▶ columns ─┐
    Parquet, CSV: a table ─────────────────┴─ one conversion each ─▶ Decoded (good rows) + Poison (the others)

No Python object is made for a good record.
Tested by: tests/columnar/test_decode.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.base.limits import FIELD_BYTES_MAX
from cep.base.schema import ColumnUse, Schema
from cep.columnar.batch import NO_VALUE, TEXT, are_short, data_columns, joined_orders, slot_values, text_offsets
from cep.columnar.convert import US_PER_MS, convert, convert_us
from cep.columnar.mapping import PLAIN, TYPE_FIELD, FieldMapping
from cep.columnar.order import order_table
from cep.columnar.parse_json import columns_of, parse_json, text_of
from cep.columnar.texts import numbered, rows_among
from cep.columnar.tokens import with_tokens

TOO_LONG = "too_long"
UNREADABLE_FILE = "unreadable_file"  # a whole file, or what is left of it
_UNREADABLE = "unreadable"
# Unknown event types that are named in the reason: a stream of noise may have a new one in every record.
_TYPES_NAMED_MAX = 16
_TYPE_CHARS = 64
_SCHEMAS_CACHED = 64
_NO_ID = pa.scalar(None, TEXT)


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
    event_type: NDArray[np.int16]
    time_ms: NDArray[np.int64]
    columns: Mapping[str, pa.Array]
    poison: tuple[Poison, ...]
    order: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.time_ms)

    def between(self, begins_ms: int, ends_ms: int) -> Decoded:
        """Take the good records whose event time is in [begins_ms, ends_ms), and all poison ones."""
        return self._rows(np.flatnonzero((self.time_ms >= begins_ms) & (self.time_ms < ends_ms)))

    def without(self, event_ids: pa.Array) -> Decoded:
        """Take the good records whose id is not among these, and all poison ones."""
        return self._rows(np.flatnonzero(rows_among(self.event_id, event_ids.cast(TEXT)) < 0))

    def _rows(self, rows: NDArray[np.int64]) -> Decoded:
        if len(rows) == len(self):
            return self
        indices = pa.array(rows)
        columns = {name: column.take(indices) for name, column in self.columns.items()}
        order = None if self.order is None else self.order[rows]
        return Decoded(
            self.event_id.take(indices), self.event_type[rows], self.time_ms[rows], columns, self.poison, order
        )


def decode_json(schema: Schema, values: pa.Array, mapping: FieldMapping = PLAIN) -> Decoded:
    """Decode JSON objects, one a value (binary or text), whose fields are where the mapping says.

    A field that the event's type does not have is ignored. The field `event_type` names the type; it may be left out
    where the schema has a single one.
    """
    if mapping.has_views:
        return _of_views(schema, mapping, partial(decode_json, schema, values))
    large = values if values.type == pa.large_binary() else values.cast(pa.large_binary())
    good, broken = parse_json(schema, large, mapping)
    parts = [_decode(schema, len(texts), given, partial(_record_text, texts), mapping) for given, texts in good]
    merged = concat_decoded(schema, parts)
    if not broken:
        return merged
    unreadable = (Poison(_UNREADABLE, record.reason, record.record) for record in broken)
    return replace(merged, poison=(*merged.poison, *unreadable))


def decode_table(
    schema: Schema, table: pa.Table | pa.RecordBatch, show: Callable[[int], str], mapping: FieldMapping = PLAIN
) -> Decoded:
    """Decode records that are columns already. `show(row)` gives a record as text, for those that are set aside.

    A column that is missing is null in every record. Conversions are those of convert.py. A record with a text that is
    not UTF-8, which only a file's writer or a forger makes, is set aside alone.
    """
    if mapping.has_views:
        return _of_views(schema, mapping, partial(decode_table, schema, table, show))
    try:
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        return _decode_halves(schema, table, show, mapping, error)
    given = columns_of(table)
    if not mapping.is_plain:
        given = mapping.arrays(schema, given, table.num_rows)
    return _decode(schema, table.num_rows, given, show, mapping)


def _of_views(schema: Schema, mapping: FieldMapping, decode: Callable[[FieldMapping], Decoded]) -> Decoded:
    """Decode each view of the records; what is no record is set aside once."""
    first, *others = (decode(view) for view in mapping.views)
    once = {poison.record for poison in first.poison if poison.code == _UNREADABLE}
    others = [
        replace(each, poison=tuple(p for p in each.poison if p.code != _UNREADABLE or p.record not in once))
        for each in others
    ]
    return concat_decoded(schema, [first, *others])


def _decode_halves(
    schema: Schema, table: pa.Table | pa.RecordBatch, show: Callable[[int], str], mapping: FieldMapping,
    error: pa.ArrowInvalid,
) -> Decoded:  # fmt: skip
    if table.num_rows <= 1:
        nothing = _decode(schema, 0, {}, str)
        return replace(nothing, poison=(Poison(_UNREADABLE, str(error).partition("\n")[0], ""),) * table.num_rows)
    half = table.num_rows // 2
    first = decode_table(schema, table.slice(0, half), show, mapping)
    second = decode_table(schema, table.slice(half), lambda row: show(half + row), mapping)
    return concat_decoded(schema, [first, second])


def _decode(
    schema: Schema, rows: int, given: Mapping[str, pa.Array], show: Callable[[int], str], mapping: FieldMapping = PLAIN
) -> Decoded:
    if mapping.needs:
        rows, given, show = _of_view(rows, given, show, mapping)
    event_type, verdict = _event_types(schema, given.get(TYPE_FIELD), rows)
    if schema.protected:
        show = show if mapping.is_plain else partial(_by_field, schema, mapping, show)
        given = with_tokens(schema, given, verdict.refuse)
    columns: dict[str, pa.Array] = {}
    times_us = np.zeros(rows, np.int64)
    declared: NDArray[np.int64] | None = None
    ids: pa.Array | pa.Scalar = _NO_ID
    for use in schema.column_uses:
        name = use.name
        written = None if mapping.is_plain else mapping.written(name, use.type.kind)
        source = given[name] if name in given else pa.nulls(rows)
        converted = convert_us(source, written) if use.is_time else convert(source, use.type, written)
        values = converted.values
        if converted.bad is not None:
            bad = converted.bad & np.array(use.has_field)[event_type]
            verdict.refuse(bad, "wrong_value", partial(_of_field, name, converted.reason))
        if converted.nulls is not None:
            missing = converted.nulls & np.array(use.is_required)[event_type]
            verdict.refuse(missing, "missing_field", f"field `{name}` is missing or null")
        if not use.is_everywhere:
            has_field = np.array(use.has_field)[event_type]
            if not has_field.all():
                values = pc.if_else(pa.array(has_field), values, pa.scalar(None, values.type))
        if use.type.is_text:
            _refuse_long(use, values, event_type, verdict)
        if use.is_time:
            times_us = slot_values(values)
            continue
        if any(use.is_order):
            declared = _declared(use, values, event_type, declared)
        if mapping.view and use.may_be_id:
            values = pc.if_else(_is_id(use, event_type), mapping.event_ids(values), values)
        columns[name] = values
        if use.is_always_id:
            ids = values
        elif use.may_be_id:
            ids = pc.if_else(_is_id(use, event_type), values, ids)
    times = times_us // US_PER_MS
    order = order_table(times_us - times * US_PER_MS, declared, mapping.view, mapping.position, rows)
    if verdict.bad is None:
        return Decoded(ids, event_type, times, columns, (), order)
    good = np.flatnonzero(~verdict.bad)
    indices = pa.array(good)
    return Decoded(
        ids.take(indices),
        event_type[good],
        times[good],
        {name: column.take(indices) for name, column in columns.items()},
        verdict.poison(show),
        None if order is None else order[good],
    )


def _declared(
    use: ColumnUse, values: pa.Array, event_type: NDArray[np.int16], declared: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Return the values of the fields that order events of one time, with those of this column filled in."""
    has_value = np.array(use.is_order)[event_type] & np.asarray(pc.is_valid(values))
    others = NO_VALUE if declared is None else declared
    filled: NDArray[np.int64] = np.where(has_value, slot_values(values), others)
    return filled


def _of_view(
    rows: int, given: Mapping[str, pa.Array], show: Callable[[int], str], mapping: FieldMapping
) -> tuple[int, Mapping[str, pa.Array], Callable[[int], str]]:
    """Take the records that have a value in a field that the view needs; the others are no events of it."""
    has_value = np.zeros(rows, bool)
    for name in mapping.needs:
        if name in given:
            has_value |= pc.is_valid(given[name]).to_numpy(zero_copy_only=False)
    if has_value.all():
        return rows, given, show
    places = np.flatnonzero(has_value)
    taken = pa.array(places)
    # Arrow has no `take` of views of texts.
    columns = {n: c.cast(TEXT) if pa.types.is_string_view(c.type) else c for n, c in given.items()}
    return len(places), {n: column.take(taken) for n, column in columns.items()}, lambda row: show(int(places[row]))


def _is_id(use: ColumnUse, event_type: NDArray[np.int16]) -> pa.Array:
    """Return for each event whether the field is its id."""
    return pa.array(np.array(use.is_id)[event_type])


def _refuse_long(use: ColumnUse, texts: pa.Array, event_type: NDArray[np.int16], verdict: _Verdict) -> None:
    if are_short(texts, FIELD_BYTES_MAX):
        return
    is_long = (np.diff(text_offsets(texts)) > FIELD_BYTES_MAX) & np.array(use.has_field)[event_type]
    if texts.null_count:
        is_long &= np.asarray(pc.is_valid(texts))
    verdict.refuse(is_long, TOO_LONG, f"field `{use.name}` has more than {FIELD_BYTES_MAX} bytes")


class _Verdict:
    """The refused rows, None as long as there is none, and the first reason for each."""

    def __init__(self, rows: int) -> None:
        self.bad: NDArray[np.bool_] | None = None
        self._reason = np.empty(rows, np.int32)
        self._reasons: list[tuple[str, str | Callable[[int], str]]] = []

    def refuse(self, rows: NDArray[np.bool_], code: str, reason: str | Callable[[int], str]) -> None:
        """Refuse rows, with a reason for all of them or a function that gives the reason for one."""
        new = rows if self.bad is None else rows & ~self.bad
        if new.any():
            self._reason[new] = len(self._reasons)
            self._reasons.append((code, reason))
            self.bad = new if self.bad is None else self.bad | new

    def poison(self, show: Callable[[int], str]) -> tuple[Poison, ...]:
        rows = [] if self.bad is None else np.flatnonzero(self.bad).tolist()
        return tuple(self._poison(row, show) for row in rows)

    def _poison(self, row: int, show: Callable[[int], str]) -> Poison:
        code, reason = self._reasons[self._reason[row]]
        return Poison(code, reason if isinstance(reason, str) else reason(row), show(row))


def _by_field(schema: Schema, mapping: FieldMapping, show: Callable[[int], str], row: int) -> str:
    """Show a record under the names of its fields, by which redact.py knows what is protected."""
    text = show(row)
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return orjson.dumps({name: mapping.value(record, name) for name in mapping.paths(schema)}, default=str).decode()


def _of_field(name: str, reason: Callable[[int], str], row: int) -> str:
    return f"field `{name}`: {reason(row)}"


def _event_types(schema: Schema, column: pa.Array | None, rows: int) -> tuple[NDArray[np.int16], _Verdict]:
    verdict = _Verdict(rows)
    # A record that names no type is of the only one that comes from sources.
    given, single = schema.source_codes, len(schema.source_codes) == 1
    if column is None or TYPE_FIELD in schema.columns():
        if not single:
            verdict.refuse(np.ones(rows, bool), "unknown_event_type", f"field `{TYPE_FIELD}` is missing or null")
        return np.full(rows, given[0] if single else 0, np.int16), verdict
    if single and column.null_count == rows:
        return np.full(rows, given[0], np.int16), verdict
    names = column if column.type == pa.string() else column.cast(pa.string())
    codes = pc.index_in(names, value_set=_type_names(schema))
    if codes.null_count == 0:
        return np.asarray(codes).astype(np.int16), verdict
    unnamed = np.asarray(pc.is_null(names))
    unknown = np.asarray(pc.is_null(codes)) & ~unnamed
    if not single:
        verdict.refuse(unnamed, "unknown_event_type", f"field `{TYPE_FIELD}` is missing or null")
    declared = ", ".join(e.name for e in schema.event_types)
    strange = numbered(names.filter(pa.array(unknown)).cast(TEXT))[0].slice(0, _TYPES_NAMED_MAX).to_pylist()
    for name in strange:
        which = unknown & np.asarray(pc.equal(names, name).fill_null(False))
        verdict.refuse(which, "unknown_event_type", f"event type {name[:_TYPE_CHARS]!r} is not one of {declared}")
    verdict.refuse(unknown, "unknown_event_type", f"the event type is not one of {declared}")
    return np.asarray(codes.fill_null(given[0] if single else 0)).astype(np.int16), verdict


@lru_cache(maxsize=_SCHEMAS_CACHED)
def _type_names(schema: Schema) -> pa.Array:
    return pa.array([e.name for e in schema.event_types], pa.string())


def _record_text(records: pa.Array, row: int) -> str:
    return text_of(records[row].as_py())


def concat_decoded(schema: Schema, parts: Sequence[Decoded]) -> Decoded:
    """Join all records of the parts, in their order."""
    if len(parts) == 1:
        return parts[0]
    names = data_columns(schema)
    if not parts:
        return decode_table(schema, pa.table({n: pa.nulls(0) for n in (TYPE_FIELD, *schema.columns())}), str)
    return Decoded(
        pa.concat_arrays([p.event_id for p in parts]),
        np.concatenate([p.event_type for p in parts]),
        np.concatenate([p.time_ms for p in parts]),
        {name: pa.concat_arrays([p.columns[name] for p in parts]) for name in names},
        tuple(record for p in parts for record in p.poison),
        joined_orders([(p.order, len(p)) for p in parts]),
    )
