"""Pages of keyed state: held as objects while they are in use, as bytes in a KeyedStore when they are not.

A page that was changed is written when it is pushed out of memory, and at a checkpoint; of histories, the segments that
are not there yet and the head. So what the store holds between checkpoints is of no use by itself: after a crash the
runner begins with the store of its last checkpoint. The entries are drawn in group_entries.py.
Tested by: tests/runners/embedded/test_pages.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from cep.columnar.route import KeyDomain
from cep.engine.history_rows import Block
from cep.engine.history_state import Histories, Kept
from cep.engine.keyed_state import KeyedState
from cep.runners.group_entries import PAGE, PAGES, PAST, SEGMENT, SEGMENTS, domain_name
from cep.state.keys import prefix_range, split_key, store_key
from cep.state.pages import StoredPage, decode_page, encode_page
from cep.state.past import HeldBlocks, decode_head, decode_segment, digests_of, encode_head, stored
from cep.state.store import KeyedStore, WriteBatch

T = TypeVar("T")


class Place(NamedTuple):
    """Where a page belongs: the number of its key domain, its key group, its number in the group."""

    domain: int
    key_group: int
    page: int


class HeldPages(ABC, Generic[T]):
    """One kind of pages of some key groups. `bytes_max` bounds what is held in memory; None holds everything.

    One thread uses it at a time; the store may be shared if it takes several threads, which RocksDB does.
    """

    def __init__(
        self, store: KeyedStore, domains: tuple[KeyDomain, ...], bytes_max: int | None, level: int = 0
    ) -> None:
        self._store = store
        self._names = [domain_name(domain, level) for domain in domains]
        self._bytes_max = bytes_max
        self._held: OrderedDict[Place, T] = OrderedDict()
        self._changed: set[Place] = set()
        self._removed: set[Place] = set()
        self._bytes = 0
        self.loads = 0

    def read(self, place: Place) -> T:
        """A page that is known to be there. Raises: StateError for bytes that are no page."""
        held = self._held.get(place)
        if held is not None:
            self._held.move_to_end(place)
            return held
        self.loads += 1
        found = self._fetch(place)
        self._hold(place, found)
        return found

    def write(self, place: Place, page: T) -> None:
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

    def save(self, batch: WriteBatch) -> int:
        """Add every changed page to the write batch; returns how many there were."""
        for place in sorted(self._changed):
            held = self._held[place]
            written = self._put(place, held, batch)
            if self._bytes_max is not None:
                self._bytes += self._size(written) - self._size(held)
            self._held[place] = written
        for place in sorted(self._removed):
            self._delete(place, batch)
        count = len(self._changed)
        self._changed.clear()
        self._removed.clear()
        return count

    def _hold(self, place: Place, page: T) -> None:
        self._held[place] = page
        if self._bytes_max is None:
            return
        self._bytes += self._size(page)
        while self._bytes > self._bytes_max and len(self._held) > 1:
            oldest = next(iter(self._held))
            if oldest in self._changed:
                batch = WriteBatch()
                self._put(oldest, self._held[oldest], batch)
                self._store.write(batch)
                self._changed.discard(oldest)
            self._let_go(oldest)

    def _let_go(self, place: Place) -> None:
        held = self._held.pop(place, None)
        if held is not None and self._bytes_max is not None:
            self._bytes -= self._size(held)

    def _key(self, kind: bytes, place: Place, item: bytes) -> bytes:
        return store_key(place.key_group, b"", kind, self._names[place.domain], item)

    def _get(self, key: bytes) -> bytes:
        data = self._store.get(key)
        assert data is not None, f"{key!r} is known to be stored"
        return data

    @abstractmethod
    def _fetch(self, place: Place) -> T:
        """The page that the store has."""

    @abstractmethod
    def _put(self, place: Place, page: T, batch: WriteBatch) -> T:
        """Write the page; returns it as it is to be held now."""

    @abstractmethod
    def _delete(self, place: Place, batch: WriteBatch) -> None:
        """Remove what the store has of it."""

    @abstractmethod
    def _size(self, page: T) -> int:
        """About how much memory it takes."""


class Pages(HeldPages[KeyedState]):
    """Pages of runs."""

    def _fetch(self, place: Place) -> KeyedState:
        return decode_page(self._get(self._key(PAGES, place, PAGE.pack(place.page))))

    def _put(self, place: Place, page: KeyedState, batch: WriteBatch) -> KeyedState:
        batch.put(self._key(PAGES, place, PAGE.pack(place.page)), encode_page(page))
        return page

    def _delete(self, place: Place, batch: WriteBatch) -> None:
        batch.delete(self._key(PAGES, place, PAGE.pack(place.page)))

    def _size(self, page: KeyedState) -> int:
        return bytes_of(page)


class Pasts(HeldPages[Histories]):
    """Pages of histories: heads are held like pages of runs, and of the segments those that were used last."""

    def __init__(
        self, store: KeyedStore, domains: tuple[KeyDomain, ...], bytes_max: int | None, level: int = 0
    ) -> None:
        """Half of `bytes_max` is for heads, half for segments."""
        super().__init__(store, domains, None if bytes_max is None else bytes_max // 2, level)
        self._there: dict[Place, dict[int, str]] = {}  # the segments that the store has: number → digest
        self._blocks = HeldBlocks(self._bytes_max)

    def _fetch(self, place: Place) -> Histories:
        found = decode_head(self._get(self._key(PAST, place, PAGE.pack(place.page))), self._loader(place))
        self._there[place] = digests_of(found)
        return found

    def _put(self, place: Place, page: Histories, batch: WriteBatch) -> Histories:
        def put(number: int, data: bytes) -> None:
            batch.put(self._segment(place, number), data)

        now = stored(page, put, self._loader(place), self._blocks)
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

    def _loader(self, place: Place) -> Callable[[Kept], Block]:
        return lambda kept: self._block(place, kept)

    def _block(self, place: Place, kept: Kept) -> Block:
        found = self._blocks.get(kept.digest)
        if found is None:
            self.loads += 1
            found = decode_segment(self._get(self._segment(place, kept.number)))
            self._blocks.put(kept.digest, found)
        return found


def stored_pages(
    store: KeyedStore, key_group: int, domains: tuple[KeyDomain, ...]
) -> Iterator[tuple[Place, KeyedState]]:
    """Every page of runs of a key group that the store holds, of the domains that the job has."""
    numbers = {domain_name(domain): number for number, domain in enumerate(domains)}
    for raw, data in store.scan(prefix_range(key_group, b"", PAGES)):
        at = split_key(raw)
        if at.name in numbers:
            (page,) = PAGE.unpack(at.item)
            yield Place(numbers[at.name], key_group, page), decode_page(data)


def pages_of_group(store: KeyedStore, key_group: int, domains: tuple[KeyDomain, ...]) -> Iterator[StoredPage]:
    """The same pages as bytes, for those who look at stored state whatever keeps it."""
    known = {domain_name(domain): domain for domain in domains}
    for raw, data in store.scan(prefix_range(key_group, b"", PAGES)):
        name = split_key(raw).name
        if name in known:
            yield StoredPage(key_group, known[name], data)


def bytes_of(keyed_state: KeyedState) -> int:
    """About how much memory a page of runs takes."""
    events = keyed_state.events
    texts = keyed_state.keys.nbytes + events.event_id.nbytes + sum(c.nbytes for c in events.columns.values())
    numbers = keyed_state.runs.nbytes + keyed_state.nodes.nbytes + 16 * len(keyed_state.runs) + 20 * len(events)
    return int(texts + numbers)
