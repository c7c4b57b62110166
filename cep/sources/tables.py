"""A file of Parquet or CSV → batches of the columns that are asked for, by the file's own names and types.

    names of the file ─┐
    #row               ├─▶ the columns of a mapping
    Year + Month + Day ┘   (the texts of several columns, with a blank between them)

CSV is text. A line of CSV with too many or too few fields is set aside, alone. `read_whole` chooses types:

    Parquet      the types of each file, the widest of each column
    CSV          whole numbers, numbers, truth values, times and dates if all texts of a column are such, else texts
    JSON         the types that Arrow chooses; texts for a column of numbers in one record and texts in another
    day=01/...   a column of texts, for a folder that names a value

A text of digits that begins with a zero is not a number: it is an account, or a card.
Tested by: tests/sources/test_tables.py, tests/api/test_forms.py, tests/sources/test_csv_form.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.json as pj
from numpy.typing import NDArray

from cep.base.errors import InputError, UnreadableError
from cep.base.schema import Schema
from cep.columnar.batch import TEXT
from cep.columnar.convert import NumberForm, plain_numbers
from cep.columnar.decode import Decoded, EventRows, Poison, concat_decoded, decode_rows, events_of_views, json_rows
from cep.columnar.mapping import NUMBER_KINDS, PLAIN, ROW_NUMBER, FieldMapping, FileForm, joined_columns
from cep.columnar.parse_json import parse_json
from cep.columnar.shown import RowTexts
from cep.columnar.strays import NO_STRAYS
from cep.sources.csv_form import CsvFile, open_csv, opened_csv, texts_of
from cep.sources.inputs import confining_root, files_of, folder_values, kind_of, opened_json
from cep.sources.json_lines import READ_BYTES, LineCutter, json_value, json_values, whole_lines
from cep.sources.parquet import opened_parquet, read_batches

# From the types of columns to a filter of rows, None for all rows.
Where = Callable[[pa.Schema], ds.Expression | None]
_FIRST_ROWS = 20
_ROWS = 131_072  # read at once, by default
_NO_FIELDS = Schema(())
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]..")  # half of a character, as in a text that was cut


@dataclass(frozen=True)
class TableFile:
    """A file and the names of its columns. `folder` is the given path that it was found below."""

    path: Path
    folder: Path
    names: tuple[str, ...]
    csv: CsvFile | None = None
    groups: tuple[int, ...] | None = None
    rows_before: int = 0

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.names)

    @property
    def row_name(self) -> str:
        """The text in front of the number of a row: the name of the file below the given path."""
        name = self.path.name if self.path == self.folder else str(self.path.relative_to(self.folder))
        return f"{name}:"

    def mapping(self, schema: Schema, mapping: FieldMapping) -> FieldMapping:
        """Complete the mapping for this file: add the values of its folders (`country=DE`), and CSV's decimal sign. The
        sign is found in the columns that any view (one of the events of a record) reads numbers from."""
        file_mapping = mapping.with_folders(schema, folder_values(self.path))
        if self.csv is None:
            return file_mapping
        types = schema.columns()
        number_columns = {
            path[0]  # the column
            for view in file_mapping.views
            for name, path in view.paths(schema).items()
            if name in types and types[name].kind in NUMBER_KINDS
        }
        return replace(file_mapping, file=self.csv.with_numbers(sorted(number_columns)))

    def present(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that the file has, or that are computed from its columns."""
        return [name for name in columns if self._names.issuperset(self._sources(name))]

    def batches(self, columns: Sequence[str], rows: int | None = None, where: Where | None = None) -> Iterator[Batch]:
        """Yield the columns in order, at most `rows` rows at a time. `where` returns a filter of rows for the types of
        the columns, None for all rows. Raises: OSError, InputError, ArrowException."""
        sources = list(dict.fromkeys(source for name in columns for source in self._sources(name)))
        if where is not None and self.csv is None and ROW_NUMBER not in columns:
            row_filter = where(self._schema())  # the reader skips rows, so no row knows its number: 0
            for batch in self._rows(sources, rows, row_filter):
                yield Batch(self.chosen_columns(columns, batch, rows_before=0), first_row=0)
            return
        first_row = self.rows_before  # the number of the first row in the file
        for batch, bad_lines in self._read(sources, rows):
            completed = self.chosen_columns(columns, batch, first_row)
            row_filter = None if where is None else where(completed.schema)
            yield Batch(completed if row_filter is None else completed.filter(row_filter), first_row, bad_lines)
            first_row += batch.num_rows

    def chosen_columns(self, columns: Sequence[str], batch: pa.RecordBatch, rows_before: int) -> pa.RecordBatch:
        """Return the requested columns, read or computed. `rows_before` counts the file's rows before the batch."""
        if not columns:
            return batch.select([])
        stored = self._names
        arrays = [batch.column(name) if name in stored else self._column(name, batch, rows_before) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, list(columns))

    def rows(self, columns: Sequence[str], count: int) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows, as few at a time as are asked for: a scanner decodes a whole row group for the first."""
        if self.csv is not None or not self._names.issuperset(columns):
            yield from (each.batch.to_pylist() for each in self.batches(columns))
            return
        batches = read_batches(self.path, None, count, root=confining_root(self.folder))
        yield from (batch.to_pylist() for batch in batches)

    def first_rows(self) -> list[dict[str, Any]]:
        """Return some rows by which times without a zone are seen; none if the types of the file rule them out."""
        if self.csv is not None:
            return [dict(zip(self.names, record, strict=False)) for record in self.csv.records]
        types = self._schema().types
        if not any(pa.types.is_date(t) or (pa.types.is_timestamp(t) and t.tz is None) for t in types):
            return []
        return next(self.rows(self.names, _FIRST_ROWS), [])

    def all_rows(self, columns: Sequence[str]) -> pa.Table:
        """Return all rows of these columns."""
        batches = [each.batch for each in self.batches(columns)]
        return pa.Table.from_batches(batches) if batches else pa.table({name: pa.nulls(0, TEXT) for name in columns})

    def _sources(self, name: str) -> tuple[str, ...]:
        if name in self._names:
            return (name,)
        return () if name == ROW_NUMBER else joined_columns(name)

    def _column(self, name: str, batch: pa.RecordBatch, row: int) -> pa.Array:
        if name == ROW_NUMBER:
            numbers = pa.array(range(row + 1, row + batch.num_rows + 1), pa.int64()).cast(pa.string())
            return pc.binary_join_element_wise(self.row_name, numbers, "")
        return joined(batch.column(source) for source in self._sources(name))

    def _read(self, columns: list[str], rows: int | None) -> Iterator[tuple[pa.RecordBatch, tuple[Poison, ...]]]:
        if self.csv is not None:
            yield from _csv_batches(self.csv, columns, confining_root(self.folder))
            return
        yield from ((batch, ()) for batch in self._rows(columns, rows, None))

    def _rows(self, columns: list[str], rows: int | None, row_filter: ds.Expression | None) -> Iterator[pa.RecordBatch]:
        # A batch without columns has no length, so one is read.
        names = columns or list(self.names[:1])
        groups = self.groups if row_filter is None else self._groups_with(row_filter)
        batches = read_batches(self.path, names, rows or _ROWS, groups, confining_root(self.folder))
        yield from batches if row_filter is None else (batch.filter(row_filter) for batch in batches)

    def _groups_with(self, row_filter: ds.Expression) -> list[int]:
        """Return the row groups that may have rows for the filter, by the statistics of the groups."""
        fragment = ds.ParquetFileFormat().make_fragment(str(self.path), pafs.LocalFileSystem(), row_groups=self.groups)
        return [group.id for group in fragment.subset(row_filter).row_groups]

    def _schema(self) -> pa.Schema:
        with opened_parquet(self.path, confining_root(self.folder)) as file:
            return file.schema_arrow


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of a file, the number of rows before them, and the lines that are not rows."""

    batch: pa.RecordBatch
    first_row: int
    bad_lines: tuple[Poison, ...] = field(default=())


def joined(columns: Iterator[pa.Array]) -> pa.Array:
    """Return the texts of several columns with a blank between them; null where one is."""
    texts = [column.cast(pa.string()) for column in columns]
    return pc.binary_join_element_wise(*texts, " ")


def open_table(
    path: Path, folder: Path, kind: str, form: FileForm, groups: tuple[int, int | None] = (0, None)
) -> TableFile:
    """Read the column names of a Parquet or CSV file. `groups` is the range of row groups of Parquet to read later.
    Raises: OSError, InputError, ArrowException."""
    if kind == "csv":
        csv = open_csv(path, form, confining_root(folder))
        return TableFile(path, folder, csv.names, csv)
    with opened_parquet(path, confining_root(folder)) as file:
        metadata, names = file.metadata, tuple(file.schema_arrow.names)
    if len(set(names)) < len(names):
        raise InputError(f"{path} cannot be read: two of its columns have one name; rename one")
    start, stop = groups
    chosen = None if stop is None else tuple(range(start, stop))
    rows_before = sum(metadata.row_group(number).num_rows for number in range(start))
    return TableFile(path, folder, names, groups=chosen, rows_before=rows_before)


def _csv_batches(
    file: CsvFile, columns: list[str], root: Path | None
) -> Iterator[tuple[pa.RecordBatch, tuple[Poison, ...]]]:
    """Yield the records of a CSV file as texts, in batches, each with the bad lines before its last record: the same
    ones in every reading. A batch without records has the bad lines at the end of the file."""
    bad_lines: list[Poison] = []
    with opened_csv(file, root) as cutter:
        for block in cutter.blocks():
            if block.count == 0:
                bad_lines += [line for _, line in block.rejected]
                continue
            own = [line for records_before, line in block.rejected if records_before < block.count]
            batch = texts_of(file, block, columns or file.names[:1])
            yield batch, (*bad_lines, *own)  # without any column, rows are not counted
            bad_lines = [line for records_before, line in block.rejected if records_before == block.count]
    if bad_lines:  # after the last batch
        no_rows = pa.RecordBatch.from_arrays([pa.nulls(0, pa.string()) for _ in columns], columns)
        yield no_rows, tuple(bad_lines)


def read_json_table(path: Path, root: Path | None = None, parse: pj.ParseOptions | None = None) -> pa.Table:
    """Read all columns of a file, without lines that are not objects. Raises: OSError, InputError, UnreadableError."""
    lines = read_lines(path, root)
    return _table_of_lines(lines, json_values(lines), parse)[0]


def read_lines(path: Path, root: Path | None = None) -> bytes:
    """Read a file as JSON lines. Raises: OSError, InputError, UnreadableError."""
    with opened_json(path, root) as file:
        return b"\n".join(whole_lines(file, LineCutter(), READ_BYTES))


def _table_of_lines(
    lines: bytes, values: pa.Array, parse: pj.ParseOptions | None = None
) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return all columns of JSON lines, and for each of them (`values`) its row: the count of objects before it."""
    try:
        texts = pc.ascii_trim_whitespace(values.cast(TEXT))  # refuses text that is not UTF-8
        in_braces = pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py()
        if in_braces:  # otherwise not for Arrow, whose reader ends the process at a block that begins with `null`
            table = pj.read_json(pa.BufferReader(lines), pj.ReadOptions(block_size=READ_BYTES), parse)
            if table.num_rows == len(values):  # each line is one object
                return table, np.arange(len(values))
    except pa.ArrowInvalid:
        pass
    is_object = np.ones(len(values), bool)
    is_object[[line.row for line in parse_json(_NO_FIELDS, values, PLAIN)[1]]] = False
    records = [_object(line) for line in values.filter(pa.array(is_object)).to_pylist()]
    names = dict.fromkeys(name for record in records for name in record)
    columns = {name: _column([record.get(name) for record in records]) for name in names}
    return pa.table(columns), np.cumsum(is_object) - is_object


def _object(line: bytes) -> dict[str, Any]:
    """Return the object of a line; without invalid characters, or empty, if that is all that can be read of it."""
    value = json_value(line)
    if value is None:
        value = json_value(_SURROGATE.sub(rb"\\ufffd", line.decode("utf-8", "replace").encode()))
    return value if isinstance(value, dict) else {}


def _column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        texts = [v if v is None or isinstance(v, str) else orjson.dumps(v).decode() for v in values]
        return pa.array(texts, pa.string())


_WHOLE = r"^-?(0|[1-9]\d*)$"  # beyond 64 bits a text: it is an account, or a card
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
    """The decoded records of a table, with the row of each event and the number of its view, 0 if a record is one
    event: int64[N] both."""

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
            whole = _whole_json(file, path) if kind == "json" else _whole_table(open_table(file, path, kind, form))
        except (OSError, pa.ArrowException, UnicodeDecodeError, UnreadableError) as error:
            raise InputError(f"{file} cannot be read: {error}") from error
        table = whole.table
        for name, value in folder_values(file).items():
            if name not in table.column_names:
                table = table.append_column(name, pa.repeat(pa.scalar(value), table.num_rows))
        files.append(WholeFile(table, whole.decode))
    return files


def _whole_json(file: Path, folder: Path) -> WholeFile:
    """Read a JSON file as a table, with a function that decodes the same lines as the events of a schema."""
    lines = read_lines(file, confining_root(folder))
    values = json_values(lines)
    table, row_of_line = _table_of_lines(lines, values)

    def decode(schema: Schema, mapping: FieldMapping) -> DecodedRows:
        file_mapping = mapping.with_folders(schema, folder_values(file))
        read = DecodedRows(*events_of_views(schema, file_mapping, partial(json_rows, schema, values)))
        return replace(read, rows=row_of_line[read.rows])

    return WholeFile(table, decode)


def _whole_table(table: TableFile) -> WholeFile:
    """Read a Parquet or CSV file as a table. Its function decodes the same rows once schema and mapping are known."""
    batches = list(table.batches(table.names))
    empty_schema = pa.schema([(name, pa.string()) for name in table.names])
    rows = pa.Table.from_batches([each.batch for each in batches], None if batches else empty_schema)
    bad = tuple(poison for each in batches for poison in each.bad_lines)

    def decode(schema: Schema, mapping: FieldMapping) -> DecodedRows:
        file_mapping = table.mapping(schema, mapping)
        names = table.present(file_mapping.roots(schema))
        chosen = [table.chosen_columns(names, each.batch, each.first_row) for each in batches]
        whole = joined_rows(schema, [(decoded_rows(schema, batch, file_mapping), batch.num_rows) for batch in chosen])
        return replace(whole, decoded=replace(whole.decoded, poison=(*whole.decoded.poison, *bad)))

    if table.csv is None:
        return WholeFile(rows, decode)
    separators = number_separators(table.csv)  # CSV is text: the columns get types by their texts
    return WholeFile(pa.table({name: typed(rows[name], separators) for name in rows.column_names}), decode)


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


def number_separators(csv: CsvFile) -> NumberForm | None:
    """Return the separators in the numbers of a file, from the columns of which all texts look like numbers."""
    names = [
        name
        for place, name in enumerate(csv.names)
        if (texts := [record[place] for record in csv.records if place < len(record) and record[place].strip()])
        and pc.all(pc.match_substring_regex(pa.array(texts), _NUMBER_LIKE)).as_py()
    ]
    form = csv.with_numbers(names)
    return NumberForm(form.decimal, form.thousands) if form.decimal else None


def typed(texts: pa.ChunkedArray, separators: NumberForm | None) -> pa.ChunkedArray:
    """Return a column of texts as the first type (whole number, number, truth value, …) that all of them fit."""
    if texts.null_count == len(texts):
        return pa.chunked_array([pa.nulls(len(texts))])
    for pattern, type_ in _TYPES:
        if pc.all(pc.match_substring_regex(texts, pattern)).as_py():
            try:
                return texts.cast(type_)
            except pa.ArrowInvalid:
                return texts
    if separators is not None:
        plain = pa.chunked_array([plain_numbers(chunk, separators) for chunk in texts.chunks], pa.string())
        if plain.null_count == texts.null_count:  # each text is a number
            return typed(plain, None)
    return texts
