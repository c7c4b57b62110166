"""Figures of a backtest, as sent and by threshold, against DuckDB, replays and `cep run`."""

import random
import re
import time
from dataclasses import replace
from functools import partial
from itertools import combinations
from math import factorial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import cep
from cep.analysis.backtest import ALL, Figures, ratio, whole_time
from cep.analysis.curves import Curve, Line, Point, curves, lines, pairs
from cep.analysis.figure_charts import near_lines, threshold_curves, threshold_pairs
from cep.analysis.labels import labels_of_column, labels_of_table
from cep.analysis.measure import Measured, Terms, amount_field, measure
from cep.analysis.sweep import Replayer, number_of, numeric_axes
from cep.analysis.weeks import by_budget
from cep.api.replay import GivenRules
from cep.base.errors import UsageError
from cep.base.text import utc_ms, utc_text
from cep.cli.main import main
from cep.lang.load import load_text
from cep.lists.store import ListStore
from cep.model.rule import ParamValue
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from tests.analysis import oracle
from tests.analysis.bench_data import DAY_MS, NAMES, SOURCE, START_MS, deployed, payments, pieces_of
from tests.bench.peer_data import upsert
from tests.cli.test_quality import pays_rule
from tests.seeds import seeds

# Compare every figure of a backtest with DuckDB's, over the same alerts, events and labels.

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
    alerts, labelled, test = measured.history.replayed.alerts, measured.labelled, measured.figures
    assert alerts.num_rows > 30
    views = oracle.views(alerts, events, labels, labelled.as_of_ms, labelled.maturity_ms)
    assert [each.rule for each in test.rules] == list(NAMES)
    for each in (*test.rules, test.together):
        expected = oracle.figures(views, None if each.rule == ALL else each.rule)
        base = expected["bad_events"] / expected.pop("mature_events")
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
    labelled = measured.labelled
    views = oracle.views(measured.history.replayed.alerts, events, labels, labelled.as_of_ms, labelled.maturity_ms)
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
    labelled = measured.labelled
    assert 0 < labelled.frauds_count == len(episodes) < len(rows)
    assert sorted(labelled.amount.tolist()) == pytest.approx(sorted(map(sum, episodes)))
    assert labelled.money.sum() == pytest.approx(labelled.amount.sum())


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


def test_an_event_that_is_dated_ahead_moves_no_date(tmp_path: Path) -> None:
    """It is set aside by the replay, so it is none of the figures' events, and not the last one either."""
    events, labels = payments(9, days=3)
    ahead_ms = int(time.time() * 1_000) + 400 * DAY_MS
    ahead = events.slice(0, 1).set_column(1, "event_time", pa.array([ahead_ms], pa.timestamp("ms", "UTC")))
    deployment = deployed("large")
    read = labels_of_table(labels, deployment.schema, "labels")
    terms = Terms(maturity_ms=DAY_MS)

    def measured(table: pa.Table) -> Measured:
        return measure(deployment, lambda _: pieces_of(table, tmp_path), read, terms, SILENT)

    plain, both = measured(events), measured(pa.concat_tables([ahead, events]))
    assert both.figures.about == {**plain.figures.about, "records_set_aside": 1}
    assert both.figures.rules == plain.figures.rules
    assert both.history.repeats[0].tolist() == [0], "examples leave it out, too"


def test_alerts_are_judged_by_their_own_events_where_ids_of_two_types_are_equal() -> None:
    rules = cep.parse("""
event pay { pay_id id  event_time time  card_id string  amount decimal(2) }
event login { login_id id  event_time time  card_id string  amount decimal(2) }
pattern pays by card_id { seq a  where a: pay amount > 5.00 }
pattern logins by card_id { seq a  where a: login amount > 5.00 }
""")
    count = 10
    ids = [str(number) for number in range(count)]
    events = pa.table({
        "event_type": ["pay"] * count + ["login"] * count, "pay_id": ids + [None] * count,
        "login_id": [None] * count + ids, "event_time": pa.array(range(2 * count), pa.timestamp("ms", "UTC")),
        "card_id": ["x"] * 2 * count, "amount": [10.0] * 2 * count,
    })  # fmt: skip
    with pytest.warns(UserWarning, match="10 events have the id of an earlier event with a label"):
        logins, pays = rules.backtest(events, pa.table({"event_id": ids})).figures.rules
    assert (pays.right, pays.wrong) == (count, 0)
    assert (logins.right, logins.wrong) == (0, count)


# The alerts that a backtest counts as sent equal the alerts of `cep run` with the same rules and control records.

RULES = ("busy_shop", "large", "small_large")
DAYS = 20


def write_rules(draw: random.Random, folder: Path) -> None:
    (folder / "patterns").mkdir()
    (folder / "rules").mkdir()
    (folder / "patterns" / "pays.cep").write_text(SOURCE)
    for name in RULES:
        text = pays_rule(name).replace('"low"', f'"{draw.choice(["low", "high"])}"')
        if draw.random() < 0.25:
            text = text.replace('"live"', '"shadow"')
        if draw.random() < 0.6:
            text += f'suppress = "{draw.choice(["1 h", "1 d", "5 d"])}"\n'
        if draw.random() < 0.6:
            text += f'exclusive = "one"\npriority = {draw.randrange(3)}\n'
        (folder / "rules" / f"{name}.toml").write_text(text)
    snoozes = []
    for version in range(draw.randrange(3)):
        from_ms = START_MS + draw.randrange(DAYS) * DAY_MS
        snooze = {
            "kind": "snooze", "id": draw.choice(RULES), "version": version + 1, "by": "me",
            "effective_at": utc_text(from_ms), "until": utc_text(from_ms + draw.randrange(1, 6) * DAY_MS),
        }  # fmt: skip
        if draw.random() < 0.4:
            snooze["key"] = f"c{draw.randrange(60)}"
        snoozes.append(orjson.dumps(snooze))
    (folder / "control.jsonl").write_bytes(b"".join(line + b"\n" for line in snoozes))


def measured_as_sent(folder: Path, labels: pa.Table, terms: Terms) -> Measured:
    rules = GivenRules.read(folder / "rules", folder / "control.jsonl")
    read = labels_of_table(labels, rules.deployment.schema, "labels")
    return measure(rules.deployment, partial(read_pieces, folder / "events.parquet"), read, terms, Console(quiet=True))


@pytest.mark.parametrize("seed", seeds(60, inner=3))
def test_alerts_as_sent_are_those_of_a_job(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    write_rules(draw, tmp_path)
    events, labels = payments(seed, days=DAYS)
    pq.write_table(events.sort_by([("event_time", "ascending"), ("tx_id", "ascending")]), tmp_path / "events.parquet")
    command = ["--rules", tmp_path / "rules", "--events", tmp_path / "events.parquet", "--alerts", tmp_path / "alerts"]
    control = ["--control", tmp_path / "control.jsonl", "--available-now"]
    assert main(["run", *map(str, [*command, *control])]) == 0
    written = (tmp_path / "alerts").glob("*.jsonl")
    sent = [orjson.loads(line) for path in written for line in path.read_bytes().splitlines()]
    has_live = any('"live"' in path.read_text() for path in (tmp_path / "rules").glob("*.toml"))
    assert bool(sent) is has_live
    as_of_ms = draw.choice([None, START_MS + 15 * DAY_MS])
    maturity_ms = draw.choice([None, 0, 3 * DAY_MS])
    measured = measured_as_sent(tmp_path, labels, Terms(as_of_ms=as_of_ms, maturity_ms=maturity_ms))
    alert_ids = {each["alert_id"] for each in sent if utc_ms(each["detected_at"]) <= measured.labelled.as_of_ms}
    rows = pa.array(measured.judged.row)
    assert set(measured.history.replayed.alerts["alert_id"].take(rows).to_pylist()) == alert_ids
    figures = measured.figures
    assert figures.together.alerts == len(alert_ids) <= figures.all_matches.together.alerts
    by_rule = {name: sum(each["rule_id"] == name and each["alert_id"] in alert_ids for each in sent) for name in RULES}
    assert {each.rule: each.alerts for each in figures.rules} == by_rule
    unlimited = by_budget(measured.judged, measured.labelled, figures.about["days"])[-1]
    assert unlimited["alerts"] <= len(alert_ids)
    if as_of_ms is None:
        assert figures.all_matches.together.alerts - len(alert_ids) == sum(figures.about["matches_not_sent"].values())
    mature = measured.labelled.is_mature[measured.judged.bound_event_row]
    has_immature = np.zeros(len(alert_ids), np.bool_)
    has_immature[measured.judged.bound_event_alert[~mature]] = True
    assert figures.together.precision.whole == int((~has_immature).sum())


# Curves of parameters: every point has the figures of a backtest of the rule with that value.


PATTERNS = (
    SOURCE
    + """
pattern probes(tries: int = 2, small: decimal = 100.00, times: float = 1.2345) by card_id {
  seq    a{tries,} greedy -> b  within 1 d
  where  a: pay  amount < small
         b: pay  amount > times * avg(a.amount)
  skip   past last
}
"""
)
LASTS = (
    SOURCE
    + """
pattern lasts(window: duration = 90 min in 30 min..4 h) by card_id {
  seq    a -> b  within window
  where  a: pay  amount > 100.00
         b: pay  amount > 100.00
}
"""
)
PRESENT: dict[str, ParamValue] = {"tries": 2, "small": 100.0, "times": 1.2345}


class History:
    """Payments in a file, and the matches of the rule."""

    def __init__(self, folder: Path) -> None:

        self.events, _ = payments(3)
        self.path = folder / "events.parquet"
        pq.write_table(self.events, self.path)

    def bench(
        self, params: dict[str, ParamValue], of: tuple[str, str] = (PATTERNS, "probes")
    ) -> tuple[Replayer, Figures, int]:
        """Return a bench over the whole time, the figures of the rule with these parameters, and the days."""
        record = upsert(*of).model_copy(update={"params": params})
        deployment = deploy([record])
        assert deployment.set_aside == ()
        labels = labels_of_column([self.events], "is_fraud", deployment.schema)
        measured = measure(deployment, partial(read_pieces, self.path), labels, Terms(), SILENT)
        whole = whole_time(measured.history.events, measured.labelled)
        bench = Replayer(
            record, ((), ListStore()), partial(read_pieces, self.path), measured.labelled, (whole,), 2, SILENT
        )
        return bench, measured.figures.rules[0], measured.figures.about["days"]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return History(tmp_path_factory.mktemp("curves"))


@pytest.fixture(scope="module")
def drawn(history: History) -> tuple[Curve, ...]:
    bench, _, days = history.bench(PRESENT)
    pattern = load_text(PATTERNS, "p").patterns["probes"]
    return curves(bench, numeric_axes(pattern, PRESENT), days)


def point_of(figures: Figures, value: float) -> Point:
    """Return the point for these figures, with its money in cents."""
    money = round(figures.money_found, 2)
    return Point(value, figures.alerts, figures.alerts_per_day, figures.precision, figures.fraud_recall, money)


def in_cents(point: Point) -> Point:
    """Return the same point with money in cents: it was added up in another order."""
    return replace(point, money_found=round(point.money_found, 2))


def test_points_are_replays_of_the_rule_with_that_value(history: History, drawn: tuple[Curve, ...]) -> None:
    assert [(curve.param, curve.present) for curve in drawn] == list(PRESENT.items())
    for curve in drawn:
        values = [point.value for point in curve.points]
        assert values == sorted(values)
        assert curve.present in values, "also a present value with more digits than those around it"
        assert len({point.alerts for point in curve.points}) > 2
        for index in (0, len(values) // 3, -1):
            value = int(values[index]) if curve.param == "tries" else values[index]
            _, figures, _ = history.bench({**PRESENT, curve.param: value})
            assert in_cents(curve.points[index]) == point_of(figures, values[index])


def test_the_present_value_has_the_figures_of_the_rule(history: History, drawn: tuple[Curve, ...]) -> None:
    _, figures, _ = history.bench(PRESENT)
    assert figures.alerts > 0
    assert figures.fraud_recall.part > 0
    for curve in drawn:
        assert point_of(figures, curve.present) in [in_cents(point) for point in curve.points]


def test_a_curve_says_what_it_shows(drawn: tuple[Curve, ...]) -> None:
    chart = threshold_curves(drawn)[1]
    assert chart.title == "probes by small"
    assert re.search(r"by small, which is 100\. 25: .*; 100: .*; 400: .* and \S+\.$", chart.text)
    nothing = replace(drawn[0], points=())
    assert threshold_curves([nothing]) == []


def test_what_cannot_be_drawn(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _, days = history.bench(PRESENT)
    axes = numeric_axes(load_text(PATTERNS, "p").patterns["probes"], PRESENT)
    with pytest.raises(UsageError, match="no parameter that is a number"):
        curves(bench, (), days)
    with monkeypatch.context() as patch:
        patch.setattr("cep.analysis.curves.TUNE_REPLAYED_MAX", 10)
        with pytest.raises(UsageError, match="3 parameters with "):
            curves(bench, axes, days)
    monkeypatch.setattr("cep.analysis.curves.TUNE_ALERTS_MAX", 3)
    with pytest.raises(UsageError, match="alerts with one of the values"):
        curves(bench, axes, days)


def test_lengths_of_time(history: History) -> None:
    """The values have one unit and lie within the bounds, and each is a replay."""
    source, present = (LASTS, "lasts"), "90 min"
    bench, _, days = history.bench({"window": present}, source)
    (curve,) = curves(bench, numeric_axes(load_text(*source).patterns["lasts"], {"window": present}), days)
    assert (curve.param, curve.unit, curve.present) == ("window", "h", 1.5)
    values = [point.value for point in curve.points]
    assert values[0] >= 0.5
    assert values[-1] == 4.0
    assert 1.5 in values
    for index in (0, -1):
        _, figures, _ = history.bench({"window": f"{round(values[index] * 60)} min"}, source)
        assert in_cents(curve.points[index]) == point_of(figures, values[index])
    assert [chart.title for chart in threshold_curves([curve])] == ["lasts by window"]


def test_values_with_which_a_rule_cannot_be_in_force(history: History) -> None:
    bench, _, days = history.bench({**PRESENT, "tries": 40_000})
    axes = numeric_axes(load_text(PATTERNS, "p").patterns["probes"], {"tries": 40_000})
    (curve,) = curves(bench, axes, days)
    assert curve.left_out
    assert {point.value for point in curve.points} | {*curve.left_out} == {number_of(value) for value in axes[0].values}


def test_pairs_are_replays_and_their_front_is_that_of_all_cells(history: History, drawn: tuple[Curve, ...]) -> None:
    bench, _, _ = history.bench(PRESENT)
    charts = pairs(bench, drawn)
    assert len(charts) == 3
    for pair in charts:
        assert pair.present in {cell.values for cell in pair.cells}
        for cell in pair.cells[:: len(pair.cells) - 1]:
            values = [int(v) if name == "tries" else v for name, v in zip(pair.params, cell.values, strict=True)]
            _, figures, _ = history.bench({**PRESENT, **dict(zip(pair.params, values, strict=True))})
            assert (cell.alerts, cell.precision, cell.fraud_recall) == (
                figures.alerts,
                figures.precision,
                figures.fraud_recall,
            )
        shares = [(cell.precision.value, cell.fraud_recall.value) for cell in pair.cells]
        for cell, (precision, recall) in zip(pair.cells, shares, strict=True):
            if precision is None or recall is None:
                assert not cell.is_on_front
                continue
            better = [
                (p, r)
                for p, r in shares
                if p is not None
                and r is not None
                and ((p > precision and r >= recall) or (p >= precision and r > recall))
            ]
            assert cell.is_on_front == (not better)
        assert any(cell.is_on_front for cell in pair.cells)
    present = next(point for point in drawn[0].points if point.value == drawn[0].present)
    flood = replace(drawn[0].points[0], alerts=101 * present.alerts)
    few = pairs(bench, [replace(drawn[0], points=(flood, *drawn[0].points[1:])), drawn[1]])
    assert flood.value not in {cell.values[0] for cell in few[0].cells}, "its replays cost most, and nobody wants it"
    assert [chart.title for chart in threshold_pairs(charts[:1])] == [f"probes: {' and '.join(charts[0].params)}"]


# Near the line: DuckDB counts the same in each interval of a threshold; each alert is in one interval.


PRESENT_LARGE = {"large": 320.5, "small_large": 300.0}


def bench_of(name: str, path: Path) -> tuple[Replayer, Measured, tuple[Line, ...]]:
    """Return the rule with its present threshold, its results and its lines."""
    record = upsert(SOURCE, name).model_copy(update={"params": {"large": PRESENT_LARGE[name]}})
    deployment, events = deploy([record]), pq.read_table(path)
    labels = labels_of_column([events], "is_fraud", deployment.schema)
    measured = measure(deployment, partial(read_pieces, path), labels, Terms(), SILENT)
    whole = whole_time(measured.history.events, measured.labelled)
    bench = Replayer(record, ((), ListStore()), partial(read_pieces, path), measured.labelled, (whole,), 2, SILENT)
    axes = numeric_axes(load_text(SOURCE, "p").patterns[name], record.params)
    return bench, measured, lines(bench, axes)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("near") / "events.parquet"
    pq.write_table(payments(5)[0], file)
    return file


@pytest.fixture(scope="module")
def large(path: Path) -> tuple[Replayer, Measured, tuple[Line, ...]]:
    return bench_of("large", path)


def test_intervals_of_one_event_are_a_histogram(path: Path, large: tuple[Replayer, Measured, tuple[Line, ...]]) -> None:
    (line,) = large[2]
    assert (line.param, line.present) == ("large", 320.5)
    assert [each.is_inside for each in line.intervals] == [False] * 6 + [True] * 6
    for each in line.intervals:
        expected = duckdb.execute(
            f"""select count(*) filter (is_fraud), count(*) filter (not is_fraud) from '{path}'
                where round(amount * 100) > ? and round(amount * 100) <= ?""",
            [round(each.looser * 100), round(each.tighter * 100)],
        ).fetchall()[0]
        assert (each.right, each.wrong + each.immature) == expected
    further = duckdb.execute(f"select count(*) from '{path}' where amount > ?", [line.intervals[-1].tighter]).fetchall()
    assert further == [(line.alerts_at_tightest,)]


def test_intervals_of_a_sequence_are_what_two_replays_differ_in(path: Path) -> None:
    """A higher threshold may bind another event. An alert of the tighter value need not be one of the looser."""
    bench, _, (line,) = bench_of("small_large", path)
    assert sum(each.alerts for each in line.intervals) > 0
    values = [line.intervals[0].looser, *(each.tighter for each in line.intervals)]
    with duckdb.connect() as connection:
        for value in values:
            history, _ = bench.judged([{"large": value}])
            connection.register("a", history.replayed.alerts)
            connection.sql(f"create table v{values.index(value)} as "
                           "select list_transform(events, lambda e: e.event_id) as ids from a")  # fmt: skip
        for number, each in enumerate(line.intervals):
            ((count,),) = connection.sql(
                f"select count(*) from v{number} anti join v{number + 1} using (ids)"
            ).fetchall()
            assert each.alerts == count


def test_each_alert_of_the_rule_is_inside_once(large: tuple[Replayer, Measured, tuple[Line, ...]]) -> None:
    _, measured, (line,) = large
    inside = sum(each.alerts for each in line.intervals if each.is_inside)
    assert inside + line.alerts_at_tightest == measured.figures.rules[0].alerts


def test_samples_stand_just_beside_the_line(path: Path, large: tuple[Replayer, Measured, tuple[Line, ...]]) -> None:
    (line,) = large[2]
    assert {sample.is_inside for sample in line.samples} == {True, False}
    assert len(line.samples) <= 12
    for sample in line.samples:
        assert line.present in (sample.looser, sample.tighter)
        ((amount, bad),) = duckdb.execute(
            f"select round(amount, 2), is_fraud from '{path}' where tx_id = ?", [sample.event_ids[-1]]
        ).fetchall()
        assert (amount > line.present) == sample.is_inside
        assert (sample.verdict == "right") == bad
    (chart,) = near_lines([line])
    assert f"{sum(each.alerts for each in line.intervals if each.is_inside):,} are on this side" in chart.text
