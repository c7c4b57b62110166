"""Segments → fewer and smaller segments: join small ones and drop unreachable events.

Each event is rewritten at most once for each of three sizes, independent of the length of windows.
Tested by: tests/histories/test_store.py
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from cep.histories.rows import block_of, concat_blocks
from cep.histories.store import Histories, Segment, segment_of

# This many segments of one size are joined into one of the next size: 64, 512, 4 096 events or more.
_JOINED = 8
_FIRST_BITS = 6
_SIZES = 3
# Rewrite a segment when more than this share of its events is unreachable.
_EXPIRED_SHARE = 0.5


def reachable_segments(segments: Sequence[Segment], span_max_ms: int, watermark_ms: int) -> tuple[Segment, ...]:
    """Return the segments that a later event may read, given rules that look back at most `span_max_ms`."""
    return tuple(s for s in segments if min(s.until_ms, s.last_ms + span_max_ms) > watermark_ms)


def join_segments(histories: Histories, columns: Collection[str], watermark_ms: int) -> Histories:
    """Join small segments of a page into larger ones, and rewrite one segment that has many expired events.

    `columns` are the columns that rules read now; a rewritten segment has no others. The segments contain events, not
    panes.
    """
    segments = list(histories.segments)
    start = _joined_from([len(segment) for segment in segments])
    if start < len(segments):
        joined = _rewrite(segments[start:], columns, watermark_ms)
        segments[start:] = [joined] if joined is not None else []
    for index, segment in enumerate(segments):
        expired = sum(count for code, count in segment.spans.items() if segment.last_ms + 2**code <= watermark_ms)
        if expired > _EXPIRED_SHARE * len(segment):
            rewritten = _rewrite([segment], columns, watermark_ms)
            segments[index : index + 1] = [rewritten] if rewritten is not None else []
            break  # rewrite one per micro-batch; the others can wait
    if len(segments) == len(histories.segments) and all(map(lambda a, b: a is b, segments, histories.segments)):
        return histories
    return replace(histories, segments=tuple(segments))


def _joined_from(counts: Sequence[int]) -> int:
    """Return the index of the first segment to join, given the sizes; the number of segments if none is joined."""
    joined_from = len(counts)
    for size in range(_SIZES):
        start = len(counts)
        while start and counts[start - 1] >> (_FIRST_BITS + 3 * size) == 0:
            start -= 1
        if len(counts) - start >= _JOINED:
            joined_from = start
    return joined_from


def _rewrite(segments: Sequence[Segment], columns: Collection[str], watermark_ms: int) -> Segment | None:
    """Make one segment of the events that windows may still include; None if there are none."""
    block = concat_blocks([segment.load() for segment in segments])
    rows = block.rows
    alive = rows.time_ms + np.left_shift(np.int64(1), rows.span.astype(np.int64)) > watermark_ms
    rows = replace(rows, columns={name: column for name, column in rows.columns.items() if name in columns})
    rows = rows if alive.all() else rows.take(np.flatnonzero(alive))
    span_ms = max(segment.span_ms for segment in segments)
    return segment_of(block_of(block.keys, rows), span_ms, segments[0].page) if len(rows) else None
