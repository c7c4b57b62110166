"""Given paths, several and with wildcards → their files of records, open for reading.

Wildcards are for quoted paths; a shell expands others before. A file that is named twice is read once. Files may be
packed: `.jsonl.gz`, `.jsonl.zst`, `.csv.gz`.
Tested by: tests/sources/test_files.py
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self
from urllib.parse import unquote

import pyarrow as pa

from cep.base.errors import InputError, UnreadableError
from cep.base.files import open_file
from cep.base.schema import Schema
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.sources.json_lines import Readable, as_json_lines

FORMATS = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".json": "json", ".ndjson": "json",
}  # fmt: skip
_PACKED = {".gz": "gzip", ".zst": "zstd"}
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_WILDCARDS = frozenset("*?[")
_TABLE_LOGS = ("_delta_log", ".hoodie")  # of a Delta or Hudi table, whose folder keeps files of old versions


@dataclass(frozen=True, slots=True)
class Records:
    """The place of a history's records, and the places of the fields in them."""

    paths: tuple[Path, ...]
    mapping: FieldMapping = PLAIN

    @staticmethod
    def of(events: Records | Path) -> Records:
        """Return records as they are given; those at a path are plain."""
        return events if isinstance(events, Records) else Records((events,))


def given_inputs(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Expand wildcards in paths. Each path is returned once. Raises: InputError for a wildcard without a match."""
    inputs: dict[Path, None] = {}
    for path in paths:
        if path.exists() or not _WILDCARDS & set(str(path)):
            inputs[path] = None
            continue
        matches = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        if not matches:
            raise InputError(f"no file matches {path}; see which files are there, or name a folder")
        inputs.update(dict.fromkeys(matches))
    return tuple(inputs)


def kind_of(path: Path) -> str:
    """Return the kind of the files at a path: parquet, csv or json. Raises: InputError."""
    if not path.exists():
        raise InputError(f"there are no events at {path}; give a file or a folder of Parquet, CSV or JSON lines")
    log = next(chain.from_iterable(path.rglob(name) for name in _TABLE_LOGS), None)
    if log is not None:
        raise InputError(
            f"{log.parent} is a table whose log ({log.name}) says which files count; read it with Spark, and give the "
            "frame to `cep.match` or write it as Parquet"
        )
    kinds = {FORMATS[suffix_of(p)] for p in files_of(path)}
    if len(kinds) != 1:
        if path.is_file():
            raise InputError(f"{path} is no Parquet, CSV or JSON by its name; name it *.parquet, *.csv or *.jsonl")
        contents = "files of several kinds" if kinds else "no Parquet, CSV or JSON lines"
        raise InputError(f"{path} holds {contents}; name files *.parquet, *.csv or *.jsonl, one kind in a folder")
    return kinds.pop()


def files_of(path: Path) -> list[Path]:
    """Return the files of records at a path or below it. Names that begin with `_` or `.` are left out, also those of
    folders, such as `_temporary`; but `_day=01` is a folder of values."""
    if path.is_file():
        return [path] if suffix_of(path) in FORMATS else []
    paths = (p for p in path.rglob("*") if suffix_of(p) in FORMATS and p.is_file() and p.name[0] not in "._")
    return sorted(p for p in paths if not any(map(_is_hidden, p.relative_to(path).parts[:-1])))


def _is_hidden(folder: str) -> bool:
    return folder[0] == "." or (folder[0] == "_" and "=" not in folder)


def folder_values(path: Path) -> dict[str, str]:
    """Return the values that the folders of a path name, as `day=01` does, as texts, without null ones."""
    pairs = [name.partition("=") for name in path.parts[:-1]]
    values = {name: unquote(value) for name, sign, value in pairs if name and sign}
    return {name: value for name, value in values.items() if value != _NULL_FOLDER}


def suffix_of(path: Path) -> str:
    """Return the file ending that names the form, without the ending of its packing."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _PACKED and suffixes[-2:-1] != [".parquet"]:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def packing_of(path: Path) -> str | None:
    """Return how a file is packed: gzip, zstd; None: not at all."""
    return _PACKED.get(path.suffix.lower())


@contextmanager
def opened_json(path: Path, root: Path | None = None) -> Iterator[Readable]:
    """Open a file of JSON records in any form as JSON lines. Raises: OSError, InputError, UnreadableError."""
    with UnpackedFile(path, root) as file:
        yield as_json_lines(file, str(path))


@contextmanager
def guarded(path: Path, schema: Schema) -> Iterator[None]:
    """Raise InputError if the block cannot read a file. The error quotes no row where a schema protects a field."""
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError, UnreadableError) as error:
        is_shown = isinstance(error, OSError | UnreadableError) or not schema.protected
        reason = error if is_shown else type(error).__name__
        raise InputError(f"{path} cannot be read: {reason}") from (None if schema.protected else error)


def confining_root(folder: Path) -> Path | None:
    """Return the folder that links must not leave, for files found in it; None for a named file. A sender who can put a
    file into a folder of events must not make the job read another file through a link."""
    return Path(os.path.realpath(folder)) if folder.is_dir() else None


def packed_stream(path: Path, root: Path | None = None) -> pa.NativeFile:
    """Open a regular file as a stream of its unpacked bytes. Raises: UnreadableError, OSError."""
    return pa.input_stream(open_file(path, root), compression=packing_of(path))


class UnpackedFile:
    """A regular file that is unpacked while it is read, from the start. Its methods raise UnreadableError, OSError."""

    def __init__(self, path: Path, root: Path | None = None) -> None:
        self._file = packed_stream(path, root)

    def read(self, size: int | None = None) -> bytes:
        """Return at most `size` bytes, all remaining bytes without a size, and none at the end."""
        if size is None:
            whole: bytes = self._file.read()
            return whole
        # A `read` of Arrow that fails keeps all the memory that it asked for; a buffer is freed.
        part: bytes = self._file.read_buffer(size).to_pybytes()
        return part

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
