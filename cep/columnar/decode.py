"""Records → typed columns of events, and rejected records.

    JSON texts ──parse_json.py──▶ columns ─┐
    Parquet, CSV: a table ─────────────────┴─ one conversion each ─▶ Decoded (events) + Poison (rejected records)

A record without a readable id, time or event type is set aside, and so is one that lacks a required field. A bad value
of another field becomes null: the event stays for rules that do not read the field, and its record becomes a dead
letter as well. So a column may have nulls although its field is declared without `?`. No Python object is made for a
good record.

A key domain is a tuple of key fields. An event goes once to every domain of the job whose fields its type has and that
are not null in it (`route`). The key is text: the fields' values, joined by U+001F where there are several. In parts
that hold one, U+001F is written U+001E 1, and U+001E is written U+001E 0.
Tested by: tests/columnar/test_decode.py, tests/columnar/test_route.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.base.limits import FIELD_BYTES_MAX
from cep.base.schema import ColumnUse, Kind, Schema, Type
from cep.columnar.batch import (
    NO_VALUE,
    TEXT,
    EventBatch,
    are_short,
    data_columns,
    joined_orders,
    slot_values,
    text_buffers,
    text_offsets,
)
from cep.columnar.convert import US_PER_MS, convert, convert_us, in_currencies, whole_ms
from cep.columnar.mapping import PLAIN, TYPE_FIELD, FieldMapping
from cep.columnar.order import order_table, with_partitions
from cep.columnar.parse_json import columns_of, parse_json, text_of
from cep.columnar.strays import NO_STRAYS, Strays, without_broken_texts
from cep.columnar.texts import numbered, rows_among
from cep.columnar.times import counting_skipped
from cep.columnar.tokens import with_tokens
from cep.kernels.arrange import hash_slots
from cep.kernels.layout import Int64

TOO_LONG = "too_long"
UNREADABLE_FILE = "unreadable_file"  # a whole file, or the rest of it
_UNREADABLE = "unreadable"
# Unknown event types that are named in the reason: a stream of noise may have a new one in every record.
_TYPES_NAMED_MAX = 16
_TYPE_CHARS = 64
_SCHEMAS_CACHED = 64
_NO_ID = pa.scalar(None, TEXT)


@dataclass(frozen=True, slots=True)
class Poison:
    """A record that was set aside, or an event with unreadable values: a code, the reason, and the record as text.

    Without `bad_values` the record was set aside. With them the record is an event: each is a code and the name of a
    field that is null in the event, and `time_ms` and `event_id` are the event's own.
    """

    code: str
    reason: str
    record: str
    bad_values: tuple[tuple[str, str], ...] = ()
    time_ms: int = field(default=0, repr=False)
    event_id: str = field(default="", repr=False)

    def is_between(self, begins_ms: int, ends_ms: int) -> bool:
        """Return True for an event in a span of time, and for a record that was set aside."""
        return not self.bad_values or begins_ms <= self.time_ms < ends_ms


@dataclass(frozen=True, slots=True)
class Decoded:
    """Events as columns (see EventBatch, but without a key), and rejected records."""

    event_id: pa.Array
    event_type: NDArray[np.int16]
    time_ms: NDArray[np.int64]
    columns: Mapping[str, pa.Array]
    poison: tuple[Poison, ...]  # rejected records; one with `bad_values` is of an event that stays in the columns
    order: NDArray[np.int64] | None = None  # orders the events of one millisecond (order.py); None: as they arrived
    skipped_times: int = 0  # how many local times do not exist, because clocks skip them in spring

    def __len__(self) -> int:
        return len(self.time_ms)

    def between(self, begins_ms: int, ends_ms: int) -> Decoded:
        """Take the events whose time is in [begins_ms, ends_ms), and all records that were set aside."""
        events = self._rows(np.flatnonzero((self.time_ms >= begins_ms) & (self.time_ms < ends_ms)))
        return replace(events, poison=tuple(p for p in self.poison if p.is_between(begins_ms, ends_ms)))

    @property
    def records_count(self) -> int:
        """The number of records: events, and records that were set aside."""
        return len(self) + sum(not poison.bad_values for poison in self.poison)  # with bad values the event stays

    def without(self, event_ids: pa.Array) -> Decoded:
        """Take the events whose id is not among these, and all rejected records."""
        return self._rows(np.flatnonzero(rows_among(self.event_id, event_ids.cast(TEXT)) < 0))

    def _rows(self, rows: NDArray[np.int64]) -> Decoded:
        return self if len(rows) == len(self) else self.take(rows)

    def take(self, rows: NDArray[np.int64]) -> Decoded:
        """Take events by their rows, in this order, and all rejected records."""
        indices = pa.array(rows)
        columns = {name: column.take(indices) for name, column in self.columns.items()}
        order = None if self.order is None else self.order[rows]
        return Decoded(
            self.event_id.take(indices), self.event_type[rows], self.time_ms[rows], columns, self.poison, order,
            self.skipped_times,
        )  # fmt: skip


# Events, and the row of the record of each: int64[N], ascending.
EventRows = tuple[Decoded, NDArray[np.int64]]


def decode_json(schema: Schema, values: pa.Array, mapping: FieldMapping = PLAIN) -> Decoded:
    """Decode JSON objects, one a value (binary or text), whose fields are where the mapping says.

    A field that the event's type does not have is ignored. `event_type` names the type, if the schema has several.
    """
    return events_of_views(schema, mapping, partial(json_rows, schema, values))[0]


def json_rows(schema: Schema, values: pa.Array, mapping: FieldMapping) -> EventRows:
    """Decode JSON records as the events of one view (one of several events that a record becomes). Return the events,
    and the row of each event's record. Records that are not objects are rejected, with their reason."""
    large = values if values.type == pa.large_binary() else values.cast(pa.large_binary())
    parsed, broken = parse_json(schema, large, mapping)
    parts = [
        _decode(schema, len(part.rows), part.columns, partial(_record_text, part.records), mapping, part.strays)
        for part in parsed
    ]
    parts_with_rows = [(part, block.rows[part_rows]) for (part, part_rows), block in zip(parts, parsed, strict=True)]
    merged, rows = in_row_order(schema, parts_with_rows)
    if broken:
        unreadable = (Poison(_UNREADABLE, record.reason, record.record) for record in broken)
        merged = replace(merged, poison=(*merged.poison, *unreadable))
    return merged, rows


def in_row_order(schema: Schema, parts: Sequence[EventRows]) -> EventRows:
    """Join events in the order of the rows of their records. Events of one row stay in the order of the parts."""
    if len(parts) == 1:
        return parts[0]
    merged = concat_decoded(schema, [part for part, _ in parts])
    rows = np.concatenate([np.empty(0, np.int64), *(part_rows for _, part_rows in parts)])
    if (rows[1:] >= rows[:-1]).all():
        return merged, rows
    by_row = np.argsort(rows, kind="stable")
    return merged.take(by_row), rows[by_row]


def in_partition(decoded: Decoded, partitions: int | NDArray[np.int64]) -> Decoded:
    """Note the partition from which events came: one number, or int64[N]."""
    order = with_partitions(decoded.order, partitions, len(decoded))
    return decoded if order is decoded.order else replace(decoded, order=order)


def decode_table(
    schema: Schema, table: pa.Table | pa.RecordBatch, show: Callable[[int], str], mapping: FieldMapping = PLAIN,
    strays: Strays = NO_STRAYS,
) -> Decoded:  # fmt: skip
    """Decode records that are already columns. `show(row)` returns a record as text, for rejected ones.

    A missing column is null in every record. A text that is not UTF-8, which only a forged or broken file has, is a bad
    value. So are `strays`, which are null in the table.
    """
    return events_of_views(schema, mapping, lambda view: decode_rows(schema, table, show, view, strays))[0]


def decode_rows(
    schema: Schema, table: pa.Table | pa.RecordBatch, show: Callable[[int], str], mapping: FieldMapping, strays: Strays
) -> EventRows:
    """Decode a table, and return the events with the row of each event's record. If a record becomes several events,
    `mapping` describes one of them (a view). `show(row)` returns a record as text, for rejected ones. `strays` are the
    texts, by field and row, of values that could not be read and are null in the table."""
    columns: Mapping[str, pa.Array] = columns_of(table)
    if not mapping.is_plain:  # the fields have other names or forms than the columns
        columns = mapping.arrays(schema, columns, table.num_rows)
    try:
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        paths = mapping.paths(schema)
        repaired = without_broken_texts({name: column for name, column in columns.items() if name in paths})
        if repaired is None:
            return _decode_halves(schema, table, show, mapping, error)  # until only the invalid row is set aside
        repaired_columns, strays = repaired  # only tables of files can be invalid, and their argument `strays` is empty
        columns = {**columns, **repaired_columns}
    return _decode(schema, table.num_rows, columns, show, mapping, strays)


def events_of_views(
    schema: Schema, mapping: FieldMapping, decode: Callable[[FieldMapping], EventRows]
) -> tuple[Decoded, NDArray[np.int64], NDArray[np.int64]]:
    """Decode each view of the records: a view is one of several events that the mapping makes of a record. Return
    events in the order of records, their rows and the numbers of their views: int64[N] both."""
    if not mapping.has_views:
        decoded, rows = decode(mapping)
        return decoded, rows, np.zeros(len(rows), np.int64)
    parts = [decode(view) for view in mapping.views]
    # Every view rejects an unreadable record; only the first one reports it.
    already_set_aside = {poison.record for poison in parts[0][0].poison if poison.code == _UNREADABLE}
    for view, (each, rows) in enumerate(parts[1:], 1):
        poison = tuple(p for p in each.poison if p.code != _UNREADABLE or p.record not in already_set_aside)
        parts[view] = replace(each, poison=poison), rows
    views = np.repeat(np.arange(len(parts)), [len(rows) for _, rows in parts])
    by_row = np.argsort(np.concatenate([rows for _, rows in parts]), kind="stable")
    return *in_row_order(schema, parts), views[by_row]


def _decode_halves(
    schema: Schema, table: pa.Table | pa.RecordBatch, show: Callable[[int], str], mapping: FieldMapping,
    error: pa.ArrowInvalid,
) -> EventRows:  # fmt: skip
    """Decode each half of a table that is invalid somewhere, so that a single row with the fault is set aside alone."""
    if table.num_rows <= 1:
        no_events, rows = _decode(schema, 0, {}, str)
        reason = str(error).partition("\n")[0]
        return replace(no_events, poison=(Poison(_UNREADABLE, reason, ""),) * table.num_rows), rows
    half = table.num_rows // 2
    first = decode_rows(schema, table.slice(0, half), show, mapping, NO_STRAYS)
    second, rows = decode_rows(schema, table.slice(half), lambda row: show(half + row), mapping, NO_STRAYS)
    return in_row_order(schema, [first, (second, half + rows)])


def _decode(
    schema: Schema, rows: int, source_columns: Mapping[str, pa.Array], show: Callable[[int], str],
    mapping: FieldMapping = PLAIN, strays: Strays = NO_STRAYS,
) -> EventRows:  # fmt: skip
    """Decode columns; return the events with their rows. `strays` are values that are null in the columns."""
    places = np.arange(rows)
    if mapping.needs:
        places, source_columns, strays = _rows_of_view(rows, source_columns, mapping, strays)
        rows, show = len(places), partial(_shown_at, show, places)
    event_type, verdict = _event_types(schema, source_columns.get(TYPE_FIELD), rows)
    verdict.reject_strays(schema, event_type, strays)
    if schema.protected:
        show = show if mapping.is_plain else partial(_by_field, schema, mapping, show)
        uses = {use.name: use for use in schema.column_uses}
        source_columns = with_tokens(
            schema, source_columns, lambda name, *bad: verdict.reject(uses[name], event_type, *bad), mapping.time
        )
    columns: dict[str, pa.Array] = {}
    times: Int64 = np.zeros(rows, np.int64)
    us: Int64 | None = None  # of each event, in its millisecond; None: all are 0
    skipped: list[int] = []
    declared: NDArray[np.int64] | None = None
    ids: pa.Array | pa.Scalar = _NO_ID
    for use in schema.column_uses:
        name = use.name
        written = None if mapping.is_plain else mapping.written(name, use.type.kind)
        source = source_columns[name] if name in source_columns else pa.nulls(rows)
        if use.is_time and use.is_everywhere and (ms := whole_ms(source, written)) is not None:
            times = ms
            continue
        if use.is_time:
            with counting_skipped() as skipped:
                converted = convert_us(source, written)
        else:
            converted = convert(source, use.type, written)
        if name in mapping.currencies:
            converted = in_currencies(converted, use.type, source_columns.get(mapping.currencies[name]))
        values = converted.values
        if converted.bad is not None:
            verdict.reject(use, event_type, converted.bad, "wrong_value", partial(_of_field, name, converted.reason))
        if converted.nulls is not None:
            missing = converted.nulls & np.array(use.is_required)[event_type]
            verdict.refuse(verdict.without_bad(name, missing), "missing_field", f"field `{name}` is missing or null")
        if not use.is_everywhere:
            has_field = np.array(use.has_field)[event_type]
            if not has_field.all():
                values = pc.if_else(pa.array(has_field), values, pa.scalar(None, values.type))
        if use.type.is_text:
            values = _without_long(use, values, event_type, verdict)
        if use.is_time:
            times, us = np.divmod(slot_values(values), US_PER_MS)
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
    order = order_table(us, declared, mapping.view, mapping.position, rows)
    decoded = Decoded(ids, event_type, times, columns, verdict.poison(show, times, ids), order, sum(skipped))
    if verdict.bad is None:
        return decoded, places
    good = np.flatnonzero(~verdict.bad)
    return decoded.take(good), places[good]


def _declared(
    use: ColumnUse, values: pa.Array, event_type: NDArray[np.int16], declared: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Return the values of the fields that order events of one time, with this column filled in."""
    has_value = np.array(use.is_order)[event_type] & np.asarray(pc.is_valid(values))
    others = NO_VALUE if declared is None else declared
    filled: NDArray[np.int64] = np.where(has_value, slot_values(values), others)
    return filled


def _rows_of_view(
    rows: int, source_columns: Mapping[str, pa.Array], mapping: FieldMapping, strays: Strays
) -> tuple[NDArray[np.int64], Mapping[str, pa.Array], Strays]:
    """Choose the records with a value in one of `mapping.needs`, the fields of one view (one of several events that a
    record becomes). Return their rows, columns and strays: the texts of values that could not be read and are null."""
    has_value = np.zeros(rows, bool)
    for name in mapping.needs:
        if name in source_columns:
            has_value |= pc.is_valid(source_columns[name]).to_numpy(zero_copy_only=False)
        has_value[list(strays.get(name, ()))] = True
    chosen_rows = np.flatnonzero(has_value)
    if len(chosen_rows) == rows:
        return chosen_rows, source_columns, strays
    indices = pa.array(chosen_rows)
    # Arrow has no `take` for views of texts
    columns = {n: c.cast(TEXT) if pa.types.is_string_view(c.type) else c for n, c in source_columns.items()}
    new_row = {int(old_row): row for row, old_row in enumerate(chosen_rows)} if strays else {}
    strays = {
        name: {new_row[old_row]: text for old_row, text in texts.items() if old_row in new_row}
        for name, texts in strays.items()
    }
    return chosen_rows, {n: column.take(indices) for n, column in columns.items()}, strays


def _shown_at(show: Callable[[int], str], places: NDArray[np.int64], row: int) -> str:
    return show(int(places[row]))


def _is_id(use: ColumnUse, event_type: NDArray[np.int16]) -> pa.Array:
    return pa.array(np.array(use.is_id)[event_type])


def _without_long(use: ColumnUse, texts: pa.Array, event_type: NDArray[np.int16], verdict: _Verdict) -> pa.Array:
    """Reject texts that are too long; return the texts with null in their place."""
    if are_short(texts, FIELD_BYTES_MAX):
        return texts
    is_long = np.diff(text_offsets(texts)) > FIELD_BYTES_MAX
    if texts.null_count:
        is_long &= np.asarray(pc.is_valid(texts))
    if not is_long.any():
        return texts
    verdict.reject(use, event_type, is_long, TOO_LONG, f"field `{use.name}` has more than {FIELD_BYTES_MAX} bytes")
    return pc.if_else(pa.array(is_long), pa.scalar(None, texts.type), texts)


_Reason = str | Callable[[int], str]


class _Verdict:
    """The refused rows, None if there are none, with the first reason for each; and the bad values of other rows."""

    def __init__(self, rows: int) -> None:
        self.bad: NDArray[np.bool_] | None = None
        self._reason = np.empty(rows, np.int32)
        self._reasons: list[tuple[str, _Reason]] = []
        self._values: dict[int, list[tuple[str, str, _Reason]]] = {}  # by row: code, field and reason
        self._of_field: dict[str, NDArray[np.bool_]] = {}

    def refuse(self, rows: NDArray[np.bool_], code: str, reason: _Reason) -> None:
        """Refuse rows, with a reason for all of them or a function that gives the reason for one."""
        new = rows if self.bad is None else rows & ~self.bad
        if new.any():
            self._reason[new] = len(self._reasons)
            self._reasons.append((code, reason))
            self.bad = new if self.bad is None else self.bad | new

    def reject(
        self, use: ColumnUse, event_type: NDArray[np.int16], rows: NDArray[np.bool_], code: str, reason: _Reason
    ) -> None:
        """Reject values of a column (`use`): a row without id or time is refused, others keep null and a reason."""
        rows = self.without_bad(use.name, rows & np.array(use.has_field)[event_type])  # one reason for each value
        if not rows.any():
            return
        is_needed = np.array(use.is_id)[event_type] | use.is_time
        self.refuse(rows & is_needed, code, reason)
        others = self._of_field.get(use.name, False)
        self._of_field[use.name] = others | rows  # the values that have a reason
        for row in np.flatnonzero(rows & ~is_needed).tolist():
            self._values.setdefault(row, []).append((code, use.name, reason))

    def reject_strays(self, schema: Schema, event_type: NDArray[np.int16], strays: Strays) -> None:
        uses = {use.name: use for use in schema.column_uses} if strays else {}
        for name, texts in strays.items():
            rows = np.zeros(len(event_type), bool)
            rows[list(texts)] = True
            if name in uses:
                self.reject(uses[name], event_type, rows, "wrong_value", partial(_stray_reason, uses[name], texts))
            else:
                self.refuse(rows, "unknown_event_type", f"field `{name}` is not the name of an event type")

    def without_bad(self, name: str, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the rows without those in which the value of a field was rejected: one value has one reason."""
        return rows & ~self._of_field[name] if name in self._of_field else rows

    def poison(self, show: Callable[[int], str], times: NDArray[np.int64], ids: pa.Array) -> tuple[Poison, ...]:
        refused = set() if self.bad is None else set(np.flatnonzero(self.bad).tolist())
        return tuple(
            self._refused(row, show) if row in refused else self._flawed(row, show, (int(times[row]), ids[row].as_py()))
            for row in sorted({*refused, *self._values})
        )

    def _refused(self, row: int, show: Callable[[int], str]) -> Poison:
        code, reason = self._reasons[self._reason[row]]
        return Poison(code, _reason_at(reason, row), show(row))

    def _flawed(self, row: int, show: Callable[[int], str], time_and_id: tuple[int, str]) -> Poison:
        values = self._values[row]
        reasons = "; ".join(_reason_at(reason, row) for _, _, reason in values)
        return Poison(values[0][0], reasons, show(row), tuple((code, name) for code, name, _ in values), *time_and_id)


def _reason_at(reason: _Reason, row: int) -> str:
    return reason if isinstance(reason, str) else reason(row)


def _stray_reason(use: ColumnUse, texts: Mapping[int, str], row: int) -> str:
    shown = "the value" if use.type.protected else texts[row]
    return f"field `{use.name}`: {shown} is not a value of type {use.type.as_nullable(False)}"


def _by_field(schema: Schema, mapping: FieldMapping, show: Callable[[int], str], row: int) -> str:
    """Show a record under the names of its fields, so that redact.py recognises protected ones."""
    text = show(row)
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return orjson.dumps({name: mapping.value(record, name) for name in mapping.paths(schema)}, default=str).decode()


def _of_field(name: str, reason: Callable[[int], str], row: int) -> str:
    return f"field `{name}`: {reason(row)}"


def _event_types(schema: Schema, column: pa.Array | None, rows: int) -> tuple[NDArray[np.int16], _Verdict]:
    """Return each record's event type as a code, int16[N], and a verdict: the refused rows, here with unknown types."""
    verdict = _Verdict(rows)
    # If only one type comes from sources (others are derived), a record without a type is of that one.
    source_codes, single = schema.source_codes, len(schema.source_codes) == 1
    if column is None or TYPE_FIELD in schema.columns():  # a declared field of this name is data and names no type
        if not single:
            verdict.refuse(np.ones(rows, bool), "unknown_event_type", f"field `{TYPE_FIELD}` is missing or null")
        return np.full(rows, source_codes[0] if single else 0, np.int16), verdict
    if single and column.null_count == rows:
        return np.full(rows, source_codes[0], np.int16), verdict
    names = column if column.type == pa.string() else column.cast(pa.string())
    codes = pc.index_in(names, value_set=_type_names(schema))
    if codes.null_count == 0:
        return np.asarray(codes).astype(np.int16), verdict
    has_no_name = np.asarray(pc.is_null(names))
    unknown = np.asarray(pc.is_null(codes)) & ~has_no_name
    if not single:
        verdict.refuse(has_no_name, "unknown_event_type", f"field `{TYPE_FIELD}` is missing or null")
    declared = ", ".join(e.name for e in schema.event_types)
    unknown_names, _ = numbered(names.filter(pa.array(unknown)).cast(TEXT))
    for name in unknown_names.slice(0, _TYPES_NAMED_MAX).to_pylist():  # more names are refused below, without the name
        has_name = unknown & np.asarray(pc.equal(names, name).fill_null(False))
        verdict.refuse(has_name, "unknown_event_type", f"event type {name[:_TYPE_CHARS]!r} is not one of {declared}")
    verdict.refuse(unknown, "unknown_event_type", f"the event type is not one of {declared}")
    return np.asarray(codes.fill_null(source_codes[0] if single else 0)).astype(np.int16), verdict  # 0: refused


@lru_cache(maxsize=_SCHEMAS_CACHED)
def _type_names(schema: Schema) -> pa.Array:
    return pa.array([e.name for e in schema.event_types], pa.string())


def _record_text(records: pa.Array, row: int) -> str:
    return text_of(records[row].as_py())


def concat_decoded(schema: Schema, parts: Sequence[Decoded]) -> Decoded:
    """Join the events and the rejected records of parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    names = data_columns(schema)
    if not parts:  # no events, but the columns of the schema
        return decode_table(schema, pa.table({n: pa.nulls(0) for n in (TYPE_FIELD, *schema.columns())}), str)
    return Decoded(
        pa.concat_arrays([p.event_id for p in parts]),
        np.concatenate([p.event_type for p in parts]),
        np.concatenate([p.time_ms for p in parts]),
        {name: pa.concat_arrays([p.columns[name] for p in parts]) for name in names},
        tuple(record for p in parts for record in p.poison),
        joined_orders([(p.order, len(p)) for p in parts]),
        sum(p.skipped_times for p in parts),
    )


KEY_SEPARATOR = "\x1f"
_SEPARATOR = pa.scalar(KEY_SEPARATOR, TEXT)
_ESCAPE = "\x1e"
KeyDomain = tuple[str, ...]


def route(decoded: Decoded, domain: KeyDomain, types: dict[str, Type]) -> tuple[EventBatch, int]:
    """Return the events with a key in this domain, and the number of events without one."""
    parts = [key_text(decoded.columns[field], types[field]) for field in domain]
    key = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*map(_escaped, parts), _SEPARATOR)
    batch = EventBatch(key, decoded.event_id, decoded.event_type, decoded.time_ms, decoded.columns, decoded.order)
    if key.null_count == 0:
        return batch, 0
    keyed = np.asarray(pc.is_valid(key))
    return batch.take(keyed), int(len(keyed) - keyed.sum())


def _escaped(part: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(part, f"[{_ESCAPE}{KEY_SEPARATOR}]")).as_py():
        return part
    part = pc.replace_substring(part, _ESCAPE, _ESCAPE + "0")
    return pc.replace_substring(part, KEY_SEPARATOR, _ESCAPE + "1")


def key_of(parts: Sequence[str]) -> str:
    """Return the key that `route` makes of these values."""
    if len(parts) == 1:
        return parts[0]
    return KEY_SEPARATOR.join(p.replace(_ESCAPE, _ESCAPE + "0").replace(KEY_SEPARATOR, _ESCAPE + "1") for p in parts)


def key_parts(key: str, domain: KeyDomain) -> list[str]:
    """Return the values of a key as `route` joined them."""
    if len(domain) == 1:
        return [key]
    return [p.replace(_ESCAPE + "1", KEY_SEPARATOR).replace(_ESCAPE + "0", _ESCAPE) for p in key.split(KEY_SEPARATOR)]


def key_text(values: pa.Array, type_: Type) -> pa.Array:
    """Return the texts that the values of a field have in keys: of an enum its symbols."""
    if type_.kind is Kind.ENUM:
        return pa.array(type_.symbols, TEXT).take(values)
    return values if values.type == TEXT else values.cast(TEXT)


def key_groups(key: pa.Array, groups_count: int) -> np.ndarray:
    """Return the key group of each key: int32[N] in [0, groups_count)."""
    return key_slots(key, groups_count, 1, 0).astype(np.int32)


def key_pages(key: pa.Array, groups_count: int, pages_count: int) -> np.ndarray:
    """Return the page of each key inside its key group: int32[N] in [0, pages_count)."""
    return (key_slots(key, groups_count, pages_count, 0) % pages_count).astype(np.int32)


def key_slots(key: pa.Array, groups_count: int, pages_count: int, first_group: int) -> Int64:
    """Return each key's page, counted from key group `first_group`: int64[N], below 0 for keys of earlier groups."""
    offsets, data = text_buffers(key)
    slots: Int64 = np.empty(len(key), np.int64)
    hash_slots(offsets, data, groups_count, first_group, pages_count, slots)
    return slots


def split_by_group(batch: EventBatch, groups_count: int) -> Iterator[tuple[int, EventBatch]]:
    """(key group, its events) for each group that has any, in group order; the order of events is kept."""
    groups = key_groups(batch.key, groups_count).astype(np.uint16)  # 16 bits: numpy sorts those by counting
    order = np.argsort(groups, kind="stable")
    sorted_batch = batch.take(order)
    sorted_groups = groups[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = sorted_groups[1:] != sorted_groups[:-1]
    bounds = [*np.flatnonzero(is_first).tolist(), len(order)]
    for start, end in pairwise(bounds):
        yield int(sorted_groups[start]), slice_batch(sorted_batch, start, end)


def slice_batch(batch: EventBatch, start: int, end: int) -> EventBatch:
    """Events [start, end), without a copy."""
    return batch.map(lambda column: column.slice(start, end - start), lambda numbers: numbers[start:end])
