"""Files are there whole or not at all, and those that a job writes are for their owner alone."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from cep.base.files import is_ours, make_private, private_files, replace_file


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


def readable_by_others(*folders: Path) -> list[str]:
    """List the files and folders that a group or others may read, including the given folders."""
    paths = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    assert paths
    return [str(path) for path in paths if path.lstat().st_mode & 0o077 and not path.is_symlink()]


def test_files_of_the_block_and_of_its_children_are_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with private_files():
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "b").touch()
            subprocess.run([sys.executable, "-c", "open('c', 'w')"], cwd=tmp_path / "a", check=True)
        assert readable_by_others(tmp_path / "a") == []
        (tmp_path / "d").touch()
        assert readable_by_others(tmp_path / "d") == [str(tmp_path / "d")]
        make_private()
        (tmp_path / "e").touch()
        assert readable_by_others(tmp_path / "e") == []
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ((0o755, 0o755), True),
        ((0o755, 0o700), True),
        ((0o1777, 0o700), True),
        ((0o777, 0o700), False),
        ((0o755, 0o777), False),
        ((0o755, 0o1777), False),
        ((0o755, 0o757), False),
    ],
)
def test_a_folder_is_ours_if_nobody_else_can_put_a_file_there(
    modes: tuple[int, int], expected: bool, tmp_path: Path
) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    outer.chmod(modes[0])
    inner.chmod(modes[1])
    assert is_ours(inner) == expected
    (tmp_path / "link").symlink_to(inner)
    assert is_ours(tmp_path / "link") == expected
    assert not is_ours(inner / "gone")


def test_a_folder_of_another_user_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir(mode=0o755)
    real = os.stat

    def of_user(path: Path, **options: Any) -> Any:
        about = real(path, **options)
        owner = 1_234 if str(path) == str(tmp_path / "folder") else about.st_uid
        return SimpleNamespace(st_mode=about.st_mode, st_uid=owner, st_gid=about.st_gid)

    monkeypatch.setattr(Path, "stat", of_user)
    assert is_ours(tmp_path)
    assert not is_ours(tmp_path / "folder")


def test_it_ends_with_an_error_too() -> None:
    before = os.umask(0o022)
    os.umask(before)
    with pytest.raises(ZeroDivisionError), private_files():
        raise ZeroDivisionError
    assert os.umask(before) == before
