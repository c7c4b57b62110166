"""A rule and values of its numeric parameters → its results at each value and at pairs, and alerts near a threshold.

Each value is replayed over the whole history, with the other parameters unchanged, so the result is exact for every
pattern, and the present value has the same figures as the report.

    values, loosest first    v0      v1      v2 = present      v3      v4
    alerts with v0, not v1   ├──────┤        │
    alerts with v1, not v2           ├───────┤ just outside: a looser value would add them
    alerts with v2, not v3                   ├────────────────┤ just inside: a tighter value would lose them

Two alerts are the same if they bind the same events, even if a threshold changes the bound events.
Tested by: tests/analysis/test_backtest.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.analysis.backtest import Judged, Ratio, ratio
from cep.analysis.cases import shown_key
from cep.analysis.history import History
from cep.analysis.sweep import Axis, Replayer, Scores, Setting, identities, number_of, replayed_scores, unit_of
from cep.base.errors import UsageError
from cep.base.limits import TUNE_ALERTS_MAX, TUNE_REPLAYED_MAX, TUNE_RULES_AT_ONCE
from cep.columnar.order import rows_in_order
from cep.lang.show import show_time, written_duration
from cep.model.rule import ParamValue

_PAIRED_MAX = 3  # parameters that are paired with each other
PAIRED_ALERTS_TIMES = 100  # the present alerts: a value with more of them alone is not paired, its replays cost most
_EVERY = 3  # of 21 values of a parameter 7 are paired, or 8 with the present one


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of a rule with one value of a parameter."""

    value: float
    alerts: int
    alerts_per_day: float
    precision: Ratio
    fraud_recall: Ratio
    money_found: float


def in_unit(param: str, unit: str) -> str:
    """Return the name of a parameter, with the unit of its values if it is a length of time."""
    return f"{param} ({unit})" if unit else param


@dataclass(frozen=True, slots=True)
class Curve:
    """The figures of a rule for each value of one parameter, the smallest first. `unit` is the unit of a duration, ""
    for any other parameter. With a value in `left_out` the rule cannot be deployed."""

    rule: str
    param: str
    unit: str
    present: float
    points: tuple[Point, ...]
    left_out: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """The figures of a rule with two values. On the front no other cell of the pair is better in one of precision and
    recall, and as good in the other."""

    values: tuple[float, float]
    alerts: int
    precision: Ratio
    fraud_recall: Ratio
    money_found: float
    is_on_front: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """The cells of two parameters. The present values are among them."""

    rule: str
    params: tuple[str, str]
    units: tuple[str, str]
    present: tuple[float, float]
    cells: tuple[Cell, ...]


def pairs(replayer: Replayer, all_curves: Sequence[Curve]) -> tuple[Pair, ...]:
    """Replay some values of each two parameters together, for the parameters that change the alerts most. Raises:
    UsageError if there are too many alerts with two of the values."""
    spread = {
        curve.param: -int(np.ptp([point.alerts for point in curve.points])) for curve in all_curves if curve.points
    }
    chosen = sorted((curve for curve in all_curves if spread.get(curve.param)), key=lambda curve: spread[curve.param])
    return tuple(_replay_pair(replayer, one, other) for one, other in combinations(chosen[:_PAIRED_MAX], 2))


def _replay_pair(replayer: Replayer, one: Curve, other: Curve) -> Pair:
    """Replay the rule with each pair of some values of two parameters. Return a grid with a cell of figures for each; a
    cell is on the front if no other is better in precision or recall and at least as good in the other."""
    names = (one.param, other.param)
    value_pairs = list(product(_some_values(one), _some_values(other)))
    settings: list[Setting] = [{name: _as_given(replayer, name, each) for name, each in zip(names, values, strict=True)}
                               for values in value_pairs]  # fmt: skip
    row_length = len(_some_values(other))
    corners = [settings[index] for index in (0, row_length - 1, -row_length, -1)]  # one has most alerts
    (scores,) = replayed_scores(replayer, settings, settings_that_fit(replayer, corners))  # so many fit in memory
    points = [_point(scores, index, replayer, value=0.0, days=1) for index in range(len(value_pairs))]  # both unused
    front = _front([(point.precision.value, point.fraud_recall.value) for point in points])
    return Pair(
        replayer.record.id,
        names,
        (one.unit, other.unit),
        (one.present, other.present),
        tuple(
            Cell(values, point.alerts, point.precision, point.fraud_recall, point.money_found, is_on_front)
            for values, point, is_on_front in zip(value_pairs, points, front, strict=True)
        ),
    )


def _some_values(curve: Curve) -> list[float]:
    """Return every third value, and the present one; none with far more alerts than that has."""
    present = max((point.alerts for point in curve.points if point.value == curve.present), default=0)
    values = [point.value for point in curve.points if point.alerts <= PAIRED_ALERTS_TIMES * max(1, present)]
    return sorted({*values[::_EVERY], *(value for value in values if value == curve.present)})


def _as_given(replayer: Replayer, name: str, value: float) -> ParamValue:
    present = replayer.record.params[name]
    if isinstance(present, str):
        return written_duration(round(value * unit_of(present)[1]))
    return int(value) if isinstance(present, int) and value.is_integer() else value


def _front(shares: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """Say of each (precision, recall) whether none is better in one, and as good in the other."""
    pairs_ = [(precision, recall) for precision, recall in shares if precision is not None and recall is not None]
    return [
        (mine[0] is not None and mine[1] is not None)
        and not any(p >= mine[0] and r >= mine[1] and (p, r) != mine for p, r in pairs_)
        for mine in shares
    ]


def curves(replayer: Replayer, axes: Sequence[Axis], days: int) -> tuple[Curve, ...]:
    """Replay the rule with every value of every parameter (axis), the others unchanged. The only part of `replayer` is
    the whole time, of `days` days. Raises: UsageError if there are too many values, or too many alerts with one."""
    rule = replayer.record.id
    settings: list[Setting] = [{axis.name: value} for axis in axes for value in axis.values]
    if not settings:
        raise UsageError(f"{rule} has no parameter that is a number above 0, so it has no thresholds to draw")
    if len(settings) > TUNE_REPLAYED_MAX:
        raise UsageError(
            f"{rule} has {len(axes)} parameters with {len(settings)} values in all, and the most is "
            f"{TUNE_REPLAYED_MAX}; compare some of them with: cep rules tune {rule} --try PARAM=VALUES"
        )
    refused_numbers = replayer.refused_numbers(settings)  # of settings with which the rule cannot be deployed
    result = []
    for axis in axes:
        axis_numbers = [number for number, setting in enumerate(settings) if axis.name in setting]
        replayed = [settings[number] for number in axis_numbers if number not in refused_numbers]
        unit, size = unit_of(replayer.record.params[axis.name])
        ends = [*replayed[:1], *replayed[-1:]]  # the lowest and the highest value: one has the most alerts
        (scores,) = replayed_scores(replayer, replayed, settings_that_fit(replayer, ends))  # so many fit in memory
        points = [_point(scores, index, replayer, number_of(setting[axis.name]) / size, days)
                  for index, setting in enumerate(replayed)]  # fmt: skip
        points.sort(key=lambda point: point.value)
        left_out = sorted(
            number_of(settings[number][axis.name]) / size for number in axis_numbers if number in refused_numbers
        )
        present = number_of(replayer.record.params[axis.name]) / size
        result.append(Curve(rule, axis.name, unit, present, tuple(points), tuple(left_out)))
    return tuple(result)


def settings_that_fit(replayer: Replayer, ends: Sequence[Setting]) -> int:
    """Return how many settings may be replayed at once: all alerts are in memory, and one of `ends` has the most."""
    most = int(np.max(replayed_scores(replayer, ends)[0].alerts, initial=1))
    if most > TUNE_ALERTS_MAX:
        raise UsageError(
            f"{replayer.record.id} has {most:,} alerts with one of the values to draw, and the most is "
            f"{TUNE_ALERTS_MAX:,}; draw another rule"
        )
    return max(1, min(TUNE_RULES_AT_ONCE, TUNE_ALERTS_MAX // max(1, most)))


def _point(scores: Scores, index: int, replayer: Replayer, value: float, days: int) -> Point:
    alerts = int(scores.alerts[index])
    precision = ratio(int(scores.right[index]), alerts - int(scores.immature[index]))
    fraud_recall = ratio(int(scores.frauds[index]), replayer.labelled.frauds_count)
    money_found = float(scores.money[index])
    return Point(value, alerts, alerts / days if days else 0.0, precision, fraud_recall, money_found)


_STEPS = 6  # values on each side of the present one
_SAMPLES = 3  # right ones and as many others, on each side of the line
_EVENTS_SHOWN = 5  # of a sample


@dataclass(frozen=True, slots=True)
class Interval:
    """Counts of the alerts that a rule has with the value `looser` of a threshold, but not with the next, `tighter`.
    They are right, wrong, or immature (too recent to judge). `is_inside`: the present value lets them pass."""

    looser: float
    tighter: float
    is_inside: bool
    right: int
    wrong: int
    immature: int

    @property
    def alerts(self) -> int:
        return self.right + self.wrong + self.immature


@dataclass(frozen=True, slots=True)
class Sample:
    """One alert close to the threshold, with its last events."""

    looser: float
    tighter: float
    is_inside: bool
    verdict: str
    key: str
    time: str
    event_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A threshold with its intervals, loosest first; `alerts_at_tightest` are left with the tightest value."""

    rule: str
    param: str
    unit: str
    present: float
    intervals: tuple[Interval, ...]
    alerts_at_tightest: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class _SettingAlerts:
    """The alerts of one setting: their identities uint64[A], and their numbers among the judged alerts of a replay."""

    history: History
    judged: Judged
    number: NDArray[np.int64]
    identity: NDArray[np.uint64]


def lines(replayer: Replayer, axes: Sequence[Axis]) -> tuple[Line, ...]:
    """Replay some values around the present one of each threshold. The only part of `replayer` is the whole time.
    Raises: UsageError if there are too many alerts with one of them."""
    return tuple(line for axis in axes if axis.is_threshold if (line := _replay_line(replayer, axis)) is not None)


def _replay_line(replayer: Replayer, axis: Axis) -> Line | None:
    """Replay a rule with the values next to the present value of a threshold (`axis`), loosest first. Return the alerts
    that each tighter value loses, and samples near the present value. The end values say how many fit in memory."""
    present = replayer.record.params[axis.name]
    numbers = [number_of(value) for value in axis.values]
    if number_of(present) not in numbers:
        return None
    index_in_axis = numbers.index(number_of(present))
    nearby_values = axis.values[max(0, index_in_axis - _STEPS) : index_in_axis + _STEPS + 1]
    settings: list[Setting] = [{axis.name: value} for value in nearby_values]
    refused_numbers = replayer.refused_numbers(settings)  # of settings with which the rule cannot be deployed
    settings = [setting for index, setting in enumerate(settings) if index not in refused_numbers]
    unit, size = unit_of(present)
    values = [number_of(setting[axis.name]) / size for setting in settings]
    present_index = values.index(number_of(present) / size)
    intervals, samples = [], list[Sample]()
    alerts_by_setting = _alerts_by_setting(replayer, settings, settings_that_fit(replayer, [settings[0], settings[-1]]))
    for index, (looser, tighter) in enumerate(pairwise(alerts_by_setting)):
        lost = np.flatnonzero(~np.isin(looser.identity, tighter.identity))
        judged, alerts = looser.judged, looser.number[lost]
        right, immature = judged.is_right[alerts], judged.is_immature[alerts]
        counts = (int(each.sum()) for each in (right, ~right & ~immature, immature))
        intervals.append(Interval(values[index], values[index + 1], index >= present_index, *counts))
        if index in (present_index - 1, present_index):
            samples += _sample_alerts(looser, lost, intervals[-1])
    remaining = len(alerts_by_setting[-1].identity)
    return Line(replayer.record.id, axis.name, unit, values[present_index], tuple(intervals), remaining, tuple(samples))


def _alerts_by_setting(replayer: Replayer, settings: Sequence[Setting], step: int) -> list[_SettingAlerts]:
    all_seen = []
    for first in range(0, len(settings), step):
        history, judged = replayer.judged(settings[first : first + step])
        identity = identities(judged)
        for number in range(len(settings[first : first + step])):
            alerts = np.flatnonzero(judged.rule == number)
            all_seen.append(_SettingAlerts(history, judged, alerts, identity[alerts]))
    return all_seen


def _sample_alerts(setting_alerts: _SettingAlerts, lost: NDArray[np.int64], interval: Interval) -> list[Sample]:
    """Show some alerts that a looser value of a threshold has and the next tighter one has not: the earliest right
    ones, and the earliest others (wrong, or too recent to judge). `lost` are their indexes in `setting_alerts`."""
    judged, history = setting_alerts.judged, setting_alerts.history
    (domain,) = {rule.pattern.key for rule in history.deployment.rulebook.deployed()}  # all are settings of one rule
    candidates = setting_alerts.number[lost]  # as `judged` numbers them
    is_right = judged.is_right[candidates]
    chosen = [*candidates[is_right][:_SAMPLES], *candidates[~is_right][:_SAMPLES]]
    samples = []
    for alert in chosen:
        bound = history.events.batch(judged.bound_event_row[judged.bound_event_alert == alert])
        ids = bound.event_id.take(pa.array(rows_in_order(bound))).to_pylist()
        verdict = "right" if judged.is_right[alert] else "immature" if judged.is_immature[alert] else "wrong"
        key = shown_key(judged.key[int(alert)].as_py(), domain, history.events.schema)
        time = show_time(int(judged.detected_ms[alert]))
        looser, tighter, is_inside = interval.looser, interval.tighter, interval.is_inside
        samples.append(Sample(looser, tighter, is_inside, verdict, key, time, tuple(ids[-_EVENTS_SHOWN:])))
    return samples
