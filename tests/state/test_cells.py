"""Clean-up: expired cells leave the store, each in its way, and nothing alive does."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.state.cells import Clock
from cep.state.descriptors import Cleanup, StateKind, Ttl, TtlTime
from cep.state.keys import ALL_KEYS, STORE_GROUP, group_range, key_group_of
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksSettings, RocksStore
from cep.state.states import States
from cep.state.store import KeyedStore
from tests.state.declared import GROUPS, ManualClock, at, declare, opened, row

TTL_MS = 1_000


def cells_count(store: KeyedStore) -> int:
    return sum(key_group_of(key) != STORE_GROUP for key, _ in store.scan(ALL_KEYS))


def ttl(cleanup: Cleanup) -> Ttl:
    return Ttl(TTL_MS, TtlTime.EVENT, cleanup=cleanup)


@pytest.mark.parametrize("cleanup", Cleanup)
def test_cleaning_removes_the_expired_and_counts_them(cleanup: Cleanup) -> None:
    store, clock = MemoryStore(), ManualClock(10_000)
    states = opened(store, clock, declare(StateKind.MAP, ttl(cleanup)), declare(StateKind.VALUE, None, "for ever"))
    seen, ever = states.map("s"), states.value("for ever")
    for number in range(9):
        seen.put(at(number), "old", row(number))
        ever.put(at(number), row(number))
    clock.move(2 * TTL_MS)
    for number in range(9):
        seen.put(at(number), "new", row(number))
    removed = states.clean()
    assert cells_count(store) == 2 * 9
    # With access some went before; with compaction none goes one by one.
    assert states.counters["state_expired"] == (0 if cleanup is Cleanup.COMPACTION else 9)
    assert removed == 9 or cleanup is not Cleanup.CHECKPOINT
    assert all(seen.items(at(number)) == {"new": row(number)} for number in range(9))


def test_buckets_dropped_are_counted() -> None:
    store, clock = MemoryStore(), ManualClock(10_000)
    states = opened(store, clock, declare(StateKind.VALUE, ttl(Cleanup.COMPACTION)))
    value = states.value("s")
    value.put(at(1), row(1))
    clock.move(2 * TTL_MS)
    states.clean()
    assert states.counters == {"state_expired": 0, "state_buckets_dropped": 1}
    assert cells_count(store) == 0
    value.put(at(1), row(2))
    clock.move(2 * TTL_MS)
    value.put(at(2), row(3))  # a new bucket gives up the old ones: its own first one, and the seven that stayed empty
    assert states.counters["state_buckets_dropped"] > 1
    assert cells_count(store) == 1


def test_access_alone_removes_all_that_expires() -> None:
    store, clock = MemoryStore(), ManualClock()
    seen = opened(store, clock, declare(StateKind.MAP, ttl(Cleanup.ACCESS))).map("s")
    for number in range(400):
        seen.put(at(number), f"{number}", row(number))
    clock.move(TTL_MS)
    for _ in range(400 // 128 * 16 + 2 * 16):
        seen.get(at(0), "nothing")
    assert cells_count(store) == 0


def test_in_compaction_the_bytes_leave_the_disk(tmp_path: Path) -> None:
    clock = ManualClock()
    with RocksStore(tmp_path, RocksSettings(wal=False)) as store:
        seen = opened(store, clock, declare(StateKind.MAP, ttl(Cleanup.COMPACTION))).map("s")
        for number in range(600):
            seen.put(at(number), f"{number}", row(number))
        store.sync()
        before = store.sizes().disk_bytes
        clock.move(2 * TTL_MS)
        seen.put(at(0), "later", row(1))  # opens a bucket, and with it gives up the old ones
        for group in GROUPS:
            store.compact(group_range(group))
        assert cells_count(store) == 1
        assert store.sizes().disk_bytes < before / 5


def test_a_machine_whose_clock_went_back_reads_its_last_write() -> None:
    store = MemoryStore()
    declared = declare(StateKind.VALUE, Ttl(TTL_MS, TtlTime.PROCESSING, cleanup=Cleanup.COMPACTION))
    for now_ms, number in ((100_000, 1), (99_000, 2), (99_900, 3)):  # a process each, with another clock
        clock = Clock(lambda now_ms=now_ms: now_ms)  # type: ignore[misc]
        value = States(store, clock, [declared], groups=GROUPS).value("s")
        value.put(at(0), row(number))
        assert value.get(at(0)) == row(number)


def test_a_clock_does_not_go_back() -> None:
    times = iter([5, 3, 9])
    clock = Clock(lambda: next(times))
    assert [clock.now_ms(TtlTime.PROCESSING) for _ in range(3)] == [5, 5, 9]
    clock.advance(7)
    clock.advance(6)
    assert clock.now_ms(TtlTime.EVENT) == 7
