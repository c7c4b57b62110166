"""Alerts as an Arrow table → the one JSON form that every sink writes.

    {"alert_id": "…", "rule_id": "card_testing", "version": 1, …, "measures": {"probes": 3, "amount": "900.00"},
     "events": [{"variable": "probe", "event_id": "…", "event_time": "2026-03-01T00:00:00.000Z"}, …], …}

Names and their order are the table's. `history_cut`, `history_folded`, `unconfirmed` and `flawed` are present only if
they are true, `history_from` only if a window reaches back before it, `origins` only for derived events. Times are ISO
8601 in UTC with milliseconds. `measures`, JSON text in the table, becomes an object. Equal alerts have equal bytes.
Tested by: tests/sinks/test_json_form.py
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from cep.kernels.layout import Int64
from cep.kernels.records import Texts
from cep.kernels.text.json_form import NUMBER, QUOTED, RAW, TIME, TRUTH, write_lists, write_objects

# Left out of a line if they are null or false. An alert without origins has null, not an empty list.
_OPTIONAL_MEMBERS = ("origins", "history_cut", "history_folded", "history_from", "unconfirmed", "flawed")
_ROWS = 1_000  # of lines that are put together at once
_FEW = 5  # alerts: up to this number Python is faster than the kernel: 0.6 of its time for one alert, 0.9 for five
_SHAPES_CACHED = 16
_STAMP, _MS = pa.timestamp("ms", "UTC"), pa.int64()
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 all times are UTC


def json_lines(alerts: pa.Table) -> Iterator[bytes]:
    """Yield one JSON object for each alert, without a line end, in the order of the table."""
    for batch in alerts.to_batches(max_chunksize=_ROWS):
        yield from _few_lines(batch) if batch.num_rows <= _FEW else _many_lines(batch)


def _few_lines(batch: pa.RecordBatch) -> Sequence[bytes]:
    """Write a few alerts by Python objects. `_many_lines` writes the same by a compiled kernel, whose call has a fixed
    cost for each column. Members of _OPTIONAL_MEMBERS are left out if they are null or false."""
    try:
        columns = [_values(column) for column in batch.columns]
    except OverflowError:  # Python has no year beyond 9999
        return list(_many_lines(batch))
    names, lines = batch.schema.names, []
    for row in zip(*columns, strict=True):
        alert = {name: value for name, value in zip(names, row, strict=True) if value or name not in _OPTIONAL_MEMBERS}
        if alert.get("measures") is not None:
            alert["measures"] = orjson.Fragment(alert["measures"])  # it is JSON already
        lines.append(orjson.dumps(alert))
    return lines


def _values(column: pa.Array) -> list[Any]:
    """Convert a column as `to_pylist` does, but with times as ISO 8601 texts, and lists of objects in less time."""
    type_, nulls_count = column.type, column.null_count
    if nulls_count == len(column):
        return [None] * nulls_count
    if pa.types.is_timestamp(type_):
        times = column if type_ == _STAMP else column.cast(_STAMP)
        return [None if ms is None else _time(ms) for ms in times.cast(_MS).to_pylist()]
    if not pa.types.is_list(type_):
        return column.to_pylist()  # type: ignore[no-any-return] # pyarrow has no types
    bounds = column.offsets.to_pylist()
    objects = column.values.slice(bounds[0], bounds[-1] - bounds[0])
    names = [field.name for field in objects.type.fields]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*map(_values, objects.flatten()), strict=True)]
    lists = [rows[start - bounds[0] : end - bounds[0]] for start, end in pairwise(bounds)]
    if not nulls_count:
        return lists
    return [row if is_valid else None for row, is_valid in zip(lists, column.is_valid().to_pylist(), strict=True)]


def _time(ms: int) -> str:
    return f"{(_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec='milliseconds')}Z"


def _many_lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    starts, lines = _objects(batch.schema, batch.columns, batch.num_rows)
    whole = lines.tobytes()
    for start, end in pairwise(starts.tolist()):
        yield whole[start:end]


def _objects(fields: Sequence[pa.Field], columns: Sequence[pa.Array], count: int) -> Texts:
    """Write each row as a JSON object; each of the `columns` has `count` values. The kernel takes the texts of all
    columns in one buffer, with the `offsets` of each text, and times, numbers and truth values as `numbers`. Texts of
    the kind RAW are JSON already and get no quotes. A member in `may_be_absent` is left out if it is null or false."""
    if not count:
        return Texts(np.zeros(1, np.int64), np.zeros(0, np.uint8))
    names, kinds, may_be_absent = _shape(tuple([(field.name, field.type) for field in fields]))
    offsets = np.zeros((len(columns), count + 1), np.int64)
    numbers = np.zeros((len(columns), count), np.int64)
    valid = np.ones(numbers.shape, np.bool_)
    contents = [np.zeros(0, np.uint8)]
    size = 0
    for index, (column, kind) in enumerate(zip(columns, kinds.tolist(), strict=True)):
        if column.null_count:
            valid[index] = column.is_valid()
            if column.null_count == count:
                continue  # without a value to copy
        if kind in (RAW, QUOTED):
            starts, content = _lists(column) if pa.types.is_list(column.type) else _texts(column)
            offsets[index] = starts + (size - starts[0])  # in the buffer, after the earlier columns
            contents.append(content[starts[0] : starts[-1]])
            size = int(offsets[index, -1])
        elif kind == TRUTH:
            numbers[index] = column.fill_null(False) if column.null_count else column
        else:
            numbers[index] = _integers(column.cast(_STAMP) if kind == TIME and column.type != _STAMP else column)
    return Texts(*write_objects(names, kinds, may_be_absent, Texts(offsets, np.concatenate(contents)), numbers, valid))


@lru_cache(maxsize=_SHAPES_CACHED)
def _shape(fields: Sequence[tuple[str, pa.DataType]]) -> tuple[Texts, Int64, NDArray[np.bool_]]:
    """Return for each field the text before its value (a comma begins it), its kind, and whether it may be left out."""
    members = [(b"," if number else b"{") + orjson.dumps(name) + b":" for number, (name, _) in enumerate(fields)]
    ends = np.cumsum([0, *map(len, members)])
    kinds = [RAW if name == "measures" else _kind(type_) for name, type_ in fields]
    may_be_absent = [name in _OPTIONAL_MEMBERS for name, _ in fields]
    return Texts(ends, np.frombuffer(b"".join(members), np.uint8)), np.array(kinds), np.array(may_be_absent)


def _kind(type_: pa.DataType) -> int:
    if pa.types.is_list(type_):
        return RAW
    if pa.types.is_string(type_):
        return QUOTED
    if pa.types.is_timestamp(type_):
        return TIME
    return TRUTH if pa.types.is_boolean(type_) else NUMBER


def _lists(column: pa.ListArray) -> Texts:
    """Write lists of objects without nulls."""
    bounds = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    values = column.values.slice(bounds[0], bounds[-1] - bounds[0])
    return Texts(*write_lists(bounds - bounds[0], *_objects(values.type.fields, values.flatten(), len(values))))


def _texts(column: pa.StringArray) -> Texts:
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    return Texts(starts, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8))


def _integers(column: pa.Array) -> NDArray[np.signedinteger]:
    """Return whole numbers or times; where they are null, any number."""
    width = column.type.bit_width // 8
    return np.frombuffer(column.buffers()[1], f"i{width}", len(column), column.offset * width)
