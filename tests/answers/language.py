"""The language: several times in an event, ways round what it has not, and messages for habits from SQL."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import cep
from tests.answers import Row

_ACCOUNTS = "event tx { id id  event_time time  opened time?  expiry time  card string  amount int }\n"
_DAY_MS = 86_400_000
_PAYMENTS = [
    {"id": f"{n}", "event_time": f"2026-03-{n + 1:02}T05:00:00Z", "opened": opened, "expiry": "2026-03-05T00:00:00Z",
     "card": "c", "amount": 100 * n + n % 2}
    for n, opened in enumerate(["2026-02-20T00:00:00Z", "2025-02-20T00:00:00Z", None, "2026-03-04T04:59:59Z", None])
]  # fmt: skip


def matched(body: str, events: str = _ACCOUNTS, rows: list[dict[str, Any]] | None = None) -> list[str]:
    """Return the ids of the events that each alert binds, joined."""
    alerts = cep.parse(f"{events}pattern p by card {{ {body} }}").match(pa.Table.from_pylist(rows or _PAYMENTS))
    return [" ".join(event["event_id"] for event in bound) for bound in alerts.table["events"].to_pylist()]


ROWS = [
    Row("F1", "an account is younger than 30 days", ["0", "3"],
        lambda: matched("seq a where a: tx event_time - opened < 30 d")),
    Row("F1", "a card has expired", ["4"], lambda: matched("seq a where a: tx event_time > expiry")),
    Row("F1", "a null time", ["2", "4"], lambda: matched("seq a where a: tx opened is null")),
    Row("F1", "the time of an earlier event", ["0 3"],
        lambda: matched("seq a -> b where a: tx  b: tx opened > a.event_time")),
]  # fmt: skip
