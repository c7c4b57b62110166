"""The embedded runner: replay, throughput on each store, latency, checkpoints, start-up; beside the peer if given.

    [FLINK_VENV=ENV] python -m tests.bench.embedded [--full] [--only PART …]

replay      Parquet to alerts, in memory, on one and two threads; the peer's four patterns together
throughput  the same events through the live job, state in memory and on RocksDB; the peer's two backends
latency     from when an event is due to when its commit is on disk and its alerts are with the sinks, at fixed rates;
            the state of all keys is there before the clock starts; of many keys the cache holds a part
checkpoint  size and time when 1, 10 and 100 % of the pages have changed; restore; bytes per key; start-up

Without --full: fewer events, one rate, few keys, to see that it works.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cep.rulebook.deploy import deploy
from cep.runners.embedded.commit import Commits, Outlets, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import PART, StoreSettings
from cep.runners.embedded.replay import replay
from cep.runners.embedded.run import BatchReport, Pace, Runner
from cep.runners.embedded.targets import own_target
from cep.runners.job import Job
from cep.sources.live.base import Chunk, Positions, decode_chunks
from cep.sources.live.files import FilesSource
from cep.sources.pieces import read_pieces
from cep.state.checkpoints import restore
from cep.state.store import WriteBatch
from tests.bench.peer import run_peer, write_events
from tests.bench.peer_data import NAMES, median_seconds, peer_columns, records, show

RECORDS = records(NAMES)
GIVEN = deploy(RECORDS)
INITIAL = tuple(record.to_json() for record in RECORDS)
START_MS = 1_700_000_000_000
WORKERS = 2


@dataclass
class Paced:
    """A source whose records are due at a fixed rate; `due_s` tells when each record of the last poll was."""

    values: pa.Array
    rate: float
    started_s: float = 0.0
    at: int = 0
    ended: bool = False
    due_s: list[np.ndarray] = field(default_factory=list)

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        if not self.started_s:
            self.started_s = time.monotonic()
        end = self._due(records_max)
        if end == self.at:
            time.sleep(min(wait_s, max(0.0, self.started_s + (self.at + 1) / self.rate - time.monotonic())))
            end = self._due(records_max)
        first, self.at = self.at, end
        self.ended = end == len(self.values)
        if end == first:
            return []
        self.due_s.append(self.started_s + np.arange(first, end) / self.rate)
        return [Chunk("paced", self.values.slice(first, end - first))]

    def _due(self, records_max: int) -> int:
        due = int((time.monotonic() - self.started_s) * self.rate)
        return min(due, self.at + records_max, len(self.values))

    def positions(self) -> Positions:
        return {"paced": self.at}

    def seek(self, positions: Mapping[str, int]) -> None:
        self.at = positions["paced"]

    def behind(self) -> dict[str, bool]:
        return {"paced": False}

    def close(self) -> None:
        pass


def payments(count: int, keys: int, seed: int, first_ms: int, in_order: bool = False, first: int = 0) -> pa.Array:
    """Events of the peer's shape as JSON values; with `in_order` each key once in turn, beginning with `first`."""
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


def bench_replay(folder: Path, count: int, peer: bool) -> None:
    """Files to alerts in memory."""
    path = events_file(folder, count)
    rows = []
    for workers in (1, 2):
        job = Job(GIVEN.schema, GIVEN.key_domains)
        seconds = median_seconds(
            lambda w=workers, j=job: replay(j, GIVEN.rulebook, read_pieces(path, j.schema), w)  # type: ignore[misc]
        )
        rows.append((f"{workers} threads", f"{count / seconds:,.0f}"))
    if peer:
        rows.append(("Flink CEP, hashmap, 1 task", f"{peer_rate(folder, count, 'hashmap'):,.0f}"))
    show(f"replay of {count:,} events, four patterns", ("who", "events/s"), rows)


def bench_throughput(folder: Path, count: int, peer: bool) -> None:
    """The live job as fast as it goes, with checkpoints every second."""
    path = events_file(folder, count)
    rows = []
    for backend in ("memory", "rocksdb"):
        settings = StoreSettings(folder / f"job-{backend}", backend)
        commits = Commits(settings)
        bytes_max = None if backend == "memory" else 64 << 20
        job = Job(GIVEN.schema, GIVEN.key_domains, 32)
        engine = Engine(job, INITIAL, commits.store, Workers(2, 0, None, bytes_max))
        sources = Sources(FilesSource(path, follow=False), None)
        runner = Runner(engine, sources, Outlets((), None), commits, Pace())
        started_s = time.monotonic()
        runner.start()
        while not sources.events.ended:
            runner.cycle(0.0)
        runner.finish()
        rows.append((f"cep run, {backend}", f"{count / (time.monotonic() - started_s):,.0f}"))
        engine.close()
        commits.close()
    if peer:
        rows += [
            (f"Flink CEP, {backend}, 2 tasks", f"{peer_rate(folder, count, backend, 2):,.0f}")
            for backend in ("hashmap", "rocksdb")
        ]
    show(f"live, {count:,} events, four patterns, two threads", ("who", "events/s"), rows)


@dataclass
class Clock:
    """From when each event was due to when its commit was on disk and its alerts were with the sinks."""

    source: Paced
    commits: Commits
    seconds: list[np.ndarray] = field(default_factory=list)
    stepped: list[np.ndarray] = field(default_factory=list)  # since the last commit
    behind: list[np.ndarray] = field(default_factory=list)  # committed while another delivery was on its way
    committed: int = 0
    delivery: object = None

    def note(self, _: BatchReport) -> None:
        self.stepped.append(self.source.due_s.pop(0))

    def look(self) -> None:
        """After each cycle."""
        commits = self.commits
        number = 0 if commits.head is None else commits.head.number
        if number == self.committed:
            return
        self.committed, own, self.stepped = number, self.stepped, []
        delivery = commits._delivery
        if delivery is None:
            self.take(own)
        elif delivery is self.delivery:
            self.behind += own
        else:
            self.delivery, waited, self.behind = delivery, [*self.behind, *own], []
            delivery.done.add_done_callback(lambda _: self.take(waited))

    def take(self, due_s: list[np.ndarray]) -> None:
        self.seconds += [time.monotonic() - due for due in due_s]


def bench_latency(folder: Path, rates: list[int], keys_counts: list[int], seconds: float) -> None:
    """Percentiles at fixed rates, exactly once, state on RocksDB."""
    rows = []
    for keys in keys_counts:
        # Pages of some ten keys: the runner makes 256 of each part of a key group.
        job = Job(GIVEN.schema, GIVEN.key_domains, 32, max(1, keys // 100_000))
        settings = StoreSettings(folder / f"latency-{keys}", cache_bytes=64 << 20)
        commits = Commits(settings)
        engine = Engine(job, INITIAL, commits.store, Workers(WORKERS, 0, None, 64 << 20))
        for number in range(0, keys, 50_000):
            some = min(50_000, keys - number)
            values = payments(some, keys, 0, START_MS, in_order=True, first=number)
            decoded = decode_chunks(job.schema, [Chunk("paced", values)])
            engine.step(decoded.parts, (), {"paced": (decoded.latest_ms["paced"], False)})
            batch = WriteBatch()
            engine.save(batch, 0)
            commits.store.write(batch)
        first_ms = START_MS + 60_000
        for rate in rates:
            count = int(rate * seconds)
            source = Paced(payments(count, keys, 1, first_ms), rate)
            first_ms += count
            clock = Clock(source, commits)
            runner = Runner(engine, Sources(source, None), Outlets((), None), commits, Pace(), clock.note)
            loads = engine.loads_count
            while not source.ended:
                runner.cycle(0.05)
                clock.look()
            runner.finish()
            clock.look()
            clock.take([*clock.stepped, *clock.behind])
            ms = np.concatenate(clock.seconds) * 1_000
            figures = [f"{np.percentile(ms, p):,.1f}" for p in (50, 99, 99.9)]
            loaded = engine.loads_count - loads
            rows.append((f"{rate:,}", f"{keys:,}", *figures, f"{count / len(clock.seconds):,.0f}", f"{loaded:,}"))
        engine.close()
        commits.close()
    head = ("events/s", "keys", "p50 ms", "p99 ms", "p99.9 ms", "events a micro-batch", "pages loaded")
    show("latency, exactly once, RocksDB", head, rows)
    show("one write to this disk", ("", "p50 ms", "p99 ms"), [("fsync of 4 kB", *sync_ms(folder))])


def sync_ms(folder: Path) -> tuple[str, str]:
    """What bounds a commit: the median and the 99th percentile of a small durable write."""
    found = []
    with (folder / "synced").open("wb") as file:
        for _ in range(200):
            file.write(bytes(4_096))
            file.flush()
            began_s = time.perf_counter()
            os.fsync(file.fileno())
            found.append((time.perf_counter() - began_s) * 1_000)
    return f"{np.percentile(found, 50):,.2f}", f"{np.percentile(found, 99):,.2f}"


def bench_checkpoint(folder: Path, keys: int) -> None:
    """What a checkpoint costs, by what has changed, and the way back."""
    job = Job(GIVEN.schema, GIVEN.key_domains, 128, 4)
    settings = StoreSettings(folder / "checkpoint")
    commits = Commits(settings)
    engine = Engine(job, INITIAL, commits.store, Workers(2, 0, None, 64 << 20))
    sources, outlets = Sources(Paced(payments(1, 1, 9, START_MS), 1.0), None), Outlets((), None)
    rows = []
    for number, share in enumerate((1.0, 0.01, 0.1, 1.0)):
        # A fresh key touches one page: as many keys as there are pages, and more for all of them.
        count = keys if share == 1.0 else max(1, int(share * 512))
        decoded = decode_chunks(job.schema, [Chunk("p", payments(count, keys, number, START_MS, in_order=True))])
        engine.step(decoded.parts, (), {"p": (decoded.latest_ms["p"], False)})
        started_s = time.monotonic()
        assert commits.begin(engine, sources, outlets)
        blocked_s = time.monotonic() - started_s
        commits.finish(wait=True)
        assert commits.last is not None
        what = f"{share:.0%} of the pages" if number else "the first"
        whole = f"{(time.monotonic() - started_s) * 1_000:,.0f}"
        rows.append((what, f"{commits.last.copied_bytes_count:,}", f"{blocked_s * 1_000:,.0f}", whole))
    show(f"checkpoints, {keys:,} keys", ("changed", "bytes copied", "ms stopped", "ms in all"), rows)
    assert commits.last is not None
    total = commits.last.bytes_count
    engine.close()
    commits.close()
    started_s = time.monotonic()
    found = restore(own_target(folder / "checkpoint"), folder / "restored")
    assert found is not None
    settings.open(found.path(PART)).close()
    restored_s = time.monotonic() - started_s
    (folder / "none.jsonl").write_text("")
    started_s = time.monotonic()
    script = "from cep.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    rules = str(Path(__file__).parents[2] / "rules")
    command = [sys.executable, "-c", script, "run", "--rules", rules, "--events", str(folder / "none.jsonl")]
    subprocess.run(command, check=True, capture_output=True)
    back = [
        ("bytes per key", f"{total / keys:,.0f}"),
        ("restore, ms", f"{restored_s * 1_000:,.0f}"),
        ("start and end of a process, ms", f"{(time.monotonic() - started_s) * 1_000:,.0f}"),
    ]
    show("and back", ("what", "figure"), back)


def events_file(folder: Path, count: int) -> Path:
    """The peer's events as Parquet."""
    path = folder / f"events-{count}.parquet"
    if not path.exists():
        columns = peer_columns(count)
        times = pa.array(np.asarray(columns.pop("ts")), pa.timestamp("ms", "UTC"))
        columns["seq_no"] = columns.pop("seq")
        pq.write_table(pa.table({"event_time": times, **columns}), path, row_group_size=250_000)
    return path


def peer_rate(folder: Path, count: int, backend: str, tasks: int = 1) -> float:
    """Events a second of the peer's four patterns together."""
    path = folder / "events.csv"
    if not path.exists():
        write_events(peer_columns(min(count, 300_000)), path)
    options = ["--patterns", "all", "--warmup", "1", "--runs", "1", "--backend", backend]
    return float(run_peer(path, tasks, *options)["all"]["events_per_s"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all rates, many keys, a million events")
    parts = ("replay", "throughput", "latency", "checkpoint")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    options = parser.parse_args()
    peer = bool(os.environ.get("FLINK_VENV"))
    count = 1_000_000 if options.full else 100_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "replay" in options.only:
            bench_replay(folder, count, peer)
        if "throughput" in options.only:
            bench_throughput(folder, count, peer)
        if "latency" in options.only and options.full:
            bench_latency(folder, [1_000, 10_000, 100_000], [50_000, 5_000_000], 10.0)
        elif "latency" in options.only:
            bench_latency(folder, [1_000, 10_000], [20_000], 3.0)
        if "checkpoint" in options.only:
            bench_checkpoint(folder, 1_000_000 if options.full else 20_000)


if __name__ == "__main__":
    main()
