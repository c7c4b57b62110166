"""A live job that reads a topic, in the session of the tests, and a seeded stream with all faults in one."""

import random
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from cep.base.kafka import WRITER_FIXED
from cep.base.text import utc_text
from cep.runners.output import BatchReport
from cep.runners.spark.live import LiveSettings
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.sources import FolderSource, TopicSource
from cep.sinks.files import DeadLetterFiles
from cep.step.job import Job
from tests.real_kafka import TIMEOUT_S, KafkaCluster
from tests.runners.spark.live_cases import Reported, disordered, run_live, time_ms, write_file

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass
class TopicRun(Reported):
    """A live job over its own topic, phase by phase; each phase is a start from the checkpoint."""

    spark: SparkSession
    kafka: KafkaCluster
    folder: Path
    job: Job
    initial: tuple[bytes, ...]
    partitions: int
    records_per_trigger: int | None = None
    reports: list[BatchReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "control").mkdir(parents=True)
        self.topic = f"live-{uuid.uuid4().hex}"
        self.kafka.create(self.topic, self.partitions)

    def phase(self, records: Sequence[tuple[int, bytes]], control: Sequence[bytes] = ()) -> None:
        """Send records, each to its partition, and run until all of them are processed."""
        send(self.kafka, self.topic, records)
        if control:
            write_file(self.folder / "control" / f"{len(self.reports):03}.jsonl", control, len(self.reports))
        output = LiveOutput(
            self.folder / "checkpoint", DeadLetterFiles(self.folder / "letters"), [], self.reports.append
        )
        events = TopicSource(self.kafka.address, self.topic, self.records_per_trigger)
        folders = FolderSource(self.folder / "control"), self.folder / "checkpoint" / "query"
        run_live(self.spark, LiveSettings(self.job, self.initial, events, *folders), output)


def send(kafka: KafkaCluster, topic: str, records: Sequence[tuple[int, bytes]]) -> None:
    """Send (partition, value) records and wait until all are stored. Each partition keeps the order.

    Without the options of our own writers some new topics store the records of a first request after the next ones, or
    not at all.
    """
    producer = Producer({**WRITER_FIXED, "bootstrap.servers": kafka.address, "log_level": 2, "linger.ms": 1})
    for partition, value in records:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


@dataclass(frozen=True)
class Mix:
    """A stream in order of arrival, in two phases, and its faults. `clean` are the events that count."""

    first: list[tuple[int, bytes]]
    second: list[tuple[int, bytes]]
    clean: list[bytes]
    wrong: Counter[str]


def mix(lines: Sequence[bytes], seed: int, partitions: int, lateness_ms: int, dedup_ms: int = DAY_MS) -> Mix:
    """Return a stream: out of order by less than the lateness, with repeated, late and broken events and reused ids.

    An event with the id of another one has other content, and is set aside, or belongs to another card, and counts. Any
    event goes to any partition; the last of several partitions stays quiet. Late events come in the second phase, some
    of them twice: an hour before the first event, where ids are no longer remembered and each is late, or within the
    window of ids, where the second one is a duplicate. A repeated event comes after its first copy, never before: ahead
    of earlier events it would move the watermark and make those late if a micro-batch ended right after it. It comes
    within `dedup_ms` of the last event: later, a job may have forgotten it, depending on the end of a micro-batch.
    """
    chance = random.Random(seed)
    used = max(1, partitions - 1)
    arriving = disordered(lines, lateness_ms, seed) if lateness_ms else list(lines)
    half = len(arriving) // 2
    wrong: Counter[str] = Counter()
    phases: list[list[tuple[int, bytes]]] = []
    decoys: list[bytes] = []
    early = utc_text(time_ms(lines[0]) - HOUR_MS)
    last_ms = time_ms(lines[0])
    for number, part in enumerate((arriving[:half], arriving[half:])):
        recent = utc_text(last_ms - dedup_ms // 4)
        sent: list[tuple[int, bytes]] = []
        events: list[tuple[int, bytes]] = []
        for line in part:
            partition = chance.randrange(used)
            events.append((partition, line))
            sent.append(events[-1])
            last_ms = max(last_ms, time_ms(line))
            share = chance.random()
            if share < 0.05:  # at once, or some records later, and maybe from another partition
                place, again = events[max(0, len(events) - 1 - chance.choice([0, 0, 5]))]
                if time_ms(again) < last_ms - dedup_ms:
                    continue
                sent.append((chance.randrange(used) if lateness_ms else place, again))
                wrong["duplicates"] += 1
            elif share < 0.06:
                sent.append((partition, changed(line, amount=9_999.0)))
                wrong["reused_ids"] += 1
            elif share < 0.07:
                decoys.append(changed(line, card_id=f"decoy-{len(decoys)}"))
                sent.insert(-1, (partition, decoys[-1]))
            elif share < 0.09:
                sent.append((partition, chance.choice([b"{broken", b"[]", b"", b'{"tx_id": "no more"}'])))
                wrong["poison"] += 1
            elif share < 0.11 and number == 1:
                is_known, copies = chance.random() < 0.5, chance.choice([1, 2])
                event = {
                    **orjson.loads(line),
                    "tx_id": f"late-{len(sent)}",
                    "event_time": recent if is_known else early,
                }
                sent += [(partition, orjson.dumps(event))] * copies
                wrong["late_ids"] += 1
                wrong["late_events"] += 1 if is_known else copies
                wrong["duplicates"] += copies - 1 if is_known else 0
        phases.append(sent)
    return Mix(phases[0], phases[1], [*lines, *decoys], wrong)


def changed(line: bytes, **fields: Any) -> bytes:
    """Return an event with other values."""
    return orjson.dumps({**orjson.loads(line), **fields})
