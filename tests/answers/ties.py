"""Ties, duplicates, and the past at the start of a history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

import cep
from tests.answers import Row

_EVENT = "event t { tx_id id  event_time time  card_id string  device_id string }\n"
START = pd.Timestamp("2026-03-01T10:00:00Z")


def frame(**columns: Sequence[Any]) -> pd.DataFrame:
    """Return events a second apart; `columns` replace the columns that each event of one card has by default."""
    count = len(next(iter(columns.values())))
    rows: Mapping[str, Sequence[Any]] = {
        "tx_id": [f"t{row}" for row in range(count)],
        "event_time": [START + pd.Timedelta(seconds=row) for row in range(count)],
        "card_id": ["c"] * count,
        "device_id": ["d"] * count,
        **columns,
    }
    return pd.DataFrame(rows)


def past_is_from(condition: str) -> list[str | None]:
    """Return for each alert since when its past is complete."""
    rules = cep.parse(f"{_EVENT}pattern p by card_id {{ seq a where a: t {condition} }}")
    alerts = rules.match(frame(device_id=["d", "e"])).table
    return [None if ms is None else ms.isoformat() for ms in alerts["history_from"].to_pylist()]


FROM_START = ["2026-03-01T10:00:00+00:00"] * 2

ROWS = [
    *(Row("G4", f"`{text}` at the start of a history", FROM_START, partial(past_is_from, text))
      for text in ("not exists(t over previous 1 d by device_id)", "first_seen(device_id) < 1 d")),
    Row("G4", "a condition without a past", [None, None], partial(past_is_from, 'device_id != "x"')),
]  # fmt: skip
