"""Alerts as an Arrow table → the one JSON form that every sink writes.

    {"alert_id": "…", "rule_id": "card_testing", "version": 1, …, "measures": {"probes": 3, "amount": "900.00"},
     "events": [{"variable": "probe", "event_id": "…", "event_time": "2026-03-01T00:00:00.000Z"}, …], …}

Names and their order are the table's. `history_cut`, `history_folded`, `unconfirmed` and `flawed` are present only if
they are true, `history_from` only if a window reaches back before it, `origins` only for derived events. Times are ISO
8601 in UTC with milliseconds. `measures`, JSON text in the table, becomes an object. Equal alerts have equal bytes. A
kernel writes the lines (text/json_form.py), so an alert becomes a Python object only as a finished line.
Tested by: tests/sinks/test_json_form.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from cep.kernels.layout import Int64
from cep.kernels.records import Texts
from cep.kernels.text.json_form import NUMBER, QUOTED, RAW, TIME, TRUTH, write_lists, write_objects

_OFTEN_NOTHING = ("origins", "history_cut", "history_folded", "history_from", "unconfirmed", "flawed")
_ROWS = 1_000  # of lines that are put together at once
_SHAPES_CACHED = 16
_STAMP = pa.timestamp("ms", "UTC")


def json_lines(alerts: pa.Table) -> Iterator[bytes]:
    """Yield one JSON object for each alert, without a line end, in the order of the table."""
    for batch in alerts.to_batches(max_chunksize=_ROWS):
        starts, lines = _objects(batch.schema, batch.columns, batch.num_rows)
        whole = lines.tobytes()
        for start, end in pairwise(starts.tolist()):
            yield whole[start:end]


def _objects(fields: Sequence[pa.Field], columns: Sequence[pa.Array], count: int) -> Texts:
    """Write each row as a JSON object. `fields` and `columns` are its members, all of length `count`."""
    if not count:
        return Texts(np.zeros(1, np.int64), np.zeros(0, np.uint8))
    names, kinds, may_lack = _shape(tuple([(field.name, field.type) for field in fields]))
    offsets = np.zeros((len(columns), count + 1), np.int64)
    numbers = np.zeros((len(columns), count), np.int64)
    valid = np.ones(numbers.shape, np.bool_)
    contents = [np.zeros(0, np.uint8)]
    size = 0
    for index, (column, kind) in enumerate(zip(columns, kinds.tolist(), strict=True)):
        if column.null_count:
            valid[index] = column.is_valid()
            if column.null_count == count:
                continue
        if kind in (RAW, QUOTED):
            starts, content = _lists(column) if pa.types.is_list(column.type) else _texts(column)
            offsets[index] = starts + (size - starts[0])
            contents.append(content[starts[0] : starts[-1]])
            size = int(offsets[index, -1])
        elif kind == TRUTH:
            numbers[index] = column.fill_null(False) if column.null_count else column
        else:
            numbers[index] = _integers(column.cast(_STAMP) if kind == TIME and column.type != _STAMP else column)
    return Texts(*write_objects(names, kinds, may_lack, Texts(offsets, np.concatenate(contents)), numbers, valid))


@lru_cache(maxsize=_SHAPES_CACHED)
def _shape(fields: Sequence[tuple[str, pa.DataType]]) -> tuple[Texts, Int64, NDArray[np.bool_]]:
    """Return for each field the text before its value, how the value is written, and whether it may be left out.

    Each member begins with its comma. The first field is never one that may be left out.
    """
    members = [(b"," if number else b"{") + orjson.dumps(name) + b":" for number, (name, _) in enumerate(fields)]
    ends = np.cumsum([0, *map(len, members)])
    kinds = [RAW if name == "measures" else _kind(type_) for name, type_ in fields]
    may_lack = [name in _OFTEN_NOTHING for name, _ in fields]
    return Texts(ends, np.frombuffer(b"".join(members), np.uint8)), np.array(kinds), np.array(may_lack)


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
