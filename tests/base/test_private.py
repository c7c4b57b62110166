"""Files that a job writes are for their owner alone, and earlier files stay as they were."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cep.base.private import is_ours, make_private, private_files


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
