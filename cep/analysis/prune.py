"""Judged alerts of many rules → few of them that find nearly the same, and what each of the others would have added.

The fewest rules that cover a set are hard to find. Rules are taken greedily: the one that finds the most frauds that
are still missing, of equal ones that with fewer wrong alerts. Then each that is no longer needed is left out again. So
no rule of the result can be spared; at most a logarithm of the frauds times as many rules are taken as there must be
(Chvátal 1979).
Tested by: tests/analysis/test_prune.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from cep.analysis.backtest import Judged
from cep.analysis.marks import Marks


@dataclass(frozen=True, slots=True)
class Removed:
    """A rule that is not needed: the frauds that it finds, those of them that no rule that stays finds, its alerts."""

    rule: str
    frauds: int
    adds: int
    adds_money: float
    alerts: int
    wrong: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """The rules that stay, in the order in which they were needed; frauds and alerts before and after."""

    stay: tuple[str, ...]
    removed: tuple[Removed, ...]
    frauds: int
    frauds_before: int
    frauds_after: int
    alerts_before: int
    alerts_after: int
    wrong_before: int
    wrong_after: int


def prune(judged: Judged, marks: Marks, tolerance: float = 0.0) -> Pruned:
    """Choose rules whose recall of frauds is at most `tolerance` below that of all. Cost: rules² × frauds."""
    count = len(judged.names)
    finds = judged.has_found
    wrong = np.bincount(judged.rule[~judged.is_right & ~judged.is_immature], minlength=count)
    alerts = np.bincount(judged.rule, minlength=count)
    before = int(finds.any(axis=0).sum())
    needed = max(0, ceil(before - tolerance * marks.frauds_count - 1e-9))
    stay = _spared(finds, wrong, _greedy(finds, wrong, needed), needed)
    covered = finds[stay].any(axis=0) if stay else np.zeros(marks.frauds_count, np.bool_)
    others = [at for at in range(count) if at not in stay]
    return Pruned(
        tuple(judged.names[at] for at in stay),
        tuple(
            Removed(
                judged.names[at], int(finds[at].sum()), int((finds[at] & ~covered).sum()),
                float(marks.amount[finds[at] & ~covered].sum()), int(alerts[at]), int(wrong[at]),
            )
            for at in others
        ),
        marks.frauds_count, before, int(covered.sum()),
        int(alerts.sum()), int(alerts[stay].sum()), int(wrong.sum()), int(wrong[stay].sum()),
    )  # fmt: skip


def _greedy(finds: NDArray[np.bool_], wrong: NDArray[np.int64], needed: int) -> list[int]:
    missing = np.ones(finds.shape[1], np.bool_)
    chosen: list[int] = []
    while finds.shape[1] - int(missing.sum()) < needed:
        gains = (finds & missing).sum(axis=1)
        best = min(range(len(finds)), key=lambda at: (-int(gains[at]), int(wrong[at]), at))
        chosen.append(best)
        missing &= ~finds[best]
    return chosen


def _spared(finds: NDArray[np.bool_], wrong: NDArray[np.int64], chosen: Sequence[int], needed: int) -> list[int]:
    """Leave out each rule without which the others find enough, those with the most wrong alerts first."""
    stay = list(chosen)
    for at in sorted(chosen, key=lambda at: (-int(wrong[at]), at)):
        rest = [other for other in stay if other != at]
        if int(finds[rest].any(axis=0).sum()) >= needed:
            stay = rest
    return stay
