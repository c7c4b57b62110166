"""Pages of histories: the heads that are in use, and the segments that were used last, are in memory.

Changes are kept until `save` adds them to a write batch: the new segments and the head. Between two commits the store
does not change. group_entries.py has a drawing of the entries.
Tested by: tests/runners/embedded/test_engine.py
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cep.base.errors import StateCorruptError
from cep.columnar.route import KeyDomain
from cep.histories.rows import Block
from cep.histories.store import Histories, StoredSegment
from cep.runners.handover.group_entries import PAGE, PAST, SEGMENT, SEGMENTS, domain_name
from cep.state.keys import prefix_range, split_key, store_key
from cep.state.past import (
    SegmentCache,
    StoredPast,
    decode_head,
    decode_segment,
    digests_of,
    encode_head,
    store_segments,
)
from cep.state.store import KeyedStore, WriteBatch


class Place(NamedTuple):
    """The place of a page: the number of its key domain, its key group, its number in the group."""

    domain: int
    key_group: int
    page: int


class Pasts:
    """The histories of some key groups. `bytes_max` bounds the kept bytes without the changes; None keeps everything.

    `names` are the names of the key domains in store keys. One thread uses it at a time. Several objects may share a
    store that takes several threads, as RocksDB does.
    """

    def __init__(self, store: KeyedStore, names: Sequence[bytes], bytes_max: int | None) -> None:
        """Create caches of at most `bytes_max` bytes: half for heads, half for segments."""
        self._store = store
        self._names = names
        self._bytes_max = None if bytes_max is None else bytes_max // 2
        self._cached: OrderedDict[Place, Histories] = OrderedDict()
        self._changed: set[Place] = set()
        self._removed: set[Place] = set()
        self._bytes = 0
        self._there: dict[Place, dict[int, str]] = {}  # the segments that the store has: number → digest
        self._blocks = SegmentCache(self._bytes_max)
        self.loads = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the heads and segments in memory; of segments alone if all are kept."""
        return self._bytes + self._blocks.nbytes

    def read(self, place: Place) -> Histories:
        """Read a page that exists. Raises: StateError for invalid bytes."""
        cached = self._cached.get(place)
        if cached is not None:
            self._cached.move_to_end(place)
            return cached
        self.loads += 1
        histories = self._fetch(place)
        self._hold(place, histories)
        return histories

    def write(self, place: Place, page: Histories) -> None:
        """Put a page in the place of the one before."""
        self._let_go(place)
        self._changed.add(place)
        self._removed.discard(place)
        self._hold(place, page)

    def remove(self, place: Place) -> None:
        """Forget a page."""
        self._let_go(place)
        self._changed.discard(place)
        self._removed.add(place)

    def save(self, batch: WriteBatch) -> None:
        """Add every page that has changed since the last time."""
        for place in sorted(self._changed):
            written = self._put(place, self._cached[place], batch)
            self._let_go(place)
            self._changed.discard(place)
            self._hold(place, written)
        for place in sorted(self._removed):
            self._delete(place, batch)
        self._removed.clear()

    def _hold(self, place: Place, page: Histories) -> None:
        self._cached[place] = page
        if self._bytes_max is None:
            return
        self._bytes += self._size(page)
        for oldest in list(self._cached)[:-1] if self._bytes > self._bytes_max else ():
            if oldest not in self._changed:
                self._let_go(oldest)
                if self._bytes <= self._bytes_max:
                    break

    def _let_go(self, place: Place) -> None:
        removed = self._cached.pop(place, None)
        if removed is not None and self._bytes_max is not None:
            self._bytes -= self._size(removed)

    def _key(self, kind: bytes, place: Place, item: bytes) -> bytes:
        return store_key(place.key_group, b"", kind, self._names[place.domain], item)

    def _get(self, key: bytes) -> bytes:
        data = self._store.get(key)
        if data is None:
            raise StateCorruptError(f"the past has the page {key!r}, which the store lacks; restore a checkpoint")
        return data

    def _fetch(self, place: Place) -> Histories:
        histories = decode_head(self._get(self._key(PAST, place, PAGE.pack(place.page))), self._loader(place))
        self._there[place] = digests_of(histories)
        return histories

    def _put(self, place: Place, page: Histories, batch: WriteBatch) -> Histories:
        def put(number: int, data: bytes) -> None:
            batch.put(self._segment(place, number), data)

        now = store_segments(page, put, self._loader(place), self._blocks)
        there = digests_of(now)
        self._forget(place, {n: d for n, d in self._there.get(place, {}).items() if d != there.get(n)}, there, batch)
        self._there[place] = there
        batch.put(self._key(PAST, place, PAGE.pack(place.page)), encode_head(now))
        return now

    def _delete(self, place: Place, batch: WriteBatch) -> None:
        head = self._key(PAST, place, PAGE.pack(place.page))
        if place not in self._there and self._store.get(head) is not None:
            self._fetch(place)
        self._forget(place, self._there.pop(place, {}), {}, batch)
        batch.delete(head)

    def _forget(self, place: Place, gone: Mapping[int, str], there: Mapping[int, str], batch: WriteBatch) -> None:
        """Let go of segments; a number that another one has by now has been written over."""
        for number, digest in sorted(gone.items()):
            self._blocks.drop(digest)
            if number not in there:
                batch.delete(self._segment(place, number))

    def _size(self, page: Histories) -> int:
        return int(page.keys.nbytes) + page.pinned.nbytes + sum(256 + segment.nbytes for segment in page.segments)

    def _segment(self, place: Place, number: int) -> bytes:
        return self._key(SEGMENTS, place, SEGMENT.pack(place.page, number))

    def _loader(self, place: Place) -> Callable[[StoredSegment], Block]:
        return lambda stored: self._block(place, stored)

    def _block(self, place: Place, stored: StoredSegment) -> Block:
        block = self._blocks.get(stored.digest)
        if block is None:
            self.loads += 1
            block = decode_segment(self._get(self._segment(place, stored.number)))
            self._blocks.put(stored.digest, block)
        return block


def pasts_of_group(
    store: KeyedStore, key_group: int, domains: tuple[KeyDomain, ...], levels_count: int, *, whole: bool
) -> Iterator[StoredPast]:
    """Read the pages of histories of a key group at all levels, if wanted with their segments."""
    domain_of = {domain_name(domain, level): domain for level in range(levels_count) for domain in domains}
    segments: dict[tuple[bytes, int], dict[int, bytes]] = {}
    for raw, data in store.scan(prefix_range(key_group, b"", SEGMENTS)) if whole else ():
        at = split_key(raw)
        page, number = SEGMENT.unpack(at.item)
        segments.setdefault((at.name, page), {})[number] = data
    for raw, data in store.scan(prefix_range(key_group, b"", PAST)):
        at = split_key(raw)
        if at.name in domain_of:
            (page,) = PAGE.unpack(at.item)
            yield StoredPast(key_group, domain_of[at.name], data, segments.get((at.name, page), {}))
