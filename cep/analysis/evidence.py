"""Two settings of a rule on one part of the time → the difference of their figures, with an interval.

The interval is of a paired bootstrap (Efron 1979): the part is drawn again many times, with each unit as often as a
Poisson variable of mean 1 says, and both settings are judged on the same draw. A unit is a fraud with the right alerts
that bind it, or a key with its other alerts: alerts of one unit come and go together, so they are no independent
evidence. Equal units are drawn together, because a sum of Poisson variables is one.
Tested by: tests/analysis/test_tune.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cep.analysis.backtest import Judged, Part

Objective = Literal["f1", "recall", "money"]
_DRAWS = 2_000
_AT_ONCE = 20_000_000  # drawn numbers at a time: 160 MB
_SEED = 20_270_101  # the same history gives the same interval
_QUANTILES = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure, and the interval of 95 % that it lies in."""

    value: float
    low: float
    high: float


def objective_values(
    objective: Objective, sums: tuple[NDArray[np.float64], ...], frauds: NDArray[np.float64], review_cost: float
) -> NDArray[np.float64]:
    """Compute the figure that a tuning maximises: money, recall, or F1.

    `sums`: alerts, mature alerts, right alerts, found frauds, their money.
    """
    alerts, mature, right, found_frauds, money = sums
    if objective == "money":
        return money - review_cost * alerts
    recall = found_frauds / np.maximum(frauds, 1e-300)
    if objective == "recall":
        return recall
    precision = right / np.maximum(mature, 1e-300)
    values: NDArray[np.float64] = 2 * precision * recall / np.maximum(precision + recall, 1e-300)
    return values


def compare(
    judged: Judged, part: Part, objective: Objective, review_cost: float
) -> tuple[Interval, Interval, Interval]:
    """Compare two settings by resampling: the figure of each, and their difference, with 95 % intervals.

    `judged` has the alerts of setting 0 and of setting 1.
    """
    unit_rows, counts = np.unique(_units(judged, part), axis=0, return_counts=True)
    draws = [_values(counts[None, :].astype(np.float64), unit_rows, objective, review_cost)]
    random = np.random.default_rng(_SEED)
    step = max(1, _AT_ONCE // max(1, len(unit_rows)))
    for drawn_count in range(0, _DRAWS, step):
        weights = random.poisson(counts, (min(step, _DRAWS - drawn_count), len(counts))).astype(np.float64)
        draws.append(_values(weights, unit_rows, objective, review_cost))
    values = np.concatenate(draws, axis=0)
    columns = (values[:, 0], values[:, 1], values[:, 1] - values[:, 0])
    first, second, difference = (
        Interval(float(each[0]), *(float(np.quantile(each[1:], quantile)) for quantile in _QUANTILES))
        for each in columns
    )
    return first, second, difference


def _values(
    weights: NDArray[np.float64], units: NDArray[np.float64], objective: Objective, review_cost: float
) -> NDArray[np.float64]:
    """Return the figures of both settings for each draw. Shapes: weights [D, U], units [U, 11]; result [D, 2]."""
    sums = weights @ units
    return np.stack([
        objective_values(objective, tuple(sums[:, 1 + 5 * setting + n] for n in range(5)), sums[:, 0], review_cost)
        for setting in (0, 1)
    ], axis=1)  # fmt: skip


def _units(judged: Judged, part: Part) -> NDArray[np.float64]:
    """Build a row for each unit that is resampled as a whole, a fraud or a key: float64[U, 11].

    Columns: whether it is a fraud; then for each setting alerts, mature alerts, right alerts, whether the fraud is
    found, and its money.
    """
    marks, frauds = part.marks, np.flatnonzero(part.frauds)
    fraud_number = np.full(marks.frauds_count, -1)
    fraud_number[frauds] = np.arange(len(frauds))
    counts_here = part.has(judged.detected_ms)
    fraud = marks.fraud[judged.bound_row]
    hits = np.flatnonzero((fraud >= 0) & counts_here[judged.bound_alert])
    hits = hits[part.frauds[fraud[hits]]]
    _, key = np.unique(judged.key_number, return_inverse=True)
    unit_of_alert = len(frauds) + key  # of an alert: its key, unless it is right
    right_hits = hits[judged.is_right[judged.bound_alert[hits]]]
    unit_of_alert[judged.bound_alert[right_hits][::-1]] = fraud_number[fraud[right_hits]][::-1]
    rows = np.zeros((len(frauds) + int(key.max(initial=-1)) + 1, 11))
    rows[: len(frauds), 0] = 1
    for setting in (0, 1):
        is_here = counts_here & (judged.rule == setting)
        columns = (is_here, is_here & ~judged.is_immature, is_here & judged.is_right)
        for n, chosen in enumerate(columns):
            rows[:, 1 + 5 * setting + n] = np.bincount(unit_of_alert[chosen], minlength=len(rows))
        found_frauds = np.unique(fraud_number[fraud[hits[judged.rule[judged.bound_alert[hits]] == setting]]])
        rows[found_frauds, 1 + 5 * setting + 3] = 1
        rows[found_frauds, 1 + 5 * setting + 4] = marks.amount[frauds[found_frauds]]
    return rows[rows.any(axis=1)]
