"""The runs and the histories of some key groups, in pages: in memory while they are in use, and in a KeyedStore.

    | key group u16 | "" | "pages" | domain | page u16 |  →  pack(…), state/packed.py      big-endian
    | FFFF | "" | "shapes" | | shape u64 |                →  Shape.to_bytes()              said once for all pages

A page has a few keys, so that a micro-batch reads and writes little more than the keys of its events. It unpacks and
packs all pages that it touches at once. The pages of runs that were written last stay in memory, up to a limit of
bytes. Of a page of histories, the head stays while it is in use, and the segments that were used last. Changes are kept
until `save`: between two commits the store does not change. group_entries.py has a drawing of the entries.
Tested by: tests/runners/embedded/test_stored_parts.py, tests/runners/embedded/test_engine.py.
"""

import struct
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.errors import StateCorruptError
from cep.columnar.decode import KeyDomain, key_slots
from cep.engine.keyed_state import KeyedState, concat_states
from cep.engine.migrate import earlier_row_registers, fit_state
from cep.histories.store import Block, Histories, StoredSegment
from cep.kernels import layout as y
from cep.kernels.layout import Int64
from cep.nfa.program import Program
from cep.runners.handover import group_entries as entries
from cep.state.packed import Shape, by_shape, pack, runs_count, unpack
from cep.state.past import (
    SegmentCache,
    StoredPast,
    decode_head,
    decode_segment,
    digests_of,
    encode_head,
    store_segments,
)
from cep.state.store import STORE_GROUP, KeyedStore, WriteBatch, prefix_range, split_key, store_key
from cep.step.ports import DomainHistories

SHAPES = b"shapes"
PAGES_MAX = 1 << 16
_SHAPE = struct.Struct(">Q")
_STRETCH = 512  # pages of which the earliest deadline is known, and that the clock's hand passes at a time
OPEN_MIN, _OPEN_BYTES_MAX = 1_024, 64 << 20  # pages that stay open together, and their bytes
_FEW_SLOTS = 64


class Shapes:
    """The shapes (layouts of rules and columns) of a store's pages, by number. All threads share these constants."""

    def __init__(self, store: KeyedStore) -> None:
        self._store = store
        self._shapes: dict[int, Shape] = {}
        self._last_shape: Shape | None = None
        self._new: list[Shape] = []

    def of(self, number: int) -> Shape:
        """Return the shape of a number. Raises: StateCorruptError if the store does not have it."""
        shape = self._shapes.get(number)
        if shape is None:
            data = self._store.get(_shape_key(number))
            if data is None:
                raise StateCorruptError(f"pages have the shape {number:x}, which the store lacks; restore a checkpoint")
            shape = self._shapes[number] = Shape.from_bytes(data)
        return shape

    def shape_of(self, keyed_state: KeyedState) -> Shape:
        """Return the shape (layout of rules and columns) of a state, for all threads. `save` stores new shapes."""
        last_shape = self._last_shape
        if last_shape is not None and last_shape.describes(keyed_state):
            return last_shape
        shape = Shape.of(keyed_state)
        shared_shape = self._shapes.get(shape.number)  # a hash of its content
        if shared_shape is None:
            shared_shape = self._shapes[shape.number] = shape
            self._new.append(shape)
        self._last_shape = shared_shape
        return shared_shape

    def save(self, batch: WriteBatch) -> None:
        """Save the new shapes, once a commit."""
        new, self._new = self._new, []
        for shape in new:
            batch.put(_shape_key(shape.number), shape.to_bytes())


class Pages:
    """The pages of some key groups. A slot is the number of a page among them. One thread uses it at a time.

    `bytes_max` bounds the bytes kept outside the store; None keeps all. Open pages (MatchedPages) may have half as many
    bytes in addition, and changes since the last `save` are kept. `deadlines` int64[slots]: when to look at a page
    again though its keys lack events; NEVER: the page does not exist.
    """

    def __init__(
        self, store: KeyedStore, name: bytes, layout: tuple[range, int, int], shapes: Shapes, bytes_max: int | None
    ) -> None:
        """Begin without pages in memory. A page has the packed runs of a few keys. A slot is the number of a page.

        `layout`: the key groups, how many the job has, and the pages of each. A deadline: when to look at a page again.
        """
        self._store = store
        self.shapes = shapes
        self._groups, self._groups_count, self._pages_count = layout
        assert self._pages_count <= PAGES_MAX, "the number of a page has 16 bits"
        self._prefixes = entries.page_prefixes(self._groups, name)
        self._bytes_max = bytes_max
        self.open_bytes_max = _OPEN_BYTES_MAX if bytes_max is None else min(_OPEN_BYTES_MAX, max(1, bytes_max // 2))
        slots_count = len(self._groups) * self._pages_count
        # The bytes of each page in memory, by slot. An array, because a dictionary would pause the job while it grows.
        self._encoded: NDArray[np.object_] = np.full(slots_count, None, object)
        self._sizes = np.zeros(slots_count, np.int32)  # bytes of each page in memory; 0: it is not there
        self.cached_bytes = 0
        self._is_recent = np.zeros(slots_count, bool)  # True: written since the hand has passed this slot
        self._clock_hand = 0  # the hand (algorithm CLOCK): the slot where the next search for pages to drop begins
        self._changed: set[int] = set()  # slots of pages that changed since the last `save`
        stretches = np.full((-(-slots_count // _STRETCH), _STRETCH), entries.NEVER, np.int64)
        self._stretches = stretches  # the deadlines in rows (stretches) of _STRETCH slots
        self.deadlines = stretches.reshape(-1)[:slots_count]  # the same array, by slot
        # No deadline of a row is earlier than this time, so a search for due pages skips most rows.
        self._earliest_ms = np.full(len(stretches), entries.NEVER, np.int64)
        self.changed_bytes = 0  # of the pages in `_changed`
        self.loads = 0  # pages that were read from the store

    @property
    def index_bytes(self) -> int:
        """The bytes of the arrays by slot, whose size does not depend on the number of keys."""
        arrays = self._encoded, self._sizes, self._is_recent, self._stretches, self._earliest_ms
        return sum(array.nbytes for array in arrays)

    def slots(self, keys: pa.Array) -> Int64:
        """Return the slot of each key's page: int64[N]; beyond the last one for a key of a later key group."""
        return key_slots(keys, self._groups_count, self._pages_count, self._groups.start)

    def slots_of(self, group: int) -> Int64:
        """Return the slots of a key group's pages."""
        first = (group - self._groups.start) * self._pages_count
        return np.arange(first, first + self._pages_count)

    def due(self, watermark_ms: int) -> Int64:
        """Return the slots whose deadline the watermark has reached, ascending. Cost: O(slots of their stretches)."""
        watermark_ms = min(watermark_ms, entries.NEVER - 1)
        (stretches,) = (self._earliest_ms <= watermark_ms).nonzero()
        if not len(stretches):
            return stretches
        deadlines = self._stretches[stretches]
        self._earliest_ms[stretches] = deadlines.min(axis=1)
        at, slot = np.nonzero(deadlines <= watermark_ms)
        due_slots: Int64 = stretches[at] * _STRETCH + slot
        return due_slots

    def read(self, slots: Int64) -> list[bytes]:
        """Read the pages (packed runs of a few keys) of these slots (page numbers) that exist. Raises: StateError."""
        slots = slots[self.deadlines[slots] != entries.NEVER]  # NEVER: the page does not exist
        pages: list[bytes] = self._encoded[slots].tolist()
        (not_in_memory,) = (self._sizes[slots] == 0).nonzero()
        if len(not_in_memory):
            self.loads += len(not_in_memory)
            stored_pages = self._store.multi_get(self._keys(slots[not_in_memory]))
            for index, page in zip(not_in_memory.tolist(), stored_pages, strict=True):
                if page is None:
                    raise StateCorruptError(
                        f"page {slots[index]} has a deadline, but the store lacks it; restore a checkpoint"
                    )
                pages[index] = page
        return pages

    def replace_pages(self, slots: Int64, pages: Sequence[bytes], deadlines: Int64) -> None:
        """Replace pages (packed runs of a few keys) in memory, by slot (number). The deadline NEVER removes a page."""
        has_runs = deadlines != entries.NEVER
        if np.count_nonzero(has_runs) < len(has_runs):  # some pages are empty now
            self._remove(slots[~has_runs & (self.deadlines[slots] != entries.NEVER)])
            slots, deadlines = slots[has_runs], deadlines[has_runs]
            pages = list(compress(pages, has_runs.tolist()))
        sizes = list(map(len, pages))
        written = sum(sizes)  # bytes; for a few tens of pages this is quicker than numpy
        self.cached_bytes += written - sum(self._sizes[slots].tolist())
        self.changed_bytes += written
        self._encoded[slots], self._sizes[slots], self._is_recent[slots] = np.array(pages, object), sizes, True
        self._changed.update(slots.tolist())
        self.deadlines[slots] = deadlines
        np.minimum.at(self._earliest_ms, slots // _STRETCH, deadlines)  # the earliest of each _STRETCH slots

    def drop(self) -> int:
        """Remove all pages and return how many runs were in them. Raises: StateError."""
        stored = np.flatnonzero(self.deadlines != entries.NEVER)
        dropped = runs_count(self.read(stored))
        self._remove(stored)
        return dropped

    def save(self, batch: WriteBatch) -> Int64:
        """Add every page that has changed since the last save to a write batch. Return their slots (page numbers)."""
        changed = np.fromiter(self._changed, np.int64, len(self._changed))
        changed.sort()
        self._changed, self.changed_bytes = set(), 0
        exists = self.deadlines[changed] != entries.NEVER  # an empty page is removed
        written = changed if exists.all() else changed[exists]
        batch.put_all(self._keys(written), self._encoded[written].tolist())
        if len(written) < len(changed):
            for key in self._keys(changed[~exists]):
                batch.delete(key)
        while self._bytes_max is not None and self.cached_bytes > self._bytes_max:
            self._make_room()
        return changed

    def restored(self) -> None:
        """Take over the deadlines that were read from the store."""
        self._earliest_ms = self._stretches.min(axis=1)

    def _remove(self, slots: Int64) -> None:
        self._drop_from_memory(slots)
        self.deadlines[slots] = entries.NEVER
        self._changed.update(slots.tolist())

    def _make_room(self) -> None:
        """Drop stored pages that were not written since the hand of the clock last passed (CLOCK, Corbató 1968)."""
        some = slice(self._clock_hand, self._clock_hand + _STRETCH)
        self._drop_from_memory(self._clock_hand + np.flatnonzero((self._sizes[some] > 0) & ~self._is_recent[some]))
        self._is_recent[some] = False
        self._clock_hand = some.stop if some.stop < len(self._sizes) else 0

    def _drop_from_memory(self, slots: Int64) -> None:
        self.cached_bytes -= int(self._sizes[slots].sum())
        self._encoded[slots], self._sizes[slots] = None, 0

    def _keys(self, slots: Int64) -> list[bytes]:
        return entries.page_store_keys(slots, self._pages_count, self._prefixes)


class MatchedPages:
    """The pages (DomainPages) of consecutive key groups, of one worker or of several that work as one.

    Slots count through the parts one after the other. The pages of a large micro-batch stay unpacked (*open*) until
    other pages are needed or a commit calls `close`: a job that catches up returns to the same pages.
    """

    def __init__(self, parts: Sequence[Pages], histories: DomainHistories, *, stays_open: bool) -> None:
        """`stays_open`: for large micro-batches, which use these parts alone until `close`."""
        self._parts = parts
        self._stays_open = stays_open
        self._bounds = np.cumsum([0, *(len(part.deadlines) for part in parts)])
        self.histories = histories
        self._open: tuple[Int64, KeyedState, Program] | None = None  # slots, their state, and its program
        self.open_bytes = 0

    def slots(self, keys: pa.Array) -> Int64:
        return self._parts[0].slots(keys)

    def touched(self, keys: pa.Array, watermark_ms: int) -> Int64:
        """Return the slots (page numbers) of these keys, of pages that are due, and of pages that are unpacked now."""
        slots = self.slots(keys)
        # Each slot once, ascending. For few of them a set is several times as quick as numpy.
        is_few = len(slots) <= _FEW_SLOTS
        touched_slots: Int64 = np.array(sorted({*slots.tolist()}), np.int64) if is_few else np.unique(slots)
        if self._open is not None:
            open_slots, _, _ = self._open
            needed_or_open = np.union1d(touched_slots, open_slots)
            # All open pages are one state. If more than half of them are not needed, all are closed.
            if len(needed_or_open) - len(touched_slots) > len(open_slots) // 2:
                self.close()
            else:
                touched_slots = needed_or_open
        due = [first + part.due(watermark_ms) for first, part in zip(self._bounds.tolist(), self._parts, strict=False)]
        return np.union1d(touched_slots, np.concatenate(due)) if any(map(len, due)) else touched_slots

    def take(self, slots: NDArray[np.int64], program: Program) -> tuple[KeyedState | None, Counter[str]]:
        """Read the pages of these slots (numbers) as one state for `program`, with the changes of counters of runs."""
        if self._open is None:
            return self._read_joined(slots, program)
        open_slots, open_state, _ = self._open  # unpacked by an earlier micro-batch
        if not _are_all_in(open_slots, slots):
            self.close()  # some open pages are not wanted, so all are packed
            return self._read_joined(slots, program)
        fitted_state, changes = fit_state(open_state, program)
        packed_state, packed_changes = self._read_joined(np.setdiff1d(slots, open_slots, assume_unique=True), program)
        states = [fitted_state] if packed_state is None else [fitted_state, packed_state]
        changes.update(packed_changes)
        return concat_states(states, program.row_registers), changes

    def put(self, slots: NDArray[np.int64], after: KeyedState, program: Program) -> None:
        if self._open is not None and not _are_all_in(self._open[0], slots):
            self.close()
        self._open, self.open_bytes = None, 0
        may_stay = self._stays_open and len(slots) >= OPEN_MIN
        if may_stay and (size := _bytes_of(after)) <= self._parts[0].open_bytes_max:
            self._open, self.open_bytes = (slots, replace(after, histories=Histories()), program), size
        else:
            self._write(slots, after, program)

    def drop(self) -> int:
        self.close()
        return sum(part.drop() for part in self._parts)

    def close(self) -> None:
        """Pack the open pages."""
        if self._open is not None:
            slots, whole, program = self._open
            self._open, self.open_bytes = None, 0
            self._write(slots, whole, program)

    def _read_joined(self, slots: Int64, program: Program) -> tuple[KeyedState | None, Counter[str]]:
        pages: list[bytes] = []
        for part, of_part, first in self._slots_by_part(slots):
            pages += part.read(slots[of_part] - first)
        return joined_pages(pages, self._parts[0].shapes, program)

    def _write(self, slots: Int64, after: KeyedState, program: Program) -> None:
        of_key = slots.searchsorted(self.slots(after.keys))
        shape = self._parts[0].shapes.shape_of(after)
        pages, deadlines = pack(after, of_key, len(slots), program.row_registers, shape)
        for part, of_part, first in self._slots_by_part(slots):
            part.replace_pages(slots[of_part] - first, pages[of_part], deadlines[of_part])

    def _slots_by_part(self, slots: Int64) -> Iterator[tuple[Pages, slice, int]]:
        """Each part with which of these slots, ascending, are its own, and where its own begin."""
        cuts = slots.searchsorted(self._bounds).tolist()
        for number, part in enumerate(self._parts):
            if cuts[number] < cuts[number + 1]:
                yield part, slice(cuts[number], cuts[number + 1]), int(self._bounds[number])


def _are_all_in(some: Int64, slots: Int64) -> bool:
    """Return True if all of some slots are among others; both ascending, each once."""
    return len(some) <= len(slots) and bool(np.isin(some, slots, assume_unique=True).all())


def _bytes_of(keyed_state: KeyedState) -> int:
    events = keyed_state.events
    columns = sum(column.nbytes for column in (keyed_state.keys, events.event_id, *events.columns.values()))
    return int(keyed_state.runs.nbytes + keyed_state.nodes.nbytes + 20 * len(events) + columns)


def stored_states(
    store: KeyedStore, group: int, domains: Sequence[KeyDomain], programs: Mapping[KeyDomain, Program], level: int
) -> Iterator[tuple[KeyDomain, KeyedState]]:
    """Yield a key group's stored state at one level (order in which rules run) by key domain. Raises: StateError."""
    shapes = Shapes(store)  # the layouts of stored pages
    for domain in domains:
        if domain in programs:
            prefix = prefix_range(group, b"", entries.PAGES, entries.domain_name(domain, level))
            pages = [page for _, page in store.scan(prefix)]  # each has the packed runs of a few keys
            joined, _ = joined_pages(pages, shapes, programs[domain])  # unpacked, for the rules in force
            if joined is not None:
                yield domain, joined


def joined_pages(pages: Sequence[bytes], shapes: Shapes, program: Program) -> tuple[KeyedState | None, Counter[str]]:
    """Join the pages and migrate them to the program. Returns: (state or None, the changes of counters of runs)."""
    states: list[KeyedState] = []
    changes: Counter[str] = Counter()
    for number, same_shape in by_shape(pages).items():
        shape = shapes.of(number)
        fitted, more = fit_state(unpack(same_shape, shape, row_registers_of(shape, program)), program)
        changes.update(more)
        states.append(fitted)
    return concat_states(states, program.row_registers) if states else None, changes


def row_registers_of(shape: Shape, program: Program) -> np.ndarray:
    """Mark the registers (fields of a run) that hold row numbers of events: uint8[rules of the pages, registers].

    A run is a partial match. `shape` is the layout of stored pages, whose rules may not be the rules of the program.
    A rule that the program lacks gets no marks: its runs are dropped. `is_earlier`: an earlier build wrote the pages.
    """
    if shape.layout.fingerprint == program.fingerprint and not shape.layout.is_earlier:
        return program.row_registers  # the rules are the same
    program_numbers = program.rules.numbers_by_identity  # the number of each rule in the program
    registers_count = shape.width - y.RUN_HEADER
    common = min(program.row_registers.shape[1], registers_count)  # a rule that is in both has at most so many
    row_registers = np.zeros((len(shape.layout.rules), registers_count), program.row_registers.dtype)
    for stored_number, (identity, _, _) in enumerate(shape.layout.rules):
        if identity in program_numbers:
            row_registers[stored_number, :common] = program.row_registers[program_numbers[identity], :common]
    return earlier_row_registers(row_registers, shape.layout, program) if shape.layout.is_earlier else row_registers


def _shape_key(number: int) -> bytes:
    return store_key(STORE_GROUP, b"", SHAPES, b"", _SHAPE.pack(number))


class PageAddress(NamedTuple):
    """The address of a page: the number of its key domain, its key group, its number in the group."""

    domain: int
    key_group: int
    page: int


class StoredHistories:
    """The histories of some key groups. `bytes_max` bounds the kept bytes without the changes; None keeps everything.

    `names` are the names of the key domains in store keys. One thread uses it at a time.
    """

    def __init__(self, store: KeyedStore, names: Sequence[bytes], bytes_max: int | None) -> None:
        """Create two caches: of heads (lists of segments) and of segments (past events). Each has half of the bytes."""
        self._store = store
        self._domain_names = names
        self._bytes_max = None if bytes_max is None else bytes_max // 2
        self._heads: OrderedDict[PageAddress, Histories] = OrderedDict()  # the least recently used first
        self._changed: set[PageAddress] = set()  # pages that the next `save` writes
        self._removed: set[PageAddress] = set()  # pages that it deletes
        self._heads_bytes = 0
        self._stored_digests: dict[PageAddress, dict[int, str]] = {}  # segments in the store: number → digest
        self._segments: SegmentCache[Block] = SegmentCache(self._bytes_max)  # blocks of past events, by digest
        self.loads = 0  # of heads and segments from the store

    @property
    def nbytes(self) -> int:
        """The bytes of the heads and segments in memory; of segments alone if all are kept."""
        return self._heads_bytes + self._segments.nbytes

    def read(self, address: PageAddress) -> Histories:
        """Read a page that exists. Raises: StateError for invalid bytes."""
        cached = self._heads.get(address)
        if cached is not None:
            self._heads.move_to_end(address)
            return cached
        self.loads += 1
        histories = self._load_page(address)
        self._cache(address, histories)
        return histories

    def write(self, address: PageAddress, page: Histories) -> None:
        """Replace a page."""
        self._drop_from_cache(address)
        self._changed.add(address)  # also if it is in `_removed`: then none of its old segments stays in the store
        self._cache(address, page)

    def remove(self, address: PageAddress) -> None:
        """Forget a page."""
        self._drop_from_cache(address)
        self._changed.discard(address)
        self._removed.add(address)

    def save(self, batch: WriteBatch) -> None:
        """Add every page that has changed since the last time."""
        for address in sorted(self._removed):
            self._delete_page(address, batch)
        self._removed.clear()
        for address in sorted(self._changed):
            written = self._write_page(address, self._heads[address], batch)
            self._drop_from_cache(address)
            self._changed.discard(address)
            self._cache(address, written)

    def _cache(self, address: PageAddress, page: Histories) -> None:
        self._heads[address] = page
        if self._bytes_max is None:
            return
        self._heads_bytes += self._size(page)
        for oldest in list(self._heads)[:-1] if self._heads_bytes > self._bytes_max else ():
            if oldest not in self._changed:
                self._drop_from_cache(oldest)
                if self._heads_bytes <= self._bytes_max:
                    break

    def _drop_from_cache(self, address: PageAddress) -> None:
        removed = self._heads.pop(address, None)
        if removed is not None and self._bytes_max is not None:
            self._heads_bytes -= self._size(removed)

    def _key(self, kind: bytes, address: PageAddress, item: bytes) -> bytes:
        return store_key(address.key_group, b"", kind, self._domain_names[address.domain], item)

    def _get(self, key: bytes) -> bytes:
        data = self._store.get(key)
        if data is None:
            raise StateCorruptError(f"the past has the page {key!r}, which the store lacks; restore a checkpoint")
        return data

    def _load_page(self, address: PageAddress) -> Histories:
        histories = decode_head(self._get(self._head_key(address)), partial(self._load_segment, address))
        self._stored_digests[address] = digests_of(histories)
        return histories

    def _write_page(self, address: PageAddress, page: Histories, batch: WriteBatch) -> Histories:
        """Write the head (list of segments) and new segments of a page. Delete old segments. Return the stored page."""

        def put(number: int, data: bytes) -> None:
            batch.put(self._segment_key(address, number), data)

        written = store_segments(page, put, partial(self._load_segment, address), self._segments)
        kept = digests_of(written)  # number of a segment → digest of its content
        gone = {n: d for n, d in self._stored_digests.get(address, {}).items() if d != kept.get(n)}  # old contents
        self._remove_segments(address, gone, kept, batch)  # a number in both has new content and stays
        self._stored_digests[address] = kept
        batch.put(self._head_key(address), encode_head(written))
        return written

    def _delete_page(self, address: PageAddress, batch: WriteBatch) -> None:
        head = self._head_key(address)
        if address not in self._stored_digests and self._store.get(head) is not None:
            self._load_page(address)
        self._remove_segments(address, self._stored_digests.pop(address, {}), {}, batch)
        batch.delete(head)

    def _remove_segments(
        self, address: PageAddress, gone: Mapping[int, str], kept: Mapping[int, str], batch: WriteBatch
    ) -> None:
        """Drop the old content of segments from the cache, and delete from the store the numbers that are not kept."""
        for number, digest in sorted(gone.items()):
            self._segments.drop(digest)
            if number not in kept:
                batch.delete(self._segment_key(address, number))

    def _size(self, page: Histories) -> int:
        return int(page.keys.nbytes) + page.pinned.nbytes + sum(256 + segment.nbytes for segment in page.segments)

    def _head_key(self, address: PageAddress) -> bytes:
        return self._key(entries.PAST, address, entries.PAGE.pack(address.page))

    def _segment_key(self, address: PageAddress, number: int) -> bytes:
        return self._key(entries.SEGMENTS, address, entries.SEGMENT.pack(address.page, number))

    def _load_segment(self, address: PageAddress, stored: StoredSegment) -> Block:
        block = self._segments.get(stored.digest)
        if block is None:
            self.loads += 1
            block = decode_segment(self._get(self._segment_key(address, stored.number)))
            self._segments.put(stored.digest, block)
        return block


def history_pages(
    store: KeyedStore, key_group: int, domains: tuple[KeyDomain, ...], levels_count: int, *, with_segments: bool
) -> Iterator[StoredPast]:
    """Yield a key group's histories in pages of a few keys; `with_segments`: with their segments (past events)."""
    domain_of = {entries.domain_name(domain, level): domain for level in range(levels_count) for domain in domains}
    segments: dict[tuple[bytes, int], dict[int, bytes]] = {}  # (name, page) → number of a segment → its bytes
    for raw, data in store.scan(prefix_range(key_group, b"", entries.SEGMENTS)) if with_segments else ():
        stored_key = split_key(raw)
        page, number = entries.SEGMENT.unpack(stored_key.item)
        segments.setdefault((stored_key.name, page), {})[number] = data
    for raw, data in store.scan(prefix_range(key_group, b"", entries.PAST)):  # heads: which segments a page has
        stored_key = split_key(raw)
        if stored_key.name in domain_of:
            (page,) = entries.PAGE.unpack(stored_key.item)
            yield StoredPast(key_group, domain_of[stored_key.name], data, segments.get((stored_key.name, page), {}))
