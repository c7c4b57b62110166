"""A keyed store inside a Spark query: one MapState of one stateful processor, so one Spark group of it.

Spark makes it durable: what a micro-batch wrote is committed with it or not at all, which is also why a write batch
needs nothing of its own. Spark's map has no order: a scan reads all of the group and sorts. Keep what is scanned small,
and read by key what is large.
Tested by: tests/runners/spark/test_keyed_store.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

from cep.state.keys import KeyRange
from cep.state.store import Change, KeyedStore, WriteBatch

_KEY, _VALUE = "key binary", "value binary"


class SparkStore(KeyedStore):
    """The entries of the Spark group that is being processed. Cost: one call of Spark's state API a key, 40–80 µs."""

    def __init__(self, handle: StatefulProcessorHandle, name: str) -> None:
        """To be made in the processor's `init`; `name` is the state variable's."""
        self._entries: MapState = handle.getMapState(name, _KEY, _VALUE)

    def get(self, key: bytes) -> bytes | None:
        found = self._entries.getValue((key,))
        return None if found is None else bytes(found[0])

    def put(self, key: bytes, value: bytes) -> None:
        self._entries.updateValue((key,), (value,))

    def delete(self, key: bytes) -> None:
        self._entries.removeKey((key,))

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def write(self, batch: WriteBatch) -> None:
        for change, key, other in batch.changes:
            if change is Change.PUT:
                self.put(key, other)
            elif change is Change.DELETE:
                self.delete(key)
            else:
                self.delete_range(KeyRange(key, other))

    def scan(self, keys: KeyRange, count_max: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        entries = ((bytes(key[0]), bytes(value[0])) for key, value in self._entries.iterator())
        return islice(sorted(entry for entry in entries if keys.begin <= entry[0] < keys.end), count_max)

    def delete_range(self, keys: KeyRange) -> None:
        for key in [bytes(key[0]) for key in self._entries.keys()]:  # noqa: SIM118 a MapState is no mapping
            if keys.begin <= key < keys.end:
                self.delete(key)
