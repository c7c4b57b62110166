"""Judged alerts of many rules → few rules with nearly the same findings, and the additional findings of the others.

The smallest such set is hard to compute, so rules are chosen greedily: next comes the rule that finds the most missing
frauds, among equal ones the one with fewer wrong alerts. Then each rule that is no longer needed is removed. The result
has at most a logarithm of the frauds times as many rules as necessary (Chvátal 1979).

With a budget of alerts, rules are first chosen by added frauds per alert, and compared with the single rule that finds
the most: the better of the two finds at least 0.39 of the possible frauds (Khuller, Moss and Naor 1999). Its findings
must be kept, with the rules above.

An alert has a cost, in frauds: otherwise a rule with thousands of alerts would stay for one fraud. A rule goes, too, if
the frauds that only it finds are worth less than its alerts, the worst first. By default an alert costs a tenth of the
frauds that an alert of the budget finds on average; without a budget, a present alert.
Tested by: tests/analysis/test_prune.py
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from cep.analysis.backtest import Judged
from cep.analysis.labelled_events import LabelledEvents

_COST_SHARE = 0.1  # of the frauds that an alert finds on average: what an alert costs by default


@dataclass(frozen=True, slots=True)
class Removed:
    """A removed rule: the frauds that it finds, the number of them that no remaining rule finds, its alerts."""

    rule: str
    frauds: int
    adds: int
    adds_money: float
    alerts: int
    wrong: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """The rules that stay, in the order of choice, and counts before and after. `wrong_…` are false alerts.
    `alert_cost` is the frauds that an alert must find to be worth it."""

    stay: tuple[str, ...]
    removed: tuple[Removed, ...]
    frauds: int
    frauds_before: int
    frauds_after: int
    alerts_before: int
    alerts_after: int
    wrong_before: int
    wrong_after: int
    alert_cost: float


def prune(
    judged: Judged, labelled: LabelledEvents, tolerance: float = 0.0, alerts_max: float | None = None,
    alert_cost: float | None = None, spared: Collection[str] = (),
) -> Pruned:  # fmt: skip
    """Choose few rules, in three steps: rules that `alerts_max` alerts in all allow, among them enough to find the same
    frauds but for a share `tolerance`, and among these the ones worth their alerts: an alert must find `alert_cost`
    frauds (None: the default). Rules in `spared` send no alerts, so they are not judged. Alerts that are immature (too
    recent to judge) are not wrong. Cost: rules² × frauds."""
    chosen = np.array([number for number, name in enumerate(judged.names) if name not in spared], np.int64)
    names, count = [judged.names[number] for number in chosen], len(chosen)
    finds = judged.has_detected[chosen]
    is_wrong = ~judged.is_right & ~judged.is_immature
    wrong = np.bincount(judged.rule[is_wrong], minlength=len(judged.names))[chosen]
    alerts = np.bincount(judged.rule, minlength=len(judged.names))[chosen]
    frauds_before = int(finds.any(axis=0).sum())
    affordable = list(range(count)) if alerts_max is None else _choose_within_budget(finds, alerts, alerts_max)
    reachable = int(finds[affordable].any(axis=0).sum())
    needed = max(0, ceil(reachable - tolerance * labelled.frauds_count - 1e-9))  # frauds; 1e-9: a rounding error
    enough = _choose_greedily(finds[affordable], wrong[affordable], needed)
    enough = _drop_unneeded(finds[affordable], wrong[affordable], enough, needed)
    stay = [affordable[rule] for rule in enough]  # by the numbers in `names`
    if alert_cost is None:  # a share of the frauds that an alert finds on average
        alert_cost = _COST_SHARE * frauds_before / max(1.0, float(alerts.sum()) if alerts_max is None else alerts_max)
    stay = _drop_costly(finds, alerts, stay, alert_cost)
    covered = finds[stay].any(axis=0) if stay else np.zeros(labelled.frauds_count, np.bool_)
    others = [rule for rule in range(count) if rule not in stay]
    return Pruned(
        tuple(names[rule] for rule in stay),
        tuple(
            Removed(
                names[rule], int(finds[rule].sum()), int((finds[rule] & ~covered).sum()),
                float(labelled.amount[finds[rule] & ~covered].sum()), int(alerts[rule]), int(wrong[rule]),
            )
            for rule in others
        ),
        labelled.frauds_count, frauds_before, int(covered.sum()),
        int(alerts.sum()), int(alerts[stay].sum()), int(wrong.sum()), int(wrong[stay].sum()),
        alert_cost,
    )  # fmt: skip


def _choose_within_budget(finds: NDArray[np.bool_], alerts: NDArray[np.int64], alerts_max: float) -> list[int]:
    """Choose rules that find many frauds with at most `alerts_max` alerts: greedily, or the best single one."""
    missing, alerts_left = np.ones(finds.shape[1], np.bool_), alerts_max
    chosen: list[int] = []
    while True:
        new_frauds = (finds & missing).sum(axis=1)
        affordable = [
            rule
            for rule in range(len(finds))
            if rule not in chosen and new_frauds[rule] and alerts[rule] <= alerts_left
        ]
        if not affordable:
            break
        best = min(
            affordable, key=lambda rule: (-new_frauds[rule] / max(1, int(alerts[rule])), int(alerts[rule]), rule)
        )
        chosen.append(best)
        missing &= ~finds[best]
        alerts_left -= float(alerts[best])
    singles = [rule for rule in range(len(finds)) if alerts[rule] <= alerts_max]
    best_single = max(singles, key=lambda rule: int(finds[rule].sum()), default=None)
    return [best_single] if best_single is not None and finds[best_single].sum() > (~missing).sum() else chosen


def _choose_greedily(finds: NDArray[np.bool_], wrong: NDArray[np.int64], needed: int) -> list[int]:
    missing = np.ones(finds.shape[1], np.bool_)
    chosen: list[int] = []
    while finds.shape[1] - int(missing.sum()) < needed:
        gains = (finds & missing).sum(axis=1)
        best = min(range(len(finds)), key=lambda rule: (-int(gains[rule]), int(wrong[rule]), rule))
        chosen.append(best)
        missing &= ~finds[best]
    return chosen


def _drop_unneeded(finds: NDArray[np.bool_], wrong: NDArray[np.int64], chosen: Sequence[int], needed: int) -> list[int]:
    """Leave out each rule without which the others find enough, those with the most wrong alerts first."""
    stay = list(chosen)
    for rule in sorted(chosen, key=lambda rule: (-int(wrong[rule]), rule)):
        rest = [other for other in stay if other != rule]
        if int(finds[rest].any(axis=0).sum()) >= needed:
            stay = rest
    return stay


def _drop_costly(finds: NDArray[np.bool_], alerts: NDArray[np.int64], chosen: Sequence[int], cost: float) -> list[int]:
    """Leave out, one by one, the rule that costs most above the frauds that only it finds, until each is worth it."""
    stay = list(chosen)
    while stay:
        times = finds[stay].sum(axis=0)
        losses = {rule: cost * int(alerts[rule]) - int((finds[rule] & (times == 1)).sum()) for rule in stay}
        worst = max(stay, key=lambda rule: losses[rule])
        if losses[worst] <= 0:
            break
        stay.remove(worst)
    return stay
