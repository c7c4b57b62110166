"""A stream of JSON lines, such as standard input → chunks of records.

A line cannot be read twice: after a restart the job goes on with the lines that come then.
Tested by: tests/sources/test_live.py
"""

import codecs
import os
import select
import time
from collections.abc import Collection, Mapping

from cep.base.errors import SourceError
from cep.sources.json_lines import LineCutter, json_values
from cep.sources.live.base import Chunk, Positions

LANE = "lines"
_BLOCK_BYTES = 1 << 20


class LinesSource:
    """Lines of a file descriptor, read until its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._cutter = LineCutter()
        self._mark = codecs.BOM_UTF8  # that the first line may begin with
        self._records_count = 0
        self._is_more = False  # at the last query
        self.ended = False

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        """Return the lines that arrive at the descriptor, such as standard input, within `wait_s`."""
        deadline_s = time.monotonic() + wait_s
        self._is_more = False  # until `look` asks again
        while not self.ended:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                return []
            try:
                block = os.read(self._descriptor, _BLOCK_BYTES)
            except OSError as error:
                raise SourceError(f"the stream of events cannot be read: {error}; give JSON lines") from error
            self.ended = not block
            lines = self._cutter.take(block) if block else self._cutter.last()
            values = json_values(lines.removeprefix(self._mark))
            self._mark = b"" if lines else self._mark
            if len(values):
                self._records_count += len(values)
                return [Chunk(LANE, values)]
        return []

    def positions(self) -> Positions:
        return {LANE: self._records_count}

    def seek(self, positions: Mapping[str, int]) -> None:
        """Go on with the count alone."""
        self._records_count = positions.get(LANE, 0)

    def look(self) -> None:
        self._is_more = bool(select.select([self._descriptor], [], [], 0.0)[0])

    def hold(self, lanes: Collection[str]) -> None:
        """Do nothing: there is one lane."""

    def behind(self) -> dict[str, bool]:
        return {LANE: self._is_more and not self.ended}

    def close(self) -> None:
        """Do nothing: the caller owns the descriptor."""
