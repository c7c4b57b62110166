"""Pages of keyed state: held as KeyedState while they are in use, as bytes in a KeyedStore when they are not.

A page that was changed is written when it is pushed out of memory, and at a checkpoint. So what the store holds between
checkpoints is of no use by itself: after a crash the runner begins with the store of its last checkpoint.
Tested by: tests/runners/embedded/test_pages.py
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from cep.columnar.route import KeyDomain
from cep.engine.keyed_state import KeyedState
from cep.runners.group_entries import PAGE, PAGES, domain_name
from cep.state.keys import prefix_range, split_key, store_key
from cep.state.pages import StoredPage, decode_page, encode_page
from cep.state.store import KeyedStore, WriteBatch


class Place(NamedTuple):
    """Where a page belongs: the number of its key domain, its key group, its number in the group."""

    domain: int
    key_group: int
    page: int


class Pages:
    """The pages of some key groups. `bytes_max` bounds what is held in memory; None holds everything.

    One thread uses it at a time; the store may be shared if it takes several threads, which RocksDB does.
    """

    def __init__(
        self, store: KeyedStore, domains: tuple[KeyDomain, ...], bytes_max: int | None, level: int = 0
    ) -> None:
        self._store = store
        self._names = [domain_name(domain, level) for domain in domains]
        self._bytes_max = bytes_max
        self._held: OrderedDict[Place, KeyedState] = OrderedDict()
        self._changed: set[Place] = set()
        self._removed: set[Place] = set()
        self._bytes = 0
        self.loads = 0

    def read(self, place: Place) -> KeyedState:
        """A page that is known to be there. Raises: StateError for bytes that are no page."""
        held = self._held.get(place)
        if held is not None:
            self._held.move_to_end(place)
            return held
        data = self._store.get(self._key(place))
        assert data is not None, f"{place} has a deadline, so it is stored"
        self.loads += 1
        found = decode_page(data)
        self._hold(place, found)
        return found

    def write(self, place: Place, keyed_state: KeyedState) -> None:
        """Put a page in the place of the one before."""
        self._let_go(place)
        self._changed.add(place)
        self._removed.discard(place)
        self._hold(place, keyed_state)

    def remove(self, place: Place) -> None:
        """Forget a page."""
        self._let_go(place)
        self._changed.discard(place)
        self._removed.add(place)

    def save(self, batch: WriteBatch) -> int:
        """Add every changed page to the write batch; returns how many there were."""
        for place in sorted(self._changed):
            batch.put(self._key(place), encode_page(self._held[place]))
        for place in sorted(self._removed):
            batch.delete(self._key(place))
        count = len(self._changed)
        self._changed.clear()
        self._removed.clear()
        return count

    def _hold(self, place: Place, keyed_state: KeyedState) -> None:
        self._held[place] = keyed_state
        if self._bytes_max is None:
            return
        self._bytes += bytes_of(keyed_state)
        while self._bytes > self._bytes_max and len(self._held) > 1:
            oldest = next(iter(self._held))
            if oldest in self._changed:
                self._store.put(self._key(oldest), encode_page(self._held[oldest]))
                self._changed.discard(oldest)
            self._let_go(oldest)

    def _let_go(self, place: Place) -> None:
        held = self._held.pop(place, None)
        if held is not None and self._bytes_max is not None:
            self._bytes -= bytes_of(held)

    def _key(self, place: Place) -> bytes:
        return store_key(place.key_group, b"", PAGES, self._names[place.domain], PAGE.pack(place.page))


def stored_pages(
    store: KeyedStore, key_group: int, domains: tuple[KeyDomain, ...]
) -> Iterator[tuple[Place, KeyedState]]:
    """Every page of a key group that the store holds, of the domains that the job has."""
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
    """About how much memory a page takes."""
    events = keyed_state.events
    texts = keyed_state.keys.nbytes + events.event_id.nbytes + sum(c.nbytes for c in events.columns.values())
    numbers = keyed_state.runs.nbytes + keyed_state.nodes.nbytes + 16 * len(keyed_state.runs) + 20 * len(events)
    past = keyed_state.histories
    return int(texts + numbers + 20 * len(past) + sum(c.nbytes for c in past.columns.values()))
