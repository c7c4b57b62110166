"""A rule and values of its numeric parameters → what it would have found at each, the others as they are.

Each value is replayed over the whole history, many side by side. So it is exact for every pattern, and the point of the
present value has the figures that the report has of the rule.
Tested by: tests/analysis/test_curves.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cep.analysis.axes import Axis, number_of
from cep.analysis.backtest import Ratio, ratio
from cep.analysis.sweep import Bench, Scores, Setting, replayed_scores
from cep.base.errors import UsageError
from cep.base.limits import TUNE_ALERTS_MAX, TUNE_REPLAYED_MAX, TUNE_RULES_AT_ONCE


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of a rule with one value of a parameter."""

    value: float
    alerts: int
    alerts_per_day: float
    precision: Ratio
    fraud_recall: Ratio
    money_found: float


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of one parameter, the smallest value first. With values in `left_out` the rule cannot be in force."""

    rule: str
    param: str
    present: float
    points: tuple[Point, ...]
    left_out: tuple[float, ...]


def curves(bench: Bench, axes: Sequence[Axis], days: int) -> tuple[Curve, ...]:
    """Replay every value of every parameter. `bench` has the whole time as its only part.

    Raises: UsageError if there are too many values, or too many alerts with one of them.
    """
    rule = bench.record.id
    settings: list[Setting] = [{axis.name: value} for axis in axes for value in axis.values]
    if not settings:
        raise UsageError(f"{rule} has no parameter that is a number above 0, so it has no thresholds to draw")
    if len(settings) > TUNE_REPLAYED_MAX:
        raise UsageError(
            f"{rule} has {len(axes)} parameters with {len(settings)} values in all, and the most is "
            f"{TUNE_REPLAYED_MAX}; compare some of them with: cep tune {rule} --try PARAM=VALUES"
        )
    aside = {int(each.rule_id[1:]) for each in bench.deployment(settings).set_aside}
    replayed = [setting for number, setting in enumerate(settings) if number not in aside]
    (scores,) = replayed_scores(bench, replayed, _at_once(bench, axes, replayed))
    made = []
    for axis in axes:
        chosen = [(number_of(setting[axis.name]), at) for at, setting in enumerate(replayed) if axis.name in setting]
        left_out = [number_of(settings[at][axis.name]) for at in sorted(aside) if axis.name in settings[at]]
        points = tuple(_point(value, scores, at, bench, days) for value, at in sorted(chosen))
        present = number_of(bench.record.params[axis.name])
        made.append(Curve(rule, axis.name, present, points, tuple(sorted(left_out))))
    return tuple(made)


def _at_once(bench: Bench, axes: Sequence[Axis], settings: Sequence[Setting]) -> int:
    """Return how many settings may be replayed at once, by the alerts at both ends of each parameter."""
    ends = []
    for axis in axes:
        of_axis = [setting for setting in settings if axis.name in setting]
        ends += [of_axis[0], of_axis[-1]] if of_axis else []
    most = int(np.max(replayed_scores(bench, ends)[0].alerts, initial=1))
    if most > TUNE_ALERTS_MAX:
        raise UsageError(
            f"{bench.record.id} has {most:,} alerts with one of the values to draw, and the most is "
            f"{TUNE_ALERTS_MAX:,}; draw another rule"
        )
    return max(1, min(TUNE_RULES_AT_ONCE, TUNE_ALERTS_MAX // max(1, most)))


def _point(value: float, scores: Scores, at: int, bench: Bench, days: int) -> Point:
    alerts = int(scores.alerts[at])
    return Point(
        value,
        alerts,
        alerts / days if days else 0.0,
        ratio(int(scores.right[at]), alerts - int(scores.immature[at])),
        ratio(int(scores.frauds[at]), bench.marks.frauds_count),
        float(scores.money[at]),
    )
