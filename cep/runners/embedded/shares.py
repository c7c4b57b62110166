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
from cep.runners.embedded.pages import MatchedPages, PageAddress, Pages, Shapes, StoredHistories
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
_CHANGED_DEADLINE = np.dtype([("slot", "<u4"), ("ms", "<i8")])


@dataclass(frozen=True, slots=True)
class PageSettings:
    """The number of pages of a key group, and how many bytes of pages of a key domain stay in memory (None: all)."""

    pages_count: int
    bytes_max: int | None


class Share:
    """The keyed state of one thread's key groups at one level (order in which rules run), by number of key domain."""

    def __init__(
        self, job: Job, groups: range, store: KeyedStore, shapes: Shapes, paging: PageSettings, level: int,
        seen: SeenOfLevel,
    ) -> None:  # fmt: skip
        """Open the state of `groups` at a level (order of rules): runs in pages of keys, histories, waiting events."""
        self._job = job
        self._domain_names = [entries.domain_name(domain, level) for domain in job.domains]
        self._deadlines_name = entries.deadlines_name(level)
        self._level = level
        self._store = store
        self._pages_count = paging.pages_count
        self.groups = groups
        layout = (groups, job.groups_count, self._pages_count)
        # Half of the memory is for runs, half for histories. The job says how many pages of histories a group has.
        half_bytes = None if paging.bytes_max is None else paging.bytes_max // 2
        self.stored_pages = [Pages(store, name, layout, shapes, half_bytes) for name in self._domain_names]
        self._histories = StoredHistories(store, self._domain_names, half_bytes)
        shape = (len(self._domain_names), len(groups), job.pages_count)
        # The time at which all histories of a page have expired; NEVER: the page has none.
        self._expiry_ms = np.full(shape, entries.NEVER, np.int64)
        self._saved_expiry_ms = self._expiry_ms.copy()
        self.histories = [
            ShareHistories(job, domain_number, groups.start, self._histories, expiry_ms.reshape(-1))
            for domain_number, expiry_ms in enumerate(self._expiry_ms)
        ]
        self.pages = [
            MatchedPages((stored,), histories, stays_open=True)  # unpacked until another micro-batch or a commit
            for stored, histories in zip(self.stored_pages, self.histories, strict=True)
        ]
        self.waiting = WaitingOfShare(self._domain_names, groups, job.groups_count, job.schema)
        self.seen = seen  # event ids; all threads share them

    @property
    def parts(self) -> tuple[Share]:
        """The arrivals of these key groups are kept in one part."""
        return (self,)

    def close_pages(self) -> None:
        """Pack the open pages, for code that reads pages."""
        for pages in self.pages:
            pages.close()

    def begin(self, domain_number: int, keyed_state: KeyedState, program: Program) -> Counter[str]:
        """Begin with this state of a key domain, whose keys belong to this share; returns its runs, as counters."""
        return begin_pages(self.pages[domain_number], keyed_state, program)

    @property
    def loads_count(self) -> int:
        """Return how many pages and segments were read from the store."""
        return self._histories.loads + sum(pages.loads for pages in self.stored_pages)

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
            "page_index": sum(stored.index_bytes for stored in self.stored_pages) + 2 * self._expiry_ms.nbytes,
            "past": self._histories.nbytes,
        }

    def save_changes(self, batch: WriteBatch, suffix: bytes) -> int:
        """Add this share's changes to a commit. `suffix` (commit, share) ends their store keys. Return their size."""
        self.close_pages()  # packs the pages that are unpacked
        bytes_count = self.waiting.save_changes(batch, suffix) + self.seen.save_changes(batch, suffix)
        self._save_histories(batch)
        for name, pages in zip(self._domain_names, self.stored_pages, strict=True):
            slots = pages.save(batch)  # the changed ones; a slot is a page's number in this share
            if len(slots):  # a start reads their deadlines (when to look at a page again) without the pages
                changed = np.empty(len(slots), _CHANGED_DEADLINE)
                changed["slot"] = slots + self.groups.start * self._pages_count  # a page's number in the job
                changed["ms"] = pages.deadlines[slots]
                value = changed.tobytes()
                batch.put(store_key(STORE_GROUP, b"", ADDED_DEADLINES, name, suffix), value)
                bytes_count += len(value)
        return bytes_count

    def save_whole(self, batch: WriteBatch) -> None:
        """Add changed pages, and all other state by key group. The entries of earlier commits become unnecessary."""
        self._save_histories(batch)
        self.save_pages(batch)
        deadlines = np.stack([pages.deadlines.reshape(len(self.groups), -1) for pages in self.stored_pages])
        for index, group in enumerate(self.groups):
            value = deadlines[:, index, :].astype("<i8").tobytes()
            batch.put(store_key(group, b"", entries.DEADLINES, self._deadlines_name), value)
        self.waiting.save_whole(batch)
        self.seen.save_whole(batch)

    def _save_histories(self, batch: WriteBatch) -> None:
        self._histories.save(batch)
        changed = self._expiry_ms != self._saved_expiry_ms
        if not np.count_nonzero(changed):
            return
        for index in np.flatnonzero(changed.any(axis=(0, 2))).tolist():
            value = self._expiry_ms[:, index, :].astype("<i8").tobytes()
            batch.put(store_key(self.groups.start + index, b"", entries.PAST_DEADLINES, self._deadlines_name), value)
        self._saved_expiry_ms[:] = self._expiry_ms

    def restore(self, store: KeyedStore) -> None:
        """Restore the deadlines (when to look at a page again), waiting events and seen ids, but load no pages."""
        for index, group in enumerate(self.groups):
            data = store.get(store_key(group, b"", entries.PAST_DEADLINES, self._deadlines_name))
            if data is not None:  # int64[domains, pages]: when the histories of each page have expired
                self._expiry_ms[:, index, :] = np.frombuffer(data, "<i8").reshape(len(self._expiry_ms), -1)
        self._saved_expiry_ms[:] = self._expiry_ms
        shape = (len(self.stored_pages), self._pages_count)
        for index, group in enumerate(self.groups):
            data = store.get(store_key(group, b"", entries.DEADLINES, self._deadlines_name))
            if data is not None:  # int64[domains, pages]: when to look at each page of runs
                for domain_number, deadlines in enumerate(np.frombuffer(data, "<i8").reshape(shape)):
                    self.stored_pages[domain_number].deadlines.reshape(len(self.groups), -1)[index] = deadlines
        first, end = self.groups.start * self._pages_count, self.groups.stop * self._pages_count
        for name, pages in zip(self._domain_names, self.stored_pages, strict=True):
            # Changes of later commits, from all shares. A slot in them is the number of a page in the job.
            for _, data in store.scan(prefix_range(STORE_GROUP, b"", ADDED_DEADLINES, name)):
                changed = np.frombuffer(data, _CHANGED_DEADLINE)
                ours = changed[(changed["slot"] >= first) & (changed["slot"] < end)]
                pages.deadlines[ours["slot"].astype(np.int64) - first] = ours["ms"]
            pages.restored()
        self.waiting.restore(store)
        self.seen.restore(store, self.groups)

    def state_of(self, group: int, programs: Mapping[KeyDomain, Program]) -> entries.GroupState:
        """Return a key group's state as in a savepoint: runs in pages of a few keys, waiting events, ids, histories."""
        job, group_state = self._job, entries.GroupState()
        for domain_number, domain in enumerate(job.domains):
            if domain not in programs:
                continue  # its runs belong to no rule (a domain: keys of the same fields)
            program = programs[domain]
            whole, _ = self.pages[domain_number].take(self.stored_pages[domain_number].slots_of(group), program)
            if whole is None:
                continue
            # The job's settings say how many pages a savepoint has: find the page of each key, then divide the state.
            part = key_pages(whole.keys, job.groups_count, job.pages_count).astype(np.int64)
            for page, page_state in enumerate(partition_keys(whole, part, job.pages_count, program.row_registers)):
                deadline_ms = page_state.expiry_min
                if deadline_ms is not None:  # None: the page has no runs
                    group_state.pages[entries.page_id(domain_number, page)] = encode_page(page_state)
                    group_state.deadlines[entries.page_id(domain_number, page)] = deadline_ms
        for domain_number in range(len(job.domains)):
            waiting_events = dict(self.waiting.by_group(domain_number))
            if group in waiting_events:
                group_state.waiting[domain_number] = encode_batch(waiting_events[group])
        group_state.seen.update(
            {(domain_number, bucket): data for domain_number, bucket, data in self.seen.of_group(group)}
        )
        self._copy_histories(group, group_state)
        return group_state

    def _copy_histories(self, group: int, group_state: entries.GroupState) -> None:
        """Copy a key group's histories: heads (records of segments), segments (past events), and expiry times."""
        for domain_number, name in enumerate(self._domain_names):
            for key, data in self._store.scan(prefix_range(group, b"", entries.PAST, name)):
                (page,) = entries.PAGE.unpack(split_key(key).item)
                group_state.heads[entries.page_id(domain_number, page)] = data
            for key, data in self._store.scan(prefix_range(group, b"", entries.SEGMENTS, name)):
                page, segment = entries.SEGMENT.unpack(split_key(key).item)
                group_state.segments[entries.page_id(domain_number, page), segment] = data
            for page, ms in enumerate(self._expiry_ms[domain_number, group - self.groups.start].tolist()):
                if ms != entries.NEVER:
                    group_state.expiry_ms[entries.page_id(domain_number, page)] = ms

    def load_group(
        self, group: int, group_state: entries.GroupState, programs: Mapping[KeyDomain, Program]
    ) -> Counter[str]:
        """Begin with a key group of a savepoint: runs, waiting events, seen ids, and histories. Return its runs, as
        counters. Raises: StateError."""
        runs: Counter[str] = Counter()
        for domain_number, domain in enumerate(self._job.domains):
            pages = sorted(group_state.pages.items())
            # A page id has the number of the domain in its upper bits.
            domain_pages = [data for page, data in pages if page >> entries.PAGE_BITS == domain_number]
            if domain_pages and domain in programs:
                program = programs[domain]
                states = [migrate_state(decode_page(data), program)[0] for data in domain_pages]
                runs += self.begin(domain_number, concat_states(states, program.row_registers), program)
        for domain_number, data in group_state.waiting.items():
            self.waiting.add_saved(domain_number, decode_batch(data))
        for (domain_number, bucket), data in group_state.seen.items():
            self.seen.add_saved(group, domain_number, bucket, data)
        batch = WriteBatch()
        histories = entries.GroupState(heads=group_state.heads, segments=group_state.segments)  # past events
        for key, data in entries.entries_of(self._job, self._level, group, histories):
            batch.put(key, data)
        self._store.write(batch)  # histories alone; the rest stays in memory until it is saved
        for page, ms in group_state.expiry_ms.items():  # when all histories of a page have expired
            of_domain, page_number = divmod(page, 1 << entries.PAGE_BITS)  # a page id has both
            self._expiry_ms[of_domain, group - self.groups.start, page_number] = ms
        return runs

    def save_pages(self, batch: WriteBatch) -> None:
        """Add changed pages alone, before a `save_whole`: so that not all of them are in one write batch."""
        self.close_pages()
        for pages in self.stored_pages:
            pages.save(batch)


class ShareHistories:
    """The histories (past events) of one key domain in the key groups of one thread. A slot is a page of several keys.

    `expiry_ms` int64[slots]: when all histories of a slot have expired; NEVER: it has none.
    """

    def __init__(
        self, job: Job, domain_number: int, first_group: int, histories: StoredHistories, expiry_ms: Int64
    ) -> None:
        self._job = job
        self._domain_number = domain_number
        self._first_group = first_group
        self._histories = histories
        self._expiry_ms = expiry_ms

    @property
    def slots_count(self) -> int:
        return len(self._expiry_ms)

    def slots(self, keys: pa.Array) -> Int64:
        return key_slots(keys, self._job.groups_count, self._job.pages_count, self._first_group)

    def expired(self, watermark_ms: int) -> list[int]:
        """Return the slots whose histories have all expired at the watermark."""
        (expired_slots,) = (self._expiry_ms <= min(watermark_ms, entries.NEVER - 1)).nonzero()
        return expired_slots.tolist()

    def read(self, slot: int) -> Histories:
        return Histories() if self._expiry_ms[slot] == entries.NEVER else self._histories.read(self._address(slot))

    def write(self, slot: int, histories: Histories, expiry_ms: int) -> None:
        self._histories.write(self._address(slot), histories)
        self._expiry_ms[slot] = min(expiry_ms, entries.NEVER - 1)

    def remove(self, slot: int) -> None:
        if self._expiry_ms[slot] != entries.NEVER:
            self._histories.remove(self._address(slot))
            self._expiry_ms[slot] = entries.NEVER

    def _address(self, slot: int) -> PageAddress:
        group, page = divmod(slot, self._job.pages_count)
        return PageAddress(self._domain_number, self._first_group + group, page)


THREADS_EVENTS_MIN = 2_000  # fewer are matched in the caller's thread, in all shares as one
T = TypeVar("T")


class Shares:
    """The keyed state of this process: for each level, a share of its key groups for each thread."""

    def __init__(
        self, rules: JobRules, groups: range, store: DurableStore, shapes: Shapes, paging: PageSettings, count: int
    ) -> None:
        """Divide the key groups of this process among `count` threads. `shapes`: the layouts of stored pages (runs)."""
        self.rules = rules
        self.programs = Programs()
        self.levels = range(rules.job.levels_count)  # the order in which rules run
        self._job = rules.job
        self._groups = groups
        self._has_all_groups = len(groups) == rules.job.groups_count  # this is the only process
        bounds = [groups.start + len(groups) * number // count for number in range(count + 1)]  # of its parts
        self._bounds = np.array(bounds, np.int32)
        self._pool = ThreadPoolExecutor(count, "share") if count > 1 else None
        self._store = store
        self._shapes = shapes
        self.create_empty(paging)

    def create_empty(self, paging: PageSettings) -> None:
        """Create empty shares (the state of one thread's key groups), of each level (order in which rules run)."""
        self.paging = paging
        groups_by_thread = [range(first, end) for first, end in pairwise(self._bounds.tolist())]
        self.by_level = []
        for level in self.levels:
            names = [entries.domain_name(domain, level) for domain in self._job.domains]
            seen = SeenOfLevel(names, self._job.groups_count)  # shared, because one thread may match all events
            self.by_level.append(
                [Share(self._job, part, self._store, self._shapes, paging, level, seen) for part in groups_by_thread]
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
        """Divide the events of a level (order of rules) among threads by key, and call `work` for the portion of each.

        Few events are matched in this thread, with the joined state of all. If no event waits, they are not divided.
        """
        whole = {domain_number: concat_batches(batches) for domain_number, batches in events.items()}
        shares, joined = self.by_level[level], self._joined[level]
        is_small = sum(map(len, whole.values())) < THREADS_EVENTS_MIN
        if is_small and self._has_all_groups and joined.nothing_waits(whole, due_ms):
            return [work(joined.portion_undivided(whole))]
        divided = self._divide(whole)
        if is_small:
            return [work(joined.portion_by_share(divided))]
        portions = [Portion(share, [share_events]) for share, share_events in zip(shares, divided, strict=True)]
        return map(work, portions) if self._pool is None else self._pool.map(work, portions)

    def owners(self, keys: pa.Array) -> Int64:
        """Return the number of each key's share: int64[N]; -1 for keys of other processes."""
        groups = key_groups(keys, self._job.groups_count)
        is_ours = (groups >= self._groups.start) & (groups < self._groups.stop)
        return np.where(is_ours, np.searchsorted(self._bounds[1:], groups, side="right"), -1)

    def _divide(self, events: Mapping[int, EventBatch]) -> list[dict[int, list[EventBatch]]]:
        """Divide events by share (the key groups of a thread) and key domain. Keys of other processes are left out."""
        count = len(self.by_level[0])  # of shares; each level has as many
        divided: list[dict[int, list[EventBatch]]] = [{} for _ in range(count)]
        for domain_number, batch in events.items():
            if count == 1 and self._has_all_groups:
                divided[0][domain_number] = [batch]  # all events belong to the only share
                continue
            owners = self.owners(batch.key)  # of each event: the number of its share
            for share in range(count):
                is_of_share = owners == share
                if is_of_share.any():
                    divided[share][domain_number] = [batch if is_of_share.all() else batch.take(is_of_share)]
        return divided


class JoinedShares:
    """The state of all threads at one level (order of rules), joined so that one call matches a small micro-batch.

    An event that waits is stored in its share (the key groups of a thread). If none waits, no event need be divided.
    """

    def __init__(self, job: Job, shares: Sequence[Share]) -> None:
        self._job = job
        self.parts = shares
        self.pages: list[MatchedPages] = []
        for domain_number in range(len(job.domains)):
            histories = _JoinedHistories([share.histories[domain_number] for share in shares])
            stored_pages = [share.stored_pages[domain_number] for share in shares]
            self.pages.append(MatchedPages(stored_pages, histories, stays_open=False))  # packed after a micro-batch

    def nothing_waits(self, events: Mapping[int, EventBatch], due_ms: int) -> bool:
        """Return True if no event has waited or has to wait: all are before `due_ms`, or go in order of arrival."""
        are_due = not any(np.count_nonzero(batch.time_ms >= due_ms) for batch in events.values())
        return self._job.order == ARRIVAL or (are_due and all(share.waiting.is_empty for share in self.parts))

    def portion_undivided(self, events: Mapping[int, EventBatch]) -> Portion:
        """Return the work on all key groups, with events that are not divided among the shares."""
        self._close_pages()  # packs the pages (groups of keys) that a share has unpacked
        return Portion(
            _Undivided(self.parts[:1], self.pages),  # one share stands for all: seen ids are shared, no event waits
            [{domain_number: [batch] for domain_number, batch in events.items()}],
        )

    def portion_by_share(self, divided: Sequence[Events]) -> Portion:
        """Return the work on all key groups, with the events of each share."""
        self._close_pages()
        return Portion(self, divided)

    def _close_pages(self) -> None:
        for share in self.parts:
            share.close_pages()


class _Undivided(NamedTuple):
    """The pages of joined shares, with the arrivals of one of them: they share the seen ids, and no event waits."""

    parts: Sequence[Share]
    pages: Sequence[MatchedPages]


class _JoinedHistories:
    """The histories of several shares (key groups of a thread) as one. A slot is a page's number in all of them."""

    def __init__(self, parts: Sequence[ShareHistories]) -> None:
        self._parts = parts
        self._firsts = np.cumsum([0, *(part.slots_count for part in parts)])[:-1].tolist()

    def slots(self, keys: pa.Array) -> Int64:
        return self._parts[0].slots(keys)  # right for all parts, because their key groups follow each other

    def expired(self, watermark_ms: int) -> list[int]:
        owned = zip(self._parts, self._firsts, strict=True)
        return [first + slot for part, first in owned for slot in part.expired(watermark_ms)]

    def read(self, slot: int) -> Histories:
        part, part_slot = self._at(slot)
        return part.read(part_slot)

    def write(self, slot: int, histories: Histories, expiry_ms: int) -> None:
        part, part_slot = self._at(slot)
        part.write(part_slot, histories, expiry_ms)

    def remove(self, slot: int) -> None:
        part, part_slot = self._at(slot)
        part.remove(part_slot)

    def _at(self, slot: int) -> tuple[ShareHistories, int]:
        number = bisect_right(self._firsts, slot) - 1
        return self._parts[number], slot - self._firsts[number]
