"""The keyed state of one key group at one stage, in Spark's state: the Spark runner's side of step/ports.py.

A page, a head of histories or a bucket of ids is an entry of its own (group_parts.py). The group's progress lists the
entries and their deadlines, so that nothing else is read to find them.

Reading a megabyte from Spark's state store into Python costs some twenty milliseconds of Java, more than matching;
writing costs a tenth of that. Each page is therefore written in every micro-batch that changes it, and read only if its
last bytes are not in memory. A key group stores the hash of the bytes that it wrote, and only bytes of this hash are
used, so it does not matter which worker, query or attempt wrote them. Segments of histories never change, and go by
their hash too. The caches belong to a worker process, for all of its tasks and queries, up to a number of bytes.
Tested by: tests/runners/spark/test_tasks.py, tests/runners/spark/test_live.py, tests/runners/spark/test_savepoint.py
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TypeVar

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.errors import StateFormatError
from cep.base.limits import PAGE_CACHE_BYTES, SEGMENT_CACHE_BYTES, TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import EventBatch, concat_batches, conformed, decode_batch, encode_batch
from cep.columnar.decode import key_pages
from cep.engine.keyed_state import KeyedState, concat_states, partition_keys
from cep.engine.migrate import fit_state
from cep.histories.store import Block, Histories, StoredSegment
from cep.kernels.groups import NEW
from cep.nfa.program import Program
from cep.runners.handover.group_entries import PAGE_BITS, page_id
from cep.runners.spark.group_parts import GroupParts, Part
from cep.state import past
from cep.step import duplicates
from cep.step.event_time import PartitionTimes, times_from_json, times_json
from cep.step.job import Job
from cep.step.level import LastEvent, split_due
from cep.step.ports import Events, Portion
from cep.step.rules import JobRules, Programs

_VALUES_COUNTS = (9, 10, 11, 12)  # earlier builds did not write the last ones, which have defaults
_DIGEST_BYTES = 16

# Shared by all key groups that a worker process serves. Pages and blocks go by the hash of their bytes.
_PROGRAMS = Programs()
_PAGES = past.SegmentCache[bytes](PAGE_CACHE_BYTES, len)
_BLOCKS = past.SegmentCache[Block](SEGMENT_CACHE_BYTES)
T = TypeVar("T")


@dataclass(slots=True)
class GroupProgress:
    """The progress of a key group (step/step.py) with an index of its stored entries. A page has the state of some keys
    in one key domain (events by one choice of key fields); its id has the numbers of domain and page."""

    rulebook: str = ""  # digest of the rules; empty before the first micro-batch
    watermark_ms: int = TIME_MS_MIN
    times: PartitionTimes = field(default_factory=dict)  # how far each partition of the source was read.
    deadlines: dict[int, int] = field(default_factory=dict)  # page id → when its first run (open match) expires.
    waiting_ms: int | None = None  # the earliest event that waits for the watermark
    seen: dict[int, list[int]] = field(default_factory=dict)  # domain → time buckets with stored ids of earlier events.
    expiry_ms: dict[int, int] = field(default_factory=dict)  # page id → when all of its histories have expired.
    since_ms: int = TIME_MS_MAX  # the time of the first event
    digests: dict[int, str] = field(default_factory=dict)  # page id → hash of its bytes, to find them in memory.
    heartbeat_ms: int = TIME_MS_MIN  # of a heartbeat (control record with a time) that does not move the watermark yet.
    last_event: LastEvent | None = None  # last matched event of the watermark's millisecond: an earlier one is late
    gap_ms: int = TIME_MS_MIN  # events from before this time may be missing

    def to_bytes(self) -> bytes:
        """Encode the values for Spark's state, as a list."""
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        values |= {"times": times_json(self.times), "last_event": LastEvent.to_json(self.last_event)}
        return orjson.dumps(list(values.values()), option=orjson.OPT_NON_STR_KEYS)

    @staticmethod
    def from_bytes(data: bytes) -> GroupProgress:
        """Decode the bytes of `to_bytes`: the values of the fields in their order. An earlier build may have written
        fewer values; then the last fields have their defaults. Raises: StateFormatError."""
        values = orjson.loads(data)
        if len(values) not in _VALUES_COUNTS:
            raise StateFormatError(
                "the checkpoint is of a build that kept other things of a key group; "
                "start from an empty checkpoint directory, or with the build that wrote it"
            )
        named = dict(zip((attribute.name for attribute in fields(GroupProgress)), values, strict=False))
        for name in ("deadlines", "seen", "expiry_ms", "digests"):
            named[name] = {int(number): value for number, value in named[name].items()}  # texts in JSON
        named |= {"times": times_from_json(named["times"]), "last_event": LastEvent.from_json(named.get("last_event"))}
        return GroupProgress(**named)


class GroupPorts:
    """Gives the matching step the state of one key group and level: its Ports and LevelPorts (step/ports.py)."""

    def __init__(self, rules: JobRules, level: int, progress: GroupProgress, stored: GroupParts) -> None:
        """`level`: of the rules to match, which may read alerts of lower levels. `progress` is updated in place."""
        job = rules.job
        self.rules = rules
        self.programs = _PROGRAMS  # the compiled rules, shared by all key groups of this process
        self.levels = range(level, level + 1)
        self.seen = _SeenIds(progress.seen, stored.seen)
        self.waiting = _WaitingEvents(job, progress, stored.waiting)
        self.pages = [DomainPages(job, number, progress, stored) for number in range(len(job.domains))]  # open runs

    @property
    def parts(self) -> tuple[GroupPorts]:
        """The parts that have waiting events and seen ids of their own: one, which is the key group itself."""
        return (self,)

    def spread(self, level: int, events: Events, due_ms: int, work: Callable[[Portion], T]) -> Iterable[T]:
        """Do the work for this key group, the only portion of keys that a task of Spark has at a time."""
        return [work(Portion(self, [events]))]


class DomainPages:
    """The pages of a key group (ports.DomainPages); a slot is a page. `number`: of the key domain."""

    def __init__(self, job: Job, number: int, progress: GroupProgress, stored: GroupParts) -> None:
        self._job = job
        self._base = page_id(number, 0)
        self._deadlines = progress.deadlines
        self._digests = progress.digests
        self._pages = stored.pages
        self.histories = _GroupHistories(number, progress.expiry_ms, stored, self.slots)

    def slots(self, keys: pa.Array) -> NDArray[np.int64]:
        return key_pages(keys, self._job.groups_count, self._job.pages_count).astype(np.int64)

    def touched(self, keys: pa.Array, watermark_ms: int) -> NDArray[np.int64]:
        due_slots = [slot for slot in self.stored() if self._deadlines[self._base + slot] <= watermark_ms]
        return np.union1d(self.slots(keys), np.array(due_slots, np.int64))

    def stored(self) -> list[int]:
        return [page - self._base for page in self._deadlines if page >> PAGE_BITS == self._base >> PAGE_BITS]

    def read(self, slot: int) -> KeyedState | None:
        page = self._base + slot
        if page not in self._deadlines:
            return None
        data = _PAGES.get(self._digests.get(page, ""))
        if data is None:
            data = self._pages.get(page)
            assert data is not None, "a page with a deadline is stored"
        return past.decode_page(data)

    def write(self, slot: int, keyed_state: KeyedState, deadline_ms: int) -> None:
        page, data = self._base + slot, past.encode_page(keyed_state, compressed=True)
        digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
        self._pages.put(page, data)
        _PAGES.drop(self._digests.get(page, ""))
        _PAGES.put(digest, data)
        self._deadlines[page], self._digests[page] = deadline_ms, digest

    def remove(self, slot: int) -> None:
        page = self._base + slot
        _PAGES.drop(self._digests.pop(page, ""))
        if self._deadlines.pop(page, None) is not None:
            self._pages.remove(page)

    def take(self, slots: NDArray[np.int64], program: Program) -> tuple[KeyedState | None, Counter[str]]:
        states: list[KeyedState] = []
        changes: Counter[str] = Counter()
        for slot in slots.tolist():
            page = self.read(slot)
            if page is not None:
                fitted, more = fit_state(page, program)
                changes.update(more)
                states.append(fitted)
        return concat_states(states, program.row_registers) if states else None, changes

    def put(self, slots: NDArray[np.int64], after: KeyedState, program: Program) -> None:
        part = np.searchsorted(slots, self.slots(after.keys))
        shares = partition_keys(after, part, len(slots), program.row_registers) if len(slots) > 1 else [after]
        for slot, share in zip(slots.tolist(), shares, strict=True):
            deadline_ms = share.expiry_min
            if deadline_ms is None:
                self.remove(slot)
            else:
                self.write(slot, replace(share, histories=Histories()), deadline_ms)

    def drop(self) -> int:
        runs_count = 0
        for slot in self.stored():
            page = self.read(slot)
            assert page is not None, "it is stored"
            runs_count += len(page)
            self.remove(slot)
        return runs_count


class _GroupHistories:
    """The histories of a key group in Spark's state (DomainHistories). `expiry_ms`: by page id, when they expire."""

    def __init__(
        self, number: int, expiry_ms: dict[int, int], stored: GroupParts, slots: Callable[[pa.Array], NDArray[np.int64]]
    ) -> None:
        self.slots = slots
        self._base = page_id(number, 0)
        self._expiry_ms = expiry_ms
        self._heads, self._segments = stored.past, stored.segments
        self._there: dict[int, dict[int, str]] = {}  # of the pages of this call: number → digest

    def expired(self, watermark_ms: int) -> list[int]:
        pages = [(page, ms) for page, ms in self._expiry_ms.items() if page >> PAGE_BITS == self._base >> PAGE_BITS]
        return [page - self._base for page, ms in pages if ms <= watermark_ms]

    def read(self, slot: int) -> Histories:
        page = self._base + slot
        if page not in self._expiry_ms:
            return Histories()
        data = self._heads.get(page)
        assert data is not None, "a page that is not over yet is stored"
        histories = past.decode_head(data, partial(self._block, page))
        self._there[page] = past.digests_of(histories)
        return histories

    def write(self, slot: int, histories: Histories, expiry_ms: int) -> None:
        page = self._base + slot

        def put(number: int, data: bytes) -> None:
            self._segments.put(page, data, number)

        now = past.store_segments(histories, put, partial(self._block, page), _BLOCKS)
        self._remove_segments(page, self._there.pop(page, {}).keys() - past.digests_of(now).keys())
        self._heads.put(page, past.encode_head(now))
        self._expiry_ms[page] = expiry_ms

    def remove(self, slot: int) -> None:
        page = self._base + slot
        if page in self._expiry_ms:
            if page not in self._there:
                self.read(slot)
            self._remove_segments(page, self._there.pop(page))
            self._heads.remove(page)
            del self._expiry_ms[page]

    def _remove_segments(self, page: int, numbers: Iterable[int]) -> None:
        for number in sorted(numbers):
            self._segments.remove(page, number)

    def _block(self, page: int, stored: StoredSegment) -> Block:
        block = _BLOCKS.get(stored.digest)
        if block is None:
            data = self._segments.get(page, stored.number)
            assert data is not None, "a segment that a head names is stored"
            block = past.decode_segment(data)
            _BLOCKS.put(stored.digest, block)
        return block


class _WaitingEvents:
    """The events of one key group, by key domain, that wait in Spark's state until the watermark passes them."""

    def __init__(self, job: Job, progress: GroupProgress, part: Part) -> None:
        self._schema = job.schema
        self._progress = progress
        self._stored_events = part
        self._earliest_waiting_ms = progress.waiting_ms  # of all domains, as the micro-batch begins

    def release(self, domain_number: int, fresh: EventBatch | None, due_ms: int) -> EventBatch | None:
        """Return the events of a key domain (events by one choice of key fields) before `due_ms`, or None, and store
        the others. A micro-batch calls this for each domain in turn, from 0 on. Stored events are read only if the
        domain has `fresh` (new) events, or if a stored event of some domain is due."""
        is_due = self._earliest_waiting_ms is not None and self._earliest_waiting_ms < due_ms
        if is_due and domain_number == 0:
            self._progress.waiting_ms = None  # the earliest of all domains: each domain's call finds it anew
        if fresh is None and not is_due:
            return None
        stored = self._stored_events.get(domain_number) if self._earliest_waiting_ms is not None else None
        batches = [conformed(decode_batch(stored), self._schema)] if stored is not None else []
        released, rest = split_due(batches if fresh is None else [*batches, fresh], due_ms)
        if rest:
            waiting = concat_batches(rest)
            self._stored_events.put(domain_number, encode_batch(waiting))
            earliest_ms, other_domains_ms = int(waiting.time_ms.min()), self._progress.waiting_ms
            self._progress.waiting_ms = earliest_ms if other_domains_ms is None else min(other_domains_ms, earliest_ms)
        elif stored is not None:
            self._stored_events.remove(domain_number)
        return released


class _SeenIds:
    """The ids of earlier events of a key group, to find repeats (step/duplicates.py), by key domain and time bucket. An
    id and the content of its event are stored as hashes with a secret of the bucket, which no sender can guess."""

    def __init__(self, buckets: dict[int, list[int]], stored: Part) -> None:
        self._buckets = buckets  # the stored buckets by domain
        self._stored = stored  # in Spark's state
        self._new_secrets: dict[tuple[int, int], NDArray[np.uint64]] = {}  # of buckets without stored ids

    def secrets(self, domain_number: int, bucket: int, _keys: pa.Array) -> NDArray[np.uint64]:
        secret, _ids = self._read(domain_number, bucket)
        return secret[None]  # one row, for all keys

    def take(self, domain_number: int, bucket: int, ids: NDArray[np.uint64], _keys: pa.Array) -> NDArray[np.uint8]:
        """Judge `ids` (a row of ids, a row of contents) by stored ones: NEW, SAME, OTHER. Store the NEW ones."""
        secret, earlier_ids = self._read(domain_number, bucket)
        verdicts = duplicates.judged_by(ids, earlier_ids)
        added = ids[:, verdicts == NEW]
        if added.shape[1]:
            self._stored.put(domain_number, duplicates.to_bytes(secret, duplicates.merged(earlier_ids, added)), bucket)
            self._buckets[domain_number] = sorted({*self._buckets.get(domain_number, ()), bucket})
        return verdicts

    def forget(self, oldest: int) -> None:
        for domain_number, buckets in self._buckets.items():
            for bucket in [bucket for bucket in buckets if bucket < oldest]:
                self._stored.remove(domain_number, bucket)
            self._buckets[domain_number] = [bucket for bucket in buckets if bucket >= oldest]

    def _read(self, domain_number: int, bucket: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return a bucket's secret, and its hashes: a row of ids, a row of contents. A new bucket gets a new secret."""
        if bucket in self._buckets.get(domain_number, ()):
            stored = self._stored.get(domain_number, bucket)
            if stored is None:
                duplicates.refuse_earlier_ids()  # raises: an earlier build kept them in another form
            return duplicates.from_bytes(stored)
        if (domain_number, bucket) not in self._new_secrets:
            self._new_secrets[domain_number, bucket] = duplicates.new_secrets(1)[0]
        return self._new_secrets[domain_number, bucket], np.empty((2, 0), np.uint64)
