"""Alerts as an Arrow table → the one JSON form that every sink writes.

    {"alert_id": "…", "rule_id": "card_testing", "version": 1, …, "measures": {"probes": 3, "amount": "900.00"},
     "events": [{"variable": "probe", "event_id": "…", "event_time": "2026-03-01T00:00:00.000Z"}, …], …}

Names and their order are the table's; `history_cut` and `history_folded` are there only where they are true,
`history_from` only where a window reaches back before it. Times are ISO 8601 in UTC with milliseconds; `measures`, JSON
text in the table, becomes an object. Equal alerts have equal bytes. Alerts are few, so one Python object for each is
fine here.
Tested by: tests/sinks/test_json_form.py
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import orjson
import pyarrow as pa

_OFTEN_NOTHING = ("history_cut", "history_folded", "history_from")


def json_lines(alerts: pa.Table) -> Iterator[bytes]:
    """One JSON object for each alert, without a line end, in the order of the table."""
    for batch in alerts.to_batches(max_chunksize=1_000):
        for alert in batch.to_pylist():
            for name in _OFTEN_NOTHING:
                if not alert[name]:
                    del alert[name]
            alert["measures"] = orjson.Fragment(alert["measures"])
            yield orjson.dumps(_with_times(alert))


def _with_times(value: Any) -> Any:
    """The value with every time as text; orjson would leave out milliseconds that are zero."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, dict):
        return {name: _with_times(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_times(inner) for inner in value]
    return value
