"""A job that is rescaled in the middle, 2 → 4 → 1, equals a replay; an impossible change is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cep.base.errors import UsageError
from cep.report.keyed_state import count_runs
from cep.runners.live_checkpoint import lock_checkpoint as locked
from cep.runners.live_checkpoint import open_checkpoint
from cep.runners.spark.rescale import CAN_REPARTITION, PARTITIONS, partitions_of, rescale
from cep.runners.spark.state import last_batch, stored_pages
from tests.real_kafka import KafkaCluster
from tests.runners.spark.live_cases import (
    END,
    LiveRun,
    disordered,
    make_job,
    payments,
    replayed,
    rows,
    rules,
    split,
    write_file,
)
from tests.runners.spark.live_kafka import TopicRun

pytestmark = pytest.mark.spark
on_this_spark = pytest.mark.skipif(not CAN_REPARTITION, reason="Spark 4.1 cannot repartition a checkpoint")
LATENESS_MS = 90_000


def started(spark: SparkSession, folder: Path, lateness_ms: int = 0) -> LiveRun:
    """Start a job with the rules of this repository that has not seen an event."""
    rules_by_id = rules()
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = LiveRun(spark, folder, make_job(rules_by_id.values(), lateness_ms, 2), initial)
    open_checkpoint(live.checkpoint.parent, live.job, initial)
    return live


@on_this_spark
def test_rescaled_in_the_middle(spark: SparkSession, tmp_path: Path) -> None:
    live = started(spark, tmp_path, LATENESS_MS)
    checkpoint = live.checkpoint.parent
    parts = split(disordered(payments(41), LATENESS_MS, 5), 3)
    live.phase(parts[:1])
    for number, (before, after) in enumerate([(2, 4), (4, 1)], start=1):
        assert partitions_of(checkpoint) == before
        run_counts = count_runs(stored_pages(spark, checkpoint, live.job))
        assert run_counts.runs == live.totals["runs"] > 0, "there is something to move"
        assert rescale(spark, checkpoint, after) == before
        assert count_runs(stored_pages(spark, checkpoint, live.job)) == run_counts, "key groups move whole"
        live.phase(parts[number : number + 1])
        assert partitions_of(checkpoint) == after
    live.phase([], [END])
    replay_result = replayed(spark, tmp_path / "events", live.job, rules().values())
    assert live.alerts() == rows(replay_result.alerts)
    assert live.totals["late_events"] == 0
    run_counts = count_runs(stored_pages(spark, checkpoint, live.job))
    assert run_counts.runs == live.totals["runs"]
    assert {share.rule_id for share in run_counts.rules} == {"dormant_then_large"}, (
        "its window is 1000 days, no other's is"
    )


@pytest.mark.slow
@on_this_spark
def test_one_task_that_reads_and_matches_becomes_two(
    spark: SparkSession, kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    """With one partition the matching task also reads the topic; with two, other tasks read it."""
    rules_by_id, lines = rules(), payments(43)
    job = make_job(rules_by_id.values(), LATENESS_MS, 2)
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = TopicRun(spark, kafka_broker, tmp_path / "job", job, initial, 4, 300)
    checkpoint = tmp_path / "job" / "checkpoint"
    open_checkpoint(checkpoint, job, initial)
    records = [(number % 3, line) for number, line in enumerate(disordered(lines, LATENESS_MS, 6))]
    third = len(records) // 3
    sessions = spark.conf.get(PARTITIONS) or "2"
    spark.conf.set(PARTITIONS, 1)
    try:
        live.phase(records[:third])
    finally:
        spark.conf.set(PARTITIONS, sessions)
    assert rescale(spark, checkpoint, 2) == 1
    live.phase(records[third : 2 * third])
    assert rescale(spark, checkpoint, 1) == 2
    live.phase(records[2 * third :])
    assert partitions_of(checkpoint) == 1
    live.phase([], [END])
    clean = tmp_path / "clean"
    clean.mkdir()
    write_file(clean / "events.jsonl", lines, 0)
    assert live.alerts() == rows(replayed(spark, clean, job, rules_by_id.values()).alerts)
    assert live.totals["late_events"] == 0


@on_this_spark
def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    live = started(spark, tmp_path)
    checkpoint = live.checkpoint.parent
    with pytest.raises(UsageError, match="no finished micro-batch"):
        rescale(spark, checkpoint, 4)
    live.phase(split(payments(42)[:50], 2))
    with pytest.raises(UsageError, match="laid out for 2 partitions already"):
        rescale(spark, checkpoint, 2)
    for count in (0, live.job.groups_count + 1):
        with pytest.raises(UsageError, match="give 1 to 8"):
            rescale(spark, checkpoint, count)
    with locked(checkpoint), pytest.raises(UsageError, match="is in use by process"):
        rescale(spark, checkpoint, 4)
    commits = live.checkpoint / "commits"
    (commits / str(last_batch(checkpoint))).unlink()
    with pytest.raises(UsageError, match=r"micro-batch 1 of .* has begun and not ended"):
        rescale(spark, checkpoint, 4)


def test_a_spark_that_cannot_is_named(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.runners.spark.rescale.CAN_REPARTITION", False)
    with pytest.raises(UsageError, match=r"cannot lay out a checkpoint anew; run this with Spark 4\.3"):
        rescale(spark, tmp_path, 2)
