"""`cep job letters`: dead letters → refused alerts, shown and sent again; the alerts of late and repaired events.

A letter of a refused alert (sinks/base.py) has the alert as it was sent and the name of its sink. Alerts that were sent
again leave the files; a topic keeps its letters, and receivers tell repeats by `alert_id`.
Tested by: tests/cli/test_job.py, tests/cli/test_run.py
"""

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import orjson
import pyarrow as pa
from rich.console import Console

from cep.base.audit import is_audit
from cep.base.errors import UnreadableError, UsageError
from cep.base.files import read_lines, replace_file
from cep.base.schema import Schema
from cep.base.terminal import Terminal
from cep.cli.diff import print_changes
from cep.cli.given_events import add_dedup_argument, add_events_arguments, exit_code_of, given_events
from cep.cli.labelled import deployed_folder
from cep.cli.settings import add_setting_arguments, settings_of
from cep.cli.verbs import Parser
from cep.columnar.batch import NO_TEXTS, TEXT
from cep.model.setting_types import length_ms
from cep.model.settings import Settings
from cep.rulebook.difference import compare
from cep.runners.embedded.replay import replay_shown
from cep.runners.output import Replayed
from cep.sinks.base import CODE
from cep.sinks.kinds import KAFKA, webhook_again
from cep.sources.inputs import Records
from cep.sources.kafka import earliest_offsets, latest_offsets, read_range
from cep.sources.live.kinds import kafka_client
from cep.sources.offsets import OffsetRange
from cep.sources.pieces import Piece, Pieces, read_pieces
from cep.step.job import Job

HELP = """\
Replay a history without and with the late events of a job and repaired records. Alerts that are gained would have been
sent, alerts that are lost would not have been sent. `list` shows the alerts that receivers have refused, and `send`
sends them again.

The letters name late events by their ids; the history must contain these events. Repaired records are in separate
files. A repaired record replaces the event with the same id, of which some values could not be read.

examples:
  cep job letters list job/dead_letters
  cep job letters send job/dead_letters --conf cep.toml
  cep job letters replay job/dead_letters --rules rules --events history.parquet
  cep job letters replay job/dead_letters --rules rules --events history.parquet --repaired mended.jsonl
  cep job letters remove job/dead_letters job/held --older-than "90 d"
"""
_FIRST, _LATE = HELP.split("\n\n", maxsplit=1)[0], "late"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    subparsers = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    again = subparsers.add_parser("replay", help="say which alerts would have been", description=_FIRST)
    again.declare("letters LETTERS", "folder or file of dead letters", type=Path)
    again.declare("--rules FOLDER", "rule files (rules)", default=Path("rules"))
    again.declare("--repaired PATH", "repaired records, as --events", action="append")
    again.declare("--examples N", "alerts shown of each kind (3)", default=3)
    again.declare("--cores N", "cores of this machine to use (2)", default=2)
    add_events_arguments(again)
    add_dedup_argument(again)
    where = "folder or file of dead letters, or kafka:TOPIC"
    shown = subparsers.add_parser(
        "list", help="show refused alerts", description="Show alerts that receivers have refused."
    )
    sent = subparsers.add_parser(
        "send",
        help="send refused alerts again",
        description="Send refused alerts again to the receivers of the settings. Delivered alerts are removed "
        "from the files.",
    )
    for parser_of_refused in (shown, sent):
        parser_of_refused.declare("letters LETTERS", where, type=Path)
        add_setting_arguments(parser_of_refused, "kafka")
    old = subparsers.add_parser(
        "remove",
        help="delete letters that are older",
        description="Delete files of letters that are older than a time. Lines of the audit stay.",
    )
    old.declare("folders FOLDER", "dead letters, or suppressed alerts", nargs="+")
    old.declare("--older-than TIME", 'as "90 d"', required=True)


def run(options: argparse.Namespace) -> int:
    """Show, send, remove or replay dead letters. Return 1 if an alert was refused or changes, otherwise 0."""
    console = Terminal(highlight=False, soft_wrap=True)
    if options.what in ("list", "send"):
        return (list_refused if options.what == "list" else send_refused)(options, console)
    if options.what == "remove":
        older_ms = length_ms("--older-than", options.older_than)
        _remove(options.folders, int(time.time() * 1_000) - older_ms, console)
        return 0
    return _replay(options, console, Terminal(stderr=True, highlight=False))


def _replay(options: argparse.Namespace, console: Console, errors: Console) -> int:
    """Replay a history as the job matched it, then with its late events and repaired records; compare the alerts."""
    counts, late_ids = _read_dead_letters(options.letters)  # letters by code; ids of events that came too late
    deployment = deployed_folder(options.rules, errors)
    dedup_ms = length_ms("--dedup", options.dedup)
    job = Job(deployment.schema, deployment.key_domains, dedup_ms=dedup_ms).begin()
    original_records = given_events(options, deployment.schema)
    options.events = [*options.events, *(options.repaired or ())]  # repaired events are read with the others
    all_records = given_events(options, deployment.schema)

    def replayed(history: Pieces) -> Replayed:
        return replay_shown(job, deployment.rulebook, history, options.cores, errors)

    originals = read_pieces(original_records.paths, job.schema, original_records.mapping)
    as_matched = replayed(_without_events(originals, late_ids))  # as in the job, which left out late events
    complete = replayed(_with_repaired(all_records, len(original_records.paths), job.schema))
    shown = ", ".join(f"{count:,} {code}" for code, count in sorted(counts.items())) or "none"
    more = complete.counters["events"] - as_matched.counters["events"]
    console.print(f"letters: {shown}; {more:,} events come back", markup=False)
    comparison = compare(as_matched.alerts, complete.alerts)
    print_changes(comparison, options.examples, console)
    return exit_code_of(options, errors, int(bool(comparison.gained or comparison.lost)), complete)


def _remove(folders: Sequence[Path], before_ms: int, console: Console) -> None:
    """Delete old letters, but no lines of the audit. Raises: UsageError before anything is deleted."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder; name the job's folder of dead letters, or of suppressed alerts")
        for path in folder.glob("*.jsonl"):
            _refuse_others(path)
    for folder in folders:
        old = [path for path in sorted(folder.glob("*.jsonl")) if path.stat().st_mtime * 1_000 < before_ms]
        removed = sum(_remove_lines(path, is_audit) for path in old)  # without its audit a chain would break
        console.print(f"{folder}: {removed:,} letters removed, of {len(old):,} files", markup=False)


def _remove_lines(path: Path, stays: Callable[[bytes], bool]) -> int:
    """Delete the other lines of a file, or the whole file; the time of the file stays. Return their number."""
    lines, written_ns = list(_lines(path)), path.stat().st_mtime_ns
    others = [line for line in lines if stays(line)]
    if not others:
        path.unlink()
    elif len(others) < len(lines):
        replace_file(path, b"".join(line + b"\n" for line in others))
        os.utime(path, ns=(written_ns, written_ns))
    return len(lines) - len(others)


def _refuse_others(path: Path) -> None:
    """Look at the first line of a file. Raises: UsageError if it is not a letter or a suppressed alert."""
    line = next(_lines(path), b'{"code": ""}')
    try:
        is_letter = bool({"code", "held"} & orjson.loads(line).keys())
    except (orjson.JSONDecodeError, AttributeError):
        is_letter = False
    if not is_letter:
        raise UsageError(f"{path} has a line that is no letter; nothing was removed. Name folders of letters alone")


def _without_events(history: Pieces, event_ids: pa.Array) -> Pieces:
    def thinned(piece: Piece) -> Piece:
        return replace(piece, decode=lambda: piece.decode().without(event_ids))

    return replace(history, pieces=map(thinned, history.pieces))


def _with_repaired(records: Records, originals_count: int, schema: Schema) -> Pieces:
    """Return a history in which a record of the paths after `originals_count` replaces the flawed event of its id."""
    read = partial(read_pieces, schema=schema, mapping=records.mapping)
    whole, originals, repaired = read(records.paths), records.paths[:originals_count], records.paths[originals_count:]
    if not repaired:
        return whole
    event_ids = pa.concat_arrays([NO_TEXTS, *(piece.decode().event_id for piece in read(repaired).pieces)])
    return replace(whole, pieces=chain(_without_events(read(originals), event_ids).pieces, read(repaired).pieces))


def _read_dead_letters(path: Path) -> tuple[Counter[str], pa.Array]:
    """Count letters (not lines of the audit) by code, and return the ids of late events. Raises: UsageError."""
    counts: Counter[str] = Counter()
    late: dict[str, None] = {}  # the ids of late events, each of which has a letter for each of its keys
    for line in _lines(path):
        if is_audit(line):
            continue
        try:
            letter = orjson.loads(line)
            if "held" in letter:  # cep 0.2.0 wrote suppressed alerts among the letters of `cep run`
                continue
            code, event_id = str(letter["code"]), letter.get("event_id")
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} has a line that is no dead letter; name the folder of dead letters") from error
        is_late = code == _LATE and isinstance(event_id, str)
        counts[code] += not (is_late and event_id in late)  # so a late event counts once
        if is_late:
            late[event_id] = None
    return counts, pa.array(list(late), TEXT)


def _files(path: Path, others: str = "") -> list[Path]:
    """List the files of letters; `others` are other places in the message. Raises: UsageError."""
    if not path.exists():
        raise UsageError(f"{path} is not there; name the job's folder of dead letters{others}")
    return sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def _lines(path: Path) -> Iterator[bytes]:
    for file in _files(path):
        try:
            yield from (line for line in read_lines(file) if line.strip())
        except UnreadableError as error:
            raise UsageError(f"{file} cannot be read: {error}; name the job's folder of dead letters") from error


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
    """Send the refused alerts again; delivered ones leave the files. Return 1 if a receiver refuses some again."""
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
        lines = ((path, line) for path in _files(options.letters, ", or kafka:TOPIC") for line in _lines(path))
    for path, line in lines:
        try:
            letter = orjson.loads(line)
            if isinstance(letter, dict) and letter.get("code") == CODE:
                yield RefusedLetter(letter["sink"], letter["reason"], letter["record"].encode(), path, line)
        except (orjson.JSONDecodeError, KeyError, AttributeError) as error:
            raise UsageError(f"{path or where} has a line that is no dead letter; name the dead letters") from error


def _distinct(refusals: Iterator[RefusedLetter]) -> list[RefusedLetter]:
    """Return one letter for each alert and sink: a job that was killed may have written one twice."""
    return list({(letter.sink, letter.record): letter for letter in refusals}.values())


def _topic_lines(settings: Settings, topic: str) -> Iterator[bytes]:
    if settings.kafka.bootstrap_servers is None:
        raise UsageError(f"{KAFKA}{topic} needs --bootstrap-servers HOST:PORT, or the same in a settings file (--conf)")
    kafka = kafka_client(settings)
    first, ends = earliest_offsets(kafka, [topic])[topic], latest_offsets(kafka, [topic])[topic]
    for partition, end in sorted(ends.items()):
        for batch in read_range(kafka, OffsetRange(topic, partition, first[partition], end)):
            yield from (value for value in batch.column("value").to_pylist() if value)


def _forget(where: Path, sink: str, records: set[bytes]) -> None:
    """Remove the letters of these alerts from their files. Other lines and the files' times stay."""
    if str(where).startswith(KAFKA):
        return
    for path in _files(where):
        _remove_lines(path, lambda line: not _is_of(line, sink, records))


def _is_of(line: bytes, sink: str, records: set[bytes]) -> bool:
    letter = orjson.loads(line)
    if not isinstance(letter, dict) or letter.get("code") != CODE:
        return False
    return letter["sink"] == sink and letter["record"].encode() in records
