"""Files of a folder, or one file → chunks of records, in the order of the files' times; files that appear later too.

Spark knows the time of a file to the millisecond, so for two files of one millisecond the name decides. A file must
appear whole: write it under a name that begins with a dot or `_`, and rename it. Positions are by file name: rows of
Parquet and CSV, bytes of JSON lines, records of another form of JSON. A file that cannot be read, or not within limits,
is set aside as one record. Tasks of Spark read files by the same functions.
Tested by: tests/sources/test_live.py, tests/sources/test_live_forms.py
"""

import codecs
import os
import stat
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa

from cep.base.errors import InputError, SourceError, UnreadableError, UsageError
from cep.base.files import open_file
from cep.base.schema import Schema
from cep.columnar.decode import Decoded, decode_json
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.sources.inputs import FORMATS, confining_root, opened_json, packing_of, suffix_of
from cep.sources.json_lines import LineCutter, has_json_lines, json_values, whole_lines
from cep.sources.live.base import Chunk, Positions, decode_chunks, file_name, unreadable_file
from cep.sources.tables import TableFile, open_table

FILES_LANE = "files"  # the name of the one lane: files are read one after the other
_BYTES_A_RECORD = 200
_RECORDS_AT_ONCE = 65_536
_LOOK_S = 0.2
_NAP_S = 0.02
# In place of rows or bytes: all of the file.
_DONE = -1


class FilesSource:
    """The files of `path`; with `follow` also later ones, until the runner is stopped."""

    def __init__(
        self, path: Path, *, follow: bool, mapping: FieldMapping = PLAIN, takes_events: bool = True
    ) -> None:  # fmt: skip
        """Begin at the first file. A source of control records (not `takes_events`) reads only JSON. Raises: UsageError
        if the path does not exist."""
        if path.is_file() and suffix_of(path) not in FORMATS:
            raise UsageError(f"{path} is no Parquet, CSV or JSON by its name; name it *.parquet, *.csv or *.jsonl")
        if not path.is_file() and not path.is_dir():
            raise UsageError(f"there is no file or folder at {path}; make the folder first, files may come later")
        self._path = path
        self._follow = follow and path.is_dir()
        self._mapping = mapping
        self._takes_events = takes_events
        self._done: Positions = {}  # by name of a file: bytes or rows that were read, or _DONE
        self._waiting: deque[Path] = deque()  # files to read, the current one first
        self._current: Iterator[tuple[Chunk, int]] | None = None  # the rest of the current file
        self._current_name = ""
        self._records_max = 0  # of a block of a file: the most that was asked for, as a micro-batch may need only a few
        self._last_search_s = float("-inf")  # when the folder was last searched for new files
        self.ended = False

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        """Return the next records of the current file, or of the next file once it appears within `wait_s`."""
        deadline_s = time.monotonic() + wait_s
        self._records_max = max(records_max, self._records_max)
        while not self.ended:
            if self._current is None:
                self._next_file()
            if self._current is not None:
                try:
                    chunk, position = next(self._current)
                except StopIteration:
                    self._done[self._current_name] = _DONE
                    self._current = None
                    self._waiting.popleft()
                    continue
                except SourceError:
                    self._current = None  # the next poll reads the file again
                    raise
                self._done[self._current_name] = position
                return [chunk]
            if not self._follow:
                self.ended = True
            elif time.monotonic() >= deadline_s:
                break
            else:
                time.sleep(min(_NAP_S, max(0.0, deadline_s - time.monotonic())))
        return []

    def positions(self) -> Positions:
        return dict(self._done)

    def seek(self, positions: Mapping[str, int]) -> None:
        self._done = dict(positions)

    def look(self) -> None:
        if self._current is None and not self._waiting and not self.ended:
            self._look()

    def hold(self, lanes: Collection[str]) -> None:
        """Do nothing: there is one lane."""

    def behind(self) -> dict[str, bool]:
        return {FILES_LANE: self._current is not None or bool(self._waiting)}

    def close(self) -> None:
        self._current = None

    def _next_file(self) -> None:
        if not self._waiting and time.monotonic() - self._last_search_s >= _LOOK_S:
            self._look()
        if self._waiting:
            path = self._waiting[0]
            self._current_name = file_name(path)
            start = self._done.get(self._current_name, 0)
            self._current = read_file(path, self._path, start, self._records_max, self._mapping)

    def _look(self) -> None:
        self._last_search_s = time.monotonic()
        try:
            paths = [self._path] if self._path.is_file() else [p for p in self._path.iterdir() if p.name[0] not in "._"]
        except OSError as error:
            raise SourceError(f"{self._path} cannot be read: {error}; make the folder again") from error
        readable = [p for p in paths if self._takes_events or FORMATS.get(suffix_of(p)) == "json"]
        fresh = [p for p in readable if self._done.get(file_name(p)) != _DONE]
        written = [(written_ms, p.name, p) for p in fresh if (written_ms := _written_ms(p)) is not None]
        self._waiting.extend(p for _, _, p in sorted(written))


def _written_ms(path: Path) -> int | None:
    """Return when a file was written; None for other kinds, such as a pipe without a writer."""
    try:
        about = path.stat()
    except OSError:  # it is gone, or a link that leads nowhere
        return None
    return about.st_mtime_ns // 1_000_000 if stat.S_ISREG(about.st_mode) else None


def read_file(
    path: Path, folder: Path, start: int, records_max: int, mapping: FieldMapping
) -> Iterator[tuple[Chunk, int]]:
    """Yield the records of a file from a position on, as chunks, each with the position after it. `folder` is the path
    below which the file was found. An unreadable rest of the file is a chunk of its own. Raises: SourceError for a
    fault of the system, such as missing rights."""
    end = start
    try:
        for chunk, end in _chunks(path, folder, start, records_max, mapping):
            yield chunk, end
    except (OSError, pa.ArrowException, UnicodeDecodeError, UnreadableError, InputError) as error:
        # An error of the system has an errno; without one, the content of the file is at fault.
        if not os.access(path, os.R_OK) or (isinstance(error, OSError) and error.errno is not None):
            raise SourceError(f"{path} cannot be read: {error}; see that the job may read it") from error
        yield Chunk(FILES_LANE, pa.nulls(0, pa.large_binary()), unreadable_file(path, error)), end


def decoded_file(path: Path, schema: Schema, mapping: FieldMapping) -> Iterator[Decoded]:
    """Yield the events of a whole file of a folder, and its unreadable parts. Raises: SourceError."""
    decode = partial(decode_json, mapping=mapping)
    for chunk, _ in read_file(path, path.parent, 0, _RECORDS_AT_ONCE, mapping):
        yield from decode_chunks(schema, [chunk], decode, mapping).parts


def control_values(path: Path) -> list[bytes]:
    """Return the control records of a whole file of a folder, and its unreadable parts. Raises: SourceError."""
    chunks = (chunk for chunk, _ in read_file(path, path.parent, 0, _RECORDS_AT_ONCE, PLAIN))
    return [value for chunk in chunks for value in chunk.values if value]


def _chunks(
    path: Path, folder: Path, start: int, records_max: int, mapping: FieldMapping
) -> Iterator[tuple[Chunk, int]]:
    """Yield the records of a file after the position `start`, as chunks, each with the position after it (rows of a
    table, bytes or objects of JSON). `folder` is the path below which the file was found: links may not leave it."""
    kind = FORMATS.get(suffix_of(path))
    if not path.stat().st_size:
        return  # Spark passes over an empty file, too
    if kind is None:
        raise InputError("it is no Parquet, CSV or JSON by its name")
    if kind == "json":
        yield from _lines(path, confining_root(folder), start, records_max)
    else:
        yield from _rows(open_table(path, folder, kind, mapping.file), start, records_max, mapping)


def _rows(table: TableFile, start: int, records_max: int, mapping: FieldMapping) -> Iterator[tuple[Chunk, int]]:
    roots = (path[0] for view in mapping.views for _, path in view.columns)
    names = list(dict.fromkeys((*table.names, *table.present(list(roots)))))
    for each in table.batches(names, records_max):
        end = each.first_row + each.batch.num_rows
        if end > start or (each.bad_lines and not each.batch.num_rows and end == start):
            share = pa.Table.from_batches([each.batch.slice(max(0, start - each.first_row))])
            yield Chunk(FILES_LANE, share, None, table, each.bad_lines), end


def _lines(path: Path, root: Path | None, start: int, records_max: int) -> Iterator[tuple[Chunk, int]]:
    """Yield the lines of a JSON file in blocks, each with the position after it."""
    block_bytes = records_max * _BYTES_A_RECORD
    if packing_of(path) is not None:
        yield from _objects(path, root, start, block_bytes)
        return
    with open_file(path, root) as file:
        if not has_json_lines(file):
            yield from _objects(path, root, start, block_bytes)
            return
        first = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
        cutter = LineCutter(max(start, first))
        file.seek(cutter.position)
        for lines in whole_lines(file, cutter, block_bytes):
            yield Chunk(FILES_LANE, json_values(lines)), cutter.position


def _objects(path: Path, root: Path | None, start: int, block_bytes: int) -> Iterator[tuple[Chunk, int]]:
    """Yield the records of a file that is packed or not JSON lines; its position counts records."""
    end = 0
    with opened_json(path, root) as opened:
        for lines in whole_lines(opened, LineCutter(), block_bytes):
            values = json_values(lines)
            begin, end = end, end + len(values)
            if end > start:
                yield Chunk(FILES_LANE, values.slice(max(0, start - begin))), end
