"""Files of records → pieces that are decoded one by one, by several threads at once, without Spark.

Parquet is read with the columns that the schema knows only; a record that is set aside is shown with all it has,
which reads its file again. CSV is text, as Spark reads it. JSON lines are cut from blocks of bytes, without a Python
object a line.
Tested by: tests/sources/test_pieces.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from cep.base.schema import Schema
from cep.columnar.decode import Decoded, decode_json, decode_table
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.columnar.shown import shown_row
from cep.sources.files import open_dataset, unreadable
from cep.sources.inputs import files_of, kind_of, opened_json, packing_of
from cep.sources.json_lines import READ_BYTES, LineCutter, json_values, whole_lines

# Enough to make fixed costs small, few enough that several threads have work and a column fits the cache.
PIECE_ROWS = 131_072


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records of a path. `size` is its share of `Pieces.size`; `decode` may be called in any thread."""

    size: int
    decode: Callable[[], Decoded]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The records of a path, in the order of files and rows. `rows` estimates how many; `size` None is not known."""

    rows: int
    size: int | None
    pieces: Iterator[Piece]


def read_pieces(paths: Path | Sequence[Path], schema: Schema, mapping: FieldMapping = PLAIN) -> Pieces:
    """Read the records at some paths: files or folders of Parquet, CSV (with a header) or JSON lines.

    Raises: SourceError for a path without events; also while reading, for a file that cannot be read.
    """
    inputs = [_read_input(path, schema, mapping) for path in ([paths] if isinstance(paths, Path) else paths)]
    sizes = [each.size for each in inputs if each.size is not None]
    # Rows and bytes do not add up, and a share of some files only says nothing.
    is_one = len(inputs) == 1
    rows = sum(each.rows for each in inputs)
    return Pieces(rows, sizes[0] if is_one and sizes else None, chain.from_iterable(each.pieces for each in inputs))


def _read_input(path: Path, schema: Schema, mapping: FieldMapping) -> Pieces:
    kind = kind_of(path)
    files = files_of(path)
    size = sum(file.stat().st_size for file in files)
    if kind == "json":
        shown = None if any(map(packing_of, files)) else size
        return Pieces(size // 200, shown, _guarded(path, schema, _json_pieces(files, schema, mapping)))
    with _guard(path, schema):
        dataset = open_dataset(path, kind, mapping.roots(schema))
        rows = dataset.count_rows() if kind == "parquet" else size // 100
    pieces = _guarded(path, schema, _table_pieces(dataset, schema, mapping))
    return Pieces(rows, rows if kind == "parquet" else None, pieces)


def pieces_of_table(
    table: pa.Table, schema: Schema, show: Callable[[int], str], mapping: FieldMapping = PLAIN
) -> Pieces:
    """Cut a table in memory into pieces, without a copy. `show(row)` gives a record as text, if it is set aside."""
    names = [name for name in mapping.roots(schema) if name in table.column_names]
    return Pieces(table.num_rows, table.num_rows, _table_cuts(table.select(names), schema, show, mapping))


def _table_cuts(table: pa.Table, schema: Schema, show: Callable[[int], str], mapping: FieldMapping) -> Iterator[Piece]:
    first_row = 0
    for batch in table.to_batches(PIECE_ROWS):
        yield Piece(batch.num_rows, _table_decoder(schema, batch, mapping, show, first_row))
        first_row += batch.num_rows


def _json_pieces(files: list[Path], schema: Schema, mapping: FieldMapping) -> Iterator[Piece]:
    for path in files:
        with opened_json(path) as file:
            for lines in whole_lines(file, LineCutter(), READ_BYTES):
                yield _json_piece(schema, lines, mapping)


def _json_piece(schema: Schema, block: bytes, mapping: FieldMapping) -> Piece:
    return Piece(len(block), lambda: decode_json(schema, json_values(block), mapping))


def _table_pieces(dataset: ds.Dataset, schema: Schema, mapping: FieldMapping) -> Iterator[Piece]:
    names = [name for name in mapping.roots(schema) if name in dataset.schema.names]
    scanner = dataset.scanner(columns=names, batch_size=PIECE_ROWS)
    fragment: ds.Fragment | None = None
    first_row = 0
    for tagged in scanner.scan_batches():
        if fragment is None or tagged.fragment.path != fragment.path:
            fragment, first_row = tagged.fragment, 0
            show = _shower(dataset, fragment)
        batch = tagged.record_batch
        yield Piece(batch.num_rows, _table_decoder(schema, batch, mapping, show, first_row))
        first_row += batch.num_rows


def _table_decoder(
    schema: Schema, batch: pa.RecordBatch, mapping: FieldMapping, show: Callable[[int], str], first_row: int
) -> Callable[[], Decoded]:
    return lambda: decode_table(schema, batch, lambda row: show(first_row + row), mapping)


def _shower(dataset: ds.Dataset, fragment: ds.Fragment) -> Callable[[int], str]:
    """Return a function that shows a record of a file as text, with all of its columns."""

    @cache
    def whole() -> pa.Table:
        return fragment.to_table(schema=dataset.schema)

    def show(row: int) -> str:
        return shown_row(whole(), row)

    return show


def _guarded(path: Path, schema: Schema, pieces: Iterator[Piece]) -> Iterator[Piece]:
    with _guard(path, schema):
        for piece in pieces:
            yield Piece(piece.size, partial(_decoded, path, schema, piece.decode))


def _decoded(path: Path, schema: Schema, decode: Callable[[], Decoded]) -> Decoded:
    with _guard(path, schema):
        return decode()


@contextmanager
def _guard(path: Path, schema: Schema) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise unreadable(path, schema, error) from (None if schema.protected else error)
