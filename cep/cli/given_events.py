"""`--events`, `--columns` and the like → the records that a verb reads, checked before anything runs.

Tested by: tests/cli/test_mapping.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cep.base.schema import Schema
from cep.cli.configured import add_settings
from cep.columnar.convert import Written
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
    group = parser.add_argument_group("fields", MappingSettings.__doc__)
    add_settings(group, MappingSettings, "")


def given_events(options: argparse.Namespace, schema: Schema) -> Records:
    """Return the records that are meant. Raises: UsageError, SourceError for what goes in wrongly."""
    given = {name: value for name in MappingSettings.model_fields if (value := getattr(options, name)) is not None}
    mapping = mapping_of_settings(read_settings(None, {"events": given}).events)
    check_fields(mapping, schema)
    records = Records(given_inputs(options.events), mapping)
    check_records(records, schema)
    return records


def mapping_of_settings(settings: MappingSettings) -> FieldMapping:
    """Read the mapping of a job or a verb. Raises: UsageError."""
    time = Written(settings.time_unit, settings.time_form, settings.time_zone)
    return mapping_of(settings.columns, settings.fixed, settings.minor, time)
