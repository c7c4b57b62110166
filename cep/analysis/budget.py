"""Judged alerts → the findings of a team with a daily budget of alerts, and the differences between weeks.

Of a day's alerts a team takes the ones with the highest score first, and of equal ones the earlier.
Tested by: tests/analysis/test_report.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cep.analysis.backtest import DAY_MS, Judged, ratio
from cep.analysis.history import Events
from cep.analysis.marks import Marks
from cep.base.text import utc_text

BUDGETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
_MONDAY = 3  # 1970-01-01 was a Thursday: three days more make weeks begin on Monday
_QUANTILES = (0.5, 0.95)


def places_of_day(judged: Judged) -> NDArray[np.int64]:
    """Return the place of each alert within its day, from 0: by score, then time, then order."""
    order = np.lexsort((judged.detected_ms, -judged.score, judged.detected_ms // DAY_MS))
    day = (judged.detected_ms // DAY_MS)[order]
    first = np.searchsorted(day, day)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - first
    return place


def by_budget(judged: Judged, marks: Marks, days: int, review_cost: float = 0.0) -> tuple[dict[str, Any], ...]:
    """Compute the figures for a team that reviews at most so many alerts a day, for several such budgets.

    The money is the money of the frauds found, less the cost of the reviews.
    """
    day_position = places_of_day(judged)
    rows: list[dict[str, Any]] = []
    for budget in BUDGETS:
        is_within = day_position < budget
        bound = judged.bound_row[is_within[judged.bound_alert]]
        frauds = np.unique(marks.fraud[bound][marks.fraud[bound] >= 0])
        alerts, right = int(is_within.sum()), int(judged.is_right[is_within].sum())
        money = float(marks.amount[frauds].sum())
        rows.append({
            "alerts_a_day": budget,
            "alerts": alerts,
            "mean_alerts_a_day": alerts / days if days else 0.0,
            "precision": ratio(right, alerts - int(judged.is_immature[is_within].sum())),
            "fraud_recall": ratio(len(frauds), marks.frauds_count),
            "money_found": money,
            "money_less_reviews": money - review_cost * alerts,
        })  # fmt: skip
        if alerts == len(is_within):
            break
    return tuple(rows)


def by_week(
    judged: Judged, marks: Marks, events: Events, amount: str | None, span: int = 1
) -> tuple[dict[str, Any], ...]:
    """Count events, frauds, alerts and right alerts by week, with quantiles of the money of events.

    With `span` each row covers that many weeks and is named by the first. Cost: one pass over events, one over alerts.
    """
    arrived_rows = np.flatnonzero(events.time_ms <= marks.as_of_ms)
    origin = int(events.time_ms[arrived_rows].min(initial=marks.as_of_ms))
    numbers, week = np.unique(week_numbers(events.time_ms[arrived_rows], span, origin), return_inverse=True)
    counts = np.bincount(week, minlength=len(numbers))
    fraud_counts = np.bincount(week[marks.fraud[arrived_rows] >= 0], minlength=len(numbers))
    money = None if amount is None else _money(events.numbers(amount)[arrived_rows], week, len(numbers))
    alerts, right, mature = _alerts_by_week(judged, numbers, week_numbers(judged.detected_ms, span, origin))
    rows: list[dict[str, Any]] = []
    for index, number in enumerate(numbers.tolist()):
        row: dict[str, Any] = {
            "week": week_text(number),
            "events": int(counts[index]),
            "fraud_events": int(fraud_counts[index]),
        }
        if money is not None:
            row["amount"] = money[index]
        row["rules"] = [
            {
                "rule": name,
                "alerts": int(alerts[index, rule]),
                "precision": ratio(int(right[index, rule]), int(mature[index, rule])).value,
            }
            for rule, name in enumerate(judged.names)
        ]
        rows.append(row)
    return tuple(rows)


def _money(values: NDArray[np.float64], week: NDArray[np.int64], count: int) -> list[list[float] | None]:
    order = np.argsort(week, kind="stable")
    parts = np.split(values[order], np.searchsorted(week[order], np.arange(1, count)))
    present = [part[~np.isnan(part)] for part in parts]
    return [[float(np.quantile(part, q)) for q in _QUANTILES] if len(part) else None for part in present]


def _alerts_by_week(
    judged: Judged, numbers: NDArray[np.int64], week: NDArray[np.int64]
) -> tuple[NDArray[np.int64], ...]:
    """Count the alerts, the right and the mature ones of each week and rule. Shapes: int64[weeks, rules] each."""
    rules = len(judged.names)
    inside = np.isin(week, numbers)
    place = np.searchsorted(numbers, week) * rules + judged.rule
    masks = (inside, inside & judged.is_right, inside & ~judged.is_immature)
    return tuple(
        np.bincount(place[mask], minlength=len(numbers) * rules).reshape(len(numbers), rules) for mask in masks
    )


def week_numbers(time_ms: NDArray[np.int64], span: int = 1, origin_ms: int | None = None) -> NDArray[np.int64]:
    """Return the number of each time's week; with `span`, of the first of so many weeks.

    Weeks are counted from the week of the origin, or of the earliest time.
    """
    weeks: NDArray[np.int64] = (time_ms // DAY_MS + _MONDAY) // 7
    if span == 1 or not len(weeks):
        return weeks
    first = int(weeks.min()) if origin_ms is None else (origin_ms // DAY_MS + _MONDAY) // 7
    return first + (weeks - first) // span * span


def week_text(number: int) -> str:
    """Return the Monday on which a week begins, as a date."""
    return utc_text((number * 7 - _MONDAY) * DAY_MS)[:10]
