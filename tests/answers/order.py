"""The order of events of one time: microseconds, a declared field, records with several views."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

import cep
from tests.answers import Row

EVENT = """
event t {{ tx_id id  event_time time  card_id string  kind string  number int?  {clause} }}
pattern p by card_id {{ seq a -> b within 1 h where a: t kind == "a"  b: t kind == "b" }}
"""
START = pd.Timestamp("2026-03-01T10:00:00Z")


def alerts(kinds_and_ids: Sequence[str], us: int, clause: str = "", numbers: Sequence[int] = (0, 0)) -> int:
    """Return how many alerts events of kinds `a` and `b`, so many microseconds apart, give."""
    rows = {
        "tx_id": kinds_and_ids,
        "event_time": [START + pd.Timedelta(microseconds=us * row) for row in range(len(kinds_and_ids))],
        "card_id": ["c"] * len(kinds_and_ids),
        "kind": ["a", "b"],
        "number": numbers,
    }
    return int(cep.parse(EVENT.format(clause=clause)).match(pd.DataFrame(rows)).table.num_rows)


ROWS = [
    Row("B3", "100 µs apart, ids against the order", 1, lambda: alerts(["f00", "a00"], 100)),
    Row("B3", "100 µs apart, ids in the order", 1, lambda: alerts(["a00", "f00"], 100)),
    Row("B3", "one time, ids against the order of arrival", 1, lambda: alerts(["f00", "a00"], 0)),
    Row("B3", "one time, a declared field", 1, lambda: alerts(["f00", "a00"], 0, "order by number", (1, 2))),
    Row("B3", "one time, a declared field against ids", 0, lambda: alerts(["a", "f"], 0, "order by number", (2, 1))),
]
