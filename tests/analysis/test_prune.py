"""Pruning keeps every rule that it must keep, removes every rule that it can remove, and sees redundancy."""

from itertools import combinations
from math import exp, log

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cep.analysis.backtest import NEVER, Judged
from cep.analysis.labelled_events import LabelledEvents
from cep.analysis.prune import prune


def judged_by(finds: np.ndarray, wrong: list[int]) -> tuple[Judged, LabelledEvents]:
    """Return a rule for each row: an alert for each fraud that it finds, and its number of wrong alerts."""
    rules, frauds = finds.shape
    rule = np.concatenate([np.full(int(finds[index].sum()) + wrong[index], index) for index in range(rules)]).astype(
        np.int64
    )
    is_right = np.concatenate(
        [[True] * int(finds[index].sum()) + [False] * wrong[index] for index in range(rules)]
    ).astype(bool)
    count = len(rule)
    nothing = np.zeros(count, np.int64)
    first = np.where(finds, 1, NEVER)
    judged = Judged(
        tuple(f"r{index}" for index in range(rules)), np.arange(count), rule, pa.array([""] * count), nothing, nothing,
        nothing, is_right, np.zeros(count, np.bool_), nothing[:0], nothing[:0], first,
    )  # fmt: skip
    labelled = LabelledEvents(
        np.empty(0, np.int32), np.empty(0, np.bool_), ("",) * frauds, np.ones(frauds), np.zeros(frauds, np.int64),
        np.zeros(frauds, np.int64), 0, 0, 0, 0, 0, np.empty(0), np.empty(0, np.int64),
    )  # fmt: skip
    return judged, labelled


@st.composite
def _cases(draw: st.DrawFn) -> tuple[np.ndarray, list[int]]:
    rules, frauds = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    cells = draw(st.lists(st.booleans(), min_size=rules * frauds, max_size=rules * frauds))
    wrong = draw(st.lists(st.integers(0, 3), min_size=rules, max_size=rules))
    return np.array(cells).reshape(rules, frauds), wrong


@given(_cases(), st.sampled_from([0.0, 0.1, 0.3]))
def test_beside_every_set_of_rules(case: tuple[np.ndarray, list[int]], tolerance: float) -> None:
    finds, wrong = case
    judged, labelled = judged_by(finds, wrong)
    pruned = prune(judged, labelled, tolerance, alert_cost=0.0)
    rules, frauds = finds.shape
    needed = finds.any(axis=0).sum() - tolerance * frauds - 1e-9
    enough = [
        some for size in range(rules + 1) for some in combinations(range(rules), size)
        if finds[list(some)].any(axis=0).sum() >= needed
    ]  # fmt: skip
    stay = sorted(int(name[1:]) for name in pruned.stay)
    assert tuple(stay) in enough
    assert not any(set(some) < set(stay) for some in enough), "no rule that stays can be spared"
    assert len(stay) <= len(enough[0]) * (1 + log(frauds))
    covered = finds[stay].any(axis=0)
    for each in pruned.removed:
        mine = finds[int(each.rule[1:])]
        assert (each.frauds, each.adds) == (mine.sum(), (mine & ~covered).sum())
    assert pruned.alerts_before - pruned.alerts_after == sum(each.alerts for each in pruned.removed)


@given(_cases(), st.integers(0, 20))
def test_within_a_budget_beside_every_set_of_rules(case: tuple[np.ndarray, list[int]], budget: int) -> None:
    """Khuller's bound holds, no alert is over the budget, and each remaining rule is needed."""
    finds, wrong = case
    judged, labelled = judged_by(finds, wrong)
    pruned = prune(judged, labelled, 0.0, budget, 0.0)
    alerts = finds.sum(axis=1) + np.array(wrong)
    rules = len(finds)
    best = max(
        finds[list(some)].any(axis=0).sum() for size in range(rules + 1) for some in combinations(range(rules), size)
        if alerts[list(some)].sum() <= budget
    )  # fmt: skip
    stay = [int(name[1:]) for name in pruned.stay]
    assert pruned.alerts_after == alerts[stay].sum() <= budget
    assert (1 - exp(-0.5)) * best <= pruned.frauds_after == finds[stay].any(axis=0).sum() <= best
    assert all(finds[[r for r in stay if r != removed]].any(axis=0).sum() < pruned.frauds_after for removed in stay)
    assert {each.rule for each in pruned.removed} | {*pruned.stay} == {*judged.names}


def test_a_hundred_redundant_rules_become_thirty() -> None:
    """Thirty kinds of fraud, each with a rule that finds all of it, and seventy rules that find parts of a kind."""
    draw = np.random.default_rng(1)
    kinds = np.repeat(np.eye(30, dtype=bool), 10, axis=1)
    parts = kinds[draw.integers(0, 30, 70)] & (draw.random((70, 300)) < 0.7)
    judged, labelled = judged_by(np.concatenate([parts, kinds]), [2] * 70 + [1] * 30)
    pruned = prune(judged, labelled)
    assert (len(pruned.stay), len(pruned.removed)) == (30, 70)
    assert pruned.frauds_after == pruned.frauds_before == 300
    assert pruned.wrong_after == 30


@given(_cases(), st.sampled_from([0.05, 0.2, 0.7]))
def test_no_rule_stays_that_costs_more_than_it_adds(case: tuple[np.ndarray, list[int]], cost: float) -> None:
    finds, wrong = case
    judged, labelled = judged_by(finds, wrong)
    alerts = finds.sum(axis=1) + np.array(wrong)

    def worth(some: list[int]) -> float:
        return float(finds[some].any(axis=0).sum() - cost * alerts[some].sum()) if some else 0.0

    free, priced = (prune(judged, labelled, alert_cost=each) for each in (0.0, cost))
    stay = [int(name[1:]) for name in priced.stay]
    assert all(worth([index for index in stay if index != out]) <= worth(stay) + 1e-9 for out in stay)
    assert worth(stay) >= worth([int(name[1:]) for name in free.stay]) - 1e-9
    assert priced.alert_cost == cost


def test_a_rule_of_false_alerts_goes_by_default() -> None:
    """One rule finds 900 frauds with 100 wrong alerts; another adds 42 with 19 355 wrong ones. A third is in shadow."""
    finds = np.zeros((3, 1_000), np.bool_)
    finds[0, :900] = finds[1, 900:942] = finds[2, 950:] = True
    judged, labelled = judged_by(finds, [100, 19_355, 0])
    pruned = prune(judged, labelled, spared=["r2"])
    assert pruned.stay == ("r0",)
    assert [(each.rule, each.adds) for each in pruned.removed] == [("r1", 42)]
    assert prune(judged, labelled, alert_cost=0.0, spared=["r2"]).stay == ("r0", "r1")
    good = judged_by(np.eye(3, dtype=np.bool_), [0, 0, 1])
    assert set(prune(*good).stay) == {"r0", "r1", "r2"}, "rules of nearly the same precision all stay"
