"""The report: one file without script or network, below a megabyte, without protected values."""

import random
import re
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from cep.analysis import figure_charts as draw
from cep.analysis.backtest import DAY_MS, Backtest, ratio
from cep.analysis.cases import MATCH, NO_RUN, sampled, trace_frauds
from cep.analysis.figure_charts import upset
from cep.analysis.labels import Labels, labels_of_column, labels_of_table
from cep.analysis.measure import Measured, Terms, measure
from cep.analysis.one_rule import OneRule, ReplayedCharts, Replays, one_rule_of, replay_for_charts
from cep.analysis.page import COLORS, DETAIL_STEPS, WIDER, fitting, page, svg, table
from cep.analysis.report import Report, report
from cep.analysis.weeks import by_budget, by_week
from cep.base.limits import REPORT_BYTES_MAX
from cep.base.schema import Schema
from cep.cli.report import write_report
from cep.lists.store import ListStore
from cep.report.plan import size_text
from cep.rulebook.deploy import deploy
from cep.sources.pieces import Pieces, read_pieces
from tests.analysis import oracle
from tests.analysis.bench_data import START_MS, deployed, events_table, payments, pieces_of, rules
from tests.analysis.report_oracle import differences
from tests.bench.peer_data import upsert
from tests.columnar.protected import card_numbers
from tests.columnar.protected import keys as keys  # noqa: PLC0414 a fixture

# The report: one file without script or network, the same bytes for the same input, without protected values.

SILENT = Console(quiet=True)
# The results of a backtest, its events by pieces and as a table, and its labels.
Inputs = tuple[Measured, partial[Pieces], pa.Table, pa.Table]


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
def measured(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    events, labels = payments(1)
    deployment = deployed()
    read = partial(pieces_of, events, tmp_path_factory.mktemp("report"))
    read_labels = labels_of_table(labels, deployment.schema, "labels")
    return measure(deployment, lambda _: read(), read_labels, Terms(), SILENT), read, events, labels


def report_of(measured: Inputs) -> Report:
    return report(measured[0], lambda _: measured[1](), measured[0], 5.0)


def test_a_page_that_needs_nothing_else(measured: Inputs) -> None:
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


def test_what_a_budget_buys(measured: Inputs) -> None:
    """The rows equal DuckDB's ranks of the alerts of a day."""
    one, _, events, labels = measured
    rows = by_budget(one.judged, one.labelled, one.figures.about["days"], 5.0)
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
                         where epoch_ms(event_time) <= {one.labelled.as_of_ms - one.labelled.maturity_ms}),
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


def test_the_numbers_in_the_file_are_those_of_duckdb(measured: Inputs, tmp_path: Path) -> None:
    """Days, weeks, budget, sets of rules, kinds, fields, curves and near lines, as another program reads them."""
    one, read, events, labels = measured

    def pieces(_: Schema | None = None) -> Pieces:
        return read()

    replays = Replays(
        large_by_itself, pieces, lambda schema: labels_of_table(labels, schema, "labels"), Terms(), SILENT
    )  # fmt: skip
    curves = replay_for_charts(replays, one.figures, ("large",))
    _, written = write_report(report(one, pieces, None, 5.0, curves), tmp_path / "report.html")
    numbers = orjson.loads(written.read_bytes())
    assert one.labelled.maturity_ms > 0
    views = oracle.views(one.history.replayed.alerts, events, labels, one.labelled.as_of_ms, one.labelled.maturity_ms)
    count, wrong = differences(views, numbers, one.labelled.maturity_ms, "large", 5.0)
    assert wrong == []
    assert count > 600
    assert {len(numbers[name]) > 0 for name in ("days", "weeks", "budget", "overlap", "fields", "near_thresholds")} == {
        True
    }
    numbers["weeks"][1]["rules"][1]["alerts"] += 1
    assert len(differences(views, numbers, one.labelled.maturity_ms, "large", 5.0)[1]) == 1, (
        "a number that differs is seen"
    )


def test_the_funnel_agrees_with_the_engine(measured: Inputs) -> None:
    """All frauds are walked here. A fraud that the engine finds ends with a match."""
    one, read, _, _ = measured
    funnels, endings = trace_frauds(one, lambda _: read())
    for index, funnel in enumerate(funnels):
        assert funnel.walked == sum(funnel.steps.values()) == one.labelled.frauds_count
        if funnel.rule in ("small_large", "large"):  # a fraud belongs to one card, and so do these rules
            matched = {ending.fraud for ending in endings if ending.rule == funnel.rule and ending.step == MATCH}
            assert matched == set(np.flatnonzero(one.judged.has_detected[index]).tolist())
    (never,) = (funnel for funnel in funnels if funnel.rule == "never")
    assert never.steps[NO_RUN] == never.walked
    assert never.stopped == {"hit: amount > 1000000.00": never.walked}


def test_charts_have_titles_and_units(measured: Inputs) -> None:
    one, read, _, _ = measured
    names = draw.most_alerted(one.figures)
    drawn = [
        *draw.alerts_by_day(one.figures), *draw.rule_intervals(one.figures),
        *draw.budget_curve(by_budget(one.judged, one.labelled, 20)), *upset(one.figures),
        *draw.funnels(trace_frauds(one, lambda _: read())[0], names),
        *draw.weeks(by_week(one.judged, one.labelled, one.history.events, one.amount), names),
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


def test_a_week_of_alerts_is_one_bar(measured: Inputs) -> None:
    """The bars of Vega begin on Sunday, and days are added up from Monday on: two weeks must not share a bar."""
    days = ("2026-11-22", "2026-11-23", "2026-11-29", "2026-12-31", "2027-01-01")
    rule = measured[0].figures.rules[0].rule
    figures = replace(
        measured[0].figures, about={"days": 200},
        days=tuple({"day": day, "rule": rule, "right": 1, "wrong": 0, "immature": 0} for day in days),
    )  # fmt: skip
    (chart,) = draw.alerts_by_day(figures)
    bars = [(row["day"], row["alerts"]) for row in chart.rows if row["verdict"] == "right"]
    assert bars == [("2026-11-16", 1), ("2026-11-23", 2), ("2026-12-28", 2)]
    assert chart.text.endswith("The busiest week begins 2026-11-23.")


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
    table_ = events_table(rows)
    deployment = deploy([upsert(SECRET, "twice")])
    schema: Schema = deployment.schema
    path = tmp_path / "events.parquet"
    pq.write_table(table_, path)
    labels = labels_of_column([table_], "bad", schema)
    from_file = partial(read_pieces, path)
    one = measure(deployment, from_file, labels, Terms(), SILENT)
    assert one.figures.together.alerts > 5
    text = report(one, from_file).html
    assert "card •••" in text
    assert not re.search(r"(pan|secret)_\w+_[a-p]{32}", text)
    assert not any(number in text for number in numbers)
    assert "example.org" not in text


def test_keys_with_many_events_do_not_hold_up_a_report(measured: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little room for events, fewer frauds are walked; a key with too many events is left out and counted."""
    one, read, _, _ = measured

    def pieces(_: Schema | None = None) -> Pieces:
        return read()

    whole, _ = trace_frauds(one, pieces)
    rules_count = len(whole)
    for room in (60, 200):
        monkeypatch.setattr("cep.analysis.cases.REPORT_EVENTS_WALKED_MAX", room * rules_count)
        few, _ = trace_frauds(one, pieces)
        assert [funnel.rule for funnel in few] == [funnel.rule for funnel in whole]
        for funnel, other in zip(few, whole, strict=True):
            assert sum(funnel.steps.values()) == funnel.walked <= other.walked
        assert sum(funnel.walked for funnel in few) < sum(funnel.walked for funnel in whole)
    assert any(funnel.walked for funnel in few)
    monkeypatch.setattr("cep.analysis.cases.REPORT_EVENTS_WALKED_MAX", rules_count)
    none, _ = trace_frauds(one, pieces)
    assert [(funnel.walked, funnel.skipped > 0) for funnel in none] == [(0, True)] * rules_count


# A report is below a megabyte for any input: with many rules, years and thresholds it shows less, and says so.


RULES, YEARS, PAYMENTS = 24, 6, 2_000
LargeInputs = tuple[Measured, Path, ReplayedCharts]
NAMES = tuple(f"over_a_limit_of_the_{number:02}th_shop_and_its_neighbours" for number in range(RULES))
EVENT = """
event pay {
  tx_id       id
  event_time  time
  card_id     string
  note        string
  amount      decimal(2)
}
"""
PATTERN = """
pattern NAME(large: decimal = LARGE.00, known: int = 1, recent: int = 1) by card_id {
  seq    hit
  where  hit: pay  amount > large and count(pay over 30 d) >= known and count(pay over 60 d) >= recent and note != ""
}
"""
SOURCE = EVENT + "".join(
    PATTERN.replace("NAME", name).replace("LARGE", str(100 + 10 * number)) for number, name in enumerate(NAMES)
)


def write_events(path: Path) -> pa.Table:
    """Write payments of years with long notes. Return labels, each of its own kind with a long name."""
    draw = random.Random(1)
    rows: list[dict[str, Any]] = [
        {"tx_id": f"t{number}", "event_time": START_MS - (PAYMENTS - number) * YEARS * 365 * DAY_MS // PAYMENTS,
         "card_id": f"c{number % 40}", "note": f"<{draw.randrange(10**6)}> " * 60,
         "amount": draw.randrange(60_000) / 100}
        for number in range(PAYMENTS)
    ]  # fmt: skip
    pq.write_table(events_table(rows), path)
    bad = [row["tx_id"] for row in rows if row["amount"] > 330 and draw.random() < 0.3]
    kinds = [f"kind {number} & {'so ' * 100}" for number in range(len(bad))]
    return pa.table({"event_id": bad, "label": [True] * len(bad), "kind": kinds})


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> LargeInputs:
    path = tmp_path_factory.mktemp("size") / "events.parquet"
    labels = write_events(path)
    deployment = deploy([upsert(SOURCE, name) for name in NAMES])

    def labels_of(schema: Schema) -> Labels:
        return labels_of_table(labels, schema, "labels")

    def rule_of(name: str) -> OneRule:
        return one_rule_of(upsert(SOURCE, name), ([], ListStore()))

    measured = measure(deployment, partial(read_pieces, path), labels_of(deployment.schema), Terms(), SILENT)
    replays = Replays(rule_of, partial(read_pieces, path), labels_of, Terms(), SILENT)
    return measured, path, replay_for_charts(replays, measured.figures, NAMES[:3])


def large_report(inputs: LargeInputs) -> Report:
    measured, path, thresholds = inputs
    return report(measured, partial(read_pieces, path), measured, 5.0, thresholds)


def test_a_large_report_shows_less_and_says_so(inputs: LargeInputs, monkeypatch: pytest.MonkeyPatch) -> None:
    small = large_report(inputs)
    assert len(small.html.encode()) < REPORT_BYTES_MAX
    assert "To stay below a megabyte this page shows less" in small.html
    assert f"{RULES} rules over {PAYMENTS:,} events" in small.html
    numbers = orjson.loads(small.numbers)
    assert len(numbers["rules"]) == RULES
    assert len(numbers["weeks"]) > 300
    assert {curve["rule"] for curve in numbers["thresholds"]} == set(NAMES[:3])
    monkeypatch.setattr("cep.analysis.report.REPORT_BYTES_MAX", 10**9)
    whole = large_report(inputs)
    assert len(whole.html.encode()) > REPORT_BYTES_MAX, "the input is large enough to need it"
    assert "To stay below a megabyte" not in whole.html
    assert whole.numbers == small.numbers


def test_the_last_level_has_room_to_spare(inputs: LargeInputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.analysis.report.DETAIL_STEPS", DETAIL_STEPS[-1:])
    html = large_report(inputs).html
    assert len(html.encode()) < REPORT_BYTES_MAX / 2
    assert "Left out: the page would be too large." in html
    assert "Not shown: " in html


def test_each_level_shows_no_more_than_the_one_before() -> None:
    for level, less in pairwise(DETAIL_STEPS):
        sizes = [(getattr(level, name), getattr(less, name)) for name in level.__slots__]
        assert all(more >= fewer for more, fewer in sizes)
        assert any(more > fewer for more, fewer in sizes)


def test_a_long_text_is_cut() -> None:
    assert fitting("abc", 3) == "abc"
    assert fitting("abcd", 3) == "ab…"


# The UpSet chart: a matrix of sets of rules, with the frauds that exactly these find above it.


@pytest.fixture
def figures(tmp_path: Path) -> Backtest:
    """Return figures of three rules a, b and c: sets with 4, 2 and 1 frauds, and 3 frauds that no rule finds."""
    events, labels = payments(1, count=200)
    deployment = deployed("large", "never", "small_large")
    read_labels = labels_of_table(labels, deployment.schema, "labels")
    read = partial(pieces_of, events, tmp_path)
    whole = measure(deployment, lambda _: read(), read_labels, Terms(), Console(quiet=True)).figures
    rules = [
        replace(each, rule=name, fraud_recall=ratio(part, 10))
        for each, name, part in zip(whole.rules, "abc", (7, 3, 0), strict=True)
    ]
    overlap = (
        {"rules": ["a"], "frauds": 4}, {"rules": [], "frauds": 3}, {"rules": ["a", "b"], "frauds": 2},
        {"rules": ["b"], "frauds": 1},
    )  # fmt: skip
    return replace(whole, rules=tuple(rules), overlap=overlap)


def test_a_set_is_a_column_and_a_rule_a_row(figures: Backtest) -> None:
    (chart,) = upset(figures)
    assert [row["frauds"] for row in chart.rows if row["frauds"] is not None] == [4, 3, 2, 1]
    members = {(row["set"], row["rule"]) for row in chart.rows if row["member"]}
    assert members == {(0, "a (7)"), (2, "a (7)"), (2, "b (3)"), (3, "b (3)")}
    assert len(chart.rows) == 4 * 2, "c finds nothing, so it has no row"
    (joined,) = chart.drawing["vconcat"][1]["layer"][0]["data"]["values"]
    assert joined == {"set": 2, "first": "a (7)", "last": "b (3)"}


def test_it_says_in_words_what_it_shows(figures: Backtest) -> None:
    (chart,) = upset(figures)
    assert chart.text == "Frauds that exactly these rules find. a: 4; no rule: 3; a and b: 2; b: 1."


def test_dots_bars_and_sizes_are_drawn(figures: Backtest) -> None:
    drawing = svg(upset(figures)[0])
    assert drawing.count("#d5d9df") >= 4, "an empty dot where a rule is not of a set"
    for text in ("a (7)", "b (3)", "frauds"):
        assert f">{text}</text>" in drawing
    for size in (4, 3, 2, 1):
        assert f">{size}</text>" in drawing


def test_where_no_rule_finds_anything_nothing_is_drawn(figures: Backtest) -> None:
    assert upset(replace(figures, overlap=({"rules": [], "frauds": 3},))) == []
    assert upset(replace(figures, overlap=())) == []


def test_rules_without_a_row_are_said(figures: Backtest) -> None:
    names = [f"r{number:02}" for number in range(20)]
    rules = tuple(
        replace(figures.rules[0], rule=name, fraud_recall=ratio(20 - number, 20)) for number, name in enumerate(names)
    )
    (chart,) = upset(replace(figures, rules=rules, overlap=({"rules": names, "frauds": 9},)))
    assert chart.text.endswith("4 rules with fewer frauds have no row.")
    assert {row["rule"] for row in chart.rows} == {f"r{number:02} ({20 - number})" for number in range(16)}


def test_letters_an_eighth_wider_than_measured_have_room(figures: Backtest) -> None:
    """Names at the left edge and names of a legend have room next to them."""
    spec = upset(figures)[0].spec()
    legend = spec["config"]["legend"]
    assert WIDER >= 0.125
    assert spec["padding"]["left"] >= WIDER * spec["config"]["axis"]["labelLimit"]
    assert legend["columnPadding"] >= WIDER * legend["labelLimit"]
