"""Events from the future on Spark: no alert is missing, and a repeated micro-batch judges the same.

Micro-batches without records let the watermark pass quiet partitions, and the last events of a topic be matched at its
end. A job that catches up reads no partition far ahead of the slowest one.
"""

import json
import re
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cep.base.errors import SinkError, StateCorruptError
from cep.base.limits import READ_AHEAD_MS_MAX
from cep.base.text import utc_ms
from cep.model.rule import HeartbeatRecord
from cep.runners.live_checkpoint import read_progress
from cep.runners.spark.live import LiveSettings, serve, start_live
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.paused_partitions import FILE, PausedPartitions, partition_name, read_paused, without_paused
from cep.runners.spark.sources import FolderSource, TopicSource
from cep.sinks.base import AlertSink
from cep.sinks.files import DeadLetterFiles, FileSink
from cep.sources.offsets import Offsets, Position, ranges_between
from cep.step.event_time import PartitionTime
from cep.step.job import ARRIVAL, Job
from tests.mock_kafka import PARTITIONS, MockKafka
from tests.runners.embedded.outside import Still
from tests.runners.embedded.test_future import FAR, PAST_MS, fraud, payment, written
from tests.runners.spark.live_cases import write_file
from tests.step.contract import DEPLOYED, RECORDS

INITIAL = tuple(record.to_json() for record in RECORDS if record.id == "small_large")
JOB = Job(DEPLOYED.schema, (("card",),), 2)
HOUR_MS = 3_600_000


class Refusing(Still):
    """A sink that refuses every alert: its micro-batch is repeated."""

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        raise SinkError("no way there")


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
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    (folder / "control").mkdir(exist_ok=True)
    output = LiveOutput(folder / "checkpoint", DeadLetterFiles(folder / "letters"), [sink])
    control = FolderSource(folder / "control")
    settings = LiveSettings(job, INITIAL, events, control, folder / "checkpoint" / "query", available_now=ends)
    return start_live(spark, settings, output), output


def keys_of_alerts(folder: Path) -> list[str]:
    return sorted(str(alert["key"]) for alert in written(folder / "alerts"))


def letters(folder: Path) -> list[tuple[object, object]]:
    return [(letter["code"], letter.get("event_id")) for letter in written(folder / "letters")]


@pytest.mark.spark
@pytest.mark.parametrize("source", ["folder", "topic"])
def test_the_clock_of_a_micro_batch_is_that_of_its_plan(source: str, spark: SparkSession, tmp_path: Path) -> None:
    """A micro-batch is repeated from a plan with a changed clock: the clock of the machine does not count."""
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


@pytest.mark.spark
def test_events_of_now_hide_nothing_of_a_backlog(spark: SparkSession, tmp_path: Path) -> None:
    """After an outage, an event that was far ahead on arrival is not ahead of the clock. Micro-batches are small."""
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


@pytest.mark.spark
def test_one_event_and_a_heartbeat_from_the_future_hide_nothing(spark: SparkSession, tmp_path: Path) -> None:
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


@pytest.mark.spark
def test_a_quiet_partition_holds_up_no_alert(spark: SparkSession, tmp_path: Path) -> None:
    """One partition ends an hour before the fraud in the other one, and no more records come."""
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


@pytest.mark.spark
def test_what_a_stopped_job_has_read_is_matched_at_the_end(spark: SparkSession, tmp_path: Path) -> None:
    """The job is stopped while it waits for a quiet partition; a new start matches everything that it has read."""
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


PAUSED_JOB = Job(DEPLOYED.schema, (("card",),), 2, lateness_ms=5)
TIMES = {"t-0": PartitionTime(PAST_MS, True), "t-1": PartitionTime(PAST_MS + READ_AHEAD_MS_MAX + 6, True)}


def test_the_file_names_what_is_further_ahead_than_an_hour_and_the_lateness(tmp_path: Path) -> None:
    assert read_paused(tmp_path / FILE) == frozenset(), "before the first micro-batch has ended"
    ahead = PausedPartitions(tmp_path, PAUSED_JOB)
    ahead.update(TIMES)
    assert read_paused(ahead.path) == {"t-1"}
    ahead.update({**TIMES, "t-0": PartitionTime(PAST_MS + 1, True)})
    assert read_paused(ahead.path) == frozenset()
    ahead.update(TIMES)
    ahead.update({})
    assert read_paused(ahead.path) == frozenset(), "of an earlier micro-batch"


def test_in_order_of_arrival_nothing_is_paused(tmp_path: Path) -> None:
    ahead = PausedPartitions(tmp_path, Job(DEPLOYED.schema, (("card",),), 2, order=ARRIVAL))
    ahead.update(TIMES)
    assert read_paused(ahead.path) == frozenset()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"partitions": "t-0"}', '{"partitions": [0]}', '{"partitions"'])
def test_a_file_that_is_something_else_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(StateCorruptError, match=FILE):
        read_paused(tmp_path / FILE)


OFFSETS = st.dictionaries(st.sampled_from("ab"), st.dictionaries(st.integers(0, 3), st.integers(0, 3), max_size=4))


@given(OFFSETS, OFFSETS, st.sets(st.builds(partition_name, st.sampled_from("ab"), st.integers(0, 3))))
def test_what_is_held_stays_and_the_plan_comes_to_an_end(start: Offsets, more: Offsets, paused: set[str]) -> None:
    end = {topic: dict(counts) for topic, counts in start.items()}
    for topic, counts in more.items():
        for partition, count in counts.items():
            partitions = end.setdefault(topic, {})
            partitions[partition] = partitions.get(partition, 0) + count
    planned = without_paused(ranges_between(start, end), end, paused)
    all_ranges, ranges = set(ranges_between(start, end)), set(ranges_between(start, planned))
    free = {r for r in all_ranges if partition_name(r.topic, r.partition) not in paused}
    assert ranges == (free or all_ranges)


@pytest.mark.spark
def test_a_job_that_catches_up_reads_partitions_in_step(spark: SparkSession, tmp_path: Path) -> None:
    """Ten hours of two partitions: one is busy in the first hour, and the other has a card an hour.

    By numbers of records alone the job would read the second one to its end before the first hour is over.
    """
    start_ms = PAST_MS - 10 * HOUR_MS
    busy = [line for card in range(120) for line in fraud(card, start_ms + card * HOUR_MS // 120)]
    quiet = [line for hour in range(10) for line in fraud(1_000 + hour, start_ms + hour * HOUR_MS)]
    lines = [busy + fraud(200, PAST_MS), quiet + fraud(2_000, PAST_MS)]
    with MockKafka() as kafka:
        kafka.create("step")
        for partition, partition_lines in enumerate(lines):
            kafka.send("step", [{"value": line, "partition": partition} for line in partition_lines])
        fired = live(spark, tmp_path, TopicSource(kafka.address, "step", records_per_trigger=30))
    cards = [*(f"c{card}" for card in range(120)), *(f"c{1_000 + hour}" for hour in range(10))]
    assert set(cards) <= set(fired)
    assert read_progress(tmp_path / "checkpoint")[1]["late_events"] == 0
    plans = _plans(tmp_path / "checkpoint" / "query" / "offsets")
    assert plans[-1] == {0: len(lines[0]), 1: len(lines[1]), **dict.fromkeys(range(2, PARTITIONS), 0)}
    quiet_goes_on = [before for before, after in pairwise(plans) if before[1] < after[1] and before[0] < len(lines[0])]
    assert quiet_goes_on, "both are read side by side"
    assert max(_ahead_ms(lines, plan) for plan in quiet_goes_on) <= READ_AHEAD_MS_MAX


def _ahead_ms(lines: list[list[bytes]], plan: dict[int, int]) -> int:
    """Return how far the quiet partition has been read ahead of the busy one."""
    busy, quiet = (
        utc_ms(json.loads(partition_lines[plan[partition] - 1])["event_time"])
        for partition, partition_lines in enumerate(lines)
    )
    return quiet - busy


def _plans(folder: Path) -> list[dict[int, int]]:
    """Return the end of each partition, plan by plan."""
    plans = []
    for path in sorted((p for p in folder.iterdir() if p.name.isdigit()), key=lambda p: int(p.name)):
        position = next(json.loads(line) for line in path.read_text().splitlines() if '"topic_ids"' in line)
        plans.append(Position.from_json(position).offsets["step"])
    return plans
