"""What is around a simulated job of `cep run`: a clock, a topic whose brokers go away, a control topic, a sink.

Time is simulated: a step is a minute, an hour of payments passes in a second. Nothing here waits.
Tested by: tests/faults/test_faults.py
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from cep.base.errors import SinkAwayError, SourceError
from cep.sinks.json_form import json_lines
from cep.sources.live.base import Chunk, Positions

TOPIC = "payments"


@dataclass
class Clock:
    """`now_ms` is the true time; `wrong_ms` is how far the job's clock is from it."""

    now_ms: int
    wrong_ms: int = 0

    def job_ms(self) -> int:
        """Return what the job's clock shows."""
        return self.now_ms + self.wrong_ms

    def time(self) -> float:
        """Stand for time.time."""
        return self.job_ms() / 1_000

    def monotonic(self) -> float:
        """Stand for time.monotonic, which no administrator sets."""
        return self.now_ms / 1_000


@dataclass
class Brokers:
    """Partitions of records, and whether anybody answers for them."""

    partitions: list[list[bytes]]
    control: list[bytes] = field(default_factory=list)
    are_away: bool = False

    def ends(self) -> dict[int, int]:
        """Return the end of each partition. Raises: SourceError while nobody answers."""
        if self.are_away:
            raise SourceError("no broker answers")
        return {number: len(records) for number, records in enumerate(self.partitions)}


@dataclass
class Partitions:
    """The topic as a job reads it: up to `most` records of one partition at a time."""

    brokers: Brokers
    order: Callable[[list[int]], list[int]]
    most: int
    next: dict[int, int] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    seen: dict[int, int] = field(default_factory=dict)  # ends, when somebody last answered
    ended: bool = False

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        if self.brokers.are_away:
            return []
        self.look()
        for number in self.order(sorted(self.next.keys() - self.held)):
            at = self.next[number]
            records = self.brokers.partitions[number][at : at + self.most]
            if records:
                self.next[number] += len(records)
                return [Chunk(_lane(number), pa.array(records, pa.large_binary()))]
        return []

    def positions(self) -> Positions:
        return {_lane(number): at for number, at in self.next.items()}

    def seek(self, positions: Mapping[str, int]) -> None:
        self.next = {_number(lane): at for lane, at in positions.items()}

    def behind(self) -> dict[str, bool]:
        return {_lane(number): at < self.seen.get(number, 0) for number, at in self.next.items()}

    def look(self) -> None:
        if not self.brokers.are_away:
            self.seen = self.brokers.ends()
            self.next = {**dict.fromkeys(self.seen, 0), **self.next}

    def hold(self, lanes: Collection[str]) -> None:
        self.held = {_number(lane) for lane in lanes}

    def close(self) -> None:
        pass


@dataclass
class Control:
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

    def hold(self, lanes: Collection[str]) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class Receiver:
    """Who gets the alerts. While it is away a write fails in front of it or behind it, where the answer is lost."""

    is_away: threading.Event = field(default_factory=threading.Event)
    loses_answers: bool = False
    refused: int = 0
    taken: dict[int, list[bytes]] = field(default_factory=dict)

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Take the alerts of a number, which has one meaning. Raises: SinkAwayError."""
        self.refused += self.is_away.is_set()
        if self.is_away.is_set() and not self.loses_answers:
            raise SinkAwayError("nobody answers")
        lines = list(json_lines(alerts))
        assert self.taken.setdefault(batch_id, lines) == lines, "a number has one meaning"
        if self.is_away.is_set():
            raise SinkAwayError("no answer came back")

    def close(self) -> None:
        pass

    def lines(self) -> list[bytes]:
        """Return all alerts, sorted."""
        return sorted(line for lines in self.taken.values() for line in lines)


def _lane(number: int) -> str:
    return f"{TOPIC}[{number}]"


def _number(lane: str) -> int:
    return int(lane.removeprefix(f"{TOPIC}[").removesuffix("]"))
