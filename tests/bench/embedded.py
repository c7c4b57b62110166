"""The embedded runner: replay, throughput on each store, latency, checkpoints, start-up; next to the peer if given.

    [FLINK_VENV=ENV] python -m tests.bench.embedded [--full] [--only PART …] [--kafka] [--rates N …] [--keys N …]
                                                     [--many-alerts]

    replay      Parquet to alerts: in this process, and `cep replay` as its own process; ÷ the peer in memory
    throughput  the same events through the live job, state in memory and on RocksDB; the peer's two backends; counts
                and checksums of matches are compared
    latency     from the due time of an event until its commit is on disk and the sinks have its alerts, at fixed rates;
                the state of all keys exists before the clock starts; with many keys the cache holds a part. Without
                --kafka the job runs without sinks, and the time ends when the alerts are on disk. The first second is
                not measured; --full adds 24 seconds, with two checkpoints. For the slowest micro-batches it prints the
                phases that took longer than their median. The four patterns have amounts at which one event in sixty
                gives an alert; with --many-alerts they have the peer's amounts, and give several alerts an event
    checkpoint  size and time when 1, 10 and 100 % of the keys have changed; restore; bytes per key; start-up

Without --full: fewer events, one rate and few keys, as a quick check.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import STORE_PART, StoreSettings, default_target
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.replay import replay
from cep.runners.embedded.run import Listener, Pace, Runner
from cep.runners.output import BatchReport
from cep.sources.live.base import Chunk, decode_chunks
from cep.sources.live.files import FilesSource
from cep.sources.pieces import read_pieces
from cep.state.checkpoints import restore
from cep.step.job import Job
from tests.bench import peer_data
from tests.bench.embedded_latency import GIVEN, INITIAL, START_MS, WORKERS, Paced, bench_latency, payments
from tests.real_kafka import open_kafka
from tests.rule_files import rule_text

# The peer's events, and whether an uncounted run comes first. On RocksDB the peer gets slower with every event (its
# README), so that its rate there holds for the first ones only.
PEER_EVENTS = {"hashmap": (300_000, 1), "rocksdb": (10_000, 0)}
_CEP = "from cep.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
Answers = dict[str, tuple[int, str]]  # by pattern: matches and their checksum


def events_file(folder: Path, count: int) -> Path:
    """Write the peer's events as Parquet."""
    path = folder / f"events-{count}.parquet"
    if not path.exists():
        columns = peer_data.peer_columns(count)
        times = pa.array(np.asarray(columns.pop("ts")), pa.timestamp("ms", "UTC"))
        columns["seq_no"] = columns.pop("seq")
        pq.write_table(pa.table({"event_time": times, **columns}), path, row_group_size=250_000)
    return path


class Peer:
    """The peer's figures: each backend is measured once, with one task, on the share `part` of its PEER_EVENTS."""

    def __init__(self, folder: Path, part: float) -> None:
        self._folder = folder
        self._part = part
        self._known: dict[str, dict[str, Any]] = {}

    def count(self, backend: str) -> int:
        return int(PEER_EVENTS[backend][0] * self._part)

    def rate(self, backend: str) -> float:
        """Return the events a second of the four patterns together."""
        return float(self._figures(backend)["events_per_s"])

    def answers(self, backend: str) -> Answers:
        return {name: (int(count), str(digest)) for name, (count, digest) in self._figures(backend)["matches"].items()}

    def _figures(self, backend: str) -> dict[str, Any]:
        if backend not in self._known:
            path = self._folder / f"events-{backend}.csv"
            peer_data.write_events(peer_data.peer_columns(self.count(backend)), path)
            warm = str(PEER_EVENTS[backend][1])
            options = ["--patterns", "all", "--warmup", warm, "--runs", "1", "--backend", backend]
            self._known[backend] = peer_data.run_peer(path, 1, *options)["all"]
        return self._known[backend]


def bench_replay(folder: Path, count: int, peer: Peer | None) -> None:
    """Measure files to alerts: in this process, and as `cep replay`, including the start of the process."""
    path = events_file(folder, count)
    rows = []
    for workers in (1, 2):
        job = Job(GIVEN.schema, GIVEN.key_domains)
        seconds = peer_data.median_seconds(
            lambda w=workers, j=job: replay(j, GIVEN.rulebook, read_pieces(path, j.schema), w)  # type: ignore[misc]
        )
        rows.append((f"in this process, {workers} threads", count / seconds))
    cold_s, start_s = _replay_seconds(folder, path), _replay_seconds(folder, events_file(folder, 1_000))
    rows.append(("cep replay, cold process", count / cold_s))
    rows.append(("cep replay, less its start", count / (cold_s - start_s)))
    table = [(who, f"{rate:,.0f}", _ratio(rate, peer, "hashmap")) for who, rate in rows]
    if peer is not None:
        table.append(("Flink CEP, hashmap, 1 task", f"{peer.rate('hashmap'):,.0f}", "1.0"))
    title = f"replay of {count:,} events, four patterns; starting a process and replaying 1,000 takes {start_s:.2f} s"
    peer_data.show(title, ("who", "events/s", "÷ Flink in memory"), table)


def _replay_seconds(folder: Path, path: Path) -> float:
    """Return the least of three runs of `cep replay`, each in its own process."""
    rules = folder / "rules"
    if not rules.exists():
        rules.mkdir()
        (folder / "patterns").mkdir()
        (folder / "patterns" / "peer.cep").write_text(peer_data.SOURCE)
        for name in peer_data.NAMES:
            (rules / f"{name}.toml").write_text(rule_text(name, "../patterns/peer.cep"))
    command = [sys.executable, "-c", _CEP, "replay", "--engine", "embedded", "--rules", str(rules)]
    command += ["--events", str(path), "--out", str(folder / "replayed.parquet")]
    times_s = []
    for _ in range(3):
        began_s = time.perf_counter()
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        times_s.append(time.perf_counter() - began_s)
        assert result.returncode == 0, result.stderr
    return min(times_s)


def bench_throughput(folder: Path, count: int, peer: Peer | None) -> None:
    """Measure the live job at full speed, with commits and checkpoints; and the peer's two backends."""
    rates: dict[str, float] = {}
    rows = []
    for backend, theirs in (("memory", "hashmap"), ("rocksdb", "rocksdb")):
        events, seconds, _ = _live(folder, f"{backend}-{count}", backend, events_file(folder, count))
        rates[backend] = rate = events / seconds
        same = ""
        if peer is not None:
            _, _, alerts = _live(folder, f"{backend}-peer", backend, events_file(folder, peer.count(theirs)))
            same = "equal" if _answers(alerts) == peer.answers(theirs) else "DIFFERENT"
        ratios = (f"{rate / rates['memory']:.2f}", _ratio(rate, peer, theirs), _ratio(rate, peer, "hashmap"))
        rows.append((f"cep run, {backend}, 2 threads", f"{events:,}", f"{rate:,.0f}", *ratios, same))
    for backend in PEER_EVENTS if peer is not None else ():
        assert peer is not None
        rate, in_memory = peer.rate(backend), peer.rate("hashmap")
        of_memory = f"{rate / in_memory:.2f}"
        who = f"Flink CEP, {backend}, 1 task"
        rows.append((who, f"{peer.count(backend):,}", f"{rate:,.0f}", of_memory, "1.0", of_memory, ""))
    head = ("who", "events", "events/s", "÷ own in memory", "÷ Flink, alike", "÷ Flink in memory", "matches, checksums")
    peer_data.show("live, four patterns; matches are compared on the peer's events", head, rows)


def _live(folder: Path, name: str, backend: str, path: Path) -> tuple[int, float, list[pa.Table]]:
    """Run a job from its start to its last checkpoint; return (events, seconds, alerts)."""
    commits = Commits(StoreSettings(folder / f"job-{name}", backend))
    job = Job(GIVEN.schema, GIVEN.key_domains, 32)
    engine = Engine(job, INITIAL, commits.store, Workers(2, 0, None, None if backend == "memory" else 64 << 20))
    sources = Sources(FilesSource(path, follow=False), None)
    alerts: list[pa.Table] = []
    events = 0

    def note(report: BatchReport) -> None:
        nonlocal events
        events += report.counters["events"]
        alerts.append(report.alerts)

    runner = Runner(engine, sources, Outlets((), None), commits, Pace(), Listener(note))
    started_s = time.monotonic()
    runner.start()
    while not sources.events.ended:
        runner.cycle(0.0)
    runner.finish()
    seconds = time.monotonic() - started_s
    engine.close()
    commits.close()
    return events, seconds, alerts


def _answers(alerts: list[pa.Table]) -> Answers:
    """Return matches and checksums by pattern, as the peer counts them."""
    bound_ids: dict[str, list[list[int]]] = {name: [] for name in peer_data.NAMES}
    for table in alerts:
        for rule, events in zip(table["rule_id"].to_pylist(), table["events"].to_pylist(), strict=True):
            bound_ids[rule].append([int(event["event_id"]) for event in events])
    return {name: (len(ids), peer_data.checksum(ids)) for name, ids in bound_ids.items()}


def _ratio(rate: float, peer: Peer | None, backend: str) -> str:
    return "" if peer is None else f"{rate / peer.rate(backend):.1f}"


def bench_checkpoint(folder: Path, keys: int) -> None:
    """Measure checkpoints by the share of changed keys, and the restore."""
    job = Job(GIVEN.schema, GIVEN.key_domains, 128, 4)
    settings = StoreSettings(folder / "checkpoint", checkpoint_ms=0)
    commits = Commits(settings)
    engine = Engine(job, INITIAL, commits.store, Workers(WORKERS, 0, None, 64 << 20))
    sources, outlets = Sources(Paced(payments(1, 1, 9, START_MS), 1.0), None), Outlets((), None)
    rows = []
    whole_bytes = whole_ms = 0.0
    for number, share in enumerate((1.0, 0.01, 0.1, 1.0)):
        first_ms = START_MS + number * keys  # after earlier events: each event has a tenth of a millisecond to itself
        values = payments(int(keys * share), keys, number, first_ms, in_order=True)
        decoded = decode_chunks(job.schema, [Chunk("p", values)])
        engine.step(decoded.parts, (), {"p": (decoded.latest_ms["p"], False)})
        started_s = time.monotonic()
        assert commits.begin(engine, sources, outlets)
        blocked_s = time.monotonic() - started_s
        commits.finish(wait=True)
        assert commits.checkpoints is not None
        assert commits.checkpoints.last is not None
        copied, took_ms = commits.checkpoints.last.copied_bytes_count, (time.monotonic() - started_s) * 1_000
        whole_bytes, whole_ms = whole_bytes or copied, whole_ms or took_ms
        changed = f"{share:.0%} of the keys" if number else "the first"
        ratios = (f"{copied / whole_bytes:.3f}", f"{took_ms / whole_ms:.3f}")
        rows.append((changed, f"{copied:,}", f"{blocked_s * 1_000:,.0f}", f"{took_ms:,.0f}", *ratios))
    head = ("changed", "bytes copied", "ms stopped", "ms in all", "bytes ÷ the first", "ms ÷ the first")
    peer_data.show(f"checkpoints, {keys:,} keys", head, rows)
    assert commits.checkpoints is not None
    assert commits.checkpoints.last is not None
    total = commits.checkpoints.last.bytes_count
    engine.close()
    commits.close()
    started_s = time.monotonic()
    restored = restore(default_target(folder / "checkpoint"), folder / "restored")
    assert restored is not None
    settings.open(restored.path(STORE_PART)).close()
    restored_s = time.monotonic() - started_s
    (folder / "none.jsonl").write_text("")
    started_s = time.monotonic()
    rules = str(Path(__file__).parents[2] / "rules")
    command = [sys.executable, "-c", _CEP, "run", "--rules", rules, "--events", str(folder / "none.jsonl")]
    subprocess.run([*command, "--available-now"], check=True, capture_output=True)
    back = [
        ("bytes per key", f"{total / keys:,.0f}"),
        ("restore, ms", f"{restored_s * 1_000:,.0f}"),
        ("start and end of a process, ms", f"{(time.monotonic() - started_s) * 1_000:,.0f}"),
    ]
    peer_data.show("and back", ("what", "figure"), back)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all rates, many keys, millions of events")
    parts = ("replay", "throughput", "latency", "checkpoint")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--kafka", action="store_true", help="latency: alerts go into a topic of an Apache Kafka")
    parser.add_argument("--rates", nargs="+", type=int, help="latency: events a second, in place of its own")
    parser.add_argument("--keys", nargs="+", type=int, help="latency: how many keys, in place of its own")
    parser.add_argument("--many-alerts", action="store_true", help="latency: several alerts an event")
    options = parser.parse_args()
    full = options.full
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peer = Peer(folder, 1.0 if full else 0.1) if os.environ.get("FLINK_VENV") else None
        if "replay" in options.only:
            bench_replay(folder, 4_000_000 if full else 100_000, peer)
        if "throughput" in options.only:
            bench_throughput(folder, 2_000_000 if full else 100_000, peer)
        if "latency" in options.only:
            broker = open_kafka() if options.kafka else None
            rates, keys, seconds = ([1_000, 10_000], [20_000], 3.0)
            if full:
                rates, keys, seconds = ([1_000, 10_000, 100_000], [50_000, 5_000_000], 25.0)
            address = broker.address if broker else None
            rates, keys = options.rates or rates, options.keys or keys
            bench_latency(folder, rates, keys, seconds, address, are_many=options.many_alerts)
            if broker is not None:
                broker.close()
        if "checkpoint" in options.only:
            bench_checkpoint(folder, 1_000_000 if full else 20_000)


if __name__ == "__main__":
    main()
