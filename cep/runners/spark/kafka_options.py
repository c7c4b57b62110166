"""The options of one read of Kafka topics (kafka.py has them all), checked.

Tested by: tests/runners/spark/test_kafka_source.py, tests/runners/spark/test_kafka_positions.py
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cep.base.errors import UsageError
from cep.base.limits import KAFKA_WAIT_MS_MAX
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.sources.kafka import KafkaSettings, offsets_at_time, resolve_offsets
from cep.sources.offsets import Offsets
from cep.sources.registry.form import RecordFormat

FORMAT, EVENTS_FORMAT = "cep-kafka", "cep-kafka-events"
_OPTIONS = (
    "bootstrap.servers",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "maxRecordsPerPartition",
    "maxTasks",
    "plansLate",
    "pausedPartitions",
    "waitMs",
    "ends",
    "job",
    "format",
    "schemaFile",
    "message",
    "mapping",
)
_REGISTRY_PREFIX = "registry."
_CLIENT_PREFIX = "kafka."


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one read, checked. `job` has the form of `Job.to_json`: planning needs two of its numbers."""

    settings: KafkaSettings
    topics: tuple[str, ...]
    starting_offsets: str | None
    ending_offsets: str | None
    starting_ms: int | None
    ending_ms: int | None
    records_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    records_per_partition_max: int | None
    tasks_max: int | None
    plans_late: bool
    paused_partitions: Path | None
    ends: bool
    job: Mapping[str, Any] | None
    form: RecordFormat

    def starting(self, otherwise: str, absent: str) -> Offsets:
        if self.starting_ms is not None:
            return offsets_at_time(self.settings, self.topics, self.starting_ms)
        return resolve_offsets(self.settings, self.topics, self.starting_offsets or otherwise, absent)

    @property
    def has_ending(self) -> bool:
        return self.ending_ms is not None or self.ending_offsets is not None

    def ending(self) -> Offsets:
        if self.ending_ms is not None:
            return offsets_at_time(self.settings, self.topics, self.ending_ms)
        return resolve_offsets(self.settings, self.topics, self.ending_offsets or "latest", "latest")


def parse_options(options: Mapping[str, str]) -> Options:
    """Spark's options, whose names have lost their case, checked. Errors: UsageError with the option's name."""
    values = {name.lower(): value for name, value in options.items()}
    client = {n.removeprefix(_CLIENT_PREFIX): values.pop(n) for n in list(values) if n.startswith(_CLIENT_PREFIX)}
    registry = {n.removeprefix(_REGISTRY_PREFIX): values.pop(n) for n in list(values) if n.startswith(_REGISTRY_PREFIX)}
    servers = values.pop("bootstrap.servers", None) or client.get("bootstrap.servers")
    client.pop("bootstrap.servers", None)
    option_names = {name.lower(): name for name in _OPTIONS}
    for name in values:
        if name not in option_names:
            near = difflib.get_close_matches(name, option_names, n=1)
            hint = f"did you mean {option_names[near[0]]}" if near else f"known: {', '.join(_OPTIONS)}, kafka.*"
            raise UsageError(f"{FORMAT} has no option {name}; {hint}")
    topics = tuple(dict.fromkeys(t.strip() for t in values.get("topic", "").split(",") if t.strip()))
    for name, value in (("bootstrap.servers", servers), ("topic", topics)):
        if not value:
            raise UsageError(f"{FORMAT} needs option {name}")
    assert servers is not None
    for side in ("starting", "ending"):
        if f"{side}offsets" in values and f"{side}timestamp" in values:
            raise UsageError(f"{FORMAT} takes {side}Offsets or {side}Timestamp, not both")
    wait_ms = _positive(values, "waitMs")
    return Options(
        KafkaSettings(servers, tuple(sorted(client.items())), wait_ms if wait_ms is not None else KAFKA_WAIT_MS_MAX),
        topics,
        values.get("startingoffsets"),
        values.get("endingoffsets"),
        _positive(values, "startingTimestamp"),
        _positive(values, "endingTimestamp"),
        _positive(values, "maxRecordsPerTrigger"),
        _positive(values, "maxBytesPerTrigger"),
        _positive(values, "maxRecordsPerPartition"),
        _positive(values, "maxTasks"),
        values.get("planslate") == "true",
        Path(values["pausedpartitions"]) if "pausedpartitions" in values else None,
        values.get("ends") == "true",
        json.loads(values["job"]) if "job" in values else None,
        RecordFormat(
            values.get("format", "json"),
            tuple(sorted(registry.items())),
            values.get("schemafile"),
            values.get("message"),
            FieldMapping.from_json(values["mapping"]) if "mapping" in values else PLAIN,
        ),
    )


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UsageError(f"{FORMAT} option {name} is a number above 0, not {text!r}")
    return int(text)
