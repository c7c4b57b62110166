"""Topics of a job, read by people who publish rules or examine its audit: present and future records.

A job makes its control topic and its status topic when it starts: the job and the publisher may start in any order.
Tested by: tests/runners/test_control_topic.py
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from cep.base.audit import Line, is_letter
from cep.base.errors import SourceError, UsageError
from cep.base.kafka import check_access
from cep.model.rule import ControlRecord, parse_control
from cep.model.settings import Settings
from cep.rulebook.kafka import StatusTopic, Topic
from cep.sources.kafka import KafkaSettings, earliest_offsets, latest_offsets, read_range
from cep.sources.offsets import OffsetRange

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Place:
    """A record of the topic and where it stands."""

    partition: int
    offset: int
    key: bytes
    record: ControlRecord


def made_topics(settings: Settings) -> StatusTopic | None:
    """Create the missing control topic and status topic of a job. Return the latter. Raises: UsageError, SinkError."""
    servers, control, status = settings.kafka.bootstrap_servers, settings.control.topic, settings.control.status_topic
    if servers is None:
        if status is not None:
            raise UsageError("--status-topic needs --bootstrap-servers HOST:PORT")
        return None
    check_access(servers, settings.kafka.client_settings())
    client = tuple(settings.kafka.client_settings().items())
    if control is not None:
        Topic(servers, control, client).create()
    if status is None:
        return None
    status_topic = StatusTopic(servers, status, client)
    status_topic.create()
    return status_topic


def read_control_topic(topic: Topic) -> tuple[list[Place], int]:
    """Read all records of the topic, in their order, and count the unreadable ones. Raises: SourceError."""
    places: list[Place] = []
    unreadable_count = 0
    for partition, offset, key, value in _values(topic):
        record, _ = parse_control(value)
        if record is None:
            unreadable_count += 1
        else:
            places.append(Place(partition, offset, key, record))
    return places, unreadable_count


def read_status(topic: Topic) -> dict[str, Any] | None:
    """Read the last status that the job wrote to its status topic; None before the first one. Raises: SourceError."""
    last = None
    for _, _, _, value in _values(topic):
        last = value
    if last is None:
        return None
    try:
        status = orjson.loads(last)
    except orjson.JSONDecodeError as error:
        raise SourceError(
            f"topic {topic.name} holds no status of rules: {error}; name the job's status topic"
        ) from error
    if not isinstance(status, dict) or not {"epoch", "rules", "last_versions", "refused"} <= status.keys():
        raise SourceError(f"topic {topic.name} holds no status of rules; name the job's status topic")
    return status


def read_audit(topic: Topic) -> list[Line]:
    """Read the lines of the audit in a topic of dead letters, in the order of their numbers. Raises: SourceError."""
    lines = [
        Line(f"{topic.name}/{partition}:{offset}", value)
        for partition, offset, _, value in _values(topic)
        if not is_letter(value)
    ]
    return sorted(lines, key=lambda line: line.data)  # across its partitions, a topic has no order


def wait_for_status(topic: Topic, is_wanted: Callable[[dict[str, Any]], bool], wait_s: float) -> dict[str, Any] | None:
    """Wait until the last status of the job is a wanted one; None if it is not in time. Raises: SourceError."""
    give_up_s = time.monotonic() + wait_s
    while True:
        status = read_status(topic)
        if status is not None and is_wanted(status):
            return status
        if time.monotonic() >= give_up_s:
            return None
        time.sleep(_POLL_S)


def _values(topic: Topic) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Yield (partition, offset, key, value) of each record in the topic, without tombstones."""
    settings = KafkaSettings(topic.servers, topic.client_options)
    starts, ends = (offsets(settings, [topic.name]) for offsets in (earliest_offsets, latest_offsets))
    for partition, end in sorted(ends[topic.name].items()):
        start = starts[topic.name][partition]
        if start >= end:
            continue
        for batch in read_range(settings, OffsetRange(topic.name, partition, start, end)):
            columns = (batch.column(name).to_pylist() for name in ("offset", "key", "value"))
            for offset, key, value in zip(*columns, strict=True):
                if value is not None:
                    yield partition, offset, key or b"", value
