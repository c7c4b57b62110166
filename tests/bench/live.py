"""Live catch-up: a backlog of the peer's events → alerts, with durable keyed state, micro-batch by micro-batch.

    [FLINK_VENV=…] python -m tests.bench.live [EVENTS] [--files N] [--key-groups N] [--pages N]
    [FLINK_VENV=…] python -m tests.bench.live 5000000 --kafka [--max-records N]

The job is the one of `cep live --available-now`: RocksDB with changelog checkpointing and no lateness. It reads JSON
lines from a folder, or with --kafka from four partitions of an Apache Kafka on this machine. Where Kafka is not
installed it uses librdkafka's mock cluster, with as many events as that holds. Its matches must equal the matches of
one call of the engine with all events, and the peer's, in number and checksum. "steady" leaves out the start of the
session and the first micro-batch, in which Python workers start; "over all" is from the start of the query to its end.
With --kafka the stream ends with an event of the next day, which closes all windows, so that the size of keyed state
cannot be measured. With FLINK_VENV the peer runs on the same events, with two tasks and its keyed state in memory.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from cep.rulebook.deploy import deploy
from cep.runners.output import BatchReport
from cep.runners.spark.group_parts import PAGES
from cep.runners.spark.live import JAVA_OPTIONS, SPARK_SETTINGS, LiveSettings, serve, start_live
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.session import create_session
from cep.runners.spark.sources import FolderSource, Source, TopicSource
from cep.runners.spark.state import stored_part
from cep.runners.warm import warm_up
from cep.sinks.files import DeadLetterFiles
from cep.state.past import decode_page
from cep.step.job import Job
from tests.bench import peer_data
from tests.mock_kafka import PARTITIONS
from tests.real_kafka import MockCluster, RealKafka, open_kafka

CORES = 2
EVENTS_PER_FILE = 25_000
# The mock cluster keeps about five megabytes a partition and drops the oldest records; a record has 150 bytes.
KAFKA_EVENTS_MAX = 100_000
TOPIC = "events"
SENT_AT_ONCE = 200_000
CLOSING_MS = 86_400_000
# The four patterns together, one cold run: a million events take a minute, so its start hardly counts.
PEER_OPTIONS = ("--patterns", "all", "--warmup", "0", "--runs", "1")
# Spark's counts of calls into RocksDB.
CALLS = ("rocksdbGetCount", "rocksdbPutCount")


@dataclass(frozen=True, slots=True)
class Caught:
    """One catch-up: Spark's progress and the job's report of each micro-batch, and the seconds of the whole."""

    progress: tuple[dict[str, Any], ...]
    reports: tuple[BatchReport, ...]
    seconds: float
    answers: dict[str, tuple[int, str]]

    def steady(self) -> tuple[int, float]:
        """Return (events, seconds) of all micro-batches with events, without the first."""
        events = {r.batch_id: r.counters["events"] for r in self.reports}
        spent = {p["batchId"]: p["durationMs"]["triggerExecution"] / 1_000 for p in self.progress}
        counted = [b for b in sorted(events) if events[b] and b in spent][1:]
        return sum(events[b] for b in counted), sum(spent[b] for b in counted)

    def phases(self) -> str:
        """Return the median milliseconds of each phase of a micro-batch, the longest first."""
        batches = [p["durationMs"] for p in self.progress if p["numInputRows"]][1:]
        names = {name for durations in batches for name in durations}
        medians = {name: statistics.median(d.get(name, 0) for d in batches) for name in names}
        return ", ".join(f"{name} {ms:,.0f}" for name, ms in sorted(medians.items(), key=lambda m: -m[1]))

    def calls(self) -> float:
        """Return the median of gets and puts of the state store in one micro-batch."""
        batches = [p["stateOperators"][0]["customMetrics"] for p in self.progress if p["numInputRows"]][1:]
        return statistics.median(sum(metrics.get(name, 0) for name in CALLS) for metrics in batches) if batches else 0


class Answers:
    """Matches and checksum of each pattern, as the peer counts them; it adds up micro-batches and stores no alerts."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int]] = dict.fromkeys(peer_data.NAMES, (0, 0))

    def add(self, alerts: pa.Table) -> None:
        for name in pc.unique(alerts["rule_id"]).to_pylist():
            events = alerts.filter(pc.equal(alerts["rule_id"], name))["events"].to_pylist()
            count, total = self._found[name]
            added = int(peer_data.checksum([[int(event["event_id"]) for event in bound] for bound in events]), 16)
            self._found[name] = count + len(events), (total + added) & peer_data.MASK

    def by_pattern(self) -> dict[str, tuple[int, str]]:
        return {name: (count, f"{total:016x}") for name, (count, total) in self._found.items()}


def pieces_of(columns: dict[str, Any]) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the peer's events as JSON records, in pieces: (number of the first, records)."""
    names = ["event_time" if n == "ts" else "seq_no" if n == "seq" else n for n in columns]
    for start in range(0, len(columns["seq"]), SENT_AT_ONCE):
        values = [column[start : start + SENT_AT_ONCE].tolist() for column in columns.values()]
        yield start, [orjson.dumps(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)]


def write_files(columns: dict[str, Any], folder: Path) -> None:
    """Write the records as files, with the times at which they would have come."""
    folder.mkdir()
    for first, lines in pieces_of(columns):
        for start in range(0, len(lines), EVENTS_PER_FILE):
            number = (first + start) // EVENTS_PER_FILE
            path = folder / f"{number:06d}.jsonl"
            path.write_bytes(b"\n".join(lines[start : start + EVENTS_PER_FILE]) + b"\n")
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def fill(kafka: RealKafka | MockCluster, columns: dict[str, Any]) -> None:
    """Send the records to four partitions, then one later record to each, which releases the last waiting events."""
    kafka.create(TOPIC, PARTITIONS)
    last: dict[str, Any] = {}
    for first, lines in pieces_of(columns):
        kafka.send(TOPIC, [{"value": v, "partition": (first + i) % PARTITIONS} for i, v in enumerate(lines)])
        last = orjson.loads(lines[-1])
    later = last["event_time"] + CLOSING_MS
    closing = [orjson.dumps({**last, "event_time": later, "seq_no": -1 - p}) for p in range(PARTITIONS)]
    kafka.send(TOPIC, [{"value": v, "partition": p} for p, v in enumerate(closing)])


def catch_up(spark: SparkSession, job: Job, initial: tuple[bytes, ...], source: Source, folder: Path) -> Caught:
    """Run a live job over all records."""
    reports: list[BatchReport] = []
    answers = Answers()

    def report(batch_report: BatchReport) -> None:
        answers.add(batch_report.alerts)
        reports.append(replace(batch_report, alerts=batch_report.alerts.schema.empty_table()))

    output = LiveOutput(folder, DeadLetterFiles(folder / "letters"), (), report)
    started = time.perf_counter()
    query = start_live(
        spark, LiveSettings(job, initial, source, None, folder / "query", available_now=True, tasks=CORES), output
    )
    serve(query, output, threading.Event())
    seconds = time.perf_counter() - started
    return Caught(
        tuple(json.loads(p.json) for p in query.recentProgress), tuple(reports), seconds, answers.by_pattern()
    )


def stored(spark: SparkSession, checkpoint: Path) -> tuple[int, int]:
    """Return (bytes of pages, keys in them) in the state store at the end."""
    pages = [bytes(row.content) for row in stored_part(spark, checkpoint.parent, PAGES, 0).collect()]
    return sum(map(len, pages)), sum(len(decode_page(page).keys) for page in pages)


def answers_of(columns: dict[str, Any]) -> dict[str, tuple[int, str]]:
    """Return the matches of one call of the engine with all events."""
    results = peer_data.by_rule(
        peer_data.run_once(peer_data.peer_program(peer_data.NAMES), peer_data.peer_batch(columns)), len(peer_data.NAMES)
    )
    return dict(zip(peer_data.NAMES, results, strict=True))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("events", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--files", type=int, default=8, help=f"files of {EVENTS_PER_FILE} events in one micro-batch")
    parser.add_argument("--key-groups", type=int, default=32)
    parser.add_argument("--pages", type=int, default=1)
    parser.add_argument("--kafka", action="store_true", help="from Kafka instead")
    parser.add_argument("--max-records", type=int, default=500_000, help="of Kafka in one micro-batch")
    return parser.parse_args()


def main() -> None:
    options = parse()
    columns = peer_data.peer_columns(options.events)
    rules = peer_data.records()
    deployment = deploy(rules)
    job = Job(deployment.schema, deployment.key_domains, options.key_groups, options.pages)
    initial = tuple(record.to_json() for record in rules)
    warm_up()  # otherwise the first micro-batch would compile
    spark = create_session("bench", CORES, SPARK_SETTINGS, JAVA_OPTIONS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.kafka:
            with open_kafka() as kafka:
                if not kafka.is_real:
                    columns = {name: values[:KAFKA_EVENTS_MAX] for name, values in columns.items()}
                print(f"{len(columns['seq']):,} records in {kafka.description}", flush=True)
                fill(kafka, columns)
                topic = TopicSource(kafka.address, TOPIC, options.max_records)
                caught = catch_up(spark, job, initial, topic, folder / "job")
        else:
            write_files(columns, folder / "events")
            caught = catch_up(spark, job, initial, FolderSource(folder / "events", options.files), folder / "job")
        stored_sizes = stored(spark, folder / "job" / "query")
        spark.stop()
        peer = None
        if os.environ.get("FLINK_VENV"):
            print_figures(options, len(columns["seq"]), caught, stored_sizes, None)
            print("the peer runs", flush=True)
            peer_data.write_events(columns, folder / "events.csv")
            peer = peer_data.run_peer(folder / "events.csv", CORES, *PEER_OPTIONS)["all"]
    print_figures(options, len(columns["seq"]), caught, stored_sizes, peer)
    print(f"matches and checksums: {verdict(caught.answers, answers_of(columns))} those of one call of the engine")
    if peer is not None:
        theirs = {name: (count, total) for name, (count, total) in peer["matches"].items()}
        print(f"matches and checksums: {verdict(caught.answers, theirs)} the peer's")


def verdict(ours: dict[str, tuple[int, str]], others: dict[str, tuple[int, str]]) -> str:
    """Return one word, or both sides if they differ."""
    return "equal to" if ours == others else f"DIFFERENT: {ours}, {others} are"


def print_figures(
    options: argparse.Namespace, count: int, caught: Caught, stored_sizes: tuple[int, int], peer: dict[str, Any] | None
) -> None:
    events, seconds = caught.steady()
    shown = []
    for label, number, spent in (("steady", events, seconds), ("over all", count, caught.seconds)):
        rate = number / spent if spent else 0.0
        beside = (f"{peer['events_per_s']:,.0f}", f"{rate / peer['events_per_s']:.2f}") if peer else ("-", "-")
        shown.append((label, f"{number:,}", f"{spent:.1f}", f"{rate:,.0f}", *beside))
    head = ("live catch-up", "events", "seconds", "events/s", "Flink CEP in memory", "ours ÷ Flink")
    peer_data.show(f"{options.key_groups} key groups, {options.pages} pages, {CORES} cores", head, shown)
    size, keys = stored_sizes
    totals = caught.reports[-1].totals
    print(f"matches: {totals['matches']:,}")
    print(f"keyed state: {size:,} bytes, {keys:,} keys of {peer_data.KEYS:,}, {size / max(keys, 1):,.0f} bytes per key")
    print(f"state store: {caught.calls():,.0f} gets and puts in a micro-batch; late events: {totals['late_events']:,}")
    print(f"milliseconds of a micro-batch: {caught.phases()}")


if __name__ == "__main__":
    main()
