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

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import PART, StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.targets import default_target
from cep.sources.live.base import Chunk, decode_chunks
from cep.state.checkpoints import restore
from cep.step.job import Job
from tests.bench.embedded_cases import GIVEN, INITIAL, START_MS, WORKERS, payments
from tests.bench.embedded_latency import Paced, bench_latency
from tests.bench.embedded_rates import Peer, bench_replay, bench_throughput
from tests.bench.peer_data import show
from tests.real_kafka import open_kafka


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
        assert commits.last is not None
        copied, took_ms = commits.last.copied_bytes_count, (time.monotonic() - started_s) * 1_000
        whole_bytes, whole_ms = whole_bytes or copied, whole_ms or took_ms
        changed = f"{share:.0%} of the keys" if number else "the first"
        ratios = (f"{copied / whole_bytes:.3f}", f"{took_ms / whole_ms:.3f}")
        rows.append((changed, f"{copied:,}", f"{blocked_s * 1_000:,.0f}", f"{took_ms:,.0f}", *ratios))
    head = ("changed", "bytes copied", "ms stopped", "ms in all", "bytes ÷ the first", "ms ÷ the first")
    show(f"checkpoints, {keys:,} keys", head, rows)
    assert commits.last is not None
    total = commits.last.bytes_count
    engine.close()
    commits.close()
    started_s = time.monotonic()
    restored = restore(default_target(folder / "checkpoint"), folder / "restored")
    assert restored is not None
    settings.open(restored.path(PART)).close()
    restored_s = time.monotonic() - started_s
    (folder / "none.jsonl").write_text("")
    started_s = time.monotonic()
    script = "from cep.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    rules = str(Path(__file__).parents[2] / "rules")
    command = [sys.executable, "-c", script, "run", "--rules", rules, "--events", str(folder / "none.jsonl")]
    subprocess.run([*command, "--available-now"], check=True, capture_output=True)
    back = [
        ("bytes per key", f"{total / keys:,.0f}"),
        ("restore, ms", f"{restored_s * 1_000:,.0f}"),
        ("start and end of a process, ms", f"{(time.monotonic() - started_s) * 1_000:,.0f}"),
    ]
    show("and back", ("what", "figure"), back)


def main() -> None:
    """Measure and print."""
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
