"""A replay and its labels → figures by rule and for all rules together, the same for the same input.

    right    the alert binds an event of a known fraud
    wrong    it does not, and all its events are mature: a fraud would have been reported by now
    immature it does not, and may still turn out right; it counts for neither side

A fraud is found if an alert binds one of its events. Intervals are Wilson's, for 95 %.
Tested by: tests/analysis/test_backtest.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.analysis.history import Events, History
from cep.analysis.marks import Marks
from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.utc import utc_text
from cep.columnar.route import KeyDomain, route
from cep.columnar.texts import different_texts, rows_among

_Z = 1.959963984540054  # of the normal distribution 95 % lie within so many deviations
DAY_MS = 86_400_000
NEVER = np.iinfo(np.int64).max
ALL = "all rules"  # no rule has a name with a space
_COMBINATIONS_MAX = 30  # sets of rules that are listed in the overlap, those with the most frauds


@dataclass(frozen=True, slots=True)
class Ratio:
    """`part` of `whole`, with Wilson's interval; all None if `whole` is 0."""

    part: int
    whole: int
    value: float | None
    low: float | None
    high: float | None


def ratio(part: int, whole: int) -> Ratio:
    """Return the share with its interval (Wilson 1927)."""
    if not whole:
        return Ratio(part, whole, None, None, None)
    value, square = part / whole, _Z * _Z
    middle = value + square / (2 * whole)
    spread = _Z * sqrt(value * (1 - value) / whole + square / (4 * whole * whole))
    width = 1 + square / whole
    return Ratio(
        part,
        whole,
        value,
        max(0.0, min(value, (middle - spread) / width)),
        min(1.0, max(value, (middle + spread) / width)),
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """The findings of one rule, or of all together. Times are medians in seconds, None if no fraud was found.

    `seconds_to_alert`: from the first event of a fraud to its first alert. `seconds_ahead`: from there to the last
    event of the fraud. `adds`: frauds that no other rule finds. `share`: frauds, each divided among the rules that find
    it (Shapley's value).
    """

    rule: str
    version: int | None
    status: str
    alerts: int
    alerts_per_day: float
    keys: int
    right: int
    wrong: int
    immature: int
    precision: Ratio
    event_recall: Ratio
    fraud_recall: Ratio
    key_recall: Ratio | None
    recall_by_kind: Mapping[str, Ratio]
    lift: float | None
    money_found: float
    money_missed: float
    repeat_rate: float | None
    seconds_to_alert: float | None
    seconds_ahead: float | None
    adds: int
    share: float
    steps_per_event: float | None


@dataclass(frozen=True, slots=True)
class Judged:
    """Alerts A and the frauds F that they find, in arrays. Rules R are in the order of `names`.

    Shapes: rule int[A], is_right, is_immature bool[A], detected_ms int64[A], `key` of length A. `bound_alert` and
    `bound_row` are the bound events: the alert and the row of the event. `first_alert_ms` int64[R, F] is when a rule
    found a fraud first, the largest number if it did not.
    """

    names: tuple[str, ...]
    rule: NDArray[np.int64]
    key: pa.Array
    detected_ms: NDArray[np.int64]
    score: NDArray[np.int64]
    is_right: NDArray[np.bool_]
    is_immature: NDArray[np.bool_]
    bound_alert: NDArray[np.int64]
    bound_row: NDArray[np.int64]
    first_alert_ms: NDArray[np.int64]

    @property
    def has_detected(self) -> NDArray[np.bool_]:
        """bool[R, F]: the rule finds the fraud."""
        hits: NDArray[np.bool_] = self.first_alert_ms != NEVER
        return hits


@dataclass(frozen=True, slots=True)
class Backtest:
    """The figures of a backtest. `days` has by day and rule the alerts that are right, wrong and immature."""

    about: Mapping[str, Any]
    together: Figures
    rules: tuple[Figures, ...]
    overlap: tuple[Mapping[str, Any], ...]
    days: tuple[Mapping[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values: the same for the same input."""
        return asdict(self)


def alert_times_ms(history: History, marks: Marks) -> NDArray[np.int64]:
    """Return the time of each alert of the history: int64[A]. A window that closes with the history ends with it."""
    at_ms = np.asarray(history.replayed.alerts["detected_at"].combine_chunks().cast(pa.int64()), np.int64)
    is_whole = marks.as_of_ms >= history.events.time_ms.max(initial=TIME_MS_MIN)
    is_closed = history.replayed.watermark_ms == TIME_MS_MAX
    return np.minimum(at_ms, marks.as_of_ms) if is_closed and is_whole else at_ms


def judge(history: History, marks: Marks) -> Judged:
    """Say of each alert up to the date whether it is right. Cost: columns, no Python object an alert."""
    deployed = history.deployment.rulebook.deployed()
    names = tuple(
        sorted({rule.rule_id for rule in deployed if rule.pattern.produces is None})
    )  # other rules have no alerts
    alerts = history.replayed.alerts
    at_ms = alert_times_ms(history, marks)
    alerts = alerts.filter(pa.array(at_ms <= marks.as_of_ms)).combine_chunks()
    rule = np.asarray(pc.index_in(alerts["rule_id"].cast(pa.string()), value_set=pa.array(names, pa.string()))).astype(
        np.int64
    )
    bound_alert, rows = history.bound(alerts)
    count = alerts.num_rows
    is_right, is_immature = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    is_right[bound_alert[marks.fraud[rows] >= 0]] = True
    is_immature[bound_alert[~marks.is_mature[rows]]] = True
    detected_ms = at_ms[at_ms <= marks.as_of_ms]
    first_ms = np.full((len(names), marks.frauds_count), NEVER, np.int64)
    hits = np.flatnonzero(marks.fraud[rows] >= 0)
    np.minimum.at(first_ms, (rule[bound_alert[hits]], marks.fraud[rows[hits]]), detected_ms[bound_alert[hits]])
    score = np.asarray(alerts["score"].combine_chunks(), np.int64)
    return Judged(
        names, rule, alerts["key"].combine_chunks(), detected_ms, score, is_right, is_immature & ~is_right,
        bound_alert, rows, first_ms,
    )  # fmt: skip


def backtest(history: History, marks: Marks, judged: Judged | None = None) -> Backtest:
    """Return the figures of each rule and of all together."""
    judged = judge(history, marks) if judged is None else judged
    everything = np.arange(len(judged.names))
    period = _days_count(history.events, marks)
    rules = tuple(
        _figures(history, marks, judged, (np.array([number]), judged.names[number]), period) for number in everything
    )
    return Backtest(
        _about(history, marks, period),
        _figures(history, marks, judged, (everything, ALL), period),
        rules,
        _overlap(judged),
        _by_day(judged),
    )


def _about(history: History, marks: Marks, period: int) -> dict[str, Any]:
    events = history.events
    seen = events.time_ms <= marks.as_of_ms
    bad, count = int((marks.fraud >= 0).sum()), int(seen.sum())
    times = (int(events.time_ms.min()), int(events.time_ms.max())) if len(events) else None
    counters = history.replayed.counters
    return {
        "events": count,
        "from": None if times is None else utc_text(times[0]),
        "to": None if times is None else utc_text(min(times[1], marks.as_of_ms)),
        "days": period,
        "as_of": utc_text(marks.as_of_ms) if len(events) else None,
        "maturity_seconds": marks.maturity_ms / 1_000,
        "frauds": marks.frauds_count,
        "fraud_events": bad,
        "fraud_money": float(marks.amount.sum()),
        "frauds_by_kind": {kind: marks.kind.count(kind) for kind in sorted(set(marks.kind))},
        "base_rate": bad / count if count else None,
        "labels_without_event": marks.unmatched_count,
        "labels_reported_later": marks.later_count,
        "records_set_aside": sum(counters[name] for name in sorted(counters) if name.startswith("poison[")),
        "rules": [
            {"rule": rule.rule_id, "version": rule.version, "status": rule.status, "content_hash": rule.content_hash}
            for rule in sorted(history.deployment.rulebook.deployed(), key=lambda rule: (rule.rule_id, rule.version))
        ],
    }


def _figures(
    history: History, marks: Marks, judged: Judged, chosen: tuple[NDArray[np.int64], str], period: int
) -> Figures:
    """Return the figures of the rules with these numbers, taken together under this name."""
    numbers, name = chosen
    mask = np.isin(judged.rule, numbers)
    alerts, right = int(mask.sum()), int(judged.is_right[mask].sum())
    immature = int(judged.is_immature[mask].sum())
    keys = len(different_texts(judged.key.filter(pa.array(mask))))
    precision = ratio(right, alerts - immature)
    bad_rows = marks.fraud >= 0
    bound = judged.bound_row[mask[judged.bound_alert]]
    detected_events = len(np.unique(bound[bad_rows[bound]]))
    first_ms = judged.first_alert_ms[numbers].min(axis=0, initial=NEVER)
    is_detected = first_ms != NEVER
    by_others = np.delete(judged.has_detected, numbers, axis=0).any(axis=0)
    shares = judged.has_detected / np.maximum(judged.has_detected.sum(axis=0), 1)
    base = int(bad_rows.sum()) / max(1, int((history.events.time_ms <= marks.as_of_ms).sum()))
    kinds = np.array(marks.kind, dtype=object)
    deployed = {rule.rule_id: rule for rule in history.deployment.rulebook.deployed()}
    rule = deployed.get(name)
    domains = {deployed[judged.names[number]].pattern.key for number in numbers}
    return Figures(
        rule=name,
        version=None if rule is None else rule.version,
        status="" if rule is None else rule.status,
        alerts=alerts,
        alerts_per_day=alerts / period if period else 0.0,
        keys=keys,
        right=right,
        wrong=alerts - right - immature,
        immature=immature,
        precision=precision,
        event_recall=ratio(detected_events, int(bad_rows.sum())),
        fraud_recall=ratio(int(is_detected.sum()), marks.frauds_count),
        key_recall=_key_recall(history.events, marks, judged, mask, domains.pop()) if len(domains) == 1 else None,
        recall_by_kind={
            kind: ratio(int(is_detected[kinds == kind].sum()), int((kinds == kind).sum()))
            for kind in sorted(set(marks.kind))
        },
        lift=precision.value / base if precision.value is not None and base else None,
        money_found=float(marks.amount[is_detected].sum()),
        money_missed=float(marks.amount[~is_detected].sum()),
        repeat_rate=1 - keys / alerts if alerts else None,
        seconds_to_alert=_median_s(first_ms[is_detected] - marks.first_ms[is_detected]),
        seconds_ahead=_median_s(marks.last_ms[is_detected] - first_ms[is_detected]),
        adds=int((is_detected & ~by_others).sum()),
        share=float(shares[numbers].sum()),
        steps_per_event=_steps(history, {judged.names[number] for number in numbers}),
    )


def _key_recall(
    events: Events, marks: Marks, judged: Judged, mask: NDArray[np.bool_], domain: KeyDomain
) -> Ratio | None:
    """Return how many of the keys with a fraud have a right alert; None if the events were read without the key."""
    if not set(domain) <= events.columns.keys():
        return None
    decoded = events.taken(np.flatnonzero(marks.fraud >= 0))
    wanted = different_texts(route(decoded, domain, events.schema.columns())[0].key)
    right = different_texts(judged.key.filter(pa.array(mask & judged.is_right)))
    return ratio(int((rows_among(right, wanted) >= 0).sum()), len(wanted))


def _median_s(values_ms: NDArray[np.int64]) -> float | None:
    return float(np.median(values_ms)) / 1_000 if len(values_ms) else None


def _steps(history: History, names: set[str]) -> float | None:
    """Return how many open runs of these rules an event was offered to, on average."""
    counters, events = history.replayed.counters, history.replayed.counters["events"]
    of_rules = [name for name in counters if name.startswith("rule_steps[") and name[11:].rsplit("@", 1)[0] in names]
    return sum(counters[name] for name in of_rules) / events if events else None


def _days_count(events: Events, marks: Marks) -> int:
    """Return how many days of the calendar, in UTC, the events span."""
    times = events.time_ms[events.time_ms <= marks.as_of_ms]
    return int(times.max() // DAY_MS - times.min() // DAY_MS + 1) if len(times) else 0


def _overlap(judged: Judged) -> tuple[dict[str, Any], ...]:
    """Return for each set of rules how many frauds exactly these find, the largest first."""
    sets, counts = np.unique(judged.has_detected.T, axis=0, return_counts=True)
    rows: list[dict[str, Any]] = [
        {"rules": [judged.names[at] for at in np.flatnonzero(members)], "frauds": int(count)}
        for members, count in zip(sets, counts, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (-row["frauds"], row["rules"]))[:_COMBINATIONS_MAX])


def _by_day(judged: Judged) -> tuple[dict[str, Any], ...]:
    """Return by day and rule the alerts that are right, wrong and immature; only days with alerts."""
    kind = np.where(judged.is_right, 0, np.where(judged.is_immature, 2, 1))
    table = np.stack([judged.detected_ms // DAY_MS, judged.rule, kind], axis=1)
    groups, counts = np.unique(table, axis=0, return_counts=True)
    days: dict[tuple[int, int], dict[str, Any]] = {}
    for (day, rule, which), count in zip(groups.tolist(), counts.tolist(), strict=True):
        row = days.setdefault(
            (day, rule),
            {"day": utc_text(day * DAY_MS)[:10], "rule": judged.names[rule], "right": 0, "wrong": 0, "immature": 0},
        )
        row[("right", "wrong", "immature")[which]] = count
    return tuple(days[at] for at in sorted(days))
