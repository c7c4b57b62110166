"""EventBatch: typed columns of events of one key domain.

A column is an Arrow array: int64 (int, scaled decimal, enum code, time and duration in ms), bool, float64 or
large_string, with Arrow's nulls. `slots` turns one into the int64 slots and null flags that kernels read.

An EventBatch, or arrays with named columns, has one form as bytes:

    | "CEP" | format u8 | crc32 u32 | Arrow IPC stream: one schema, one record batch |      little-endian

The checksum covers the bytes after it. Arrow's format carries names, types, nulls and alignment.
Tested by: tests/columnar/test_batch.py.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.base.errors import StateCorruptError, StateFormatError
from cep.base.schema import Kind, Schema, Type
from cep.kernels.records import Texts

N = TypeVar("N", bound=np.generic)

TEXT, WHOLES, FLOATS = pa.large_string(), pa.int64(), pa.float64()
_SLOT_BITS = 64
# The columns of an order table: microseconds inside the millisecond, the declared field, the origin (order.py).
ORDER_US, ORDER_FIELD, ORDER_ORIGIN, ORDER_COLUMNS = 0, 1, 2, 3
NO_VALUE = np.iinfo(np.int64).min  # of a declared field that an event does not have
NO_TEXTS = pa.nulls(0, TEXT)


def arrow_type(type_: Type) -> pa.DataType:
    """Return the Arrow type of a column."""
    if type_.is_text:
        return TEXT
    if type_.kind is Kind.BOOL:
        return pa.bool_()
    return FLOATS if type_.is_float else WHOLES


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of one key domain as columns, in their order of arrival. That order decides between events of one time.

    Shapes: all of length N. key and event_id are text without nulls; event_type int16 is an index of the schema's event
    types; time_ms int64 is event time, UTC; columns hold every field of the schema but id and time. order int64[N, 3]
    has three numbers an event that decide between events of one millisecond (order.py); None: arrival alone decides.
    """

    key: pa.Array
    event_id: pa.Array
    event_type: NDArray[np.int16]
    time_ms: NDArray[np.int64]
    columns: Mapping[str, pa.Array]
    order: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.time_ms)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> EventBatch:
        """Return the events at these positions, or where the mask is true."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        indices = pa.array(chosen)
        return self.map(lambda column: column.take(indices), lambda numbers: numbers[chosen])

    def map(self, of_array: Callable[[pa.Array], pa.Array], of_numbers: Callable[[Any], Any]) -> EventBatch:
        """Return the batch with other rows: `of_array` takes rows of an Arrow array, `of_numbers` of a numpy array."""
        return EventBatch(
            of_array(self.key),
            of_array(self.event_id),
            of_numbers(self.event_type),
            of_numbers(self.time_ms),
            {name: of_array(column) for name, column in self.columns.items()},
            None if self.order is None else of_numbers(self.order),
        )


def empty_batch(schema: Schema) -> EventBatch:
    """Make a batch without events."""
    return EventBatch(
        NO_TEXTS,
        NO_TEXTS,
        np.empty(0, np.int16),
        np.empty(0, np.int64),
        {name: pa.array([], arrow_type(type_)) for name, type_ in data_columns(schema).items()},
    )


def data_columns(schema: Schema) -> dict[str, Type]:
    """List the columns of the schema's EventBatch other than key, id, type and time."""
    fixed = {e.time_field for e in schema.event_types}
    return {name: type_ for name, type_ in schema.columns().items() if name not in fixed}


def conformed(batch: EventBatch, schema: Schema) -> EventBatch:
    """Give a stored batch the columns that the schema has now: fields added since are null, fields dropped are gone."""
    types = data_columns(schema)
    if batch.columns.keys() == types.keys():
        return batch
    columns = {
        name: batch.columns[name] if name in batch.columns else pa.nulls(len(batch), arrow_type(type_))
        for name, type_ in types.items()
    }
    return replace(batch, columns=columns)


def concat_batches(batches: Iterable[EventBatch]) -> EventBatch:
    """Join the events of one or more batches, in their order."""
    parts = list(batches)
    if len(parts) == 1:
        return parts[0]
    return EventBatch(
        pa.concat_arrays([b.key for b in parts]),
        pa.concat_arrays([b.event_id for b in parts]),
        np.concatenate([b.event_type for b in parts]),
        np.concatenate([b.time_ms for b in parts]),
        {name: pa.concat_arrays([b.columns[name] for b in parts]) for name in parts[0].columns},
        joined_orders([(b.order, len(b)) for b in parts]),
    )


def joined_orders(parts: Sequence[tuple[NDArray[np.int64] | None, int]]) -> NDArray[np.int64] | None:
    """Join the order tables of batches, each with how many events its batch has."""
    if all(order is None for order, _ in parts):
        return None
    return np.concatenate([no_order(count) if order is None else order for order, count in parts])


def no_order(count: int) -> NDArray[np.int64]:
    """Return the order table of events that milliseconds and arrival order: int64[count, 3]."""
    table = np.zeros((count, ORDER_COLUMNS), np.int64)
    table[:, ORDER_FIELD] = NO_VALUE
    return table


def slots(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the 64-bit slots of a column that is not text, and its null flags (1 = null; the slot is then 0)."""
    return slot_values(array), null_flags(array) if array.null_count else np.zeros(len(array), np.uint8)


def slot_values(array: pa.Array) -> NDArray[np.int64]:
    """Return the 64-bit slots of a column that is not text; 0 where it is null."""
    if array.null_count:
        array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
    if array.type.bit_width == _SLOT_BITS:
        return _words(array.buffers()[1], array.offset, len(array))
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values.view(np.int64) if values.dtype == np.float64 else values.astype(np.int64, copy=False)


def _words(data: pa.Buffer | None, first: int, count: int) -> NDArray[np.int64]:
    """Return words of 64 bits of a buffer, without a copy, read-only. An empty array may lack a buffer."""
    return _locked(np.frombuffer(data, np.int64, count, first * 8) if data else np.zeros(count, np.int64))


def null_flags(array: pa.Array) -> NDArray[np.uint8]:
    """Return 1 where a column is null."""
    flags: NDArray[np.uint8] = np.asarray(pc.is_null(array)).astype(np.uint8)
    return flags


def from_slots(values: NDArray[np.int64], nulls: NDArray[np.uint8], type_: Type) -> pa.Array:
    """Make a column of slots and null flags, for a type that is not text."""
    mask = nulls.astype(bool) if np.count_nonzero(nulls) else None
    if type_.kind is Kind.BOOL:
        return pa.array(values.astype(bool), mask=mask)
    return numbers(values.view(np.float64), FLOATS, mask) if type_.is_float else numbers(values, WHOLES, mask)


def column_of_slots(values: NDArray[np.int64], nulls: NDArray[np.uint8], type_: Type, texts: pa.Array) -> pa.Array:
    """Make a column of slots and null flags, for any type; slots of texts are places in `texts`."""
    if type_.is_text:
        return texts.take(pa.array(values, mask=nulls.astype(bool)))
    return from_slots(values, nulls, type_)


def numbers(values: NDArray[Any], type_: pa.DataType, mask: NDArray[np.bool_] | None) -> pa.Array:
    """Make a column of numbers of this type, null where the mask is true; without a mask it is not copied."""
    if mask is not None:
        return pa.array(values, type_, mask=mask)
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])  # begins sooner than pa.array


def text_buffers(array: pa.Array) -> Texts:
    """Offsets int64[N + 1] and UTF-8 bytes of a large_string array, without a copy, read-only."""
    _, offsets, data = array.buffers()  # once: each call makes three objects
    content = _locked(np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8))
    return Texts(_words(offsets, array.offset, len(array) + 1), content)


def text_offsets(array: pa.Array) -> NDArray[np.int64]:
    """Return the offsets of `text_buffers` alone: int64[N + 1]."""
    return _words(array.buffers()[1], array.offset, len(array) + 1)


def are_short(texts: pa.Array, bytes_max: int) -> bool:
    """Return True if every text is short because the total is. False means that it is unknown."""
    data = texts.buffers()[2]
    return data is None or data.size <= bytes_max


def read_only(array: NDArray[N]) -> NDArray[N]:
    """Return a view that cannot be written to. A kernel is compiled once for writable arrays and once for others."""
    return _locked(array.view())


def _locked(array: NDArray[N]) -> NDArray[N]:
    array.setflags(False)  # type: ignore[call-arg]  # not to be written to; by position, which is twice as quick
    return array


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
    """Read the record batch of a stored block. Its columns point into `data` if it is not compressed.

    Raises: StateFormatError for another format version, StateCorruptError if magic, checksum or shape are wrong.
    """
    if len(data) < _HEADER.size:
        raise StateCorruptError(f"a block of {len(data)} bytes is shorter than its header of {_HEADER.size}")
    magic, version, checksum = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise StateCorruptError(f"a block begins with {magic!r}, not {_MAGIC!r}; the bytes are not ours")
    if version not in (_WITHOUT_ORDER, FORMAT_VERSION):  # 1 and 2
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
            batch.validate()  # of lengths and buffers; the checksum has covered the values
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
    fields_end = len(names) - len(_ORDER) if names[-1] == _ORDER[-1] else len(names)  # the order table is last, if any
    order = [np.asarray(table.column(number)) for number in range(fields_end, len(names))]
    return EventBatch(
        key=table.column(0),
        event_id=table.column(1),
        event_type=np.asarray(table.column(2)),
        time_ms=np.asarray(table.column(3)),
        columns={names[i]: table.column(i) for i in range(len(_FIXED), fields_end)},
        order=np.column_stack(order) if order else None,
    )
