"""Files of records → the events of one key, read without Spark.

Parquet is filtered while it is read: row groups without the key are skipped. CSV is filtered row by row, JSON lines by
their bytes before anything is parsed. The rest is decoded like every other record, and then compared exactly.
Tested by: tests/sources/test_files.py
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_, or_
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from cep.base.schema import Kind, Schema
from cep.columnar.batch import TEXT, EventBatch
from cep.columnar.decode import Decoded, KeyDomain, Poison, concat_decoded, decode_json, decode_table, key_parts, route
from cep.columnar.mapping import NUMBER_KINDS, PLAIN, FieldMapping
from cep.columnar.redact import redact
from cep.columnar.shown import RowTexts
from cep.sources.inputs import confining_root, files_of, folder_values, guarded, kind_of, opened_json
from cep.sources.json_lines import LineCutter, whole_lines
from cep.sources.tables import TableFile, open_table

# Letters that JSON writers leave as they are: a key of these stands in its line as it is.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:@ ")
_EXPONENT = re.compile(rb"[0-9][eE]")  # 500 may be written as 5e2
Part = tuple[str, str, bool]  # of a key: the field or column, its value as text, and whether it is an integer


@dataclass(frozen=True, slots=True)
class KeyRecords:
    """The events of one key, and the records that may have been of it but cannot be decoded."""

    batch: EventBatch
    poison: tuple[Poison, ...]


def read_key(
    paths: Path | Sequence[Path], schema: Schema, domain: KeyDomain, key: str, mapping: FieldMapping = PLAIN
) -> KeyRecords:
    """Read the events of one key: `key` is the text that `route` makes of it. Raises: SourceError for a path without
    events, or one that cannot be read."""
    inputs = [paths] if isinstance(paths, Path) else paths
    files = [(file, path, kind) for path in inputs for kind in (kind_of(path),) for file in files_of(path)]
    decoded = [_read_file(*each, schema, domain, key, mapping) for each in files]
    return _of_key(concat_decoded(schema, decoded), schema, domain, key)


def key_of_table(
    table: pa.Table, schema: Schema, domain: KeyDomain, key: str, mapping: FieldMapping = PLAIN
) -> KeyRecords:
    """Return the events of one key in a table, as `read_key` reads them from files."""
    some = _may_have_key(_column_parts(schema, domain, key, mapping), table.schema)
    chosen = table if some is None else table.filter(some)
    return _of_key(decode_table(schema, chosen, RowTexts(chosen), mapping), schema, domain, key)


def _of_key(decoded: Decoded, schema: Schema, domain: KeyDomain, key: str) -> KeyRecords:
    batch, _ = route(decoded, domain, schema.columns())
    poison = tuple(redact(schema, record) for record in decoded.poison)
    return KeyRecords(batch.take(np.asarray(pc.equal(batch.key, key))), poison)


def _read_file(
    file: Path, folder: Path, kind: str, schema: Schema, domain: KeyDomain, key: str, mapping: FieldMapping
) -> Decoded:
    """Read the records of one file that may have the key, and decode them. A record may become several events, each by
    a view (a mapping of fields). A line of JSON is decoded if it has the texts of the key for one of the views."""
    with guarded(file, schema):
        if kind == "json":
            file_mapping = mapping.with_folders(schema, folder_values(file))
            key_texts = [_written_parts(schema, domain, key, view) for view in file_mapping.views]
            lines = list(_lines_with(file, folder, key_texts))
            return decode_json(schema, pa.array(lines, pa.large_binary()), file_mapping)
        table = open_table(file, folder, kind, mapping.file)
        file_mapping = table.mapping(schema, mapping)
        return _decoded_rows(table, schema, file_mapping, _column_parts(schema, domain, key, file_mapping))


def _written_parts(schema: Schema, domain: KeyDomain, key: str, mapping: FieldMapping) -> list[Part]:
    """Return the fields of the key whose values stand in the files as they are, with these values."""
    types = schema.columns()
    changed = {*dict(schema.protected), *mapping.constants, *mapping.minor}
    # 5.00 may be a 5, true a 1, pos a POS
    changed |= {name for name in domain if types[name].kind in (Kind.DECIMAL, Kind.BOOL, Kind.ENUM)}
    if mapping.file.decimal:
        changed |= {name for name, type_ in types.items() if type_.kind in NUMBER_KINDS}
    parts = zip(domain, key_parts(key, domain), strict=False)
    return [(name, part, types[name].kind == Kind.INT) for name, part in parts if name not in changed]


def _column_parts(schema: Schema, domain: KeyDomain, key: str, mapping: FieldMapping) -> list[list[Part]]:
    """Return for each view of the records the columns that have parts of the key as they are, with the parts."""
    paths = [
        [(view.path(name), part, is_int) for name, part, is_int in _written_parts(schema, domain, key, view)]
        for view in mapping.views
    ]
    return [[(path[0], part, is_int) for path, part, is_int in of_view if len(path) == 1] for of_view in paths]


def _decoded_rows(
    table: TableFile, schema: Schema, mapping: FieldMapping, key_columns: Sequence[Sequence[Part]]
) -> Decoded:
    """Read the rows of a table that may have the key, and decode them. `key_columns`: for each view (one of the events
    that a record becomes), the columns that have a part of the key, each with this part."""
    columns = table.present(mapping.roots(schema))
    names = list(dict.fromkeys((*table.names, *columns)))
    batches, bad = [], list[Poison]()
    for each in table.batches(names, where=partial(_may_have_key, key_columns)):
        batches.append(each.batch)
        bad += each.bad_lines
    rows = pa.Table.from_batches(batches) if batches else pa.table({name: pa.nulls(0, TEXT) for name in names})
    decoded = decode_table(schema, rows.combine_chunks(), RowTexts(rows), mapping)
    return replace(decoded, poison=(*decoded.poison, *bad))


def _may_have_key(parts: Sequence[Sequence[Part]], written: pa.Schema) -> ds.Expression | None:
    """Filter rows by the parts of the key in any view, as far as the file's types can say; decoding decides."""
    if any("_view" in str(type_) for type_ in written.types):  # Arrow filters no rows with a string_view
        return None
    views = [_has_parts(of_view, written) for of_view in parts]
    return None if any(view is None for view in views) else reduce(or_, views)


def _has_parts(parts: Sequence[Part], written: pa.Schema) -> ds.Expression | None:
    filters = [_equals(written.field(part[0]).type, *part) for part in parts if part[0] in written.names]
    comparisons = [each for each in filters if each is not None]
    return reduce(and_, comparisons) if comparisons else None


def _equals(type_: pa.DataType, name: str, part: str, is_int: bool) -> ds.Expression | None:
    """Return a filter for the rows whose column `name` may have a part of the key; None if no filter knows its type.

    `is_int`: the field is an integer, which a text may write as 05, 5.0 or 5e0."""
    if pa.types.is_integer(type_):
        try:
            return ds.field(name) == pa.scalar(int(part), type_)
        except (ValueError, OverflowError, pa.ArrowInvalid):
            return None
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        digits = part.lstrip("-")
        written = ds.field(name)
        return pc.match_substring_regex(written, f"{digits}|[eE]") if is_int else written == pa.scalar(part, type_)
    if not is_int and (pa.types.is_boolean(type_) or pa.types.is_dictionary(type_)):
        return ds.field(name).cast(pa.string()) == part
    return None


def _lines_with(path: Path, folder: Path, parts: Sequence[Sequence[Part]]) -> Iterator[bytes]:
    """Yield the lines that may have the key: those with its parts in any view, or with any of JSON's escapes."""
    plain = [[part.lstrip("-").encode() for _, part, _ in of_view if set(part) <= _PLAIN] for of_view in parts]

    def may_have(line: bytes, of_view: Sequence[bytes]) -> bool:
        return all(part in line or (part.isdigit() and _EXPONENT.search(line)) for part in of_view)

    with opened_json(path, confining_root(folder)) as file:
        for lines in whole_lines(file, LineCutter()):
            for line in lines.split(b"\n"):
                if line.strip() and (b"\\" in line or any(may_have(line, of_view) for of_view in plain)):
                    yield line
