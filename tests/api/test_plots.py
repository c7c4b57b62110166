"""Charts of alerts have the counts of the alerts, as Vega-Lite and as SVG."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

import cep
from cep.api.plots import Plot, by_day, spread
from tests.api.frames import EVENT, PATTERN, payments

VEGA_LITE = "application/vnd.vegalite.v5+json"
BOTH = (
    EVENT + PATTERN + "pattern large by card_id { seq t  where t: payment amount > 400.00  emit country = t.country }"
)


@pytest.fixture(scope="module")
def alerts() -> cep.Alerts:
    return cep.parse(BOTH).match(payments(), cores=2)


def rows_of(plot: Plot) -> list[dict[str, Any]]:
    json.dumps(plot.spec, allow_nan=False)
    rows: list[dict[str, Any]] = plot.spec["data"]["values"]
    return rows


def test_alerts_by_day_are_counted_by_rule(alerts: cep.Alerts) -> None:
    counted = {(row["day"], row["rule"]): row["alerts"] for row in rows_of(alerts.by_day())}
    expected = Counter((a["detected_at"].strftime("%Y-%m-%d"), a["rule_id"]) for a in alerts.table.to_pylist())
    assert counted == expected
    assert str(alerts.by_day()) == f"{len(alerts)} alerts of 2 rules on {len({day for day, _ in expected})} days"


def test_measures_are_spread(alerts: cep.Alerts) -> None:
    amounts = alerts.measures("small_then_large")["amount"].to_pylist()
    plot = alerts.spread("small_then_large", "amount")
    assert sum(row["alerts"] for row in rows_of(plot)) == len(amounts)
    countries = alerts.spread("large", "country")
    there = Counter(value for value in alerts.measures("large")["country"].to_pylist() if value is not None)
    assert {row["value"]: row["alerts"] for row in rows_of(countries)} == there
    with pytest.raises(cep.CepError, match=r"`amuont`.*did you mean `amount`"):
        alerts.spread("small_then_large", "amuont")


@pytest.mark.parametrize("values", [[1.5, None, float("nan"), *range(40)], list(range(500)), [-1, True, 7]])
def test_numbers_come_into_ranges_that_they_lie_in(values: list[float]) -> None:
    column = pa.chunked_array([pa.array(values, pa.float64())])
    rows = rows_of(spread(column, "r", "n"))
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    assert sum(row["alerts"] for row in rows) == len(numbers)
    for row in rows:
        if "from" in row:
            is_last = row is rows[-1]
            inside = [v for v in numbers if row["from"] <= v < row["to"] or (is_last and v == row["to"])]
            assert row["alerts"] == len(inside)


def test_a_notebook_draws_it_with_and_without_the_extra(alerts: cep.Alerts, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = alerts.by_day()._repr_mimebundle_()
    assert bundle[VEGA_LITE]["mark"]["type"] == "bar"
    ET.fromstring(bundle["image/svg+xml"])
    ET.fromstring(alerts.spread("small_then_large", "amount").svg)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert set(alerts.by_day()._repr_mimebundle_()) == {VEGA_LITE, "text/plain"}
    with pytest.raises(cep.CepError, match=r"cep\[charts\]"):
        _ = alerts.by_day().svg


def test_no_alerts_are_a_chart_too(alerts: cep.Alerts) -> None:
    assert rows_of(by_day(alerts.table.slice(0, 0))) == []
    assert rows_of(spread(pa.chunked_array([], pa.int64()), "r", "n")) == []
