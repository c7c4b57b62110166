"""Bytes → a file that is there whole or not at all, also after a power cut. The only writer of files of the project.

    1  create a new file under another name in the same folder; a name that exists, also as a link, is not opened
    2  sync the bytes
    3  rename
    4  sync the folder: before that a power cut may undo the rename

The folder is opened once and every step names the file relative to it, so a folder that is exchanged for a link
between two steps changes nothing. In a folder that other people write to, such as a repository of rules, give `root`:
no folder between it and the file may be a link, and the file may not be one.
Tested by: tests/base/test_durable.py, tests/cli/test_rules.py
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from cep.base.errors import LinkedPathError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_REPOSITORY = ".git"


def replace_file(
    path: Path,
    content: bytes | Callable[[BinaryIO], object],
    *,
    many_writers: bool = False,
    is_last: bool = True,
    root: Path | None = None,
) -> None:
    """Write a file, in place of the one with the same name if there is one. Missing folders are made.

    `content` is the bytes, or a function that writes them. With `many_writers` several processes may write the same
    file at once. If several files are written to one folder, only the last one needs step 4: pass `is_last=False` for
    the others. With `root` the file keeps its permissions, and a link on the way from the root to it is refused.
    Raises: OSError, and the errors of `content`; LinkedPathError, an OSError, for a link. The file is then unchanged.
    """
    folder = _open_folder(path.parent) if root is None else _open_below(path, root)
    # Outside of a repository a single writer always takes the same name, so the next write removes the file of a writer
    # that was killed. In a repository other people write, and they must not know the name.
    is_random = many_writers or root is not None
    temporary = f".{path.name}.{uuid.uuid4().hex if is_random else 'tmp'}"
    try:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        try:
            with os.fdopen(os.open(temporary, _NEW, 0o666, dir_fd=folder), "wb") as file:
                if root is not None:
                    _copy_permissions(path.name, folder, file.fileno())
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    content(file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
        if is_last:
            os.fsync(folder)
    finally:
        os.close(folder)


def repository_root(folder: Path) -> Path:
    """Return the nearest folder with a `.git` above a folder, as the path names it; the folder itself without one."""
    absolute = folder.absolute()
    for above in (absolute, *absolute.parents):
        with suppress(OSError):  # a folder without the permission to read it
            if above != Path(above.anchor) and (above / _REPOSITORY).exists():
                return above
    return absolute


def sync(path: Path) -> None:
    """Bring a file's bytes, or a folder's names, to the disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_folder(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder, _FOLDER)


def _open_below(path: Path, root: Path) -> int:
    """Open the folder of a file, step by step from the root, and refuse a link at any step."""
    folder, outermost = os.path.normpath(path.parent.absolute()), os.path.normpath(root.absolute())
    parts = Path(folder).relative_to(outermost).parts
    descriptor = os.open(root, _FOLDER)
    for part in parts:
        outer = descriptor
        try:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=outer)
            _refuse_link(part, outer)
            descriptor = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=outer)
        finally:
            os.close(outer)
    try:
        _refuse_link(path.name, descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_link(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise LinkedPathError(f"{name} is a link, and cep writes through none; put a file or folder in its place")


def _copy_permissions(name: str, folder: int, descriptor: int) -> None:
    with suppress(FileNotFoundError):
        os.fchmod(descriptor, stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode))
