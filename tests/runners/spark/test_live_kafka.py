"""Live from a topic equals the replay, for all partitions, micro-batches and faults in the topic."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cep.step.job import ARRIVAL
from tests.real_kafka import KafkaCluster
from tests.runners.spark.live_cases import END, make_job, payments, replayed, rows, rules, write_file
from tests.runners.spark.live_kafka import TopicRun, mix

pytestmark = pytest.mark.spark
LATENESS_MS = 90_000
DEDUP_MS = 86_400_000  # neighbouring records may be hours apart in event time


def partitions_of(kafka: KafkaCluster, count: int) -> int:
    """The mock's topics always have four partitions."""
    return count if kafka.is_real else 4


@pytest.mark.parametrize(
    ("seed", "partitions", "records", "lateness_ms"),
    [
        (1, 4, 400, LATENESS_MS),
        pytest.param(2, 4, 300, 0, marks=pytest.mark.slow),
        pytest.param(3, 1, 500, LATENESS_MS, marks=pytest.mark.slow),
        pytest.param(4, 1, 250, 0, marks=pytest.mark.slow),
        pytest.param(5, 4, None, 0, marks=pytest.mark.slow),
        pytest.param(6, 4, 200, LATENESS_MS, marks=pytest.mark.slow),
        pytest.param(7, 4, 150, 0, marks=pytest.mark.slow),
    ],
)
def test_a_mix_of_everything_gives_what_replay_finds(
    spark: SparkSession, kafka_broker: KafkaCluster, tmp_path: Path, seed: int, partitions: int, records: int | None,
    lateness_ms: int,
) -> None:  # fmt: skip
    rules_by_id = rules()
    lines = payments(40 + seed)
    partitions = partitions_of(kafka_broker, partitions)
    stream = mix(lines, seed, partitions, lateness_ms)
    job = replace(make_job(rules_by_id.values(), lateness_ms), dedup_ms=DEDUP_MS)
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = TopicRun(spark, kafka_broker, tmp_path / "job", job, initial, partitions, records)
    live.phase(stream.first)
    live.phase(stream.second)
    live.phase([], [END])
    clean = tmp_path / "clean"
    clean.mkdir()
    write_file(clean / "events.jsonl", stream.clean, 0)
    assert live.alerts() == rows(replayed(spark, clean, job, rules_by_id.values()).alerts)
    assert live.totals["duplicates"] == stream.wrong["duplicates"]
    assert live.totals["late_events"] == stream.wrong["late_events"]
    assert sum(n for name, n in live.totals.items() if name.startswith("poison[")) == stream.wrong["poison"]
    bad = sum(stream.wrong[name] for name in ("duplicates", "late_events", "reused_ids"))
    assert live.totals["events"] == len(stream.clean) + bad
    assert live.totals["reused_ids"] == stream.wrong["reused_ids"]
    late = {letter["event_id"] for letter in live.letters() if letter["code"] == "late"}
    assert len(late) == stream.wrong["late_ids"]
    watermarks_ms = [report.watermark_ms for report in live.reports if report.watermark_ms is not None]
    assert watermarks_ms == sorted(watermarks_ms)


def forking_processes(spark: SparkSession) -> set[str]:
    """Return the processes from which Java has forked workers, one for each kind of worker."""
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    command = ["ps", "-o", "pid=,args=", "--ppid", str(java)]  # it exits with 1 without a worker
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {line.split()[0] for line in listed.splitlines() if "cep.runners.spark.daemon pyspark.worker" in line}


def test_in_order_of_arrival_nothing_waits(spark: SparkSession, kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    rules_by_id = rules("card_testing", "small_then_large")
    lines = payments(51)
    job = replace(make_job(rules_by_id.values()), order=ARRIVAL)
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = TopicRun(spark, kafka_broker, tmp_path / "job", job, initial, partitions_of(kafka_broker, 2))
    before = forking_processes(spark)
    live.phase([(hash(line) % 2, line) for line in lines])
    assert len(forking_processes(spark) - before) <= 1, "tasks that read and tasks that match share their workers"
    clean = tmp_path / "clean"
    clean.mkdir()
    write_file(clean / "events.jsonl", lines, 0)
    # Both rules end in an event, so all is found without a heartbeat, and one micro-batch sorts it.
    assert live.alerts() == rows(replayed(spark, clean, job, rules_by_id.values()).alerts)
    assert live.totals["late_events"] == 0
