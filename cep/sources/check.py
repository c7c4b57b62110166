"""The first records of a history → mistakes in reading them, before anything runs.

    a column that no record has                     a field would be null, or every record set aside
    a time that is a small number                   seconds, read as milliseconds, are in 1970
    a time without a zone                           it means another moment in each country

It reads the first records of JSON and CSV, and the columns of Parquet. Later mistakes cost their records alone.
Tested by: tests/cli/test_replay.py
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from cep.base.errors import UsageError
from cep.base.schema import Kind, Schema
from cep.base.text import nearest_name
from cep.columnar.mapping import TYPE_FIELD, FieldMapping, shown_path, value_at
from cep.columnar.times import form_has_zone, has_zone
from cep.sources.csv_form import shown_form
from cep.sources.inputs import Records, confining_root, files_of, folder_values, guarded, kind_of, opened_json
from cep.sources.json_lines import LineCutter, json_value, whole_lines
from cep.sources.tables import open_table

RECORDS_LOOKED_AT = 1_000
_LOOK_BYTES = 1 << 20
_LINES_LOOKED_AT = 100_000  # including lines that are not records
_NAMES_SHOWN_MAX = 20
# In ms this is March 1973, in s the year 5138: a smaller number is not a payment's time in ms.
_MS_LEAST = 100_000_000_000
_NUMBER = re.compile(r"-?\d{9,}(\.\d*)?")


def check_records(records: Records, schema: Schema) -> list[str]:
    """Check the first records of each path before a job starts: names, times, and the form of CSV files. Return a line
    for each form of CSV that is not the usual one. Raises: UsageError, SourceError."""
    forms: dict[str, list[Path]] = {}
    for path in records.paths:
        sample = list(islice(first_records(path, schema, records.mapping), RECORDS_LOOKED_AT))
        tables = list(_tables_at(path, schema, records.mapping, forms))  # (file, names, rows); it fills `forms` too
        for view in records.mapping.views if sample else ():  # a view: one of the events that each record becomes
            _check_columns(path, [*sample, *(dict.fromkeys(names) for _, names, _ in tables)], schema, view)
            for file, _, rows in tables:
                _check_times(file, rows, schema, view)
            _check_times(path, sample, schema, view)
    shown = {
        form: files[0] if len(files) == 1 else f"{len(files)} files such as {files[0]}" for form, files in forms.items()
    }
    return [f"{files}: {form}; flags such as --delimiter say otherwise" for form, files in shown.items()]


def _tables_at(
    path: Path, schema: Schema, mapping: FieldMapping, forms: dict[str, list[Path]]
) -> Iterator[tuple[Path, Sequence[str], Sequence[Mapping[str, Any]]]]:
    """Yield (file, names of columns, first rows) of each table at a path; nothing for JSON, which lacks columns. The
    caller has read rows of the first table as a sample, so they are left out here. `forms` collects the unusual forms
    of CSV (delimiters, quotes, encoding) with their files."""
    kind = kind_of(path)
    for file_number, file in enumerate(files_of(path) if kind != "json" else ()):
        with guarded(file, schema):
            table = open_table(file, path, kind, mapping.file)
            file_mapping = table.mapping(schema, mapping)
            yield file, table.names, table.first_rows() if file_number > 0 else ()
        if table.csv is not None and (form := shown_form(file_mapping.file, table.csv.lines_before)):
            forms.setdefault(form, []).append(file)


def first_records(path: Path, schema: Schema, mapping: FieldMapping) -> Iterator[Mapping[str, Any]]:
    """Yield the records at a path that can be read. In CSV the values are text. Raises: SourceError."""
    kind = kind_of(path)
    for file in files_of(path):
        folder_columns = folder_values(file)
        with guarded(file, schema):
            if kind == "json":
                yield from ({**record, **folder_columns} for record in _objects(file, path))
                continue
            table = open_table(file, path, kind, mapping.file)
            columns = list(dict.fromkeys((*table.names, *table.present(mapping.roots(schema)))))
            for rows in table.rows(columns, RECORDS_LOOKED_AT):
                yield from ({**row, **folder_columns} for row in rows)


def _objects(file: Path, folder: Path) -> Iterator[Mapping[str, Any]]:
    with opened_json(file, confining_root(folder)) as opened:
        lines_left = _LINES_LOOKED_AT
        for block in whole_lines(opened, LineCutter(), _LOOK_BYTES):
            lines = [line for line in block.split(b"\n") if line.strip()][:lines_left]
            lines_left -= len(lines)
            yield from (record for line in lines if isinstance(record := json_value(line), dict))
            if not lines_left:
                return


def _check_columns(path: Path, sample: Sequence[Mapping[str, Any]], schema: Schema, mapping: FieldMapping) -> None:
    """Refuse a field that no record of the sample has, if a column was named for it or if every event must have it."""
    sent_types = [event for event in schema.event_types if not event.derived]  # rules emit the derived ones
    for name, field_path in mapping.paths(schema).items():
        fields = [event.field(name) for event in sent_types]
        all_need_it = bool(sent_types) and all(field is not None and not field.type.nullable for field in fields)
        is_required = len(sent_types) > 1 if name == TYPE_FIELD else all_need_it  # a single type needs no name
        if not (is_required or mapping.is_named(name)) or any(_has(record, field_path) for record in sample):
            continue
        names = list(dict.fromkeys(n for record in sample for n in _names_of(record)))
        nearest = nearest_name(field_path[-1], [n.rpartition(".")[2] for n in names])
        nearest_names = [n for n in names if n.rpartition(".")[2] == nearest]
        hint = f"they have {', '.join(names[:_NAMES_SHOWN_MAX])}" if names else "they have no fields"
        hint = f"did you mean {nearest_names[0]}?" if nearest_names else hint
        raise UsageError(
            f"{path}: no record has {shown_path(field_path)}, which the field `{name}` is read from; {hint}; "
            f"say where it is with --columns {name}=PATH"
        )


def _has(record: Mapping[str, Any], place: tuple[str, ...]) -> bool:
    """Return True if the record has the place, though it may hold null."""
    inner = value_at(record, place[:-1])
    return isinstance(inner, Mapping) and place[-1] in inner


def _names_of(record: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[str]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _names_of(value, (*above, name))
        else:
            yield shown_path((*above, name))


def _check_times(path: Path, sample: Sequence[Mapping[str, Any]], schema: Schema, mapping: FieldMapping) -> None:
    """Refuse times that would be read wrongly: numbers that are probably seconds, and times without a zone."""
    for name, type_ in schema.columns().items():
        if type_.kind is not Kind.TIME or name in mapping.constants:
            continue
        values = [v for v in (mapping.value(record, name) for record in sample) if v is not None]
        numbers = [float(v) for v in values if _is_number(v)]
        if numbers and not mapping.time.unit and not mapping.time.form and max(map(abs, numbers)) < _MS_LEAST:
            raise UsageError(
                f"{path}: `{name}` is {numbers[0]:.0f}, which is in 1970 if it is in ms; say what it is in with "
                "--time-unit s (or ms, if it is)"
            )
        if mapping.time.zone:
            continue
        zoneless_time = next((v for v in values if _has_no_zone(v, mapping)), None)
        if zoneless_time is not None:
            raise UsageError(
                f"{path}: `{name}` is {zoneless_time}, a time without a zone; say which one with --time-zone UTC, "
                "or another such as Europe/Berlin"
            )


def _is_number(value: object) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or (
        isinstance(value, str) and _NUMBER.fullmatch(value) is not None
    )


def _has_no_zone(value: object, mapping: FieldMapping) -> bool:
    if isinstance(value, date):
        return not isinstance(value, datetime) or value.tzinfo is None
    if not isinstance(value, str):
        return False
    return not form_has_zone(mapping.time.form) if mapping.time.form else has_zone(value) is False
