"""Typed access to declared state: value, list, map, reducing, aggregating. Made by `States` (states.py).

For operators that keep little per key. The engine's runs and histories of many keys are pages (pages.py), read and
written as whole columns: a handle's Python call per value would be its slowest part.
Tested by: tests/state/test_handles.py, tests/state/test_models.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cep.base.errors import LimitError
from cep.base.limits import LIST_ELEMENTS_MAX
from cep.state.cells import Cells, Clock, Place
from cep.state.descriptors import Descriptor, Row
from cep.state.rows import decode_rows, encode_rows


@dataclass(frozen=True, slots=True)
class _Handle:
    descriptor: Descriptor
    cells: Cells
    clock: Clock

    def clear(self, place: Place) -> None:
        """Forget what is kept there."""
        self.cells.clear(place)

    def _row(self, place: Place, item: bytes = b"") -> Row | None:
        data = self.cells.get(place, item)
        return None if data is None else decode_rows(data, self.descriptor.fields)[0][0]

    def _set(self, place: Place, row: Row, item: bytes = b"") -> None:
        self.cells.put(place, encode_rows([row], self.descriptor.fields), item)


class ValueHandle(_Handle):
    """One row."""

    __slots__ = ()

    def get(self, place: Place) -> Row | None:
        return self._row(place)

    def put(self, place: Place, row: Row) -> None:
        self._set(place, row)


class MapHandle(_Handle):
    """Text → row; entries age one by one."""

    __slots__ = ()

    def get(self, place: Place, entry: str) -> Row | None:
        return self._row(place, entry.encode())

    def put(self, place: Place, entry: str, row: Row) -> None:
        self._set(place, row, entry.encode())

    def remove(self, place: Place, entry: str) -> None:
        self.cells.remove(place, entry.encode())

    def items(self, place: Place) -> dict[str, Row]:
        """All entries, in the order of their names' bytes."""
        fields = self.descriptor.fields
        return {item.decode(): decode_rows(data, fields)[0][0] for item, data in self.cells.items(place)}


class ListHandle(_Handle):
    """Rows in the order in which they were appended; elements age one by one.

    One cell holds all of them: an append costs as much as the list is long, which LIST_ELEMENTS_MAX bounds.
    """

    __slots__ = ()

    def get(self, place: Place) -> list[Row]:
        rows, stamps = self._load(place)
        ttl = self.descriptor.ttl
        if ttl is not None and ttl.refresh_on_read and rows:
            now_ms = self.clock.now_ms(ttl.time)
            self._store(place, rows, [stamp if self._is_expired(stamp) else now_ms for stamp in stamps])
        if ttl is None or ttl.return_expired:
            return rows
        return [row for row, stamp in zip(rows, stamps, strict=True) if not self._is_expired(stamp)]

    def append(self, place: Place, *added: Row) -> None:
        """Add rows at the end. Raises: LimitError past LIST_ELEMENTS_MAX."""
        rows, stamps = self._load(place)
        alive = [(row, stamp) for row, stamp in zip(rows, stamps, strict=True) if not self._is_expired(stamp)]
        if len(alive) + len(added) > LIST_ELEMENTS_MAX:
            raise LimitError(
                f"elements of list {self.descriptor.name} of key {place.key!r}", len(alive) + len(added),
                LIST_ELEMENTS_MAX, "give it a shorter TTL, or keep a summary (reducing, aggregating)",
            )  # fmt: skip
        stamp_ms = self._now_ms()
        rows = [row for row, _ in alive] + list(added)
        self._store(place, rows, [stamp for _, stamp in alive] + [stamp_ms] * len(added))

    def replace(self, place: Place, rows: Sequence[Row]) -> None:
        """These rows in place of all."""
        self.clear(place)
        if rows:
            self.append(place, *rows)

    def _load(self, place: Place) -> tuple[list[Row], list[int]]:
        data = self.cells.get(place)
        return ([], []) if data is None else decode_rows(data, self.descriptor.fields)

    def _store(self, place: Place, rows: Sequence[Row], stamps: Sequence[int]) -> None:
        self.cells.put(place, encode_rows(rows, self.descriptor.fields, stamps))

    def _now_ms(self) -> int:
        ttl = self.descriptor.ttl
        return 0 if ttl is None else self.clock.now_ms(ttl.time)

    def _is_expired(self, stamp_ms: int) -> bool:
        ttl = self.descriptor.ttl
        return ttl is not None and stamp_ms <= self.clock.now_ms(ttl.time) - ttl.duration_ms


@dataclass(frozen=True, slots=True)
class ReducingHandle(_Handle):
    """One row, with which each added one is combined."""

    reduce: Callable[[Row, Row], Row]

    def get(self, place: Place) -> Row | None:
        return self._row(place)

    def add(self, place: Place, row: Row) -> None:
        """The first row is kept as it is; `reduce(kept, added)` makes the next."""
        kept = self._row(place)
        self._set(place, row if kept is None else self.reduce(kept, row))


@dataclass(frozen=True, slots=True)
class AggregatingHandle(_Handle):
    """An accumulator row: `add(accumulator, input)` makes the next one, `result(accumulator)` what is read."""

    create: Callable[[], Row]
    combine: Callable[[Row, Any], Row]
    result: Callable[[Row], Any]

    def get(self, place: Place) -> Any:
        """The result; None where nothing was added."""
        kept = self._row(place)
        return None if kept is None else self.result(kept)

    def add(self, place: Place, given: Any) -> None:
        kept = self._row(place)
        self._set(place, self.combine(self.create() if kept is None else kept, given))
