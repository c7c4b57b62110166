"""The contract of a store, for the memory store and for RocksDB."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cep.base.errors import StateCorruptError, StateError
from cep.state.keys import ALL_KEYS, group_range, store_key
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksSettings, RocksStore
from cep.state.store import DurableStore
from tests.state.contract import CHECKS, Check

Open = Callable[[Path], DurableStore]
STORES: dict[str, Open] = {
    "memory": lambda path: MemoryStore.open(path) if path.exists() else MemoryStore(),
    "rocks": RocksStore,
    "rocks without a log": lambda path: RocksStore(path, RocksSettings(wal=False)),
}


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest) -> Open:
    return STORES[request.param]


@pytest.fixture
def store(open_store: Open, tmp_path: Path) -> Iterator[DurableStore]:
    with open_store(tmp_path / "store") as opened:
        yield opened


def filled(store: DurableStore, groups: range = range(4), per_group: int = 50) -> dict[bytes, bytes]:
    entries = {store_key(g, b"%d" % i, b"", b"n"): b"%d/%d" % (g, i) for g in groups for i in range(per_group)}
    for key, value in entries.items():
        store.put(key, value)
    return entries


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Check, store: DurableStore) -> None:
    check(store)


def test_a_key_group_is_one_range(store: DurableStore) -> None:
    entries = filled(store)
    store.delete_range(group_range(1, 3))
    remaining = {key: value for key, value in entries.items() if key[1] in (0, 3)}
    assert dict(store.scan(ALL_KEYS)) == remaining
    assert dict(store.scan(group_range(3))) == {key: value for key, value in remaining.items() if key[1] == 3}


def test_a_snapshot_does_not_see_later_writes(store: DurableStore) -> None:
    entries = filled(store)
    with store.snapshot() as snapshot:
        store.delete_range(group_range(0, 2))
        store.put(next(iter(entries)), b"later")
        assert dict(snapshot.scan(ALL_KEYS)) == entries
        assert {key: snapshot.get(key) for key in entries} == entries
        assert snapshot.get(b"\x00\x00nothing") is None


def test_a_checkpoint_is_a_store_of_its_own(open_store: Open, store: DurableStore, tmp_path: Path) -> None:
    entries = filled(store)
    files = store.checkpoint(tmp_path / "copy")
    assert files
    assert all(file.is_file() for file in files)
    store.delete_range(ALL_KEYS)
    shutil.copytree(tmp_path / "copy", tmp_path / "elsewhere")
    for path in (tmp_path / "copy", tmp_path / "elsewhere"):
        with open_store(path) as other:
            assert dict(other.scan(ALL_KEYS)) == entries
            other.put(store_key(9, b"k", b"", b"n"), b"only here")
    assert list(store.scan(ALL_KEYS)) == []


def test_the_files_of_a_checkpoint_are_all_it_needs(open_store: Open, store: DurableStore, tmp_path: Path) -> None:
    entries = filled(store)
    (tmp_path / "bare").mkdir()
    for file in store.checkpoint(tmp_path / "copy"):
        shutil.copy(file, tmp_path / "bare" / file.name)
    with open_store(tmp_path / "bare") as other:
        assert dict(other.scan(ALL_KEYS)) == entries


def test_a_checkpoint_of_nothing_is_empty(open_store: Open, store: DurableStore, tmp_path: Path) -> None:
    store.checkpoint(tmp_path / "copy")
    with open_store(tmp_path / "copy") as other:
        assert list(other.scan(ALL_KEYS)) == []


def test_sorted_entries_are_taken_in_at_once(store: DurableStore) -> None:
    entries = filled(store, range(2))
    fresh = {store_key(g, b"%d" % i, b"", b"n"): b"new" for g in (1, 5) for i in range(20)}
    assert store.ingest(iter(sorted(fresh.items()))) == 40
    assert dict(store.scan(ALL_KEYS)) == entries | fresh
    assert store.ingest(iter(())) == 0


def test_a_load_that_fails_leaves_the_store_as_it_was(store: DurableStore) -> None:
    entries = filled(store, range(2))

    def broken() -> Iterator[tuple[bytes, bytes]]:
        yield store_key(1, b"a", b"", b"n"), b"new"
        raise StateCorruptError("the file ends here")

    with pytest.raises(StateError, match="ends here"):
        store.ingest(broken())
    assert dict(store.scan(ALL_KEYS)) == entries


def test_sizes_grow_with_what_is_stored(store: DurableStore) -> None:
    before = store.sizes()
    filled(store, per_group=200)
    store.sync()
    after = store.sizes()
    assert after.disk_bytes + after.memory_bytes > before.disk_bytes + before.memory_bytes
    assert 0 < after.entries_count <= 800
