"""Savepoints between kinds of stores and numbers of stores; damage is refused before any of it is loaded.

Targets on the local disk, of fsspec and in an object store that speaks S3: whole files or none, errors with names.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cep.base.errors import StateCorruptError, StoreError, UsageError
from cep.state import store as stores
from cep.state import target as target_module
from cep.state.checkpoints import Checkpoints, Part, Published, checkpoint_numbers, read_manifest, restore
from cep.state.manifest import FOLDER
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksStore
from cep.state.savepoints import load_savepoint, open_savepoint, write_savepoint
from cep.state.target import Target
from tests.small_disk import small_disk

if TYPE_CHECKING:
    from tests.real_s3 import S3Server


GROUPS = range(12)
Open = Callable[[Path], stores.DurableStore]
KINDS: dict[str, Open] = {"memory": lambda _: MemoryStore(), "rocks": RocksStore}
Entries = dict[bytes, bytes]


def entries(store: stores.DurableStore) -> Entries:
    return dict(store.scan(stores.group_range(0, stores.STORE_GROUP)))


def shares(groups: range, count: int) -> list[range]:
    """Divide the key groups between `count` stores, evenly; every store gets at least one."""
    bounds = [groups.start + len(groups) * number // count for number in range(count + 1)]
    return [range(first, end) for first, end in pairwise(bounds)]


def move_groups(sources: Sequence[stores.KeyedStore], store: stores.DurableStore, groups: range) -> None:
    """Copy key groups of other stores into an empty one."""
    store.ingest(chain.from_iterable(source.scan(stores.group_range(group)) for group in groups for source in sources))


def filled(folder: Path, open_store: Open, count: int) -> list[Part]:
    """Return stores that together hold all groups, some without entries, and with an entry of the store itself."""
    chance = Random(count)
    parts = []
    for number, groups in enumerate(shares(GROUPS, count)):
        store = open_store(folder / f"from{number}")
        for group in groups:
            for key in range(chance.choice([0, 1, 30])):
                store.put(stores.store_key(group, b"%d" % key, b"", b"n"), chance.randbytes(50))
        store.put(stores.store_key(stores.STORE_GROUP, b"", b"other", b"x"), b"of this store alone")
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
            share = {k: v for k, v in expected.items() if stores.key_group_of(k) in groups}
            assert entries(store) == share
            assert list(store.scan(stores.group_range(stores.STORE_GROUP))) == []
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
                assert {stores.key_group_of(key) for key in entries(store)} <= set(groups)
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
    share = {k: v for k, v in entries(parts[1].store).items() if stores.key_group_of(k) in (5, 6, 7)}
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
        def snapshot(self) -> stores.StoreSnapshot:
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


@pytest.fixture(params=["local", "memory"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return Target(str(tmp_path / "target") if request.param == "local" else f"memory://{uuid4()}")


def test_files_come_back(target: Target, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"bytes")
    assert target.sizes() == {}
    assert target.sizes("files") == {}
    target.put(tmp_path / "source", "files/one")
    target.put(tmp_path / "source", "files/two", may_link=True)
    target.create("note", b"small")
    assert target.sizes("files") == {"one": 5, "two": 5}
    assert target.sizes() == {"note": 5}, "folders are not files"
    assert target.read("note") == b"small"
    for name, may_link in (("one", False), ("two", True)):
        target.get(f"files/{name}", tmp_path / "got" / name, 5, may_link)
        assert (tmp_path / "got" / name).read_bytes() == b"bytes"
    target.remove("files/one")
    target.remove("files/one")
    assert target.sizes("files") == {"two": 5}


@pytest.mark.parametrize("has_links", [True, False])
def test_a_name_is_created_once(target: Target, has_links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_links:
        monkeypatch.setattr(target_module, "_linked", lambda *_: False)
    target.create("note", b"first")
    with pytest.raises(StoreError, match="another process writes"):
        target.create("note", b"second")
    assert target.read("note") == b"first"
    assert target.sizes() == {"note": 5}, "nothing unfinished stays"


def test_what_is_gone_is_damage(target: Target, tmp_path: Path) -> None:
    with pytest.raises(StateCorruptError, match="files/none"):
        target.get("files/none", tmp_path / "got", 1)
    with pytest.raises(StateCorruptError, match="none"):
        target.read("none")


def test_a_copy_replaces_a_damaged_file(target: Target, tmp_path: Path) -> None:
    for text in (b"damaged", b"good"):
        (tmp_path / "source").write_bytes(text)
        target.put(tmp_path / "source", "files/one")
    target.get("files/one", tmp_path / "got", 4)
    assert (tmp_path / "got").read_bytes() == b"good"


def test_a_file_of_another_size_is_not_copied(target: Target, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"bytes")
    target.put(tmp_path / "source", "files/one")
    for size in (4, 6, 1 << 60):
        with pytest.raises(StateCorruptError, match=f"has 5 bytes instead of {size}"):
            target.get("files/one", tmp_path / "got", size)
    with pytest.raises(StateCorruptError, match=r"5 bytes (and may have|are over the limit of) 4"):
        target.read("files/one", 4)
    assert not (tmp_path / "got").exists()


@pytest.mark.parametrize("may_link", [False, True])
@pytest.mark.parametrize("kind", ["device", "pipe", "link", "loop", "folder", "linked folder"])
def test_what_is_no_file_of_the_target_is_refused(kind: str, may_link: bool, tmp_path: Path) -> None:
    """A savepoint is a folder from any source; a device has no end, and a pipe may never begin."""
    root, secret = tmp_path / "target", tmp_path / "secret"
    (root / "files").mkdir(parents=True)
    secret.write_bytes(b"bytes")
    place = root / "files" / "one"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "linked folder":
        (root / "files").rmdir()
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "one").write_bytes(b"bytes")
        (root / "files").symlink_to(tmp_path / "other")
    else:
        place.symlink_to({"device": Path("/dev/zero"), "link": secret, "loop": place}[kind])
    target = Target(str(root))
    with pytest.raises(StateCorruptError, match="files/one"):
        target.get("files/one", tmp_path / "got", 5, may_link)
    with pytest.raises(StateCorruptError, match="files/one"):
        target.read("files/one")
    assert not (tmp_path / "got").exists()


def test_a_file_for_which_the_disk_has_no_room_is_not_begun(target: Target, tmp_path: Path) -> None:
    """A file of zeros takes no room at its source, and its full size in the target."""
    (tmp_path / "source").write_bytes(b"bytes")
    target.put(tmp_path / "source", "files/one")
    with (
        patch("shutil.disk_usage", return_value=SimpleNamespace(free=4)),
        pytest.raises(StoreError, match=r"has 5 bytes, and the disk of .* has room for 4"),
    ):
        target.get("files/one", tmp_path / "got", 5)
    assert not (tmp_path / "got").exists()


def test_a_target_may_itself_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real" / "files").mkdir(parents=True)
    (tmp_path / "real" / "files" / "one").write_bytes(b"bytes")
    (tmp_path / "target").symlink_to(tmp_path / "real")
    Target(str(tmp_path / "target")).get("files/one", tmp_path / "got", 5, may_link=True)
    assert (tmp_path / "got").read_bytes() == b"bytes"


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(StoreError, match="nonsense"):
        Target("nonsense://bucket")


def test_no_place_is_not_the_folder_of_the_process() -> None:
    with pytest.raises(UsageError, match="an empty text"):
        Target("")


class FullFileSystem(MemoryFileSystem):  # type: ignore[misc] # fsspec publishes no types
    """An object store that accepts no writes."""

    protocol = "full"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full_target() -> Target:
    fsspec.register_implementation("full", FullFileSystem, clobber=True)
    return Target(f"full://{uuid4()}")


def test_a_full_object_store_says_what_to_do(full_target: Target, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"bytes")
    with pytest.raises(StoreError, match="make room there"):
        full_target.put(tmp_path / "source", "files/one")
    with pytest.raises(StoreError, match="make room there"):
        full_target.create("note", b"")


def test_a_full_disk_keeps_what_was_whole(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x" * 1_000)
    (tmp_path / "large").write_bytes(b"x" * 400_000)
    with small_disk(tmp_path / "disk", 1) as disk:
        target = Target(str(disk.folder / "target"))
        target.put(tmp_path / "small", "files/small")
        disk.fill(100_000)
        with pytest.raises(StoreError, match="make room there"):
            target.put(tmp_path / "large", "files/large")
        disk.free()
        assert "large" not in target.sizes("files")
        target.get("files/small", tmp_path / "got", 1_000)
        assert (tmp_path / "got").read_bytes() == b"x" * 1_000
        target.put(tmp_path / "large", "files/large")


def take(checkpoints: Checkpoints, store: stores.DurableStore, payload: bytes = b"") -> Published:
    copying = checkpoints.begin([Part("main", store, 0, 8)], payload, 0)
    assert copying is not None
    return copying.result(timeout=60)


def fill(store: stores.DurableStore, first: int, end: int) -> None:
    for number in range(first, end):
        store.put(stores.store_key(1, b"%06d" % number, b"", b""), os.urandom(1_000))


def test_checkpoints_copy_what_is_new_and_what_no_one_names_is_removed(s3: S3Server, tmp_path: Path) -> None:
    target = Target(s3.url("job"))
    assert target.sizes() == {}
    with RocksStore(tmp_path / "store") as store:
        with Checkpoints(target, tmp_path / "work", kept_count=2) as checkpoints:
            fill(store, 0, 2_000)
            first = take(checkpoints, store, b"1")
            fill(store, 2_000, 2_100)
            second = take(checkpoints, store, b"2")
            assert first.copied_bytes_count > 4 * second.copied_bytes_count > 4 * 100_000
            store.delete_range(stores.ALL_KEYS)
            fill(store, 5_000, 5_010)
            store.compact(stores.ALL_KEYS)
            for number in (b"3", b"4"):
                assert take(checkpoints, store, number).is_tidy
        expected = dict(store.scan(stores.ALL_KEYS))
    assert checkpoint_numbers(target) == [3, 4]
    named = {file.sha256 for number in (3, 4) for file in read_manifest(target, number).files}
    objects = s3.objects("job")
    assert {name.removeprefix(f"{FOLDER}/") for name in objects if name.startswith(FOLDER)} == named
    assert sum(objects.values()) < 1_000_000, "the two thousand are gone"
    back = restore(target, tmp_path / "back")
    assert back is not None
    assert (back.payload, back.refused) == (b"4", ())
    with RocksStore(back.path("main")) as store:
        assert dict(store.scan(stores.ALL_KEYS)) == expected
        with Checkpoints(target, tmp_path / "work", kept_count=2, restored=back) as checkpoints:
            again = take(checkpoints, store, b"5")
    assert again.number == 5
    assert again.copied_bytes_count < 20_000, "the tables are there already"


@pytest.mark.parametrize("harm", ["missing", "torn", "changed"])
def test_a_damaged_object_is_passed_over(harm: str, s3: S3Server, tmp_path: Path) -> None:
    target = Target(s3.url("job"))
    with RocksStore(tmp_path / "store") as store, Checkpoints(target, tmp_path / "work") as checkpoints:
        for number in range(2):
            fill(store, 100 * number, 100 * number + 100)
            take(checkpoints, store, b"%d" % number)
    new, old = ({file.sha256: file for file in read_manifest(target, number).files} for number in (2, 1))
    (sha256,) = (sha256 for sha256 in new.keys() - old.keys() if new[sha256].name.endswith(".sst"))
    good = target.read(f"{FOLDER}/{sha256}")
    changed = {"missing": None, "torn": good[:-1], "changed": good[:50] + bytes([good[50] ^ 1]) + good[51:]}[harm]
    s3.replace(f"job/{FOLDER}/{sha256}", changed)
    back = restore(target, tmp_path / "back")
    assert back is not None
    assert back.payload == b"0"
    assert len(back.refused) == 1
    manifest = "checkpoint-00000001.manifest"
    s3.replace(f"job/{manifest}", target.read(manifest)[:-1])
    with pytest.raises(StateCorruptError, match=r"no checkpoint in s3://.* is whole"):
        restore(target, tmp_path / "again")


def test_of_two_processes_that_write_one_is_refused(s3: S3Server, tmp_path: Path) -> None:
    target = Target(s3.url("job"))
    with RocksStore(tmp_path / "store") as store:
        fill(store, 0, 10)
        one, other = (Checkpoints(target, tmp_path / name) for name in ("one", "other"))
        with one, other:
            take(one, store, b"one")
            with pytest.raises(StoreError, match="another process writes there too"):
                take(other, store, b"other")
    back = restore(target, tmp_path / "back")
    assert back is not None
    assert back.payload == b"one"
    # The file may also appear between the check and the write: the server itself refuses.
    with pytest.raises(FileExistsError):
        target._files.pipe_file(f"{s3.bucket}/job/checkpoint-00000001.manifest", b"mine", mode="create")


def test_a_server_that_goes_away_fails_checkpoints_and_is_no_reason_to_go_back(s3: S3Server, tmp_path: Path) -> None:
    target = Target(s3.url("job"))
    with RocksStore(tmp_path / "store") as store, Checkpoints(target, tmp_path / "work", kept_count=1) as checkpoints:
        fill(store, 0, 10)
        take(checkpoints, store, b"good")
        s3.stop()
        fill(store, 10, 20)
        with pytest.raises(StoreError, match=r"cannot write .*check the address, the credentials and the network"):
            take(checkpoints, store)
        with pytest.raises(StoreError, match="cannot list files") as refused:
            restore(target, tmp_path / "back")
        assert not isinstance(refused.value, StateCorruptError)
        s3.start()
        assert take(checkpoints, store, b"again").number == 3
        expected = dict(store.scan(stores.ALL_KEYS))
    back = restore(target, tmp_path / "back")
    assert back is not None
    assert back.payload == b"again"
    with RocksStore(back.path("main")) as store:
        assert dict(store.scan(stores.ALL_KEYS)) == expected
    named = {file.sha256 for file in read_manifest(target, 3).files}
    assert set(target.sizes(FOLDER)) == named


def test_a_bucket_that_is_not_there_is_told(s3: S3Server, tmp_path: Path) -> None:
    target = Target("s3://cep-no-such-bucket/job")
    with (
        RocksStore(tmp_path / "store") as store,
        Checkpoints(target, tmp_path / "work") as checkpoints,
        pytest.raises(StoreError, match="bucket does not exist"),
    ):
        take(checkpoints, store)
