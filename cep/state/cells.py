"""Cells: bytes under (key group, key, namespace, item) of one declared state, with the time of their last touch.

    plain      store key (key group, key, namespace, name, item)                value  stamp i64 | bytes
    by time    store key (key group, 00 "time", name, bucket, key | namespace | item)    big-endian

A cell is expired when its stamp is `duration_ms` or more ago. By time, a cell lies in the bucket of its stamp, so that
everything of an age is one range of each key group: buckets in which nothing can be alive are deleted as ranges,
without being read, and the store drops them when it compacts. A read looks into each bucket that may hold something
alive, the newest first; stamps never go back, so the first hit is the last write.
Tested by: tests/state/test_cells.py, tests/state/test_handles.py
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from cep.base.limits import TIME_MS_MIN
from cep.state.descriptors import Descriptor, Ttl, TtlTime
from cep.state.keys import KeyRange, prefix_range, store_key
from cep.state.registry import Known, remember
from cep.state.store import KeyedStore, WriteBatch

_STAMP = struct.Struct(">q")
_BUCKET = struct.Struct(">Q")
_BUCKET_ZERO = 1 << 63  # so that buckets before 1970 sort below
BY_TIME = b"\x00time"  # no key of the engine begins with 00 t


class Place(NamedTuple):
    """Where a value belongs."""

    key_group: int
    key: bytes
    namespace: bytes = b""


class Clock:
    """The times that values age by. Neither goes back, whatever the machine's clock does."""

    def __init__(self, processing_ms: Callable[[], int]) -> None:
        self._read_ms = processing_ms
        self._processing_ms = TIME_MS_MIN
        self._event_ms = TIME_MS_MIN

    def advance(self, event_ms: int) -> None:
        """The job has come to this event time."""
        self._event_ms = max(self._event_ms, event_ms)

    def now_ms(self, time: TtlTime) -> int:
        if time is TtlTime.EVENT:
            return self._event_ms
        self._processing_ms = max(self._processing_ms, self._read_ms())
        return self._processing_ms


class Cells(Protocol):
    """Both layouts. A cell that is expired is not there, unless the state returns expired ones."""

    def get(self, place: Place, item: bytes = b"") -> bytes | None: ...
    def put(self, place: Place, data: bytes, item: bytes = b"") -> None: ...
    def remove(self, place: Place, item: bytes = b"") -> None: ...
    def items(self, place: Place) -> list[tuple[bytes, bytes]]: ...
    def clear(self, place: Place) -> None: ...


class PlainCells:
    """Cells by key. What is expired is found cell by cell (states.py)."""

    def __init__(self, store: KeyedStore, descriptor: Descriptor, clock: Clock) -> None:
        self._store = store
        self._name = descriptor.name.encode()
        self._ttl = descriptor.ttl
        self._clock = clock

    def get(self, place: Place, item: bytes = b"") -> bytes | None:
        key = store_key(*place, self._name, item)
        return self._seen(key, self._store.get(key))

    def put(self, place: Place, data: bytes, item: bytes = b"") -> None:
        self._store.put(store_key(*place, self._name, item), _stamped(self._now_ms(), data))

    def remove(self, place: Place, item: bytes = b"") -> None:
        self._store.delete(store_key(*place, self._name, item))

    def items(self, place: Place) -> list[tuple[bytes, bytes]]:
        within = self._range(place)
        found = [(key, self._seen(key, cell)) for key, cell in self._store.scan(within)]
        # Nothing of the range's begin is escaped away: what follows it is the item.
        return [(key[len(within.begin) :], data) for key, data in found if data is not None]

    def clear(self, place: Place) -> None:
        self._store.delete_range(self._range(place))

    def is_expired(self, cell: bytes) -> bool:
        return self._ttl is not None and _stamp(cell) <= self._now_ms() - self._ttl.duration_ms

    def _seen(self, key: bytes, cell: bytes | None) -> bytes | None:
        if cell is None:
            return None
        if self.is_expired(cell):
            assert self._ttl is not None
            return cell[_STAMP.size :] if self._ttl.return_expired else None
        if self._ttl is not None and self._ttl.refresh_on_read:
            self._store.put(key, _stamped(self._now_ms(), cell[_STAMP.size :]))
        return cell[_STAMP.size :]

    def _range(self, place: Place) -> KeyRange:
        return prefix_range(place.key_group, place.key, place.namespace, self._name)

    def _now_ms(self) -> int:
        return self._clock.now_ms(self._ttl.time if self._ttl is not None else TtlTime.PROCESSING)


class TimeCells:
    """Cells by the time of their last touch."""

    def __init__(self, store: KeyedStore, descriptor: Descriptor, clock: Clock, known: Known, groups: range) -> None:
        assert descriptor.ttl is not None
        self._store = store
        self._name = descriptor.name.encode()
        self._ttl: Ttl = descriptor.ttl
        self._clock = clock
        self._known = known
        self._groups = groups
        self.dropped_count = 0  # buckets

    def get(self, place: Place, item: bytes = b"") -> bytes | None:
        suffix = _suffix(place, item)
        keys = [self._key(place.key_group, bucket, suffix) for bucket in self._buckets()]
        cell = next((cell for cell in self._store.multi_get(keys) if cell is not None), None)
        return self._seen(place, item, cell)

    def put(self, place: Place, data: bytes, item: bytes = b"") -> None:
        now_ms = self._now_ms()
        bucket = now_ms // self._known.bucket_ms
        if self._known.newest is None or bucket > self._known.newest:
            self._open(bucket)
        self._store.put(self._key(place.key_group, bucket, _suffix(place, item)), _stamped(now_ms, data))

    def remove(self, place: Place, item: bytes = b"") -> None:
        batch = WriteBatch()
        for bucket in self._held():
            batch.delete(self._key(place.key_group, bucket, _suffix(place, item)))
        self._store.write(batch)

    def items(self, place: Place) -> list[tuple[bytes, bytes]]:
        newest: dict[bytes, bytes] = {}
        for bucket in self._buckets():
            within = self._range(place, bucket)
            for key, cell in self._store.scan(within):
                newest.setdefault(key[len(within.begin) :], cell)
        found = [(item, self._seen(place, item, cell)) for item, cell in sorted(newest.items())]
        return [(item, data) for item, data in found if data is not None]

    def clear(self, place: Place) -> None:
        batch = WriteBatch()
        for bucket in self._held():
            batch.delete_range(self._range(place, bucket))
        self._store.write(batch)

    def drop_expired(self) -> None:
        """Give up the buckets in which everything is expired."""
        if self._known.newest is None:
            return
        oldest = (self._now_ms() - self._ttl.duration_ms) // self._known.bucket_ms
        dropped = min(oldest, self._known.newest + 1)
        if dropped <= self._known.dropped:
            return
        for key_group in self._groups:
            begin = prefix_range(key_group, BY_TIME, self._name).begin
            end = prefix_range(key_group, BY_TIME, self._name, _bucket_name(dropped)).begin
            self._store.delete_range(KeyRange(begin, end))
        self.dropped_count += dropped - self._known.dropped
        self._known = replace(self._known, dropped=dropped)
        remember(self._store, self._known)

    def _open(self, bucket: int) -> None:
        """Written before the first cell of a bucket, so that a reopened store knows where to look."""
        dropped = bucket if self._known.newest is None else self._known.dropped
        self._known = replace(self._known, dropped=dropped, newest=bucket)
        remember(self._store, self._known)
        self.drop_expired()

    def _held(self) -> range:
        """All that may hold anything, newest first. What is removed goes from all: a longer TTL would bring it back."""
        newest = self._known.dropped - 1 if self._known.newest is None else self._known.newest
        return range(newest, self._known.dropped - 1, -1)

    def _buckets(self) -> range:
        """Those that may hold something to return, newest first."""
        held = self._held()
        if self._ttl.return_expired or not held:
            return held
        oldest = (self._now_ms() - self._ttl.duration_ms) // self._known.bucket_ms
        return range(held.start, max(oldest, self._known.dropped) - 1, -1)

    def _seen(self, place: Place, item: bytes, cell: bytes | None) -> bytes | None:
        if cell is None:
            return None
        if _stamp(cell) <= self._now_ms() - self._ttl.duration_ms:
            return cell[_STAMP.size :] if self._ttl.return_expired else None
        if self._ttl.refresh_on_read:
            self.put(place, cell[_STAMP.size :], item)
        return cell[_STAMP.size :]

    def _now_ms(self) -> int:
        """Not before the newest bucket: after a restart the machine's clock may be behind what is stored."""
        now_ms = self._clock.now_ms(self._ttl.time)
        return now_ms if self._known.newest is None else max(now_ms, self._known.newest * self._known.bucket_ms)

    def _key(self, key_group: int, bucket: int, suffix: bytes) -> bytes:
        return store_key(key_group, BY_TIME, self._name, _bucket_name(bucket), suffix)

    def _range(self, place: Place, bucket: int) -> KeyRange:
        prefix = self._key(place.key_group, bucket, _suffix(place, b""))
        return KeyRange(prefix, prefix[:-1] + b"\x02")  # the suffix ends with a part's end mark 00 01


def _suffix(place: Place, item: bytes) -> bytes:
    """Key and namespace in the way of store keys, without the key group."""
    return prefix_range(0, place.key, place.namespace).begin[2:] + item


def _bucket_name(bucket: int) -> bytes:
    return _BUCKET.pack(bucket + _BUCKET_ZERO)


def _stamped(stamp_ms: int, data: bytes) -> bytes:
    return _STAMP.pack(stamp_ms) + data


def _stamp(cell: bytes) -> int:
    return int(_STAMP.unpack_from(cell)[0])
