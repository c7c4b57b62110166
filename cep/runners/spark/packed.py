"""First stage of both Spark jobs: records → packed rows, one a key group.

    records (topics, files, or columns) ─▶ decode ─▶ route to each key domain ─▶ split by key group ─▶ encode

    packed row: key_group int | kind string | domain int | order string | payload binary

A shuffle mixes the rows of several tasks. `order` sorts rows of events as they arrived: by task and pack, by the time
and name of their file, or BY_ID for a frame of a user, which has no order of its own.

Every key group also gets how far each partition of the source was read, the time of the earliest event, and the clock
(event_time.py): in live all have one watermark, and all alerts know since when the job has seen events.
Tested by: tests/runners/spark/test_tasks.py
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row

from cep.columnar.batch import TEXT, EventBatch, concat_batches, encode_batch
from cep.columnar.decode import Decoded, concat_decoded, decode_table, in_partition, key_groups, route, split_by_group
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.columnar.order import ordered_by_id
from cep.columnar.shown import RowTexts
from cep.sources.live.files import decoded_file
from cep.sources.pieces import FilePart, read_part
from cep.step.duplicates import ensure_digests
from cep.step.event_time import NOTHING_READ, TimesRead, read_time
from cep.step.job import Job
from cep.step.marks import Marks, marks_bytes
from cep.step.validate import ValidEvents, validate_events

EVENTS, CONTROL, DEAD, REFUSED, COUNTERS = "events", "control", "dead", "refused", "counters"
ALERTS, LATE, TIMES, WATERMARK, STATUS, STATE = "alerts", "late", "times", "watermark", "status", "state"
MARKS = "marks"
_PACKED_ARROW = pa.schema([
    ("key_group", pa.int32()), ("kind", pa.string()), ("domain", pa.int32()), ("order", pa.string()),
    ("payload", pa.binary()),
])  # fmt: skip
# Records decoded together: enough to make the cost per key group small, few enough to stay in memory.
RECORDS_AT_ONCE = 524_288
_WHOLE = "source"  # a source without partitions is one
PART_COLUMN = "_cep_part"  # of a frame that names files, or parts of them
WRITTEN_COLUMN = "modificationTime"  # when a file of a live folder was written
CLOCK_COLUMN = "_cep_clock_ms"  # the time of the micro-batch, which is the same when it is done again

# The order of rows without an order, and of events that only their ids order.
NO_ORDER, BY_ID = "", "id"
_FILE_END = "\0"  # after the name of a file in the order of its rows

T = TypeVar("T")
PackedRow = tuple[int, str, int, str, bytes]


@dataclass(frozen=True, slots=True)
class DecodedPart:
    """Decoded records of one partition of the source."""

    partition: str
    decoded: Decoded
    is_behind: bool = False  # more of the partition waits than was read
    number: int = 0  # of the partition in its topic


def task_order(number: int) -> str:
    """Return the order of the rows that this task makes: tasks read parts of a source in the order of their numbers."""
    context = TaskContext.get()
    return f"{0 if context is None else context.partitionId():010d} {number:010d}"


def is_repeated(row: Row, seen: set[tuple[str, int, str]]) -> bool:
    """Return True for a row of a file that is in `seen` already; otherwise add it. If the name of a file has a bracket,
    a brace, a star or the like, Spark lists the other files of the micro-batch again, perhaps for another task."""
    place = row.kind, row.domain, row.order
    is_known = place in seen
    if _FILE_END in row.order:
        seen.add(place)
    return is_known


def in_arrival_order(rows: Iterable[tuple[str, EventBatch]]) -> list[EventBatch]:
    """Sort batches by the order of their packed rows; derived events, which lack an order, may stand anywhere."""
    ordered = sorted(rows, key=itemgetter(0))
    by_id = [batch for order, batch in ordered if order == BY_ID]
    others = [batch for order, batch in ordered if order != BY_ID]
    return [ordered_by_id(concat_batches(by_id)), *others] if by_id else others


def packer(
    job: Job, before: TimesRead = NOTHING_READ, mapping: FieldMapping = PLAIN
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow that packs events, whose fields are columns: one row for all events of a key
    group. `before`: how far partitions were read before, and the clock; a stream has its clock in CLOCK_COLUMN. A
    user's frame has no partitions, so it counts as one (_WHOLE), and no order, so ids order its events (BY_ID)."""

    def packed(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        table, times = pa.Table.from_batches(batches), before
        if CLOCK_COLUMN in table.schema.names:
            times = replace(times, now_ms=table.column(CLOCK_COLUMN)[0].as_py())
            table = table.drop_columns([CLOCK_COLUMN])
        whole = table.combine_chunks()
        decoded = decode_table(job.schema, whole, RowTexts(whole), mapping)
        return pack_parts(job, [DecodedPart(_WHOLE, decoded)], times, BY_ID)

    return lambda batches: map(packed, many_at_once(batches, lambda batch: batch.num_rows))


def many_at_once(items: Iterable[T], records_count: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield lists of items with RECORDS_AT_ONCE records or more together; the last one may have fewer, but not none."""
    waiting: list[T] = []
    records = 0
    for item in items:
        waiting.append(item)
        records += records_count(item)
        if records >= RECORDS_AT_ONCE:
            yield waiting
            waiting, records = [], 0
    if records:
        yield waiting


def part_packer(
    job: Job, before: TimesRead, mapping: FieldMapping
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow that reads parts of files (PART_COLUMN) and packs their events: one row for all
    events of a key group. A part is decoded in small pieces; several are packed together, which gives fewer rows.
    `before`: how far partitions were read before these records, and the clock."""

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = (name for batch in batches for name in batch.column(PART_COLUMN).to_pylist())
        pieces = (piece for name in names for piece in read_part(FilePart.from_json(name), job.schema, mapping))
        joined_pieces = _in_large_parts(job, (piece.decode() for piece in pieces))
        for number, joined in enumerate(joined_pieces):
            yield pack_parts(job, [joined], before, task_order(number))  # the place in the order of arrival

    return pack


def file_packer(job: Job, mapping: FieldMapping) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow that reads the files of a live folder (PART_COLUMN) and packs their events by
    key group. After each batch of files it yields rows that say how far the source was read.

    Spark divides files among tasks by size. The order of a row is therefore its file's time and name, and a number. A
    file that Spark lists twice gives the same orders again (is_repeated).
    """

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                times = replace(NOTHING_READ, now_ms=batch.column(CLOCK_COLUMN)[0].as_py())  # the clock alone
                written_ms = batch.column(WRITTEN_COLUMN).cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
                for path, ms in zip(map(Path, batch.column(PART_COLUMN).to_pylist()), written_ms, strict=True):
                    file_order = f"{ms:020d} {path.name}{_FILE_END}{path.parent}"
                    for number, part in enumerate(_in_large_parts(job, decoded_file(path, job.schema, mapping))):
                        rows, times = _packed_events(job, [part], times, f"{file_order} {number:010d}")
                        yield as_batch(rows)
                yield as_batch(_times_rows(job, times))

    return pack


def _in_large_parts(job: Job, parts: Iterator[Decoded]) -> Iterator[DecodedPart]:
    """Join small parts, which each cost a call, into parts of many records."""
    for some in many_at_once(parts, lambda part: part.records_count):
        yield DecodedPart(_WHOLE, concat_decoded(job.schema, some))


def pack_parts(
    job: Job, parts: Sequence[DecodedPart], before: TimesRead = NOTHING_READ, order: str = NO_ORDER
) -> pa.RecordBatch:
    """Pack the records of partitions, which arrived in this `order`. `before`: the micro-batch's times without them."""
    rows, read = _packed_events(job, parts, before, order)
    return as_batch([*rows, *_times_rows(job, read)])


def _packed_events(
    job: Job, parts: Sequence[DecodedPart], before: TimesRead, order: str
) -> tuple[list[PackedRow], TimesRead]:
    """Return the packed rows of the records, and the times of the micro-batch with them."""
    whole = concat_decoded(job.schema, [in_partition(part.decoded, part.number) for part in parts])
    valid_events = validate_events(job, whole, before.now_ms)
    read = before.joined(TimesRead({}, valid_events.first_ms))
    for part in parts:
        time = read_time(part.decoded.time_ms, before.now_ms, job.ahead_ms, is_behind=part.is_behind)
        read = read.joined(TimesRead({part.partition: time}))
    return list(_rows(job, valid_events, order)), read


def _times_rows(job: Job, times: TimesRead) -> list[PackedRow]:
    times_read = times.to_bytes()
    return [(group, TIMES, 0, NO_ORDER, times_read) for group in range(job.groups_count)]


def _rows(job: Job, valid_events: ValidEvents, order: str) -> Iterator[PackedRow]:
    for number, batch in enumerate(valid_events.batches):
        yield from _event_rows(job, number, batch, order)
    place = order if _FILE_END in order else NO_ORDER  # rows of a file that Spark lists twice count once
    for number, letter in enumerate(valid_events.dead_letters):
        yield 0, DEAD, 0, place and f"{place} {number}", letter
    yield from _mark_rows(job, valid_events.marks)
    yield 0, COUNTERS, 0, place, json.dumps({k: v for k, v in valid_events.counters.items() if v}).encode()


def _mark_rows(job: Job, marks: Marks) -> Iterator[PackedRow]:
    groups = key_groups(pa.array([key for _, key in marks], TEXT), job.groups_count).tolist()
    for group in sorted(set(groups)):
        group_marks = {
            mark: times for (mark, times), key_group in zip(marks.items(), groups, strict=True) if key_group == group
        }
        yield group, MARKS, 0, NO_ORDER, marks_bytes(group_marks)


def produced_rows(job: Job, events: Decoded) -> Iterator[PackedRow]:
    """Pack produced events, for each key that they have."""
    types, prepared = job.schema.columns(), ensure_digests(job, events)
    for number, domain in enumerate(job.domains):
        yield from _event_rows(job, number, route(prepared, domain, types)[0], NO_ORDER)


def _event_rows(job: Job, number: int, batch: EventBatch, order: str) -> Iterator[PackedRow]:
    for group, share in split_by_group(batch, job.groups_count):
        yield group, EVENTS, number, order, encode_batch(share)


def by_kind(rows: pa.Table) -> defaultdict[str, list[pa.BinaryScalar]]:
    """Return the payloads of packed rows by their kind."""
    payloads = defaultdict[str, list[pa.BinaryScalar]](list)
    for kind, payload in zip(rows.column("kind").to_pylist(), rows.column("payload"), strict=True):
        payloads[kind].append(payload)
    return payloads


def stage_row(packed: PackedRow) -> Row:
    """Return a packed row as a stage gives it to Spark."""
    group, kind, domain, order, payload = packed
    return Row(key_group=group, kind=kind, domain=domain, order=order, payload=payload)


def as_batch(rows: list[PackedRow]) -> pa.RecordBatch:
    """Packed rows as Spark takes them; at least one."""
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    arrays = [pa.array(values, f.type) for values, f in zip(columns, _PACKED_ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_PACKED_ARROW)
