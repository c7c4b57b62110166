"""The yardstick of the detection benchmarks: figures by hand, and the simulator's kinds of fraud.

Frauds planted into honest months: every kind exists among honest events, and a seed repeats its result.
"""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cep.analysis.backtest import TimePart
from cep.analysis.labelled_events import LabelledEvents
from tests.bench.baselines import Alerts, best_limit, card_precision, figures, lacking, matrix, of_events
from tests.bench.planted import FIELDS, planted
from tests.bench.simulated_data import START_MS, TYPOLOGIES, simulated, simulated_transfers

DAY_MS = 86_400_000


def test_card_precision_takes_the_highest_of_a_card_and_looks_at_a_compromised_one_once() -> None:
    """Two cards a day. Day 0 has a, which is bad, and b. On day 1 a is left out; of c and b, c is bad."""
    day = np.array([0, 0, 0, 0, 1, 1, 1], np.float64)
    customer = np.array([1, 1, 2, 3, 1, 2, 3], np.float64)
    bad = np.array([1, 0, 0, 0, 1, 0, 1], bool)
    score = np.array([0.1, 0.9, 0.8, 0.7, 0.9, 0.2, 0.3])
    assert card_precision(day, customer, bad, score, 2) == (0.5, 0.5)
    assert card_precision(day, customer, bad, -score, 1) == (0.5, 1.0), "card 1 has the highest of the first day"


def marks_of(fraud: list[int], kinds: tuple[str, ...]) -> LabelledEvents:
    count = len(kinds)
    times = np.arange(len(fraud)) * DAY_MS
    first = np.array([times[fraud.index(number)] for number in range(count)])
    return LabelledEvents(
        np.array(fraud, np.int32), np.ones(len(fraud), bool), kinds, np.ones(count), first, first, len(fraud) * DAY_MS,
        0, 0, 0, 0, np.zeros(len(fraud)), np.arange(len(fraud)),
    )  # fmt: skip


def test_figures_of_a_part_by_hand() -> None:
    """Days 2 to 5 count. Two of three alerts are right; fraud 1 is detected 3 days early, fraud 2 is missed."""
    labelled = marks_of([0, -1, 1, -1, 2, 1], ("x", "x", "y"))
    times = np.arange(6) * DAY_MS
    part = TimePart("test", 2 * DAY_MS, 6 * DAY_MS, labelled.first_ms >= 2 * DAY_MS, labelled, 4.0)
    spell = np.array([-1, -1, 0, -1, 1, 0])
    alerts = of_events(np.array([0, 2, 3, 5]), times, labelled)
    value = figures(alerts, labelled, part, spell, times)
    assert (value.alerts, value.precision, value.recall) == (3, 2 / 3, 0.5)
    assert value.by_kind == {"x": 1.0, "y": 0.0}
    assert value.days_ahead == 3.0
    both = Alerts(times[[2]], np.array([True]), np.array([0, 0]), np.array([2, 3]))
    assert figures(both, labelled, part, spell, times).precision == 1.0, "an alert that binds two events is one"
    assert best_limit(np.array([0.1, 0.2, 0.9, 0.3, 0.8, 0.7]), np.arange(6), labelled, part, times) == 0.7


def test_a_part_without_an_event_or_a_fraud_is_named() -> None:
    """Days 2 and 3 have no event, and no fraud begins on days 4 and 5."""
    times = np.array([0, 1, 4, 5]) * DAY_MS
    first = np.array([0, 1, 2]) * DAY_MS
    parts = [
        TimePart(
            name, low * DAY_MS, high * DAY_MS, (first >= low * DAY_MS) & (first < high * DAY_MS), marks_of([], ()), 2.0
        )
        for name, low, high in (("train", 0, 2), ("validation", 2, 4), ("test", 4, 6))
    ]
    assert lacking(parts, times) == ["validation", "test"]
    assert lacking(parts[:1], times) == []


def test_columns_become_numbers() -> None:
    when = pa.array([START_MS], pa.timestamp("ms", "UTC"))
    row = matrix([pa.array(["b"]), when, pa.array([2.5]), pa.array([None], pa.float64())])
    assert row[0, :4].tolist() == [0.0, 6.0, 0.0, 2.5], "the first of April 2018 was a Sunday"
    assert np.isnan(row[0, 4])


def test_the_simulator_plants_what_the_book_says() -> None:
    payments = simulated(1, 60, 120, 30)
    assert payments.equals(simulated(1, 60, 120, 30))
    times = payments["event_time"].cast(pa.int64()).to_numpy()
    assert (np.diff(times) >= 0).all()
    kind, amount = payments["fraud_scenario"].to_numpy(), payments["amount"].to_numpy()
    assert set(kind.tolist()) >= {0, 2, 3}
    assert (kind[amount > 220] > 0).all()
    assert pc.all(pc.equal(payments["is_fraud"], pc.greater(payments["fraud_scenario"], 0))).as_py()
    assert np.median(amount[kind == 3]) > 3 * np.median(amount[kind == 0])


def test_money_is_laundered_as_its_typology_says() -> None:
    """A cycle comes back to its first account, less at each step; scattered money is gathered in the same sums."""
    transfers = simulated_transfers(2, 300, 90, 4)
    assert transfers.equals(simulated_transfers(2, 300, 90, 4))
    times = transfers["event_time"].cast(pa.int64()).to_numpy()
    assert (np.diff(times) >= 0).all()
    rows = transfers.filter(transfers["is_sar"]).to_pylist()
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["alert_id"], []).append(row)
    assert Counter(each[0]["typology"] for each in groups.values()) == dict.fromkeys(TYPOLOGIES, 4)
    for each in groups.values():
        sums, payers, payees = (
            [row[name] for row in each] for name in ("amount", "orig_account_id", "dest_account_id")
        )
        match each[0]["typology"]:
            case "cycle":
                assert payees == [*payers[1:], payers[0]]
                assert sums == sorted(sums, reverse=True)
            case "scatter_gather":
                half = len(each) // 2
                assert (payees[:half], sums[:half]) == (payers[half:], sums[half:])
                assert len({*payers[:half], *payees[half:]}) == 2
            case "fan_in":
                assert (len({*payees}), len({*payers})) == (1, len(each))
            case "gather_scatter":
                hub = payees[0]
                out = [amount for amount, payer in zip(sums, payers, strict=True) if payer == hub]
                assert sum(out) == pytest.approx(0.9 * (sum(sums) - sum(out)), abs=0.1)


@pytest.mark.parametrize("name", FIELDS)
def test_a_set_has_frauds_of_each_kind_among_honest_events(name: str) -> None:
    field = FIELDS[name]
    events, labels = planted(name, 1, banks=1)
    assert set(events["event_type"].to_pylist()) == {field.event_type}
    ids = events[field.id].to_pylist()
    assert len(set(ids)) == len(ids)
    assert set(labels["event_id"].to_pylist()) <= set(ids)
    times = events["event_time"]
    assert times.to_pylist() == sorted(times.to_pylist())
    is_honest = pc.invert(pc.starts_with(events[field.id], "planted"))
    assert pc.max(times) == pc.max(times.filter(is_honest)), "a fraud that goes on for long would stretch the history"
    of_kind = Counter(dict(zip(labels["episode"].to_pylist(), labels["kind"].to_pylist(), strict=True)).values())
    assert of_kind == dict.fromkeys(field.kinds, field.of_each)
    assert pc.mean(pc.starts_with(events[field.id], "planted")).as_py() < 0.7


def test_a_good_month_before_a_bust_out_is_no_fraud() -> None:
    events, labels = planted("lending", 1, banks=1)
    loans = events.filter(pc.is_in(events["loan_event_id"], labels["event_id"].combine_chunks()))
    assert "bust_out" in labels["kind"].to_pylist()
    assert events.filter(pc.starts_with(events["loan_event_id"], "planted")).num_rows > loans.num_rows


def test_the_same_from_a_seed_and_another_from_the_next() -> None:
    first, again, other = (planted("wallets", seed, banks=1)[0] for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)
