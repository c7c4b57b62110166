"""Pages of histories in the state of a key group: heads by page, segments by page and number.

Segments never change, and the hash of their bytes identifies them. A worker process therefore keeps a decoded segment
for later micro-batches, up to a number of bytes, for all of its tasks and queries.
Tested by: tests/runners/spark/test_live_history.py
"""

from __future__ import annotations

from collections.abc import Mapping

from cep.base.limits import SEGMENT_CACHE_BYTES
from cep.histories.rows import Block
from cep.histories.store import Histories, StoredSegment
from cep.runners.spark.group_parts import Part
from cep.state.past import SegmentCache, decode_head, decode_segment, digests_of, encode_head, store_segments

_BLOCKS = SegmentCache(SEGMENT_CACHE_BYTES)


class PastPages:
    """The histories of the Spark group that is being processed, by page id."""

    def __init__(self, heads: Part, segments: Part) -> None:
        self._heads = heads
        self._segments = segments
        self._there: dict[int, dict[int, str]] = {}  # of the pages of this call: number → digest

    def begin(self, heads: Mapping[int, bytes], segments: Mapping[tuple[int, int], bytes]) -> None:
        """Take state that was made elsewhere: heads by page, segments by page and number."""
        for page, data in heads.items():
            self._heads.put(page, data)
        for (page, number), data in segments.items():
            self._segments.put(page, data, number)

    def read(self, page: int) -> Histories:
        """Read a page that is there. Raises: StateError."""
        data = self._heads.get(page)
        assert data is not None, "a page that is not over yet is stored"
        histories = decode_head(data, lambda stored: self._block(page, stored))
        self._there[page] = digests_of(histories)
        return histories

    def write(self, page: int, histories: Histories) -> None:
        """Put a page in the place of the one that was read, if any was there: the new segments, and the head."""

        def put(number: int, data: bytes) -> None:
            self._segments.put(page, data, number)

        now = store_segments(histories, put, lambda stored: self._block(page, stored), _BLOCKS)
        there = digests_of(now)
        for number in sorted(self._there.pop(page, {}).keys() - there.keys()):
            self._segments.remove(page, number)
        self._heads.put(page, encode_head(now))

    def remove(self, page: int) -> None:
        """Forget a page that is there."""
        if page not in self._there:
            self.read(page)
        for number in sorted(self._there.pop(page)):
            self._segments.remove(page, number)
        self._heads.remove(page)

    def _block(self, page: int, stored: StoredSegment) -> Block:
        block = _BLOCKS.get(stored.digest)
        if block is None:
            data = self._segments.get(page, stored.number)
            assert data is not None, "a segment that a head names is stored"
            block = decode_segment(data)
            _BLOCKS.put(stored.digest, block)
        return block
