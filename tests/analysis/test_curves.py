"""Curves of parameters: every point has the figures of a backtest of the rule with that value."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from cep.analysis.axes import number_of, numeric_axes
from cep.analysis.backtest import Figures
from cep.analysis.curves import Curve, Point, curves, pairs
from cep.analysis.figure_charts import threshold_curves, threshold_pairs
from cep.analysis.labels import labels_of_column
from cep.analysis.measure import Terms, measure
from cep.analysis.split import whole_time
from cep.analysis.sweep import Bench
from cep.base.errors import UsageError
from cep.lang.load import load_text
from cep.lists.store import ListStore
from cep.model.rule import ParamValue
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from tests.analysis.bench_data import SOURCE, payments
from tests.bench.peer_data import upsert

SILENT = Console(quiet=True)
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
    ) -> tuple[Bench, Figures, int]:
        """Return a bench over the whole time, the figures of the rule with these parameters, and the days."""
        record = upsert(*of).model_copy(update={"params": params})
        deployment = deploy([record])
        assert deployment.set_aside == ()
        labels = labels_of_column([self.events], "is_fraud", deployment.schema)
        measured = measure(deployment, partial(read_pieces, self.path), labels, Terms(), SILENT)
        whole = whole_time(measured.history.events, measured.marks)
        bench = Bench(record, ((), ListStore()), partial(read_pieces, self.path), measured.marks, (whole,), 2, SILENT)
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
