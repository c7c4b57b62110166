"""Bytes → a file that is there whole or not at all, also after a power cut.

    1  write under another name in the same folder, which nothing that lists the folder takes for a file
    2  sync the bytes
    3  rename
    4  sync the folder: before that a power cut may undo the rename

Tested by: tests/base/test_durable.py
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def replace_file(
    path: Path, content: bytes | Callable[[BinaryIO], object], *, many_writers: bool = False, is_last: bool = True
) -> None:
    """Put a file in place of the one that has the name, if there is one; its folder is made if it is not there.

    `content` is the bytes, or what writes them. With `many_writers` several processes may write the same file at once.
    Of several files in a folder only the last one needs step 4; the others may say that they are not it.
    Raises: OSError, and what `content` raises; the file is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # One name for a single writer, so that what a killed one has left is overwritten by the next.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex if many_writers else 'tmp'}")
    try:
        with temporary.open("wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                content(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if is_last:
        sync(path.parent)


def sync(path: Path) -> None:
    """Bring a file's bytes, or a folder's names, to the disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
