"""The keyed state of one key group at one stage, in Spark's state: the Spark runner's side of step/ports.py.

A page, a head of histories or a bucket of ids is an entry of its own (group_parts.py). The group's progress
(group_progress.py) lists the entries and their deadlines, so that nothing else is read to find them.
Tested by: tests/runners/spark/test_group_ports.py, tests/runners/spark/test_live.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.limits import PAGE_CACHE_BYTES
from cep.columnar.batch import EventBatch, concat_batches, conformed
from cep.columnar.codec import decode_batch, encode_batch
from cep.columnar.route import key_pages
from cep.engine.keyed_state import KeyedState
from cep.histories.store import Histories
from cep.kernels.repeats import NEW
from cep.runners.handover.group_entries import PAGE_BITS
from cep.runners.spark.cached_pages import CachedPages
from cep.runners.spark.group_parts import GroupParts, Part
from cep.runners.spark.group_progress import GroupProgress
from cep.runners.spark.past_pages import PastPages
from cep.state.pages import decode_page, encode_page
from cep.step import duplicates
from cep.step.job import Job
from cep.step.pages import SinglePages
from cep.step.ports import Events, Portion
from cep.step.programs import Programs
from cep.step.rules import JobRules
from cep.step.waiting import split_due

# Shared by all key groups that a worker process serves.
_PROGRAMS = Programs()
_CACHED = CachedPages(PAGE_CACHE_BYTES)
T = TypeVar("T")


class GroupPorts:
    """The ports of one key group at one stage."""

    def __init__(self, rules: JobRules, place: tuple[int, int], progress: GroupProgress, stored: GroupParts) -> None:
        """`place`: the stage's level and the key group. `progress` follows the changes of the stored entries."""
        job, (level, group) = rules.job, place
        self.rules = rules
        self.programs = _PROGRAMS
        self.levels = range(level, level + 1)
        self.seen = _SeenIds(progress.seen, stored.seen)
        self.waiting = _WaitingEvents(job, progress, stored.waiting)
        self.pasts = PastPages(stored.past, stored.segments)
        self.pages = [
            DomainPages(job, (level, group, number), progress, (stored.pages, self.pasts))
            for number in range(len(job.domains))
        ]

    @property
    def parts(self) -> tuple[GroupPorts]:
        """The arrivals of a key group are kept in one part."""
        return (self,)

    def spread(self, level: int, events: Events, due_ms: int, work: Callable[[Portion], T]) -> Iterable[T]:
        """Work on the one key group."""
        return [work(Portion(self, [events]))]


class DomainPages(SinglePages):
    """The pages of a key group (ports.DomainPages); a slot is the number of a page in its key group.

    `place` are the level, the key group and the number of the domain. `parts` hold the pages and the histories.
    """

    def __init__(
        self, job: Job, place: tuple[int, int, int], progress: GroupProgress, parts: tuple[Part, PastPages]
    ) -> None:
        self._job = job
        self._level, self._group, number = place
        self._base = number << PAGE_BITS
        self._deadlines = progress.deadlines
        self._digests = progress.digests
        self._pages = parts[0]
        self._pasts = _Pasts(number, progress.over, parts[1], self.slots)

    @property
    def pasts(self) -> _Pasts:
        return self._pasts

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
        data = _CACHED.get((self._level, self._group, page), self._digests.get(page))
        if data is None:
            data = self._pages.get(page)
            assert data is not None, "a page with a deadline is stored"
        return decode_page(data)

    def write(self, slot: int, keyed_state: KeyedState, deadline_ms: int) -> None:
        page, data = self._base + slot, encode_page(keyed_state, compressed=True)
        self._pages.put(page, data)
        self._deadlines[page] = deadline_ms
        self._digests[page] = _CACHED.put((self._level, self._group, page), data)

    def remove(self, slot: int) -> None:
        page = self._base + slot
        self._digests.pop(page, None)
        _CACHED.drop((self._level, self._group, page))
        if self._deadlines.pop(page, None) is not None:
            self._pages.remove(page)


class _Pasts:
    """The histories of a key group (DomainPasts). `over`: by page id when all of its histories is over."""

    def __init__(
        self, number: int, over: dict[int, int], pages: PastPages, slots: Callable[[pa.Array], NDArray[np.int64]]
    ) -> None:
        self.slots = slots
        self._base = number << PAGE_BITS
        self._over = over
        self._pages = pages

    def stored(self, watermark_ms: int) -> list[int]:
        domain_pages = [(page, ms) for page, ms in self._over.items() if page >> PAGE_BITS == self._base >> PAGE_BITS]
        return [page - self._base for page, ms in domain_pages if ms <= watermark_ms]

    def read(self, slot: int) -> Histories:
        return self._pages.read(self._base + slot) if self._base + slot in self._over else Histories()

    def write(self, slot: int, histories: Histories, over_ms: int) -> None:
        self._pages.write(self._base + slot, histories)
        self._over[self._base + slot] = over_ms

    def remove(self, slot: int) -> None:
        if self._over.pop(self._base + slot, None) is not None:
            self._pages.remove(self._base + slot)


class _WaitingEvents:
    """The waiting events of one key group (ports.WaitingEvents)."""

    def __init__(self, job: Job, progress: GroupProgress, part: Part) -> None:
        self._schema = job.schema
        self._progress = progress
        self._part = part
        self._before_ms = progress.waiting_ms

    def release(self, number: int, fresh: EventBatch | None, due_ms: int) -> EventBatch | None:
        """See WaitingEvents.release. Cost: a key domain is read only if it has new events or if any event is due."""
        is_due = self._before_ms is not None and self._before_ms < due_ms
        if is_due and number == 0:
            self._progress.waiting_ms = None  # every domain is checked now, and reports its remaining events
        if fresh is None and not is_due:
            return None
        stored = self._part.get(number) if self._before_ms is not None else None
        batches = [conformed(decode_batch(stored), self._schema)] if stored is not None else []
        released, rest = split_due(batches if fresh is None else [*batches, fresh], due_ms)
        if rest:
            self._store(number, concat_batches(rest))
        elif stored is not None:
            self._part.remove(number)
        return released

    def _store(self, number: int, waiting: EventBatch) -> None:
        self._part.put(number, encode_batch(waiting))
        earliest_ms, before_ms = int(waiting.time_ms.min()), self._progress.waiting_ms
        self._progress.waiting_ms = earliest_ms if before_ms is None else min(before_ms, earliest_ms)


class _SeenIds:
    """The seen ids of a key group (duplicates.SeenIds). `buckets`: the buckets of each domain in `part`."""

    def __init__(self, buckets: dict[int, list[int]], part: Part) -> None:
        self._buckets = buckets
        self._part = part
        self._new: dict[tuple[int, int], NDArray[np.uint64]] = {}  # secrets of buckets without ids

    def secrets(self, number: int, bucket: int, _keys: pa.Array) -> NDArray[np.uint64]:
        return self._of(number, bucket)[0][None]

    def take(self, number: int, bucket: int, ids: NDArray[np.uint64], _keys: pa.Array) -> NDArray[np.uint8]:
        secret, before = self._of(number, bucket)
        verdicts = duplicates.judged_by(ids, before)
        added = ids[:, verdicts == NEW]
        if added.shape[1]:
            self._part.put(number, duplicates.to_bytes(secret, duplicates.merged(before, added)), bucket)
            self._buckets[number] = sorted({*self._buckets.get(number, ()), bucket})
        return verdicts

    def forget(self, oldest: int) -> None:
        for number, buckets in self._buckets.items():
            for bucket in [bucket for bucket in buckets if bucket < oldest]:
                self._part.remove(number, bucket)
            self._buckets[number] = [bucket for bucket in buckets if bucket >= oldest]

    def _of(self, number: int, bucket: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the secret and the pairs of a bucket; an empty bucket gets a new secret."""
        if bucket in self._buckets.get(number, ()):
            stored = self._part.get(number, bucket)
            if stored is None:
                duplicates.refuse_earlier_ids()
            return duplicates.from_bytes(stored)
        if (number, bucket) not in self._new:
            self._new[number, bucket] = duplicates.new_secrets(1)[0]
        return self._new[number, bucket], np.empty((2, 0), np.uint64)
