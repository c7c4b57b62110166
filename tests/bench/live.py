"""Live catch-up: a backlog of the peer's events → alerts, with keyed state kept durably, micro-batch by micro-batch.

    [FLINK_VENV=…] python -m tests.bench.live [EVENTS] [--files N] [--key-groups N] [--pages N]
    [FLINK_VENV=…] python -m tests.bench.live 5000000 --kafka [--max-records N]

The job is the one of `cep live --available-now`: RocksDB with changelog checkpointing, no lateness, and it reads JSON
lines from a folder (with --kafka: from four partitions of an Apache Kafka beside it, or, where that cannot be had, from
librdkafka's mock cluster, as many events as that holds). Its alerts must be those of a replay of the same events.
"steady" leaves out the start of the session and the first micro-batch, in which Python workers start; "over all" is
from the start of the query to its end. With --kafka the stream ends with an event of the next day, which closes all
windows, so that no keyed state is left to measure. With FLINK_VENV the peer runs on the same events, with two tasks and
its keyed state in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import SparkSession

from cep.rulebook.deploy import Deployment, deploy
from cep.runners.job import Job
from cep.runners.spark.live import SPARK_SETTINGS, FolderSource, LiveSettings, Source, TopicSource, serve, start_live
from cep.runners.spark.live_output import BatchReport, LiveOutput
from cep.runners.spark.replay import read_events, replay
from cep.runners.spark.session import create_session
from cep.sinks.json_form import json_lines
from cep.sinks.letters import LetterFiles
from cep.state.pages import decode_page
from tests.bench.peer import run_peer, write_events
from tests.bench.peer_data import KEYS, peer_columns, records, show
from tests.mock_kafka import PARTITIONS
from tests.real_kafka import MockCluster, RealKafka, open_kafka

CORES = 2
EVENTS_PER_FILE = 25_000
# The mock cluster keeps about five megabytes a partition and drops the oldest records; a record has 150 bytes.
KAFKA_EVENTS_MAX = 100_000
TOPIC = "events"
SENT_AT_ONCE = 200_000
CLOSING_MS = 86_400_000
# The four patterns together, one cold run: of a million events it takes a minute, so its start hardly counts.
PEER_OPTIONS = ("--patterns", "all", "--warmup", "0", "--runs", "1")
# What Spark counts of calls into RocksDB.
CALLS = ("rocksdbGetCount", "rocksdbPutCount")


@dataclass(frozen=True, slots=True)
class Caught:
    """One catch-up: what Spark says of each micro-batch, what the job reported of each, and how long all took."""

    progress: tuple[dict[str, Any], ...]
    reports: tuple[BatchReport, ...]
    seconds: float

    def steady(self) -> tuple[int, float]:
        """(events, seconds) of all micro-batches with events but the first."""
        events = {r.batch_id: r.counters["events"] for r in self.reports}
        spent = {p["batchId"]: p["durationMs"]["triggerExecution"] / 1_000 for p in self.progress}
        counted = [b for b in sorted(events) if events[b] and b in spent][1:]
        return sum(events[b] for b in counted), sum(spent[b] for b in counted)

    def phases(self) -> str:
        """Median milliseconds of each phase of a micro-batch, the longest first."""
        own = [p["durationMs"] for p in self.progress if p["numInputRows"]][1:]
        names = {name for durations in own for name in durations}
        medians = {name: statistics.median(d.get(name, 0) for d in own) for name in names}
        return ", ".join(f"{name} {ms:,.0f}" for name, ms in sorted(medians.items(), key=lambda m: -m[1]))

    def calls(self) -> float:
        """Gets and puts of the state store in one micro-batch, the median."""
        own = [p["stateOperators"][0]["customMetrics"] for p in self.progress if p["numInputRows"]][1:]
        return statistics.median(sum(metrics.get(name, 0) for name in CALLS) for metrics in own) if own else 0


def lines_of(columns: dict[str, Any]) -> list[bytes]:
    """The peer's events as JSON records."""
    values = {("event_time" if n == "ts" else "seq_no" if n == "seq" else n): v.tolist() for n, v in columns.items()}
    names = list(values)
    return [orjson.dumps(dict(zip(names, row, strict=True))) for row in zip(*values.values(), strict=True)]


def write_files(lines: list[bytes], folder: Path) -> None:
    """The records as files, with the times at which they would have come."""
    folder.mkdir()
    for number, start in enumerate(range(0, len(lines), EVENTS_PER_FILE)):
        path = folder / f"{number:06d}.jsonl"
        path.write_bytes(b"\n".join(lines[start : start + EVENTS_PER_FILE]) + b"\n")
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def fill(kafka: RealKafka | MockCluster, lines: list[bytes]) -> None:
    """The records in four partitions, and behind them one each that lets go of those that wait for later ones."""
    kafka.create(TOPIC, PARTITIONS)
    last = orjson.loads(lines[-1])
    later = last["event_time"] + CLOSING_MS
    closing = [orjson.dumps({**last, "event_time": later, "seq_no": -1 - p}) for p in range(PARTITIONS)]
    for start in range(0, len(lines), SENT_AT_ONCE):
        part = lines[start : start + SENT_AT_ONCE]
        kafka.send(TOPIC, [{"value": v, "partition": (start + i) % PARTITIONS} for i, v in enumerate(part)])
    kafka.send(TOPIC, [{"value": v, "partition": p} for p, v in enumerate(closing)])


def catch_up(spark: SparkSession, job: Job, initial: tuple[bytes, ...], source: Source, folder: Path) -> Caught:
    """Run a live job over all that is there."""
    reports: list[BatchReport] = []
    output = LiveOutput(folder, LetterFiles(folder / "letters"), (), reports.append)
    started = time.perf_counter()
    query = start_live(
        spark, LiveSettings(job, initial, source, None, folder / "query", available_now=True, tasks=CORES), output
    )
    serve(query, output, threading.Event())
    seconds = time.perf_counter() - started
    return Caught(tuple(json.loads(p.json) for p in query.recentProgress), tuple(reports), seconds)


def stored(spark: SparkSession, checkpoint: Path) -> tuple[int, int]:
    """(bytes of pages, keys in them) in the state store at the end."""
    frame = spark.read.format("statestore").option("path", str(checkpoint)).option("stateVarName", "pages").load()
    pages = [bytes(row[0]) for row in frame.selectExpr("user_map_value.content").collect()]
    return sum(map(len, pages)), sum(len(decode_page(page).keys) for page in pages)


def is_equal(spark: SparkSession, deployment: Deployment, job: Job, events: Path, caught: Caught) -> bool:
    """The live alerts are those of a replay, up to the runs that the end of the history closes."""
    found = pa.concat_tables([report.alerts for report in caught.reports])
    again = replay(job, deployment.rulebook, *read_events(spark, events), CORES)
    return sorted(json_lines(found)) == sorted(json_lines(again.alerts))


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("events", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--files", type=int, default=8, help=f"files of {EVENTS_PER_FILE} events in one micro-batch")
    parser.add_argument("--key-groups", type=int, default=32)
    parser.add_argument("--pages", type=int, default=1)
    parser.add_argument("--kafka", action="store_true", help="from Kafka instead")
    parser.add_argument("--max-records", type=int, default=500_000, help="of Kafka in one micro-batch")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = parse()
    count = options.events
    columns = peer_columns(count)
    given = records()
    deployment = deploy(given)
    job = Job(deployment.schema, deployment.key_domains, options.key_groups, options.pages)
    initial = tuple(record.to_json() for record in given)
    source: Source
    spark = create_session("bench", CORES, SPARK_SETTINGS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = lines_of(columns)
        write_files(lines, folder / "events")
        if options.kafka:
            with open_kafka() as kafka:
                if not kafka.is_real:
                    count = min(count, KAFKA_EVENTS_MAX)
                    lines = lines[:count]
                    write_files(lines, folder / "fewer")
                print(f"{count:,} records in {kafka.description}", flush=True)
                fill(kafka, lines)
                source = TopicSource(kafka.address, TOPIC, options.max_records)
                caught = catch_up(spark, job, initial, source, folder / "job")
                if not kafka.is_real:
                    (folder / "events").rename(folder / "all")
                    (folder / "fewer").rename(folder / "events")
        else:
            source = FolderSource(folder / "events", options.files)
            caught = catch_up(spark, job, initial, source, folder / "job")
        is_same = is_equal(spark, deployment, job, folder / "events", caught)
        size, keys = stored(spark, folder / "job" / "query")
        spark.stop()
        print_figures(options, count, caught, is_same, (size, keys), None)
        peer = None
        if os.environ.get("FLINK_VENV"):
            write_events(columns, folder / "events.csv")
            peer = run_peer(folder / "events.csv", CORES, "--patterns", "all", "--warmup", "0", "--runs", "1")["all"][
                "events_per_s"
            ]
    print_figures(options, count, caught, is_same, (size, keys), peer)


def print_figures(
    options: argparse.Namespace, count: int, caught: Caught, is_same: bool, kept: tuple[int, int], peer: float | None
) -> None:
    """The tables."""
    events, seconds = caught.steady()
    shown = []
    for what, number, spent in (("steady", events, seconds), ("over all", count, caught.seconds)):
        rate = number / spent if spent else 0.0
        beside = (f"{peer:,.0f}", f"{rate / peer:.2f}") if peer else ("-", "-")
        shown.append((what, f"{number:,}", f"{spent:.1f}", f"{rate:,.0f}", *beside))
    head = ("live catch-up", "events", "seconds", "events/s", "Flink CEP in memory", "ours ÷ Flink")
    show(f"{options.key_groups} key groups, {options.pages} pages, {CORES} cores", head, shown)
    size, keys = kept
    totals = caught.reports[-1].totals
    print(f"matches: {totals['matches']:,}, alerts {'equal to' if is_same else 'DIFFERENT from'} the replay's")
    print(f"keyed state: {size:,} bytes, {keys:,} keys of {KEYS:,}, {size / max(keys, 1):,.0f} bytes per key")
    print(f"state store: {caught.calls():,.0f} gets and puts in a micro-batch; late events: {totals['late_events']:,}")
    print(f"milliseconds of a micro-batch: {caught.phases()}")


if __name__ == "__main__":
    main()
