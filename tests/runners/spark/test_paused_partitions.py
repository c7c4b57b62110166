"""A job on Spark that catches up reads no partition far ahead of the slowest one."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cep.base.errors import StateCorruptError
from cep.base.limits import READ_AHEAD_MS_MAX
from cep.base.utc import utc_ms
from cep.runners.live_checkpoint import read_progress
from cep.runners.spark.paused_partitions import FILE, PausedPartitions, partition_name, read_paused, without_paused
from cep.runners.spark.sources import TopicSource
from cep.sources.offsets import Offsets, Position, ranges_between
from cep.step.event_time import PartitionTime
from cep.step.job import ARRIVAL, Job
from tests.mock_kafka import PARTITIONS, MockKafka
from tests.runners.embedded.test_future import PAST_MS, fraud
from tests.runners.spark.test_future import HOUR_MS, live
from tests.step.contract import DEPLOYED

JOB = Job(DEPLOYED.schema, (("card",),), 2, lateness_ms=5)
TIMES = {"t-0": PartitionTime(PAST_MS, True), "t-1": PartitionTime(PAST_MS + READ_AHEAD_MS_MAX + 6, True)}


def test_the_file_names_what_is_further_ahead_than_an_hour_and_the_lateness(tmp_path: Path) -> None:
    assert read_paused(tmp_path / FILE) == frozenset(), "before the first micro-batch has ended"
    ahead = PausedPartitions(tmp_path, JOB)
    ahead.ended(TIMES)
    assert read_paused(ahead.path) == {"t-1"}
    ahead.ended({**TIMES, "t-0": PartitionTime(PAST_MS + 1, True)})
    assert read_paused(ahead.path) == frozenset()
    ahead.ended(TIMES)
    ahead.ended({})
    assert read_paused(ahead.path) == frozenset(), "of an earlier micro-batch"


def test_in_order_of_arrival_nothing_is_paused(tmp_path: Path) -> None:
    ahead = PausedPartitions(tmp_path, Job(DEPLOYED.schema, (("card",),), 2, order=ARRIVAL))
    ahead.ended(TIMES)
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
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    start_ms = PAST_MS - 10 * HOUR_MS
    busy = [line for card in range(120) for line in fraud(card, start_ms + card * HOUR_MS // 120)]
    quiet = [line for hour in range(10) for line in fraud(1_000 + hour, start_ms + hour * HOUR_MS)]
    lines = [busy + fraud(200, PAST_MS), quiet + fraud(2_000, PAST_MS)]
    for name in ("control", "events"):
        (tmp_path / name).mkdir()
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
