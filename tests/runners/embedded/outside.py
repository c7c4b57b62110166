"""The surroundings of a `cep run` process, in memory: a source, a sink that keeps its contract, an end at any step."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from cep.base.errors import SinkError
from cep.rulebook.rulebook import Rulebook
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Listener, Pace, Runner
from cep.sinks.files import DeadLetterFiles, FileSink
from cep.sinks.json_form import json_lines
from cep.sources.live.base import Chunk, Positions
from cep.sources.live.files import FilesSource
from cep.step.job import Job
from tests.runners.spark.live_cases import END


class Crash(BaseException):
    """The process is gone: no code below catches this."""


class Still:
    """A source or sink with nothing to hold, look up or close."""

    def hold(self, lanes: Collection[str]) -> None:
        """Ignore the request to hold lanes."""

    def look(self) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class TwoLanes(Still):
    """Lines of a source with two lanes. The source decides how many it gives at once."""

    lines: list[bytes]
    at: int = field(default=0, init=False)
    ended: bool = field(default=False, init=False)

    def give(self, count: int) -> list[Chunk]:
        """Return the next lines, at most so many."""
        end = min(len(self.lines), self.at + count)
        lines = self.lines[self.at : end]
        self.ended = end == len(self.lines)
        self.at = end
        lanes = {lane: lines[number::2] for number, lane in enumerate(("a", "b"))}
        return [Chunk(lane, pa.array(values, pa.large_binary())) for lane, values in lanes.items() if values]

    def behind(self) -> dict[str, bool]:
        return dict.fromkeys(("a", "b"), self.at < len(self.lines))


@dataclass
class Lines(TwoLanes):
    """A source with a position; the number of lines that it gives at once is drawn from a seed."""

    random: np.random.Generator

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        return self.give(int(self.random.integers(0, 400)))

    def positions(self) -> Positions:
        return {"all": self.at}

    def seek(self, positions: Mapping[str, int]) -> None:
        self.at = positions["all"]


@dataclass
class Broker:
    """The world outside of the process: the alerts of each number, and how often a number came twice."""

    delivered: dict[int, list[bytes]] = field(default_factory=dict)
    redelivered: int = 0

    def all(self) -> list[bytes]:
        return [alert for number in sorted(self.delivered) for alert in self.delivered[number]]


class BrokerSink(Still):
    """Keeps the contract: a repeated number has the same alerts and changes nothing. The sink may refuse or be slow."""

    def __init__(self, broker: Broker, random: np.random.Generator, refuse_share: float) -> None:
        self._broker = broker
        self._random = random
        self._refuse_share = refuse_share

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        if self._random.random() < self._refuse_share:
            raise SinkError("no broker")
        lines = list(json_lines(alerts))
        if batch_id in self._broker.delivered:
            assert self._broker.delivered[batch_id] == lines, "a number has one meaning"
            self._broker.redelivered += 1
        self._broker.delivered[batch_id] = lines


@dataclass
class Steps:
    """Dies before the n-th counted step, or the n-th step with a name."""

    die_at: int
    name: str | None = None
    seen: Counter[str] = field(default_factory=Counter)

    def __call__(self, step: object) -> None:
        self.seen[str(step)] += 1
        counted = self.seen[self.name] if self.name is not None else self.seen.total()
        if counted == self.die_at and self.name in (None, str(step)):
            raise Crash(step)


@dataclass
class Process:
    """One life of a job: its commits, its engine and its runner, closed at the end of a `with`."""

    commits: Commits
    job: Job
    initial: tuple[bytes, ...]
    sources: Sources
    outlets: Outlets = field(default_factory=lambda: Outlets((), None))
    workers: Workers = field(default_factory=lambda: Workers(1))
    pace: Pace = field(default_factory=Pace)
    listener: Listener = field(default_factory=Listener)

    def __enter__(self) -> Self:
        self.engine = Engine(self.job, self.initial, self.commits.store, self.workers, self.commits.lists)
        self.runner = Runner(self.engine, self.sources, self.outlets, self.commits, self.pace, self.listener)
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()
        self.commits.close()  # so that the next life can open the store

    def read_all(self, waits: Callable[[], bool] = lambda: False) -> None:
        """Process all events. `waits` says after each micro-batch whether to wait for deliveries and checkpoints."""
        self.runner.start()
        while not self.sources.events.ended:
            self.runner.cycle(0.0)
            if waits():
                self.commits.finish(wait=True)

    def end(self) -> None:
        """Close all windows, and commit and deliver the rest."""
        self.commits.deliveries.take(self.engine.step([], (END,), {}))
        self.runner.finish()


def run_once(
    folder: Path, job: Job, initial: tuple[bytes, ...], workers: Workers, pace: Pace, *, backend: str = "memory",
    events: Any = None,
) -> tuple[Counter[str], Rulebook]:  # fmt: skip
    """Run a life of `cep run` on the folders of events and control records; return its totals and its rules."""
    sources = Sources(
        events or FilesSource(folder / "events", follow=True), FilesSource(folder / "control", follow=True)
    )
    outlets = Outlets([FileSink(folder / "alerts")], DeadLetterFiles(folder / "letters"))
    with Process(
        Commits(StoreSettings(folder / "job", backend)), job, initial, sources, outlets, workers, pace
    ) as life:
        life.runner.run(threading.Event(), until_end=True)
    for opened in (sources, outlets):
        opened.close()
    return life.commits.totals, life.engine.rulebook.rulebook
