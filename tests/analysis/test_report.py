"""The report: one file without script or network, the same bytes for the same input, without protected values."""

from __future__ import annotations

import re
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pytest
from rich.console import Console

from cep.analysis import figure_charts as draw
from cep.analysis.backtest import DAY_MS
from cep.analysis.budget import by_budget, by_week
from cep.analysis.cases import MATCH, NOTHING, sampled, walk_frauds
from cep.analysis.charts import COLORS, svg
from cep.analysis.labels import labels_of_column, labels_of_table
from cep.analysis.measure import Measured, Terms, measure
from cep.analysis.one_rule import OneRule, one_rule_of
from cep.analysis.page import page, table
from cep.analysis.report import Report, report
from cep.analysis.thresholds import Replays, drawn
from cep.analysis.upset import upset
from cep.base.schema import Schema
from cep.cli.report import write_report
from cep.lists.store import ListStore
from cep.report.plan_text import size_text
from cep.rulebook.deploy import deploy
from cep.sources.pieces import Pieces, read_pieces
from tests.analysis import oracle
from tests.analysis.bench_data import deployed, payments, pieces_of, rules
from tests.analysis.report_oracle import differences
from tests.bench.peer_data import upsert
from tests.columnar.protected import card_numbers
from tests.columnar.protected import keys as keys  # noqa: PLC0414 a fixture

SILENT = Console(quiet=True)


class Page(HTMLParser):
    """Checks that tags are closed in their order, and collects their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Measured, partial[Pieces], pa.Table, pa.Table]:
    events, labels = payments(1)
    deployment = deployed()
    read = partial(pieces_of, events, tmp_path_factory.mktemp("report"))
    read_labels = labels_of_table(labels, deployment.schema, "labels")
    return measure(deployment, lambda _: read(), read_labels, Terms(), SILENT), read, events, labels


def report_of(measured: tuple[Measured, partial[Pieces], pa.Table, pa.Table]) -> Report:
    return report(measured[0], lambda _: measured[1](), measured[0], 5.0)


def test_a_page_that_needs_nothing_else(
    measured: tuple[Measured, partial[Pieces], pa.Table, pa.Table],
) -> None:
    first, second = report_of(measured), report_of(measured)
    assert first == second, "the same bytes"
    assert len(first.html) < 1_000_000
    whole = Page(first.html)
    tags = {tag for tag, _, _ in whole.attributes}
    assert "script" not in tags
    addresses = [value for _, name, value in whole.attributes if name in ("src", "href")]
    assert all(value.startswith(("data:image/svg+xml;base64,", "#")) for value in addresses)
    assert all(value for tag, name, value in whole.attributes if (tag, name) == ("img", "alt"))
    images = [value for tag, name, value in whole.attributes if (tag, name) == ("img", "src")]
    assert len(images) > 8
    headings = re.findall(r"<h2>\d+\. (.*?)</h2>", first.html)
    assert headings == [
        "What was matched", "Alerts by day", "Rules", "Beside the other rules", "Alert budget", "What each rule adds",
        "How far frauds came", "Week by week", "Alerts, some of each kind", "Frauds that no rule finds",
    ]  # fmt: skip
    numbers = orjson.loads(first.numbers)
    assert numbers["against"] == {key: numbers[key] for key in numbers["against"]}
    assert "are lost" in first.html
    state = numbers["state_bytes_of_a_key"]
    assert state.keys() == {row["rule"] for row in numbers["rules"]}
    assert all(size_text(size) in first.html and size > 0 for size in state.values())


def test_nothing_in_the_data_is_markup() -> None:
    whole = page("<b>", [("a", "<script>", table(("<i>",), [("</td><script>",)]))])
    assert "<script" not in whole
    assert Page(whole).attributes


def test_what_a_budget_buys(measured: tuple[Measured, partial[Pieces], pa.Table, pa.Table]) -> None:
    """The rows equal DuckDB's ranks of the alerts of a day."""
    one, _, events, labels = measured
    rows = by_budget(one.judged, one.marks, one.figures.about["days"], 5.0)
    assert rows[-1]["alerts"] == one.figures.together.alerts
    assert rows[-1]["fraud_recall"] == one.figures.together.fraud_recall
    alerts = one.history.replayed.alerts.append_column("n", pa.array(range(one.history.replayed.alerts.num_rows)))
    with duckdb.connect() as connection:
        for name, table in (("alerts", alerts), ("events", events), ("labels", labels)):
            connection.register(name, table)
        for row in rows:
            query = connection.sql(f"""
                with ranked as (select *, row_number() over (partition by epoch_ms(detected_at) // {DAY_MS}
                         order by score desc, detected_at, n) as place from alerts),
                     bound as (select alert_id, unnest(events).event_id as id from ranked
                         where place <= {row["alerts_a_day"]}),
                     old as (select tx_id from events
                         where epoch_ms(event_time) <= {one.marks.as_of_ms - one.marks.maturity_ms}),
                     hit as (select b.alert_id, coalesce(episode, event_id) as fraud from bound b
                         join labels l on l.event_id = b.id join old on old.tx_id = b.id where label)
                select (select count(distinct alert_id) from bound),
                       (select count(distinct alert_id) from hit where alert_id not in
                        (select alert_id from bound where id not in (from old))),
                       (select count(distinct fraud) from hit)""")
            assert query is not None
            assert query.fetchall()[0] == (row["alerts"], row["precision"].part, row["fraud_recall"].part)
            assert row["money_less_reviews"] == pytest.approx(row["money_found"] - 5 * row["alerts"])


def large_by_itself(_: str) -> OneRule:
    return one_rule_of(rules("large")[0], ([], ListStore()))


def test_the_numbers_in_the_file_are_those_of_duckdb(
    measured: tuple[Measured, partial[Pieces], pa.Table, pa.Table], tmp_path: Path
) -> None:
    """Days, weeks, budget, sets of rules, kinds, fields, curves and near lines, as another program reads them."""
    one, read, events, labels = measured

    def pieces(_: Schema | None = None) -> Pieces:
        return read()

    replays = Replays(
        large_by_itself, pieces, lambda schema: labels_of_table(labels, schema, "labels"), Terms(), SILENT
    )  # fmt: skip
    curves = drawn(replays, one.figures, ("large",))
    _, written = write_report(report(one, pieces, None, 5.0, curves), tmp_path / "report.html")
    numbers = orjson.loads(written.read_bytes())
    assert one.marks.maturity_ms > 0
    views = oracle.views(one.history.replayed.alerts, events, labels, one.marks.as_of_ms, one.marks.maturity_ms)
    count, wrong = differences(views, numbers, one.marks.maturity_ms, "large", 5.0)
    assert wrong == []
    assert count > 600
    assert {len(numbers[name]) > 0 for name in ("days", "weeks", "budget", "overlap", "fields", "near_thresholds")} == {
        True
    }
    numbers["weeks"][1]["rules"][1]["alerts"] += 1
    assert len(differences(views, numbers, one.marks.maturity_ms, "large", 5.0)[1]) == 1, (
        "a number that differs is seen"
    )


def test_the_funnel_agrees_with_the_engine(
    measured: tuple[Measured, partial[Pieces], pa.Table, pa.Table],
) -> None:
    """All frauds are walked here. A fraud that the engine finds ends with a match."""
    one, read, _, _ = measured
    funnels, endings = walk_frauds(one, lambda _: read())
    for index, funnel in enumerate(funnels):
        assert funnel.walked == sum(funnel.steps.values()) == one.marks.frauds_count
        if funnel.rule in ("small_large", "large"):  # a fraud belongs to one card, and so do these rules
            matched = {ending.fraud for ending in endings if ending.rule == funnel.rule and ending.step == MATCH}
            assert matched == set(np.flatnonzero(one.judged.has_detected[index]).tolist())
    (never,) = (funnel for funnel in funnels if funnel.rule == "never")
    assert never.steps[NOTHING] == never.walked
    assert never.stopped == {"hit: amount > 1000000.00": never.walked}


def test_charts_have_titles_and_units(measured: tuple[Measured, partial[Pieces], pa.Table, pa.Table]) -> None:
    one, read, _, _ = measured
    names = draw.most_alerted(one.figures)
    drawn = [
        *draw.alerts_by_day(one.figures), *draw.rule_intervals(one.figures),
        *draw.budget_curve(by_budget(one.judged, one.marks, 20)), *upset(one.figures),
        *draw.funnels(walk_frauds(one, lambda _: read())[0], names),
        *draw.weeks(by_week(one.judged, one.marks, one.history.events, one.amount), names),
    ]  # fmt: skip
    for chart in drawn:
        drawing = svg(chart)
        assert chart.title in drawing
        assert chart.text.endswith(".")
        views = chart.drawing.get("vconcat", [chart.drawing])
        layers = [view.get("encoding", {}) for view in views]
        layers += [layer.get("encoding", {}) for view in views for layer in view.get("layer", ())]
        titles = [way[axis]["title"] for way in layers for axis in ("x", "y") if axis in way]
        assert all(title is None or title in drawing for title in titles)
        assert any(titles), "an axis of numbers has a unit"


def test_colours_are_those_that_the_colour_blind_can_tell() -> None:
    """The first four colours have different lightness, so that they also differ on paper without colour."""
    lightness = [
        sum(w * int(c[start : start + 2], 16) for w, start in ((0.299, 1), (0.587, 3), (0.114, 5))) for c in COLORS[:4]
    ]
    assert len({round(value / 12) for value in lightness}) == 4


def test_a_sample_is_even() -> None:
    assert sampled(0, 3) == []
    assert sampled(2, 3) == [0, 1]
    assert sampled(101, 3) == [0, 50, 100]


SECRET = """
event pay {
  tx_id       id
  event_time  time
  card        pan
  email       string? sensitive
  amount      decimal(2)
}
pattern twice by card {
  seq    a -> b  within 1 h
  where  a: pay  amount > 5.00
         b: pay  amount > 100.00 and email == a.email
  emit   card = b.card
}
"""


@pytest.mark.usefixtures("keys")
def test_nothing_protected_is_in_a_report(tmp_path: Path) -> None:
    numbers = card_numbers(1, 6)
    rows = [
        {"tx_id": f"t{number}", "event_time": 1_772_323_200_000 + number * 60_000, "card": numbers[number % 6],
         "email": f"someone{number % 6}@example.org", "amount": 50.0 * (number % 7), "bad": number % 5 == 0}
        for number in range(60)
    ]  # fmt: skip
    table_ = pa.Table.from_pylist(rows)
    times = table_["event_time"].cast(pa.timestamp("ms")).cast(pa.timestamp("ms", "UTC"))
    deployment = deploy([upsert(SECRET, "twice")])
    schema: Schema = deployment.schema
    path = tmp_path / "events.parquet"
    pa.parquet.write_table(table_.set_column(1, "event_time", times), path)
    labels = labels_of_column([table_], "bad", schema)
    from_file = partial(read_pieces, path)
    one = measure(deployment, from_file, labels, Terms(), SILENT)
    assert one.figures.together.alerts > 5
    text = report(one, from_file).html
    assert "card •••" in text
    assert not re.search(r"(pan|secret)_\w+_[a-p]{32}", text)
    assert not any(number in text for number in numbers)
    assert "example.org" not in text


def test_keys_with_many_events_do_not_hold_up_a_report(
    measured: tuple[Measured, partial[Pieces], pa.Table, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With little room for events, fewer frauds are walked; a key with too many events is left out and counted."""
    one, read, _, _ = measured

    def pieces(_: Schema | None = None) -> Pieces:
        return read()

    whole, _ = walk_frauds(one, pieces)
    rules_count = len(whole)
    for room in (60, 200):
        monkeypatch.setattr("cep.analysis.cases.REPORT_EVENTS_WALKED_MAX", room * rules_count)
        few, _ = walk_frauds(one, pieces)
        assert [funnel.rule for funnel in few] == [funnel.rule for funnel in whole]
        for funnel, other in zip(few, whole, strict=True):
            assert sum(funnel.steps.values()) == funnel.walked <= other.walked
        assert sum(funnel.walked for funnel in few) < sum(funnel.walked for funnel in whole)
    assert any(funnel.walked for funnel in few)
    monkeypatch.setattr("cep.analysis.cases.REPORT_EVENTS_WALKED_MAX", rules_count)
    none, _ = walk_frauds(one, pieces)
    assert [(funnel.walked, funnel.skipped > 0) for funnel in none] == [(0, True)] * rules_count
