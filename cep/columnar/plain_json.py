"""Plain JSON records as columns, at the cost of a call: the result of Arrow's JSON reader, or None.

Arrow's reader passes its input to another thread: for a few records that costs more than reading them, and on a busy
machine it waits for a core. kernels/text/json_records.py defines plain records.
Tested by: tests/columnar/test_plain_json.py
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.batch import text_buffers
from cep.kernels.records import JsonColumns
from cep.kernels.text.json_records import DECIMAL, FLOAT, NAME, TEXT, TRUTH, UNITS_DIGITS_MAX, WHOLE, read_records
from cep.kernels.text.texts import copy_texts


@dataclass(frozen=True)
class PlainShape:
    """The columns to read: `names` in one UTF-8 buffer, int64 `name_ends`, `kinds` as in the kernel."""

    columns: tuple[tuple[str, pa.DataType], ...]
    names: NDArray[np.uint8]
    name_ends: NDArray[np.int64]
    kinds: NDArray[np.int64]
    scales: NDArray[np.int64]


def plain_shape(schema: pa.Schema, may_be_numbers: Collection[str]) -> PlainShape:
    """Describe the columns for the fast JSON kernel: names, kinds and scales.

    Columns in `may_be_numbers` become int64 if the first record has a whole number.
    """
    names = [name.encode() for name in schema.names]
    kinds = [NAME if column.name in may_be_numbers else _kind(column.type) for column in schema]
    scales = [column.type.scale if pa.types.is_decimal(column.type) else 0 for column in schema]
    # The kernel reads decimals as 64-bit numbers of units, which Arrow has a type for.
    types = [pa.decimal64(UNITS_DIGITS_MAX, scale) if kind == DECIMAL else column.type
             for column, kind, scale in zip(schema, kinds, scales, strict=True)]  # fmt: skip
    columns = tuple(zip(schema.names, types, strict=True))
    name_ends = np.cumsum([len(name) for name in names])
    return PlainShape(columns, np.frombuffer(b"".join(names), np.uint8), name_ends, np.array(kinds), np.array(scales))


def _kind(type_: pa.DataType) -> int:
    if pa.types.is_decimal(type_):
        return DECIMAL
    return {pa.int64(): WHOLE, pa.float64(): FLOAT, pa.bool_(): TRUTH}.get(type_, TEXT)


def read_plain(shape: PlainShape, records: pa.Array) -> dict[str, pa.Array] | None:
    """Read columns from records with the fast JSON kernel, None if a record is too unusual for it.

    Shapes: `records` are large_binary without nulls. A column is null in records without a value, and left out if no
    record has one. A record that is not plain, or not a JSON object, or a text that is not UTF-8, ends the attempt.
    """
    count = len(records)
    _, data = content = text_buffers(records)
    kinds = shape.kinds.copy()
    wanted_columns = JsonColumns(shape.names, shape.name_ends, kinds, shape.scales)
    plain_count, (values, text_ends, has_value), counts = read_records(*content, wanted_columns)
    if plain_count < count:
        return None
    arrays: dict[str, pa.Array] = {}
    read = zip(shape.columns, kinds.tolist(), counts.tolist(), strict=True)
    for column, ((name, value_type), kind, values_count) in enumerate(read):
        if not values_count:
            continue
        type_, is_ascii = pa.int64() if kind == WHOLE else value_type, True
        buffers = [pa.py_buffer(_bits(has_value[column])) if values_count < count else None]
        if kind == TEXT:
            bounds, texts, is_ascii = copy_texts(data, values[column], text_ends[column])
            offsets = bounds if type_ == pa.large_string() else bounds.astype(np.int32)
            buffers += [pa.py_buffer(offsets), pa.py_buffer(texts)]
        else:
            buffers.append(pa.py_buffer(_bits(values[column]) if kind == TRUTH else values[column]))
        array = pa.Array.from_buffers(type_, count, buffers, count - values_count)
        if not is_ascii and not _is_utf_8(array):
            return None
        arrays[name] = array
    return arrays


def plain_rows(shape: PlainShape, records: pa.Array) -> int:
    """Return the number of records before the first that is not plain; texts may be invalid UTF-8."""
    wanted_columns = JsonColumns(shape.names, shape.name_ends, shape.kinds.copy(), shape.scales)
    return int(read_records(*text_buffers(records), wanted_columns)[0])


def _is_utf_8(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _bits(flags: NDArray[Any]) -> NDArray[np.uint8]:
    return np.packbits(flags.astype(np.uint8, copy=False), bitorder="little")
