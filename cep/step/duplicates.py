"""Events → the new events, without repeats; step 4 of a micro-batch.

The *id* of an event is a hash of its type, the values of all key fields of the job, and its id field. An event of
another type, or of another card, is therefore another event even with the same id field. Ids are stored by key group
and by the bucket of their event time: a micro-batch reads and writes the few buckets of its events, and a bucket that
is older than the window is dropped whole.

    bucket = event time // width;  width = window / 8
    stored = secret uint64[2] | ids, sorted uint64[N] | digests of the content uint64[N], little-endian

The *secret* is the key of the hash. It is drawn with the first id of a bucket and stored with it, also in checkpoints
and savepoints, so any runner recognises the ids. A sender of events does not have it, and cannot make two ids with the
same hash.

Every runner judges an event alike:

    its bucket      its id in that bucket              it is
    in the window   came before with its content       a duplicate, late or not: ignored and counted
    in the window   came before with another content   a reused id, late or not: set aside with a letter and counted
    in the window   is new                             late before the watermark, otherwise matched
    older           nothing is remembered              late, as often as it comes

The content is every field of the event (columnar/digests.py). The first event of an id counts.

The watermark at the start of a micro-batch decides which buckets the window has and which events are late. The division
into micro-batches matters only for an event that lags its partition by more than the lateness, and for a repeat that
comes later than window and lateness together. A matched event is never matched again.

Tested by: tests/step/test_duplicates.py
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from secrets import token_bytes
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cep.base.errors import StateCorruptError, StateFormatError
from cep.columnar.batch import EventBatch, concat_batches, read_only, slot_values, text_buffers
from cep.columnar.decode import Decoded
from cep.columnar.digests import CONTENT, KEYS, E, with_digests, without_digests
from cep.kernels.groups import NEW, NO_PAIR, OTHER, SAME, judge_against_sorted, judge_pairs
from cep.kernels.siphash import keyed_id_hashes
from cep.step.dead_letters import count_once, describe, is_counted
from cep.step.job import Job
from cep.step.match import MatchOutput
from cep.step.ports import SeenIds

_BUCKETS_PER_WINDOW = 8
_SLOTS_MIN = 16
SECRET_BYTES = 16
REUSED_CODE = "reused_id"
_REASON = "an event of this type with this id and these keys came before, with other content"
Letters = list[dict[str, Any]]


def ensure_digests(job: Job, decoded: E) -> E:
    """Add the columns that `drop_duplicates` reads, before events are routed, unless they are there or not needed."""
    has_digests = not job.dedup_ms or KEYS in decoded.columns
    return decoded if has_digests else with_digests(job.schema, job.domains, decoded, job.digest_key)


def drop_duplicates(
    job: Job, batches: Mapping[int, Sequence[EventBatch]], watermark_ms: int, seen_ids: SeenIds, output: MatchOutput
) -> tuple[Mapping[int, Sequence[EventBatch]], Letters]:
    """Remove the events whose id came before within `dedup_ms`, also late ones. If `dedup_ms` is 0, remove none.

    `watermark_ms` is the watermark at the start of the micro-batch. Return the other events by number of their key
    domain, and a description of each reused id (an id that came before with other content) for its dead letter. A
    bucket has the ids of one range of event time."""
    letters: Letters = []
    if job.dedup_ms == 0:
        return batches, letters
    oldest = oldest_bucket(watermark_ms, job.dedup_ms)
    unique_events: dict[int, Sequence[EventBatch]] = {}
    for number, parts in batches.items():
        batch = concat_batches(parts)
        buckets, verdicts = time_buckets(batch, job.dedup_ms), np.zeros(len(batch), np.uint8)
        for bucket in _distinct(buckets):
            if bucket >= oldest:  # older ids are not remembered
                rows = np.flatnonzero(buckets == bucket)
                bucket_events = batch if len(rows) == len(batch) else _identities(batch, rows)
                # secrets: keys of the hash, so that a sender cannot make two ids with the same hash
                ids = event_ids(bucket_events, seen_ids.secrets(number, bucket, bucket_events.key))
                verdicts[rows] = seen_ids.take(number, bucket, ids, bucket_events.key)
        unique_events[number] = [_keep_new_events(job, number, batch, verdicts, (output, letters))]
    seen_ids.forget(oldest)
    return unique_events, letters


def first_ones(job: Job, number: int, parts: Sequence[EventBatch], output: MatchOutput) -> tuple[EventBatch, Letters]:
    """Leave out the events of a finite history, which has no late ones, whose id came before; as `drop_duplicates`."""
    batch, letters = concat_batches(parts), Letters()
    return _keep_new_events(job, number, batch, judged(_bucket_pairs(job, batch)), (output, letters)), letters


def without_repeats(job: Job, batch: EventBatch) -> tuple[EventBatch, Letters]:
    """Do as `first_ones` with the events of a finite history as they were decoded."""
    return first_ones(job, 0, [ensure_digests(job, batch)], MatchOutput()) if job.dedup_ms else (batch, Letters())


def first_rows(job: Job, events: Decoded) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Judge each event of a finite history by earlier ones: uint8[N], and the row of the first event with its id."""
    rows, verdicts = np.arange(len(events)), np.full(len(events), NEW, np.uint8)
    if not job.dedup_ms:
        return verdicts, rows
    pairs = _bucket_pairs(job, ensure_digests(job, events))
    verdicts = judged(pairs)
    if np.count_nonzero(verdicts):
        _, firsts, numbers = np.unique(pairs[0], return_index=True, return_inverse=True)
        rows = firsts[numbers].astype(np.int64)
    return verdicts, rows


def reused_letters(events: Decoded) -> Letters:
    """Describe events with a reused id, before they are routed to keys."""
    return [{"code": REUSED_CODE, "reason": _REASON, "event_id": event_id} for event_id in events.event_id.to_pylist()]


def _keep_new_events(
    job: Job, number: int, batch: EventBatch, verdicts: NDArray[np.uint8], outputs: tuple[MatchOutput, Letters]
) -> EventBatch:
    """Return the events with the verdict NEW. Count the others: SAME is a repeat, OTHER is a reused id.

    A reused id is also described for a dead letter. An event can be in the batches of several key domains, and counts
    in the first one. `number` is the domain of this batch. `outputs` receive the counts and the descriptions."""
    if np.count_nonzero(verdicts):
        output, letters = outputs
        output.counters["duplicates"] += count_once(job, number, batch.take(verdicts == SAME))
        reused = batch.take(verdicts == OTHER)
        reused = reused.take(is_counted(job, number, reused))
        if len(reused):
            output.counters["reused_ids"] += len(reused)
            letters += [{"code": REUSED_CODE, "reason": _REASON, **event} for event in describe(job, number, reused)]
        batch = batch.take(verdicts == NEW)
    return without_digests(batch)


def _distinct(buckets: NDArray[np.int64]) -> list[int]:
    if len(buckets) and buckets[0] == buckets[-1] and np.count_nonzero(buckets != buckets[0]) == 0:
        return [int(buckets[0])]
    distinct: list[int] = np.unique(buckets).tolist()
    return distinct


def _identities(batch: EventBatch, rows: NDArray[np.int64]) -> EventBatch:
    """Return these events without their fields."""
    return replace(batch, columns={name: batch.columns[name] for name in (KEYS, CONTENT)}, order=None).take(rows)


def event_ids(batch: EventBatch, secrets: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return each event's id and digest of its content: uint64[2, N]. `secrets` are uint64[N, 2], or uint64[1, 2]."""
    return _pairs(slot_values(batch.columns[KEYS]), batch, secrets)


def _bucket_pairs(job: Job, events: E) -> NDArray[np.uint64]:
    """Return ids and digests of events of all buckets: the bucket is part of the id."""
    return _pairs(slot_values(events.columns[KEYS]) + time_buckets(events, job.dedup_ms), events, new_secrets(1))


def _pairs(kinds: NDArray[np.int64], batch: E, secrets: NDArray[np.uint64]) -> NDArray[np.uint64]:
    pairs = np.empty((2, len(batch)), np.uint64)
    if len(batch):
        keyed_id_hashes(
            read_only(kinds), *text_buffers(batch.event_id), read_only(np.ascontiguousarray(secrets)), pairs[0]
        )
        pairs[1] = slot_values(batch.columns[CONTENT]).view(np.uint64)
    return pairs


def new_secrets(count: int) -> NDArray[np.uint64]:
    """Draw unpredictable secrets: uint64[count, 2]."""
    return np.frombuffer(token_bytes(SECRET_BYTES * count), np.uint64).reshape(-1, 2).copy()


def time_buckets(batch: E, window_ms: int) -> NDArray[np.int64]:
    """Return the bucket of each event's time: int64[N]."""
    return batch.time_ms // bucket_width(window_ms)


def empty_slots(count: int) -> NDArray[np.int32]:
    """Return slots for so many pairs (kernels/groups.py)."""
    return np.full(max(_SLOTS_MIN, 1 << (2 * count - 1).bit_length()), NO_PAIR, np.int32)


def judged(pairs: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Judge each of the pairs uint64[2, N] by those before it: uint8[N]."""
    count = pairs.shape[1]
    verdicts = np.empty(count, np.uint8)
    judge_pairs(read_only(pairs), np.empty((2, count), np.uint64), 0, empty_slots(count), verdicts)
    return verdicts


def judged_by(pairs: NDArray[np.uint64], sorted_pairs: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Judge each of the pairs by the seen ones, which are sorted by their ids, and by the pairs before it: uint8[N]."""
    verdicts = np.empty(pairs.shape[1], np.uint8)
    judge_against_sorted(
        read_only(pairs), read_only(sorted_pairs), np.searchsorted(sorted_pairs[0], pairs[0]), verdicts
    )
    (unseen,) = np.nonzero(verdicts == NEW)
    verdicts[unseen] = judged(np.ascontiguousarray(pairs[:, unseen]))
    return verdicts


def bucket_width(window_ms: int) -> int:
    """Return the milliseconds of event time in one bucket."""
    return max(1, window_ms // _BUCKETS_PER_WINDOW)


def oldest_bucket(watermark_ms: int, window_ms: int) -> int:
    """Return the first bucket that is in the window."""
    return (watermark_ms - window_ms) // bucket_width(window_ms)


def merged(sorted_pairs: NDArray[np.uint64], added: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Join pairs that are sorted by their ids with more pairs in any order; the result is sorted. Cost: a copy."""
    in_order = added[:, np.argsort(added[0])]
    return np.insert(sorted_pairs, np.searchsorted(sorted_pairs[0], in_order[0]), in_order, axis=1)


def to_bytes(secret: NDArray[np.uint64], ids: NDArray[np.uint64]) -> bytes:
    """Encode pairs uint64[2, N] that are sorted by their ids with their secret, uint64[2], for a store."""
    return secret.astype("<u8").tobytes() + ids.astype("<u8").tobytes()


def from_bytes(data: bytes) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Invert `to_bytes`: return the secret and the pairs. Raises: StateCorruptError."""
    if len(data) < SECRET_BYTES or len(data) % SECRET_BYTES:
        raise StateCorruptError(f"ids of duplicates have {len(data)} bytes, no multiple of 16; restore the state")
    words = np.frombuffer(data, "<u8").astype(np.uint64, copy=False)
    return words[:2], words[2:].reshape(2, -1)


def refuse_earlier_ids() -> NoReturn:
    """Refuse ids without a digest of the content. Raises: StateFormatError."""
    raise StateFormatError(
        "the state has ids of duplicates of an earlier build, without the content of their events; go on with the "
        "build that wrote it, or begin a new job with this one"
    )
