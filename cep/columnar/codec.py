"""The one codec: an EventBatch, or arrays with named columns, as bytes and back.

    | "CEP" | format u8 | crc32 u32 | Arrow IPC stream: one schema, one record batch |      little-endian

The checksum covers the bytes after it. Arrow's IPC format carries names, types, nulls and alignment, and whether
columns are compressed, so that a reader needs no further information.
Tested by: tests/columnar/test_batch.py
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pyarrow as pa

from cep.base.errors import StateCorruptError, StateFormatError
from cep.columnar.batch import EventBatch

FORMAT_VERSION = 2
_WITHOUT_ORDER = 1  # of all blocks but batches with an order table, which an earlier build must not read
_HEADER = struct.Struct("<3sBI")
_MAGIC = b"CEP"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
_FIXED = ("\x00key", "\x00event_id", "\x00event_type", "\x00time_ms")  # no field can have such a name
_ORDER = ("\x00order_us", "\x00order_field", "\x00order_view")  # of a batch with an order table, in format 2


def encode_table(batch: pa.RecordBatch, *, compressed: bool = False, version: int = _WITHOUT_ORDER) -> bytes:
    """Write a record batch (with its schema's metadata) as bytes; compressing costs about a millisecond a megabyte."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED if compressed else None) as writer:
        writer.write_batch(batch)
    body = memoryview(sink.getvalue())
    return b"".join((_HEADER.pack(_MAGIC, version, zlib.crc32(body)), body))


def decode_table(data: bytes) -> pa.RecordBatch:
    """Check the header of a stored block and read its record batch.

    The columns point into `data` if it is not compressed.

    Raises: StateFormatError for another format version, StateCorruptError if magic, checksum or shape are wrong.
    """
    if len(data) < _HEADER.size:
        raise StateCorruptError(f"a block of {len(data)} bytes is shorter than its header of {_HEADER.size}")
    magic, version, checksum = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise StateCorruptError(f"a block begins with {magic!r}, not {_MAGIC!r}; the bytes are not ours")
    if version not in (_WITHOUT_ORDER, FORMAT_VERSION):
        raise StateFormatError(
            f"a block has format {version}, this build reads {FORMAT_VERSION} and earlier ones; "
            "start from an empty checkpoint, or read it with the build that wrote it"
        )
    body = pa.py_buffer(data).slice(_HEADER.size)
    if zlib.crc32(body) != checksum:
        raise StateCorruptError(f"a block of {len(data)} bytes fails its checksum; restore an earlier checkpoint")
    try:
        with pa.ipc.open_stream(body) as reader:
            batch = reader.read_next_batch()
            batch.validate()  # lengths and buffers; the values themselves are as their writer's checksum says
            return batch
    except (pa.ArrowException, StopIteration, OSError) as error:
        reason = str(error).partition("\n")[0] or "it is empty"
        raise StateCorruptError(
            f"a block of {len(data)} bytes is no table: {reason}; restore an earlier checkpoint"
        ) from error


def encode_batch(batch: EventBatch) -> bytes:
    """Write an EventBatch as bytes."""
    arrays = [batch.key, batch.event_id, pa.array(batch.event_type), pa.array(batch.time_ms), *batch.columns.values()]
    if batch.order is None:
        return encode_table(pa.record_batch(arrays, names=[*_FIXED, *batch.columns]))
    arrays += [pa.array(np.ascontiguousarray(batch.order[:, number])) for number in range(len(_ORDER))]
    names = [*_FIXED, *batch.columns, *_ORDER]
    return encode_table(pa.record_batch(arrays, names=names), version=FORMAT_VERSION)


def decode_batch(data: bytes) -> EventBatch:
    """Read the EventBatch in `data`. Raises as decode_table."""
    table = decode_table(data)
    names = table.schema.names
    fields_end = len(names) - len(_ORDER) if names[-1] == _ORDER[-1] else len(names)
    order = [np.asarray(table.column(number)) for number in range(fields_end, len(names))]
    return EventBatch(
        table.column(0),
        table.column(1),
        np.asarray(table.column(2)),
        np.asarray(table.column(3)),
        {names[i]: table.column(i) for i in range(len(_FIXED), fields_end)},
        np.column_stack(order) if order else None,
    )
