"""Events from the future on Spark: no alert is missing, and a repeated micro-batch judges the same."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cep.base.errors import SinkError
from cep.model.rule import HeartbeatRecord
from cep.runners.spark.live import LiveSettings, serve, start_live
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.sources import FolderSource, TopicSource
from cep.sinks.base import AlertSink
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.files import FileSink
from cep.step.job import Job
from tests.mock_kafka import MockKafka
from tests.runners.embedded.test_future import FAR, PAST_MS, fraud, payment, written
from tests.runners.spark.live_cases import write_file
from tests.step.contract import DEPLOYED, RECORDS

pytestmark = pytest.mark.spark
INITIAL = tuple(record.to_json() for record in RECORDS if record.id == "small_large")
JOB = Job(DEPLOYED.schema, (("card",),), 2)
HOUR_MS = 3_600_000


class Refusing:
    """A sink that refuses every alert: its micro-batch is repeated."""

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        raise SinkError("no way there")

    def close(self) -> None:
        pass


def live(spark: SparkSession, folder: Path, events: FolderSource | TopicSource, *, refuses: bool = False) -> list[str]:
    """Start the job, and let it end after it has read everything; return the keys of all alerts so far."""
    query, output = start(spark, folder, events, Refusing() if refuses else FileSink(folder / "alerts"))
    if refuses:
        with pytest.raises(SinkError):
            serve(query, output, threading.Event())
    else:
        serve(query, output, threading.Event())
    return keys_of_alerts(folder)


def start(
    spark: SparkSession, folder: Path, events: FolderSource | TopicSource, sink: AlertSink, job: Job = JOB, *,
    ends: bool = True,
) -> tuple[StreamingQuery, LiveOutput]:  # fmt: skip
    """Start the job in its folder. With `ends` it ends after it has read everything."""
    output = LiveOutput(folder / "checkpoint", DeadLetterFiles(folder / "letters"), [sink])
    control = FolderSource(folder / "control")
    settings = LiveSettings(job, INITIAL, events, control, folder / "checkpoint" / "query", available_now=ends)
    return start_live(spark, settings, output), output


def keys_of_alerts(folder: Path) -> list[str]:
    """Return the keys of all alerts so far."""
    return sorted(str(alert["key"]) for alert in written(folder / "alerts"))


def letters(folder: Path) -> list[tuple[object, object]]:
    return [(letter["code"], letter.get("event_id")) for letter in written(folder / "letters")]


@pytest.mark.parametrize("source", ["folder", "topic"])
def test_the_clock_of_a_micro_batch_is_that_of_its_plan(source: str, spark: SparkSession, tmp_path: Path) -> None:
    """A micro-batch is repeated from a plan with a changed clock: the clock of the machine does not count."""
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    for name in ("control", "events"):
        (tmp_path / name).mkdir()
    with MockKafka() as kafka:
        kafka.create("future")
        events: FolderSource | TopicSource
        events = FolderSource(tmp_path / "events") if source == "folder" else TopicSource(kafka.address, "future")

        def come(number: int, lines: list[bytes]) -> None:
            if source == "folder":
                write_file(tmp_path / "events" / f"{number}.jsonl", lines, number)
            else:
                kafka.send(
                    "future",
                    [{"value": line, "partition": number_of_line % 2} for number_of_line, line in enumerate(lines)],
                )

        edge_ms = int(time.time() * 1_000) + HOUR_MS
        frauds = [line for card in range(10) for line in fraud(card, edge_ms - 2 * HOUR_MS + 10 * card)]
        come(0, [payment("far", "c0", FAR, 1), *fraud(99, edge_ms), *frauds])
        live(spark, tmp_path, events, refuses=True)
        plan = tmp_path / "checkpoint" / "query" / "offsets" / "0"
        later, count = re.subn(
            rb'("(?:batchTimestampMs|now_ms)": ?)\d+', rb"\g<1>%d" % (edge_ms + 5), plan.read_bytes()
        )
        assert count == (1 if source == "folder" else 2)
        plan.write_bytes(later)
        (plan.parent / ".0.crc").unlink()
        fired = live(spark, tmp_path, events)
        # The last payment of a topic waits for others of its time.
        assert fired == sorted([*(f"c{card}" for card in range(10)), *["c99"] * (source == "folder")])
        assert letters(tmp_path) == [("ahead", "far")], "what the first plan set aside is taken"


def test_events_of_now_hide_nothing_of_a_backlog(spark: SparkSession, tmp_path: Path) -> None:
    """After an outage, an event that was far ahead on arrival is not ahead of the clock. Micro-batches are small."""
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    (tmp_path / "control").mkdir()
    now_ms = int(time.time() * 1_000)
    frauds = [line for card in range(20) for line in fraud(card, now_ms - 3 * HOUR_MS + 60_000 * card)]
    with MockKafka() as kafka:
        kafka.create("backlog")
        for partition in (0, 1):
            lines = [payment(f"now{partition}", "c99", now_ms - 1_000, 1), *frauds[partition * 20 :][:20]]
            kafka.send("backlog", [{"value": line, "partition": partition} for line in lines])
        fired = live(spark, tmp_path, TopicSource(kafka.address, "backlog", records_per_trigger=12))
    assert fired == sorted(f"c{card}" for card in range(20))
    assert letters(tmp_path) == []


def test_one_event_and_a_heartbeat_from_the_future_hide_nothing(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    for name in ("control", "events"):
        (tmp_path / name).mkdir()
    frauds = [line for card in range(20) for line in fraud(card, PAST_MS + 10 * card)]
    write_file(tmp_path / "events" / "0.jsonl", [payment("far", "c0", FAR, 1), *frauds[:20]], 0)
    write_file(tmp_path / "control" / "0.jsonl", [HeartbeatRecord(event_time=FAR).to_json()], 0)
    live(spark, tmp_path, FolderSource(tmp_path / "events"))
    write_file(tmp_path / "events" / "1.jsonl", frauds[20:], 1)
    write_file(tmp_path / "events" / "2.jsonl", [payment("last", "z", PAST_MS + 1_000, 1)], 2)
    fired = live(spark, tmp_path, FolderSource(tmp_path / "events"))
    assert fired == sorted(f"c{card}" for card in range(20))
    assert sorted(letters(tmp_path), key=str) == [("ahead", "far"), ("control_ahead", None)]
