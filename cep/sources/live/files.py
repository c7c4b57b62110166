"""Files of a folder, or one file → chunks of records, in the order of the files' times; files that appear later too.

Spark knows the time of a file to the millisecond, so for two files of one millisecond the name decides. A file must
appear whole: write it under a name that begins with a dot or `_`, and rename it. Positions are by file name: rows of
Parquet, bytes of JSON lines, records of another form of JSON. A file that cannot be read, or not within limits, is set
aside as one record; the files after it are read.
Tested by: tests/sources/test_live.py
"""

from __future__ import annotations

import codecs
import os
import stat
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from cep.base.errors import InputError, SourceError, UnreadableError, UsageError
from cep.base.reading import open_file
from cep.columnar.decode import UNREADABLE_FILE, Poison
from cep.sources.inputs import confining_root
from cep.sources.json_forms import as_json_lines, has_json_lines
from cep.sources.json_lines import LineCutter, json_values, whole_lines
from cep.sources.live.base import Chunk, Positions
from cep.sources.parquet import read_batches

LANE = "files"
_KINDS = (".parquet", ".jsonl", ".ndjson", ".json")
_BYTES_A_RECORD = 200
_LOOK_S = 0.2
_NAP_S = 0.02
# In place of rows or bytes: all of the file.
_DONE = -1


class FilesSource:
    """The files of `path`; with `follow` also those that appear later, until the runner is stopped."""

    def __init__(self, path: Path, *, follow: bool) -> None:
        """Begin at the first file. Raises: UsageError if there is nothing at the path."""
        if path.is_file() and path.suffix not in _KINDS:
            raise UsageError(
                f"a job reads Parquet and JSON lines by their names, and {path} is neither; write it as "
                "*.parquet or *.jsonl, or replay it with `cep replay`, which also reads CSV"
            )
        if path.is_dir() and (other := _other_kind(path)) is not None:
            raise UsageError(
                f"a job reads Parquet and JSON lines, and {path} has neither but {other.name}; write such files, or "
                "replay the folder with `cep replay`"
            )
        if not path.is_file() and not path.is_dir():
            raise UsageError(f"there is no file or folder at {path}; make the folder first, files may come later")
        self._path = path
        self._follow = follow and path.is_dir()
        self._done: Positions = {}
        self._waiting: deque[Path] = deque()
        self._current: Iterator[tuple[Chunk, int]] | None = None
        self._name = ""
        self._looked_s = float("-inf")
        self._size = 0
        self.ended = False

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        deadline_s = time.monotonic() + wait_s
        while not self.ended:
            if self._current is None:
                self._next_file(records_max)
            if self._current is not None:
                try:
                    chunk, position = next(self._current)
                except StopIteration:
                    self._done[self._name] = _DONE
                    self._current = None
                    continue
                except (OSError, pa.ArrowException, UnicodeDecodeError, UnreadableError, InputError) as error:
                    return [self._set_aside(error)]
                self._done[self._name] = position
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
        """List the folder, unless files of the last listing wait."""
        if self._current is None and not self._waiting and not self.ended:
            self._look()

    def hold(self, lanes: Collection[str]) -> None:
        """Do nothing: there is one lane."""

    def behind(self) -> dict[str, bool]:
        return {LANE: self._current is not None or bool(self._waiting)}

    def close(self) -> None:
        """Close the file that is being read."""
        self._current = None

    def _set_aside(self, error: Exception) -> Chunk:
        """Give up the file that is being read, for what is in it. Raises: SourceError where the system is at fault."""
        path = self._path / self._name if self._path.is_dir() else self._path
        if not os.access(path, os.R_OK) or (isinstance(error, OSError) and error.errno is not None):
            raise SourceError(f"{path} cannot be read: {error}; see that the job may read it") from error
        reason = str(error).partition("\n")[0]
        self._done[self._name] = _DONE
        self._current = None
        poison = Poison(UNREADABLE_FILE, f"the file, or what is left of it, cannot be read: {reason}", self._name)
        return Chunk(LANE, pa.nulls(0, pa.large_binary()), poison)

    def _next_file(self, records_max: int) -> None:
        if not self._waiting and time.monotonic() - self._looked_s >= _LOOK_S:
            self._look()
        if self._waiting:
            path = self._waiting.popleft()
            self._name = self._name_of(path)
            start, root = self._done.get(self._name, 0), confining_root(self._path)
            self._current = (
                _rows(path, root, start, records_max)
                if path.suffix == ".parquet"
                else _lines(path, root, start, records_max)
            )

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        paths = [self._path] if self._path.is_file() else [p for p in self._path.iterdir() if p.name[0] not in "._"]
        fresh = [p for p in paths if p.suffix in _KINDS and self._done.get(self._name_of(p)) != _DONE]
        written = [(at, p.name, p) for p in fresh if (at := _written_ms(p)) is not None]
        self._waiting.extend(p for _, _, p in sorted(written))

    def _name_of(self, path: Path) -> str:
        return path.name


def _other_kind(folder: Path) -> Path | None:
    """Return a file of a form that a job cannot read, if the folder has no other files."""
    files = [path for path in folder.iterdir() if path.name[0] not in "._" and path.is_file()]
    return None if any(path.suffix in _KINDS for path in files) else next(iter(sorted(files)), None)


def _written_ms(path: Path) -> int | None:
    """Return when a file was written; None for what is no regular file, such as a pipe that nobody writes into."""
    try:
        about = path.stat()
    except OSError:  # it is gone, or a link that leads nowhere
        return None
    return about.st_mtime_ns // 1_000_000 if stat.S_ISREG(about.st_mode) else None


def _rows(path: Path, root: Path | None, start: int, records_max: int) -> Iterator[tuple[Chunk, int]]:
    done = 0
    for batch in read_batches(path, None, records_max, root=root):
        end = done + batch.num_rows
        if end > start:
            share = batch.slice(max(0, start - done))
            yield Chunk(LANE, pa.Table.from_batches([share])), end
        done = end


def _lines(path: Path, root: Path | None, start: int, records_max: int) -> Iterator[tuple[Chunk, int]]:
    block_bytes = records_max * _BYTES_A_RECORD
    with open_file(path, root) as file:
        if not has_json_lines(file):
            yield from _objects(file, path, start, block_bytes)
            return
        first = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
        cutter = LineCutter(max(start, first))
        file.seek(cutter.position)
        for lines in whole_lines(file, cutter, block_bytes):
            yield Chunk(LANE, json_values(lines)), cutter.position


def _objects(file: BinaryIO, path: Path, start: int, block_bytes: int) -> Iterator[tuple[Chunk, int]]:
    """Yield the records of a file that is not JSON lines; its position counts records."""
    end = 0
    for lines in whole_lines(as_json_lines(file, str(path)), LineCutter(), block_bytes):
        values = json_values(lines)
        begin, end = end, end + len(values)
        if end > start:
            yield Chunk(LANE, values.slice(max(0, start - begin))), end
