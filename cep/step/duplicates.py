"""Events → those whose id is new; step 4 of a micro-batch.

An event is known by the hash of its type and id, in the bucket of its event time. So a micro-batch reads and writes the
few buckets that its events fall into, and a bucket that is older than the window is dropped whole.

    bucket = event time // width;  content = sorted uint64, little-endian;  width = window / 8

What an event counts as, in every runner that looks for duplicates:

    its bucket        its id in that bucket        it is
    in the window     came before, late or not     a duplicate
    in the window     is new                       late behind the watermark, else matched
    older             nobody remembers             late, as often as it comes

The watermark that a micro-batch begins with says which buckets the window has and which events are late. So it makes no
difference where a stream is cut into micro-batches, under two conditions. An event is at most the lateness behind
earlier ones of its partition. A repeat is at most window and lateness behind. For others only this is sure: what was
matched is not matched again.

Two ids of one key group and bucket whose 64 bits are equal would be taken for one: with a million ids in a bucket, once
in thirty million such buckets.
Tested by: tests/step/test_duplicates.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.batch import EventBatch, concat_batches
from cep.columnar.route import key_hashes
from cep.step.dead_letters import count_once
from cep.step.job import Job
from cep.step.match import MatchOutput
from cep.step.ports import SeenIds

_BUCKETS_PER_WINDOW = 8
_TYPE_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, from the golden ratio: types differ in all bits
_BUCKET_FACTOR = np.uint64(0xD6E8FEB86659FD93)  # odd too, and another one


def drop_duplicates(
    job: Job, batches: Mapping[int, Sequence[EventBatch]], watermark_ms: int, seen: SeenIds, output: MatchOutput
) -> Mapping[int, Sequence[EventBatch]]:
    """Leave out the events whose id came before, late ones among them.

    `watermark_ms` is the one that the micro-batch begins with. A job with `dedup_ms` of 0 does not look for duplicates.
    Returns: the others by number of their key domain.
    """
    if job.dedup_ms == 0:
        return batches
    oldest = oldest_bucket(watermark_ms, job.dedup_ms)
    fresh: dict[int, Sequence[EventBatch]] = {}
    for number, parts in batches.items():
        batch = concat_batches(parts)
        hashes, buckets = event_hashes(batch), time_buckets(batch, job.dedup_ms)
        is_new = np.ones(len(batch), bool)
        for bucket in np.unique(buckets[buckets >= oldest]).tolist():
            here = buckets == bucket
            is_new[here] = first_of_each(hashes[here]) & ~seen.contains(number, bucket, hashes[here])
            added = here & is_new
            if added.any():
                seen.add(number, bucket, hashes[added], batch.key.filter(pa.array(added)))
        if not is_new.all():
            output.counters["duplicates"] += count_once(job, number, batch.take(~is_new))
            batch = batch.take(is_new)
        fresh[number] = [batch]
    seen.forget(oldest)
    return fresh


def event_hashes(batch: EventBatch) -> NDArray[np.uint64]:
    """Hash each event's type and id: uint64[N]."""
    hashes: NDArray[np.uint64] = key_hashes(batch.event_id) ^ (batch.event_type.astype(np.uint64) * _TYPE_FACTOR)
    return hashes


def time_buckets(batch: EventBatch, window_ms: int) -> NDArray[np.int64]:
    """Return the bucket of each event's time: int64[N]."""
    buckets: NDArray[np.int64] = batch.time_ms // bucket_width(window_ms)
    return buckets


def first_of_each(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Mark the first of equal hashes, in their order: bool[N]."""
    is_first = np.zeros(len(hashes), bool)
    is_first[np.unique(hashes, return_index=True)[1]] = True
    return is_first


def first_ones(parts: Sequence[EventBatch], window_ms: int) -> tuple[list[EventBatch], EventBatch]:
    """Split a finite history, in which nothing is late.

    Returns: (the first event of each type and id in its bucket, the others).
    """
    batch = concat_batches(parts)
    buckets = time_buckets(batch, window_ms).astype(np.uint64)
    is_first = first_of_each(event_hashes(batch) ^ (buckets * _BUCKET_FACTOR))
    return [batch if is_first.all() else batch.take(is_first)], batch.take(~is_first)


def bucket_width(window_ms: int) -> int:
    """Return the milliseconds of event time in one bucket."""
    return max(1, window_ms // _BUCKETS_PER_WINDOW)


def oldest_bucket(watermark_ms: int, window_ms: int) -> int:
    """Return the first bucket that is in the window."""
    return (watermark_ms - window_ms) // bucket_width(window_ms)


def are_among(hashes: NDArray[np.uint64], seen: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Mark the hashes that are among those seen, which are sorted: bool[N]."""
    if not len(seen):
        return np.zeros(len(hashes), bool)
    at = np.minimum(np.searchsorted(seen, hashes), len(seen) - 1)
    is_seen: NDArray[np.bool_] = seen[at] == hashes
    return is_seen


def to_bytes(hashes: NDArray[np.uint64]) -> bytes:
    """Sort hashes and encode them for a store."""
    return np.sort(hashes).astype("<u8").tobytes()


def from_bytes(data: bytes) -> NDArray[np.uint64]:
    """Decode what `to_bytes` made."""
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False)
