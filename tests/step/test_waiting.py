"""Waiting events are released when the watermark reaches them, and no event is lost or doubled."""

from __future__ import annotations

import numpy as np
import pytest

from cep.columnar.batch import EventBatch
from cep.step.waiting import split_due
from tests.engine.bridge import batch_of
from tests.oracle.random_cases import SCHEMA, random_case


@pytest.mark.parametrize("seed", range(5))
def test_every_event_comes_out_when_its_time_is_passed(seed: int) -> None:
    random = np.random.default_rng(seed)
    events = batch_of(SCHEMA, random_case(seed, 3).events)
    held: list[EventBatch] = []
    came: list[str] = []
    times = np.sort(random.choice(events.time_ms, 4))
    for bound_ms, rows in zip(times.tolist(), np.array_split(random.permutation(len(events)), 4), strict=True):
        due, held = split_due([*held, events.take(rows)], bound_ms)
        assert due is None or (len(due) and due.time_ms.max() < bound_ms)
        assert all(len(batch) and batch.time_ms.min() >= bound_ms for batch in held)
        came += [] if due is None else due.event_id.to_pylist()
    due, rest = split_due(held, int(events.time_ms.max()) + 1)
    assert rest == []
    assert sorted(came + ([] if due is None else due.event_id.to_pylist())) == sorted(events.event_id.to_pylist())
