"""A target on the local disk and one of fsspec's own: whole files or none, errors with names."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cep.base.errors import StateCorruptError, StoreError
from cep.state import target as target_module
from cep.state.target import Target
from tests.small_disk import small_disk


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
