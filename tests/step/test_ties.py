"""Events of one millisecond in several micro-batches: exactly the events out of order are counted."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.columnar.batch import TEXT, EventBatch, no_order
from cep.runners.spark.group_progress import GroupProgress
from cep.step.ties import LastEvent, last_matched, out_of_order

Tied = tuple[int, str]


def batch_of(events: list[Tied], time_ms: int) -> EventBatch:
    ids = pa.array([event_id for _, event_id in events], TEXT)
    nothing, order = np.full(len(events), time_ms, np.int64), no_order(len(events))
    order[:, 0] = [us for us, _ in events]
    return EventBatch(ids, ids, np.zeros(len(events), np.int16), nothing, {}, order)


@pytest.mark.parametrize("seed", range(20))
def test_an_event_counts_if_it_stands_before_one_that_was_matched(seed: int) -> None:
    random = Random(seed)
    events = [(random.randint(0, 3), f"{'x' * random.randint(0, 2)}{number}") for number in range(12)]
    last: LastEvent | None = None
    matched: list[Tied] = []
    for first in range(0, 12, 3):
        arrived = events[first : first + 3]
        batch = batch_of(arrived, 7)
        expected = [e for e in arrived if matched and key(e) < max(map(key, matched))]
        rows = [] if last is None else out_of_order(batch, 7, last).tolist()
        assert sorted(key(arrived[row]) for row in rows) == sorted(map(key, expected))
        last = last_matched([batch_of([(999, "late")], 6), batch], 7, last)
        matched += arrived
        assert last is not None
        assert (last.us, last.event_id) == max(matched, key=key)


def key(event: Tied) -> tuple[int, int, str]:
    return event[0], len(event[1]), event[1]


def test_an_event_of_another_time_is_no_tie() -> None:
    last = last_matched([batch_of([(5, "b")], 7)], 7, None)
    assert last is not None
    assert not len(out_of_order(batch_of([(0, "a")], 8), 7, last))
    assert last_matched([batch_of([(5, "b")], 7)], 8, None) is None


def test_a_checkpoint_keeps_the_last_event_and_an_earlier_one_has_none() -> None:
    last = LastEvent("é", 5, -(2**63), 0)
    assert GroupProgress.from_bytes(GroupProgress(last_event=last).to_bytes()).last_event == last
    assert GroupProgress.from_bytes(b'["",0,{},{},null,{},{},0,{},5]').heartbeat_ms == 5
    assert GroupProgress.from_bytes(b'["",0,{},{},null,{},{},0,{},5]').last_event is None


@pytest.mark.parametrize("seed", range(20))
def test_a_few_events_are_compared_as_many_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    count = random.randint(1, 30)
    names = ["".join(random.choice("ab") for _ in range(random.randint(1, 3))) for _ in range(count)]
    views = [random.choice(("", "#x", "#yy")) for _ in range(count)]
    order = no_order(count)
    order[:, 0] = [random.randint(0, 1) for _ in range(count)]
    order[:, 1] = [random.choice((-(2**63), 4)) for _ in range(count)]
    order[:, 2] = [(("", "#x", "#yy").index(view) << 8) + len(view) for view in views]
    ids = pa.array([name + view for name, view in zip(names, views, strict=True)], TEXT)
    batch = EventBatch(ids, ids, np.zeros(count, np.int16), np.full(count, 7, np.int64), {}, order)
    last = LastEvent(ids[0].as_py(), *order[0].tolist())
    few = last_matched([batch], 7, None), sorted(out_of_order(batch, 7, last).tolist())
    monkeypatch.setattr("cep.step.ties._FEW_ROWS", 0)
    assert few == (last_matched([batch], 7, None), sorted(out_of_order(batch, 7, last).tolist()))
