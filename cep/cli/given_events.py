"""`--events`, `--columns` and the like → the records that a verb reads, checked before anything runs.

Tested by: tests/cli/test_mapping.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from cep.api.naming import Forms
from cep.base.errors import UsageError
from cep.base.schema import Schema
from cep.base.visible import visible
from cep.cli.configured import add_settings
from cep.cli.rejected import add_rejected_argument
from cep.columnar.convert import Written
from cep.columnar.file_form import FileForm, form_of_flags
from cep.columnar.mapping import FieldMapping, check_fields, mapping_of
from cep.model.mapping_settings import MappingSettings
from cep.model.settings import read_settings
from cep.sources.check import check_records
from cep.sources.inputs import Records, given_inputs

_EVENTS = (
    "a file or folder of Parquet, CSV or JSON lines, also packed (.gz, .zst), or a wildcard in quotes; may be given "
    "several times"
)


def add_events_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the events are, and where their fields are in the records."""
    parser.add_argument("--events", type=Path, required=True, action="append", metavar="PATH", help=_EVENTS)
    add_rejected_argument(parser)
    group = parser.add_argument_group("fields", MappingSettings.__doc__)
    add_settings(group, MappingSettings, "")


def given_events(options: argparse.Namespace, schema: Schema) -> Records:
    """Return the records that the arguments name. Raises: UsageError; SourceError for records that cannot be read."""
    given = {name: value for name in MappingSettings.model_fields if (value := getattr(options, name)) is not None}
    mapping = mapping_of_settings(read_settings(None, {"events": given}).events)
    check_fields(mapping, schema)
    records = Records(given_inputs(options.events), mapping)
    for line in check_records(records, schema):
        print(visible(f"cep: {line}"), file=sys.stderr)
    return records


def given_forms(options: argparse.Namespace) -> tuple[dict[str, str], str | None, Forms]:
    """Return the flags as the library has them: columns, the zone, and how values are written. Raises: UsageError."""
    columns = _pairs(options.columns or (), "--columns", "FIELD=PATH")
    fixed = _pairs(options.fixed or (), "--fixed", "FIELD=VALUE")
    values = _pairs(options.values or (), "--values", "FIELD.VALUE=WORD")
    forms = Forms(fixed=fixed, minor=options.minor or (), values=values)
    texts = ("time_unit", "time_form", "time_base", "delimiter", "quote", "encoding", "decimal", "thousands")
    forms = cast("Forms", forms | {name: value for name in texts if (value := getattr(options, name))})
    return columns, options.time_zone, forms


def mapping_of_settings(settings: MappingSettings) -> FieldMapping:
    """Read the mapping of a job or a verb. Raises: UsageError."""
    time = Written(settings.time_unit, settings.time_form, settings.time_zone, base=settings.time_base)
    return mapping_of(
        settings.columns, settings.fixed, settings.minor, time, file_form_of(settings), settings.values
    )  # fmt: skip


def file_form_of(settings: MappingSettings) -> FileForm:
    """Read the signs of files and numbers. Raises: UsageError."""
    return form_of_flags(settings.delimiter, settings.quote, settings.encoding, settings.decimal, settings.thousands)


def _pairs(texts: Iterable[str], flag: str, form: str) -> dict[str, str]:
    parted = [text.partition("=") for text in texts]
    for name, sign, value in parted:
        if not name.strip() or not sign:
            raise UsageError(f"{flag} {name}{sign}{value}: write {form}")
    return {name.strip(): value.strip() for name, _, value in parted}
