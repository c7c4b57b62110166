"""First stage of both Spark jobs: records → packed rows, one a key group.

    records (JSON values, or columns) ─▶ decode ─▶ route to each key domain ─▶ split by key group ─▶ encode

    packed row: key_group int | kind string | domain int | order bigint | payload binary | event_time timestamp

The shuffle moves these few fat rows. `event_time` is the largest event time in the row, for Spark's watermark.
Tested by: tests/runners/spark/test_packed.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from cep.columnar.codec import encode_batch
from cep.columnar.decode import Decoded, decode_json, decode_table
from cep.columnar.route import split_by_group
from cep.runners.intake import take_in
from cep.runners.job import Job

EVENTS, CONTROL, CONTROL_FILE, DEAD, COUNTERS = "events", "control", "control_file", "dead", "counters"
ALERTS, LATE = "alerts", "late"
PACKED_SCHEMA = "key_group int, kind string, domain int, order bigint, payload binary, event_time timestamp"
_PACKED_ARROW = pa.schema(
    [
        ("key_group", pa.int32()),
        ("kind", pa.string()),
        ("domain", pa.int32()),
        ("order", pa.int64()),
        ("payload", pa.binary()),
        ("event_time", pa.timestamp("us", tz="UTC")),
    ]
)
# Records decoded together: enough to make the cost per key group small, few enough to stay in memory.
_RECORDS_AT_ONCE = 524_288

PackedRow = tuple[int, str, int, int, bytes, int | None]


def packer(job: Job, values_column: str | None) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow. `values_column` names the column of JSON records; None: fields are columns."""

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        records = 0
        for batch in batches:
            held.append(batch)
            records += batch.num_rows
            if records >= _RECORDS_AT_ONCE:
                yield _packed(job, values_column, held)
                held, records = [], 0
        if records:
            yield _packed(job, values_column, held)

    return pack


def _packed(job: Job, values_column: str | None, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches).combine_chunks()
    if values_column is None:
        decoded = decode_table(
            job.schema, table, lambda row: json.dumps(table.slice(row, 1).to_pylist()[0], default=str)
        )
    else:
        decoded = decode_json(job.schema, table.column(values_column).combine_chunks())
    return _as_batch(list(_rows(job, decoded)))


def _rows(job: Job, decoded: Decoded) -> Iterator[PackedRow]:
    taken = take_in(job, decoded)
    for number, batch in enumerate(taken.batches):
        for group, share in split_by_group(batch, job.groups_count):
            yield group, EVENTS, number, 0, encode_batch(share), int(share.time_ms.max())
    for letter in taken.dead_letters:
        yield 0, DEAD, 0, 0, letter, None
    yield 0, COUNTERS, 0, 0, json.dumps({k: v for k, v in taken.counters.items() if v}).encode(), None


def _as_batch(rows: list[PackedRow]) -> pa.RecordBatch:
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    columns[5] = [None if ms is None else ms * 1_000 for ms in columns[5]]
    arrays = [pa.array(values, f.type) for values, f in zip(columns, _PACKED_ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_PACKED_ARROW)


def encode_alerts(alerts: pa.Table) -> bytes:
    """Alerts as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, alerts.schema) as writer:
        writer.write_table(alerts)
    return bytes(sink.getvalue())


def decode_alerts(payload: bytes) -> pa.Table:
    """The alerts that `encode_alerts` wrote."""
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_all()
