"""Events as columns, known frauds and parts of time → alerts of plain models, to compare with the alerts of rules.

A model is trained on the first part; its limit is the one with the best F1 on the second; the third gives the figures.
An event above the limit is an alert. `figures` judges the alerts of rules and of models in the same way.
Tested by: tests/bench/test_baselines.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.analysis.backtest import Judged
from cep.analysis.marks import Marks
from cep.analysis.split import Part

_LIMITS = 400  # how many values of a score are tried as the limit of a model


@dataclass(frozen=True, slots=True)
class Alerts:
    """The A alerts and the events that they bind: detected_ms int64[A], is_right bool[A]; alert and row per binding."""

    detected_ms: NDArray[np.int64]
    is_right: NDArray[np.bool_]
    bound_alert: NDArray[np.int64]
    bound_row: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Value:
    """The worth of alerts in a part of the time.

    `days_ahead` is the median time from the first alert of a spell of fraud to its last event.
    """

    alerts: int
    precision: float
    recall: float
    f1: float
    by_kind: dict[str, float]
    days_ahead: float | None


def of_rules(judged: Judged, names: Sequence[str]) -> Alerts:
    """Return the alerts of some rules."""
    chosen = np.isin(judged.rule, [judged.names.index(name) for name in names])
    place = np.cumsum(chosen) - 1
    of_chosen = chosen[judged.bound_alert]
    return Alerts(
        judged.detected_ms[chosen], judged.is_right[chosen], place[judged.bound_alert[of_chosen]],
        judged.bound_row[of_chosen],
    )  # fmt: skip


def of_events(rows: NDArray[np.int64], time_ms: NDArray[np.int64], marks: Marks) -> Alerts:
    """Return an alert for each of these events."""
    return Alerts(time_ms[rows], marks.fraud[rows] >= 0, np.arange(len(rows)), rows)


def figures(alerts: Alerts, marks: Marks, part: Part, spell: NDArray[np.int64], time_ms: NDArray[np.int64]) -> Value:
    """Judge the alerts of a part. `spell` int64[N] is the spell of fraud of each event, or -1."""
    inside = part.has(alerts.detected_ms)
    count = int(inside.sum())
    bound = inside[alerts.bound_alert]
    fraud = marks.fraud[alerts.bound_row[bound]]
    hits = np.unique(fraud[(fraud >= 0) & part.frauds[fraud]])
    is_detected = np.zeros(marks.frauds_count, np.bool_)
    is_detected[hits] = True
    precision, recall = int(alerts.is_right[inside].sum()) / max(1, count), len(hits) / max(1, int(part.frauds.sum()))
    kinds = np.array(marks.kind, dtype=object)
    by_kind = {
        kind: float(is_detected[(kinds == kind) & part.frauds].mean())
        for kind in sorted({*kinds[part.frauds].tolist()})
    }
    return Value(
        count, precision, recall, 2 * precision * recall / max(precision + recall, 1e-12), by_kind,
        _days_ahead(alerts, bound, spell, time_ms),
    )  # fmt: skip


def _days_ahead(
    alerts: Alerts, bound: NDArray[np.bool_], spell: NDArray[np.int64], time_ms: NDArray[np.int64]
) -> float | None:
    bound_spells = spell[alerts.bound_row[bound]]
    if not (bound_spells >= 0).any():
        return None
    last, first = np.full(spell.max() + 1, -1), np.full(spell.max() + 1, np.iinfo(np.int64).max)
    np.maximum.at(last, spell[spell >= 0], time_ms[spell >= 0])
    np.minimum.at(
        first, bound_spells[bound_spells >= 0], alerts.detected_ms[alerts.bound_alert[bound]][bound_spells >= 0]
    )
    some = np.unique(bound_spells[bound_spells >= 0])
    return float(np.median(last[some] - first[some])) / 86_400_000


def lacking(parts: Sequence[Part], time_ms: NDArray[np.int64]) -> list[str]:
    """Return the names of the parts without an event or without a fraud; they cannot be used to choose or to judge."""
    return [part.name for part in parts if not (part.has(time_ms).any() and part.frauds.any())]


def matrix(columns: Sequence[pa.ChunkedArray | pa.Array]) -> NDArray[np.float64]:
    """Return columns side by side as numbers: texts as their alphabetical rank, nulls as NaN."""
    arrays = []
    for column in columns:
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            ordered = pc.unique(values.drop_null()).sort()
            values = pc.index_in(values, value_set=ordered)
        elif pa.types.is_timestamp(values.type):
            day = pc.day_of_week(values)
            arrays.append(np.asarray(day, np.float64))
            values = pc.hour(values)
        arrays.append(values.cast(pa.float64()).to_numpy(zero_copy_only=False))
    return np.stack(arrays, axis=1)


def best_limit(
    score: NDArray[np.float64], rows: NDArray[np.int64], marks: Marks, part: Part, time_ms: NDArray[np.int64]
) -> float:
    """Return the limit with the best F1 in a part. `score` belongs to the events in `rows`."""
    inside = part.has(time_ms[rows])
    assert inside.any(), part.name
    ordered = np.sort(score[inside])[::-1]
    steps = np.unique(np.geomspace(1, len(ordered), _LIMITS).astype(int)) - 1
    spell = np.full(len(time_ms), -1)
    limits = np.unique(ordered[steps])
    values = [
        figures(of_events(rows[score >= limit], time_ms, marks), marks, part, spell, time_ms).f1 for limit in limits
    ]
    return float(limits[int(np.argmax(values))])


def card_precision(
    day: NDArray[np.float64], customer: NDArray[np.float64], bad: NDArray[np.bool_], score: NDArray[np.float64],
    looked_at: int = 100,
) -> tuple[float, float]:  # fmt: skip
    """Return the mean daily share of compromised cards among the highest scores, and the highest possible share."""
    right: set[float] = set()
    shares, possible = [], []
    for each in np.unique(day):
        rows = np.flatnonzero((day == each) & ~np.isin(customer, [*right]))
        cards, place = np.unique(customer[rows], return_inverse=True)
        highest, is_bad = np.full(len(cards), -np.inf), np.zeros(len(cards), np.bool_)
        np.maximum.at(highest, place, score[rows])
        np.logical_or.at(is_bad, place, bad[rows])
        first = np.argsort(-highest, kind="stable")[:looked_at]
        right |= set(cards[first][is_bad[first]].tolist())
        shares.append(is_bad[first].sum() / looked_at)
        possible.append(min(looked_at, is_bad.sum()) / looked_at)
    return float(np.mean(shares)), float(np.mean(possible))
