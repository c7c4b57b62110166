"""Files of records → a dataset of those at a path, and the events of one key, read without Spark.

Parquet is filtered while it is read: row groups without the key are skipped. CSV is filtered row by row, JSON lines by
their bytes before anything is parsed. The rest is decoded like every other record, and then compared exactly.
Tested by: tests/sources/test_files.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.dataset as ds

from cep.base.errors import InputError
from cep.base.schema import Schema
from cep.columnar.batch import EventBatch
from cep.columnar.decode import Decoded, Poison, concat_decoded, decode_json, decode_table
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.columnar.redact import redact
from cep.columnar.route import KeyDomain, key_parts, route
from cep.columnar.shown import shown_row
from cep.sources.inputs import files_of, kind_of, opened_json, packing_of
from cep.sources.json_lines import LineCutter, whole_lines

# Letters that JSON writers leave as they are: a key of these stands in its line as it is.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:@ ")


@dataclass(frozen=True, slots=True)
class KeyRecords:
    """The events of one key, and the records that may have been of it but cannot be decoded."""

    batch: EventBatch
    poison: tuple[Poison, ...]


def open_dataset(path: Path, kind: str, names: Sequence[str]) -> ds.Dataset:
    """Open the files at a path as one dataset.

    In CSV the values of these columns are text, and an empty one is null, as Spark reads them.
    """
    files = [str(p) for p in files_of(path)]
    if kind == "parquet":
        return ds.dataset(files, format="parquet", partition_base_dir=str(path), partitioning="hive")
    packed = [name for name in files if packing_of(Path(name)) == "zstd"]
    if packed:
        raise InputError(f"{packed[0]} is CSV that zstd has packed; pack it by gzip, or not at all")
    convert = pcsv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    return ds.dataset(files, format=ds.CsvFileFormat(convert_options=convert))


def read_key(
    paths: Path | Sequence[Path], schema: Schema, domain: KeyDomain, key: str, mapping: FieldMapping = PLAIN
) -> KeyRecords:
    """Read the events of one key: `key` is the text that `route` makes of it.

    Raises: SourceError for a path without events, or one that cannot be read.
    """
    inputs = [paths] if isinstance(paths, Path) else paths
    parts = [_read_key(path, schema, domain, key, view) for view in mapping.views for path in inputs]
    decoded = concat_decoded(schema, parts)
    return _of_key(decoded, schema, domain, key)


def key_of_table(
    table: pa.Table, schema: Schema, domain: KeyDomain, key: str, mapping: FieldMapping = PLAIN
) -> KeyRecords:
    """Return the events of one key in a table, as `read_key` reads them from files."""
    decoded = concat_decoded(schema, [_decoded_key(table, schema, domain, key, view) for view in mapping.views])
    return _of_key(decoded, schema, domain, key)


def _decoded_key(table: pa.Table, schema: Schema, domain: KeyDomain, key: str, mapping: FieldMapping) -> Decoded:
    places = [(mapping.path(name), part) for name, part in _written_parts(schema, domain, key, mapping)]
    some = _has_parts(table.schema, [(path[0], part) for path, part in places if len(path) == 1])
    chosen = table if some is None else table.filter(some)
    return decode_table(schema, chosen, partial(shown_row, chosen), mapping)


def _of_key(decoded: Decoded, schema: Schema, domain: KeyDomain, key: str) -> KeyRecords:
    batch, _ = route(decoded, domain, schema.columns())
    poison = tuple(redact(schema, record) for record in decoded.poison)
    return KeyRecords(batch.take(np.asarray(pc.equal(batch.key, key))), poison)


def _read_key(path: Path, schema: Schema, domain: KeyDomain, key: str, mapping: FieldMapping) -> Decoded:
    kind = kind_of(path)
    try:
        if kind == "json":
            return _decoded_lines(path, schema, mapping, _written_parts(schema, domain, key, mapping))
        return _decoded_table(path, kind, schema, mapping, _written_parts(schema, domain, key, mapping))
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise unreadable(path, schema, error) from (None if schema.protected else error)


def _written_parts(schema: Schema, domain: KeyDomain, key: str, mapping: FieldMapping) -> list[tuple[str, str]]:
    """Return the fields of the key whose values stand in the files as they are, with these values."""
    changed = {*dict(schema.protected), *mapping.constants, *mapping.minor}
    return [at for at in zip(domain, key_parts(key, domain), strict=False) if at[0] not in changed]


def unreadable(path: Path, schema: Schema, error: Exception) -> InputError:
    """Return the error for files that cannot be read. It quotes no row where a schema protects a field."""
    reason = type(error).__name__ if schema.protected and not isinstance(error, OSError) else error
    return InputError(f"{path} cannot be read: {reason}")


# ----------------------------------------------------------------------------------------------- parquet and CSV


def _decoded_table(
    path: Path, kind: str, schema: Schema, mapping: FieldMapping, parts: Sequence[tuple[str, str]]
) -> Decoded:
    source = open_dataset(path, kind, mapping.roots(schema))
    places = [(mapping.path(name), part) for name, part in parts]
    table = source.to_table(filter=_has_parts(source.schema, [(p[0], part) for p, part in places if len(p) == 1]))

    return decode_table(schema, table, partial(shown_row, table), mapping)


def _has_parts(written: pa.Schema, parts: Sequence[tuple[str, str]]) -> ds.Expression | None:
    """Filter rows by the parts of the key, as far as the file's types can say; decoding decides."""
    whole: ds.Expression | None = None
    for name, part in parts:
        equal = _equals(written.field(name).type, name, part) if name in written.names else None
        if equal is not None:
            whole = equal if whole is None else whole & equal
    return whole


def _equals(type_: pa.DataType, name: str, part: str) -> ds.Expression | None:
    """Compare the field with the part in the file's own type; return None if they cannot be equal."""
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return ds.field(name) == pa.scalar(part, type_)
    if pa.types.is_integer(type_):
        try:
            return ds.field(name) == pa.scalar(int(part), type_)
        except (ValueError, OverflowError, pa.ArrowInvalid):
            return None
    if pa.types.is_boolean(type_) or pa.types.is_decimal(type_) or pa.types.is_dictionary(type_):
        return ds.field(name).cast(pa.string()) == part
    return None


# ---------------------------------------------------------------------------------------------------- JSON lines


def _decoded_lines(path: Path, schema: Schema, mapping: FieldMapping, parts: Sequence[tuple[str, str]]) -> Decoded:
    lines = [line for file in files_of(path) for line in _lines_with(file, [part for _, part in parts])]
    return decode_json(schema, pa.array(lines, pa.large_binary()), mapping)


def _lines_with(path: Path, parts: list[str]) -> Iterator[bytes]:
    """Yield the lines that may have the key: those with its parts, or with any of JSON's escapes."""
    plain = [part.encode() for part in parts if set(part) <= _PLAIN]
    with opened_json(path) as file:
        for lines in whole_lines(file, LineCutter()):
            for line in lines.split(b"\n"):
                if line.strip() and (all(part in line for part in plain) or b"\\" in line):
                    yield line
