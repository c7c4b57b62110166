"""Alerts in a notebook: members, measures, pictures, and the answers to why."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import cep
from cep.api.picture import VEGA_LITE
from tests.api.frames import EVENT, KINDS, PATTERN, payments

SUPPRESSING = EVENT + PATTERN


@pytest.fixture(scope="module")
def rules() -> cep.Rules:
    return cep.parse(EVENT + PATTERN)


@pytest.fixture(scope="module")
def alerts(rules: cep.Rules) -> cep.Alerts:
    return rules.match(payments(), cores=2)


def test_members_are_the_events_of_the_alerts(alerts: cep.Alerts) -> None:
    expected = [
        (alert["alert_id"], place, *event.values())
        for alert in alerts.table.to_pylist()
        for place, event in enumerate(alert["events"])
    ]
    names = ["alert_id", "place", "variable", "event_id", "event_time"]
    assert [tuple(row.values()) for row in alerts.members.select(names).to_pylist()] == expected
    # Each is one of the payments, at its own time and with the alert's key.
    sources = payments().rename_columns({"event_time": "at"})
    joined = alerts.members.join(sources, "event_id", "tx_id", join_type="inner")
    assert joined.num_rows == len(expected)
    assert pc.all(pc.equal(joined["event_time"], joined["at"])).as_py()
    assert pc.all(pc.equal(joined["key"], joined["card_id"])).as_py()


def test_measures_have_the_types_of_the_pattern(alerts: cep.Alerts) -> None:
    table = alerts.measures("small_then_large")
    assert table.schema.field("baits").type == pa.int64()
    assert pa.types.is_decimal(table.schema.field("amount").type)
    assert table.schema.field("score").type == pa.float64()
    assert table.schema.field("at").type == pa.timestamp("ms", "UTC")
    assert table["alert_id"].equals(alerts.table["alert_id"])
    written = [json.loads(text) for text in alerts.table["measures"].to_pylist()]
    assert [int(row["baits"]) for row in written] == table["baits"].to_pylist()
    assert [str(row["amount"]) for row in written] == [str(value) for value in table["amount"].to_pylist()]
    assert [row["country"] for row in written] == table["country"].to_pylist()
    ids = dict(zip(payments()["tx_id"].to_pylist(), payments()["event_time"].to_pylist(), strict=True))
    hits = [alert["events"][-1]["event_id"] for alert in alerts.table.to_pylist()]
    assert table["at"].to_pylist() == [ids[event_id] for event_id in hits]
    with pytest.raises(cep.CepError, match="did you mean small_then_large"):
        alerts.measures("small_then_larger")


def test_measures_of_a_rule_without_alerts(rules: cep.Rules) -> None:
    empty = rules.match(payments().slice(0, 1), cores=1).measures("small_then_large")
    assert empty.num_rows == 0
    assert empty.schema.names == ["alert_id", "version", "baits", "amount", "country", "score", "at"]


@pytest.mark.parametrize("kind", KINDS)
def test_why_of_each_kind_of_frame(kind: str, rules: cep.Rules, alerts: cep.Alerts) -> None:
    of_kind = rules.match(KINDS[kind](payments()), cores=2)
    answer = of_kind.why(-1)
    assert answer.is_alert
    assert str(answer) == str(alerts.why(len(alerts) - 1))
    last = alerts.table.to_pylist()[-1]
    assert all(event["event_id"] in str(answer) for event in last["events"])
    assert str(of_kind.why(last["alert_id"][:12])) == str(answer)
    assert "<pre" in answer._repr_html_()


def test_why_of_an_alert_that_is_not_there(alerts: cep.Alerts) -> None:
    with pytest.raises(cep.CepError, match=f"there is no alert {len(alerts)}"):
        alerts.why(len(alerts))
    with pytest.raises(cep.CepError, match="0 alerts have an id that begins with zz"):
        alerts.why("zz")


def test_why_not(rules: cep.Rules, alerts: cep.Alerts) -> None:
    table = payments().set_column(3, "amount", pc.subtract(payments()["amount"], payments()["amount"]))
    key = alerts.table["key"][0].as_py()
    answer = rules.why_not("small_then_large", key, table)
    assert not answer.is_alert
    assert f"no alert of small_then_large for card_id {key}" in str(answer)
    assert rules.why_not("small_then_large", key, payments()).is_alert
    assert "the key has no events" in str(rules.why_not("small_then_large", "nobody", payments()))
    with pytest.raises(cep.CepError, match="is keyed by card_id"):
        rules.why_not("small_then_large", ["a", "b"], payments())


def test_a_notebook_shows_a_table_and_a_picture(alerts: cep.Alerts) -> None:
    html = alerts._repr_mimebundle_()["text/html"]
    assert html.count("<tr>") == 1 + min(len(alerts), 20)
    assert "<svg" in html
    assert f"{len(alerts)} alerts of {payments().num_rows} events" in repr(alerts)
    assert repr(cep.parse(EVENT + PATTERN).match(payments().slice(0, 1))) == "0 alerts of 1 event"
    drawing = ET.fromstring(alerts.timeline(1).svg)
    bundle = alerts.timeline(1)._repr_mimebundle_()
    assert bundle["image/svg+xml"] == alerts.timeline(1).svg
    chart = bundle[VEGA_LITE]["layer"][0]["data"]["values"]
    assert [row["event"] for row in chart] == [event["event_id"] for event in alerts.table["events"][1].as_py()]
    circles = drawing.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == len(alerts.table["events"][1])


def test_a_message_cannot_break_out_of_the_page() -> None:
    rules = cep.parse(EVENT + "pattern p by card_id { seq t  where t: payment amount > 1.00  emit c = t.country }")
    table = payments().slice(0, 1)
    evil = table.set_column(2, "card_id", pa.array(["<script>x</script>"])).set_column(
        0, "tx_id", pa.array(["<b>&"])
    ).set_column(3, "amount", pa.array([9.0]))  # fmt: skip
    alerts = rules.match(evil, cores=1)
    assert len(alerts) == 1
    shown = alerts._repr_html_() + alerts.why(0)._repr_html_()
    assert "<script>" not in shown
    assert "<b>&" not in shown


def test_plan_draws_and_says(rules: cep.Rules) -> None:
    plan = rules["small_then_large"].plan()
    ET.fromstring(plan.svg)
    assert "3 states" in str(plan)
    assert plan._repr_mimebundle_()["image/svg+xml"] == plan.svg == plan._repr_svg_()
