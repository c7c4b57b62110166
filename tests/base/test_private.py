"""What a job writes is for its owner alone, and what was there before stays as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cep.base.private import make_private, private_files


def readable_by_others(*folders: Path) -> list[str]:
    """List the files and folders that a group or others may read, the given folders with them."""
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


def test_it_ends_with_an_error_too() -> None:
    before = os.umask(0o022)
    os.umask(before)
    with pytest.raises(ZeroDivisionError), private_files():
        raise ZeroDivisionError
    assert os.umask(before) == before
