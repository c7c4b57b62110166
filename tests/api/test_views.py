"""Frames whose rows are several events, such as a transfer that belongs to two accounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import cep
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
