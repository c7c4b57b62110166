"""Dead letters → JSON lines, one file for each micro-batch that has any.

A micro-batch that comes again replaces its own file: all or nothing, under the same name.
Tested by: tests/sinks/test_files.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cep.sinks.durable import write_durably


class DeadLetterFiles:
    """A sink that writes the dead letters of each micro-batch to a file in `directory`.

    The name begins with `prefix`.
    """

    def __init__(self, directory: Path, prefix: str = "batch") -> None:
        self._directory = directory
        self._prefix = prefix

    def write(self, dead_letters: Sequence[bytes], batch_id: int) -> None:
        """Write the file of a micro-batch, if it has dead letters. Raises: SinkError."""
        if dead_letters:
            write_durably(self._directory / f"{self._prefix}-{batch_id:019d}.jsonl", b"\n".join(dead_letters) + b"\n")

    def close(self) -> None:
        """Do nothing, because no file is open between writes."""
