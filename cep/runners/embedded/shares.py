"""The key groups of a process, divided among threads: the embedded runner's side of step/ports.py.

    events of a level ─┬─▶ share 0: key groups 0 … 63    ─┐
                       ├─▶ share 1: key groups 64 … 127  ─┼─▶ alerts, in the order of the shares
                       └─▶ …                             ─┘

Each level has its own shares. A small micro-batch does not repay several threads: all shares are then matched as one in
the caller's thread, which pays the fixed cost of a match only once. A share matches with its keyed state in pages:

    events of a micro-batch ─▶ on time? ─▶ seen before? ─▶ due? ─▶ advance ─▶ alerts
                                 late       duplicates     wait     pages touched or due, all key groups together

The store has, besides pages: waiting events (waiting.py), seen ids (seen.py), and the deadlines of pages:

    | key group | "" | "deadlines" | level |                    →  int64[domains, pages], as of the last `save_whole`
    | FFFF | "" | "added-deadlines" | domain | commit, share |  →  (slot u32, ms i64) … what each commit has changed
Tested by: tests/runners/embedded/test_engine.py, tests/step/test_step.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from cep.columnar.batch import EventBatch, concat_batches, decode_batch, encode_batch
from cep.columnar.decode import KeyDomain, key_groups, key_pages, key_slots
from cep.engine.keyed_state import KeyedState, concat_states, partition_keys
from cep.engine.migrate import migrate_state
from cep.histories.store import Histories
from cep.kernels.layout import Int64
from cep.nfa.program import Program
from cep.runners.embedded.pages import MatchedPages, Pages, Pasts, Place, Shapes
from cep.runners.embedded.seen import SeenOfLevel
from cep.runners.embedded.waiting import WaitingOfShare
from cep.runners.handover import group_entries as entries
from cep.state.past import decode_page, encode_page
from cep.state.store import STORE_GROUP, DurableStore, KeyedStore, WriteBatch, prefix_range, split_key, store_key
from cep.step.job import ARRIVAL, Job
from cep.step.level import begin_pages
from cep.step.ports import Events, Portion
from cep.step.rules import JobRules, Programs

ADDED_DEADLINES = b"added-deadlines"
_ADDED = np.dtype([("slot", "<u4"), ("ms", "<i8")])


@dataclass(frozen=True, slots=True)
class Cache:
    """The pages that a share keeps: how many for a key group, and bytes of each domain's in memory (None: all)."""

    pages_count: int
    bytes_max: int | None


class Share:
    """The keyed state of some key groups at a level, by the number of the key domain. One thread uses it at a time."""

    def __init__(
        self, job: Job, groups: range, store: KeyedStore, shapes: Shapes, cache: Cache, level: int, seen: SeenOfLevel
    ) -> None:
        """`seen` is of all shares of the level."""
        self._job = job
        self._names = [entries.domain_name(domain, level) for domain in job.domains]
        self._deadlines_name = entries.deadlines_name(level)
        self._level = level
        self._store = store
        self._count = cache.pages_count
        self.groups = groups
        layout = (groups, job.groups_count, self._count)
        # Histories have as many pages as the job says: there a page is little more than a list of segments.
        half = None if cache.bytes_max is None else cache.bytes_max // 2
        self.stored_pages = [Pages(store, name, layout, shapes, half) for name in self._names]
        self._pasts = Pasts(store, self._names, half)
        shape = (len(self._names), len(groups), job.pages_count)
        # when all histories of a page end; NEVER: it has no histories
        self._over = np.full(shape, entries.NEVER, np.int64)
        self._saved_over = self._over.copy()
        self.pasts = [
            SharePasts(job, number, groups.start, self._pasts, over.reshape(-1))
            for number, over in enumerate(self._over)
        ]
        self.pages = [
            MatchedPages((stored,), pasts, stays_open=True)
            for stored, pasts in zip(self.stored_pages, self.pasts, strict=True)
        ]
        self.waiting = WaitingOfShare(self._names, groups, job.groups_count, job.schema)
        self.seen = seen

    @property
    def parts(self) -> tuple[Share]:
        """The arrivals of these key groups are kept in one part."""
        return (self,)

    def close_pages(self) -> None:
        """Pack the open pages, for code that reads pages."""
        for pages in self.pages:
            pages.close()

    def begin(self, number: int, keyed_state: KeyedState, program: Program) -> Counter[str]:
        """Begin with this state of a key domain, whose keys belong to this share; returns its runs, as counters."""
        return begin_pages(self.pages[number], keyed_state, program)

    @property
    def loads_count(self) -> int:
        """Return how many pages and segments were read from the store."""
        return self._pasts.loads + sum(pages.loads for pages in self.stored_pages)

    @property
    def changed_bytes(self) -> int:
        """The bytes of the pages that `save_changes` is going to write."""
        return sum(stored.changed_bytes for stored in self.stored_pages) + sum(pages.open_bytes for pages in self.pages)

    @property
    def page_bytes(self) -> int:
        """The bytes of the pages that are in memory."""
        return sum(stored.cached_bytes for stored in self.stored_pages) + sum(pages.open_bytes for pages in self.pages)

    @property
    def memory_bytes(self) -> dict[str, int]:
        """The bytes in memory by part; event ids belong to the level."""
        return {
            "pages": self.page_bytes,
            "page_index": sum(stored.index_bytes for stored in self.stored_pages) + 2 * self._over.nbytes,
            "past": self._pasts.nbytes,
        }

    def save_changes(self, batch: WriteBatch, item: bytes) -> int:
        """Add the changes since the last commit under `item` (commit, share). Return their bytes, without pages."""
        self.close_pages()
        bytes_count = self.waiting.save_changes(batch, item) + self.seen.save_changes(batch, item)
        self._save_pasts(batch)
        for number, pages in enumerate(self.stored_pages):
            slots = pages.save(batch)
            if len(slots):
                changed = np.empty(len(slots), _ADDED)
                changed["slot"] = slots + self.groups.start * self._count
                changed["ms"] = pages.deadlines[slots]
                value = changed.tobytes()
                batch.put(store_key(STORE_GROUP, b"", ADDED_DEADLINES, self._names[number], item), value)
                bytes_count += len(value)
        return bytes_count

    def save_whole(self, batch: WriteBatch) -> None:
        """Add changed pages, and all other state by key group. The entries of earlier commits become unnecessary."""
        self._save_pasts(batch)
        self.save_pages(batch)
        deadlines = np.stack([pages.deadlines.reshape(len(self.groups), -1) for pages in self.stored_pages])
        for index, group in enumerate(self.groups):
            value = deadlines[:, index, :].astype("<i8").tobytes()
            batch.put(store_key(group, b"", entries.DEADLINES, self._deadlines_name), value)
        self.waiting.save_whole(batch)
        self.seen.save_whole(batch)

    def _save_pasts(self, batch: WriteBatch) -> None:
        self._pasts.save(batch)
        changed = self._over != self._saved_over
        if not changed.any():
            return
        for index in np.flatnonzero(changed.any(axis=(0, 2))).tolist():
            value = self._over[:, index, :].astype("<i8").tobytes()
            batch.put(store_key(self.groups.start + index, b"", entries.PAST_DEADLINES, self._deadlines_name), value)
        self._saved_over[:] = self._over

    def restore(self, store: KeyedStore) -> None:
        """Restore the state of these key groups from the store. Pages stay in the store until they are needed."""
        for index, group in enumerate(self.groups):
            data = store.get(store_key(group, b"", entries.PAST_DEADLINES, self._deadlines_name))
            if data is not None:
                self._over[:, index, :] = np.frombuffer(data, "<i8").reshape(len(self._over), -1)
        self._saved_over[:] = self._over
        shape = (len(self.stored_pages), self._count)
        for index, group in enumerate(self.groups):
            data = store.get(store_key(group, b"", entries.DEADLINES, self._deadlines_name))
            if data is not None:
                for number, deadlines in enumerate(np.frombuffer(data, "<i8").reshape(shape)):
                    self.stored_pages[number].deadlines[index * self._count : (index + 1) * self._count] = deadlines
        first, end = self.groups.start * self._count, self.groups.stop * self._count
        for number, pages in enumerate(self.stored_pages):
            for _, data in store.scan(prefix_range(STORE_GROUP, b"", ADDED_DEADLINES, self._names[number])):
                changed = np.frombuffer(data, _ADDED)
                of_share = changed[(changed["slot"] >= first) & (changed["slot"] < end)]
                pages.deadlines[of_share["slot"].astype(np.int64) - first] = of_share["ms"]
            pages.restored()
        self.waiting.restore(store)
        self.seen.restore(store, self.groups)

    def state_of(self, group: int, programs: Mapping[KeyDomain, Program]) -> entries.GroupState:
        """Return the state of a key group in the form that savepoints have, with as many pages as the job says."""
        job, group_state = self._job, entries.GroupState()
        for number, domain in enumerate(job.domains):
            if domain not in programs:
                continue  # its runs belong to no rule
            program = programs[domain]
            whole, _ = self.pages[number].take(self.stored_pages[number].slots_of(group), program)
            if whole is None:
                continue
            part = key_pages(whole.keys, job.groups_count, job.pages_count).astype(np.int64)
            for page, cut in enumerate(partition_keys(whole, part, job.pages_count, program.row_registers)):
                deadline_ms = cut.expiry_min
                if deadline_ms is not None:
                    group_state.pages[number << entries.PAGE_BITS | page] = encode_page(cut)
                    group_state.deadlines[number << entries.PAGE_BITS | page] = deadline_ms
        for number in range(len(job.domains)):
            waiting_events = dict(self.waiting.by_group(number))
            if group in waiting_events:
                group_state.waiting[number] = encode_batch(waiting_events[group])
        group_state.seen.update({(number, bucket): data for number, bucket, data in self.seen.of_group(group)})
        self._add_pasts(group, group_state)
        return group_state

    def _add_pasts(self, group: int, group_state: entries.GroupState) -> None:
        """Copy the histories of a key group unchanged: the store has them in the form of a savepoint already."""
        for number, name in enumerate(self._names):
            for key, data in self._store.scan(prefix_range(group, b"", entries.PAST, name)):
                (page,) = entries.PAGE.unpack(split_key(key).item)
                group_state.heads[number << entries.PAGE_BITS | page] = data
            for key, data in self._store.scan(prefix_range(group, b"", entries.SEGMENTS, name)):
                page, segment = entries.SEGMENT.unpack(split_key(key).item)
                group_state.segments[number << entries.PAGE_BITS | page, segment] = data
            for page, ms in enumerate(self._over[number, group - self.groups.start].tolist()):
                if ms != entries.NEVER:
                    group_state.over[number << entries.PAGE_BITS | page] = ms

    def take_over(self, group: int, group_state: entries.GroupState, programs: Mapping[KeyDomain, Program]) -> None:
        """Start with a key group of a savepoint. Raises: StateError."""
        for number, domain in enumerate(self._job.domains):
            pages = sorted(group_state.pages.items())
            domain_pages = [data for page, data in pages if page >> entries.PAGE_BITS == number]
            if domain_pages and domain in programs:
                program = programs[domain]
                states = [migrate_state(decode_page(data), program)[0] for data in domain_pages]
                self.begin(number, concat_states(states, program.row_registers), program)
        for number, data in group_state.waiting.items():
            self.waiting.hold(number, decode_batch(data))
        for (number, bucket), data in group_state.seen.items():
            self.seen.hold(group, number, bucket, data)
        batch = WriteBatch()
        pasts = entries.GroupState(heads=group_state.heads, segments=group_state.segments)
        for key, data in entries.entries_of(self._job, self._level, group, pasts):
            batch.put(key, data)
        self._store.write(batch)
        for page, ms in group_state.over.items():
            self._over[page >> entries.PAGE_BITS, group - self.groups.start, page & (1 << entries.PAGE_BITS) - 1] = ms

    def save_pages(self, batch: WriteBatch) -> None:
        """Add changed pages alone, before a `save_whole`: so that not all of them are in one write batch."""
        self.close_pages()
        for pages in self.stored_pages:
            pages.save(batch)


class SharePasts:
    """The histories of a share (DomainPasts). `over`: int64[slots], when all histories of a slot end, ms; or NEVER."""

    def __init__(self, job: Job, number: int, first_group: int, pasts: Pasts, over: Int64) -> None:
        self._job = job
        self._number = number
        self._first_group = first_group
        self._pasts = pasts
        self._over = over

    @property
    def slots_count(self) -> int:
        return len(self._over)

    def slots(self, keys: pa.Array) -> Int64:
        return key_slots(keys, self._job.groups_count, self._job.pages_count, self._first_group)

    def stored(self, watermark_ms: int) -> list[int]:
        (pages,) = (self._over <= min(watermark_ms, entries.NEVER - 1)).nonzero()
        return pages.tolist()

    def read(self, slot: int) -> Histories:
        return Histories() if self._over[slot] == entries.NEVER else self._pasts.read(self._place(slot))

    def write(self, slot: int, histories: Histories, over_ms: int) -> None:
        self._pasts.write(self._place(slot), histories)
        self._over[slot] = min(over_ms, entries.NEVER - 1)

    def remove(self, slot: int) -> None:
        if self._over[slot] != entries.NEVER:
            self._pasts.remove(self._place(slot))
            self._over[slot] = entries.NEVER

    def _place(self, slot: int) -> Place:
        group, page = divmod(slot, self._job.pages_count)
        return Place(self._number, self._first_group + group, page)


EVENTS_ALONE = 2_000  # fewer are matched in the caller's thread, by all shares as one
T = TypeVar("T")


class Shares:
    """The ports of this process: a share of its key groups for each thread, at each level."""

    def __init__(
        self, rules: JobRules, groups: range, store: DurableStore, shapes: Shapes, cache: Cache, count: int
    ) -> None:
        """Divide the key groups of this process among `count` threads."""
        self.rules = rules
        self.programs = Programs()
        self.levels = range(rules.job.levels_count)
        self._job = rules.job
        self._groups = groups
        self._is_alone = len(groups) == rules.job.groups_count  # no other process has any
        bounds = [groups.start + len(groups) * number // count for number in range(count + 1)]
        self._bounds = np.array(bounds, np.int32)
        self._pool = ThreadPoolExecutor(count, "share") if count > 1 else None
        self._store = store
        self._shapes = shapes
        self.lay_out(cache)

    def lay_out(self, cache: Cache) -> None:
        """Begin with empty shares."""
        self.cache = cache
        groups = [range(first, end) for first, end in pairwise(self._bounds.tolist())]
        self.by_level = []
        for level in self.levels:
            names = [entries.domain_name(domain, level) for domain in self._job.domains]
            seen_ids = SeenOfLevel(names, self._job.groups_count)
            self.by_level.append(
                [Share(self._job, part, self._store, self._shapes, cache, level, seen_ids) for part in groups]
            )
        self._joined = [JoinedShares(self._job, shares) for shares in self.by_level]

    @property
    def all(self) -> list[Share]:
        """The shares of all levels."""
        return [share for shares in self.by_level for share in shares]

    def with_group(self, group: int) -> list[tuple[int, Share]]:
        """Return each level with its share that has a key group."""
        return [(level, share) for level in self.levels for share in self.by_level[level] if group in share.groups]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def spread(self, level: int, events: Events, due_ms: int, work: Callable[[Portion], T]) -> Iterable[T]:
        """Divide the events of a level among the threads, or match them in one thread if there are few."""
        whole = {number: concat_batches(batches) for number, batches in events.items()}
        shares, joined = self.by_level[level], self._joined[level]
        is_small = sum(map(len, whole.values())) < EVENTS_ALONE
        if is_small and self._is_alone and joined.only_matches(whole, due_ms):
            return [work(joined.undivided(whole))]
        divided = self._divide(whole)
        if is_small:
            return [work(joined.portion(divided))]
        portions = [Portion(share, [share_events]) for share, share_events in zip(shares, divided, strict=True)]
        return map(work, portions) if self._pool is None else self._pool.map(work, portions)

    def owners(self, keys: pa.Array) -> Int64:
        """Return the number of each key's share: int64[N]; -1 for keys of other processes."""
        groups = key_groups(keys, self._job.groups_count)
        is_ours = (groups >= self._groups.start) & (groups < self._groups.stop)
        return np.where(is_ours, np.searchsorted(self._bounds[1:], groups, side="right"), -1)

    def _divide(self, events: Mapping[int, EventBatch]) -> list[dict[int, list[EventBatch]]]:
        """Return the events of each share. Events of other processes' key groups are left out."""
        count = len(self.by_level[0])
        divided: list[dict[int, list[EventBatch]]] = [{} for _ in range(count)]
        for number, batch in events.items():
            if count == 1 and self._is_alone:
                divided[0][number] = [batch]
                continue
            owners = self.owners(batch.key)
            for share in range(count):
                is_of_share = owners == share
                if is_of_share.any():
                    divided[share][number] = [batch if is_of_share.all() else batch.take(is_of_share)]
        return divided


class JoinedShares:
    """Several shares of one level with consecutive key groups, matched as if they were one."""

    def __init__(self, job: Job, shares: Sequence[Share]) -> None:
        self._job = job
        self.parts = shares
        self.pages = [
            MatchedPages(
                [share.stored_pages[number] for share in shares],
                _JoinedPasts([share.pasts[number] for share in shares]),
                stays_open=False,
            )
            for number in range(len(job.domains))
        ]

    def only_matches(self, events: Mapping[int, EventBatch], due_ms: int) -> bool:
        """Return True if no event has waited or is to wait: then nothing is divided."""
        is_due = not any(np.count_nonzero(batch.time_ms >= due_ms) for batch in events.values())
        return self._job.order == ARRIVAL or (is_due and all(share.waiting.is_empty for share in self.parts))

    def undivided(self, events: Mapping[int, EventBatch]) -> Portion:
        """Return all key groups as one part."""
        self._close_pages()
        return Portion(_Undivided(self.parts[:1], self.pages), [{number: [batch] for number, batch in events.items()}])

    def portion(self, divided: Sequence[Events]) -> Portion:
        """Return all key groups, with the events of each share."""
        self._close_pages()
        return Portion(self, divided)

    def _close_pages(self) -> None:
        for share in self.parts:
            share.close_pages()


class _Undivided(NamedTuple):
    """The pages of joined shares, with the arrivals of one of them: they share the seen ids, and no event waits."""

    parts: Sequence[Share]
    pages: Sequence[MatchedPages]


class _JoinedPasts:
    """The histories of several shares as one (DomainPasts). Their slots follow each other, share by share."""

    def __init__(self, parts: Sequence[SharePasts]) -> None:
        self._parts = parts
        self._firsts = np.cumsum([0, *(part.slots_count for part in parts)])[:-1].tolist()

    def slots(self, keys: pa.Array) -> Int64:
        return self._parts[0].slots(keys)

    def stored(self, watermark_ms: int) -> list[int]:
        owned = zip(self._parts, self._firsts, strict=True)
        return [first + slot for part, first in owned for slot in part.stored(watermark_ms)]

    def read(self, slot: int) -> Histories:
        part, part_slot = self._at(slot)
        return part.read(part_slot)

    def write(self, slot: int, histories: Histories, over_ms: int) -> None:
        part, part_slot = self._at(slot)
        part.write(part_slot, histories, over_ms)

    def remove(self, slot: int) -> None:
        part, part_slot = self._at(slot)
        part.remove(part_slot)

    def _at(self, slot: int) -> tuple[SharePasts, int]:
        number = bisect_right(self._firsts, slot) - 1
        return self._parts[number], slot - self._firsts[number]
