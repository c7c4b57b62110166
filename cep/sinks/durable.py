"""Bytes → a file that is there whole or not at all, also after a power cut.

Tested by: tests/sinks/test_letters.py, tests/runners/spark/test_live_output.py
"""

from __future__ import annotations

import os
from pathlib import Path

from cep.base.errors import SinkError


def write_durably(path: Path, data: bytes) -> None:
    """Write under another name, make durable, rename. Raises: SinkError; the file is then as it was."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        make_durable(path.parent)
    except OSError as error:
        raise SinkError(
            f"{path} cannot be written: {error}; make room or mend the folder and start again: nothing is lost"
        ) from error


def make_durable(directory: Path) -> None:
    """The rename itself survives a power cut only when the folder is synced too. Raises: OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
