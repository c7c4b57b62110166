"""A table → a CSV file that is safe to open in a spreadsheet: no text of an event becomes a formula.

A spreadsheet runs a cell that begins with one of `= + - @`, a tab or a line end. Such a text gets an apostrophe in
front, which marks the cell as text; numbers stay. A value without a form in CSV, such as a list, is JSON. Every CSV
file of cep is written here.
Tested by: tests/sinks/test_files.py
"""

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

# Signs in their plain, wide and small forms. Some programs drop blanks and invisible characters in front of them.
_FORMULA = "^(?:[\t\r\n]|[\\p{Z}\\p{C}]*[=+\\-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b])"
_NUMBER = r"^[+-]?\d+([.,]\d+)*([eE][+-]?\d+)?$"


def write_csv(table: pa.Table, file: Any) -> None:
    """Write a table with the names of its columns. `file` is a path or an open file."""
    columns = [_quoted(column) if _is_text(column.type) else column for column in map(_writable, table.columns)]
    names = _quoted(pa.chunked_array([pa.array(table.column_names, pa.string())])).to_pylist()
    pcsv.write_csv(pa.table(columns, names=names), file)


def _writable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in a type that CSV has."""
    try:
        pcsv.write_csv(pa.table({"c": column.slice(0, 0)}), pa.BufferOutputStream())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        texts = (None if value is None else json.dumps(value, default=str) for value in column.to_pylist())
        return pa.chunked_array([pa.array(texts, pa.large_string())])
    return column


def _is_text(type_: pa.DataType) -> bool:
    values = type_.value_type if pa.types.is_dictionary(type_) else type_
    return bool(pa.types.is_string(values) or pa.types.is_large_string(values) or pa.types.is_string_view(values))


def _quoted(column: pa.ChunkedArray) -> pa.ChunkedArray:
    texts = column.cast(pa.large_string())
    is_formula = pc.and_not(pc.match_substring_regex(texts, _FORMULA), pc.match_substring_regex(texts, _NUMBER))
    return pc.if_else(is_formula, pc.replace_substring_regex(texts, r"\A", "'", max_replacements=1), texts)
