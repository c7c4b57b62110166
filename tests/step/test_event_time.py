"""The watermark of several partitions, whoever is read first; what is due."""

from __future__ import annotations

import random

import pytest

from cep.base.limits import TIME_MS_MIN
from cep.step.event_time import PartitionTimes, due_before, merge_times, watermark_of


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param({}, TIME_MS_MIN, id="nothing was read"),
        pytest.param({"a": (100, False)}, 97, id="one partition"),
        pytest.param({"a": (100, False), "b": (91, False)}, 88, id="the slowest holds it"),
        pytest.param({"a": (100, False), "b": (90, False)}, 87, id="just not idle"),
        pytest.param({"a": (100, False), "b": (89, False)}, 97, id="idle"),
        pytest.param({"a": (100, False), "b": (7, True)}, 4, id="behind, however far"),
        pytest.param({"a": (100, False), "b": (TIME_MS_MIN, True)}, TIME_MS_MIN, id="behind, nothing known of it yet"),
        pytest.param({"a": (100, False), "b": (TIME_MS_MIN, False)}, 97, id="nothing in it that can be read"),
        pytest.param({"a": (100, True), "b": (89, False), "c": (95, False)}, 92, id="idle beside others"),
    ],
)
def test_the_watermark(times: PartitionTimes, expected: int) -> None:
    assert watermark_of(times, 3, 10) == expected


def test_nothing_in_order_is_late_however_unevenly_partitions_are_read() -> None:
    """A backlog of four partitions, each in order; pieces of any length are read from any of them."""
    for seed in range(200):
        chance = random.Random(seed)
        waiting = [sorted(chance.sample(range(10_000), chance.randint(1, 60))) for _ in range(4)]
        times: PartitionTimes = {}
        watermark_ms = TIME_MS_MIN
        # The first read takes something of each partition: of one that nobody has looked into, nothing is known.
        quotas = [chance.randint(1, 9) for _ in waiting]
        while any(waiting):
            seen: PartitionTimes = {}
            for number, quota in enumerate(quotas):
                read, waiting[number] = waiting[number][:quota], waiting[number][quota:]
                assert all(ms >= watermark_ms for ms in read), f"late, seed {seed}"
                if read:
                    seen[str(number)] = (read[-1], bool(waiting[number]))
            times = merge_times(times, seen)
            after_ms = max(watermark_ms, watermark_of(times, 0, 10))
            watermark_ms = after_ms
            quotas = [chance.choice([0, 0, 1, 20]) for _ in waiting]
        assert watermark_ms > TIME_MS_MIN


def test_times_only_grow_and_the_last_look_says_whether_more_waits() -> None:
    assert merge_times({"a": (9, True), "b": (1, True)}, {"a": (4, False), "c": (2, True)}) == {
        "a": (9, False),
        "b": (1, True),
        "c": (2, True),
    }


def test_events_of_one_time_wait_for_each_other_unless_one_partition_has_them_in_order() -> None:
    assert (due_before(50, at_once=False), due_before(50, at_once=True)) == (50, 51)
