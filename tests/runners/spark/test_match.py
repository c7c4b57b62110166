"""`Rules.match` on a Spark DataFrame: lazy, and the alerts of the replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name that Spark's own documentation uses

import cep
from cep.engine.alerts import ALERT_SCHEMA
from tests.api.frames import EVENT, PATTERN, payments, with_type, write_rules

pytestmark = pytest.mark.spark
LISTED = """
list bad: string = ["FR"]
event hit { hit_id id  event_time time  card_id string  amount decimal(2) }
pattern big by card_id {
  seq p  where p: payment amount > 600.00  emit card_id = p.card_id, amount = p.amount  produce hit
}
pattern twice by card_id { seq a -> b within 30 min  where a: hit  b: hit amount > a.amount  emit n = b.amount }
"""


def collected(alerts: Any) -> pa.Table:
    table = alerts.orderBy("detected_at", "alert_id").toArrow()
    return table.select(ALERT_SCHEMA.names).cast(ALERT_SCHEMA)


def test_a_spark_frame_gives_the_alerts_of_the_replay(spark: SparkSession, tmp_path: Path) -> None:
    folder = write_rules(tmp_path / "rules")
    table = payments()
    pq.write_table(table, tmp_path / "payments.parquet")
    rules = cep.load(folder)
    expected = rules.match(table, cores=2)
    frame = spark.read.parquet(str(tmp_path / "payments.parquet"))
    alerts = rules.match(frame, partitions=3)
    assert isinstance(alerts, DataFrame)
    assert collected(alerts).equals(expected.table)
    # Matching is a part of the user's query: it is planned with the query and matches only the requested rows.
    by_key = alerts.groupBy("key").agg(F.count("*").alias("n")).filter("n > 1").collect()
    assert {row["key"]: row["n"] for row in by_key} == {
        key: n for key in set(expected.table["key"].to_pylist())
        if (n := expected.table["key"].to_pylist().count(key)) > 1
    }  # fmt: skip
    # The frame has other names, and times without a zone.
    local = frame.select(*[F.col(name).alias("cc_num" if name == "card_id" else name) for name in frame.columns])
    naive = local.withColumn("event_time", F.col("event_time").cast("timestamp_ntz"))
    with pytest.raises(cep.CepError, match=r"no column `card_id`.*columns="):
        rules.match(naive)
    with pytest.raises(cep.CepError, match="without a zone"):
        rules.match(naive, columns={"card_id": "cc_num"})
    moved = rules.match(naive, columns={"card_id": "cc_num"}, tz="Europe/Paris")
    here = rules.match(with_type(table, {"event_time": pa.timestamp("ms")}), tz="Europe/Paris", cores=2)
    assert collected(moved).equals(here.table)
    nested = frame.withColumn("card", F.struct(F.col("card_id").alias("id"))).drop("card_id")
    assert collected(rules.match(nested, columns={"card_id": "card.id"})).equals(expected.table)
    # An unreadable record.
    wrong = frame.withColumn("status", F.when(F.col("tx_id") == "t0003", "maybe").otherwise(F.col("status")))
    (letter,) = rules.set_aside(wrong).collect()
    assert '"wrong_value"' in letter["letter"]


def test_levels_lists_and_suppression_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    folder = write_rules(tmp_path / "rules")
    chain = EVENT + LISTED + PATTERN.replace("tries > 0", "tries > 0 and (country is null or country not in bad)")
    (folder / "patterns.cep").write_text(chain)
    rule = (folder / "small_then_large.toml").read_text()
    (folder / "small_then_large.toml").write_text(rule.replace("owner", 'suppress = "20 min"\nowner'))
    for name in ("big", "twice"):
        text = rule.replace("small_then_large", name).replace("{baits} baits, then {amount} in {country}", "m")
        (folder / f"{name}.toml").write_text(text)
    rules = cep.load(folder)
    assert rules.problems == ()
    expected = rules.match(payments(), cores=2)
    assert expected.suppressed.num_rows > 0
    assert set(expected.table["rule_id"].to_pylist()) == {"small_then_large", "twice"}
    frame = spark.createDataFrame(payments())
    assert collected(rules.match(frame, partitions=2)).equals(expected.table)
    with pytest.raises(cep.CepError, match="a stream"):
        rules.match(spark.readStream.format("rate").load().selectExpr("*"))
