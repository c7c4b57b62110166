"""Two sets of alerts → the alerts that only one of them has.

Two alerts are the same finding if they have the same rule, key and bound events, in any version.
Tested by: tests/rulebook/test_compare.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Finding = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`gained` and `lost` are rows of the tables, in their order; `kept_count` counts the common alerts."""

    gained: tuple[dict[str, Any], ...]
    lost: tuple[dict[str, Any], ...]
    kept_count: int


def compare(before: pa.Table, after: pa.Table) -> Comparison:
    """Compare one set of alerts with the one before. Cost: a Python object for each alert."""
    old, new = before.to_pylist(), after.to_pylist()
    earlier, later = {_finding(alert) for alert in old}, {_finding(alert) for alert in new}
    return Comparison(
        tuple(alert for alert in new if _finding(alert) not in earlier),
        tuple(alert for alert in old if _finding(alert) not in later),
        len(earlier & later),
    )


def _finding(alert: dict[str, Any]) -> Finding:
    return alert["rule_id"], alert["key"], tuple(event["event_id"] for event in alert["events"])
