"""A line of a file or topic → the alert in it, if the fields that a verb asks for have the form of the engine's alerts.

Alerts in files and topics come back without a checksum, and anybody may have changed a line.
Tested by: tests/cli/test_run.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any


def checked_alert(value: Any, fields: Iterable[str]) -> dict[str, Any]:
    """Return the value if it has these fields of an alert. Raises: ValueError with the field that is wrong."""
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


def _is_number(value: Any) -> bool:
    return type(value) is int


def _is_time(value: Any) -> bool:
    """Return True for a time: text in JSON lines, a datetime in Parquet."""
    return isinstance(value, str | datetime)


def _are_events(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(e, dict) and _is_text(e.get("event_id")) for e in value)


_SHAPES: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {
        "rule_id": _is_text,
        "version": _is_number,
        "severity": _is_text,
        "key": _is_text,
        "message": _is_text,
        "events": _are_events,
        "match_start": _is_time,
        "detected_at": _is_time,
        "content_hash": _is_text,
    }
)
