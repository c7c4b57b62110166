"""Latency of `cep run` at fixed rates, exactly once, and the waits of the slowest micro-batches.

Latency is the time from the due time of an event until its commit is on disk and the sinks have its alerts. Without a
broker the job runs without a sink: the time then ends when the alerts are on disk, ready to be delivered.

The module also has the peer's patterns as a job, and payments of its shape. Run by bench/embedded.py.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cep.columnar.decode import Decoded
from cep.rulebook.deploy import deploy
from cep.runners.embedded import run as run_module
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Listener, Pace, Runner, shorten_pauses
from cep.runners.output import BatchReport
from cep.sinks.kafka import KafkaTarget, KafkaTransactionSink
from cep.sources.live.base import Chunk, Positions, decode_chunks
from cep.state.rocks import RocksStore
from cep.state.store import WriteBatch
from cep.step.job import Job
from tests.bench.peer_data import NAMES, SOURCE, records, show, upsert
from tests.runners.embedded.outside import Still

RECORDS = records(NAMES)
GIVEN = deploy(RECORDS)
INITIAL = tuple(record.to_json() for record in RECORDS)
# The same four patterns as a fraud team would write them: they match as much, and one event in sixty gives an alert. In
# their original form they give several alerts an event, once a key has had a few.
_SELDOM = """
pattern p3 by account {
  seq    here ->> there  within 30 min
  where  here:  tx
         there: tx  country != here.country and amount > 900.00
  skip   none
}
pattern p4 by account {
  seq    up{8}  within 1 h
  where  up: tx  up.amount is null or amount > up.amount
  skip   none
}
"""
SELDOM = tuple(
    record.to_json()
    for record in (
        upsert(SOURCE, "p1", large="2500.00"),
        upsert(SOURCE, "p2", large="1200.00"),
        *records(("p3", "p4"), SOURCE[: SOURCE.index("pattern p1")] + _SELDOM),
    )
)
START_MS = 1_700_000_000_000
WORKERS = 2


def payments(count: int, keys: int, seed: int, first_ms: int, in_order: bool = False, first: int = 0) -> pa.Array:
    """Return events of the peer's shape as JSON values; with `in_order` each key in turn, from `first` on."""
    random = np.random.default_rng(seed)
    account = (first + np.arange(count)) % keys if in_order else random.integers(0, keys, count)
    amount = np.round(random.gamma(0.4, 250.0, count), 2)
    columns = zip(
        range(count), (first_ms + np.arange(count) // 10).tolist(), account.tolist(), amount.tolist(),
        random.integers(0, 30, count).tolist(), (random.random(count) < 0.8).astype(int).tolist(), strict=True,
    )  # fmt: skip
    lines = [
        b'{"seq_no":"%d-%d","event_time":%d,"account":"%d","amount":%.2f,"merchant":1,"country":%d,"channel":1,'
        b'"success":%d}' % (seed, number, ms, key, value, country, success)
        for number, ms, key, value, country, success in columns
    ]
    return pa.array(lines, pa.large_binary())


_TOPIC = "alerts"
_SLOWEST = 0.001  # of the micro-batches
_SLOWEST_MIN = 5
_SETTLING_S = 1.0  # the first micro-batches after a pause are not measured
_FLOOR_S, _PACE_S, _COMMIT_BYTES = 10.0, 0.005, 32 << 10


@dataclass
class Paced(Still):
    """A source whose records are due at a fixed rate; `due_s` holds the due times of the last poll."""

    values: pa.Array
    rate: float
    started_s: float = 0.0
    at: int = 0
    ended: bool = False
    is_behind: bool = False  # more records were due than the last poll could take
    due_s: list[np.ndarray] = field(default_factory=list)

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        if not self.started_s:
            self.started_s = time.monotonic()
        due_count = self._due()
        if due_count == self.at:
            time.sleep(min(wait_s, max(0.0, self.started_s + (self.at + 1) / self.rate - time.monotonic())))
            due_count = self._due()
        end = min(due_count, self.at + records_max)
        first, self.at = self.at, end
        self.is_behind = end < due_count
        self.ended = end == len(self.values)
        if end == first:
            return []
        self.due_s.append(self.started_s + np.arange(first, end) / self.rate)
        return [Chunk("paced", self.values.slice(first, end - first))]

    def _due(self) -> int:
        return min(int((time.monotonic() - self.started_s) * self.rate), len(self.values))

    def positions(self) -> Positions:
        return {"paced": self.at}

    def seek(self, positions: Mapping[str, int]) -> None:
        self.at = positions["paced"]

    def behind(self) -> dict[str, bool]:
        return {"paced": self.is_behind}


class Nowhere(Still):
    """A sink that takes all alerts at once."""

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        """Take the alerts."""


@dataclass
class Clock:
    """Measures from the due time of each event until its commit is on disk and the sinks have its alerts."""

    source: Paced
    commits: Commits
    seconds: list[np.ndarray] = field(default_factory=list)
    stepped: list[np.ndarray] = field(default_factory=list)  # due times since the last commit
    behind: list[np.ndarray] = field(default_factory=list)  # due times of commits during another delivery
    committed: int = 0
    delivery: object = None
    alerts: int = 0

    def note(self, report: BatchReport) -> None:
        self.alerts += report.alerts.num_rows
        self.stepped.append(self.source.due_s.pop(0))

    def look(self) -> None:
        """Note the answered events after a cycle."""
        commits = self.commits
        number = 0 if commits.head is None else commits.head.number
        if number == self.committed:
            return
        self.committed, stepped, self.stepped = number, self.stepped, []
        (queue,) = commits.deliveries.queues
        delivery, syncing = queue.delivery, commits._log._syncing
        if delivery is None or (delivery is self.delivery and number not in commits.deliveries.undelivered.commits):
            self._take_when(syncing, stepped)  # it gives no alerts
        elif delivery is self.delivery:
            self.behind += stepped
        else:
            self.delivery, waited, self.behind = delivery, [*self.behind, *stepped], []
            self._take_when(delivery.done, waited)

    def _take_when(self, future: Future[Any] | None, due_s: list[np.ndarray]) -> None:
        """Count the events as answered when `future` is done, or now if it is None."""
        if future is None:
            self.take(due_s)
        else:
            future.add_done_callback(lambda _: self.take(due_s))

    def take(self, due_s: list[np.ndarray]) -> None:
        measured_s = self.source.started_s + _SETTLING_S
        self.seconds += [time.monotonic() - batch_s[batch_s >= measured_s] for batch_s in due_s]


@dataclass
class Phases:
    """Milliseconds of each phase of each micro-batch."""

    of_batch: list[dict[str, float]] = field(default_factory=list)
    current: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timing(self, commits: Commits, engine: Engine) -> Iterator[None]:
        """Time the calls that make up a micro-batch, while the context is open."""
        store = commits.store
        calls: list[tuple[Any, str, str]] = [
            (run_module, "decode_chunks", "decode"), (engine, "step", "match"), (engine, "save", "gather what changed"),
            (store, "write", "write to the store"),
            (commits._log, "finish", "wait for the disk"), (commits, "checkpoint", "begin a checkpoint"),
        ]  # fmt: skip
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in calls]
        for owner, name, phase in calls:
            setattr(owner, name, self._timed(getattr(owner, name), phase))
        try:
            yield
        finally:
            for owner, name, method in before:
                setattr(owner, name, method)

    def cycle(self, work: Callable[[], bool]) -> None:
        """Time one cycle; idle cycles are left out."""
        self.current = {}
        began_s = time.perf_counter()
        is_busy = work()
        if is_busy and "match" in self.current:
            whole = (time.perf_counter() - began_s) * 1_000
            self.of_batch.append({**self.current, "the rest": whole - sum(self.current.values()), "all": whole})

    def _timed(self, method: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def timed(*args: Any, **named: Any) -> Any:
            began_s = time.perf_counter()
            try:
                return method(*args, **named)
            finally:
                took_ms = (time.perf_counter() - began_s) * 1_000
                self.current[phase] = self.current.get(phase, 0.0) + took_ms

        return timed

    def tell(self, title: str) -> None:
        """Print for the slowest micro-batches how much longer than its median each phase took."""
        names = [*dict.fromkeys(name for batch in self.of_batch for name in batch if name != "all"), "all"]
        times_ms = np.array([[batch.get(name, 0.0) for name in names] for batch in self.of_batch])
        slowest = np.argsort(times_ms[:, names.index("all")])[-max(_SLOWEST_MIN, int(len(times_ms) * _SLOWEST)) :]
        medians, tail = np.median(times_ms, axis=0), times_ms[slowest].mean(axis=0)
        blamed = [names[int(np.argmax(times_ms[row, :-1] - medians[:-1]))] for row in slowest]
        rows = [
            (
                name,
                f"{medians[n]:.2f}",
                f"{np.percentile(times_ms[:, n], 99):.2f}",
                f"{tail[n]:.2f}",
                str(blamed.count(name)),
            )
            for n, name in enumerate(names)
        ]
        head = ("phase", "median ms", "p99 ms", f"the {len(slowest)} slowest, mean ms", "longest over its median")
        show(title, head, rows)


def bench_latency(
    folder: Path, rates: list[int], keys_counts: list[int], seconds: float, servers: str | None = None,
    *, are_many: bool = False,
) -> None:  # fmt: skip
    """Print percentiles at fixed rates, exactly once, state on RocksDB; a broker, if there is one, gets the alerts.

    `are_many`: the peer's original patterns, which give several alerts an event.
    """
    rows = []
    tables: list[tuple[str, Phases]] = []
    for keys in keys_counts:
        job = Job(GIVEN.schema, GIVEN.key_domains, 32, max(1, keys // 100_000))
        commits = Commits(StoreSettings(folder / f"latency-{keys}", cache_bytes=64 << 20))
        initial = INITIAL if are_many else SELDOM
        engine = Engine(job, initial, commits.store, Workers(WORKERS, 0, None, 64 << 20))
        first_ms = _fill(engine, commits, keys)
        target = None if servers is None else KafkaTarget(servers, _TOPIC, f"bench-{keys}")
        sinks = (Nowhere() if target is None else KafkaTransactionSink(target),)
        shorten_pauses()
        for rate in rates:
            count = int(rate * seconds)
            source = Paced(payments(count, keys, 1, first_ms), rate)
            first_ms += count
            clock, phases, loads, stolen_ms = Clock(source, commits), Phases(), engine.loads_count, _stolen_ms()
            runner = Runner(engine, Sources(source, None), Outlets(sinks, None), commits, Pace(), Listener(clock.note))
            with phases.timing(commits, engine):
                while not source.ended:
                    phases.cycle(lambda runner=runner: runner.cycle(0.05))  # type: ignore[misc]
                    clock.look()
            runner.finish()
            clock.look()
            clock.take([*clock.stepped, *clock.behind])
            ms = np.concatenate(clock.seconds) * 1_000
            figures = [f"{np.percentile(ms, p):,.1f}" for p in (50, 99, 99.9)]
            loaded = engine.loads_count - loads
            counts = (count / len(phases.of_batch), clock.alerts / seconds, loaded, _stolen_ms() - stolen_ms)
            rows.append((f"{rate:,}", f"{keys:,}", *figures, *(f"{figure:,.0f}" for figure in counts)))
            tables.append((f"{rate:,} events/s, {keys:,} keys: what the slowest micro-batches waited for", phases))
        engine.close()
        commits.close()
        Outlets(sinks, None).close()
    head = (
        "events/s", "keys", "p50 ms", "p99 ms", "p99.9 ms", "events a batch", "alerts/s", "loads",
        "stolen ms",
    )  # fmt: skip
    where = "until alerts are on the disk" if servers is None else "until a Kafka transaction has the alerts"
    show(f"latency, exactly once, RocksDB, {where} (p99.9 is to be under 20 ms at 10,000 events/s)", head, rows)
    for title, phases in tables:
        phases.tell(title)
    show("what this machine does to those who do nothing else", ("", "p50 ms", "p99 ms", "p99.9 ms"), floors_ms(folder))


def _fill(engine: Engine, commits: Commits, keys: int) -> int:
    """Send an event of every key, before the clock starts; return the time of the next event, a minute later."""
    first_ms, at_once = START_MS, 50_000
    for number in range(0, keys, at_once):
        values = payments(min(at_once, keys - number), keys, 0, first_ms, in_order=True, first=number)
        decoded = decode_chunks(engine.job.schema, [Chunk("paced", values)])
        first_ms = decoded.latest_ms["paced"] + 1
        _step(engine, commits, decoded.parts, first_ms - 1)
    first_ms += 60_000
    _step(engine, commits, [], first_ms - 1)
    # Later measurements must not wait for the disk writes of this setup, or for the first checkpoint, which copies all.
    commits.checkpoint(engine)
    commits.finish(wait=True)
    store = commits.store
    assert isinstance(store, RocksStore)
    while store._figure("num-running-compactions") or store._figure("compaction-pending"):
        time.sleep(_SETTLING_S)
    os.sync()
    return first_ms


def _step(engine: Engine, commits: Commits, parts: Sequence[Decoded], watermark_ms: int) -> None:
    counters = engine.step(parts, (), {"paced": (watermark_ms, False)}).counters
    assert not counters["late_events"], "every key has its event"
    batch = WriteBatch()
    engine.save(batch, 0)
    commits.store.write(batch)


def _stolen_ms() -> float:
    """Return how long the cores of a virtual machine have waited for other guests of the host; 0 if unknown."""
    about = Path("/proc/stat")
    if not about.exists():
        return 0.0
    return int(about.read_text().split("\n", 1)[0].split()[8]) * 1_000 / os.sysconf("SC_CLK_TCK")


def floors_ms(folder: Path) -> list[tuple[str, ...]]:
    """Measure the lower bounds of the latencies, as percentiles.

    At the pace of micro-batches: a durable write with the size of a commit, and a millisecond of work, in turn.
    """
    writes, works = [], []
    count = _measured_work(0.001)
    with (folder / "synced").open("wb") as file:
        end_s = time.monotonic() + _FLOOR_S
        while time.monotonic() < end_s:
            began_s = time.perf_counter()
            sum(range(count))
            worked_s = time.perf_counter()
            file.write(bytes(_COMMIT_BYTES))
            file.flush()
            os.fsync(file.fileno())
            works.append((worked_s - began_s) * 1_000)
            writes.append((time.perf_counter() - worked_s) * 1_000)
            time.sleep(_PACE_S)
    named = ((f"a durable write of {_COMMIT_BYTES:,} bytes", writes), ("a millisecond of work", works))
    return [(label, *(f"{np.percentile(ms, p):,.2f}" for p in (50, 99, 99.9))) for label, ms in named]


def _measured_work(seconds: float) -> int:
    """Return the n for which `sum(range(n))` takes that time without disturbance."""
    count, least = 10_000, float("inf")
    for _ in range(50):
        began_s = time.perf_counter()
        sum(range(count))
        least = min(least, time.perf_counter() - began_s)
    return int(count * seconds / least)
