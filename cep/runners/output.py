"""The result of a replay → files: the alerts as Parquet or JSON lines, and the records that were set aside.

    alerts.parquet              the alert table
    alerts.parquet.dead.jsonl   {"code": …, "reason": …, "record": …}, only if there are any
    alerts.parquet.held.jsonl   {"held": reason, "alert": …}: what the rules hold back, only if there is any

Each file is made durable under another name, and renamed: a reader sees the new file or the previous one. Dead letters
are written first, so that a reader of the alerts sees them too.

A replay that closes all windows at the end of a history runs twice, and marks the uncertain alerts:

    replay up to the last event ─────▶ confirmed alerts ──────────────────────────────┐
                                                                                      ├─▶ both, each alert once
    replay up to the end of time ────▶ more alerts, each with `unconfirmed: true` ────┘

Only the second replay has produced events that were not certain, so the alerts of chains and histories over such an
event are marked too, at every level.
Tested by: tests/runners/test_output.py, tests/runners/test_to_the_end.py.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cep.base.errors import SinkError, UsageError
from cep.base.files import replace_file
from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.engine.alerts import ALERT_SCHEMA, sort_alerts
from cep.sinks.json_form import json_lines
from cep.state.manifest import StoredFile
from cep.step.job import Job
from cep.step.marks import Marks

Format = Literal["parquet", "jsonl"]
_DEAD_SUFFIX = ".dead.jsonl"
_SUPPRESSED_SUFFIX = ".held.jsonl"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay: alerts in their order, dead letters (JSON), counters by name, and the elapsed time.

    `since_ms` is the time of the first event, `watermark_ms` the watermark at the end (step/history_end.py). If a
    live job continues the replay, it takes the events from `until_ms` on, and the state in `state_files`.
    `marks` are the keys that had events with unreadable values, and when: their next alerts may be wrong.
    """

    alerts: pa.Table
    dead_letters: tuple[bytes, ...]
    counters: Counter[str]
    seconds: float
    since_ms: int = TIME_MS_MAX
    until_ms: int | None = None
    state_files: tuple[StoredFile, ...] = ()
    watermark_ms: int = TIME_MS_MIN
    marks: Marks = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The outcome of one micro-batch of a job, and the job's totals so far."""

    batch_id: int
    alerts: pa.Table
    counters: Counter[str]
    totals: Counter[str]
    watermark_ms: int | None = None  # None for a micro-batch without records on Spark
    # Phases of `cep run`: `decoding`, `matching`, and `commit` (of the commit before). Phases of `cep live` (Spark):
    # `matching` (until the rows of all tasks have arrived), `sinks`, and `records` (writing dead letters and totals).
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    dead_letters: Sequence[bytes] = ()  # `cep run` adds the lines of suppressed alerts


def format_of(path: Path) -> Format:
    """Return the format that a file's name asks for. Raises: UsageError if it asks for none that we write."""
    match path.suffix.lower():
        case ".parquet":
            return "parquet"
        case ".jsonl":
            return "jsonl"
    raise UsageError(f"cannot tell the format of {path}; name it *.parquet or *.jsonl, or say which with --format")


def check_writable(path: Path) -> None:
    """Refuse a path that would fail after an hour of matching. Raises: UsageError."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file for the alerts")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for the alerts; make it, or name another")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"the folder {path.parent} may not be written to; name another for the alerts")


def write_outputs(
    alerts: pa.Table,
    dead_letters: Sequence[bytes],
    path: Path,
    format_: Format,
    suppressed_alerts: Sequence[bytes] = (),
) -> list[Path]:
    """Write the files, and remove an earlier replay's files if they have no contents now. Return the written paths.

    Raises: SinkError; the earlier alerts are then unchanged, but their other files may be new.
    """
    beside = [
        (path.with_name(path.name + _DEAD_SUFFIX), dead_letters),
        (path.with_name(path.name + _SUPPRESSED_SUFFIX), suppressed_alerts),
    ]
    try:
        for beside_path, lines in beside:
            if lines:
                replace_file(beside_path, partial(_write_lines, lines=lines))
        if format_ == "parquet":
            replace_file(path, lambda file: pq.write_table(alerts, file, compression="zstd"))
        else:
            replace_file(path, lambda file: _write_lines(file, json_lines(alerts)))
        for beside_path, lines in beside:
            if not lines:
                beside_path.unlink(missing_ok=True)  # now that the new alerts are there
    except OSError as error:
        raise SinkError(
            f"{alerts.num_rows} alerts cannot be written to {path}: {error}; make room or name another file, then "
            "replay again"
        ) from error
    return [path, *(beside_path for beside_path, lines in beside if lines)]


def _write_lines(file: BinaryIO, lines: Iterable[bytes]) -> None:
    file.writelines(line + b"\n" for line in lines)


def encode_alerts(alerts: pa.Table) -> bytes:
    """Alerts as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, alerts.schema) as writer:
        writer.write_table(alerts)
    return bytes(sink.getvalue())


def decode_alerts(payload: bytes) -> pa.Table:
    """Read the alerts that `encode_alerts` wrote. A column that an earlier build did not write is null."""
    with pa.ipc.open_stream(payload) as reader:
        table = reader.read_all()
    if table.schema.names == ALERT_SCHEMA.names:
        return table
    columns = [table[f.name] if f.name in table.schema.names else pa.nulls(len(table), f.type) for f in ALERT_SCHEMA]
    return pa.Table.from_arrays(columns, schema=ALERT_SCHEMA)


UNCONFIRMED = "unconfirmed"


def replay_to_the_end(job: Job, replay: Callable[[Job], Replayed]) -> Replayed:
    """Replay the history of a job, twice if the job goes on to the end. Raises: the errors of `replay`."""
    if not job.to_the_end:
        return replay(job)
    confirmed, whole = replay(replace(job, to_the_end=False)), replay(job)
    alerts = with_unconfirmed(confirmed.alerts, whole.alerts)
    counters = Counter({name: count for name, count in whole.counters.items() if not name.startswith("alerts[")})
    rules = alerts.group_by(["rule_id", "version"]).aggregate([([], "count_all")]).to_pylist()
    counters.update({f"alerts[{row['rule_id']}@{row['version']}]": row["count_all"] for row in rules})
    seconds = confirmed.seconds + whole.seconds
    return replace(whole, alerts=alerts, counters=counters, seconds=seconds, watermark_ms=confirmed.watermark_ms)


def with_unconfirmed(confirmed: pa.Table, whole: pa.Table) -> pa.Table:
    """Return the confirmed alerts, and the others of the whole with their mark."""
    is_more = pc.invert(pc.is_in(whole["alert_id"], confirmed["alert_id"].combine_chunks()))
    more = whole.filter(is_more)
    index = more.schema.get_field_index(UNCONFIRMED)
    marked = more.set_column(index, more.schema.field(index), pa.repeat(pa.scalar(True), more.num_rows))
    return sort_alerts(pa.concat_tables([confirmed, marked]))
