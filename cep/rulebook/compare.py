"""Two sets of alerts → the alerts that only one of them has, and how good each set is by labelled events.

Two alerts are the same finding if they have the same rule, key and bound events, whatever their versions. An alert is
right if one of its events is labelled. A labelled event is found if an alert has bound it.
Tested by: tests/rulebook/test_compare.py
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Finding = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`gained` and `lost` are rows of the tables, in their order; `kept_count` is what both have."""

    gained: tuple[dict[str, Any], ...]
    lost: tuple[dict[str, Any], ...]
    kept_count: int


@dataclass(frozen=True, slots=True)
class Quality:
    """Precision: right alerts of all. Recall: labelled events found of all. None where nothing is there to divide."""

    alerts_count: int
    right_count: int
    labelled_count: int
    found_count: int

    @property
    def precision(self) -> float | None:
        return self.right_count / self.alerts_count if self.alerts_count else None

    @property
    def recall(self) -> float | None:
        return self.found_count / self.labelled_count if self.labelled_count else None


def compare(before: pa.Table, after: pa.Table) -> Comparison:
    """Compare one set of alerts with the one before. Cost: a Python object for each alert."""
    old, new = before.to_pylist(), after.to_pylist()
    earlier, later = {_finding(alert) for alert in old}, {_finding(alert) for alert in new}
    return Comparison(
        tuple(alert for alert in new if _finding(alert) not in earlier),
        tuple(alert for alert in old if _finding(alert) not in later),
        len(earlier & later),
    )


def quality(alerts: pa.Table, labelled: Collection[str]) -> Quality:
    """Measure alerts by the ids of the events that are labelled as bad."""
    right_count = 0
    found_labels: set[str] = set()
    for events in alerts["events"].to_pylist():
        bad = {event["event_id"] for event in events} & set(labelled)
        right_count += bool(bad)
        found_labels |= bad
    return Quality(alerts.num_rows, right_count, len(labelled), len(found_labels))


def _finding(alert: dict[str, Any]) -> Finding:
    return alert["rule_id"], alert["key"], tuple(event["event_id"] for event in alert["events"])
