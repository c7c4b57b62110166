"""Events → those whose id is new; step 4 of a micro-batch.

An event is known by a hash of its type and id, in its key group and the bucket of its event time. So a micro-batch
reads and writes the few buckets that its events fall into, and a bucket that is older than the window is dropped whole.

    bucket = event time // width;  width = window / 8
    content = secret uint64[2] | first halves of the hashes, sorted uint64[N] | second halves uint64[N], little-endian

The hash has 128 bits and a key, the *secret*, which is drawn for a key group's bucket when its first id comes and is
stored with it: in checkpoints, savepoints and changelogs, and on the way to another runner. So an id is known again
wherever the bucket goes. Who sends events cannot make one that passes for another, as he does not have the secret.

What an event counts as, in every runner that looks for duplicates:

    its bucket        its id in that bucket        it is
    in the window     came before, late or not     a duplicate
    in the window     is new                       late behind the watermark, else matched
    older             nobody remembers             late, as often as it comes

The watermark that a micro-batch begins with says which buckets the window has and which events are late. So it makes no
difference where a stream is cut into micro-batches, under two conditions. An event is at most the lateness behind
earlier ones of its partition. A repeat is at most window and lateness behind. For others only this is sure: what was
matched is not matched again.

Tested by: tests/step/test_duplicates.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from secrets import token_bytes
from typing import NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.errors import StateCorruptError, StateFormatError
from cep.columnar.batch import EventBatch, concat_batches, read_only, text_buffers
from cep.columnar.route import key_groups
from cep.kernels.siphash import keyed_id_hashes
from cep.step.dead_letters import count_once
from cep.step.job import Job
from cep.step.match import MatchOutput
from cep.step.ports import SeenIds

_BUCKETS_PER_WINDOW = 8
SECRET_BYTES = 16


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
        buckets, is_new = time_buckets(batch, job.dedup_ms), np.ones(len(batch), bool)
        for bucket in np.unique(buckets[buckets >= oldest]).tolist():
            rows = np.flatnonzero(buckets == bucket)
            here = batch if len(rows) == len(batch) else _identities(batch, rows)
            ids = event_ids(here, seen.secrets(number, bucket, here.key))
            is_new[rows] = first_of_each(ids) & ~seen.contains(number, bucket, ids)
            added = is_new[rows]
            if added.any():
                seen.add(number, bucket, ids[:, added], here.key.filter(pa.array(added)))
        if not is_new.all():
            output.counters["duplicates"] += count_once(job, number, batch.take(~is_new))
            batch = batch.take(is_new)
        fresh[number] = [batch]
    seen.forget(oldest)
    return fresh


def _identities(batch: EventBatch, rows: NDArray[np.int64]) -> EventBatch:
    """Return these events without their fields."""
    return replace(batch, columns={}).take(rows)


def event_ids(batch: EventBatch, secrets: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash each event's type and id: uint64[2, N]. Shapes: secrets uint64[N, 2], or uint64[1, 2] for all events."""
    return _hashed(batch.event_type.astype(np.int64), batch.event_id, secrets)


def _hashed(kinds: NDArray[np.int64], texts: pa.Array, secrets: NDArray[np.uint64]) -> NDArray[np.uint64]:
    ids = np.empty((2, len(texts)), np.uint64)
    if len(texts):
        keyed_id_hashes(read_only(kinds), *text_buffers(texts), read_only(np.ascontiguousarray(secrets)), ids)
    return ids


def new_secrets(count: int) -> NDArray[np.uint64]:
    """Draw unpredictable secrets: uint64[count, 2]."""
    return np.frombuffer(token_bytes(SECRET_BYTES * count), np.uint64).reshape(-1, 2).copy()


def time_buckets(batch: EventBatch, window_ms: int) -> NDArray[np.int64]:
    """Return the bucket of each event's time: int64[N]."""
    buckets: NDArray[np.int64] = batch.time_ms // bucket_width(window_ms)
    return buckets


def first_of_each(ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Mark the first of equal hashes uint64[2, N], in their order: bool[N]."""
    is_first = np.ones(ids.shape[1], bool)
    order = np.argsort(ids[0], kind="stable")
    ordered = ids[0, order]
    if (ordered[1:] == ordered[:-1]).any():
        order = np.lexsort((ids[1], ids[0]))
        ordered = ids[:, order]
        is_first[order[1:]] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    return is_first


def first_ones(job: Job, parts: Sequence[EventBatch]) -> tuple[list[EventBatch], EventBatch]:
    """Split a finite history, in which nothing is late.

    Returns: (the first event of each type and id in its key group and bucket, the others).
    """
    batch = concat_batches(parts)
    groups = key_groups(batch.key, job.groups_count).astype(np.int64)
    kinds = (time_buckets(batch, job.dedup_ms) * job.groups_count + groups) * len(job.schema.event_types)
    is_first = first_of_each(_hashed(kinds + batch.event_type, batch.event_id, new_secrets(1)))
    return [batch if is_first.all() else batch.take(is_first)], batch.take(~is_first)


def bucket_width(window_ms: int) -> int:
    """Return the milliseconds of event time in one bucket."""
    return max(1, window_ms // _BUCKETS_PER_WINDOW)


def oldest_bucket(watermark_ms: int, window_ms: int) -> int:
    """Return the first bucket that is in the window."""
    return (watermark_ms - window_ms) // bucket_width(window_ms)


def are_among(ids: NDArray[np.uint64], seen: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Mark the hashes uint64[2, N] that are among those seen, which are sorted by their first halves: bool[N]."""
    is_seen = np.zeros(ids.shape[1], bool)
    if not seen.shape[1]:
        return is_seen
    last = seen.shape[1] - 1
    at = np.minimum(np.searchsorted(seen[0], ids[0]), last)
    rows = np.flatnonzero(seen[0, at] == ids[0])
    while len(rows):  # once, but for different hashes whose first halves are equal
        is_seen[rows] = seen[1, at[rows]] == ids[1, rows]
        rows = rows[~is_seen[rows] & (at[rows] < last)]
        at[rows] += 1
        rows = rows[seen[0, at[rows]] == ids[0, rows]]
    return is_seen


def to_bytes(secret: NDArray[np.uint64], ids: NDArray[np.uint64]) -> bytes:
    """Sort hashes and encode them with their secret, uint64[2], for a store."""
    ordered = ids[:, np.lexsort((ids[1], ids[0]))]
    return secret.astype("<u8").tobytes() + ordered.astype("<u8").tobytes()


def from_bytes(data: bytes) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Invert `to_bytes`: return the secret and the hashes. Raises: StateCorruptError."""
    if len(data) < SECRET_BYTES or len(data) % SECRET_BYTES:
        raise StateCorruptError(f"ids of duplicates have {len(data)} bytes, no multiple of 16; restore the state")
    words = np.frombuffer(data, "<u8").astype(np.uint64, copy=False)
    return words[:2], words[2:].reshape(2, -1)


def refuse_earlier_ids() -> NoReturn:
    """Refuse ids that were told by 64 bits without a secret. Raises: StateFormatError."""
    raise StateFormatError(
        "the state has ids of duplicates of an earlier build, 64 bits without a secret; go on with the build that "
        "wrote it, or begin a new job with this one"
    )
