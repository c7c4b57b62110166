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
    waiting: list[EventBatch] = []
    came: list[str] = []
    times = np.sort(random.choice(events.time_ms, 4))
    for bound_ms, rows in zip(times.tolist(), np.array_split(random.permutation(len(events)), 4), strict=True):
        released, waiting = split_due([*waiting, events.take(rows)], bound_ms)
        assert released is None or (len(released) and released.time_ms.max() < bound_ms)
        assert all(len(batch) and batch.time_ms.min() >= bound_ms for batch in waiting)
        came += [] if released is None else released.event_id.to_pylist()
    released, rest = split_due(waiting, int(events.time_ms.max()) + 1)
    assert rest == []
    assert sorted(came + ([] if released is None else released.event_id.to_pylist())) == sorted(
        events.event_id.to_pylist()
    )
