"""`Rules.match` on a Spark DataFrame: lazy, and the alerts of the replay.

`Rules.match_stream` is a part of the user's own streaming query, with the same alerts.
"""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name that Spark's own documentation uses

import cep
from cep.base.text import utc_text
from cep.model.rule import HeartbeatRecord
from cep.rulebook.files import read_rules
from cep.runners.spark.match_stream import check_session
from tests.api.frames import payments, with_type, write_rules
from tests.runners.spark.stream_cases import add_file, as_alerts, with_an_end, write_chain

pytestmark = pytest.mark.spark


def test_a_spark_frame_gives_the_alerts_of_the_replay(spark: SparkSession, tmp_path: Path) -> None:
    folder = write_rules(tmp_path / "rules")
    table = payments()
    pq.write_table(table, tmp_path / "payments.parquet")
    rules = cep.load(folder)
    expected = rules.match(table, cores=2)
    frame = spark.read.parquet(str(tmp_path / "payments.parquet"))
    alerts = rules.match(frame, partitions=3)
    assert isinstance(alerts, DataFrame)
    assert as_alerts(alerts).equals(expected.table)
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
    assert as_alerts(moved).equals(here.table)
    nested = frame.withColumn("card", F.struct(F.col("card_id").alias("id"))).drop("card_id")
    assert as_alerts(rules.match(nested, columns={"card_id": "card.id"})).equals(expected.table)
    # An unreadable record.
    wrong = frame.withColumn("status", F.when(F.col("tx_id") == "t0003", "maybe").otherwise(F.col("status")))
    (letter,) = rules.set_aside(wrong).collect()
    assert '"wrong_value"' in letter["letter"]


def test_levels_lists_and_suppression_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    rules = cep.load(write_chain(tmp_path / "rules"))
    assert rules.problems == ()
    expected = rules.match(payments(), cores=2)
    assert expected.suppressed.num_rows > 0
    assert set(expected.table["rule_id"].to_pylist()) == {"small_then_large", "twice"}
    frame = spark.createDataFrame(payments())
    assert as_alerts(rules.match(frame, partitions=2)).equals(expected.table)
    with pytest.raises(cep.CepError, match="a stream"):
        rules.match(spark.readStream.format("rate").load().selectExpr("*"))


TERMS: dict[str, Any] = {"key_groups": 4}
END = HeartbeatRecord(event_time="2026-06-01T00:00:00Z").to_json()


def files(spark: SparkSession, folder: Path) -> DataFrame:
    schema = spark.createDataFrame(payments().slice(0, 1)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def run(alerts: DataFrame, folder: Path) -> Counter[str]:
    """Write the available records, and return the counters of all micro-batches."""
    query = (
        alerts.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "alerts"))
    )
    query.awaitTermination()
    counters: Counter[str] = Counter()
    for progress in query.recentProgress:
        observed = progress.observedMetrics.get("cep")
        counters.update({} if observed is None else observed.asDict())
    return counters


def written(spark: SparkSession, folder: Path) -> Any:
    return as_alerts(spark.read.parquet(str(folder / "alerts")))


def test_a_query_that_ends_and_goes_on_gives_the_alerts_of_the_replay(spark: SparkSession, tmp_path: Path) -> None:
    rules = cep.load(write_chain(tmp_path / "rules"))
    table = with_an_end()
    expected = rules.match(table, cores=2)
    assert expected.suppressed.num_rows > 0
    counters: Counter[str] = Counter()
    for ends in ((0, 60, 130), (130, 241)):
        for first, end in pairwise(ends):
            add_file(tmp_path / "events", first, table.slice(first, end - first))
        alerts = rules.match_stream(files(spark, tmp_path / "events"), **TERMS)
        counters += run(alerts, tmp_path)
    assert written(spark, tmp_path).equals(expected.table)
    assert counters["records"] == counters["events"] == table.num_rows
    assert counters["alerts"] == expected.table.num_rows
    assert counters["held"] == expected.suppressed.num_rows
    # The query's state was created with these terms.
    add_file(tmp_path / "events", 300, table.slice(240, 1))
    with pytest.raises(StreamingQueryException, match="begun with other rules, or on other terms"):
        run(rules.match_stream(files(spark, tmp_path / "events"), **TERMS, lateness="1 min"), tmp_path)


@pytest.mark.filterwarnings("ignore::cep.RejectedRecordsWarning")
def test_rules_change_by_control_records_while_a_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    folder = write_rules(tmp_path / "rules")
    (record,), _ = read_rules(folder)
    table = payments()
    half = table["event_time"][120].as_py()
    effective_at = utc_text(int(half.timestamp() * 1_000))
    change = {"version": 2, "params": {"small": 1}, "message": "again", "effective_at": effective_at}
    later = record.model_copy(update=change)
    rules = cep.load(folder)
    (tmp_path / "control").mkdir()

    def phase() -> Counter[str]:
        control = spark.readStream.text(str(tmp_path / "control"), wholetext=True)
        events = files(spark, tmp_path / "events")
        return run(rules.match_stream(events, control=control, folder=tmp_path / "job", **TERMS), tmp_path)

    add_file(tmp_path / "events", 0, table.slice(0, 100))
    phase()
    (tmp_path / "control" / "1.jsonl").write_bytes(later.to_json() + b"\n{broken\n")
    assert phase()["control_applied"] == 1
    statuses = table["status"].to_pylist()
    wrong = table.set_column(4, "status", [[*statuses[:100], "maybe", *statuses[101:]]])
    add_file(tmp_path / "events", 1, wrong.slice(100))
    assert phase()["flawed_events"] == 1
    (tmp_path / "control" / "2.jsonl").write_bytes(END + b"\n")
    phase()
    (tmp_path / "later.jsonl").write_bytes(later.to_json() + b"\n")
    changed = cep.load(folder, control=tmp_path / "later.jsonl")
    expected = changed.match(wrong, cores=2).table
    assert set(expected["version"].to_pylist()) == {1, 2}
    alerts = written(spark, tmp_path)
    assert alerts.drop_columns(["flawed"]).equals(expected.drop_columns(["flawed"]))
    assert not any(alerts["flawed"].to_pylist()), "a query has no marks of keys"
    letters = rules.set_aside(files(spark, tmp_path / "events"))
    query = letters.writeStream.format("memory").queryName("letters").trigger(availableNow=True).start()
    query.awaitTermination()
    (letter,) = spark.table("letters").collect()
    assert orjson.loads(letter["letter"])["reason"]


def test_what_cannot_go_is_refused_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    rules = cep.load(write_rules(tmp_path / "rules"))
    add_file(tmp_path / "events", 0, payments())
    stream = files(spark, tmp_path / "events")
    with pytest.raises(cep.CepError, match="`match` takes a finite history, `match_stream` takes streams"):
        rules.match(stream)
    with pytest.raises(cep.CepError, match="`match` takes this"):
        rules.match_stream(spark.createDataFrame(payments()))
    with pytest.raises(cep.CepError, match="takes a streaming DataFrame"):
        rules.match_stream(payments())
    with pytest.raises(cep.CepError, match="did you mean `lateness`"):
        rules.match_stream(stream, latenes="1 s")  # type: ignore[call-arg]
    with pytest.raises(cep.CepError, match=r"\$\.job\.lateness: 'soon' is no time"):
        rules.match_stream(stream, lateness="soon")
    with pytest.raises(cep.CepError, match="give folder="):
        rules.match_stream(stream, control=stream)
    with pytest.raises(cep.CepError, match="records with an order"):
        rules.match_stream(stream, control=stream, folder=tmp_path / "job")
    with pytest.raises(cep.CepError, match=r"no column `card_id`.*columns="):
        rules.match_stream(stream.withColumnRenamed("card_id", "cc_num"))
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider) or ""
    spark.conf.unset(provider)
    try:
        with pytest.raises(cep.CepError, match=r'spark\.conf\.set\("spark\.sql\.streaming\.stateStore\.providerClass"'):
            rules.match_stream(stream)
    finally:
        spark.conf.set(provider, before)
    through_connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(cep.CepError, match="cannot be matched through Spark Connect"):
        check_session(through_connect)
    # Spark itself refuses a sink that wants all alerts again each time.
    alerts = rules.match_stream(stream, **TERMS)
    with pytest.raises(AnalysisException, match=r"(?i)output mode"):
        alerts.writeStream.format("memory").queryName("never").outputMode("complete").start()
