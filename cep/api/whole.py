"""Events that are wanted whole → a table of all their columns, and the events decoded, in the same order.

Files are read once. Of CSV and JSON lines the bytes stay and are parsed twice: what Arrow makes of texts has lost their
zones, and decoding reads them as the verbs do.
Tested by: tests/api/test_features.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.json as pj

from cep.api.events import check_paths, paths_of
from cep.api.frames import Frame, events_table, open_frame
from cep.api.naming import Naming
from cep.base.errors import SourceError
from cep.base.schema import Schema
from cep.columnar.decode import Decoded, concat_decoded, decode_json, decode_table
from cep.columnar.mapping import FieldMapping
from cep.columnar.shown import shown_row
from cep.sources.files import open_dataset
from cep.sources.inputs import UnpackedFile, files_of, kind_of
from cep.sources.json_lines import READ_BYTES, LineCutter, json_values, whole_lines
from cep.sources.pieces import pieces_of_table

_Decode = Callable[[Schema, FieldMapping], Decoded]


@dataclass(frozen=True, slots=True)
class Whole:
    """Events with all their columns. `decode` gives them as rules read them, row by row those of the table."""

    frame: Frame
    table: pa.Table
    decode: Callable[[Schema, Naming], Decoded]


def open_whole(events: Any) -> Whole:
    """See a frame, or read the files at paths. Raises: UsageError, SourceError."""
    paths = paths_of(events)
    if paths is None:
        frame = open_frame(events)
        table = frame.whole()  # once: a query may give its rows in another order next time
        return Whole(frame, table, partial(_decode_frame, table))
    parts = [_read(path) for path in paths]
    try:
        table = pa.concat_tables([part[0] for part in parts], promote_options="permissive")
    except pa.ArrowException as error:
        raise SourceError(f"{', '.join(map(str, paths))} have no columns in common: {error}") from error

    def decode(schema: Schema, naming: Naming) -> Decoded:
        mapping = naming.of_records()
        check_paths(paths, schema, mapping)
        return concat_decoded(schema, [each(schema, mapping) for _, each in parts])

    frame = open_frame(table)
    return Whole(frame, frame.whole(), decode)


def _decode_frame(table: pa.Table, schema: Schema, naming: Naming) -> Decoded:
    fields = events_table(open_frame(table), schema, naming)
    return decode_table(schema, fields, partial(shown_row, fields), naming.values(schema))


def _read(path: Path) -> tuple[pa.Table, _Decode]:
    """Read the files at a path; return all columns, and how their events are decoded. Raises: SourceError."""
    kind = kind_of(path)
    try:
        if kind == "parquet":
            table = open_dataset(path, kind, ()).to_table()
            return table, partial(_decode_table, table)
        contents = [_content(file) for file in files_of(path)]
        if kind == "json":
            tables = [pj.read_json(pa.BufferReader(content)) for content in contents]
            return pa.concat_tables(tables, promote_options="default"), partial(_decode_lines, contents)
        return _read_csv(contents, {}), partial(_decode_csv, contents)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error


def _content(file: Path) -> pa.Buffer:
    with UnpackedFile(file) as opened:
        return pa.py_buffer(opened.read())


def _read_csv(contents: list[pa.Buffer], types: dict[str, pa.DataType]) -> pa.Table:
    convert = pcsv.ConvertOptions(column_types=types, strings_can_be_null=True, null_values=[""])
    tables = [pcsv.read_csv(pa.BufferReader(content), convert_options=convert) for content in contents]
    return pa.concat_tables(tables, promote_options="permissive")


def _decode_csv(contents: list[pa.Buffer], schema: Schema, mapping: FieldMapping) -> Decoded:
    return _decode_table(_read_csv(contents, dict.fromkeys(mapping.roots(schema), pa.string())), schema, mapping)


def _decode_table(table: pa.Table, schema: Schema, mapping: FieldMapping) -> Decoded:
    pieces = pieces_of_table(table, schema, partial(shown_row, table), mapping).pieces
    return concat_decoded(schema, [piece.decode() for piece in pieces])


def _decode_lines(contents: list[pa.Buffer], schema: Schema, mapping: FieldMapping) -> Decoded:
    blocks = (
        lines for content in contents for lines in whole_lines(pa.BufferReader(content), LineCutter(), READ_BYTES)
    )
    return concat_decoded(schema, [decode_json(schema, json_values(lines), mapping) for lines in blocks])
