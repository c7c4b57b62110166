"""Events of a share that the watermark has not passed yet: in memory by key domain, in the store in two forms.

    | key group | "" | "waiting" | domain |                 →  encode_batch(…)          as of the last `save_whole`
    | FFFF | "" | "added-waiting" | domain | commit, share  →  due i64, encode_batch(…) what each commit since has added

A commit adds the new events, and the time before which all events have been released: its cost does not follow the
waiting ones. In memory they are in runs in order of time, and the first events of each run become due. Neighbouring
runs of similar size are merged, up to a limit.
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
_RUN_EVENTS_MAX = 1 << 16  # merging this many takes some milliseconds, not a second
_DUE = struct.Struct("<q")
COMMIT_BYTES = 8  # of an item: the number of the commit, before the number of the share


@dataclass(slots=True)
class _Run:
    """Waiting events in order of time, then of arrival. Released events are removed from the front."""

    events: EventBatch
    gone: int = 0

    def __len__(self) -> int:
        return len(self.events) - self.gone

    def rest(self) -> EventBatch:
        return self.events.take(np.arange(self.gone, len(self.events))) if self.gone else self.events

    def due(self, due_ms: int) -> EventBatch | None:
        """Release the events before that time; None without such events. Cost: twice their number."""
        end = int(np.searchsorted(self.events.time_ms, due_ms))
        if end <= self.gone:
            return None
        due_events = self.events.take(np.arange(self.gone, end))
        self.gone = end
        if 2 * self.gone > len(self.events):  # a few events that wait long must not keep the memory of all
            self.events, self.gone = self.rest(), 0
        return due_events


class WaitingOfShare:
    """`names` are the names of the key domains in store keys; `groups` the share's key groups."""

    def __init__(self, names: Sequence[bytes], groups: range, groups_count: int, schema: Schema) -> None:
        self._names = names
        self._groups = groups
        self._groups_count = groups_count
        self._schema = schema
        self._ordered: dict[int, list[_Run]] = {}
        self._added: dict[int, list[EventBatch]] = {}  # the events since the last commit
        self._due_ms: dict[int, int] = {}  # the latest that was asked for since then
        self._stored_groups: dict[int, set[int]] = {}  # which have waiting events in the store

    @property
    def is_empty(self) -> bool:
        """True if no event waits."""
        return not any(self._ordered.values())

    def release(self, number: int, fresh: EventBatch | None, due_ms: int) -> EventBatch | None:
        """See WaitingEvents.release."""
        runs, added = self._ordered.get(number, []), self._added.get(number, [])
        if not runs and (fresh is None or not np.count_nonzero(fresh.time_ms >= due_ms)):
            return fresh  # no event waits, so nothing is stored
        new = [] if fresh is None else [fresh]
        fresh_due, rest = split_due(new, due_ms)
        parts = [part for part in (*(run.due(due_ms) for run in runs), fresh_due) if part is not None]
        self._ordered[number] = _joined([*(run for run in runs if len(run)), *map(_run, rest)])
        _, self._added[number] = split_due([*added, *new], due_ms)
        self._due_ms[number] = max(due_ms, self._due_ms.get(number, TIME_MS_MIN))
        return concat_batches(parts) if parts else None

    def save_changes(self, batch: WriteBatch, item: bytes) -> int:
        """Add the changes since the last commit. Return their bytes."""
        bytes_count = 0
        for number, due_ms in sorted(self._due_ms.items()):
            added = self._added.get(number)
            value = _DUE.pack(due_ms) + (encode_batch(concat_batches(added)) if added else b"")
            batch.put(store_key(STORE_GROUP, b"", ADDED_WAITING, self._names[number], item), value)
            bytes_count += len(value)
        self._added.clear()
        self._due_ms.clear()
        return bytes_count

    def save_whole(self, batch: WriteBatch) -> None:
        """Add all waiting events by key group to a write batch. The entries of earlier commits become unnecessary."""
        for number, name in enumerate(self._names):
            before, now = self._stored_groups.get(number, set()), set()
            for group, events in self.by_group(number):
                batch.put(store_key(group, b"", WAITING, name), encode_batch(events))
                now.add(group)
            for group in sorted(before - now):
                batch.delete(store_key(group, b"", WAITING, name))
            self._stored_groups[number] = now
        self._added.clear()
        self._due_ms.clear()

    def by_group(self, number: int) -> list[tuple[int, EventBatch]]:
        """Return the waiting events of a domain by key group."""
        runs = self._ordered.get(number)
        return list(split_by_group(concat_batches([run.rest() for run in runs]), self._groups_count)) if runs else []

    def hold(self, number: int, events: EventBatch) -> None:
        """Add events that waited in another runner."""
        if len(events):
            self._ordered[number] = _joined([*self._ordered.get(number, []), _run(conformed(events, self._schema))])

    def restore(self, store: KeyedStore) -> None:
        """Restore the entries of the store."""
        for number, name in enumerate(self._names):
            parts: list[EventBatch] = []
            for group in self._groups:
                data = store.get(store_key(group, b"", WAITING, name))
                if data is not None:
                    parts.append(decode_batch(data))
                    self._stored_groups.setdefault(number, set()).add(group)
            # Several shares may have written a commit, and may have had other key groups than these.
            commits: dict[bytes, list[bytes]] = {}
            for key, value in store.scan(prefix_range(STORE_GROUP, b"", ADDED_WAITING, name)):
                commits.setdefault(split_key(key).item[:COMMIT_BYTES], []).append(value)
            for part in _still_waiting(parts, [commits[commit] for commit in sorted(commits)]):
                groups = key_groups(part.key, self._groups_count)
                of_share = (groups >= self._groups.start) & (groups < self._groups.stop)
                if of_share.any():
                    self.hold(number, part if of_share.all() else part.take(np.flatnonzero(of_share)))


def _run(events: EventBatch) -> _Run:
    is_in_order = (events.time_ms[1:] >= events.time_ms[:-1]).all()
    return _Run(events if is_in_order else events.take(np.argsort(events.time_ms, kind="stable")))


def _joined(runs: Sequence[_Run]) -> list[_Run]:
    """Join neighbours until each run has less than half of the one before, or is too large to be joined with it."""
    joined: list[_Run] = []
    for run in runs:
        joined.append(run)
        while len(joined) > 1 and len(joined[-2]) <= 2 * len(joined[-1]) <= 2 * (_RUN_EVENTS_MAX - len(joined[-2])):
            later, earlier = joined.pop(), joined.pop()
            joined.append(_run(concat_batches([earlier.rest(), later.rest()])))
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
