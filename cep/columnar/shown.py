"""Any value or row of a table → a readable text, for dead letters.

Tested by: tests/columnar/test_decode.py
"""

import json
from functools import cached_property

import pyarrow as pa

_CHARACTERS_MAX = 2_000  # as many as a dead letter has of a record


class RowTexts:
    """The rows of a table as JSON. Columns are looked up once, because a hostile file may have thousands of columns."""

    def __init__(self, table: pa.Table | pa.RecordBatch) -> None:
        self._table = table

    def __call__(self, row: int) -> str:
        values = {name: None if column is None else shown_value(column, row) for name, column in self._columns}
        return json.dumps(values, default=str)

    @cached_property
    def _columns(self) -> list[tuple[str, pa.Array | pa.ChunkedArray | None]]:
        columns = zip(self._table.schema.names, self._table.columns, strict=True)  # None: all values are null
        return [(name, None if column.null_count == len(column) else _only_chunk(column)) for name, column in columns]


def shown_value(values: pa.Array | pa.ChunkedArray, row: int) -> object:
    """Return a value as Python has it; as Arrow prints it if Python has none, such as a time in the year 300000."""
    try:
        value = values[row].as_py()
        return value[:_CHARACTERS_MAX] if isinstance(value, str) else value
    except (OverflowError, ValueError, KeyError):  # a zone that the machine does not have is a KeyError
        return " ".join(values.slice(row, 1).to_string().split())


def _only_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the only chunk of a column, whose values are found faster."""
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) and column.num_chunks == 1 else column
