"""First stage of both Spark jobs: records → packed rows, one a key group.

    records (JSON values, or columns) ─▶ decode ─▶ route to each key domain ─▶ split by key group ─▶ encode

    packed row: key_group int | kind string | domain int | order bigint | payload binary

The shuffle moves these few fat rows. Every key group is also told how far each partition of the source was read, and
the time of the earliest event (event_time.py): in live all have one watermark, and all alerts know since when the job
has seen events.
Tested by: tests/runners/spark/test_packed.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import TIME_MS_MIN
from cep.base.schema import Schema
from cep.columnar.batch import EventBatch
from cep.columnar.codec import encode_batch
from cep.columnar.decode import Decoded, concat_decoded, decode_json, decode_table
from cep.columnar.route import route, split_by_group
from cep.step.event_time import PartitionTimes, TimesRead, merge_times
from cep.step.job import Job
from cep.step.validate import first_ms, validate_events

EVENTS, CONTROL, DEAD, REFUSED, COUNTERS = "events", "control", "dead", "refused", "counters"
ALERTS, LATE, TIMES, WATERMARK, STATUS, STATE = "alerts", "late", "times", "watermark", "status", "state"
PACKED_SCHEMA = "key_group int, kind string, domain int, order bigint, payload binary"
_PACKED_ARROW = pa.schema(
    [
        ("key_group", pa.int32()),
        ("kind", pa.string()),
        ("domain", pa.int32()),
        ("order", pa.int64()),
        ("payload", pa.binary()),
    ]
)
# Records decoded together: enough to make the cost per key group small, few enough to stay in memory.
RECORDS_AT_ONCE = 524_288
# What a record of Kafka says of its place; a source without them is one partition.
_PLACE = ("topic", "partition")
_WHOLE = "source"

PackedRow = tuple[int, str, int, int, bytes]
Decode = Callable[[Schema, pa.Array, str], Decoded]  # values of a topic


@dataclass(frozen=True, slots=True)
class DecodedPart:
    """Decoded records of one partition of the source. `is_behind`: more of the partition waits than was read."""

    partition: str
    decoded: Decoded
    is_behind: bool = False


def _decode_json(schema: Schema, values: pa.Array, _topic: str) -> Decoded:
    return decode_json(schema, values)


def packer(
    job: Job, values_column: str | None, decode: Decode = _decode_json
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for mapInArrow. `values_column` names the column of records; None: fields are columns."""

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting_batches: list[pa.RecordBatch] = []
        records = 0
        for batch in batches:
            waiting_batches.append(batch)
            records += batch.num_rows
            if records >= RECORDS_AT_ONCE:
                yield pack_parts(job, _parts(job, waiting_batches, values_column, decode))
                waiting_batches, records = [], 0
        if records:
            yield pack_parts(job, _parts(job, waiting_batches, values_column, decode))

    return pack


def _parts(job: Job, batches: list[pa.RecordBatch], values_column: str | None, decode: Decode) -> list[DecodedPart]:
    """Divide the records by partition. Spark may have put several into one batch."""
    table = pa.Table.from_batches(batches).combine_chunks()
    if values_column is None:
        decoded = decode_table(
            job.schema, table, lambda row: json.dumps(table.slice(row, 1).to_pylist()[0], default=str)
        )
        return [DecodedPart(_WHOLE, decoded)]
    if not set(_PLACE) <= set(table.schema.names):
        return [DecodedPart(_WHOLE, decode(job.schema, table.column(values_column).combine_chunks(), _WHOLE))]
    parts = []
    for place in table.select(_PLACE).group_by(list(_PLACE)).aggregate([]).to_pylist():
        is_here = [pc.equal(table[name], place[name]) for name in _PLACE]
        values = table.column(values_column).filter(pc.and_(*is_here)).combine_chunks()
        decoded = decode(job.schema, values, place["topic"])
        parts.append(DecodedPart(f"{place['topic']}-{place['partition']}", decoded))
    return parts


def pack_parts(job: Job, parts: Sequence[DecodedPart]) -> pa.RecordBatch:
    """Pack the records of some partitions."""
    decoded = concat_decoded(job.schema, [part.decoded for part in parts])
    rows = list(_rows(job, decoded))
    times: PartitionTimes = {}
    for part in parts:
        # A partition that is behind holds the watermark even if nothing of it could be read so far.
        last_ms = int(part.decoded.time_ms.max()) if len(part.decoded) else TIME_MS_MIN
        times = merge_times(times, {part.partition: (last_ms, part.is_behind)})
    times_read = TimesRead(times, first_ms(job, decoded)).to_bytes()
    rows += [(group, TIMES, 0, 0, times_read) for group in range(job.groups_count)]
    return as_batch(rows)


def _rows(job: Job, decoded: Decoded) -> Iterator[PackedRow]:
    taken = validate_events(job, decoded)
    for number, batch in enumerate(taken.batches):
        yield from _event_rows(job, number, batch)
    for letter in taken.dead_letters:
        yield 0, DEAD, 0, 0, letter
    yield 0, COUNTERS, 0, 0, json.dumps({k: v for k, v in taken.counters.items() if v}).encode()


def produced_rows(job: Job, events: Decoded) -> Iterator[PackedRow]:
    """Pack produced events, for each key that they have."""
    types = job.schema.columns()
    for number, domain in enumerate(job.domains):
        yield from _event_rows(job, number, route(events, domain, types)[0])


def _event_rows(job: Job, number: int, batch: EventBatch) -> Iterator[PackedRow]:
    for group, share in split_by_group(batch, job.groups_count):
        yield group, EVENTS, number, 0, encode_batch(share)


def as_batch(rows: list[PackedRow]) -> pa.RecordBatch:
    """Packed rows as Spark takes them; at least one."""
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    arrays = [pa.array(values, f.type) for values, f in zip(columns, _PACKED_ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_PACKED_ARROW)
