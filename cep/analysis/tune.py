"""A rule, a history, labels and an aim → the setting of its parameters that meets the aim best.

1. The time is cut into train, validation and test (split.py).
2. Settings are scored: all combinations if that is exact or if they are few; otherwise along the axes, from the present
   setting to the best neighbour, until none is
   better (sweep.py).
3. The few best on train within the budget are compared on validation; the best is proposed.
4. The present setting, the proposed one and the other few are replayed, so that the shown figures come from the engine.

Tested by: tests/analysis/test_tune.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cep.analysis.axes import Axis, is_divisible
from cep.analysis.sweep import Bench, Scores, Setting, combined_scores, every_setting, replayed_scores
from cep.base.errors import UsageError
from cep.base.limits import TUNE_REPLAYED_MAX, TUNE_SETTINGS_MAX
from cep.lang.ir import PatternIR

Objective = Literal["f1", "recall", "money"]
Way = Literal["combined", "replayed", "along the axes"]
_FINALISTS = 10
_ROUNDS_MAX = 8  # along the axes; each is a replay of every value of every parameter


@dataclass(frozen=True, slots=True)
class Aim:
    """The figure that is to be large. `budget` is the most alerts a day; `review_cost` is taken from the money."""

    objective: Objective
    budget: float | None = None
    review_cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one setting in one part of the time."""

    part: str
    alerts: int
    alerts_per_day: float
    precision: float | None
    recall: float | None
    f1: float
    money: float
    value: float | None


@dataclass(frozen=True, slots=True)
class Tuned:
    """The proposal. `settings_count` settings were compared, for which `replayed_count` were replayed.

    `value` is the aim's figure on train of the proposed setting as it was compared.
    """

    way: Way
    settings_count: int
    replayed_count: int
    present: Setting
    proposed: Setting
    present_rows: tuple[Row, ...]
    proposed_rows: tuple[Row, ...]


def tune(bench: Bench, pattern: PatternIR, bound: PatternIR, axes: Sequence[Axis], aim: Aim) -> Tuned:
    """Find the best setting. `pattern` has open parameters, `bound` the present ones. Raises: UsageError."""
    total = prod(len(axis.values) for axis in axes)
    if total > TUNE_SETTINGS_MAX:
        raise UsageError(f"{total:,} settings are over the limit of {TUNE_SETTINGS_MAX:,}; try fewer values (--try)")
    present = {axis.name: bench.record.params[axis.name] for axis in axes}
    way, settings, scores, replays = _scored(bench, pattern, bound, axes, aim, present)
    train, validation = (_values(scores[at], bench, at, aim) for at in (0, 1))
    order = np.lexsort((scores[0].alerts, -train))[:_FINALISTS]
    order = order[train[order] > -np.inf]
    if not len(order):
        raise UsageError(_nothing_fits(bench, scores[0], settings, aim))
    best = settings[order[int(np.argmax(validation[order]))]]
    shown = replayed_scores(bench, [present, best])
    return Tuned(
        way, len(settings), replays, present, best,
        tuple(_row(shown[at], bench, at, 0, aim) for at in range(len(bench.parts))),
        tuple(_row(shown[at], bench, at, 1, aim) for at in range(len(bench.parts))),
    )  # fmt: skip


def _nothing_fits(bench: Bench, train: Scores, settings: Sequence[Setting], aim: Aim) -> str:
    """Name the setting that comes closest to a budget that none meets, and the next step."""
    assert aim.budget is not None, "only a budget makes a setting unfit"
    fewest = int(np.argmin(train.alerts))
    a_day = int(train.alerts[fewest]) / bench.parts[0].days if bench.parts[0].days else 0.0
    closest = ", ".join(f"{name}={value}" for name, value in settings[fewest].items())
    return (
        f"no setting keeps to the budget of {aim.budget:g} alerts a day on train; of {len(settings):,} the fewest are "
        f"{a_day:,.1f} a day, with {closest}; give a larger budget, or tighter values to try"
    )


def _scored(
    bench: Bench, pattern: PatternIR, bound: PatternIR, axes: Sequence[Axis], aim: Aim, present: Setting
) -> tuple[Way, list[Setting], tuple[Scores, ...], int]:
    """Return how settings were scored, which, their scores by part, and how many were replayed."""
    if is_divisible(pattern, bound, axes):
        combined = combined_scores(bench, axes)
        if combined is not None:
            return "combined", every_setting(axes), *combined
    if prod(len(axis.values) for axis in axes) <= TUNE_REPLAYED_MAX:
        settings = every_setting(axes)
        return "replayed", settings, replayed_scores(bench, settings), len(settings)
    return _along_axes(bench, axes, aim, present)


def _along_axes(
    bench: Bench, axes: Sequence[Axis], aim: Aim, present: Setting
) -> tuple[Way, list[Setting], tuple[Scores, ...], int]:
    """Go from the present setting to the best that differs in one parameter, until none is better on train.

    Over the budget no setting has a value, so there the one with fewer alerts is better.
    """
    settings: list[Setting] = [present]
    blocks = [replayed_scores(bench, settings)]
    here, rank = present, _rank(blocks[0][0], bench, aim)[0]
    for _ in range(_ROUNDS_MAX):
        others = [{**here, axis.name: each} for axis in axes for each in axis.values]
        others = [setting for setting in others if setting not in settings]
        if not others:
            break
        scores = replayed_scores(bench, others)
        settings += others
        blocks.append(scores)
        ranks = _rank(scores[0], bench, aim)
        best = max(range(len(others)), key=ranks.__getitem__)
        if ranks[best] <= rank:
            break
        here, rank = others[best], ranks[best]
    joined = tuple(
        Scores(*(np.concatenate([getattr(block[at], name) for block in blocks]) for name in Scores.__slots__))
        for at in range(len(bench.parts))
    )
    return "along the axes", settings, joined, len(settings)


def _rank(train: Scores, bench: Bench, aim: Aim) -> list[tuple[float, int]]:
    """Return values that are larger for a better setting: its value on train, then, over the budget, fewer alerts."""
    values = _values(train, bench, 0, aim).tolist()
    return [
        (value, 0 if value > -np.inf else -alerts) for value, alerts in zip(values, train.alerts.tolist(), strict=True)
    ]


def _values(scores: Scores, bench: Bench, at: int, aim: Aim) -> NDArray[np.float64]:
    """Return the figure that is to be large, of each setting; minus infinity over the budget."""
    precision, recall = _shares(scores, bench, at)
    match aim.objective:
        case "f1":
            values = 2 * precision * recall / np.maximum(precision + recall, 1e-300)
        case "recall":
            values = recall
        case _:
            values = scores.money - aim.review_cost * scores.alerts
    if aim.budget is not None:
        values = np.where(scores.alerts <= aim.budget * bench.parts[at].days, values, -np.inf)
    return values


def _shares(scores: Scores, bench: Bench, at: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return precision and recall of each setting, 0 if undefined."""
    mature = scores.alerts - scores.immature
    return scores.right / np.maximum(mature, 1), scores.frauds / max(1, int(bench.parts[at].frauds.sum()))


def _row(scores: Scores, bench: Bench, at: int, number: int, aim: Aim) -> Row:
    part, alerts = bench.parts[at], int(scores.alerts[number])
    precision, recall = (float(share[number]) for share in _shares(scores, bench, at))
    value = float(_values(scores, bench, at, aim)[number])
    return Row(
        part.name,
        alerts,
        alerts / part.days if part.days else 0.0,
        precision if alerts > int(scores.immature[number]) else None,
        recall if part.frauds.any() else None,
        2 * precision * recall / (precision + recall) if precision + recall else 0.0,
        float(scores.money[number]),
        None if value == -np.inf else value,
    )
