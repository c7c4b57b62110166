"""Alert tables for the tests of sinks."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from cep.engine.alerts import ALERT_SCHEMA


def alert_table(first: int, count: int, status: str = "live", message: str = "Card c1: 3 probes") -> pa.Table:
    """Return `count` alerts, whose ids are `a` and a number from `first` on."""
    start = datetime(2026, 3, 1, tzinfo=UTC)
    rows = []
    for number in range(first, first + count):
        end = start + timedelta(milliseconds=1_500 * number)
        event = {"variable": "hit", "event_id": f"t{number}", "event_time": end}
        rows.append(
            {
                "alert_id": f"a{number}",
                "rule_id": "card_testing",
                "version": 2,
                "epoch": 5,
                "status": status,
                "severity": "high",
                "priority": 10,
                "score": 80,
                "kind": "match",
                "key": "c1",
                "message": message,
                "description": "Small declines, then a large approval.",
                "measures": '{"probes":3,"amount":"900.00"}',
                "events": [event],
                "origins": None,
                "history_cut": False,
                "history_folded": False,
                "history_from": None,
                "unconfirmed": False,
                "flawed": False,
                "match_start": start,
                "match_end": end,
                "detected_at": end,
                "content_hash": "ff",
            }
        )
    return pa.Table.from_pylist(rows, schema=ALERT_SCHEMA)
