"""Tuning finds planted thresholds, with evidence."""

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from cep.analysis import sweep
from cep.analysis.backtest import check_frauds, judge, parts_of_time, whole_time
from cep.analysis.labels import labels_of_column, labels_of_table
from cep.analysis.measure import Terms, measure
from cep.analysis.tune import Aim, Objective, Tuned, compare, tune
from cep.base.errors import UsageError
from cep.base.limits import TIME_MS_MAX
from cep.lang.ir import PatternIR
from cep.lang.load import load_text
from cep.lists.store import ListStore
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from tests.analysis.bench_data import DAY_MS, SOURCE, START_MS, events_table, payments
from tests.bench.peer_data import upsert
from tests.seeds import seeds

# Tuning finds planted thresholds, and a combination of results equals a replay of every setting.

SILENT = Console(quiet=True)
PATTERNS = (
    SOURCE
    + """
pattern spend(large: decimal = 100.00, least: int = 1, times: float = 1.0, back: duration = 5 d) by card_id {
  seq    hit
  where  hit: pay  amount > large and count(pay over 1 d) >= least
                   and amount > times * avg(pay.amount over previous back)
}
pattern planted(large: decimal = 100.00, least: int = 1) by card_id {
  seq    hit
  where  hit: pay  amount > large and count(pay over 1 d) >= least
}
pattern pair(small: decimal = 5.00, large: decimal = 300.00, window: duration = 2 h) by card_id {
  seq    a ->> b  within window
  where  a: pay  amount < small
         b: pay  amount > large
  skip   none
}
pattern probes(small: decimal = 100.00, large: decimal = 200.00) by card_id {
  seq    a{2,} greedy -> b  within 1 d
  where  a: pay  amount < small
         b: pay  amount > large
  skip   past last
}
pattern both(small: decimal = 5.00, large: decimal = 300.00) by card_id {
  seq    a -> b  within 2 h
  where  a: pay  amount < small
         b: pay  amount - small > large
}
"""
)


def bench_of(
    name: str, events: pa.Table, folder: Path, params: Mapping[str, Any]
) -> tuple[sweep.Replayer, PatternIR, PatternIR]:
    """Return a bench on these events, the pattern with open parameters, and the bound pattern."""
    path = folder / "events.parquet"
    pq.write_table(events, path)
    record = upsert(PATTERNS, name).model_copy(update={"params": dict(params)})
    deployment = deploy([record])
    labels = labels_of_column([events], "is_fraud", deployment.schema)
    pieces_of = partial(read_pieces, path)
    measured = measure(deployment, pieces_of, labels, Terms(episode_gap_ms=0), SILENT)
    parts = parts_of_time(measured.history.events, measured.labelled, DAY_MS // 2, measured.labelled_at)
    bench = sweep.Replayer(record, ((), ListStore()), pieces_of, measured.labelled, parts, 2, SILENT)
    (rule,) = deployment.rulebook.deployed()
    return bench, load_text(PATTERNS, "p").patterns[name], rule.pattern


def planted(seed: int) -> pa.Table:
    """Return payments that are fraud exactly if they are over 450 and at least the card's third within a day."""
    draw = random.Random(seed)
    times: dict[str, list[int]] = {}
    rows = []
    for number in range(2_500):
        card, time_ms = f"c{draw.randrange(60)}", START_MS + number * 20 * DAY_MS // 2_500
        recent = times.setdefault(card, [])
        recent.append(time_ms)
        amount = draw.randrange(100_000) / 100
        is_fraud = amount > 450 and sum(time_ms - recent_ms < DAY_MS for recent_ms in recent) >= 3
        rows.append({"tx_id": f"t{number}", "event_time": time_ms, "card_id": card, "shop": "s", "amount": amount,
                     "is_fraud": is_fraud})  # fmt: skip
    return events_table(rows)


def equal(first: tuple[sweep.Scores, ...], second: tuple[sweep.Scores, ...]) -> bool:
    return all(
        np.allclose(getattr(one, name), getattr(other, name))
        for one, other in zip(first, second, strict=True) for name in sweep.Scores._fields
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "params", "tries"),
    [
        ("spend", {"large": 100.0, "least": 1, "times": 1.0, "back": "5 d"},
         {"large": "50..400/4", "least": "1,2,3", "times": "0.5,1,2,3", "back": "2 d,5 d"}),
        ("pair", {"small": 5.0, "large": 300.0, "window": "2 h"},
         {"small": "2,3,50,100", "large": "100..500/5", "window": "1 h,6 h"}),
    ],
)  # fmt: skip
def test_combinations_equal_a_replay_of_each(
    name: str, params: Mapping[str, Any], tries: Mapping[str, str], tmp_path: Path
) -> None:
    bench, pattern, bound = bench_of(name, payments(1)[0], tmp_path, params)
    axes = sweep.axes_of(pattern, params, tries)
    assert sweep.is_divisible(pattern, bound, axes)
    combined = sweep.combined_scores(bench, axes)
    assert combined is not None
    scores, replays = combined
    settings = sweep.every_setting(axes)
    assert replays < len(settings)
    assert scores[0].alerts.max() > scores[0].alerts.min()
    assert equal(scores, sweep.replayed_scores(bench, settings))


def tuned(
    name: str, events: pa.Table, folder: Path, params: Mapping[str, Any], tries: Mapping[str, str], aim: Aim
) -> Tuned:
    bench, pattern, bound = bench_of(name, events, folder, params)
    return tune(bench, pattern, bound, sweep.axes_of(pattern, params, tries), aim)


def test_planted_thresholds_are_found(tmp_path: Path) -> None:
    params = {"large": 100.0, "least": 1}
    best = tuned("planted", planted(1), tmp_path, params, {"large": "50..900/18", "least": "1..6/6"}, Aim("f1"))
    assert (best.way, best.settings_count) == ("combined", 108)
    assert best.proposed == best.candidate == {"large": 450.0, "least": 3}
    assert best.outcome == "better"
    assert [row.f1 for row in best.candidate_rows] == [1.0, 1.0, 1.0]
    assert best.present_rows[2].f1 < 0.7
    assert best.test[0].high < best.test[1].low
    assert 0.3 < best.difference.low < best.difference.value < best.difference.high
    assert [(part.name, part.since < part.until, part.frauds > 0) for part in best.parts] == [
        ("train", True, True), ("validation", True, True), ("test", True, True),
    ]  # fmt: skip
    assert {len(column) for column in best.tried.values()} == {best.settings_count}


def test_without_a_threshold_each_setting_is_replayed(tmp_path: Path) -> None:
    params = {"large": 100.0, "least": 1, "times": 1.0, "back": "5 d"}
    best = tuned("spend", payments(1)[0], tmp_path, params, {"back": "2 d,5 d"}, Aim("f1"))
    assert (best.way, best.tried["back"]) == ("replayed", ["2 d", "5 d"])


@pytest.mark.parametrize("objective", ["f1", "recall", "money"])
def test_where_runs_take_events_from_each_other_all_are_replayed(objective: Objective, tmp_path: Path) -> None:
    """The best setting on train is the best of all replays there, within the budget."""
    params = {"small": 100.0, "large": 200.0}
    tries = {"small": "50,100,250", "large": "100..500/3"}
    aim = Aim(objective, budget=3.0, review_cost=10.0)
    bench, pattern, bound = bench_of("probes", payments(2)[0], tmp_path, params)
    axes = sweep.axes_of(pattern, params, tries)
    assert not sweep.is_divisible(pattern, bound, axes)
    best = tune(bench, pattern, bound, axes, aim)
    assert (best.way, best.settings_count, best.replayed_count) == ("replayed", 10, 10), "and the present setting"
    assert all(row.alerts_per_day <= 3.0 for row in best.candidate_rows[:1])
    train = sweep.replayed_scores(bench, sweep.every_setting(axes))[0]
    fits = train.alerts <= 3.0 * bench.parts[0].days
    recall = train.frauds / bench.parts[0].frauds.sum()
    assert best.candidate_rows[0].recall.value is not None
    assert best.candidate_rows[0].recall.value <= recall[fits].max()


def test_along_the_axes_ends_no_worse_than_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.analysis.tune.TUNE_REPLAYED_MAX", 5)
    params = {"small": 100.0, "large": 200.0}
    best = tuned("probes", payments(2)[0], tmp_path, params, {"small": "50,100,250", "large": "100..500/3"}, Aim("f1"))
    assert best.way == "along the axes"
    assert best.candidate_rows[0].f1 >= best.present_rows[0].f1


AXES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, str]]] = {
    "spend": ({"large": 50.0, "least": 1, "times": 1.0, "back": "5 d"}, {"large": "50..400/5", "least": "1,2,3"}),
    "pair": ({"small": 3.0, "large": 300.0, "window": "2 h"}, {"small": "2,3,50,100", "large": "100..500/5"}),
}


def best_of_replays(bench: sweep.Replayer, axes: tuple[sweep.Axis, ...], aim: Aim) -> Mapping[str, Any]:
    """Return the setting of a proposal, by scores that are computed here from single replays."""
    rows = []
    for setting in sweep.every_setting(axes):
        parts = sweep.replayed_scores(bench, [setting], at_once=1)
        values = []
        for part, scores in zip(bench.parts, parts, strict=True):
            alerts, right, frauds = int(scores.alerts[0]), int(scores.right[0]), int(scores.frauds[0])
            precision = right / max(1, alerts - int(scores.immature[0]))
            recall = frauds / max(1, int(part.frauds.sum()))
            f1 = 2 * precision * recall / (precision + recall) if frauds else 0.0
            money = float(scores.money[0]) - aim.review_cost * alerts
            value = {"f1": f1, "recall": recall, "money": money}[aim.objective]
            is_over = aim.budget is not None and alerts / part.days > aim.budget
            values.append(-np.inf if is_over else round(value, 6))
        rows.append((setting, values[0], values[1], int(parts[0].alerts[0])))
    few = sorted((row for row in rows if row[1] > -np.inf), key=lambda row: (-row[1], row[3]))
    assert any(row[1] == -np.inf for row in rows) == (aim.budget is not None), "a budget is too small for some settings"
    present = {axis.name: bench.record.params[axis.name] for axis in axes}
    before = next((row for row in rows if row[0] == present), None)
    assert before is not None, "the present setting is among those to try"
    best = max([row for row in few if row[1] > before[1]][:10], key=lambda row: row[2], default=before)
    return best[0] if best[2] > before[2] or before[1] == -np.inf else present


@pytest.mark.parametrize("budget", [None, 4.0])
@pytest.mark.parametrize("objective", ["f1", "recall", "money"])
@pytest.mark.parametrize("name", ["spend", "pair"])
def test_the_proposal_is_the_optimum_of_all_replays(
    name: str, objective: Objective, budget: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Combined or replayed one by one, tuning proposes the same setting: the best of an exhaustive search."""
    params, tries = AXES[name]
    aim = Aim(objective, budget, review_cost=20.0)
    bench, pattern, bound = bench_of(name, payments(1)[0], tmp_path, params)
    axes = sweep.axes_of(pattern, params, tries)
    combined = tune(bench, pattern, bound, axes, aim)
    monkeypatch.setattr("cep.analysis.tune.is_divisible", lambda *_: False)
    replayed = tune(bench, pattern, bound, axes, aim)
    assert (combined.way, replayed.way) == ("combined", "replayed")
    assert combined.candidate == replayed.candidate == best_of_replays(bench, axes, aim)
    assert combined.candidate_rows == replayed.candidate_rows
    assert combined.proposed == (combined.candidate if combined.outcome in ("better", "within the budget")
                                 else combined.present)  # fmt: skip


def ebbing() -> pa.Table:
    """Return payments of 200 every hour of the first twelve days, then none; each day two frauds, of 200 and of 500."""
    rows = [
        {"event_time": START_MS + hour * 3_600_000, "card_id": f"c{hour % 7}", "amount": 200.0, "is_fraud": False}
        for hour in range(12 * 24)
    ] + [
        {"event_time": START_MS + day * DAY_MS + offset_ms, "card_id": f"b{day}", "amount": amount, "is_fraud": True}
        for day in range(20)
        for offset_ms, amount in ((1, 200.0), (2, 500.0))
    ]  # fmt: skip
    return events_table([{"tx_id": f"t{number}", "shop": "s", **row} for number, row in enumerate(rows)])


def test_no_setting_over_the_budget_on_train_is_proposed(tmp_path: Path) -> None:
    """With 100, all frauds of validation are found within the budget, but train has 26 alerts a day."""
    params, tries = {"large": 450.0, "least": 1}, {"large": "100,450,600"}
    best = tuned("planted", ebbing(), tmp_path, params, tries, Aim("recall", budget=5.0))
    assert best.proposed == {"large": 450.0}
    assert best.candidate_rows[0].alerts_per_day == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("replayed_max", [256, 1])
def test_where_no_setting_keeps_to_the_budget_it_says_what_comes_closest(
    replayed_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The present setting is not called the best one if it is over the budget too."""
    monkeypatch.setattr("cep.analysis.tune.is_divisible", lambda *_: False)
    monkeypatch.setattr("cep.analysis.tune.TUNE_REPLAYED_MAX", replayed_max)
    params, tries = {"large": 450.0, "least": 1}, {"large": "100,450"}
    with pytest.raises(UsageError, match=r"budget of 0\.5 alerts a day on train; .* 1\.1 a day, with large=450\.0;"):
        tuned("planted", ebbing(), tmp_path, params, tries, Aim("recall", budget=0.5))


def test_along_the_axes_goes_towards_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One parameter alone does not keep the budget. The search goes through fewer alerts that are still too many."""
    monkeypatch.setattr("cep.analysis.tune.is_divisible", lambda *_: False)
    monkeypatch.setattr("cep.analysis.tune.TUNE_REPLAYED_MAX", 1)
    params, tries = {"small": 250.0, "large": 100.0}, {"small": "2,60,250", "large": "100,320,500"}
    events = payments(2)[0]
    bench, pattern, bound = bench_of("probes", events, tmp_path, params)
    train = sweep.replayed_scores(bench, sweep.every_setting(sweep.axes_of(pattern, params, tries)))[0]
    days = bench.parts[0].days
    budget = float(np.sort(train.alerts)[1]) / days
    best = tune(bench, pattern, bound, sweep.axes_of(pattern, params, tries), Aim("recall", budget=budget))
    assert best.candidate_rows[0].alerts_per_day <= budget
    assert best.outcome == "within the budget"


def test_thresholds_know_their_direction() -> None:
    pattern = load_text(PATTERNS, "p").patterns
    spend = sweep.axes_of(
        pattern["spend"], {"large": 100.0, "least": 1, "times": 1.0}, {"large": "3,1", "back": "2 d,1 d"}
    )
    assert spend == (sweep.Axis("large", (1.0, 3.0), True), sweep.Axis("back", ("2 d", "1 d"), False))
    (small, _) = sweep.axes_of(pattern["pair"], {"small": 8.0, "large": 100.0}, {})
    assert (small.values[0], small.values[-1], len(small.values)) == (32.0, 2.0, 21), "larger lets more through"
    (times,) = sweep.axes_of(pattern["spend"], {"times": 1.0}, {"times": "1.23456,1"})
    assert times.values == (1.0, 1.23456), "a value is tried as it is written"
    (times,) = sweep.axes_of(pattern["spend"], {"times": 1.0}, {"times": "1000.1..1000.3/3"})
    assert times.values == (1000.1, 1000.2, 1000.3)
    both = sweep.axes_of(pattern["both"], {}, {"small": "1,2", "large": "3,4"})
    assert [axis.is_threshold for axis in both] == [False, True], "`small` loosens one condition and tightens the other"


def test_a_parameter_that_is_not_tried_has_a_reason() -> None:
    spend = load_text(PATTERNS, "p").patterns["spend"]
    present: dict[str, Any] = {"large": 0.0, "least": 1, "times": 1.0, "back": "5 d"}
    axes = sweep.axes_of(spend, present, {})
    assert [axis.name for axis in axes] == ["least", "times"]
    skipped = sweep.skipped_params(spend, present, axes, {})
    assert list(skipped) == ["large", "back"]
    assert "it is 0.0" in skipped["large"]
    assert "it is a duration" in skipped["back"]
    some = sweep.axes_of(spend, present, {"least": "1,2"})
    assert set(sweep.skipped_params(spend, present, some, {"least": "1,2"}).values()) == {"--try names others"}
    both = load_text(PATTERNS, "p").patterns["both"]
    assert "not a threshold" in sweep.skipped_params(both, {"small": 5.0, "large": 300.0}, (), {})["small"]


def test_a_rule_that_suppresses_is_tuned_by_its_sent_alerts(tmp_path: Path) -> None:
    params: dict[str, Any] = {"small": 300.0, "large": 100.0, "window": "12 h"}
    tries = {"large": "100,300,500"}
    bench, pattern, bound = bench_of("pair", payments(1)[0], tmp_path, params)
    axes = sweep.axes_of(pattern, params, tries)
    plain = tune(bench, pattern, bound, axes, Aim("f1"))
    bench = replace(bench, record=bench.record.model_copy(update={"suppress": "5 d", "exclusive": "one"}))
    sent = tune(bench, pattern, bound, axes, Aim("f1"))
    assert (plain.way, sent.way) == ("combined", "replayed"), "a sent alert decides on others"
    assert 0 < sent.present_rows[0].alerts < plain.present_rows[0].alerts
    history, judged = bench.judged([{"large": 100.0}])
    alerts = history.replayed.alerts.to_pylist()
    last: dict[str, int] = {}
    sent_rows = []
    for row, alert in enumerate(alerts):
        detected_ms = int(alert["detected_at"].timestamp() * 1_000)
        if detected_ms - last.get(alert["key"], -(10**15)) >= 5 * DAY_MS:
            last[alert["key"]] = detected_ms
            sent_rows.append(row)
    assert judged.row.tolist() == sent_rows


@pytest.mark.parametrize("way", ["combined", "replayed"])
def test_each_part_has_the_labels_that_were_known_at_its_end(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fraud is reported five days later, so a part lacks the labels of frauds of its last five days."""
    events = planted(3)
    path = tmp_path / "events.parquet"
    pq.write_table(events, path)
    record = upsert(PATTERNS, "planted").model_copy(update={"params": {"large": 300.0, "least": 1}})
    deployment = deploy([record])
    bad = events.filter(events["is_fraud"])
    reported = [time.timestamp() * 1_000 + 5 * DAY_MS for time in bad["event_time"].to_pylist()]
    labels = labels_of_table(
        pa.table({"event_id": bad["tx_id"], "reported_at": pa.array(reported, pa.float64()).cast(pa.int64())}),
        deployment.schema, "labels",
    )  # fmt: skip
    pieces_of = partial(read_pieces, path)
    measured = measure(deployment, pieces_of, labels, Terms(), SILENT)
    assert measured.labelled.maturity_ms == 5 * DAY_MS
    parts = parts_of_time(measured.history.events, measured.labelled, 0, measured.labelled_at)
    bench = sweep.Replayer(record, ((), ListStore()), pieces_of, measured.labelled, parts, 2, SILENT)
    axes = sweep.axes_of(load_text(PATTERNS, "p").patterns["planted"], record.params, {"large": "300,450"})
    combined = sweep.combined_scores(bench, axes)
    assert combined is not None
    scores = combined[0] if way == "combined" else sweep.replayed_scores(bench, sweep.every_setting(axes))
    times = np.array([time.timestamp() * 1_000 for time in events["event_time"].to_pylist()])
    is_fraud, amount = np.array(events["is_fraud"]), np.array(events["amount"])
    for part, of_part in zip(parts, scores, strict=True):
        end = part.labelled.as_of_ms
        inside = (times >= part.from_ms) & (times < part.until_ms)
        counts = inside & (times <= end - 5 * DAY_MS)
        assert int(part.frauds.sum()) == int((is_fraud & counts).sum())
        for index, limit in enumerate((300.0, 450.0)):
            over = amount > limit
            assert of_part.alerts[index] == (over & inside).sum()
            assert of_part.immature[index] == (over & inside & ~counts).sum()
            assert of_part.right[index] == of_part.frauds[index] == (over & counts & is_fraud).sum()


@pytest.mark.parametrize(
    ("tries", "reason"),
    [
        ({"nobody": "1"}, "parameters are large, least"),
        ({"large": "500..100"}, "write a range like"),
        ({"large": ""}, "give values"),
        ({"large": "much"}, "could not convert"),
    ],
)
def test_what_cannot_be_tried(tries: Mapping[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        sweep.axes_of(load_text(PATTERNS, "p").patterns["planted"], {"large": 100.0, "least": 1}, tries)


def test_values_have_the_type_of_the_parameter_and_keep_its_bounds() -> None:
    head = "pattern small(large: int = 5 in 1 .. 9, only: bool = true) by card_id"
    text = f"{SOURCE}\n{head} {{ seq t  where t: pay amount > large and only }}"
    small = load_text(text, "p").patterns["small"]
    large, only = sweep.axes_of(small, {"large": 5, "only": True}, {"large": "8,9,10", "only": "true,false"})
    assert (large.values, only.values) == ((8, 9), (True, False))
    with pytest.raises(UsageError, match=r"--try large=10,20: no value is within the bounds"):
        sweep.axes_of(small, {"large": 5, "only": True}, {"large": "10,20"})


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        ({"objective": "Recall"}, "objective Recall: write one of f1, recall, money"),
        ({"objective": "money", "review_cost": float("nan")}, "review_cost nan: write a finite number"),
    ],
)
def test_what_cannot_be_aimed_at(terms: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Aim(**terms)


@pytest.mark.parametrize("earlier_days", [0, 40_000])
def test_parts_of_the_time_have_gaps(earlier_days: int, tmp_path: Path) -> None:
    events = planted(2)
    place = events.column_names.index("event_time")
    times = pc.subtract(events["event_time"].cast(pa.int64()), earlier_days * DAY_MS)  # also before 1970
    events = events.set_column(place, "event_time", times.cast(pa.timestamp("ms", "UTC")))
    bench, _, _ = bench_of("planted", events, tmp_path, {})
    train, validation, test = bench.parts
    assert validation.from_ms - train.until_ms == test.from_ms - validation.until_ms == DAY_MS // 2
    assert (train.days, validation.days, test.days) == pytest.approx((12, 3.5, 3.5), rel=0.01)
    assert [part.title.partition(" ")[0] for part in bench.parts] == ["train", "validation", "test"]
    assert not (train.frauds & validation.frauds).any()


# Tuning with evidence: planted thresholds are proposed where they are better, and noise is not.
#
# `python -m tests.analysis.test_tune` tunes 50 planted and 50 null data sets and prints the outcomes.

DAYS, LATER = 40, 40  # days for tuning, and later days for the judgement
A_DAY = 60
RULE, TRIES = "planted", {"large": "100..900/17"}
BAND_SHARE = 0.326  # of the payments in the band are fraud: half of F1, so no part of the band changes F1
SETS = 50


def payments_of(seed: int, *, is_null: bool) -> tuple[pa.Table, float]:
    """(payments, the present threshold). Every fraud is over 900 or in a band.

    Null: no threshold is better than another, for any present threshold. Half of the frauds and few other payments are
    over 900, so all settings find them. The chance of fraud in the band from 100 to 900 is half of F1, which leaves F1
    the same. Planted: a payment in the band is fraud mostly if it is over a threshold that is not the present one.
    """
    draw = np.random.default_rng(seed)
    count = (DAYS + LATER) * A_DAY
    kind = draw.choice(3, count, p=[0.7, 0.2, 0.1])  # below 100, in the band, over 900
    amount = np.where(kind == 0, draw.uniform(1, 90, count), draw.uniform(101, 899, count))
    amount = np.where(kind == 2, draw.uniform(901, 2_000, count), amount).round(2)
    if is_null:
        chance = np.array([0.0, BAND_SHARE, 0.8])[kind]
        present = float(draw.choice([150, 300, 500, 700]))
    else:
        threshold = float(draw.choice([250, 400, 600]))
        chance = np.array([0.0, 0.0, 0.7])[kind] + (kind == 1) * np.where(amount > threshold, 0.7, 0.05)
        present = float(draw.choice([150, 800]))
    times = START_MS + np.sort(draw.integers(0, (DAYS + LATER) * DAY_MS, count))
    table = pa.table({
        "tx_id": [f"t{number}" for number in range(count)],
        "event_time": pa.array(times, pa.timestamp("ms")).cast(pa.timestamp("ms", "UTC")),
        "card_id": [f"c{card}" for card in draw.integers(0, 4_000, count)],
        "shop": ["s"] * count,
        "amount": amount,
        "is_fraud": draw.random(count) < chance,
    })  # fmt: skip
    return table, present


def bench_on(table: pa.Table, present: float, folder: Path, *, is_whole: bool) -> sweep.Replayer:
    path = folder / f"{'whole' if is_whole else 'tuned'}.parquet"
    pq.write_table(table, path)
    record = upsert(PATTERNS, RULE).model_copy(update={"params": {"large": present, "least": 1}})
    deployment = deploy([record])
    labels = labels_of_column([table], "is_fraud", deployment.schema)
    pieces_of = partial(read_pieces, path)
    measured = measure(deployment, pieces_of, labels, Terms(), SILENT)
    events, labelled = measured.history.events, measured.labelled
    parts = (
        (whole_time(events, labelled),)
        if is_whole
        else parts_of_time(events, labelled, DAY_MS // 4, measured.labelled_at)
    )
    return sweep.Replayer(record, ((), ListStore()), pieces_of, labelled, parts, 1, SILENT)


def tuned_on(seed: int, folder: Path, *, is_null: bool) -> tuple[Tuned, float, float]:
    """Return the result of tuning, the difference of F1 on the days after, and the upper end of its interval."""
    table, present = payments_of(seed, is_null=is_null)
    cut = pa.scalar(START_MS + DAYS * DAY_MS, pa.int64()).cast(pa.timestamp("ms")).cast(pa.timestamp("ms", "UTC"))
    is_early = pa.compute.less(table["event_time"], cut)
    bench = bench_on(table.filter(is_early), present, folder, is_whole=False)
    pattern = load_text(PATTERNS, "p").patterns[RULE]
    bound = bench.deployment([{}]).rulebook.deployed()[0].pattern
    best = tune(bench, pattern, bound, sweep.axes_of(pattern, bench.record.params, TRIES), Aim("f1"))
    if best.proposed == best.present:
        return best, 0.0, 0.0
    later = bench_on(table.filter(pa.compute.invert(is_early)), present, folder, is_whole=True)
    history, results = later.replayed([best.present, best.proposed])
    _, _, difference = compare(judge(history, later.labelled, results), later.parts[0], "f1", 0.0)
    return best, difference.value, difference.high


@pytest.mark.parametrize("seed", seeds(SETS, inner=1))
def test_a_proposal_is_no_worse_on_later_days(seed: int, tmp_path: Path) -> None:
    best, _, high = tuned_on(seed, tmp_path, is_null=False)
    assert high >= 0, (best.present, best.proposed)


def test_noise_is_not_proposed(tmp_path: Path) -> None:
    best, _, _ = tuned_on(0, tmp_path, is_null=True)
    assert best.proposed == best.present
    assert best.outcome in ("not better", "the present setting is the best")
    assert best.settings_count == len(best.tried["large"]) == len(best.tried["validation_value"])


def test_few_of_many_null_sets_get_a_proposal(tmp_path: Path) -> None:
    proposals = [seed for seed in range(SETS) if tuned_on(seed, tmp_path, is_null=True)[0].outcome == "better"]
    assert len(proposals) <= 5, proposals


def test_a_part_without_fraud_is_refused_with_its_number(tmp_path: Path) -> None:
    table, present = payments_of(1, is_null=True)
    is_early = np.arange(table.num_rows) < 500
    column = pa.array(table["is_fraud"].to_numpy() & is_early)
    table = table.set_column(table.column_names.index("is_fraud"), "is_fraud", column)
    bench = bench_on(table, present, tmp_path, is_whole=False)
    pattern = load_text(PATTERNS, "p").patterns[RULE]
    bound = bench.deployment([{}]).rulebook.deployed()[0].pattern
    with pytest.raises(UsageError, match=r"no fraud was known in validation when it ended: train \(.*n = \d+ frauds"):
        tune(bench, pattern, bound, sweep.axes_of(pattern, bench.record.params, TRIES), Aim("f1"))
    late = [replace(part, until_ms=TIME_MS_MAX) for part in bench.parts]  # as without any event
    with pytest.raises(UsageError, match="to 9000-01-01"):
        check_frauds(late)


def test_equal_settings_differ_by_nothing(tmp_path: Path) -> None:
    table, present = payments_of(2, is_null=True)
    bench = bench_on(table, present, tmp_path, is_whole=False)
    history, results = bench.replayed([{"large": present}, {"large": present}])
    judged = judge(history, bench.parts[-1].labelled, results)
    for objective in ("f1", "recall", "money"):
        first, second, difference = compare(judged, bench.parts[-1], objective, 1.0)
        assert astuple(first) == pytest.approx(astuple(second))
        assert first.low < first.value < first.high
        assert astuple(difference) == pytest.approx((0, 0, 0), abs=1e-6)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else SETS
    with tempfile.TemporaryDirectory() as folder:
        for is_null in (False, True):
            outcomes: Counter[str] = Counter()
            worse, gains = [], []
            for seed in range(count):
                best, value, high = tuned_on(seed, Path(folder), is_null=is_null)
                outcomes[best.outcome] += 1
                if best.outcome == "better":
                    gains.append(value)
                    worse += [seed] if high < 0 else []
            print(
                f"{'null' if is_null else 'planted'}: {count} sets, {dict(outcomes)}; on the {LATER} days after, a "
                f"proposal adds {np.mean(gains) if gains else 0:+.3f} to F1 on average, {min(gains, default=0):+.3f} "
                f"at least; worse beyond chance: {worse}"
            )


if __name__ == "__main__":
    main()
