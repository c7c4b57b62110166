"""The JSON files of a checkpoint directory, read by the code that knows their contents.

Tested by: tests/runners/test_live_checkpoint.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from cep.base.errors import StateCorruptError, UnreadableError
from cep.base.limits import JOB_FILE_BYTES_MAX
from cep.base.reading import read_file


def read_document(path: Path) -> dict[str, Any]:
    """Read one of the JSON files of a checkpoint directory. Raises: StateCorruptError."""
    try:
        document = orjson.loads(read_file(path, JOB_FILE_BYTES_MAX))
    except (UnreadableError, ValueError) as error:
        raise StateCorruptError(
            f"{path} cannot be read ({error}); restore it, or give a new checkpoint directory"
        ) from error
    if not isinstance(document, dict):
        raise StateCorruptError(f"{path} is not what was written there; restore it, or give a new checkpoint directory")
    return document
