"""The settings that say where the fields of events are in the records of a job, and how they are written.

Tested by: tests/model/test_settings.py, tests/cli/test_mapping.py
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from cep.model.section import Section, setting


def _pairs(value: object) -> object:
    """Write a table of the file as texts: `{ card = "cc" }` is `["card=cc"]`."""
    return tuple(f"{name}={text}" for name, text in value.items()) if isinstance(value, dict) else value


Pairs = Annotated[tuple[str, ...], BeforeValidator(_pairs)]


class MappingSettings(Section):
    """The place and the form of the fields of events in records."""

    columns: Pairs = setting(
        (),
        "Where a field is in a record, if not by its own name: another name, or a path into nested values; "
        "`event_type` is the name of the type, and `*` where all other fields are.",
        "--columns",
        "FIELD=PATH",
        '{ card_id = "payload.after.card" }',
    )
    fixed: Pairs = setting(
        (), "A field that has one value in every record.", "--fixed", "FIELD=VALUE", '{ channel = "web" }'
    )
    minor: tuple[str, ...] = setting(
        (), "Decimals that come as whole minor units, such as cents.", "--minor", "FIELD", '["amount"]'
    )
    time_unit: Literal["", "s", "ms", "us", "ns"] = setting(
        "", "Unit of times that are numbers: s, ms, us, ns; ms if it is not said.", "--time-unit", "UNIT", '"s"'
    )
    time_form: str = setting(
        "", "Form of times that are texts, as strptime has it; else ISO 8601.", "--time-form", "FORM",
        '"%d.%m.%Y %H:%M:%S"',
    )  # fmt: skip
    time_zone: str = setting(
        "", "Zone of times that name none, such as UTC or Europe/Berlin.", "--time-zone", "ZONE", '"Europe/Berlin"'
    )
