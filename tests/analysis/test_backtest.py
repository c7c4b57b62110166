"""Compare every figure of a backtest with DuckDB's, over the same alerts, events and labels."""

from __future__ import annotations

from itertools import combinations
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from rich.console import Console

from cep.analysis.backtest import ALL, Figures, ratio
from cep.analysis.labels import labels_of_column, labels_of_table
from cep.analysis.measure import Measured, Terms, amount_field, measure
from cep.base.errors import UsageError
from cep.lang.load import load_text
from tests.analysis import oracle
from tests.analysis.bench_data import DAY_MS, NAMES, START_MS, deployed, payments, pieces_of

SILENT = Console(quiet=True)


def measured_by(seed: int, folder: Path, terms: Terms) -> tuple[Measured, pa.Table, pa.Table]:
    events, labels = payments(seed)
    deployment = deployed()
    read = labels_of_table(labels, deployment.schema, "labels")
    return measure(deployment, lambda _: pieces_of(events, folder), read, terms, SILENT), events, labels


def as_oracle(each: Figures) -> dict[str, Any]:
    return {
        "alerts": each.alerts, "keys": each.keys, "right": each.right, "immature": each.immature,
        "found_events": each.event_recall.part, "bad_events": each.event_recall.whole,
        "found_frauds": each.fraud_recall.part, "frauds": each.fraud_recall.whole,
        "money_found": pytest.approx(each.money_found), "money_after_alert": pytest.approx(each.money_after_alert),
        "money_missed": pytest.approx(each.money_missed),
        "seconds_to_alert": each.seconds_to_alert, "seconds_ahead": each.seconds_ahead,
        "adds": each.adds, "share": pytest.approx(each.share),
    }  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("terms", [Terms(), Terms(as_of_ms=START_MS + 13 * DAY_MS, maturity_ms=5 * DAY_MS)])
def test_figures_are_those_of_duckdb(seed: int, terms: Terms, tmp_path: Path) -> None:
    measured, events, labels = measured_by(seed, tmp_path, terms)
    alerts, marks, test = measured.history.replayed.alerts, measured.marks, measured.figures
    assert alerts.num_rows > 30
    views = oracle.views(alerts, events, labels, marks.as_of_ms, marks.maturity_ms)
    assert [each.rule for each in test.rules] == list(NAMES)
    for each in (*test.rules, test.together):
        expected = oracle.figures(views, None if each.rule == ALL else each.rule)
        base = expected["bad_events"] / expected.pop("events")
        if each.rule == ALL:
            expected["adds"] = None
        else:
            for share, groups in ((each.key_precision, "key"), (each.case_precision, "key, n")):
                assert (share.part, share.whole) == oracle.group_precision(views, each.rule, groups)
        assert expected == as_oracle(each)
        assert each.wrong == each.alerts - each.right - each.immature
        assert each.precision == ratio(each.right, each.right + each.wrong)
        if each.alerts:
            assert each.lift == pytest.approx(each.right / (each.right + each.wrong) / base)
            assert each.repeat_rate == 1 - each.keys / each.alerts
        for kind, recall in each.recall_by_kind.items():
            whole = views.sql(f"select count(*) from kinds where kind = '{kind}'").fetchall()[0][0]
            assert recall.whole == whole
    days = views.sql("select count(distinct t // 86400000) from e").fetchall()[0][0]
    assert test.about["days"] == days
    assert test.together.alerts_per_day == test.together.alerts / days
    by_day = views.sql("""select strftime(make_timestamp(t * 1000), '%Y-%m-%d') as day, rule_id as rule,
        count(*) filter (is_right) as "right", count(*) filter (not is_right and not is_immature) as wrong,
        count(*) filter (is_immature) as immature from d group by all order by day, rule""")
    assert [tuple(row.values()) for row in test.days] == by_day.fetchall()
    sets = views.sql("""select count(*) from (select fraud, list(rule_id order by rule_id) as rules from hit
        group by 1) group by rules order by 1 desc""").fetchall()
    assert sorted((row["frauds"] for row in test.overlap if row["rules"]), reverse=True) == [n for (n,) in sets]
    if terms.as_of_ms is not None:
        assert test.together.immature > 0
        assert test.about["labels_reported_later"] > 0


def test_keys_with_a_fraud(tmp_path: Path) -> None:
    measured, events, labels = measured_by(3, tmp_path, Terms())
    marks = measured.marks
    views = oracle.views(measured.history.replayed.alerts, events, labels, marks.as_of_ms, marks.maturity_ms)
    (small_large,) = (each for each in measured.figures.rules if each.rule == "small_large")
    right = views.sql("select count(distinct key) from d where is_right and rule_id = 'small_large'").fetchall()[0][0]
    whole = views.sql("select count(distinct card_id) from f").fetchall()[0][0]
    assert small_large.key_recall == ratio(right, whole)
    assert measured.figures.together.key_recall is None, "cards and shops are no keys of one kind"


def test_the_share_is_shapleys_value(tmp_path: Path) -> None:
    """The definition: the frauds that a rule adds, averaged over all orders in which rules can come."""
    measured, _, _ = measured_by(4, tmp_path, Terms())
    finds = {name: set(row.nonzero()[0]) for name, row in zip(NAMES, measured.judged.has_detected, strict=True)}
    for each in measured.figures.rules:
        others, value = [name for name in NAMES if name != each.rule], 0.0
        for size in range(len(others) + 1):
            weight = factorial(size) * factorial(len(others) - size) / factorial(len(NAMES))
            for members in combinations(others, size):
                before = set().union(*(finds[name] for name in members))
                value += weight * len(finds[each.rule] - before)
        assert each.share == pytest.approx(value)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (orjson.dumps(measured_by(5, tmp_path, Terms())[0].figures.to_json()) for _ in range(2))
    assert first == second


def test_a_column_counts_as_labels_of_events(tmp_path: Path) -> None:
    events, _ = payments(6)
    deployment = deployed("large")
    labels = labels_of_column([events], "is_fraud", deployment.schema)
    measured = measure(deployment, lambda _: pieces_of(events, tmp_path), labels, Terms(episode_gap_ms=0), SILENT)
    bad = {row["tx_id"] for row in events.to_pylist() if row["is_fraud"]}
    (large,) = measured.figures.rules
    alerts = measured.history.replayed.alerts.to_pylist()
    assert large.right == sum(alert["events"][0]["event_id"] in bad for alert in alerts)
    assert large.event_recall == large.fraud_recall == ratio(large.right, len(bad))


def test_wilsons_interval() -> None:
    """The published example: 81 of 263 gives 0.2553 to 0.3662 (Newcombe 1998); the edges stay within 0 and 1."""
    share = ratio(81, 263)
    assert (round(share.low or 0, 4), round(share.high or 0, 4)) == (0.2553, 0.3662)
    assert ratio(0, 0).value is None
    for whole in range(1, 50):
        for part in (0, whole):
            share = ratio(part, whole)
            assert 0 <= (share.low or 0) <= part / whole <= (share.high or 0) <= 1


def test_an_amount_that_is_no_number_is_refused() -> None:
    schema = deployed().schema
    assert amount_field(schema, None) == "amount"
    with pytest.raises(UsageError, match="--amount shop is no field of numbers"):
        amount_field(schema, "shop")
    drafts = {"Betrag decimal(2)  hour int": "Betrag", "fee float  paid float": None, "fee bool": None}
    for fields, field in drafts.items():
        schema = load_text(f"event pay {{ tx_id id  event_time time  {fields} }}").schema
        assert amount_field(schema, None) == field


@pytest.mark.parametrize("gap_ms", [3_600_000, DAY_MS])
def test_labels_of_a_column_are_one_fraud_by_key_and_gap(gap_ms: int, tmp_path: Path) -> None:
    events, _ = payments(7)
    deployment = deployed("large")
    labels = labels_of_column([events], "is_fraud", deployment.schema)
    terms = Terms(episode_gap_ms=gap_ms)
    measured = measure(deployment, lambda _: pieces_of(events, tmp_path), labels, terms, SILENT)
    rows = sorted((row["card_id"], row["event_time"].timestamp() * 1_000, row["amount"])
                  for row in events.to_pylist() if row["is_fraud"])  # fmt: skip
    episodes: list[list[float]] = []
    before: tuple[str, float] = ("", 0.0)
    for card, time_ms, amount in rows:
        if card != before[0] or time_ms - before[1] > gap_ms:
            episodes.append([])
        episodes[-1].append(amount)
        before = (card, time_ms)
    marks = measured.marks
    assert 0 < marks.frauds_count == len(episodes) < len(rows)
    assert sorted(marks.amount.tolist()) == pytest.approx(sorted(map(sum, episodes)))
    assert marks.money.sum() == pytest.approx(marks.amount.sum())


def test_a_report_that_comes_early_counts_no_more_than_one_that_is_missing(tmp_path: Path) -> None:
    """Alerts are as precise among recent events as among old ones, whether or not the recent frauds are reported."""
    events, labels = payments(8)
    is_bad = np.array([row["label"] for row in labels.to_pylist()])
    prompt = labels.set_column(
        labels.column_names.index("reported_at"), "reported_at",
        pa.array([START_MS + 13 * DAY_MS if bad else START_MS + 40 * DAY_MS for bad in is_bad], pa.int64()),
    )  # fmt: skip
    deployment = deployed("large")
    terms = Terms(as_of_ms=START_MS + 20 * DAY_MS, maturity_ms=5 * DAY_MS)
    read = labels_of_table(prompt, deployment.schema, "labels")
    measured = measure(deployment, lambda _: pieces_of(events, tmp_path), read, terms, SILENT)
    bad = {row["event_id"] for row in labels.to_pylist() if row["label"]}
    times = dict(zip(events["tx_id"].to_pylist(), events["event_time"].to_pylist(), strict=True))
    old = [
        event["event_id"] in bad for alert in measured.history.replayed.alerts.to_pylist() for event in alert["events"]
        if times[event["event_id"]].timestamp() * 1_000 <= START_MS + 15 * DAY_MS
    ]  # fmt: skip
    (large,) = measured.figures.rules
    assert large.precision == ratio(sum(old), len(old))
    assert large.immature == large.alerts - len(old) > 0
    assert measured.figures.about["fraud_events_immature"] > 0


def test_an_old_event_does_not_lengthen_the_days(tmp_path: Path) -> None:
    events, labels = payments(9, days=3)
    old = events.slice(0, 1).set_column(0, "tx_id", pa.array(["old"])).set_column(
        1, "event_time", pa.array([START_MS - 296 * DAY_MS], pa.timestamp("ms", "UTC"))
    )  # fmt: skip
    deployment = deployed("large")
    read = labels_of_table(labels, deployment.schema, "labels")
    both = pa.concat_tables([old, events])
    measured = measure(deployment, lambda _: pieces_of(both, tmp_path), read, Terms(), SILENT)
    assert measured.figures.about["days"] == 4
    assert measured.figures.together.alerts_per_day == measured.figures.together.alerts / 4
