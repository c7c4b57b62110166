"""Savepoints between kinds of stores and numbers of stores; damage is refused before any of it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import chain, pairwise
from pathlib import Path
from random import Random

import pytest

from cep.base.errors import StateCorruptError, StoreError
from cep.state.checkpoints import Checkpoints, Part, restore
from cep.state.keys import STORE_GROUP, group_range, key_group_of, store_key
from cep.state.manifest import FOLDER
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksStore
from cep.state.savepoints import load_savepoint, open_savepoint, write_savepoint
from cep.state.store import DurableStore, KeyedStore, StoreSnapshot
from cep.state.target import Target

GROUPS = range(12)
Open = Callable[[Path], DurableStore]
KINDS: dict[str, Open] = {"memory": lambda _: MemoryStore(), "rocks": RocksStore}
Entries = dict[bytes, bytes]


def entries(store: DurableStore) -> Entries:
    """Return the entries of all key groups."""
    return dict(store.scan(group_range(0, STORE_GROUP)))


def shares(groups: range, count: int) -> list[range]:
    """Divide the key groups between `count` stores, evenly; every store gets at least one."""
    bounds = [groups.start + len(groups) * number // count for number in range(count + 1)]
    return [range(first, end) for first, end in pairwise(bounds)]


def move_groups(sources: Sequence[KeyedStore], store: DurableStore, groups: range) -> None:
    """Copy key groups of other stores into an empty one."""
    store.ingest(chain.from_iterable(source.scan(group_range(group)) for group in groups for source in sources))


def filled(folder: Path, open_store: Open, count: int) -> list[Part]:
    """Return stores that together hold all groups, some without entries, and with an entry of the store itself."""
    chance = Random(count)
    parts = []
    for number, groups in enumerate(shares(GROUPS, count)):
        store = open_store(folder / f"from{number}")
        for group in groups:
            for key in range(chance.choice([0, 1, 30])):
                store.put(store_key(group, b"%d" % key, b"", b"n"), chance.randbytes(50))
        store.put(store_key(STORE_GROUP, b"", b"other", b"x"), b"of this store alone")
        parts.append(Part(f"worker-{number}", store, groups.start, groups.stop))
    return parts


@pytest.mark.parametrize("then", [1, 2, 5])
@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("kinds", [("rocks", "memory"), ("memory", "rocks"), ("rocks", "rocks")], ids="-".join)
def test_any_number_of_stores_becomes_any_other(tmp_path: Path, kinds: tuple[str, str], first: int, then: int) -> None:
    target = Target(str(tmp_path / "savepoint"))
    parts = filled(tmp_path, KINDS[kinds[0]], first)
    expected: Entries = {key: value for part in parts for key, value in entries(part.store).items()}
    write_savepoint(target, tmp_path / "work", parts, b"offsets", 5_000)
    for part in parts:
        part.store.close()
    savepoint = open_savepoint(target, tmp_path / "work")
    assert (savepoint.payload, savepoint.groups, savepoint.manifest.created_ms) == (b"offsets", GROUPS, 5_000)
    for number, groups in enumerate(shares(savepoint.groups, then)):
        with KINDS[kinds[1]](tmp_path / f"to{number}") as store:
            loaded = load_savepoint(savepoint, store, groups, tmp_path / "work")
            share = {k: v for k, v in expected.items() if key_group_of(k) in groups}
            assert entries(store) == share
            assert list(store.scan(group_range(STORE_GROUP))) == []
            assert loaded == len(share)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(("first", "then"), [(1, 4), (3, 1), (3, 5)])
def test_a_checkpoint_goes_on_with_other_workers(tmp_path: Path, first: int, then: int) -> None:
    parts = filled(tmp_path, RocksStore, first)
    expected: Entries = {key: value for part in parts for key, value in entries(part.store).items()}
    with Checkpoints(Target(str(tmp_path / "target")), tmp_path / "work") as checkpoints:
        copying = checkpoints.begin(parts, b"", 0)
        assert copying is not None
        copying.result(timeout=60)
    for part in parts:
        part.store.close()
    restored = restore(Target(str(tmp_path / "target")), tmp_path / "back")
    assert restored is not None
    moved: Entries = {}
    with ExitStack() as opened:
        sources = [opened.enter_context(RocksStore(restored.path(part.name))) for part in restored.manifest.parts]
        for number, groups in enumerate(shares(GROUPS, then)):
            with RocksStore(tmp_path / f"to{number}") as store:
                move_groups(sources, store, groups)
                assert {key_group_of(key) for key in entries(store)} <= set(groups)
                moved |= entries(store)
    assert moved == expected


def test_a_process_takes_over_a_share_of_a_checkpoint_and_keeps_its_own_checkpoints(tmp_path: Path) -> None:
    parts = filled(tmp_path, RocksStore, 3)
    old = Target(str(tmp_path / "old"))
    with Checkpoints(old, tmp_path / "work") as checkpoints:
        copying = checkpoints.begin(parts, b"offsets", 0)
        assert copying is not None
        copying.result(timeout=60)
    restored = restore(old, tmp_path / "back")
    assert restored is not None
    assert [part.name for part in restored.manifest.parts] == ["worker-0", "worker-1", "worker-2"]
    assert sorted(path.name for path in restored.folder.iterdir()) == ["payload", "worker-0", "worker-1", "worker-2"]
    share = {k: v for k, v in entries(parts[1].store).items() if key_group_of(k) in (5, 6, 7)}
    new = Target(str(tmp_path / "new"))
    with (
        RocksStore(restored.path("worker-1")) as source,
        RocksStore(tmp_path / "mine") as mine,
        Checkpoints(new, tmp_path / "work", restored=restored) as checkpoints,
    ):
        move_groups([source], mine, range(5, 8))
        # The same files are copied too: a file that is verified in one target counts as missing in another.
        both = [Part("mine", mine, 5, 8), Part("source", source, 4, 5)]
        copying = checkpoints.begin(both, b"offsets", 0)
        assert copying is not None
        copying.result(timeout=60)
    again = restore(new, tmp_path / "again")
    assert again is not None
    with RocksStore(again.path("mine")) as mine, RocksStore(again.path("source")) as source:
        assert entries(mine) == share
        assert entries(source) == entries(parts[1].store)
    for part in parts:
        part.store.close()


def test_a_savepoint_that_failed_half_way_is_none_and_can_be_written_again(tmp_path: Path) -> None:
    class Failing(MemoryStore):
        def snapshot(self) -> StoreSnapshot:
            raise StoreError("the disk is gone")

    target = Target(str(tmp_path / "savepoint"))
    (good,) = filled(tmp_path, KINDS["memory"], 1)
    with pytest.raises(StoreError, match="gone"):
        write_savepoint(target, tmp_path / "work", [good, Part("bad", Failing(), 12, 13)], b"", 0)
    with pytest.raises(StateCorruptError, match="cannot read"):
        open_savepoint(target, tmp_path / "work")
    write_savepoint(target, tmp_path / "work", [good], b"", 0)
    assert open_savepoint(target, tmp_path / "work").groups == GROUPS


@pytest.mark.parametrize("damaged", ["manifest", "file"])
@pytest.mark.parametrize("how", ["corrupt", "missing"])
def test_a_damaged_savepoint_is_refused(tmp_path: Path, damaged: str, how: str) -> None:
    target = Target(str(tmp_path / "savepoint"))
    parts = filled(tmp_path, KINDS["memory"], 1)
    manifest = write_savepoint(target, tmp_path / "work", parts, b"", 0)
    group_file = next(file for file in manifest.files if file.name.startswith("group-"))
    path = tmp_path / "savepoint" / ("savepoint.manifest" if damaged == "manifest" else f"{FOLDER}/{group_file.sha256}")
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-2] + b"??")
    with pytest.raises(StateCorruptError):
        load_savepoint(open_savepoint(target, tmp_path / "work"), MemoryStore(), GROUPS, tmp_path / "work")


def test_a_savepoint_is_written_once(tmp_path: Path) -> None:
    target = Target(str(tmp_path / "savepoint"))
    parts = filled(tmp_path, KINDS["memory"], 1)
    write_savepoint(target, tmp_path / "work", parts, b"first", 0)
    with pytest.raises(StoreError, match="a savepoint already"):
        write_savepoint(target, tmp_path / "work", parts, b"second", 0)
    assert open_savepoint(target, tmp_path / "work").payload == b"first"
