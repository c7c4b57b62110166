"""Frames whose rows are several events, such as a transfer that belongs to two accounts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import cep
from cep.cli.main import main as cli
from tests.api.frames import payments, write_rules

COLUMNS = {"sent/card_id": "from_card", "received/card_id": "to_card"}
FIXED = {"received/country": "ZZ"}


def transfers() -> pa.Table:
    """Return rows with two cards and no column called `card_id`; every tenth row lacks a receiver."""
    table = payments()
    cards = table["card_id"]
    other = pa.array([None if row % 10 == 0 else f"to-{card}" for row, card in enumerate(cards.to_pylist())])
    return table.drop_columns("card_id").append_column("from_card", cards).append_column("to_card", other)


def apart() -> pa.Table:
    """Return the same events with a row for each."""
    table = transfers()
    parts = []
    for view, name in (("sent", "from_card"), ("received", "to_card")):
        ids = pc.binary_join_element_wise(table["tx_id"].cast(pa.string()), view, "#")
        part = table.set_column(table.column_names.index("tx_id"), "tx_id", ids)
        if view == "received":
            countries = pa.repeat("ZZ", table.num_rows)
            part = part.set_column(part.column_names.index("country"), "country", countries)
        part = part.append_column("card_id", part[name]).drop_columns(["from_card", "to_card"])
        parts.append(part.filter(pc.is_valid(part["card_id"])))
    return pa.concat_tables(parts, promote_options="permissive")


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> cep.Rules:
    return cep.load(write_rules(tmp_path_factory.mktemp("views") / "rules"))


def test_any_frame_gives_the_alerts_of_a_row_for_each_event(rules: cep.Rules, tmp_path: Path) -> None:
    expected = rules.match(apart(), cores=2)
    assert len(expected) > len(rules.match(payments(), cores=2)) > 0
    pq.write_table(transfers(), tmp_path / "t.parquet")
    frames: list[Any] = [
        transfers(), transfers().to_pandas(), pl.from_arrow(transfers()), tmp_path / "t.parquet",
    ]  # fmt: skip
    for frame in frames:
        alerts = rules.match(frame, columns=COLUMNS, fixed=FIXED, cores=2)
        assert alerts.table.equals(expected.table), type(frame)
        assert len(alerts.set_aside) == 0
    key = expected.table["key"][-1].as_py()
    story = rules.why_not("small_then_large", key, apart())
    assert str(rules.why_not("small_then_large", key, transfers(), columns=COLUMNS, fixed=FIXED)) == str(story)


def test_a_column_of_labels_is_of_every_view(rules: cep.Rules) -> None:
    alert = rules.match(apart(), cores=2)
    frauds = {event_id.partition("#")[0] for event_id in pa.table(alert.members)["event_id"].to_pylist()}
    table = transfers()
    is_fraud = pa.array([event_id in frauds for event_id in table["tx_id"].cast(pa.string()).to_pylist()])
    measured = rules.backtest(
        table.append_column("is_fraud", is_fraud), labels="is_fraud", columns=COLUMNS, fixed=FIXED
    )
    (rule,) = measured.to_json()["rules"]
    assert rule["precision"]["value"] == 1.0, rule
    about = measured.figures.about
    assert about["fraud_events"] == about["frauds"] == len(frauds), "a record is one fraud, whatever makes events of it"
    assert rule["event_recall"]["value"] == rule["fraud_recall"]["value"] == 1.0
    paid = sum(row["amount"] for row in table.to_pylist() if str(row["tx_id"]) in frauds)
    assert about["fraud_money"] == pytest.approx(float(paid))
    labels = pa.table({"event_id": sorted(frauds)})
    by_file = rules.backtest(table, labels=labels, columns=COLUMNS, fixed=FIXED)
    assert by_file.figures.together == measured.figures.together


def test_what_a_view_lacks_is_refused(rules: cep.Rules) -> None:
    with pytest.raises(cep.CepError, match="no column `nowhere`"):
        rules.match(transfers(), columns={"sent/card_id": "nowhere"})
    with pytest.raises(cep.CepError, match="no column `card_id`"):
        rules.match(transfers(), columns={"sent/card_id": "from_card"}, fixed={"received/country": "ZZ"})
    with pytest.raises(cep.CepError, match="no field `card_idd`"):
        rules.match(transfers(), columns={"sent/card_idd": "from_card", **COLUMNS})


@pytest.mark.spark
def test_spark_frames_too(spark: SparkSession, rules: cep.Rules, tmp_path: Path) -> None:
    expected = rules.match(apart(), cores=2).table
    pq.write_table(transfers(), tmp_path / "t.parquet")
    frame = spark.read.parquet(str(tmp_path / "t.parquet"))
    alerts: Any = rules.match(frame, columns=COLUMNS, fixed=FIXED)
    alert_ids = [row["alert_id"] for row in alerts.collect()]
    assert sorted(alert_ids) == sorted(expected["alert_id"].to_pylist())


DECLARED = """
event transfer { tx_id id  event_time time  card_id string?  amount decimal(2)  country string? }
"""
SPENT = {"spent": "sum(transfer.amount over 7 d)", "pairs": "count(transfer over previous 1 d)"}


@pytest.mark.parametrize("suffix", ["frame", ".parquet", ".csv", ".jsonl"])
def test_a_feature_has_a_column_for_each_view(suffix: str, tmp_path: Path) -> None:
    """The values equal those of a table with a row for each event; a record without a receiver has none there."""
    whole = transfers().select(["tx_id", "event_time", "from_card", "to_card", "amount", "country"])
    events: Any = whole if suffix == "frame" else tmp_path / f"transfers{suffix}"
    if suffix == ".parquet":
        pq.write_table(whole, events)
    elif suffix == ".csv":
        pcsv.write_csv(whole, events)
    elif suffix == ".jsonl":
        rows = [
            {**row, "event_time": row["event_time"].isoformat(), "amount": str(row["amount"])}
            for row in whole.to_pylist()
        ]
        events.write_text("\n".join(map(json.dumps, rows)))
    features = cep.features(events, SPENT, by="card_id", declare=DECLARED, columns=COLUMNS, fixed=FIXED)
    assert features.num_rows == whole.num_rows
    single = cep.features(apart(), SPENT, by="card_id", declare=DECLARED)
    expected = {row["tx_id"]: (row["spent"], row["pairs"]) for row in single.to_pylist()}
    for view in ("sent", "received"):
        expected_pairs = [expected.get(f"{tx_id}#{view}", (None, None)) for tx_id in whole["tx_id"].to_pylist()]
        pairs = zip(features[f"spent_{view}"].to_pylist(), features[f"pairs_{view}"].to_pylist(), strict=True)
        assert list(pairs) == expected_pairs, view
    assert sum(value is None for value in features["spent_received"].to_pylist()) == 24
    later = cep.features(
        events, SPENT, by="card_id", declare=DECLARED, columns=COLUMNS, fixed=FIXED, since="2026-03-01T00:30:00Z"
    )
    assert 0 < later.num_rows < features.num_rows
    if suffix != "frame":
        flags = [text for name, source in COLUMNS.items() for text in ("--columns", f"{name}={source}")]
        (tmp_path / "t.cep").write_text(DECLARED)
        out = tmp_path / "out.parquet"
        arguments = [
            "--events",
            str(events),
            "--declare",
            str(tmp_path / "t.cep"),
            "--by",
            "card_id",
            "--out",
            str(out),
        ]
        assert cli(["features", *arguments, *flags, "--fixed", "received/country=ZZ", f"spent={SPENT['spent']}"]) == 0
        assert pq.read_table(out)["spent_sent"].to_pylist() == features["spent_sent"].to_pylist()


def test_features_of_views_need_a_declaration() -> None:
    with pytest.raises(cep.CepError, match=r"with views .* give their declaration"):
        cep.features(transfers(), SPENT, by="card_id", columns=COLUMNS)
    clash = transfers().append_column("spent_sent", transfers()["amount"])
    with pytest.raises(cep.CepError, match="has a column `spent_sent` already"):
        cep.features(clash, SPENT, by="card_id", declare=DECLARED, columns=COLUMNS)


PASSED = """
event transfer { tx_id id  event_time time  account string  amount decimal(2)  side enum(in, out) }
pattern passed by account {
  seq    a -> b  within 1 h
  where  a: transfer side == in
         b: transfer side == out
}
"""


@pytest.mark.parametrize("first", ["payee", "payer"])
def test_the_names_of_views_do_not_change_the_alerts(first: str) -> None:
    """Transfers of one time: the order of their events is not that of the names of views, of any length."""
    draw = random.Random(5)
    names = [f"a{draw.randrange(6)}" for _ in range(400)]
    table = pa.table({
        "tx_id": [str(number) for number in range(90, 290)],
        "event_time": pa.array([60_000 * (number // 4) for number in range(200)], pa.timestamp("ms", "UTC")),
        "payer": names[:200], "payee": names[200:], "amount": [10.0] * 200,
    })  # fmt: skip
    passed = (
        PASSED.replace("(in, out)", "(inward, outward)").replace("== in", "== inward").replace("== out", "== outward")
    )
    bound_events = []
    for sent, received in (("sent", "received"), ("s", "r"), ("a", "zzzzzz"), ("z", "a")):
        views = [(f"{received}/account", "payee"), (f"{sent}/account", "payer")]
        columns = dict(views if first == "payee" else views[::-1])
        fixed = {f"{received}/side": "inward", f"{sent}/side": "outward"}
        alerts = cep.parse(passed).match(table, columns=columns, fixed=fixed, cores=2)
        bound = [
            tuple(event["event_id"].partition("#")[0] for event in events)
            for events in alerts.table["events"].to_pylist()
        ]
        bound_events.append(sorted(bound))
    assert len(bound_events[0]) > 50
    assert bound_events[1:] == bound_events[:1] * 3
