"""A target on the local disk and one of fsspec's own: whole files or none, errors with names."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cep.base.errors import StateCorruptError, StoreError
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
        target.get(f"files/{name}", tmp_path / "got" / name, may_link)
        assert (tmp_path / "got" / name).read_bytes() == b"bytes"
    target.remove("files/one")
    target.remove("files/one")
    assert target.sizes("files") == {"two": 5}


def test_a_name_is_created_once(target: Target) -> None:
    target.create("note", b"first")
    with pytest.raises(StoreError, match="another process writes"):
        target.create("note", b"second")
    assert target.read("note") == b"first"
    assert target.sizes() == {"note": 5}, "nothing unfinished stays"


def test_what_is_gone_is_damage(target: Target, tmp_path: Path) -> None:
    with pytest.raises(StateCorruptError, match="files/none"):
        target.get("files/none", tmp_path / "got")
    with pytest.raises(StateCorruptError, match="none"):
        target.read("none")


def test_a_copy_replaces_a_damaged_file(target: Target, tmp_path: Path) -> None:
    for text in (b"damaged", b"good"):
        (tmp_path / "source").write_bytes(text)
        target.put(tmp_path / "source", "files/one")
    target.get("files/one", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == b"good"


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(StoreError, match="nonsense"):
        Target("nonsense://bucket")


class FullFileSystem(MemoryFileSystem):  # type: ignore[misc] # fsspec publishes no types
    """An object store that takes nothing."""

    protocol = "full"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def put_file(self, lpath: str, rpath: str, **given: Any) -> None:
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
        target.get("files/small", tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == b"x" * 1_000
        target.put(tmp_path / "large", "files/large")
