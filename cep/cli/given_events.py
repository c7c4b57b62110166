"""`--events`, `--columns`, `--since` and the like → the records that a verb reads, and its report on rejected ones.

Tested by: tests/cli/test_replay.py, tests/api/test_period.py, tests/cli/test_rejected.py, tests/cli/test_run.py
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, cast

from rich.console import Console

from cep.api.frames import Forms
from cep.base.limits import REJECTED_PERCENT_MAX
from cep.base.schema import Schema
from cep.base.text import visible
from cep.cli.paths import pairs
from cep.cli.settings import add_settings
from cep.cli.verbs import Parser
from cep.columnar.mapping import check_fields, mapping_of_settings
from cep.model.setting_types import length_ms
from cep.model.settings import MappingSettings, read_settings
from cep.runners.output import Replayed
from cep.sources.check import check_records
from cep.sources.inputs import Records, given_inputs
from cep.sources.pieces import Period, period_of
from cep.step.rejections import REJECTED_MAX, Rejections, rejections_of

_EVENTS = (
    "a file or folder of Parquet, CSV or JSON lines, also packed (.gz, .zst), or a wildcard in quotes; may be given "
    "several times"
)


def add_events_arguments(parser: Parser) -> None:
    """Declare where the events are, and where their fields are in the records."""
    parser.declare("--events PATH", _EVENTS, required=True, action="append")
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
    columns = pairs(options.columns or (), "--columns", "FIELD=PATH")
    fixed = pairs(options.fixed or (), "--fixed", "FIELD=VALUE")
    values = pairs(options.values or (), "--values", "FIELD.VALUE=WORD")
    forms = Forms(fixed=fixed, minor=options.minor or (), values=values)
    texts = ("time_unit", "time_form", "time_base", "delimiter", "quote", "encoding", "decimal", "thousands")
    forms = cast("Forms", forms | {name: value for name in texts if (value := getattr(options, name))})
    return columns, options.time_zone, forms


def add_period_arguments(parser: Parser) -> None:
    """Declare from when to when events count."""
    parser.declare("--since TIME", "events before this event time are left out, like 2026-03-01T00:00:00Z")
    parser.declare("--until TIME", "events from this event time on are left out")
    add_dedup_argument(parser)


def add_dedup_argument(parser: Parser) -> None:
    """Declare for how long event ids are remembered."""
    parser.declare(
        "--dedup TIME",
        "event time for which event ids are remembered, as in the live job that had these events: an event that "
        "comes again is ignored and counted as a duplicate, another event of its type and keys with its id is set "
        "aside (default 10 min; 0 s: never)",
        default="10 min",
    )


def add_to_the_end_argument(parser: Parser) -> None:
    """Declare that all windows close at the end of the history."""
    parser.declare(
        "--to-the-end",
        "close all windows that are open at the last event, or at --until; a later event could still refute an "
        "alert that only this gives, and `cep replay` marks it as `unconfirmed`",
    )


def given_period(options: argparse.Namespace) -> Period:
    """Return the period. Raises: UsageError for an invalid time."""
    to_the_end = getattr(options, "to_the_end", False)
    dedup_ms = length_ms("--dedup", options.dedup)
    return period_of(options.since, options.until, "--", to_the_end=to_the_end, dedup_ms=dedup_ms)


def add_rejected_argument(parser: Parser) -> None:
    """Declare the share of the records that may be rejected."""
    parser.add_argument(
        REJECTED_MAX,
        type=_share,
        default=REJECTED_PERCENT_MAX / 100,
        metavar="SHARE",
        help="end with 1 if more than this share of the records, from 0 to 1, was set aside or has a value that cannot "
        f"be read (default {REJECTED_PERCENT_MAX / 100:g}); all or none end with 1 in any case",
    )


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to 1")
    return share


def exit_code_of(options: argparse.Namespace, errors: Console, code: int, *replays: Replayed) -> int:
    """Print the rejected records of the replays. Return 1 if they are too many, otherwise `code`."""
    rejections = [rejections_of(replayed.counters, replayed.dead_letters) for replayed in replays]
    return max([code, *(tell_rejections(each, options.rejected_max, errors) for each in rejections)])


def tell_rejections(rejections: Rejections, share_max: float, errors: Console) -> int:
    """Print the rejected records. Return 1 if they are too many, otherwise 0."""
    for line in rejections.lines(REJECTED_MAX, share_max):
        errors.print(line, markup=False, soft_wrap=True)
    return int(rejections.is_above(share_max))


def checked_alert(value: Any, fields: Iterable[str]) -> dict[str, Any]:
    """Return an alert that has these fields; a line of a file may have been changed. Raises: ValueError."""
    if not isinstance(value, dict):
        raise ValueError("it is no object")  # noqa: TRY004 one kind of error for every line that is no alert
    for field in fields:
        if field not in value:
            raise ValueError(f"`{field}` is missing")
        if not _SHAPES[field](value[field]):
            raise ValueError(f"`{field}` is not what an alert has there")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_time(value: Any) -> bool:
    """Return True for a time: text in JSON lines, a datetime in Parquet."""
    return isinstance(value, str | datetime)


def _are_events(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(e, dict) and _is_text(e.get("event_id")) for e in value)


_SHAPES: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {
        "rule_id": _is_text,
        "version": lambda value: type(value) is int,
        "severity": _is_text,
        "key": _is_text,
        "message": _is_text,
        "events": _are_events,
        "match_start": _is_time,
        "detected_at": _is_time,
        "content_hash": _is_text,
    }
)
