"""The UpSet chart: a matrix of sets of rules, with the frauds that exactly these find above it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from cep.analysis.backtest import Backtest, ratio
from cep.analysis.charts import WIDER, svg
from cep.analysis.labels import labels_of_table
from cep.analysis.measure import Terms, measure
from cep.analysis.upset import upset
from tests.analysis.bench_data import deployed, payments, pieces_of


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
