"""A file of JSON records → a table of all its columns, with the types that the values have.

Arrow decides the types. Where a column has numbers in one record and texts in another, it is a column of texts.
Tested by: tests/sources/test_csv_form.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.json as pj

from cep.sources.inputs import opened_json
from cep.sources.json_lines import READ_BYTES, LineCutter, whole_lines


def read_json_table(path: Path, root: Path | None = None) -> pa.Table:
    """Read all columns of a file. A line that is not an object is left out.

    Raises: OSError, InputError, UnreadableError.
    """
    return table_of_lines(read_lines(path, root))


def read_lines(path: Path, root: Path | None = None) -> bytes:
    """Read a file as JSON lines. Raises: OSError, InputError, UnreadableError."""
    with opened_json(path, root) as file:
        return b"\n".join(whole_lines(file, LineCutter(), READ_BYTES))


def table_of_lines(lines: bytes) -> pa.Table:
    """Return all columns of JSON lines."""
    try:
        return pj.read_json(pa.BufferReader(lines), pj.ReadOptions(block_size=READ_BYTES))
    except pa.ArrowInvalid:
        return _table(lines)


def is_object(line: bytes) -> bool:
    """Return True if a line is a record of the table."""
    return isinstance(_value(line), dict)


def _table(lines: bytes) -> pa.Table:
    records = [record for line in lines.split(b"\n") if isinstance(record := _value(line), dict)]
    names = dict.fromkeys(name for record in records for name in record)
    return pa.table({name: _column([record.get(name) for record in records]) for name in names})


def _value(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def _column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        texts = [v if v is None or isinstance(v, str) else orjson.dumps(v).decode() for v in values]
        return pa.array(texts, pa.string())
