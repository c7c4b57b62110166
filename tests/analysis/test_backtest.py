"""Every figure of a backtest beside DuckDB's, over the same alerts, events and labels."""

from __future__ import annotations

from itertools import combinations
from math import factorial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from rich.console import Console

from cep.analysis.backtest import ALL, Figures, ratio
from cep.analysis.labels import labels_of_column, labels_of_table
from cep.analysis.measure import Measured, Terms, amount_field, measure
from cep.base.errors import UsageError
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
        "money_found": pytest.approx(each.money_found), "money_missed": pytest.approx(each.money_missed),
        "seconds_to_alert": each.seconds_to_alert, "seconds_ahead": each.seconds_ahead,
        "adds": each.adds, "share": pytest.approx(each.share),
    }  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("terms", [Terms(), Terms(as_of_ms=START_MS + 13 * DAY_MS, maturity_ms=5 * DAY_MS)])
def test_figures_are_those_of_duckdb(seed: int, terms: Terms, tmp_path: Path) -> None:
    measured, events, labels = measured_by(seed, tmp_path, terms)
    alerts, marks, test = measured.history.replayed.alerts, measured.marks, measured.figures
    assert alerts.num_rows > 30
    asked = oracle.views(alerts, events, labels, marks.as_of_ms, marks.maturity_ms)
    assert [each.rule for each in test.rules] == list(NAMES)
    for each in (*test.rules, test.together):
        wanted = oracle.figures(asked, None if each.rule == ALL else each.rule)
        base = wanted["bad_events"] / wanted.pop("events")
        assert wanted == as_oracle(each)
        assert each.wrong == each.alerts - each.right - each.immature
        assert each.precision == ratio(each.right, each.right + each.wrong)
        if each.alerts:
            assert each.lift == pytest.approx(each.right / (each.right + each.wrong) / base)
            assert each.repeat_rate == 1 - each.keys / each.alerts
        for kind, recall in each.recall_by_kind.items():
            whole = asked.sql(f"select count(*) from kinds where kind = '{kind}'").fetchall()[0][0]
            assert recall.whole == whole
    days = asked.sql("select max(t // 86400000) - min(t // 86400000) + 1 from e").fetchall()[0][0]
    assert test.about["days"] == days
    assert test.together.alerts_per_day == test.together.alerts / days
    by_day = asked.sql("""select strftime(make_timestamp(t * 1000), '%Y-%m-%d') as day, rule_id as rule,
        count(*) filter (is_right) as "right", count(*) filter (not is_right and not is_immature) as wrong,
        count(*) filter (is_immature) as immature from d group by all order by day, rule""")
    assert [tuple(row.values()) for row in test.days] == by_day.fetchall()
    sets = asked.sql("""select count(*) from (select fraud, list(rule_id order by rule_id) as rules from hit
        group by 1) group by rules order by 1 desc""").fetchall()
    assert sorted((row["frauds"] for row in test.overlap if row["rules"]), reverse=True) == [n for (n,) in sets]
    if terms.as_of_ms is not None:
        assert test.together.immature > 0
        assert test.about["labels_reported_later"] > 0


def test_keys_with_a_fraud(tmp_path: Path) -> None:
    measured, events, labels = measured_by(3, tmp_path, Terms())
    asked = oracle.views(measured.history.replayed.alerts, events, labels, measured.marks.as_of_ms, 0)
    (small_large,) = (each for each in measured.figures.rules if each.rule == "small_large")
    right = asked.sql("select count(distinct key) from d where is_right and rule_id = 'small_large'").fetchall()[0][0]
    whole = asked.sql("select count(distinct card_id) from f").fetchall()[0][0]
    assert small_large.key_recall == ratio(right, whole)
    assert measured.figures.together.key_recall is None, "cards and shops are no keys of one kind"


def test_the_share_is_shapleys_value(tmp_path: Path) -> None:
    """By its definition: what a rule adds, averaged over all orders in which rules can come."""
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
    measured = measure(deployment, lambda _: pieces_of(events, tmp_path), labels, Terms(), SILENT)
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
