"""One worker's key groups: the events that reach them → alerts, with their keyed state in pages.

    events of a micro-batch ─▶ on time? ─▶ seen before? ─▶ due? ─▶ advance ─▶ alerts
                                 late       duplicates     wait     pages touched or due, all key groups together

What is stored beside pages, by key group, is drawn in group_entries.py.
Tested by: tests/runners/embedded/test_engine.py
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.columnar.batch import EventBatch, concat_batches, conformed, empty_batch
from cep.columnar.codec import decode_batch, encode_batch
from cep.columnar.route import KeyDomain, key_hashes, split_by_group
from cep.engine.history_state import Histories
from cep.engine.keyed_state import KeyedState
from cep.nfa.program import Program
from cep.runners.duplicates import without_seen
from cep.runners.embedded.pages import Pages, Pasts, Place
from cep.runners.embedded.seen import SeenOfShare
from cep.runners.group_entries import DEADLINES, NEVER, PAST_DEADLINES, WAITING, deadlines_name, domain_name
from cep.runners.job import ARRIVAL, Job, StepOutput
from cep.runners.letters import on_time
from cep.runners.paged import begin_pages, drop_pages, match_pages
from cep.runners.waiting import part_due
from cep.state.keys import prefix_range, split_key, store_key
from cep.state.pages import StoredPage, encode_page
from cep.state.store import KeyedStore, WriteBatch

_PARTS_MAX = 64  # waiting batches of a domain before they are joined


@dataclass(frozen=True, slots=True)
class Work:
    """What a micro-batch is for a share: programs in force, its events by the number of their domain, and times.

    `before_ms`: the watermark that the micro-batch begins with, behind which events are late; `watermark_ms`: the one
    it ends with; events before `due_ms` may be matched. `known`: the key domains that have rules at other levels.
    """

    programs: Mapping[KeyDomain, Program]
    batches: Mapping[int, EventBatch]
    before_ms: int
    watermark_ms: int
    due_ms: int
    known: Collection[KeyDomain] = ()


@dataclass(slots=True)
class Done:
    """What a share made of its work: alerts and counters, and what to tell of late events."""

    output: StepOutput
    late: list[dict[str, Any]]


class Share:
    """The key groups first <= g < end. One thread uses it at a time.

    `kept`: the store, and how many bytes of pages are held in memory (None: all); half of them are for histories.
    """

    def __init__(self, job: Job, groups: range, kept: tuple[KeyedStore, int | None], level: int = 0) -> None:
        store, bytes_max = kept
        half = None if bytes_max is None else bytes_max // 2
        self._job = job
        self._names = [domain_name(domain, level) for domain in job.domains]
        self._deadlines_name = deadlines_name(level)
        self.groups = groups
        self.pages = Pages(store, job.domains, half, level)
        self.pasts = Pasts(store, job.domains, half, level)
        shape = (len(job.domains), len(groups), job.pages_count)
        self._deadlines = np.full(shape, NEVER, np.int64)  # the earliest end of a run; NEVER: no page
        self._over = np.full(shape, NEVER, np.int64)  # when all of its histories is over; NEVER: it has none
        self._no_events = empty_batch(job.schema)
        self._waiting: dict[int, list[EventBatch]] = {}
        self._waiting_groups: dict[int, set[int]] = {}  # for which the store has waiting events
        self._waiting_changed: set[int] = set()
        self._seen = SeenOfShare(self._names, job.groups_count)

    def step(self, work: Work) -> Done:
        """Match what is due. Raises: StateError, StoreError."""
        job, output = self._job, StepOutput()
        new = without_seen(
            job, {number: [batch] for number, batch in work.batches.items()}, work.before_ms, self._seen, output
        )
        fresh, late = on_time(job, new, work.before_ms, output)
        released = fresh if job.order == ARRIVAL else self._reorder(fresh, work.due_ms)
        for number, domain in enumerate(job.domains):
            batch = released.get(number)
            if domain in work.programs:
                events = self._no_events if batch is None else batch
                match_pages(self._domain_pages(number), work.programs[domain], events, work.watermark_ms, output)
            else:
                output.counters["events_without_rule"] += 0 if batch is None or domain in work.known else len(batch)
                drop_pages(self._domain_pages(number), output)
        return Done(output, late)

    def _domain_pages(self, number: int) -> _DomainPages:
        where = _Where(self._job, number, self.groups.start)
        pasts = _DomainPasts(where, self.pasts, self._over[number].reshape(-1))
        return _DomainPages(where, self.pages, self._deadlines[number].reshape(-1), pasts)

    def stored(self, group: int, page: int) -> Iterator[StoredPage]:
        """A page of a key group, of every key domain that has it, as it would be stored."""
        slot = (group - self.groups.start) * self._job.pages_count + page
        for number, domain in enumerate(self._job.domains):
            found = self._domain_pages(number).read(slot)
            if found is not None:
                yield StoredPage(group, domain, encode_page(found))

    def _reorder(self, fresh: Mapping[int, EventBatch], due_ms: int) -> dict[int, EventBatch]:
        """Hold back what is not due; bring out what is."""
        released: dict[int, EventBatch] = {}
        for number in range(len(self._job.domains)):
            held = self._waiting.get(number, [])
            due, rest = part_due([*held, fresh[number]] if number in fresh else held, due_ms)
            if number in fresh or due is not None:
                self._waiting[number] = [concat_batches(rest)] if len(rest) > _PARTS_MAX else rest
                self._waiting_changed.add(number)
            if due is not None:
                released[number] = due
        return released

    # --------------------------------------------------------------------------------------------- save, restore

    def save(self, batch: WriteBatch) -> int:
        """Add all that has changed since the last time; returns how many pages that were."""
        pages_count = self.pages.save(batch) + self.pasts.save(batch)
        for at, group in enumerate(self.groups):
            for name, deadlines in self._all_deadlines:
                data = deadlines[:, at, :].astype("<i8").tobytes()
                batch.put(store_key(group, b"", name, self._deadlines_name), data)
        for number in sorted(self._waiting_changed):
            name = self._names[number]
            before, now = self._waiting_groups.get(number, set()), set()
            held = self._waiting.get(number)
            for group, events in split_by_group(concat_batches(held), self._job.groups_count) if held else ():
                batch.put(store_key(group, b"", WAITING, name), encode_batch(events))
                now.add(group)
            for group in sorted(before - now):
                batch.delete(store_key(group, b"", WAITING, name))
            self._waiting_groups[number] = now
        self._waiting_changed.clear()
        self._seen.save(batch)
        return pages_count

    def begin(self, number: int, keyed_state: KeyedState, program: Program) -> int:
        """Begin with this state of a key domain, whose keys belong to this share; returns how many runs it has."""
        return begin_pages(self._domain_pages(number), keyed_state, program)

    def restore(self, store: KeyedStore) -> None:
        """Take over what the store has of these key groups; pages stay where they are until they are asked for."""
        numbers = {name: number for number, name in enumerate(self._names)}
        shape = (len(self._job.domains), self._job.pages_count)
        for at, group in enumerate(self.groups):
            for name, deadlines in self._all_deadlines:
                data = store.get(store_key(group, b"", name, self._deadlines_name))
                if data is not None:
                    deadlines[:, at, :] = np.frombuffer(data, "<i8").reshape(shape)
            for raw, data in store.scan(prefix_range(group, b"", WAITING)):
                number = numbers.get(split_key(raw).name)
                if number is None:  # of another level
                    continue
                self._waiting.setdefault(number, []).append(conformed(decode_batch(data), self._job.schema))
                self._waiting_groups.setdefault(number, set()).add(group)
            self._seen.restore(store, group)

    @property
    def _all_deadlines(self) -> list[tuple[bytes, NDArray[np.int64]]]:
        return [(DEADLINES, self._deadlines), (PAST_DEADLINES, self._over)]


@dataclass(frozen=True, slots=True)
class _Where:
    """The pages of a key domain, by its number, in the key groups from `first_group` on."""

    job: Job
    number: int
    first_group: int

    def slots(self, keys: pa.Array) -> NDArray[np.int64]:
        job, hashes = self.job, key_hashes(keys)
        groups, pages = np.uint64(job.groups_count), np.uint64(job.pages_count)
        group = (hashes % groups).astype(np.int64) - self.first_group
        return group * job.pages_count + ((hashes // groups) % pages).astype(np.int64)

    def place(self, slot: int) -> Place:
        group, page = divmod(slot, self.job.pages_count)
        return Place(self.number, self.first_group + group, page)


class _DomainPages:
    """As paged.DomainPages. `deadlines` int64[slots]: the earliest end of a run; NEVER where there is no page."""

    def __init__(self, where: _Where, pages: Pages, deadlines: NDArray[np.int64], pasts: _DomainPasts) -> None:
        self.slots = where.slots
        self._place = where.place
        self._pages = pages
        self._deadlines = deadlines
        self._pasts = pasts

    @property
    def pasts(self) -> _DomainPasts:
        return self._pasts

    def touched(self, keys: pa.Array, watermark_ms: int) -> NDArray[np.int64]:
        touched = self._deadlines <= watermark_ms
        touched[self.slots(keys)] = True
        return np.flatnonzero(touched)

    def stored(self) -> list[int]:
        found: list[int] = np.flatnonzero(self._deadlines != NEVER).tolist()
        return found

    def read(self, slot: int) -> KeyedState | None:
        return None if self._deadlines[slot] == NEVER else self._pages.read(self._place(slot))

    def write(self, slot: int, keyed_state: KeyedState, deadline_ms: int) -> None:
        self._pages.write(self._place(slot), keyed_state)
        self._deadlines[slot] = min(deadline_ms, NEVER - 1)

    def remove(self, slot: int) -> None:
        if self._deadlines[slot] != NEVER:
            self._pages.remove(self._place(slot))
            self._deadlines[slot] = NEVER


class _DomainPasts:
    """As paged.DomainPasts. `over` int64[slots]: when all is over; NEVER where there is nothing."""

    def __init__(self, where: _Where, pasts: Pasts, over: NDArray[np.int64]) -> None:
        self._place = where.place
        self._pasts = pasts
        self._over = over

    def stored(self, watermark_ms: int) -> list[int]:
        found: list[int] = np.flatnonzero((self._over != NEVER) & (self._over <= watermark_ms)).tolist()
        return found

    def read(self, slot: int) -> Histories:
        return Histories() if self._over[slot] == NEVER else self._pasts.read(self._place(slot))

    def write(self, slot: int, histories: Histories, over_ms: int) -> None:
        self._pasts.write(self._place(slot), histories)
        self._over[slot] = min(over_ms, NEVER - 1)

    def remove(self, slot: int) -> None:
        if self._over[slot] != NEVER:
            self._pasts.remove(self._place(slot))
            self._over[slot] = NEVER
