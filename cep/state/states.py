"""The declared states of a store: opened once, checked against what it holds, handed out as typed handles, cleaned up.

    states = States(store, clock, (Descriptor("seen", StateKind.MAP, fields, ttl),))
    seen = states.map("seen")
    seen.put(Place(key_group, b"card 1"), "device 9", {"count": 1})

Tested by: tests/state/test_handles.py, tests/state/test_registry.py, tests/state/test_models.py
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Any

from cep.base.limits import KEY_GROUPS_MAX
from cep.state.cells import BY_TIME, Cells, Clock, Place, PlainCells, TimeCells
from cep.state.descriptors import Cleanup, Descriptor, Row, StateKind
from cep.state.handles import AggregatingHandle, ListHandle, MapHandle, ReducingHandle, ValueHandle
from cep.state.keys import KeyRange, group_range, split_key
from cep.state.registry import Known, forget, known_states, reconcile, remember
from cep.state.store import KeyedStore, WriteBatch

_ACCESSES_A_LOOK = 16  # looking costs as much as a scan's start; every sixteenth access hides it
_ENTRIES_A_LOOK = 128
_ENTRIES_A_CLEANING = 10_000  # entries of one step of a clean-up: what is read at once, and deleted in one write batch


class States:
    """Handles of the declared states over one store. `groups` are the key groups that the store holds.

    `counters`: `state_expired` cells removed one by one, `state_buckets_dropped` time buckets given up as a whole.
    """

    def __init__(
        self, store: KeyedStore, clock: Clock, declared: Sequence[Descriptor], *, groups: range,
        given_up: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Check what is declared, remember it, and delete what is given up.

        Raises: StateSchemaError, with both sides, for what does not fit.
        """
        assert groups.step == 1, "a store holds consecutive key groups"
        assert groups.stop <= KEY_GROUPS_MAX, "a key group past the last one"
        self._store = store
        self._clock = clock
        self._all = group_range(groups.start, groups.stop)
        self._next = self._all.begin
        self._accesses = 0
        self._expired_count = 0
        stored = known_states(store)
        after = reconcile(stored, declared, given_up)
        self._give_up([stored[name] for name in given_up if name in stored and name not in after], groups)
        for name, known in after.items():
            if known != stored.get(name):
                remember(store, known)
        self._declared = {descriptor.name: descriptor for descriptor in declared}
        self._cells: dict[str, PlainCells | TimeCells] = {
            d.name: TimeCells(store, d, clock, after[d.name], groups) if d.is_bucketed else PlainCells(store, d, clock)
            for d in declared
        }
        self._aging = {
            name.encode(): cells
            for name, cells in self._cells.items()
            if isinstance(cells, PlainCells) and self._declared[name].ttl is not None
        }
        self._has_looks = any(d.ttl is not None and d.ttl.cleanup is Cleanup.ACCESS for d in declared)

    @property
    def counters(self) -> dict[str, int]:
        buckets = (cells.dropped_count for cells in self._cells.values() if isinstance(cells, TimeCells))
        return {"state_expired": self._expired_count, "state_buckets_dropped": sum(buckets)}

    def value(self, name: str) -> ValueHandle:
        return ValueHandle(*self._about(name, StateKind.VALUE))

    def list(self, name: str) -> ListHandle:
        return ListHandle(*self._about(name, StateKind.LIST))

    def map(self, name: str) -> MapHandle:
        return MapHandle(*self._about(name, StateKind.MAP))

    def reducing(self, name: str, reduce: Callable[[Row, Row], Row]) -> ReducingHandle:
        return ReducingHandle(*self._about(name, StateKind.REDUCING), reduce)

    def aggregating(
        self, name: str, create: Callable[[], Row], combine: Callable[[Row, Any], Row], result: Callable[[Row], Any]
    ) -> AggregatingHandle:
        return AggregatingHandle(*self._about(name, StateKind.AGGREGATING), create, combine, result)

    def clean(self) -> int:
        """Remove every expired value, whatever its clean-up: to be called before a checkpoint, which is then smaller.

        Returns how many cells were removed one by one. Cost: reads the whole store if a state without buckets ages.
        """
        removed = 0
        if self._aging:
            begin = self._all.begin
            while begin < self._all.end:
                count, begin = self._clean_some(begin, _ENTRIES_A_CLEANING)
                removed += count
        for cells in self._cells.values():
            if isinstance(cells, TimeCells):
                cells.drop_expired()
        return removed

    def _about(self, name: str, kind: StateKind) -> tuple[Descriptor, Cells, Clock]:
        descriptor = self._declared[name]
        assert descriptor.kind is kind, f"{name} is declared as {descriptor.kind}"
        cells: Cells = self._cells[name]
        if descriptor.ttl is not None and descriptor.ttl.cleanup is Cleanup.ACCESS:
            cells = _LookingCells(cells, self._look)
        return descriptor, cells, self._clock

    def _look(self) -> None:
        self._accesses += 1
        if self._accesses % _ACCESSES_A_LOOK == 0:
            _, after = self._clean_some(self._next, _ENTRIES_A_LOOK)
            self._next = after if after < self._all.end else self._all.begin

    def _clean_some(self, begin: bytes, count_max: int) -> tuple[int, bytes]:
        """Remove the expired of the next entries; returns how many, and where to go on."""
        batch = WriteBatch()
        key = b""
        seen = 0
        for key, cell in self._store.scan(KeyRange(begin, self._all.end), count_max):
            seen += 1
            parts = split_key(key)
            cells = self._aging.get(parts.name)
            if cells is not None and parts.key != BY_TIME and cells.is_expired(cell):
                batch.delete(key)
        if len(batch):
            self._store.write(batch)
            self._expired_count += len(batch)
        return len(batch), key + b"\x00" if seen == count_max else self._all.end

    def _give_up(self, given_up: Sequence[Known], groups: range) -> None:
        names = {known.name.encode() for known in given_up}
        if not names:
            return
        # Without and with buckets: the name is the last part, or it stands behind the mark of time.
        batch = WriteBatch()
        for key, _ in chain.from_iterable(self._store.scan(group_range(group)) for group in groups):
            parts = split_key(key)
            if parts.name in names or (parts.key == BY_TIME and parts.namespace in names):
                batch.delete(key)
            if len(batch) >= _ENTRIES_A_CLEANING:
                self._store.write(batch)
                batch = WriteBatch()
        self._store.write(batch)
        for known in given_up:
            forget(self._store, known.name)


class _LookingCells:
    """Cells of a state that is cleaned a little with every access."""

    def __init__(self, cells: Cells, look: Callable[[], None]) -> None:
        self._cells = cells
        self._look = look

    def get(self, place: Place, item: bytes = b"") -> bytes | None:
        self._look()
        return self._cells.get(place, item)

    def put(self, place: Place, data: bytes, item: bytes = b"") -> None:
        self._look()
        self._cells.put(place, data, item)

    def remove(self, place: Place, item: bytes = b"") -> None:
        self._look()
        self._cells.remove(place, item)

    def items(self, place: Place) -> list[tuple[bytes, bytes]]:
        self._look()
        return self._cells.items(place)

    def clear(self, place: Place) -> None:
        self._look()
        self._cells.clear(place)
