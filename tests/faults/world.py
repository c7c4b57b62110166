"""The surroundings of a simulated job of `cep run`: a clock, topics with brokers that go away, a sink with a changelog.

Time is simulated: a step is a minute, an hour of payments passes in a second. Nothing here waits.
Tested by: tests/faults/test_faults.py
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson
import pyarrow as pa

from cep.base.errors import SinkAwayError, SinkError, SourceError
from cep.runners.embedded.changelog import Entry
from cep.sinks.base import Recalled
from cep.sinks.json_form import json_lines
from cep.sources.live.base import Chunk, Positions
from cep.sources.offsets import OffsetRange, refuse_new_topics
from tests.runners.embedded.outside import Still

TOPIC = "payments"


@dataclass
class Clock:
    """`now_ms` is the true time; `wrong_ms` is how far the job's clock is from it."""

    now_ms: int
    wrong_ms: int = 0

    def job_ms(self) -> int:
        return self.now_ms + self.wrong_ms

    def time(self) -> float:
        """Stand for time.time."""
        return self.job_ms() / 1_000

    def monotonic(self) -> float:
        """Stand for time.monotonic, which no administrator sets."""
        return self.now_ms / 1_000


@dataclass
class Brokers:
    """Partitions of records, and whether the brokers answer."""

    partitions: list[list[bytes]]
    control: list[bytes] = field(default_factory=list)
    are_away: bool = False
    topic_id: str = "first"

    def ends(self) -> dict[int, int]:
        """Return the end of each partition. Raises: SourceError while the brokers are away."""
        if self.are_away:
            raise SourceError("no broker answers")
        return {number: len(records) for number, records in enumerate(self.partitions)}


@dataclass
class Partitions(Still):
    """The topic as a job reads it: up to `most` records of one partition at a time."""

    brokers: Brokers
    order: Callable[[list[int]], list[int]]
    most: int
    next: dict[int, int] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    seen: dict[int, int] = field(default_factory=dict)  # the ends in the last answer
    expected: dict[str, str] = field(default_factory=dict)  # ids of topics
    ended: bool = False

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        if self.brokers.are_away:
            return []
        self.look()
        for number in self.order(sorted(self.next.keys() - self.held)):
            offset = self.next[number]
            records = self.brokers.partitions[number][offset : offset + self.most]
            if records:
                self.next[number] += len(records)
                return [Chunk(_lane(number), pa.array(records, pa.large_binary()))]
        return []

    def positions(self) -> Positions:
        return {_lane(number): offset for number, offset in self.next.items()}

    def ids(self) -> dict[str, str]:
        return dict(self.expected)

    def expect(self, ids: Mapping[str, str]) -> None:
        self.expected = dict(ids)

    def seek(self, positions: Mapping[str, int]) -> None:
        self._refuse()
        self.next = {_number(lane): offset for lane, offset in positions.items()}

    def behind(self) -> dict[str, bool]:
        return {_lane(number): offset < self.seen.get(number, 0) for number, offset in self.next.items()}

    def look(self) -> None:
        if not self.brokers.are_away:
            self._refuse()
            self.seen = self.brokers.ends()
            self.next = {**dict.fromkeys(self.seen, 0), **self.next}

    def hold(self, lanes: Collection[str]) -> None:
        self.held = {_number(lane) for lane in lanes}

    def _refuse(self) -> None:
        if not self.brokers.are_away:  # without an answer the ids stay unknown
            ids = {TOPIC: self.brokers.topic_id}
            refuse_new_topics(self.expected, ids)
            self.expected |= ids


@dataclass
class Control(Still):
    """The control topic as a job reads it."""

    brokers: Brokers
    at: int = 0
    ended: bool = False

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        records = [] if self.brokers.are_away else self.brokers.control[self.at : self.at + records_max]
        self.at += len(records)
        return [Chunk("control", pa.array(records, pa.large_binary()))] if records else []

    def positions(self) -> Positions:
        return {"control": self.at}

    def seek(self, positions: Mapping[str, int]) -> None:
        self.at = positions.get("control", 0)

    def behind(self) -> dict[str, bool]:
        return {"control": not self.brokers.are_away and self.at < len(self.brokers.control)}

    def look(self) -> None:
        pass


@dataclass
class StateTopic:
    """The changelog topic: the committed entries, and which process of the job may write."""

    entries: list[tuple[int, bytes, bytes | None, int]] = field(default_factory=list)  # (offset, key, value, time)
    epoch: int = 0
    end: int = 0

    def add(self, entries: Iterable[Entry], now_ms: int) -> None:
        """Append the entries of a transaction, and forget the ones that they replace, as compaction does."""
        added = [(offset, key, value, now_ms) for offset, (key, value) in zip(count(self.end), entries, strict=False)]
        self.end += len(added)
        replaced = {key for _, key, _, _ in added}
        self.entries = [entry for entry in self.entries if entry[1] not in replaced] + added
        self.end += 1  # the mark of the transaction

    def clear(self) -> None:
        """Be an empty topic."""
        self.entries, self.end = [], 0

    def stand_ins(self) -> dict[str, Callable[..., Any]]:
        """Return replacements for the functions that read a topic."""
        return {
            "read_range": lambda _, offsets, rows_max=1_000: self.read(offsets, rows_max),
            "earliest_offsets": lambda _, topics: {topic: {0: 0} for topic in topics},
            "latest_offsets": lambda _, topics: {topic: {0: self.end} for topic in topics},
        }

    def read(self, offsets: OffsetRange, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Return the entries of a range, as read_range does."""
        entries = [entry for entry in self.entries if offsets.start <= entry[0] < offsets.end]
        for start in range(0, len(entries), rows_max):
            columns = zip(*entries[start : start + rows_max], strict=True)
            types = {"offset": pa.int64(), "key": pa.binary(), "value": pa.binary(), "timestamp": pa.int64()}
            arrays = [pa.array(column, type_) for column, type_ in zip(columns, types.values(), strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=list(types))


@dataclass
class Receiver:
    """The receiver of alerts. While it is away, a write fails before it arrives, or after, when the answer is lost."""

    is_away: threading.Event = field(default_factory=threading.Event)
    loses_answers: bool = False
    refused: int = 0
    taken: dict[int, list[bytes]] = field(default_factory=dict)

    def lines(self) -> list[bytes]:
        return sorted(line for lines in self.taken.values() for line in lines)


@dataclass
class Link(Still):
    """The connection of one process to the receiver and the changelog: both get a write, or both do not."""

    receiver: Receiver
    state: StateTopic
    clock: Clock
    epoch: int = -1
    carried: list[Entry] = field(default_factory=list)

    def open(self) -> None:
        """Fence off the processes before this one."""
        self.state.epoch += 1
        self.epoch = self.state.epoch

    def add_to_next_write(self, topic: str, entries: Sequence[Entry]) -> None:
        """Add these entries to the next write."""
        self.carried = list(entries)

    def write_alone(self, topic: str, entries: Iterator[Entry]) -> None:
        self.state.add(entries, self.clock.now_ms)

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Take the alerts of a number, which has one meaning. Raises: SinkError for a process that is fenced off."""
        receiver = self.receiver
        receiver.refused += receiver.is_away.is_set()
        if receiver.is_away.is_set() and not receiver.loses_answers:
            raise SinkAwayError("nobody answers")
        if -1 < self.epoch < self.state.epoch:
            raise SinkError("another process runs this job")
        lines = list(json_lines(alerts))
        if batch_id not in receiver.taken:
            self.state.add(self.carried, self.clock.now_ms)
        assert receiver.taken.setdefault(batch_id, lines) == lines, "a number has one meaning"
        if receiver.is_away.is_set():
            raise SinkAwayError("no answer came back")
        self.carried = []

    def place(self) -> str:
        """Return no place: the receiver works with numbers."""
        return ""

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        """Return the ids of the alerts with a higher number."""
        newer = {number: lines for number, lines in self.receiver.taken.items() if number > after}
        ids = frozenset(orjson.loads(line)["alert_id"] for lines in newer.values() for line in lines)
        return Recalled(ids, max(newer, default=after))


def _lane(number: int) -> str:
    return f"{TOPIC}[{number}]"


def _number(lane: str) -> int:
    return int(lane.removeprefix(f"{TOPIC}[").removesuffix("]"))
