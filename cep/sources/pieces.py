"""Files of records → pieces that are decoded one by one, by several threads at once, without Spark.

Parquet is read with the columns that the schema knows only; a record that is set aside is shown with all it has, which
reads its file again. CSV is text, as Spark reads it. JSON lines are cut from blocks of bytes, without a Python object a
line. A `Period` limits the pieces as if the history had no other events. Unreadable records have no time: they stay,
and are set aside as usual.
Tested by: tests/sources/test_files.py, tests/api/test_period.py.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import open_file
from cep.base.limits import DEDUP_MS_DEFAULT, TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.base.text import utc_ms
from cep.columnar.decode import Decoded, decode_json, decode_table
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.columnar.shown import RowTexts
from cep.sources.files import KeyRecords
from cep.sources.inputs import (
    Records,
    confining_root,
    files_of,
    folder_values,
    guarded,
    kind_of,
    opened_json,
    packing_of,
)
from cep.sources.json_lines import READ_BYTES, LineCutter, has_json_lines, json_values, lines_between, whole_lines
from cep.sources.parquet import opened_parquet, rows_at_once
from cep.sources.tables import Batch, TableFile, open_table

# Enough to make fixed costs small, few enough that several threads have work and a column fits the cache.
PIECE_ROWS = 131_072
_BATCHES_SHOWN = 4  # that stay for the next record that is set aside
SHARE_BYTES = 32 << 20  # of a task that reads a part of a file


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records of a path. `size` is its share of `Pieces.size`; `decode` may be called in any thread."""

    size: int
    decode: Callable[[], Decoded]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The records of some paths, in the order of files and rows, as an iterator of pieces.

    `rows` estimates the number of records. `size` is the total of a progress bar, in rows or bytes; None: unknown.
    A piece has consecutive records, which one thread decodes. `until_ms`: the history ends at this time, although its
    last event may be earlier. `to_the_end`: windows that are open at that time close, as if no further event came.
    `dedup_ms`: for how long event ids are remembered, 0: not at all, None: as long as the job's settings say.
    """

    rows: int
    size: int | None
    pieces: Iterator[Piece]
    until_ms: int = TIME_MS_MAX
    to_the_end: bool = False
    dedup_ms: int | None = None

    def changed(self, change: Callable[[int, Decoded], Decoded]) -> Pieces:
        """Return the pieces with a change of their records, by the number of the piece; it is made while decoding."""

        def changed_piece(number: int, piece: Piece) -> Piece:
            return Piece(piece.size, lambda: change(number, piece.decode()))

        return replace(self, pieces=(changed_piece(number, piece) for number, piece in enumerate(self.pieces)))


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file at or below `folder`, or a part of the file. `start` and `stop` count bytes of JSON lines, or row groups
    (blocks of rows) of Parquet; without `stop` the part ends with the file."""

    path: Path
    folder: Path
    kind: str
    start: int = 0
    stop: int | None = None

    def to_json(self) -> str:
        """Write the part as text, for a task that reads it."""
        return json.dumps([str(self.path), str(self.folder), self.kind, self.start, self.stop])

    @staticmethod
    def from_json(text: str) -> FilePart:
        path, folder, kind, start, stop = json.loads(text)
        return FilePart(Path(path), Path(folder), kind, start, stop)


def read_pieces(paths: Path | Sequence[Path], schema: Schema, mapping: FieldMapping = PLAIN) -> Pieces:
    """Read the records at some paths: files or folders of Parquet, CSV (with a header) or JSON lines. Raises:
    SourceError for a path without events; also while reading, for a file that cannot be read."""
    inputs = [paths] if isinstance(paths, Path) else paths
    parts = [part for path in inputs for part in parts_of(path)]
    rows = sum(_rows_of(part, schema) for part in parts)
    pieces = chain.from_iterable(read_part(part, schema, mapping) for part in parts)
    # The total for a progress bar: rows of Parquet, or bytes of JSON lines. Both together or CSV have no exact total.
    kinds = {part.kind for part in parts}
    size = None
    if len(inputs) == 1 and kinds == {"parquet"}:
        size = rows
    elif len(inputs) == 1 and kinds == {"json"} and not any(packing_of(part.path) for part in parts):
        size = sum(part.path.stat().st_size for part in parts)
    return Pieces(rows, size, pieces)


def parts_of(path: Path) -> list[FilePart]:
    """Return the files at a path. Raises: InputError."""
    kind = kind_of(path)
    return [FilePart(file, path, kind) for file in files_of(path)]


def shares_of(part: FilePart, share_bytes: int = SHARE_BYTES) -> list[FilePart]:
    """Divide a file into parts of about `share_bytes`: row groups of Parquet, or lines of JSON. Raises: InputError."""
    size = part.path.stat().st_size
    if size <= share_bytes or part.kind == "csv" or packing_of(part.path) is not None:
        return [part]
    if part.kind == "json":
        with open_file(part.path, confining_root(part.folder)) as file:
            if not has_json_lines(file):
                return [part]
        bounds = [*range(0, size, share_bytes), size]
    else:
        try:
            with opened_parquet(part.path, confining_root(part.folder)) as file:
                groups = file.metadata.num_row_groups
        except (OSError, pa.ArrowException, UnreadableError):
            return [part]  # the task that reads the part says why it cannot
        bounds = [*range(0, groups, max(1, groups * share_bytes // size)), groups]
    return [replace(part, start=start, stop=stop) for start, stop in pairwise(bounds)]


def read_part(part: FilePart, schema: Schema, mapping: FieldMapping) -> Iterator[Piece]:
    """Yield the pieces of a file. Raises: SourceError if it cannot be read."""
    with guarded(part.path, schema):
        if part.kind == "json":
            file_mapping = mapping.with_folders(schema, folder_values(part.path))
            pieces: Iterator[Piece] = (_json_piece(schema, block, file_mapping) for block in _json_blocks(part))
        else:
            table = open_table(part.path, part.folder, part.kind, mapping.file, (part.start, part.stop))
            pieces = _table_pieces(table, schema, table.mapping(schema, mapping))
        for piece in pieces:
            yield Piece(piece.size, guarded(part.path, schema)(piece.decode))


def _rows_of(part: FilePart, schema: Schema) -> int:
    """Return the rows of a file, or an estimate."""
    if part.kind == "parquet":
        with guarded(part.path, schema), opened_parquet(part.path, confining_root(part.folder)) as file:
            return int(file.metadata.num_rows)
    return part.path.stat().st_size // (100 if part.kind == "csv" else 200)


def pieces_of_table(
    table: pa.Table, schema: Schema, show: Callable[[int], str], mapping: FieldMapping = PLAIN
) -> Pieces:
    """Cut a table in memory into pieces, without a copy. `show(row)` gives a record as text, if it is set aside."""
    names = [name for name in mapping.roots(schema) if name in table.column_names]
    return Pieces(table.num_rows, table.num_rows, _table_cuts(table.select(names), schema, show, mapping))


def _table_cuts(table: pa.Table, schema: Schema, show: Callable[[int], str], mapping: FieldMapping) -> Iterator[Piece]:
    first_row = 0
    for batch in table.to_batches(rows_at_once(table, PIECE_ROWS)):
        yield _table_piece(schema, Batch(batch, first_row), mapping, show)
        first_row += batch.num_rows


def _json_blocks(part: FilePart) -> Iterator[bytes]:
    root = confining_root(part.folder)
    if part.stop is None:
        with opened_json(part.path, root) as file:
            yield from whole_lines(file, LineCutter(), READ_BYTES)
    else:
        with open_file(part.path, root) as file:
            yield lines_between(file, part.start, part.stop)


def _json_piece(schema: Schema, block: bytes, mapping: FieldMapping) -> Piece:
    return Piece(len(block), lambda: decode_json(schema, json_values(block), mapping))


def _table_pieces(table: TableFile, schema: Schema, mapping: FieldMapping) -> Iterator[Piece]:
    names = table.present(mapping.roots(schema))
    show = _record_viewer(table, [*dict.fromkeys((*table.names, *names))])
    for each in table.batches(names, PIECE_ROWS):
        yield _table_piece(schema, each, mapping, show)


def _table_piece(schema: Schema, rows: Batch, mapping: FieldMapping, show: Callable[[int], str]) -> Piece:
    def decode() -> Decoded:
        decoded = decode_table(schema, rows.batch, lambda row: show(rows.first_row + row), mapping)
        return replace(decoded, poison=(*decoded.poison, *rows.bad_lines))

    return Piece(rows.batch.num_rows, decode)


def _record_viewer(table: TableFile, names: Sequence[str]) -> Callable[[int], str]:
    """Return a function that shows a record by its row, as text with all columns of its file, for a dead letter. The
    file is read again for it: rejected records are few, and come mostly in the order of their rows."""
    reading = Lock()
    read: deque[tuple[Batch, RowTexts]] = deque(maxlen=_BATCHES_SHOWN)  # in the order of rows
    batches: Iterator[Batch] = iter(())

    def show(row: int) -> str:
        nonlocal batches
        with reading:  # several threads decode pieces of the file at a time, so the last few batches are kept
            if not read or row < read[0][0].first_row:
                read.clear()  # the row is before the kept batches: begin the file again
                batches = table.batches(names, PIECE_ROWS)
            while not read or row >= read[-1][0].first_row + read[-1][0].batch.num_rows:
                batch = next(batches)
                read.append((batch, RowTexts(batch.batch)))
            batch, row_text = next(entry for entry in reversed(read) if entry[0].first_row <= row)  # it has the row
        return row_text(row - batch.first_row)

    return show


@dataclass(frozen=True, slots=True)
class Period:
    """A period of event time to replay, from `since_ms` on and before `until_ms` (milliseconds UTC), with two settings.
    `to_the_end`: windows that are open at the end of the period close there. `dedup_ms`: for how long event ids are
    remembered, so that an event that comes again does not count; 0: not at all."""

    since_ms: int = TIME_MS_MIN
    until_ms: int = TIME_MS_MAX
    to_the_end: bool = False
    dedup_ms: int = DEDUP_MS_DEFAULT

    @property
    def cuts_nothing(self) -> bool:
        return self.since_ms == TIME_MS_MIN and self.until_ms == TIME_MS_MAX

    def cut(self, pieces: Pieces) -> Pieces:
        """Return the pieces (batches of records) without events outside of the period, and with its settings."""
        if not self.cuts_nothing:
            cut = pieces.changed(lambda _, decoded: decoded.between(self.since_ms, self.until_ms))
            pieces = replace(cut, until_ms=self.until_ms)
        return replace(pieces, to_the_end=self.to_the_end, dedup_ms=self.dedup_ms)

    def cut_key(self, records: KeyRecords) -> KeyRecords:
        if self.cuts_nothing:
            return records
        time_ms = records.batch.time_ms
        is_in = (time_ms >= self.since_ms) & (time_ms < self.until_ms)
        poison = tuple(each for each in records.poison if each.is_between(self.since_ms, self.until_ms))
        return KeyRecords(records.batch.take(np.flatnonzero(is_in)), poison)

    def reader(self, records: Records) -> Callable[[Schema], Pieces]:
        """Return a function that reads the records of the period from their files."""
        return lambda schema: self.cut(read_pieces(records.paths, schema, records.mapping))


ALWAYS = Period()


def period_of(
    since: str | None, until: str | None, flag: str = "", *, to_the_end: bool = False, dedup_ms: int = DEDUP_MS_DEFAULT
) -> Period:
    """Read a period. `flag` precedes the names in messages. Raises: UsageError for an invalid time."""
    return Period(
        _moment(f"{flag}since", since, TIME_MS_MIN),
        _moment(f"{flag}until", until, TIME_MS_MAX),
        to_the_end,
        dedup_ms,
    )


def _moment(name: str, text: str | None, missing_ms: int) -> int:
    try:
        return missing_ms if text is None else utc_ms(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
