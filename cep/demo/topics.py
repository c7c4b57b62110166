"""Topics in the memory of this process: the demo's stream without Kafka.

    send(topic, records) ─▶ lanes, chosen by the hash of the key ─▶ TopicReader (a live source)

Tested by: tests/demo/test_demo.py
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa

from cep.sources.live.base import Chunk, Positions

_LANES_COUNT = 4  # as many as the embedded Kafka gives a topic


class MemoryTopics:
    """Topics that one thread fills and another one reads."""

    def __init__(self) -> None:
        self._lanes: dict[str, list[list[bytes]]] = {}
        self._has_more = threading.Condition()

    def create(self, topic: str) -> None:
        """Add an empty topic."""
        self._lanes[topic] = [[] for _ in range(_LANES_COUNT)]

    def send(self, topic: str, records: Iterable[tuple[str, bytes]]) -> None:
        """Append records, each a key and a value. Records of one key stay in order."""
        with self._has_more:
            for key, value in records:
                self._lanes[topic][zlib.crc32(key.encode()) % _LANES_COUNT].append(value)
            self._has_more.notify_all()

    def reader(self, topic: str) -> TopicReader:
        """Return a live source that begins at the start of a topic."""
        return TopicReader(self._lanes[topic], self._has_more)


class TopicReader:
    """A topic as a live source. It never ends: the caller stops the job."""

    ended = False

    def __init__(self, lanes: list[list[bytes]], has_more: threading.Condition) -> None:
        self._lanes = {str(number): lane for number, lane in enumerate(lanes)}
        self._offsets: Positions = dict.fromkeys(self._lanes, 0)
        self._has_more = has_more

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        """Return the new records, at most an equal share of `records_max` per lane; wait for the first record."""
        share = max(1, records_max // len(self._lanes))
        deadline_s = time.monotonic() + wait_s
        with self._has_more:
            while not any(self.behind().values()):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return []
                self._has_more.wait(left_s)
            chunks = []
            for name, lane in self._lanes.items():
                values = lane[self._offsets[name] : self._offsets[name] + share]
                if values:
                    self._offsets[name] += len(values)
                    chunks.append(Chunk(name, pa.array(values, pa.large_binary())))
            return chunks

    def positions(self) -> Positions:
        """Return how many records of each lane have been given out."""
        return dict(self._offsets)

    def seek(self, positions: Mapping[str, int]) -> None:
        """Continue after these positions, and at the start of lanes without one."""
        self._offsets = {name: positions.get(name, 0) for name in self._lanes}

    def hold(self, lanes: Collection[str]) -> None:
        """Do nothing: every lane gives an equal share."""

    def behind(self) -> dict[str, bool]:
        """Return for each lane whether more of it waits."""
        return {name: self._offsets[name] < len(lane) for name, lane in self._lanes.items()}

    def look(self) -> None:
        """Do nothing: `behind` reads the current state itself."""

    def close(self) -> None:
        """Do nothing: the records are the topics'."""
