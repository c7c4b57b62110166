"""Latency from Kafka to Kafka: `cep live` at a steady rate, compared with a Spark stream that only copies.

    python -m tests.bench.latency [--rate 1000] [--keys 50000] [--seconds 120] [--mock] [-- OPTIONS OF cep live]

Each event reads and writes the state of its key: the rule has a run open for every card and matches each of its events
with the one before, so that all but the first event of a card give an alert. Latency is the time from the call that
sends an event to the receipt of its alert. The second stream copies the same records from topic to topic through the
same source; its time is the share of Spark and Kafka. Both run in separate processes, one after the other, each with
its own broker: an Apache Kafka, or librdkafka's mock cluster with --mock or where Kafka is not installed. The first
seconds (`--settle`) are not counted: Python workers start and Java warms up. By default the job has two key groups in
one matching task, more than enough for the rate, and takes events in order of arrival; with several partitions of the
topic, the order of event times would add the wait for the slowest of them.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import orjson
from confluent_kafka import Consumer, Message, Producer
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from cep.runners.spark.kafka import FORMAT, KafkaDataSource
from cep.runners.spark.live import JAVA_OPTIONS, SPARK_SETTINGS
from cep.runners.spark.progress import measures
from cep.runners.spark.session import create_session
from tests.bench.metrics import Samples, metrics, phases_ms, processor_ms, watch
from tests.bench.peer_data import show
from tests.rule_files import rule_text

ROOT = Path(__file__).parents[2]
CORES = 2
PARTITIONS = 4
WAIT_S = 120
OPTIONS = ("--key-groups", "2", "--partitions", "1", "--order", "arrival")
EVENTS, ALERTS, COPIES = "events", "alerts", "copies"
PHASES = "phases.json"
ADDRESS = re.compile(r"[\w.]+:\d+")
PATTERN = """\
event payment {
  payment_id  id
  event_time  time
  card_id     string
  amount      int
}

pattern pair()
  by card_id
{
  seq    before -> after  within 1 h
  where  before: payment  amount >= 0
         after:  payment  amount >= 0
  skip   none
  emit   amount = after.amount
}
"""
RULE = rule_text("pair", "pair.cep", message="Card {key}: {amount}")


@dataclass
class Measured:
    """The times at which each record was sent and its answer received, in seconds of one clock (nan: no answer)."""

    sent_s: NDArray[np.float64]
    received_s: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.received_s = np.full(len(self.sent_s), np.nan)

    def latencies_ms(self, settle_s: float) -> NDArray[np.float64]:
        """Return the latencies of the records that were sent after the settling time and answered."""
        counted = (self.sent_s >= self.sent_s[0] + settle_s) & ~np.isnan(self.received_s)
        return np.asarray((self.received_s - self.sent_s)[counted] * 1_000)


def parse() -> argparse.Namespace:
    """Parse the arguments; the ones after `--` go to `cep live`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=int, default=1_000, help="events a second")
    parser.add_argument("--keys", type=int, default=50_000)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--settle", type=int, default=45, help="seconds at the start that are not counted")
    parser.add_argument("--mock", action="store_true", help="the mock cluster, not an Apache Kafka")
    parser.add_argument("--only", choices=("nothing", "live"))
    parser.add_argument("--copy", nargs=2, metavar=("ADDRESS", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("live", nargs="*", default=list(OPTIONS), help="options of cep live, after --")
    return parser.parse_args()


def copy(address: str, folder: Path) -> None:
    """Run the copying stream until it is stopped."""
    spark = create_session("nothing", CORES, SPARK_SETTINGS, JAVA_OPTIONS)
    spark.dataSource.register(KafkaDataSource)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 1})

    def write(frame: DataFrame, _: int) -> None:
        for value in frame.toArrow().column("value").to_pylist():
            producer.produce(COPIES, value)
        producer.flush()

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    source = spark.readStream.format(FORMAT).option("bootstrap.servers", address).option("topic", EVENTS)
    frame = source.option("startingOffsets", "earliest").option("maxTasks", CORES).load().select("value")
    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(folder)).start()
    while not stop.is_set() and not query.awaitTermination(1):
        pass
    samples = Samples()
    for progress in query.recentProgress:
        samples.add(measures(json.loads(progress.json))[1])
    (folder.parent / PHASES).write_bytes(orjson.dumps(samples.medians()))
    query.stop()
    spark.stop()


@contextmanager
def process(words: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of our programs as a process of this machine; at the end ask it to stop, and wait until it does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("wb") as file:
        started = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=file, stderr=file, env=environment, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait(WAIT_S)


@contextmanager
def kafka(folder: Path, is_mock: bool) -> Iterator[str]:
    """Run a broker in its own process; give its address."""
    log = folder / "kafka.log"
    with process(["-m", "tests.mock_kafka" if is_mock else "tests.real_kafka"], log):
        deadline_s = time.monotonic() + WAIT_S
        while not (words := [w for w in log.read_text().split() if ADDRESS.fullmatch(w)]):
            assert time.monotonic() < deadline_s, f"Kafka does not start: {log.read_text()}"
            time.sleep(0.05)
        yield words[0]


def measure(address: str, answers: str, options: argparse.Namespace, alive: subprocess.Popen[bytes]) -> Measured:
    """Send events at a steady rate and receive the answers."""
    count = options.rate * options.seconds
    measured = Measured(np.full(count, np.nan))
    cards = np.random.default_rng(1).integers(0, options.keys, count).tolist()
    ended = threading.Event()
    receiver = threading.Thread(target=receive, args=(address, answers, measured, ended))
    receiver.start()
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    started_s = time.perf_counter()
    for number in range(count):
        early_s = started_s + number / options.rate - time.perf_counter()
        if early_s > 0.001:
            producer.poll(0)
            time.sleep(early_s)
            assert alive.poll() is None, "the job has ended"
        event = {"payment_id": number, "event_time": int(time.time() * 1_000), "card_id": cards[number], "amount": 1}
        line = orjson.dumps({**event, "payment_id": str(number), "card_id": str(cards[number])})
        measured.sent_s[number] = time.perf_counter()
        producer.produce(EVENTS, line, partition=cards[number] % PARTITIONS)
    producer.flush(WAIT_S)
    ended.wait(10)  # the last ones may still be on their way
    ended.set()
    receiver.join(WAIT_S)
    return measured


def receive(address: str, topic: str, measured: Measured, ended: threading.Event) -> None:
    """Note the arrival of each answer, until `ended`."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "bench", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 5}
    )
    consumer.subscribe([topic])
    while not ended.is_set():
        for message in consumer.consume(500, 0.01):
            now_s = time.perf_counter()
            if message.error() is None:
                measured.received_s[number_of(message)] = now_s
    consumer.close()


def number_of(message: Message) -> int:
    """Return the number of the record that a copy, or an alert, answers."""
    value = orjson.loads(message.value() or b"{}")
    return int(value["events"][-1]["event_id"] if "events" in value else value["payment_id"])


def make_topics(address: str) -> None:
    """Create the topics: they appear at the first request."""
    first = Producer({"bootstrap.servers": address})
    deadline_s = time.monotonic() + WAIT_S
    for topic in (EVENTS, ALERTS, COPIES):
        while not first.list_topics(topic, timeout=WAIT_S).topics[topic].partitions:
            assert time.monotonic() < deadline_s, f"no topic {topic}"
            time.sleep(0.1)


def run(name: str, options: argparse.Namespace, folder: Path) -> tuple[NDArray[np.float64], dict[str, float]]:
    """Return the latencies of one stream in milliseconds, and the time of its micro-batches by phase."""
    folder.mkdir()
    samples, ended = Samples(), threading.Event()
    (folder / "pair.cep").write_text(PATTERN)
    (folder / "pair.toml").write_text(RULE)
    with kafka(folder, options.mock) as address:
        make_topics(address)
        words = ["-m", "tests.bench.latency", "--copy", address, str(folder / "checkpoint")]
        if name == "live":
            command = "import sys; from cep.cli.main import main; sys.exit(main())"
            words = [
                "-c", command, "live", "--rules", str(folder), "--bootstrap-servers", address, "--topic", EVENTS,
                "--alerts", f"kafka:{ALERTS}", "--checkpoint", str(folder / "checkpoint"), "--listen", "0",
                *options.live,
            ]  # fmt: skip
        with process(words, folder / "log") as job:
            arguments = (folder / "log", 0.5, ended, samples, partial(look, leader=job.pid))
            watcher = threading.Thread(target=watch, args=arguments)
            watcher.start()
            try:
                measured = measure(address, ALERTS if name == "live" else COPIES, options, job)
            finally:
                ended.set()
                watcher.join()
        if np.isnan(measured.received_s).all():
            print((folder / "log").read_text()[-4_000:], file=sys.stderr)
    phases = of_a_batch(samples) if name == "live" else orjson.loads((folder / PHASES).read_bytes())
    return measured.latencies_ms(options.settle), phases


def look(address: str, leader: int) -> dict[str, float]:
    """Return the number of micro-batches, the time of the latest one by phase, and the processor time so far."""
    values = metrics(address)
    return {**phases_ms(values), "batch_id": values["cep_micro_batch_id"], **processor_ms(leader)}


def of_a_batch(samples: Samples) -> dict[str, float]:
    """Return medians by phase; processor time is measured over the last half and divided by its micro-batches."""
    last_half = {name: values[len(values) // 2 :] for name, values in samples.found.items()}
    numbers = last_half.pop("batch_id", [0.0])
    count = max(1.0, numbers[-1] - numbers[0])
    spent = {
        f"processor: {name}": times[-1] - times[0]
        for name in ("java", "python")
        if (times := last_half.pop(name, None))
    }
    medians = {name: ms for name, ms in samples.medians().items() if name in last_half}
    return {**medians, **{name: ms / count for name, ms in spent.items()}}


def _marks(latencies_ms: np.ndarray) -> np.ndarray:
    """Return p50, p99, p99.9 in milliseconds; nan without answers."""
    return np.percentile(latencies_ms, (50, 99, 99.9)) if len(latencies_ms) else np.full(3, np.nan)


def main() -> None:
    options = parse()
    if options.copy:
        copy(options.copy[0], Path(options.copy[1]))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the processes that it has started end with it
    rows, latencies, phases = [], {}, {}
    with tempfile.TemporaryDirectory() as name:
        for stream in ("nothing", "live"):
            if options.only in (None, stream):
                latencies[stream], phases[stream] = run(stream, options, Path(name) / stream)
    marks_of = {stream: _marks(latencies_ms) for stream, latencies_ms in latencies.items()}
    base = marks_of.get("nothing", _marks(np.empty(0)))
    for stream, marks in marks_of.items():
        ratios = "-" if stream == "nothing" else " ".join(f"{a / b:.2f}" for a, b in zip(marks, base, strict=True))
        rows.append((stream, f"{len(latencies[stream]):,}", *(f"{ms:,.0f}" for ms in marks), ratios))
    head = ("milliseconds", "answers", "p50", "p99", "p99.9", "÷ nothing")
    show(f"{options.rate:,} events/s over {options.keys:,} keys, {CORES} cores", head, rows)
    longest: dict[str, float] = {}
    for times in phases.values():
        longest |= {phase: max(ms, longest.get(phase, 0.0)) for phase, ms in times.items()}
    names = sorted(longest, key=lambda phase: -longest[phase])
    cells = [(n, *(f"{times[n]:,.0f}" if n in times else "-" for times in phases.values())) for n in names]
    show("milliseconds of a micro-batch by phase, medians", ("phase", *phases), cells)


if __name__ == "__main__":
    main()
