"""Events of one millisecond in several micro-batches: exactly the events out of order are counted."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.columnar.batch import NO_VALUE, TEXT, EventBatch, concat_batches, no_order
from cep.columnar.order import rows_in_order
from cep.runners.spark.group_ports import GroupProgress
from cep.step.ties import LastEvent, last_matched, out_of_order

Tied = tuple[int, int]  # microseconds, declared field


def batch_of(events: list[Tied], time_ms: int, first_id: int = 0) -> EventBatch:
    """A batch whose ids are against the order of its rows."""
    count = len(events)
    ids = pa.array([str(900 - first_id - number) for number in range(count)], TEXT)
    table = no_order(count)
    table[:, :2] = events
    order = table if any(event != (0, NO_VALUE) for event in events) else None
    return EventBatch(ids, ids, np.zeros(count, np.int16), np.full(count, time_ms, np.int64), {}, order)


@pytest.mark.parametrize("seed", range(20))
def test_an_event_counts_if_it_stands_before_one_that_was_matched(seed: int) -> None:
    """An event counts if and only if a replay, which has all events together, moves it before one that came earlier."""
    random = Random(seed)
    events = [(random.choice([0, 0, 3]), random.choice([NO_VALUE, NO_VALUE, 4])) for _ in range(12)]
    last: LastEvent | None = None
    batches: list[EventBatch] = []
    for first in range(0, 12, 3):
        batch = batch_of(events[first : first + 3], 7, first)
        whole = concat_batches([*batches, batch])
        place = np.argsort(rows_in_order(whole))
        expected = [row for row in range(3) if batches and place[first + row] < place[:first].max()]
        assert expected == ([] if last is None else out_of_order(batch, 7, last).tolist())
        last = last_matched([batch_of([(999, 0)], 6), batch], 7, last)
        batches.append(batch)
        assert last == max(events[: first + 3])


def test_an_event_of_another_time_is_no_tie() -> None:
    last = last_matched([batch_of([(5, 0)], 7)], 7, None)
    assert last is not None
    assert not len(out_of_order(batch_of([(0, 0)], 8), 7, last))
    assert last_matched([batch_of([(5, 0)], 7)], 8, None) is None


def test_a_checkpoint_keeps_the_last_event_and_an_earlier_one_has_none() -> None:
    last = LastEvent(5, NO_VALUE)
    assert GroupProgress.from_bytes(GroupProgress(last_event=last).to_bytes()).last_event == last
    assert GroupProgress.from_bytes(b'["",0,{},{},null,{},{},0,{},5]').heartbeat_ms == 5
    assert GroupProgress.from_bytes(b'["",0,{},{},null,{},{},0,{},5]').last_event is None


def test_the_last_event_of_an_earlier_build_is_read() -> None:
    earlier = b'["",0,{},{},null,{},{},0,{},5,["an id",7,-3,512]]'
    assert GroupProgress.from_bytes(earlier).last_event == LastEvent(7, -3)
