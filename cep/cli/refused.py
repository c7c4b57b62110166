"""`cep job letters list` and `cep job letters send`: the alerts that receivers have refused, shown, and sent again.

A letter of a refused alert (sinks/refused.py) has the alert as it was sent and the name of its sink. Letters stand in
files or in a topic. Alerts that were sent again leave the files; a topic keeps its letters, and receivers tell repeats
by `alert_id`.
Tested by: tests/cli/test_refused_alerts.py
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from rich.console import Console

from cep.base.durable import replace_file
from cep.base.errors import UnreadableError, UsageError
from cep.base.reading import read_lines
from cep.cli.configured import settings_of
from cep.model.settings import Settings
from cep.sinks.kinds import KAFKA, webhook_again
from cep.sinks.refused import CODE
from cep.sources.kafka import KafkaSettings, earliest_offsets, latest_offsets, read_range
from cep.sources.offsets import OffsetRange


@dataclass(frozen=True, slots=True)
class RefusedLetter:
    """A letter of a refused alert. `path` is its file, None for a record of a topic."""

    sink: str
    reason: str
    record: bytes
    path: Path | None
    line: bytes


def list_refused(options: argparse.Namespace, console: Console) -> int:
    """Print the refused alerts. Return 1 if there are any, otherwise 0. Raises: UsageError, SourceError."""
    refusals = _distinct(read_refused(options))
    for letter in refusals:
        alert = orjson.loads(letter.record)
        sentence = f"{alert['alert_id']}  {alert['rule_id']} v{alert['version']}  {alert['key']}: {letter.reason}"
        console.print(sentence, markup=False)
    counts = Counter(letter.sink for letter in refusals)
    for sink, count in sorted(counts.items()):
        console.print(f"{count:,} alerts were refused by {sink}", markup=False)
    if not refusals:
        console.print("no refused alerts", markup=False)
    return int(bool(refusals))


def send_refused(options: argparse.Namespace, console: Console) -> int:
    """Send the refused alerts again, and remove the delivered ones from the files.

    Returns: 1 if a receiver refuses some again, otherwise 0. Raises: UsageError, SourceError, SinkError.
    """
    settings = settings_of(options)
    refused_again = 0
    refusals = _distinct(read_refused(options))
    for name in sorted({letter.sink for letter in refusals}):
        again = _Again([])
        sink = webhook_again(settings, name, again)
        lines = [letter.record for letter in refusals if letter.sink == name]
        try:
            sink.send(lines, int(time.time()))
        finally:
            sink.close()
        _forget(options.letters, name, set(lines) - set(again.records))
        refused_again += len(again.records)
        console.print(
            f"{name}: {len(lines) - len(again.records):,} alerts sent, {len(again.records):,} refused again",
            markup=False,
        )
    if not refusals:
        console.print("no refused alerts", markup=False)
    return int(refused_again > 0)


@dataclass(frozen=True, slots=True)
class _Again:
    """Keeps the alerts that a receiver refuses again; their letters are there already."""

    records: list[bytes]

    def write(self, dead_letters: Sequence[bytes], batch_id: int) -> None:
        self.records.extend(orjson.loads(letter)["record"].encode() for letter in dead_letters)

    def close(self) -> None:
        """Do nothing."""


def read_refused(options: argparse.Namespace) -> Iterator[RefusedLetter]:
    """Read the letters of refused alerts from files, or from `kafka:TOPIC`. Raises: UsageError, SourceError."""
    where = str(options.letters)
    lines: Iterable[tuple[Path | None, bytes]]
    if where.startswith(KAFKA):
        lines = ((None, line) for line in _topic_lines(settings_of(options), where.removeprefix(KAFKA)))
    else:
        lines = ((path, line) for path in _files(options.letters) for line in _file_lines(path))
    for path, line in lines:
        try:
            letter = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise UsageError(f"{path or where} has a line that is no dead letter; name the dead letters") from error
        if isinstance(letter, dict) and letter.get("code") == CODE:
            yield RefusedLetter(letter["sink"], letter["reason"], letter["record"].encode(), path, line)


def _distinct(refusals: Iterator[RefusedLetter]) -> list[RefusedLetter]:
    """Return one letter for each alert and sink: a job that was killed may have written one twice."""
    return list({(letter.sink, letter.record): letter for letter in refusals}.values())


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(f"{path} is not there; name the job's folder of dead letters, or kafka:TOPIC")
    return sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def _file_lines(path: Path) -> Iterator[bytes]:
    try:
        yield from (line for line in read_lines(path) if line.strip())
    except UnreadableError as error:
        raise UsageError(f"{path} cannot be read: {error}; name the job's folder of dead letters") from error


def _topic_lines(settings: Settings, topic: str) -> Iterator[bytes]:
    servers = settings.kafka.bootstrap_servers
    if servers is None:
        raise UsageError(f"{KAFKA}{topic} needs --bootstrap-servers HOST:PORT, or the same in a settings file (--conf)")
    kafka = KafkaSettings(servers, tuple(settings.kafka.client_settings().items()))
    first, ends = earliest_offsets(kafka, [topic])[topic], latest_offsets(kafka, [topic])[topic]
    for partition, end in sorted(ends.items()):
        for batch in read_range(kafka, OffsetRange(topic, partition, first[partition], end)):
            yield from (value for value in batch.column("value").to_pylist() if value)


def _forget(where: Path, sink: str, records: set[bytes]) -> None:
    """Take the letters of these alerts out of their files, whose other lines and times stay."""
    if str(where).startswith(KAFKA):
        return
    for path in _files(where):
        lines, written_ns = list(_file_lines(path)), path.stat().st_mtime_ns
        others = [line for line in lines if not _is_of(line, sink, records)]
        if not others:
            path.unlink()
        elif len(others) < len(lines):
            replace_file(path, b"".join(line + b"\n" for line in others))
            os.utime(path, ns=(written_ns, written_ns))


def _is_of(line: bytes, sink: str, records: set[bytes]) -> bool:
    letter = orjson.loads(line)
    return letter.get("code") == CODE and letter["sink"] == sink and letter["record"].encode() in records
