"""The end of a history: which absences are certain there."""

from __future__ import annotations

import warnings
from typing import Any

import pyarrow as pa

import cep
from tests.answers import Row

RULES = """
event n { i id  event_time time  h string  k enum(created, recovered) }
pattern p by h { seq c -> !r within 10 min  where c: n k == created  r: n k == recovered }
"""
CREATED = {"i": "1", "event_time": "2026-03-27T05:17:04Z", "h": "h1", "k": "created"}
RECOVERED = {"i": "3", "event_time": "2026-03-27T05:23:05Z", "h": "h1", "k": "recovered"}
OTHER_KEY = {"i": "4", "event_time": "2026-03-27T05:27:04Z", "h": "h2", "k": "recovered"}
IN_2199 = {**OTHER_KEY, "event_time": "2199-01-01T00:00:00Z"}


def marks(*rows: dict[str, str], until: str = "", to_the_end: bool = False) -> list[bool]:
    """Return for each alert whether it is unconfirmed."""
    period: dict[str, Any] = {"until": until} if until else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cep.RejectedRecordsWarning)
        alerts = cep.parse(RULES).match(pa.Table.from_pylist(list(rows)), to_the_end=to_the_end, **period)
    unconfirmed: list[bool] = alerts.table["unconfirmed"].to_pylist()
    return unconfirmed


ROWS = [
    Row(
        "A", "until, before the event that refutes", [], lambda: marks(CREATED, RECOVERED, until="2026-03-27T05:20:00Z")
    ),
    Row("A", "until, at the deadline", [False], lambda: marks(CREATED, until="2026-03-27T05:27:04Z")),
    Row("A", "an open absence at the last event", [], lambda: marks(CREATED)),
    Row("A", "another key is past the deadline", [False], lambda: marks(CREATED, OTHER_KEY)),
    Row("A", "an event of 2199 closes nothing", [], lambda: marks(CREATED, IN_2199)),
    Row(
        "A", "until 2199 closes nothing beyond the clock", [False], lambda: marks(CREATED, until="2199-01-01T00:00:00Z")
    ),
    Row("A", "to the end", [True], lambda: marks(CREATED, to_the_end=True)),
    Row("A", "to the end, refuted", [], lambda: marks(CREATED, RECOVERED, to_the_end=True)),
]
