"""The settings that say where the fields of events are in the records of a job, and how they are written.

Tested by: tests/model/test_settings.py, tests/cli/test_replay.py
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
        (),
        "Decimals that come as whole minor units, such as cents; FIELD:CURRENCY names the field with the code of the "
        "currency (ISO 4217: JPY is without cents), FIELD:base64 reads the bytes of Debezium.",
        "--minor",
        "FIELD",
        '["amount:currency"]',
    )
    values: Pairs = setting(
        (),
        "The word of a field for a value in records, such as a symbol of an enum.",
        "--values",
        "FIELD.VALUE=WORD",
        '{ "direction.credit" = "incoming" }',
    )
    time_unit: Literal["", "s", "ms", "us", "ns", "min", "h", "d"] = setting(
        "", "Unit of times that are numbers: s, ms, us, ns; default ms; after --time-base also min, h, d.",
        "--time-unit", "UNIT", '"s"'
    )  # fmt: skip
    time_base: str = setting(
        "", "The moment from which times count units (default seconds), if they do not count from 1970.",
        "--time-base", "TIME", '"2013-09-01T00:00:00Z"'
    )  # fmt: skip
    time_form: str = setting(
        "", "Form of times that are texts, as for strptime (default ISO 8601).", "--time-form", "FORM",
        '"%d.%m.%Y %H:%M:%S"',
    )  # fmt: skip
    time_zone: str = setting(
        "", "Zone of times without a zone, such as UTC or Europe/Berlin.", "--time-zone", "ZONE", '"Europe/Berlin"'
    )
    delimiter: str = setting(
        "", "The sign between the fields of CSV, such as ; or tab; detected in each file if not given.",
        "--delimiter", "SIGN", '";"'
    )  # fmt: skip
    quote: str = setting("", "The sign around texts of CSV; detected if not given.", "--quote", "SIGN", '"\'"')
    encoding: str = setting(
        "", "Encoding of CSV: utf-8, utf-16, cp1252, …; detected if not given.", "--encoding", "NAME",
        '"cp1252"'
    )  # fmt: skip
    decimal: str = setting(
        "", "The decimal sign of numbers that are texts: . or , ; in CSV detected if not given.",
        "--decimal", "SIGN", '","'
    )  # fmt: skip
    thousands: str = setting(
        "", "The sign for thousands in numbers that are texts; in CSV detected if not given.",
        "--thousands", "SIGN", '"."'
    )  # fmt: skip
