"""Events of a share that the watermark has not passed yet: in memory by key domain, in the store in two forms.

    | key group | "" | "waiting" | domain |                 →  encode_batch(…)          as of the last `save_whole`
    | FFFF | "" | "added-waiting" | domain | commit, share  →  due i64, encode_batch(…) what each commit since has added

A commit adds the new events, and the time before which all events have been released: its cost does not follow the
waiting ones. In memory they are in blocks in order of time, and the first events of each block become due. Neighbouring
blocks of similar size are merged, up to a limit.
Tested by: tests/runners/embedded/test_stored_parts.py, tests/runners/embedded/test_engine.py
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cep.base.limits import TIME_MS_MIN
from cep.base.schema import Schema
from cep.columnar.batch import EventBatch, concat_batches, conformed, decode_batch, encode_batch
from cep.columnar.decode import key_groups, split_by_group
from cep.runners.handover.group_entries import WAITING
from cep.state.store import STORE_GROUP, KeyedStore, WriteBatch, prefix_range, split_key, store_key
from cep.step.level import split_due

ADDED_WAITING = b"added-waiting"
_BLOCK_EVENTS_MAX = 1 << 16  # merging this many takes some milliseconds, not a second
_DUE = struct.Struct("<q")
COMMIT_BYTES = 8  # of an item: the number of the commit, before the number of the share


@dataclass(slots=True)
class _SortedEvents:
    """Waiting events in order of time, then of arrival. The first `released` of them do not wait any more."""

    events: EventBatch
    released: int = 0

    def __len__(self) -> int:
        return len(self.events) - self.released

    def rest(self) -> EventBatch:
        return self.events.take(np.arange(self.released, len(self.events))) if self.released else self.events

    def due(self, due_ms: int) -> EventBatch | None:
        """Release and return the events before this time; None without such events. Cost: O(released events)."""
        end = int(np.searchsorted(self.events.time_ms, due_ms))
        if end <= self.released:
            return None
        due_events = self.events.take(np.arange(self.released, end))
        self.released = end
        if 2 * self.released > len(self.events):  # free their memory, though a few events may wait for long
            self.events, self.released = self.rest(), 0
        return due_events


class WaitingOfShare:
    """The waiting events of a share (some key groups). `names` are the names of the key domains in store keys."""

    def __init__(self, names: Sequence[bytes], groups: range, groups_count: int, schema: Schema) -> None:
        self._domain_names = names
        self._groups = groups
        self._groups_count = groups_count
        self._schema = schema
        self._waiting: dict[int, list[_SortedEvents]] = {}
        self._unsaved: dict[int, list[EventBatch]] = {}  # events since the last commit that still wait
        self._unsaved_due_ms: dict[int, int] = {}  # the latest that was asked for since then
        self._stored_groups: dict[int, set[int]] = {}  # which have waiting events in the store

    @property
    def is_empty(self) -> bool:
        """True if no event waits."""
        return not any(self._waiting.values())

    def release(self, domain_number: int, fresh: EventBatch | None, due_ms: int) -> EventBatch | None:
        """Add new events of a key domain to the waiting ones. Remove and return all before the watermark `due_ms`."""
        blocks, unsaved = self._waiting.get(domain_number, []), self._unsaved.get(domain_number, [])
        if not blocks and (fresh is None or not np.count_nonzero(fresh.time_ms >= due_ms)):
            return fresh  # no event waits, so nothing is stored
        new_batches = [] if fresh is None else [fresh]
        fresh_due, rest = split_due(new_batches, due_ms)  # before `due_ms`, and after
        due_parts = [part for part in (*(block.due(due_ms) for block in blocks), fresh_due) if part is not None]
        self._waiting[domain_number] = _merge_similar([*(block for block in blocks if len(block)), *map(_sorted, rest)])
        _, self._unsaved[domain_number] = split_due([*unsaved, *new_batches], due_ms)  # stored by the next commit
        self._unsaved_due_ms[domain_number] = max(due_ms, self._unsaved_due_ms.get(domain_number, TIME_MS_MIN))
        return concat_batches(due_parts) if due_parts else None

    def save_changes(self, batch: WriteBatch, suffix: bytes) -> int:
        """Add the changes since the last commit. `suffix` (commit, share) ends their keys. Return their bytes."""
        bytes_count = 0
        for domain_number, due_ms in sorted(self._unsaved_due_ms.items()):
            added = self._unsaved.get(domain_number)
            value = _DUE.pack(due_ms) + (encode_batch(concat_batches(added)) if added else b"")
            batch.put(store_key(STORE_GROUP, b"", ADDED_WAITING, self._domain_names[domain_number], suffix), value)
            bytes_count += len(value)
        self.forget_changes()
        return bytes_count

    def save_whole(self, batch: WriteBatch) -> None:
        """Add all events that wait for the watermark, by key group. Changes of earlier commits are then unnecessary."""
        for domain_number, name in enumerate(self._domain_names):
            stored_before, stored_now = self._stored_groups.get(domain_number, set()), set()
            for group, events in self.by_group(domain_number):
                batch.put(store_key(group, b"", WAITING, name), encode_batch(events))
                stored_now.add(group)
            for group in sorted(stored_before - stored_now):  # its events do not wait any more
                batch.delete(store_key(group, b"", WAITING, name))
            self._stored_groups[domain_number] = stored_now
        self.forget_changes()

    def forget_changes(self) -> None:
        """Forget the changes since the last commit: they are stored, or the job makes no commits."""
        self._unsaved.clear()
        self._unsaved_due_ms.clear()

    def by_group(self, domain_number: int) -> list[tuple[int, EventBatch]]:
        """Return the waiting events of a domain by key group."""
        rests = [block.rest() for block in self._waiting.get(domain_number, ())]
        return list(split_by_group(concat_batches(rests), self._groups_count)) if rests else []

    def add_saved(self, domain_number: int, events: EventBatch) -> None:
        """Add events that waited in another runner."""
        if len(events):
            added = _sorted(conformed(events, self._schema))
            self._waiting[domain_number] = _merge_similar([*self._waiting.get(domain_number, []), added])

    def restore(self, store: KeyedStore) -> None:
        """Restore the events that wait for the watermark: as of the last `save_whole`, with later commits' changes."""
        for domain_number, name in enumerate(self._domain_names):
            parts: list[EventBatch] = []
            for group in self._groups:
                data = store.get(store_key(group, b"", WAITING, name))
                if data is not None:
                    parts.append(decode_batch(data))
                    self._stored_groups.setdefault(domain_number, set()).add(group)
            # Each thread wrote the changes of its key groups. These groups may have been divided in another way then.
            commits: dict[bytes, list[bytes]] = {}  # number of a commit → the changes of each thread
            for key, value in store.scan(prefix_range(STORE_GROUP, b"", ADDED_WAITING, name)):
                commits.setdefault(split_key(key).item[:COMMIT_BYTES], []).append(value)
            for part in _still_waiting(parts, [commits[commit] for commit in sorted(commits)]):
                groups = key_groups(part.key, self._groups_count)
                is_ours = (groups >= self._groups.start) & (groups < self._groups.stop)
                if is_ours.any():
                    self.add_saved(domain_number, part if is_ours.all() else part.take(np.flatnonzero(is_ours)))


def _sorted(events: EventBatch) -> _SortedEvents:
    is_in_order = (events.time_ms[1:] >= events.time_ms[:-1]).all()
    return _SortedEvents(events if is_in_order else events.take(np.argsort(events.time_ms, kind="stable")))


def _merge_similar(blocks: Sequence[_SortedEvents]) -> list[_SortedEvents]:
    """Join neighbours until each block has less than half of the one before, or is too large to be joined with it."""
    joined: list[_SortedEvents] = []
    for block in blocks:
        joined.append(block)
        while len(joined) > 1 and len(joined[-2]) <= 2 * len(joined[-1]) <= 2 * (_BLOCK_EVENTS_MAX - len(joined[-2])):
            later, earlier = joined.pop(), joined.pop()
            joined.append(_sorted(concat_batches([earlier.rest(), later.rest()])))
    return joined


def _still_waiting(parts: Sequence[EventBatch], commits: Sequence[Sequence[bytes]]) -> Iterator[EventBatch]:
    """Yield the events that still wait: the events that no later commit has released."""
    dues = [max(_DUE.unpack_from(value)[0] for value in values) for values in commits]
    added = [[decode_batch(value[_DUE.size :]) for value in values if len(value) > _DUE.size] for values in commits]
    for number, batches in enumerate([parts, *added]):
        due_ms = max(dues[number:], default=TIME_MS_MIN)
        for part in batches:
            is_waiting = part.time_ms >= due_ms
            if is_waiting.any():
                yield part if is_waiting.all() else part.take(is_waiting)
