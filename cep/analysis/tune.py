"""A rule, a history, labels and an aim → the setting of its parameters that meets the aim best, or the present one.

1. Cut the time into train, validation and test, each with the frauds known at its end (backtest.py).
2. Score all combinations of values if that is exact or if they are few; otherwise go from the present setting to the
   best neighbour, until none is better (sweep.py).
3. Compare the few best settings of train, within the budget, on validation. The best one is the candidate, if it is
   better than the present setting on both.
4. Propose the candidate if it is better on test: the interval of `compare` must exclude that it is not. Test does not
   influence the choice of the candidate, so this one comparison needs no correction.

In every other case the present setting stays. Shown figures come from replays, not from combinations.
Tested by: tests/analysis/test_tune.py
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cep.analysis.backtest import Judged, Ratio, TimePart, check_frauds, f1, judge, ratio
from cep.analysis.sweep import (
    Axis,
    Replayer,
    Scores,
    Setting,
    combined_scores,
    every_setting,
    is_divisible,
    joined_scores,
    replayed_scores,
    scores_of,
)
from cep.base.errors import UsageError
from cep.base.limits import TUNE_REPLAYED_MAX, TUNE_SETTINGS_MAX
from cep.base.text import utc_text
from cep.lang.ir import PatternIR

Objective = Literal["f1", "recall", "money"]
_DRAWS = 2_000
_AT_ONCE = 20_000_000  # drawn numbers at a time: 160 MB
_SEED = 20_270_101  # the same history gives the same interval
_QUANTILES = (0.025, 0.975)
_FIRST_COLUMN = (1, 6)  # by setting, of its five in `_units_to_draw`: alerts, mature, right, found fraud, money


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure, and the interval of 95 % that it lies in."""

    value: float
    low: float
    high: float


def objective_values(
    objective: Objective, sums: tuple[NDArray[np.float64], ...], frauds: NDArray[np.float64], review_cost: float
) -> NDArray[np.float64]:
    """Compute the figure that a tuning maximises: money, recall, or F1. `sums`: alerts, mature alerts (old enough to
    judge), right alerts, found frauds, their money."""
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
    judged: Judged, part: TimePart, objective: Objective, review_cost: float
) -> tuple[Interval, Interval, Interval]:
    """Compare two settings in a part of the time: return the figure of each that `objective` names, and their
    difference, with 95 % intervals. `judged` has the alerts of settings 0 and 1. The paired bootstrap (Efron 1979)
    draws each unit as often as a Poisson variable of mean 1 says, and judges both settings by the same drawn units. A
    unit is a fraud with its right alerts (they contain one of its events), or a key with its other alerts. Units that
    add the same numbers to both figures are drawn together: a sum of Poisson variables is a Poisson variable."""
    unit_rows, counts = np.unique(_units_to_draw(judged, part), axis=0, return_counts=True)
    draws = [_figures_of_draws(counts[None, :].astype(np.float64), unit_rows, objective, review_cost)]
    random = np.random.default_rng(_SEED)
    step = max(1, _AT_ONCE // max(1, len(unit_rows)))
    for drawn_count in range(0, _DRAWS, step):
        weights = random.poisson(counts, (min(step, _DRAWS - drawn_count), len(counts))).astype(np.float64)
        draws.append(_figures_of_draws(weights, unit_rows, objective, review_cost))
    values = np.concatenate(draws, axis=0)
    columns = (values[:, 0], values[:, 1], values[:, 1] - values[:, 0])  # row 0 has the figures without resampling
    first, second, difference = (
        Interval(float(each[0]), *(float(np.quantile(each[1:], quantile)) for quantile in _QUANTILES))
        for each in columns
    )
    return first, second, difference


def _figures_of_draws(
    weights: NDArray[np.float64], units: NDArray[np.float64], objective: Objective, review_cost: float
) -> NDArray[np.float64]:
    """Return the figures of both settings for each draw. Shapes: weights [D, U], units [U, 11]; result [D, 2]."""
    sums = weights @ units
    return np.stack([
        objective_values(objective, tuple(sums[:, first + n] for n in range(5)), sums[:, 0], review_cost)
        for first in _FIRST_COLUMN
    ], axis=1)  # fmt: skip


def _units_to_draw(judged: Judged, part: TimePart) -> NDArray[np.float64]:
    """Build a row for each unit that the bootstrap draws as a whole: float64[U, 11]. A unit is a fraud with the alerts
    that found it, or all other alerts of a key. The compared settings are the rules 0 and 1 of `judged`. Column 0
    is 1 for a fraud. Columns 1 to 5 are of setting 0, and 6 to 10 of setting 1: the alerts, the mature ones (old enough
    to have a label), the right ones, 1 if the setting found the fraud, and then its money."""
    labelled, frauds = part.labelled, np.flatnonzero(part.frauds)
    fraud_number = np.full(labelled.frauds_count, -1)  # the unit of each fraud; -1: in another part
    fraud_number[frauds] = np.arange(len(frauds))
    is_in_part = part.has(judged.detected_ms)
    alert, fraud = part.alert_fraud_pairs(judged)
    _, key = np.unique(judged.key_number, return_inverse=True)
    unit_of_alert = len(frauds) + key  # the unit of its key, unless the alert is right
    is_right = judged.is_right[alert]
    # Backwards, so that of several frauds of an alert the first one counts.
    unit_of_alert[alert[is_right][::-1]] = fraud_number[fraud[is_right]][::-1]
    rows = np.zeros((len(frauds) + int(key.max(initial=-1)) + 1, 11))
    rows[: len(frauds), 0] = 1  # the unit is a fraud
    for setting in (0, 1):
        is_counted = is_in_part & (judged.rule == setting)
        columns = (is_counted, is_counted & ~judged.is_immature, is_counted & judged.is_right)
        for n, chosen in enumerate(columns):
            rows[:, _FIRST_COLUMN[setting] + n] = np.bincount(unit_of_alert[chosen], minlength=len(rows))
        found_frauds = np.unique(fraud_number[fraud[judged.rule[alert] == setting]])
        rows[found_frauds, _FIRST_COLUMN[setting] + 3] = 1  # found the fraud
        rows[found_frauds, _FIRST_COLUMN[setting] + 4] = labelled.amount[frauds[found_frauds]]  # its money
    return rows[rows.any(axis=1)]  # without keys that have no other alerts


Way = Literal["combined", "replayed", "along the axes"]
Outcome = Literal["better", "within the budget", "not better", "the present setting is the best"]
_FINALISTS = 10
_ROUNDS_MAX = 8  # along the axes; each is a replay of every value of every parameter
_TIE = 1e-12  # figures that differ by less are equal
_OVER_BUDGET = -np.inf  # the value of a setting with too many alerts: any other setting is better


@dataclass(frozen=True, slots=True)
class Aim:
    """The figure that the tuning maximises. `budget` is the most alerts a day; `review_cost` reduces the money. Raises:
    UsageError for an unknown objective, or a cost that is no number."""

    objective: Objective
    budget: float | None = None
    review_cost: float = 0.0

    def __post_init__(self) -> None:
        if self.objective not in get_args(Objective):
            raise UsageError(f"objective {self.objective}: write one of {', '.join(get_args(Objective))}")
        if not isfinite(self.review_cost):
            raise UsageError(f"review_cost {self.review_cost}: write a finite number")


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one setting in one part of the time, with intervals of 95 %. `value` is None over the budget."""

    part: str
    alerts: int
    alerts_per_day: float
    precision: Ratio
    recall: Ratio
    f1: float
    money: float
    value: float | None


@dataclass(frozen=True, slots=True)
class Span:
    """One part of the time: its dates, days, and the frauds in it that were known at its end."""

    name: str
    since: str
    until: str
    days: float
    frauds: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a tuning.

    A setting is a value for each parameter; `settings_count` were compared in `way` by `replayed_count` replays.
    `candidate` is the best of train and validation; `proposed` is the candidate if the outcome is `better` or `within
    the budget`, otherwise the present setting. `…_rows` have figures by part of the time.

    `test` has the aim's figure of the present setting and of the candidate, `difference` is the second less the first.
    `tried` has all settings as columns, `skipped` the parameters that were not tried, with reasons.
    """

    outcome: Outcome
    way: Way
    settings_count: int
    replayed_count: int
    parts: tuple[Span, ...]
    present: Setting
    candidate: Setting
    proposed: Setting
    present_rows: tuple[Row, ...]
    candidate_rows: tuple[Row, ...]
    test: tuple[Interval, Interval]
    difference: Interval
    skipped: Mapping[str, str]
    tried: Mapping[str, list[Any]]


def tune(
    replayer: Replayer, pattern: PatternIR, bound: PatternIR, axes: Sequence[Axis], aim: Aim,
    skipped: Mapping[str, str] | None = None,
) -> Tuned:  # fmt: skip
    """Find the best setting. `pattern` has open parameters, `bound` the present ones. Raises: UsageError."""
    total = prod(len(axis.values) for axis in axes)
    if total > TUNE_SETTINGS_MAX:
        raise UsageError(f"{total:,} settings are over the limit of {TUNE_SETTINGS_MAX:,}; try fewer values (--try)")
    check_frauds(replayer.parts)
    present = {axis.name: replayer.record.params[axis.name] for axis in axes}
    way, settings, scores, replays = _score_settings(replayer, pattern, bound, axes, aim, present)
    if present not in settings:
        settings, scores = [present, *settings], joined_scores([replayed_scores(replayer, [present]), scores])
        replays += 1
    present_index = settings.index(present)
    train, validation = (_values(scores[part_number], replayer, part_number, aim) for part_number in (0, 1))
    order = np.lexsort((scores[0].alerts, -train))
    better = order[(train[order] > _OVER_BUDGET) & (train[order] > train[present_index] + _TIE)][:_FINALISTS]
    if train[present_index] == _OVER_BUDGET and not len(better):
        raise UsageError(_nothing_fits(replayer, scores[0], settings, aim))
    best = int(better[int(np.argmax(validation[better]))]) if len(better) else present_index
    if train[present_index] > _OVER_BUDGET and validation[best] <= validation[present_index] + _TIE:
        best = present_index
    candidate = settings[best]
    history, all_alerts = replayer.replayed([present, candidate])
    part = replayer.parts[-1]
    judged = judge(history, part.labelled, all_alerts, is_sent_only=True)
    *figures, difference = compare(judged, part, aim.objective, aim.review_cost)
    shown = scores_of(replayer, history, all_alerts, 2)
    outcome: Outcome = "better" if difference.low > _TIE else "not better"
    if best == present_index:
        outcome = "the present setting is the best"
    elif train[present_index] == _OVER_BUDGET:
        outcome = "within the budget"
    spans = [
        Span(each.name, utc_text(each.from_ms), utc_text(each.until_ms), each.days, int(each.frauds.sum()))
        for each in replayer.parts
    ]
    rows = [
        tuple(
            _row(shown[part_number], replayer, part_number, number, aim) for part_number in range(len(replayer.parts))
        )
        for number in (0, 1)
    ]
    return Tuned(
        outcome, way, len(settings), replays, tuple(spans), present, candidate,
        candidate if outcome in ("better", "within the budget") else present,
        rows[0], rows[1], (figures[0], figures[1]), difference, dict(skipped or {}),
        _table(settings, scores, replayer, aim),
    )  # fmt: skip


def _table(settings: Sequence[Setting], scores: Sequence[Scores], replayer: Replayer, aim: Aim) -> dict[str, list[Any]]:
    """Return a table by column: a row for each setting (values of the rule's parameters), with figures on train and
    validation. `…_value` is the figure that the aim maximises, None for a setting with more alerts than its budget."""
    columns: dict[str, list[Any]] = {name: [setting[name] for setting in settings] for name in settings[0]}
    for part_number in (0, 1):  # train and validation
        name = replayer.parts[part_number].name
        precision, recall = _precision_and_recall(scores[part_number], replayer, part_number)
        values = _values(scores[part_number], replayer, part_number, aim)
        columns |= {
            f"{name}_alerts": scores[part_number].alerts.tolist(),
            f"{name}_precision": precision.tolist(),
            f"{name}_recall": recall.tolist(),
            f"{name}_money": scores[part_number].money.tolist(),
            f"{name}_value": [None if value == _OVER_BUDGET else value for value in values.tolist()],
        }
    return columns


def _nothing_fits(replayer: Replayer, train: Scores, settings: Sequence[Setting], aim: Aim) -> str:
    """Name the setting that comes closest to a budget that none meets, and the next step."""
    assert aim.budget is not None, "only a budget makes a setting unfit"
    fewest = int(np.argmin(train.alerts))
    a_day = int(train.alerts[fewest]) / replayer.parts[0].days if replayer.parts[0].days else 0.0
    closest = ", ".join(f"{name}={value}" for name, value in settings[fewest].items())
    return (
        f"no setting keeps to the budget of {aim.budget:g} alerts a day on train; of {len(settings):,} the fewest are "
        f"{a_day:,.1f} a day, with {closest}; give a larger budget, or tighter values to try"
    )


def _score_settings(
    replayer: Replayer, pattern: PatternIR, bound: PatternIR, axes: Sequence[Axis], aim: Aim, present: Setting
) -> tuple[Way, list[Setting], tuple[Scores, ...], int]:
    """Score the settings in the cheapest valid way. Return the way, the settings, their scores by part of the time, and
    the number of replays. If each threshold decides by itself on an alert (`is_divisible`), one replay for each of its
    values is enough for all combinations. `pattern` has the parameters, `bound` their present values instead."""
    # A sent alert suppresses others; without a threshold each setting needs a replay anyway.
    may_combine = replayer.record.suppress is None and any(axis.is_threshold for axis in axes)
    if may_combine and is_divisible(pattern, bound, axes):
        combined = combined_scores(replayer, axes)
        if combined is not None:
            return "combined", every_setting(axes), *combined
    if prod(len(axis.values) for axis in axes) <= TUNE_REPLAYED_MAX:  # few enough to replay each
        settings = every_setting(axes)
        return "replayed", settings, replayed_scores(replayer, settings), len(settings)
    return _along_axes(replayer, axes, aim, present)  # changes one parameter at a time


def _along_axes(
    replayer: Replayer, axes: Sequence[Axis], aim: Aim, present: Setting
) -> tuple[Way, list[Setting], tuple[Scores, ...], int]:
    """Search from the present setting: change one parameter at a time until nothing is better on train."""
    settings: list[Setting] = [present]
    blocks = [replayed_scores(replayer, settings)]
    current, rank = present, _rank(blocks[0][0], replayer, aim)[0]
    for _ in range(_ROUNDS_MAX):
        others = [{**current, axis.name: each} for axis in axes for each in axis.values]
        others = [setting for setting in others if setting not in settings]
        if not others:
            break
        scores = replayed_scores(replayer, others)
        settings += others
        blocks.append(scores)
        ranks = _rank(scores[0], replayer, aim)
        best = max(range(len(others)), key=ranks.__getitem__)
        if ranks[best] <= rank:
            break
        current, rank = others[best], ranks[best]
    return "along the axes", settings, joined_scores(blocks), len(settings)


def _rank(train: Scores, replayer: Replayer, aim: Aim) -> list[tuple[float, int]]:
    """Return values that are larger for a better setting: its value on train, then, over the budget, fewer alerts."""
    values = _values(train, replayer, 0, aim).tolist()
    return [
        (value, 0 if value > _OVER_BUDGET else -alerts)
        for value, alerts in zip(values, train.alerts.tolist(), strict=True)
    ]


def _values(scores: Scores, replayer: Replayer, part_number: int, aim: Aim) -> NDArray[np.float64]:
    """Return the figure that the tuning maximises, of each setting; `_OVER_BUDGET` with too many alerts."""
    numbers = (scores.alerts, scores.alerts - scores.immature, scores.right, scores.frauds, scores.money)
    sums = tuple(each.astype(np.float64) for each in numbers)
    frauds = np.full(len(scores.alerts), float(replayer.parts[part_number].frauds.sum()))
    values = objective_values(aim.objective, sums, frauds, aim.review_cost)
    if aim.budget is not None:
        values = np.where(scores.alerts <= aim.budget * replayer.parts[part_number].days, values, _OVER_BUDGET)
    return values


def _precision_and_recall(scores: Scores, replayer: Replayer, part_number: int) -> tuple[NDArray[np.float64], ...]:
    """Return precision and recall of each setting, 0 if undefined."""
    mature = scores.alerts - scores.immature
    return scores.right / np.maximum(mature, 1), scores.frauds / max(1, int(replayer.parts[part_number].frauds.sum()))


def _row(scores: Scores, replayer: Replayer, part_number: int, number: int, aim: Aim) -> Row:
    """Return the figures of setting `number` (values of the parameters) in one part of the time. Immature alerts are
    too recent to judge, so precision leaves them out. `value` is None for more alerts than the aim's budget."""
    part, alerts = replayer.parts[part_number], int(scores.alerts[number])
    precision = ratio(int(scores.right[number]), alerts - int(scores.immature[number]))
    recall = ratio(int(scores.frauds[number]), int(part.frauds.sum()))
    value = float(_values(scores, replayer, part_number, aim)[number])
    return Row(
        part.name,
        alerts,
        alerts / part.days if part.days else 0.0,
        precision,
        recall,
        f1(precision, recall),
        float(scores.money[number]),
        None if value == _OVER_BUDGET else value,
    )
