"""Rows of declared fields ↔ bytes, through the one codec (columnar/codec.py).

The bytes carry the names and types that they were written with: a field that is missing in them is null, one that is
not declared any more is passed over. What may change is decided before (registry.py).
Tested by: tests/state/test_handles.py
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cep.base.schema import Field
from cep.columnar.batch import arrow_type
from cep.columnar.codec import decode_table, encode_table
from cep.state.descriptors import Row

_STAMPS = "\x00stamp"  # no field can have such a name


def encode_rows(rows: Sequence[Row], fields: tuple[Field, ...], stamps: Sequence[int] = ()) -> bytes:
    """The rows' bytes, with a time for each if there are any. A field that a row lacks is null."""
    for row in rows:
        assert row.keys() <= {field.name for field in fields}, f"{sorted(row)} has fields that are not declared"
        lacking = [f.name for f in fields if not f.type.nullable and row.get(f.name) is None]
        assert not lacking, f"{lacking} may not be null"
    columns = {field.name: pa.array([row.get(field.name) for row in rows], arrow_type(field.type)) for field in fields}
    if stamps:
        columns[_STAMPS] = pa.array(stamps, pa.int64())
    return encode_table(pa.record_batch(columns))


def decode_rows(data: bytes, fields: tuple[Field, ...]) -> tuple[list[Row], list[int]]:
    """The rows, and their times if they have any. Raises: StateFormatError, StateCorruptError."""
    table = decode_table(data)
    names = table.schema.names
    kept = [field.name for field in fields if field.name in names]
    missing = dict.fromkeys(field.name for field in fields if field.name not in names)
    stamps = table.column(names.index(_STAMPS)).to_pylist() if _STAMPS in names else []
    columns = [table.column(names.index(name)).to_pylist() for name in kept]
    values = zip(*columns, strict=True) if columns else [()] * table.num_rows
    return [dict(zip(kept, row, strict=True)) | missing for row in values], stamps
