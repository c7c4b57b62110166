"""Micro-batches without records on Spark let the watermark pass quiet partitions.

They also let the last events of a topic be matched at its end.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cep.runners.spark.live import serve
from cep.runners.spark.sources import TopicSource
from cep.sinks.files import FileSink
from tests.mock_kafka import PARTITIONS, MockKafka
from tests.runners.embedded.test_future import PAST_MS, fraud, payment, written
from tests.runners.spark.test_future import JOB, keys_of_alerts, start

pytestmark = pytest.mark.spark
HOUR_MS = 3_600_000
GIVE_UP_S = 90.0
POLL_S = 0.1


def run(spark: SparkSession, folder: Path, events: TopicSource, idle_ms: int, *, ends: bool) -> list[str]:
    """Run the job to the end of the topic, or until there is an alert; return the keys of all alerts so far."""
    stop, is_over = threading.Event(), threading.Event()

    def stop_at_alert() -> None:
        for _ in range(int(GIVE_UP_S / POLL_S)):
            if is_over.wait(POLL_S) or (written(folder / "alerts") and not ends):
                break
        stop.set()

    watch = threading.Thread(target=stop_at_alert)
    query, output = start(spark, folder, events, FileSink(folder / "alerts"), replace(JOB, idle_ms=idle_ms), ends=ends)
    watch.start()
    try:
        serve(query, output, stop)
    finally:
        is_over.set()
        watch.join()
    return keys_of_alerts(folder)


def test_a_quiet_partition_holds_up_no_alert(spark: SparkSession, tmp_path: Path) -> None:
    """One partition ends an hour before the fraud in the other one, and no more records come."""
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    (tmp_path / "control").mkdir()
    with MockKafka() as kafka:
        kafka.create("quiet")
        lines = [
            payment("q", "q", PAST_MS, 1),
            *fraud(1, PAST_MS + HOUR_MS),
            payment("z", "z", PAST_MS + 2 * HOUR_MS, 1),
        ]
        kafka.send("quiet", [{"value": line, "partition": min(number, 1)} for number, line in enumerate(lines)])
        source = TopicSource(kafka.address, "quiet")
        assert run(spark, tmp_path, source, idle_ms=500, ends=False) == ["c1"]


def test_what_a_stopped_job_has_read_is_matched_at_the_end(spark: SparkSession, tmp_path: Path) -> None:
    """The job is stopped while it waits for a quiet partition; a new start matches everything that it has read."""
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    (tmp_path / "control").mkdir()
    with MockKafka() as kafka:
        kafka.create("quiet")
        lines = [*fraud(2, PAST_MS - HOUR_MS), payment("q", "q", PAST_MS, 1), *fraud(1, PAST_MS + HOUR_MS)]
        sent = [(min(number // 3, 1), line) for number, line in enumerate(lines)]
        sent += [
            (partition, payment(f"z{partition}", "z", PAST_MS + 2 * HOUR_MS, 1)) for partition in range(1, PARTITIONS)
        ]
        kafka.send("quiet", [{"value": line, "partition": partition} for partition, line in sent])
        source = TopicSource(kafka.address, "quiet")
        assert run(spark, tmp_path, source, idle_ms=HOUR_MS, ends=False) == ["c2"], "it stops at the first alert"
        assert run(spark, tmp_path, source, idle_ms=HOUR_MS, ends=True) == ["c1", "c2"]
