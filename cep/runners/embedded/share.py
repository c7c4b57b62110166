"""One worker's key groups: the events that reach them → alerts, with their keyed state in pages.

    events of a micro-batch ─▶ on time? ─▶ seen before? ─▶ due? ─▶ advance ─▶ alerts
                                 late       duplicates     wait     pages touched or due, all key groups together

What is stored beside pages, by key group: events that wait, ids that were seen, and the earliest time at which a run of
a page is over.
Tested by: tests/runners/embedded/test_engine.py
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import EventBatch, concat_batches, conformed, empty_batch
from cep.columnar.codec import decode_batch, encode_batch
from cep.columnar.route import KeyDomain, key_groups, key_hashes, split_by_group
from cep.engine.keyed_state import KeyedState, concat_states, fit
from cep.engine.partition import partition_keys
from cep.nfa.program import Program
from cep.runners import duplicates
from cep.runners.embedded.pages import Pages, Place, domain_name
from cep.runners.job import ARRIVAL, Job, StepOutput, match_step, page_deadline_ms
from cep.runners.letters import first_seen, on_time
from cep.state.keys import prefix_range, split_key, store_key
from cep.state.pages import StoredPage, encode_page
from cep.state.store import KeyedStore, WriteBatch

WAITING, SEEN, DEADLINES = b"waiting", b"seen", b"deadlines"
_BUCKET = struct.Struct(">q")
_PARTS_MAX = 64  # waiting batches of a domain before they are joined
_NEVER = TIME_MS_MAX


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
    """The key groups first <= g < end. One thread uses it at a time."""

    def __init__(self, job: Job, groups: range, pages: Pages, level: int = 0) -> None:
        self._job = job
        self._names = [domain_name(domain, level) for domain in job.domains]
        self._deadlines_name = b"" if level == 0 else b"@%d" % level
        self.groups = groups
        self.pages = pages
        shape = (len(job.domains), len(groups), job.pages_count)
        self._deadlines = np.full(shape, _NEVER, np.int64)  # the earliest end of a run; _NEVER: no page
        self._earliest_ms = _NEVER
        self._waiting: dict[int, list[EventBatch]] = {}
        self._waiting_groups: dict[int, set[int]] = {}  # for which the store has waiting events
        self._waiting_changed: set[int] = set()
        self._seen: dict[tuple[int, int], tuple[NDArray[np.uint64], NDArray[np.int32]]] = {}
        self._seen_changed: set[tuple[int, int]] = set()
        self._gone: list[bytes] = []

    def step(self, work: Work) -> Done:
        """Match what is due. Raises: StateError, StoreError."""
        job, output = self._job, StepOutput()
        fresh, late = on_time(job, self._without_duplicates(work, output), work.before_ms, output)
        released = fresh if job.order == ARRIVAL else self._reorder(fresh, work.due_ms)
        is_due = self._earliest_ms <= work.watermark_ms
        for number, domain in enumerate(job.domains):
            batch = released.get(number)
            if domain not in work.programs:
                output.counters["events_without_rule"] += 0 if batch is None or domain in work.known else len(batch)
                self._drop_pages(number, output)
            elif batch is not None or is_due:
                self._match(number, work.programs[domain], batch, work.watermark_ms, output)
        if is_due:
            self._earliest_ms = int(self._deadlines.min(initial=_NEVER))
        return Done(output, late)

    # -------------------------------------------------------------------------------------------------- matching

    def _match(
        self, number: int, program: Program, batch: EventBatch | None, watermark_ms: int, output: StepOutput
    ) -> None:
        """Read the touched and the due pages of a domain, advance them together, put them back."""
        deadlines = self._deadlines[number].reshape(-1)
        touched = deadlines <= watermark_ms
        if batch is not None:
            touched[self._slots(batch.key)] = True
        slots = np.flatnonzero(touched)
        if not len(slots):
            return
        states: list[KeyedState] = []
        for slot in slots[deadlines[slots] != _NEVER].tolist():
            fitted, orphans = fit(self.pages.read(self._place(number, slot)), program)
            output.counters["runs_orphaned"] += orphans
            states.append(fitted)
        before = concat_states(states, program.row_registers) if states else None
        events = empty_batch(self._job.schema) if batch is None else batch
        after = match_step(program, before, events, watermark_ms, output)
        self._put_back(number, slots, after, program)

    def _put_back(self, number: int, slots: NDArray[np.int64], after: KeyedState, program: Program) -> None:
        deadlines = self._deadlines[number].reshape(-1)
        part = np.searchsorted(slots, self._slots(after.keys))
        shares = partition_keys(after, part, len(slots), program.row_registers) if len(slots) > 1 else [after]
        for slot, share in zip(slots.tolist(), shares, strict=True):
            deadline_ms = page_deadline_ms(program, share)
            if deadline_ms is not None:
                self.pages.write(self._place(number, slot), share)
                deadlines[slot] = min(deadline_ms, _NEVER - 1)
                self._earliest_ms = min(self._earliest_ms, deadline_ms)
            elif deadlines[slot] != _NEVER:
                self.pages.remove(self._place(number, slot))
                deadlines[slot] = _NEVER

    def _drop_pages(self, number: int, output: StepOutput) -> None:
        """Nothing is matched by this key any more: its runs belong to no rule."""
        deadlines = self._deadlines[number].reshape(-1)
        for slot in np.flatnonzero(deadlines != _NEVER).tolist():
            place = self._place(number, slot)
            output.counters["runs_orphaned"] += len(self.pages.read(place))
            self.pages.remove(place)
            deadlines[slot] = _NEVER

    def stored(self, group: int, page: int) -> Iterator[StoredPage]:
        """A page of a key group, of every key domain that has it, as it would be stored."""
        slot = (group - self.groups.start) * self._job.pages_count + page
        for number, domain in enumerate(self._job.domains):
            if self._deadlines[number].reshape(-1)[slot] != _NEVER:
                yield StoredPage(group, domain, encode_page(self.pages.read(Place(number, group, page))))

    def _slots(self, key: Any) -> NDArray[np.int64]:
        """The place of each key's page in a domain's deadlines: int64[N]."""
        hashes = key_hashes(key)
        groups, pages = np.uint64(self._job.groups_count), np.uint64(self._job.pages_count)
        group = (hashes % groups).astype(np.int64) - self.groups.start
        return group * self._job.pages_count + ((hashes // groups) % pages).astype(np.int64)

    def _place(self, number: int, slot: int) -> Place:
        group, page = divmod(slot, self._job.pages_count)
        return Place(number, self.groups.start + group, page)

    # --------------------------------------------------------------------------------------------------- waiting

    def _reorder(self, fresh: Mapping[int, EventBatch], due_ms: int) -> dict[int, EventBatch]:
        """Hold back what is not due; bring out what is."""
        released: dict[int, EventBatch] = {}
        for number in range(len(self._job.domains)):
            held = self._waiting.get(number, [])
            if number in fresh:
                held = [*held, fresh[number]]
            out: list[EventBatch] = []
            rest: list[EventBatch] = []
            for batch in held:
                ready = batch.time_ms < due_ms
                if ready.any():
                    out.append(batch.take(ready))
                    batch = batch.take(~ready)  # noqa: PLW2901 what is left of it
                if len(batch):
                    rest.append(batch)
            if number in fresh or out:
                self._waiting[number] = [concat_batches(rest)] if len(rest) > _PARTS_MAX else rest
                self._waiting_changed.add(number)
            if out:
                released[number] = concat_batches(out)
        return released

    # ------------------------------------------------------------------------------------------------ duplicates

    def _without_duplicates(self, work: Work, output: StepOutput) -> dict[int, list[EventBatch]]:
        """The events whose ids have not been seen, if the job looks for duplicates; old ids are forgotten."""
        window_ms = self._job.dedup_ms
        if window_ms == 0:
            return {number: [batch] for number, batch in work.batches.items()}
        oldest = duplicates.oldest_bucket(work.before_ms, window_ms)
        fresh: dict[int, list[EventBatch]] = {}
        for number, batch in work.batches.items():
            hashes = duplicates.event_hashes(batch)
            groups = key_groups(batch.key, self._job.groups_count)
            is_new = duplicates.first_of_each(hashes)
            buckets = batch.time_ms // duplicates.bucket_width(window_ms)
            for bucket in np.unique(buckets[buckets >= oldest]).tolist():
                here = buckets == bucket
                kept, kept_groups = self._seen.get((number, bucket), (np.empty(0, np.uint64), np.empty(0, np.int32)))
                is_new[here] &= ~duplicates.are_known(hashes[here], kept)
                added = here & is_new
                if added.any():
                    joined = np.concatenate([kept, hashes[added]])
                    order = np.argsort(joined)
                    joined_groups = np.concatenate([kept_groups, groups[added]])[order]
                    self._seen[number, bucket] = (joined[order], joined_groups)
                    self._seen_changed.add((number, bucket))
            if not is_new.all():
                output.counters["duplicates"] += first_seen(self._job, number, batch.take(~is_new))
                batch = batch.take(is_new)  # noqa: PLW2901 what is left of it
            fresh[number] = [batch]
        for number, bucket in [at for at in self._seen if at[1] < oldest]:
            _, groups = self._seen.pop((number, bucket))
            self._gone += [self._seen_key(group, number, bucket) for group in np.unique(groups).tolist()]
            self._seen_changed.discard((number, bucket))
        return fresh

    def _seen_key(self, group: int, number: int, bucket: int) -> bytes:
        return store_key(group, b"", SEEN, self._names[number], _BUCKET.pack(bucket))

    # --------------------------------------------------------------------------------------------- save, restore

    def save(self, batch: WriteBatch) -> int:
        """Add all that has changed since the last time; returns how many pages that were."""
        pages_count = self.pages.save(batch)
        for at, group in enumerate(self.groups):
            batch.put(
                store_key(group, b"", DEADLINES, self._deadlines_name),
                self._deadlines[:, at, :].astype("<i8").tobytes(),
            )
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
        for number, bucket in sorted(self._seen_changed):
            hashes, groups = self._seen[number, bucket]
            for group in np.unique(groups).tolist():
                batch.put(self._seen_key(group, number, bucket), duplicates.to_bytes(hashes[groups == group]))
        self._seen_changed.clear()
        for key in self._gone:
            batch.delete(key)
        self._gone.clear()
        return pages_count

    def restore(self, store: KeyedStore) -> None:
        """Take over what the store has of these key groups; pages stay where they are until they are asked for."""
        numbers = {name: number for number, name in enumerate(self._names)}
        shape = (len(self._job.domains), self._job.pages_count)
        for at, group in enumerate(self.groups):
            data = store.get(store_key(group, b"", DEADLINES, self._deadlines_name))
            if data is not None:
                self._deadlines[:, at, :] = np.frombuffer(data, "<i8").reshape(shape)
            for raw, data in store.scan(prefix_range(group, b"", WAITING)):
                number = numbers.get(split_key(raw).name)
                if number is None:  # of another level
                    continue
                self._waiting.setdefault(number, []).append(conformed(decode_batch(data), self._job.schema))
                self._waiting_groups.setdefault(number, set()).add(group)
            for raw, data in store.scan(prefix_range(group, b"", SEEN)):
                found = split_key(raw)
                if found.name in numbers:
                    self._restore_seen(numbers[found.name], _BUCKET.unpack(found.item)[0], group, data)
        self._earliest_ms = int(self._deadlines.min(initial=_NEVER))

    def _restore_seen(self, number: int, bucket: int, group: int, data: bytes) -> None:
        hashes = duplicates.from_bytes(data)
        kept, groups = self._seen.get((number, bucket), (np.empty(0, np.uint64), np.empty(0, np.int32)))
        joined = np.concatenate([kept, hashes])
        order = np.argsort(joined)
        self._seen[number, bucket] = (
            joined[order],
            np.concatenate([groups, np.full(len(hashes), group, np.int32)])[order],
        )
