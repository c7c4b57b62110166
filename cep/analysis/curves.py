"""A rule and values of its numeric parameters → its results at each value, and at pairs of two values.

Each value is replayed over the whole history, many at once, with the other parameters unchanged. So the result is exact
for every pattern, and the point of the present value has the same figures as the report.
Tested by: tests/analysis/test_backtest.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from cep.analysis.backtest import Ratio, ratio
from cep.analysis.sweep import Axis, Bench, Scores, Setting, number_of, replayed_scores, unit_of
from cep.base.errors import UsageError
from cep.base.limits import TUNE_ALERTS_MAX, TUNE_REPLAYED_MAX, TUNE_RULES_AT_ONCE
from cep.lang.show import show_duration
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
    """The figures of a rule for each value of one parameter, the smallest value first.

    With a value in `left_out` the rule cannot be deployed. `unit` is the unit of a duration, "" for any other
    parameter.
    """

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


def pairs(bench: Bench, all_curves: Sequence[Curve]) -> tuple[Pair, ...]:
    """Replay some values of each two parameters together: the values that change the alerts most.

    Raises: UsageError if there are too many alerts with two of the values.
    """
    spread = {
        curve.param: -int(np.ptp([point.alerts for point in curve.points])) for curve in all_curves if curve.points
    }
    chosen = sorted((curve for curve in all_curves if spread.get(curve.param)), key=lambda curve: spread[curve.param])
    return tuple(_pair(bench, one, other) for one, other in combinations(chosen[:_PAIRED_MAX], 2))


def _pair(bench: Bench, one: Curve, other: Curve) -> Pair:
    """Replay all combinations of the values of two parameters."""
    names = (one.param, other.param)
    value_pairs = list(product(_some_values(one), _some_values(other)))
    settings: list[Setting] = [{name: _as_given(bench, name, value) for name, value in zip(names, values, strict=True)}
                               for values in value_pairs]  # fmt: skip
    side = len(_some_values(other))
    corners = [settings[index] for index in (0, side - 1, -side, -1)]
    (scores,) = replayed_scores(bench, settings, settings_at_once(bench, corners))
    points = [_point(0.0, scores, index, bench, 1) for index in range(len(value_pairs))]
    front = _front([(point.precision.value, point.fraud_recall.value) for point in points])
    return Pair(
        bench.record.id,
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


def _as_given(bench: Bench, name: str, value: float) -> ParamValue:
    present = bench.record.params[name]
    if isinstance(present, str):
        return show_duration(round(value * unit_of(present)[1]))
    return int(value) if isinstance(present, int) and value.is_integer() else value


def _front(shares: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """Say of each (precision, recall) whether none is better in one, and as good in the other."""
    pairs_ = [(precision, recall) for precision, recall in shares if precision is not None and recall is not None]
    return [
        (mine[0] is not None and mine[1] is not None)
        and not any(p >= mine[0] and r >= mine[1] and (p, r) != mine for p, r in pairs_)
        for mine in shares
    ]


def curves(bench: Bench, axes: Sequence[Axis], days: int) -> tuple[Curve, ...]:
    """Replay the rule with every value of every parameter. `bench` has the whole time as its only part, of `days` days.

    Raises: UsageError if there are too many values, or too many alerts with one of them.
    """
    rule = bench.record.id
    settings: list[Setting] = [{axis.name: value} for axis in axes for value in axis.values]
    if not settings:
        raise UsageError(f"{rule} has no parameter that is a number above 0, so it has no thresholds to draw")
    if len(settings) > TUNE_REPLAYED_MAX:
        raise UsageError(
            f"{rule} has {len(axes)} parameters with {len(settings)} values in all, and the most is "
            f"{TUNE_REPLAYED_MAX}; compare some of them with: cep rules tune {rule} --try PARAM=VALUES"
        )
    refused_numbers = {int(each.rule_id[1:]) for each in bench.deployment(settings).set_aside}
    result = []
    for axis in axes:
        axis_numbers = [number for number, setting in enumerate(settings) if axis.name in setting]
        replayed = [settings[number] for number in axis_numbers if number not in refused_numbers]
        unit, size = unit_of(bench.record.params[axis.name])
        (scores,) = replayed_scores(bench, replayed, settings_at_once(bench, [*replayed[:1], *replayed[-1:]]))
        points = [_point(number_of(setting[axis.name]) / size, scores, index, bench, days)
                  for index, setting in enumerate(replayed)]  # fmt: skip
        points.sort(key=lambda point: point.value)
        left_out = sorted(
            number_of(settings[number][axis.name]) / size for number in axis_numbers if number in refused_numbers
        )
        present = number_of(bench.record.params[axis.name]) / size
        result.append(Curve(rule, axis.name, unit, present, tuple(points), tuple(left_out)))
    return tuple(result)


def settings_at_once(bench: Bench, ends: Sequence[Setting]) -> int:
    """Return how many settings may be replayed at once, by the alerts of those at the ends."""
    most = int(np.max(replayed_scores(bench, ends)[0].alerts, initial=1))
    if most > TUNE_ALERTS_MAX:
        raise UsageError(
            f"{bench.record.id} has {most:,} alerts with one of the values to draw, and the most is "
            f"{TUNE_ALERTS_MAX:,}; draw another rule"
        )
    return max(1, min(TUNE_RULES_AT_ONCE, TUNE_ALERTS_MAX // max(1, most)))


def _point(value: float, scores: Scores, index: int, bench: Bench, days: int) -> Point:
    alerts = int(scores.alerts[index])
    return Point(
        value,
        alerts,
        alerts / days if days else 0.0,
        ratio(int(scores.right[index]), alerts - int(scores.immature[index])),
        ratio(int(scores.frauds[index]), bench.marks.frauds_count),
        float(scores.money[index]),
    )
