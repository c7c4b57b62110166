"""Bytes → a file that is there whole or not at all (base/files.py), or a SinkError.

Tested by: tests/sinks/test_files.py, tests/runners/spark/test_driver.py
"""

from pathlib import Path

from cep.base.errors import SinkError
from cep.base.files import replace_file


def write_durably(path: Path, data: bytes) -> None:
    """Put a file in place of the one that has the name. Raises: SinkError, and the file is as before."""
    try:
        replace_file(path, data)
    except OSError as error:
        raise SinkError(
            f"{path} cannot be written: {error}; make room or mend the folder and start again: nothing is lost"
        ) from error
