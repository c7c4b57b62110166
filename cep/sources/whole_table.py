"""The files at a path → one table of all their columns, with the types that the values have.

    Parquet      the types of each file, the widest of each column
    CSV          whole numbers, numbers, truth values, times and dates if all texts of a column are such, else texts
    JSON         json_table.py
    day=01/...   a column of texts, for a folder that names a value

A text of digits that begins with a zero is no number: it is an account, or a card.
Tested by: tests/sources/test_tables.py, tests/api/test_forms.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.base.errors import InputError, UnreadableError
from cep.base.schema import Schema
from cep.columnar.decode import Decoded, EventRows, concat_decoded, decode_rows, events_of_views, json_rows
from cep.columnar.file_form import FileForm
from cep.columnar.mapping import FieldMapping
from cep.columnar.number_texts import NumberForm, plain_numbers
from cep.columnar.shown import RowTexts
from cep.columnar.strays import NO_STRAYS
from cep.sources.csv_form import CsvFile
from cep.sources.inputs import confining_root, files_of, folder_values, kind_of
from cep.sources.json_lines import json_values
from cep.sources.json_table import is_object, read_lines, table_of_lines
from cep.sources.tables import TableFile, open_table

_WHOLE = r"^-?(0|[1-9]\d{0,17})$"
_NUMBER = r"^[-+]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?$"
_BLANK = "\\s\u00a0\u202f"
_NUMBER_LIKE = rf"^[-+$€£¥₹{_BLANK}]*\d[\d.,'’{_BLANK}]*[$€£¥₹{_BLANK}]*$"
_TRUTH = r"^(?i:true|false)$"
_ZONED = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)$"
_LOCAL = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?$"
_DAY = r"^\d{4}-\d\d-\d\d$"
_TYPES = (
    (_WHOLE, pa.int64()), (_NUMBER, pa.float64()), (_TRUTH, pa.bool_()), (_ZONED, pa.timestamp("us", "UTC")),
    (_LOCAL, pa.timestamp("us")), (_DAY, pa.date32()),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """The decoded records of a table. `rows` has the row of each event, and `views` the number of its view.

    Both are int64[N]; `views` is 0 where a record is one event.
    """

    decoded: Decoded
    rows: NDArray[np.int64]
    views: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WholeFile:
    """The whole of a file: all of its columns, and a function that decodes the same bytes as the events of a schema."""

    table: pa.Table
    decode: Callable[[Schema, FieldMapping], DecodedRows]


def read_whole(path: Path, form: FileForm) -> list[WholeFile]:
    """Read all columns of all files at a path, each file once. Raises: InputError."""
    kind = kind_of(path)
    files = []
    for file in files_of(path):
        try:
            whole = _lines(file, path) if kind == "json" else _rows(open_table(file, path, kind, form))
        except (OSError, pa.ArrowException, UnicodeDecodeError, UnreadableError) as error:
            raise InputError(f"{file} cannot be read: {error}") from error
        table = whole.table
        for name, value in folder_values(file).items():
            if name not in table.column_names:
                table = table.append_column(name, pa.repeat(pa.scalar(value), table.num_rows))
        files.append(WholeFile(table, whole.decode))
    return files


def _lines(file: Path, folder: Path) -> WholeFile:
    lines = read_lines(file, confining_root(folder))
    values, table = json_values(lines), table_of_lines(lines)

    def decode(schema: Schema, mapping: FieldMapping) -> DecodedRows:
        fitted = mapping.with_folders(schema, folder_values(file))
        read = DecodedRows(*events_of_views(schema, fitted, partial(json_rows, schema, values)))
        if not read.decoded.poison:
            return read
        is_row = np.array([is_object(value) for value in values.to_pylist()], bool)  # of the table
        return replace(read, rows=(np.cumsum(is_row) - 1)[read.rows])

    return WholeFile(table, decode)


def _rows(table: TableFile) -> WholeFile:
    batches = list(table.batches(table.names))
    nothing = pa.schema([(name, pa.string()) for name in table.names])
    rows = pa.Table.from_batches([each.batch for each in batches], None if batches else nothing)
    bad = tuple(poison for each in batches for poison in each.bad_lines)

    def decode(schema: Schema, mapping: FieldMapping) -> DecodedRows:
        fitted = table.mapping(schema, mapping)
        names = table.present(fitted.roots(schema))
        made = [table.made(names, each.batch, each.first_row) for each in batches]
        whole = joined_rows(schema, [(decoded_rows(schema, batch, fitted), batch.num_rows) for batch in made])
        return replace(whole, decoded=replace(whole.decoded, poison=(*whole.decoded.poison, *bad)))

    if table.csv is None:
        return WholeFile(rows, decode)
    signs = number_signs(table.csv)
    return WholeFile(pa.table({name: typed(rows[name], signs) for name in rows.column_names}), decode)


def decoded_rows(schema: Schema, table: pa.Table | pa.RecordBatch, mapping: FieldMapping) -> DecodedRows:
    """Decode a table, and note the row and the view of each event."""

    def decode(view: FieldMapping) -> EventRows:
        return decode_rows(schema, table, RowTexts(table), view, NO_STRAYS)

    return DecodedRows(*events_of_views(schema, mapping, decode))


def joined_rows(schema: Schema, parts: Sequence[tuple[DecodedRows, int]]) -> DecodedRows:
    """Join the decoded records of tables that stand one below the other, each with its number of rows."""
    starts = [0, *accumulate(count for _, count in parts)]
    rows = [part.rows + start for (part, _), start in zip(parts, starts, strict=False)]
    decoded = concat_decoded(schema, [part.decoded for part, _ in parts])
    nothing = np.zeros(0, np.int64)
    views = np.concatenate([nothing, *(part.views for part, _ in parts)])
    return DecodedRows(decoded, np.concatenate([nothing, *rows]), views)


def joined_tables(tables: list[pa.Table], path: Path | str) -> pa.Table:
    """Join tables of files; a column that has texts in one of them is a column of texts. Raises: InputError."""
    names = dict.fromkeys(name for table in tables for name in table.column_names)
    for name in names:
        types = {table.schema.field(name).type for table in tables if name in table.column_names} - {pa.null()}
        if len(types) > 1 and any(pa.types.is_string(type_) for type_ in types):
            tables = [_with_text(table, name) for table in tables]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise InputError(f"the files of {path} have a column of types that do not go together: {error}") from error


def _with_text(table: pa.Table, name: str) -> pa.Table:
    if name not in table.column_names:
        return table
    return table.set_column(table.column_names.index(name), name, table[name].cast(pa.string()))


def number_signs(csv: CsvFile) -> NumberForm | None:
    """Return the signs of the numbers of a file, from the columns of which all texts look like numbers."""
    names = [
        name
        for place, name in enumerate(csv.names)
        if (texts := [record[place] for record in csv.records if place < len(record) and record[place].strip()])
        and pc.all(pc.match_substring_regex(pa.array(texts), _NUMBER_LIKE)).as_py()
    ]
    form = csv.with_numbers(names)
    return NumberForm(form.decimal, form.thousands) if form.decimal else None


def typed(texts: pa.ChunkedArray, signs: NumberForm | None) -> pa.ChunkedArray:
    """Return a column of texts as the first type that all of them are of."""
    if texts.null_count == len(texts):
        return pa.chunked_array([pa.nulls(len(texts))])
    for pattern, type_ in _TYPES:
        if pc.all(pc.match_substring_regex(texts, pattern)).as_py():
            try:
                return texts.cast(type_)
            except pa.ArrowInvalid:
                return texts
    if signs is not None:
        plain = pa.chunked_array([plain_numbers(chunk, signs) for chunk in texts.chunks], pa.string())
        if plain.null_count == texts.null_count:
            return typed(plain, None)
    return texts
