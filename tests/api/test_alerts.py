"""Alerts in a notebook: their members, pictures and charts, and the answers to why."""

import json
import math
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import cep
from cep.api.alerts import VEGA_LITE, Plot, by_day, spread
from cep.api.replay import GivenRules, produce
from cep.api.rules import Rules
from cep.cli import main as cli
from cep.columnar.decode import KEY_SEPARATOR
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from tests.api.frames import EVENT, KINDS, PATTERN, payments, write_rules
from tests.bench.peer_data import upsert
from tests.output_of import OutputOf
from tests.rule_files import rule_text
from tests.runners.laundering import NAMES, SOURCE, circles, transfers

# Alerts in a notebook: members, measures, pictures, and the answers to why.

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


def test_measures_of_versions_with_other_types(tmp_path: Path) -> None:
    folder, control = write_rules(tmp_path / "rules"), tmp_path / "control.jsonl"
    for value, type_ in (("hit.tries", pa.float64()), ("hit.country", None)):
        source = EVENT + PATTERN.replace("score = hit.score", f"score = {value}")
        record = upsert(source, "small_then_large")
        change = {"version": 2, "effective_at": "2026-03-01T01:00:00Z"}
        control.write_bytes(record.model_copy(update=change).to_json())
        alerts = cep.load(folder, control=control).match(payments(), cores=1)
        assert set(alerts.table["version"].to_pylist()) == {1, 2}
        if type_ is None:
            with pytest.raises(cep.CepError, match="values of other types under one name"):
                alerts.measures("small_then_large")
        else:
            assert alerts.measures("small_then_large").schema.field("score").type == type_


def test_a_measure_with_the_name_of_another_column() -> None:
    source = "pattern p by card_id { seq a where a: payment emit version = a.tries, alert_id = a.amount }"
    alerts = cep.parse(EVENT + source).match(payments(), cores=1)
    assert alerts.measures("p").column_names == ["alert_id", "version", "version#2", "alert_id#2"]
    assert alerts.measures("p")["version#2"].to_pylist() != alerts.measures("p")["version"].to_pylist()
    with pytest.raises(cep.CepError, match="did you mean `version#2`"):
        alerts.spread("p", "version")


def test_an_event_ahead_of_the_clock_is_no_reason_for_an_alert() -> None:
    late = pc.add(payments()["event_time"], pa.scalar(timedelta(days=36_500)))
    table = payments().set_column(1, "event_time", late)
    rules = cep.parse(EVENT + "pattern p by tries { seq a where a: payment }")
    with pytest.warns(cep.RejectedRecordsWarning, match="as ahead"):
        assert len(rules.match(table, cores=1)) == 0
    answer = rules.why_not("p", table["tries"][0].as_py(), table)
    assert not answer.is_alert
    assert "set aside as dated ahead of the clock: " in str(answer)


def test_an_alert_of_the_future_is_explained(rules: cep.Rules) -> None:
    late = pc.add(payments()["event_time"], pa.scalar(timedelta(days=36_500)))
    table = payments().set_column(1, "event_time", late)
    lone = "pattern p by card_id { seq a -> !b within 1 h where a: payment b: payment tries > 99 }"
    alerts = cep.parse(EVENT + lone).match(table, ahead_max="off", cores=1)
    assert alerts.why(0).is_alert


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


# Charts of alerts have the counts of the alerts, as Vega-Lite and as SVG.

VEGA_LITE_FILE = "application/vnd.vegalite.v5+json"
BOTH = (
    EVENT + PATTERN + "pattern large by card_id { seq t  where t: payment amount > 400.00  emit country = t.country }"
)


@pytest.fixture(scope="module")
def drawn_alerts() -> cep.Alerts:
    return cep.parse(BOTH).match(payments(), cores=2)


def rows_of(plot: Plot) -> list[dict[str, Any]]:
    json.dumps(plot.spec, allow_nan=False)
    rows: list[dict[str, Any]] = plot.spec["data"]["values"]
    return rows


def test_alerts_by_day_are_counted_by_rule(drawn_alerts: cep.Alerts) -> None:
    counted = {(row["day"], row["rule"]): row["alerts"] for row in rows_of(drawn_alerts.by_day())}
    expected = Counter((a["detected_at"].strftime("%Y-%m-%d"), a["rule_id"]) for a in drawn_alerts.table.to_pylist())
    assert counted == expected
    assert (
        str(drawn_alerts.by_day())
        == f"{len(drawn_alerts)} alerts of 2 rules on {len({day for day, _ in expected})} days"
    )


def test_measures_are_spread(drawn_alerts: cep.Alerts) -> None:
    amounts = drawn_alerts.measures("small_then_large")["amount"].to_pylist()
    plot = drawn_alerts.spread("small_then_large", "amount")
    assert sum(row["alerts"] for row in rows_of(plot)) == len(amounts)
    countries = drawn_alerts.spread("large", "country")
    there = Counter(value for value in drawn_alerts.measures("large")["country"].to_pylist() if value is not None)
    assert {row["value"]: row["alerts"] for row in rows_of(countries)} == there
    with pytest.raises(cep.CepError, match=r"`amuont`.*did you mean `amount`"):
        drawn_alerts.spread("small_then_large", "amuont")


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


def test_a_notebook_draws_it_with_and_without_the_extra(
    drawn_alerts: cep.Alerts, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = drawn_alerts.by_day()._repr_mimebundle_()
    assert bundle[VEGA_LITE_FILE]["mark"]["type"] == "bar"
    ET.fromstring(bundle["image/svg+xml"])
    ET.fromstring(drawn_alerts.spread("small_then_large", "amount").svg)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert set(drawn_alerts.by_day()._repr_mimebundle_()) == {VEGA_LITE_FILE, "text/plain"}
    with pytest.raises(cep.CepError, match=r"cep\[charts\]"):
        _ = drawn_alerts.by_day().svg


def test_no_alerts_are_a_chart_too(drawn_alerts: cep.Alerts) -> None:
    assert rows_of(by_day(drawn_alerts.table.slice(0, 0))) == []
    assert rows_of(spread(pa.chunked_array([], pa.int64()), "r", "n")) == []


# Questions about rules that read derived events: answered from the events of the source alone.


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("levels")
    (folder / "rules").mkdir()
    (folder / "rules" / "p.cep").write_text(SOURCE, encoding="utf-8")
    for name in NAMES:
        (folder / "rules" / f"{name}.toml").write_text(rule_text(name), encoding="utf-8")
    pq.write_table(transfers(1, 120), folder / "transfers.parquet")
    return folder


@pytest.fixture(scope="module")
def chain(place: Path) -> Rules:
    return cep.load(str(place / "rules"))


def test_the_events_behind_an_alert_are_those_of_the_circle(place: Path, chain: Rules) -> None:
    """Three transfers form the circle: each starts at the account that the one before paid, and the last returns."""
    table = transfers(1, 120)
    by_id = {row["tx_id"]: row for row in table.to_pylist()}
    rules_of_job = GivenRules.read(place / "rules", None)
    produced = produce(rules_of_job, read_pieces(place / "transfers.parquet", rules_of_job.deployment.schema), None)
    alerts = chain.match(table)
    assert len(alerts) >= len(circles(table)) > 0
    for alert in alerts.table.to_pylist():
        origin, target = alert["key"].split(KEY_SEPARATOR)
        origins = [o for e in alert["events"] for o in produced.origins(e["event_id"], (e["variable"],))]
        assert [(o.level, ".".join(o.variables)) for o in origins] == [(3, "h.c.t"), (3, "h.d.t"), (2, "b.t")]
        listed = [
            (o["level"], tuple(o["variable"].split(".")), o["event_id"], o["event_time"]) for o in alert["origins"]
        ]
        assert listed == [(o.level, o.variables, o.event_id, o.event_time) for o in origins], "as `cep why` finds them"
        assert [o["place"] for o in alert["origins"]] == [0, 0, 1]
        first, second, third = (by_id[o.event_id] for o in origins)
        assert [o.event_time for o in origins] == [first["event_time"], second["event_time"], third["event_time"]]
        assert (first["payer"], second["payee"], third["payee"]) == (origin, target, origin)
        assert first["payee"] == second["payer"]
        assert third["payer"] == target


def test_members_have_the_origins_behind_each_event(chain: Rules) -> None:
    alerts = chain.match(transfers(1, 120))
    expected = []
    for alert in alerts.table.to_pylist():
        for place, event in enumerate(alert["events"]):
            expected.append((alert["alert_id"], place, 1, event["variable"], event["event_id"]))
            expected += [
                (alert["alert_id"], place, o["level"], o["variable"], o["event_id"])
                for o in alert["origins"]
                if o["place"] == place
            ]
    names = ["alert_id", "place", "level", "variable", "event_id"]
    assert [tuple(row.values()) for row in alerts.members.select(names).to_pylist()] == expected
    assert b'"origins":[{"place":0,"level":3,"variable":"h.c.t",' in next(json_lines(alerts.table))


def test_why_and_why_not_of_a_chain(place: Path, chain: Rules, output_of: OutputOf) -> None:
    events = ["--events", str(place / "transfers.parquet"), "--rules", str(place / "rules")]
    assert cli.main(["replay", *events, "--out", str(place / "alerts.jsonl")]) == 0
    alerts = chain.match(transfers(1, 120))
    alert = alerts.table.slice(0, 1).to_pylist()[0]
    command = ["why", "--alerts", str(place / "alerts.jsonl"), "--alert", alert["alert_id"]]
    output_of.read()
    printed = output_of(cli.main([*command, *events])).out
    assert "made of the events of the source:" in printed
    assert "h.c.t" in printed
    assert "made of the events of the source:" in str(alerts.why(0))
    keys = [word for part in alert["key"].split(KEY_SEPARATOR) for word in ("--key", part)]
    assert "h.c.t" in output_of(cli.main(["why-not", "--rule", "circle", *keys, *events]), 1).out
    printed = output_of(cli.main(["why-not", "--rule", "circle", "--key", "a", "--key", "zz", *events])).out
    assert "hop, back: produced by closing, passed_on, of which this can be asked, too" in printed


def test_a_rule_without_levels_reads_one_key(place: Path, chain: Rules) -> None:
    """A rule that reads no derived events needs no replay of the whole history."""
    table = pa.concat_tables([transfers(1, 120).slice(0, 5)])
    assert "produced by" not in str(chain.why_not("incoming", "a", table))
