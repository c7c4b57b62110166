"""Any value or row of a table → a readable text, for dead letters.

Tested by: tests/columnar/test_decode.py
"""

from __future__ import annotations

import json

import pyarrow as pa

_CHARACTERS_MAX = 2_000  # as many as a dead letter has of a record


def shown_row(table: pa.Table | pa.RecordBatch, row: int) -> str:
    """Return a row as JSON."""
    values = {name: shown_value(table.column(number), row) for number, name in enumerate(table.schema.names)}
    return json.dumps(values, default=str)


def shown_value(values: pa.Array | pa.ChunkedArray, row: int) -> object:
    """Return a value as Python has it; as Arrow prints it if Python has none, such as a time in the year 300000."""
    try:
        value = values[row].as_py()
        return value[:_CHARACTERS_MAX] if isinstance(value, str) else value
    except (OverflowError, ValueError, KeyError):  # a zone that the machine does not have is a KeyError
        return " ".join(values.slice(row, 1).to_string().split())
