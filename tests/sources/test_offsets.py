"""Offsets: the records between two of them, how they are shared and limited, and how offsets are written."""

from __future__ import annotations

import json
from random import Random

import pytest

from cep.base.errors import SourceError
from cep.sources.offsets import (
    OffsetRange,
    Offsets,
    Position,
    limit_offsets,
    ranges_between,
    reached,
    refuse_new_topics,
    share_ranges,
)


def test_ranges() -> None:
    start: Offsets = {"a": {0: 5, 1: 7}}
    end: Offsets = {"a": {0: 5, 1: 10, 2: 2}, "b": {0: 1}}
    assert ranges_between(start, end) == [
        OffsetRange("a", 1, 7, 10),
        OffsetRange("a", 2, 0, 2),
        OffsetRange("b", 0, 0, 1),
    ]
    assert [(r.start, r.end) for r in ranges_between({"a": {0: 1}}, {"a": {0: 6}}, 2)] == [(1, 3), (3, 5), (5, 6)]


def test_a_position_is_written_down_and_read_again() -> None:
    position = Position({"a": {0: 5, 1: 7}, "b": {2: 1}}, {"a": [1]}, {"a": "x"})
    assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position
    with pytest.raises(SourceError, match="in a form that this build does not know"):
        Position.from_json({"a": {"0": "five"}})
    assert Position.from_json({"a": {"0": 5}}) == Position({"a": {0: 5}}), "of the connector of Spark's JVM"


def test_what_is_behind_and_which_topics_are_known() -> None:
    start = Position({"a": {0: 5, 1: 7}}, {"a": [0]}, {"a": "x"})
    end = reached(start, {"a": {0: 9, 1: 7}, "b": {0: 1}}, {"a": {0: 9, 1: 8}, "b": {0: 3}}, {"b": "y"})
    assert end == Position({"a": {0: 9, 1: 7}, "b": {0: 1}}, {"a": [1], "b": [0]}, {"a": "x", "b": "y"})


def test_a_topic_that_was_created_again_is_refused() -> None:
    refuse_new_topics({"a": "x"}, {"a": "x", "b": "y"})
    refuse_new_topics({"a": "x"}, {})
    with pytest.raises(SourceError, match=r"topic a was deleted and created again \(its id was x and is z"):
        refuse_new_topics({"a": "x"}, {"a": "z"})


def test_ranges_are_dealt_evenly() -> None:
    ranges = [OffsetRange("a", p, 0, size) for p, size in enumerate([5, 1, 4, 3, 3])]
    dealt = share_ranges(ranges, 2)
    assert sorted(r for task in dealt for r in [(w.partition, w.end) for w in task]) == [
        (p, size) for p, size in enumerate([5, 1, 4, 3, 3])
    ]
    assert [sum(r.end for r in task) for task in dealt] == [8, 8]
    assert share_ranges(ranges[:2], 9) == [(ranges[0],), (ranges[1],)]
    assert share_ranges([], 2) == []


@pytest.mark.parametrize("seed", range(20))
def test_the_ranges_of_a_partition_stay_in_order_from_task_to_task(seed: int) -> None:
    random = Random(seed)
    end: Offsets = {"t": {partition: random.randrange(300) for partition in range(random.randint(1, 4))}}
    ranges = ranges_between({}, end, random.randint(20, 150))
    tasks = share_ranges(ranges, random.randint(1, 5))
    assert all(tasks)
    for partition in end["t"]:
        starts = [each.start for task in tasks for each in task if each.partition == partition]
        assert starts == [each.start for each in ranges if each.partition == partition]


@pytest.mark.parametrize(("end", "text"), [({"a": {0: 4}}, "ends at 4"), ({"a": {}}, "no longer there")])
def test_a_topic_that_went_backwards(end: Offsets, text: str) -> None:
    with pytest.raises(SourceError, match=text):
        ranges_between({"a": {0: 5}}, end)


@pytest.mark.parametrize("sizes", [[100], [1, 1_000_000], [0, 5, 5], [1, 1, 1, 1], [333, 333, 334], [0, 0]])
@pytest.mark.parametrize("records_max", [1, 2, 3, 10, 999])
def test_a_limit_is_met_exactly_and_everything_comes_in_the_end(sizes: list[int], records_max: int) -> None:
    position: Offsets = {"t": dict.fromkeys(range(len(sizes)), 50)}
    end: Offsets = {"t": {p: 50 + size for p, size in enumerate(sizes)}}
    for _ in range(5):
        before = sum(r.end - r.start for r in ranges_between(position, end))
        position = limit_offsets(position, end, records_max)
        after = sum(r.end - r.start for r in ranges_between(position, end))
        assert before - after == min(before, records_max)
    if records_max >= len(sizes):
        assert all(position["t"][p] > 50 for p, size in enumerate(sizes) if size), "no partition starves"


def test_partitions_that_are_behind_catch_up_together() -> None:
    limited = limit_offsets({"t": {0: 0, 1: 0}}, {"t": {0: 1_000, 1: 3_000}}, 400)
    assert limited == {"t": {0: 100, 1: 300}}
