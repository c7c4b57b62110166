"""Settings and sinks of `cep run` → the changelog of the job, if one is asked for.

Tested by: tests/runners/embedded/test_changelog.py
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from cep.base.errors import UsageError
from cep.base.limits import CHANGELOG_RECORD_BYTES_MAX
from cep.model.settings import Settings
from cep.rulebook.kafka import Topic
from cep.runners.embedded.changelog import Changelog
from cep.runners.observe import Log
from cep.sinks.base import AlertSink
from cep.sinks.kafka import KafkaTransactionSink
from cep.sources.kafka import KafkaSettings

_TELL_S = 5.0


def client_of(settings: Settings) -> dict[str, str]:
    """Return the options of Kafka's client for alerts; with a changelog it lets larger records through."""
    client = settings.kafka.client_settings()
    if settings.embedded.changelog is None:
        return client
    return {"message.max.bytes": str(CHANGELOG_RECORD_BYTES_MAX), **client}


def changelog_of(settings: Settings, sinks: Sequence[AlertSink], log: Log) -> Changelog | None:
    """Open the changelog and make its topic if it is not there; each process of a job has one of its own.

    Raises: UsageError if no sink can carry it; SinkError.
    """
    embedded, servers = settings.embedded, settings.kafka.bootstrap_servers
    if embedded.changelog is None:
        return None
    carrier = sinks[-1] if sinks else None
    if settings.job.checkpoint is None or embedded.store != "rocksdb":
        raise UsageError("--changelog needs --checkpoint, and --store rocksdb: it has what commits change there")
    if servers is None or not isinstance(carrier, KafkaTransactionSink):
        raise UsageError(
            "--changelog needs --alerts kafka:TOPIC, delivered exactly once: a commit's alerts and changes come into "
            "Kafka in one transaction"
        )
    topic = embedded.changelog if embedded.groups is None else f"{embedded.changelog}-{embedded.groups}"
    client = tuple(settings.kafka.client_settings().items())
    Topic(servers, topic, client).create({"max.message.bytes": str(CHANGELOG_RECORD_BYTES_MAX)})
    return Changelog(
        topic, KafkaSettings(servers, client), carrier, _Progress(topic, log), settings.job.checkpoint.resolve().name
    )


class _Progress:
    """A report, every few seconds and at the end, of how far the topic was read."""

    def __init__(self, topic: str, log: Log) -> None:
        self._topic, self._log = topic, log
        self._printed_s = time.monotonic()

    def __call__(self, done: int, whole: int) -> None:
        if done < whole and time.monotonic() - self._printed_s < _TELL_S:
            return
        self._printed_s = time.monotonic()
        text = f"state is read from topic {self._topic}: {done:,} of {whole:,} offsets"
        self._log.tell("changelog", text, done=done, whole=whole)
