"""Checkpoints in an object store that speaks S3: the contract of targets, over the real protocol."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cep.base.errors import StateCorruptError, StoreError
from cep.state.checkpoints import Checkpoints, Part, Published, checkpoint_numbers, read_manifest, restore
from cep.state.keys import ALL_KEYS, store_key
from cep.state.manifest import FOLDER
from cep.state.rocks import RocksStore
from cep.state.store import DurableStore
from cep.state.target import Target

if TYPE_CHECKING:
    from tests.real_s3 import S3Server


def take(checkpoints: Checkpoints, store: DurableStore, payload: bytes = b"") -> Published:
    copying = checkpoints.begin([Part("main", store, 0, 8)], payload, 0)
    assert copying is not None
    return copying.result(timeout=60)


def fill(store: DurableStore, first: int, end: int) -> None:
    for number in range(first, end):
        store.put(store_key(1, b"%06d" % number, b"", b""), os.urandom(1_000))


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
            store.delete_range(ALL_KEYS)
            fill(store, 5_000, 5_010)
            store.compact(ALL_KEYS)
            for number in (b"3", b"4"):
                assert take(checkpoints, store, number).is_tidy
        expected = dict(store.scan(ALL_KEYS))
    assert checkpoint_numbers(target) == [3, 4]
    named = {file.sha256 for number in (3, 4) for file in read_manifest(target, number).files}
    objects = s3.objects("job")
    assert {name.removeprefix(f"{FOLDER}/") for name in objects if name.startswith(FOLDER)} == named
    assert sum(objects.values()) < 1_000_000, "the two thousand are gone"
    back = restore(target, tmp_path / "back")
    assert back is not None
    assert (back.payload, back.refused) == (b"4", ())
    with RocksStore(back.path("main")) as store:
        assert dict(store.scan(ALL_KEYS)) == expected
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
        expected = dict(store.scan(ALL_KEYS))
    back = restore(target, tmp_path / "back")
    assert back is not None
    assert back.payload == b"again"
    with RocksStore(back.path("main")) as store:
        assert dict(store.scan(ALL_KEYS)) == expected
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
