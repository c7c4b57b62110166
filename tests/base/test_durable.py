"""A file is there whole or not at all; its bytes are synced before its name, and the folder after."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from cep.base.durable import replace_file


@pytest.mark.parametrize("many_writers", [False, True])
def test_a_file_takes_the_place_of_another(tmp_path: Path, many_writers: bool) -> None:
    path = tmp_path / "new" / "file"
    replace_file(path, b"one", many_writers=many_writers)
    replace_file(path, lambda file: file.writelines([b"t", b"wo"]), many_writers=many_writers)
    assert path.read_bytes() == b"two"
    assert [file.name for file in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("many_writers", [False, True])
def test_what_fails_half_way_leaves_the_file_as_it_was(tmp_path: Path, many_writers: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def half(file: BinaryIO) -> None:
        file.write(b"ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        replace_file(path, half, many_writers=many_writers)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_bytes_are_synced_before_the_name_and_the_folder_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        steps.append("folder" if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir() else "bytes")
        sync(descriptor)

    def renamed(name: str, target: str, **folders: int) -> None:
        steps.append("name")
        rename(name, target, **folders)

    monkeypatch.setattr("os.fsync", synced)
    monkeypatch.setattr("os.rename", renamed)
    replace_file(tmp_path / "file", b"bytes")
    assert steps == ["bytes", "name", "folder"]


def test_what_a_killed_writer_has_left_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / ".file.tmp").write_bytes(b"half of somet")
    replace_file(tmp_path / "file", b"whole")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
