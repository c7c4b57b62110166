"""Compare waiting events with a plain list: the released and the stored events, and how many are moved."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.columnar.batch import TEXT, EventBatch, data_columns, empty_batch
from cep.runners.embedded import waiting as waiting_module
from cep.runners.embedded.waiting import ADDED_WAITING, WaitingOfShare
from cep.state.keys import STORE_GROUP, prefix_range
from cep.state.memory import MemoryStore
from cep.state.store import WriteBatch
from tests.columnar.common import ONE

GROUPS = 8
STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 60), max_size=12),
        st.integers(0, 60),
        st.sampled_from(["", "", "commit", "whole", "restart"]),
    ),
    max_size=20,
)


def events(times: list[int], first: int) -> EventBatch:
    """Return events of these times, with numbers from `first` on as ids."""
    numbers = range(first, first + len(times))
    empty = empty_batch(ONE).columns
    return EventBatch(
        pa.array([f"k{number % 20}" for number in numbers], TEXT),
        pa.array([str(number) for number in numbers], TEXT),
        np.zeros(len(times), np.int16),
        np.array(times, np.int64),
        {name: pa.nulls(len(times), empty[name].type) for name in data_columns(ONE)},
    )


def fresh_share() -> WaitingOfShare:
    return WaitingOfShare([b"card"], range(GROUPS), GROUPS, ONE)


def in_order(batch: EventBatch | None) -> list[tuple[int, int]]:
    """Return (time, id) in the order of a matcher: by time, then by arrival."""
    if batch is None:
        return []
    pairs = zip(batch.time_ms.tolist(), map(int, batch.event_id.to_pylist()), strict=True)
    return sorted(pairs, key=lambda event: event[0])


@given(STEPS, st.sampled_from([3, 10, 1 << 16]))
def test_each_event_is_due_once_and_those_of_one_time_as_they_came(
    steps: list[tuple[list[int], int, str]], run_events: int
) -> None:
    store, share = MemoryStore(), fresh_share()
    waits: list[tuple[int, int]] = []
    first = latest_ms = 0
    is_ordered = True
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(waiting_module, "_RUN_EVENTS_MAX", run_events)
        for step_number, (times, asked_ms, action) in enumerate(steps):
            due_ms = latest_ms = max(latest_ms, asked_ms)
            new = events(times, first) if times else None
            waits += zip(times, range(first, first + len(times)), strict=True)
            first += len(times)
            expected = sorted((event for event in waits if event[0] < due_ms), key=lambda event: event[0])
            waits = [event for event in waits if event[0] >= due_ms]
            released = in_order(share.release(0, new, due_ms))
            assert (released == expected) if is_ordered else (sorted(released) == sorted(expected))
            batch = WriteBatch()
            if action in ("commit", "restart"):
                share.save_changes(batch, step_number.to_bytes(8, "big") + b"\0\0")
            if action == "whole":
                batch.delete_range(prefix_range(STORE_GROUP, b"", ADDED_WAITING))
                share.save_whole(batch)
            store.write(batch)
            if action == "restart":
                share, is_ordered = fresh_share(), False  # each key group has its own order
                share.restore(store)
        assert sorted(in_order(share.release(0, None, 61))) == sorted(waits)
        assert share.is_empty


def test_a_micro_batch_moves_little_of_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 000 events wait. 50 new ones arrive and 50 are released with each micro-batch; some stay for very long."""
    moved, take = 0, EventBatch.take

    def counting(batch: EventBatch, rows: np.ndarray) -> EventBatch:
        nonlocal moved
        taken_rows = take(batch, rows)
        moved += len(taken_rows)
        return taken_rows

    share, random = fresh_share(), np.random.default_rng(1)
    size, waiting_count = 50, 20_000
    monkeypatch.setattr(waiting_module, "_RUN_EVENTS_MAX", 4_096)
    monkeypatch.setattr(EventBatch, "take", counting)
    due_count = 0
    for number in range(1_200):
        times = number * size + random.integers(0, size, size)
        times[0] = 10**9
        released = share.release(0, events(times.tolist(), number * size), number * size - waiting_count)
        due_count += 0 if released is None else len(released)
    assert due_count > 30_000
    assert moved < 1_200 * size * 25
    assert len(share._ordered[0]) < 40
    assert sum(len(run.events) for run in share._ordered[0]) < 3 * waiting_count
