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
from collections import OrderedDict
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
from cep.engine.migrate import earlier_row_registers, migrate_state
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
from cep.step.ports import DomainPasts

SHAPES = b"shapes"
PAGES_MAX = 1 << 16
_SHAPE = struct.Struct(">Q")
_STRETCH = 512  # pages of which the earliest deadline is known, and that the clock's hand passes at a time
OPEN_MIN, _OPEN_BYTES_MAX = 1_024, 64 << 20  # pages that stay open together, and their bytes
_FEW_SLOTS = 64


class Shapes:
    """The page shapes of a store, by number. All threads share them, because a shape never changes."""

    def __init__(self, store: KeyedStore) -> None:
        self._store = store
        self._shapes: dict[int, Shape] = {}
        self._learnt: Shape | None = None  # the last one
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

    def learn(self, keyed_state: KeyedState) -> Shape:
        """Return the shape of a state. A new shape is stored with the next `save`."""
        learnt = self._learnt
        if learnt is not None and learnt.describes(keyed_state):
            return learnt
        shape = Shape.of(keyed_state)
        shared_shape = self._shapes.get(shape.number)
        if shared_shape is None:
            shared_shape = self._shapes[shape.number] = shape
            self._new.append(shape)
        self._learnt = shared_shape
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
    again though its keys lack events; NEVER: no page.
    """

    def __init__(
        self, store: KeyedStore, name: bytes, layout: tuple[range, int, int], shapes: Shapes, bytes_max: int | None
    ) -> None:
        """`layout`: the key groups, how many the job has, and the pages of each."""
        self._store = store
        self.shapes = shapes
        self._groups, self._groups_count, self._count = layout
        assert self._count <= PAGES_MAX, "the number of a page has 16 bits"
        self._prefixes = entries.page_prefixes(self._groups, name)
        self._bytes_max = bytes_max
        self.open_bytes_max = _OPEN_BYTES_MAX if bytes_max is None else min(_OPEN_BYTES_MAX, max(1, bytes_max // 2))
        slots_count = len(self._groups) * self._count
        # By slot. A dictionary would pause while it grows, and while garbage is collected.
        self._encoded: NDArray[np.object_] = np.full(slots_count, None, object)
        self._sizes = np.zeros(slots_count, np.int32)  # of the kept pages, in bytes; a page is never empty
        self.cached_bytes = 0
        self._is_recent = np.zeros(slots_count, bool)  # written since the hand has passed
        self._hand = 0
        self._changed: set[int] = set()  # slots, since the last `save`
        stretches = np.full((-(-slots_count // _STRETCH), _STRETCH), entries.NEVER, np.int64)
        self._stretches = stretches
        self.deadlines = stretches.reshape(-1)[:slots_count]
        # of each stretch, or earlier than that
        self._earliest_ms = np.full(len(stretches), entries.NEVER, np.int64)
        self.changed_bytes = 0
        self.loads = 0

    @property
    def index_bytes(self) -> int:
        """The bytes of the arrays by slot, whose size does not depend on the number of keys."""
        arrays = self._encoded, self._sizes, self._is_recent, self._stretches, self._earliest_ms
        return sum(array.nbytes for array in arrays)

    def slots(self, keys: pa.Array) -> Int64:
        """Return the slot of each key's page: int64[N]; beyond the last one for a key of a later key group."""
        return key_slots(keys, self._groups_count, self._count, self._groups.start)

    def slots_of(self, group: int) -> Int64:
        """Return the slots of a key group's pages."""
        first = (group - self._groups.start) * self._count
        return np.arange(first, first + self._count)

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
        """Read the pages of these slots that exist. Raises: StateError."""
        slots = slots[self.deadlines[slots] != entries.NEVER]
        pages: list[bytes] = self._encoded[slots].tolist()
        (at,) = (self._sizes[slots] == 0).nonzero()
        if len(at):
            self.loads += len(at)
            missing = slots[at]
            for number, page in zip(at.tolist(), self._store.multi_get(self._keys(missing)), strict=True):
                if page is None:
                    raise StateCorruptError(
                        f"page {slots[number]} has a deadline, but the store lacks it; restore a checkpoint"
                    )
                pages[number] = page
        return pages

    def hold(self, slots: Int64, pages: Sequence[bytes], deadlines: Int64) -> None:
        """Replace pages in memory. A page whose deadline is NEVER is removed."""
        filled = deadlines != entries.NEVER
        if np.count_nonzero(filled) < len(filled):
            self._forget(slots[~filled & (self.deadlines[slots] != entries.NEVER)])
            slots, deadlines = slots[filled], deadlines[filled]
            pages = list(compress(pages, filled.tolist()))
        sizes = list(map(len, pages))
        written = sum(sizes)  # of some tens of pages, as mostly, numpy would take longer to begin
        self.cached_bytes += written - sum(self._sizes[slots].tolist())
        self.changed_bytes += written
        self._encoded[slots], self._sizes[slots], self._is_recent[slots] = np.array(pages, object), sizes, True
        self._changed.update(slots.tolist())
        self.deadlines[slots] = deadlines
        np.minimum.at(self._earliest_ms, slots // _STRETCH, deadlines)

    def drop(self) -> int:
        """Remove all pages and return how many runs were in them. Raises: StateError."""
        stored = np.flatnonzero(self.deadlines != entries.NEVER)
        dropped = runs_count(self.read(stored))
        self._forget(stored)
        return dropped

    def save(self, batch: WriteBatch) -> Int64:
        """Add every page that has changed since the last save to a write batch. Return their slots."""
        changed = np.fromiter(self._changed, np.int64, len(self._changed))
        changed.sort()
        self._changed, self.changed_bytes = set(), 0
        is_there = self.deadlines[changed] != entries.NEVER
        written = changed if is_there.all() else changed[is_there]
        batch.put_all(self._keys(written), self._encoded[written].tolist())
        if len(written) < len(changed):
            for key in self._keys(changed[~is_there]):
                batch.delete(key)
        while self._bytes_max is not None and self.cached_bytes > self._bytes_max:
            self._make_room()
        return changed

    def restored(self) -> None:
        """Take over the deadlines that were read from the store."""
        self._earliest_ms = self._stretches.min(axis=1)

    def _forget(self, slots: Int64) -> None:
        self._let_go(slots)
        self.deadlines[slots] = entries.NEVER
        self._changed.update(slots.tolist())

    def _make_room(self) -> None:
        """Drop stored pages that were not written since the hand of the clock last passed (CLOCK, Corbató 1968)."""
        some = slice(self._hand, self._hand + _STRETCH)
        self._let_go(self._hand + np.flatnonzero((self._sizes[some] > 0) & ~self._is_recent[some]))
        self._is_recent[some] = False
        self._hand = some.stop if some.stop < len(self._sizes) else 0

    def _let_go(self, slots: Int64) -> None:
        self.cached_bytes -= int(self._sizes[slots].sum())
        self._encoded[slots], self._sizes[slots] = None, 0

    def _keys(self, slots: Int64) -> list[bytes]:
        return entries.page_store_keys(slots, self._count, self._prefixes)


class MatchedPages:
    """The pages (DomainPages) of consecutive key groups, of one worker or of several that work as one.

    Slots count through the parts one after the other. The pages of a large micro-batch stay unpacked (*open*) until
    other pages are needed or a commit calls `close`: a job that catches up returns to the same pages.
    """

    def __init__(self, parts: Sequence[Pages], pasts: DomainPasts, *, stays_open: bool) -> None:
        """`stays_open`: for large micro-batches, which use these parts alone until `close`."""
        self._parts = parts
        self._stays_open = stays_open
        self._bounds = np.cumsum([0, *(len(part.deadlines) for part in parts)])
        self.pasts = pasts
        self._open: tuple[Int64, KeyedState, Program] | None = None
        self.open_bytes = 0

    def slots(self, keys: pa.Array) -> Int64:
        return self._parts[0].slots(keys)

    def touched(self, keys: pa.Array, watermark_ms: int) -> Int64:
        slots = self.slots(keys)
        # Each slot once, ascending. For few of them a set is several times as quick as numpy.
        is_few = len(slots) <= _FEW_SLOTS
        touched_slots: Int64 = np.array(sorted({*slots.tolist()}), np.int64) if is_few else np.unique(slots)
        if self._open is not None:
            of_both = np.union1d(touched_slots, self._open[0])
            # Open pages that are not needed stay in the block if they are fewer than the others.
            if len(of_both) - len(touched_slots) > len(self._open[0]) // 2:
                self.close()
            else:
                touched_slots = of_both
        due = [first + part.due(watermark_ms) for first, part in zip(self._bounds.tolist(), self._parts, strict=False)]
        return np.union1d(touched_slots, np.concatenate(due)) if any(map(len, due)) else touched_slots

    def take(self, slots: NDArray[np.int64], program: Program) -> tuple[KeyedState | None, int]:
        if self._open is None:
            return self._taken(slots, program)
        opened, whole, _ = self._open
        if not _is_within(opened, slots):
            self.close()
            return self._taken(slots, program)
        fitted, orphans_count = migrate_state(whole, program)
        rest, more = self._taken(np.setdiff1d(slots, opened, assume_unique=True), program)
        states = [fitted] if rest is None else [fitted, rest]
        return concat_states(states, program.row_registers), orphans_count + more

    def put(self, slots: NDArray[np.int64], after: KeyedState, program: Program) -> None:
        if self._open is not None and not _is_within(self._open[0], slots):
            self.close()
        self._open, self.open_bytes = None, 0
        may_stay = self._stays_open and len(slots) >= OPEN_MIN
        if may_stay and (size := _bytes_of(after)) <= self._parts[0].open_bytes_max:
            self._open, self.open_bytes = (slots, replace(after, histories=Histories()), program), size
        else:
            self._put(slots, after, program)

    def drop(self) -> int:
        self.close()
        return sum(part.drop() for part in self._parts)

    def close(self) -> None:
        """Pack the open pages."""
        if self._open is not None:
            slots, whole, program = self._open
            self._open, self.open_bytes = None, 0
            self._put(slots, whole, program)

    def _taken(self, slots: Int64, program: Program) -> tuple[KeyedState | None, int]:
        pages: list[bytes] = []
        for part, of_part, first in self._divided(slots):
            pages += part.read(slots[of_part] - first)
        return joined_pages(pages, self._parts[0].shapes, program)

    def _put(self, slots: Int64, after: KeyedState, program: Program) -> None:
        of_key = slots.searchsorted(self.slots(after.keys))
        shape = self._parts[0].shapes.learn(after)
        pages, deadlines = pack(after, of_key, len(slots), program.row_registers, shape)
        for part, of_part, first in self._divided(slots):
            part.hold(slots[of_part] - first, pages[of_part], deadlines[of_part])

    def _divided(self, slots: Int64) -> Iterator[tuple[Pages, slice, int]]:
        """Each part with which of these slots, ascending, are its own, and where its own begin."""
        cuts = slots.searchsorted(self._bounds).tolist()
        for number, part in enumerate(self._parts):
            if cuts[number] < cuts[number + 1]:
                yield part, slice(cuts[number], cuts[number + 1]), int(self._bounds[number])


def _is_within(some: Int64, slots: Int64) -> bool:
    """Return True if all of some slots are among others; both ascending, each once."""
    return len(some) <= len(slots) and bool(np.isin(some, slots, assume_unique=True).all())


def _bytes_of(keyed_state: KeyedState) -> int:
    events = keyed_state.events
    columns = sum(column.nbytes for column in (keyed_state.keys, events.event_id, *events.columns.values()))
    return int(keyed_state.runs.nbytes + keyed_state.nodes.nbytes + 20 * len(events) + columns)


def stored_states(
    store: KeyedStore, group: int, domains: Sequence[KeyDomain], programs: Mapping[KeyDomain, Program], level: int
) -> Iterator[tuple[KeyDomain, KeyedState]]:
    """Yield the state of a key group by domain, for a level, migrated to the programs in force. Raises: StateError."""
    shapes = Shapes(store)
    for domain in domains:
        if domain in programs:
            prefix = prefix_range(group, b"", entries.PAGES, entries.domain_name(domain, level))
            pages = [page for _, page in store.scan(prefix)]
            joined, _ = joined_pages(pages, shapes, programs[domain])
            if joined is not None:
                yield domain, joined


def joined_pages(pages: Sequence[bytes], shapes: Shapes, program: Program) -> tuple[KeyedState | None, int]:
    """Join the pages and migrate them to the program. Returns: (state or None, how many runs belong to no rule)."""
    states: list[KeyedState] = []
    orphans_count = 0
    for number, same_shape in by_shape(pages).items():
        shape = shapes.of(number)
        fitted, orphans = migrate_state(unpack(same_shape, shape, row_registers_of(shape, program)), program)
        orphans_count += orphans
        states.append(fitted)
    return concat_states(states, program.row_registers) if states else None, orphans_count


def row_registers_of(shape: Shape, program: Program) -> np.ndarray:
    """Mark the registers of runs that hold rows of events: uint8[rules, registers], rules as the pages number them.

    A rule that is no longer in the program has no marks: its runs are dropped before they are read.
    """
    if shape.layout.fingerprint == program.fingerprint and not shape.layout.is_earlier:
        return program.row_registers
    slots = program.rules.slots
    registers_count = shape.width - y.RUN_HEADER
    common = min(program.row_registers.shape[1], registers_count)
    row_registers = np.zeros((len(shape.layout.rules), registers_count), program.row_registers.dtype)
    for old, (identity, _, _) in enumerate(shape.layout.rules):
        if identity in slots:
            row_registers[old, :common] = program.row_registers[slots[identity], :common]
    return earlier_row_registers(row_registers, shape.layout, program) if shape.layout.is_earlier else row_registers


def _shape_key(number: int) -> bytes:
    return store_key(STORE_GROUP, b"", SHAPES, b"", _SHAPE.pack(number))


class Place(NamedTuple):
    """The place of a page: the number of its key domain, its key group, its number in the group."""

    domain: int
    key_group: int
    page: int


class Pasts:
    """The histories of some key groups. `bytes_max` bounds the kept bytes without the changes; None keeps everything.

    `names` are the names of the key domains in store keys. One thread uses it at a time.
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
        self._blocks: SegmentCache[Block] = SegmentCache(self._bytes_max)
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
        histories = decode_head(self._get(self._head(place)), partial(self._block, place))
        self._there[place] = digests_of(histories)
        return histories

    def _put(self, place: Place, page: Histories, batch: WriteBatch) -> Histories:
        def put(number: int, data: bytes) -> None:
            batch.put(self._segment(place, number), data)

        now = store_segments(page, put, partial(self._block, place), self._blocks)
        there = digests_of(now)
        self._forget(place, {n: d for n, d in self._there.get(place, {}).items() if d != there.get(n)}, there, batch)
        self._there[place] = there
        batch.put(self._head(place), encode_head(now))
        return now

    def _delete(self, place: Place, batch: WriteBatch) -> None:
        head = self._head(place)
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

    def _head(self, place: Place) -> bytes:
        return self._key(entries.PAST, place, entries.PAGE.pack(place.page))

    def _segment(self, place: Place, number: int) -> bytes:
        return self._key(entries.SEGMENTS, place, entries.SEGMENT.pack(place.page, number))

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
    domain_of = {entries.domain_name(domain, level): domain for level in range(levels_count) for domain in domains}
    segments: dict[tuple[bytes, int], dict[int, bytes]] = {}
    for raw, data in store.scan(prefix_range(key_group, b"", entries.SEGMENTS)) if whole else ():
        stored_key = split_key(raw)
        page, number = entries.SEGMENT.unpack(stored_key.item)
        segments.setdefault((stored_key.name, page), {})[number] = data
    for raw, data in store.scan(prefix_range(key_group, b"", entries.PAST)):
        stored_key = split_key(raw)
        if stored_key.name in domain_of:
            (page,) = entries.PAGE.unpack(stored_key.item)
            yield StoredPast(key_group, domain_of[stored_key.name], data, segments.get((stored_key.name, page), {}))
