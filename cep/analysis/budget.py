"""Judged alerts → what a team finds that can look at so many alerts a day, and how the weeks differ.

Of a day's alerts a team takes those with the highest score first, and of equal ones the earlier.
Tested by: tests/analysis/test_report.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cep.analysis.backtest import DAY_MS, Judged, ratio
from cep.analysis.history import Events
from cep.analysis.marks import Marks
from cep.model.rule import utc_text

BUDGETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
_MONDAY = 3  # 1970-01-01 was a Thursday: three days more make weeks begin on Monday
_QUANTILES = (0.5, 0.95)


def places_of_day(judged: Judged) -> NDArray[np.int64]:
    """Return the place of each alert among those of its day, from 0: by score, then time, then order."""
    order = np.lexsort((judged.detected_ms, -judged.score, judged.detected_ms // DAY_MS))
    day = (judged.detected_ms // DAY_MS)[order]
    first = np.searchsorted(day, day)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - first
    return place


def by_budget(judged: Judged, marks: Marks, days: int, review_cost: float = 0.0) -> tuple[dict[str, Any], ...]:
    """Return for each budget the alerts taken, their precision, the frauds found, and the money less the reviews."""
    place = places_of_day(judged)
    rows: list[dict[str, Any]] = []
    for budget in BUDGETS:
        taken = place < budget
        bound = judged.bound_row[taken[judged.bound_alert]]
        frauds = np.unique(marks.fraud[bound][marks.fraud[bound] >= 0])
        alerts, right = int(taken.sum()), int(judged.is_right[taken].sum())
        money = float(marks.amount[frauds].sum())
        rows.append({
            "alerts_a_day": budget,
            "alerts": alerts,
            "mean_alerts_a_day": alerts / days if days else 0.0,
            "precision": ratio(right, alerts - int(judged.is_immature[taken].sum())),
            "fraud_recall": ratio(len(frauds), marks.frauds_count),
            "money_found": money,
            "money_less_reviews": money - review_cost * alerts,
        })  # fmt: skip
        if alerts == len(taken):
            break
    return tuple(rows)


def by_week(judged: Judged, marks: Marks, events: Events, amount: str | None) -> tuple[dict[str, Any], ...]:
    """Return for each week events, frauds, quantiles of the money of events, and by rule the alerts and right ones."""
    seen = events.time_ms <= marks.as_of_ms
    week = _weeks(events.time_ms)
    of_alert = _weeks(judged.detected_ms)
    rows: list[dict[str, Any]] = []
    for number in np.unique(week[seen]).tolist():
        of_week = seen & (week == number)
        row: dict[str, Any] = {
            "week": utc_text((number * 7 - _MONDAY) * DAY_MS)[:10],
            "events": int(of_week.sum()),
            "fraud_events": int((marks.fraud[of_week] >= 0).sum()),
        }
        if amount is not None:
            values = events.numbers(amount)[of_week]
            values = values[~np.isnan(values)]
            row["amount"] = [float(np.quantile(values, q)) for q in _QUANTILES] if len(values) else None
        row["rules"] = [
            {
                "rule": name,
                "alerts": int(chosen.sum()),
                "precision": ratio(int(judged.is_right[chosen].sum()), int((chosen & ~judged.is_immature).sum())).value,
            }
            for at, name in enumerate(judged.names)
            for chosen in [(of_alert == number) & (judged.rule == at)]
        ]
        rows.append(row)
    return tuple(rows)


def _weeks(time_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    return (time_ms // DAY_MS + _MONDAY) // 7
