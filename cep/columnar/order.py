"""The order of events of one key: by time, within one millisecond by the order table of their batch, then by arrival.

    event time, ms │ µs in that ms │ declared field │ partition       │ arrival
    time_ms          order[:, 0]     order[:, 1]      in order[:, 2]    row of the batch

Every batch has its events in the order in which the source gives them: rows of a frame or a file, files of a folder by
their names, offsets of a partition. Whatever takes, joins or sends batches keeps that order. Events of two partitions
have no common arrival, so the number of the partition decides. An event without a value in the declared field precedes
events that have one. A batch of one partition whose events have only milliseconds has no order table.

Derived events follow the source events of their millisecond. Workers make them in no reproducible order, so their ids
decide: the id of the record, by its length first, the position of the view in the mapping, the whole id.

    order[:, 2] = partition << 32 │ position of the view << 8 │ number of id bytes that belong to the view

kernels/arrange.py has the one function that compares two events; all code that orders events calls it.
Tested by: tests/columnar/test_order.py, tests/kernels/test_plain.py, tests/runners/test_arrival.py
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.columnar.batch import (
    NO_TEXTS,
    NO_VALUE,
    ORDER_COLUMNS,
    ORDER_FIELD,
    ORDER_ORIGIN,
    ORDER_US,
    EventBatch,
    no_order,
    read_only,
    text_buffers,
)
from cep.kernels.arrange import DERIVED_US, PARTITION_SHIFT, VIEW_TAIL_BITS, arrange_events
from cep.kernels.layout import Int32, Int64
from cep.kernels.records import Arrivals

_NO_ORDER = np.empty((0, ORDER_COLUMNS), np.int64)
_NO_IDS = text_buffers(NO_TEXTS)


def order_table(us: Int64 | None, declared: Int64 | None, view: str, position: int, count: int) -> Int64 | None:
    """Build the table that orders events of one millisecond, int64[count, 3]; None if the order of arrival is enough.

    `us` int64[N] is the microsecond inside the millisecond; `declared` int64[N] the value of the field that the schema
    declares for the order, NO_VALUE without one. If a record becomes several events (views), `view` is the name of this
    view and `position` its number. The id of its events is the record's id, `#` and the name.
    """
    has_us = us is not None and us.any()
    has_field = declared is not None and (declared != NO_VALUE).any()
    if not (has_us or has_field or view):
        return None
    table = no_order(count)
    if us is not None:
        table[:, ORDER_US] = us
    if declared is not None:
        table[:, ORDER_FIELD] = declared
    if view:
        tail_bytes = 1 + len(view)  # `#` and name: the end of an id that is left out when records' ids are compared
        table[:, ORDER_ORIGIN] = (position << VIEW_TAIL_BITS) + tail_bytes  # the length in the low bits
    return table


def with_partitions(order: Int64 | None, partitions: int | Int64, count: int) -> Int64 | None:
    """Add the partitions of source events, one or int64[N], to their order table. No table means partition 0."""
    if not (partitions if isinstance(partitions, int) else partitions.any()):
        return order
    table = no_order(count) if order is None else order.copy()
    table[:, ORDER_ORIGIN] += np.asarray(partitions, np.int64) << PARTITION_SHIFT
    return table


def order_of_derived(completing: Int64, tail_bytes: int) -> Int64:
    """Return the order of derived events from the order of the events that completed them: int64[N, 3] both.

    The columns: microseconds in the millisecond │ declared field │ origin: partition << 32 │ view << 8 │ tail length.
    DERIVED_US in the microseconds puts derived events after all source events of their millisecond. The id of a derived
    event is a record's id and a tail, which comparisons leave out. A source event's tail gets `tail_bytes` more; if the
    completing event is itself derived, its order stays.
    """
    table = completing.copy()
    table[:, ORDER_ORIGIN] &= (1 << PARTITION_SHIFT) - 1  # without the partition: ids decide between derived events
    is_source = table[:, ORDER_US] < DERIVED_US
    table[is_source, ORDER_US] += DERIVED_US
    table[is_source, ORDER_ORIGIN] += tail_bytes
    return table


def arranged_rows(batch: EventBatch, key: Int32, keys_count: int) -> Int64:
    """Sort the rows of a batch by key, time, `batch.order` (which orders events of one millisecond), and arrival.

    Shapes: int64[N]; key int32[N] is below keys_count. Cost: a sort by time if the batch is not sorted, otherwise O(N).
    """
    ordered = np.empty(len(batch), np.int64)
    if len(batch) == 0:
        return ordered
    time = batch.time_ms
    is_sorted = np.count_nonzero(time[1:] < time[:-1]) == 0
    by_time = np.arange(len(batch)) if is_sorted else np.argsort(time, kind="stable")
    order = _NO_ORDER if batch.order is None else np.ascontiguousarray(batch.order)
    ids = _NO_IDS if batch.order is None else text_buffers(batch.event_id)  # only an order table lets ids decide
    arrivals = Arrivals(key, read_only(time), read_only(order), *ids)
    arrange_events(by_time, arrivals, keys_count, ordered)
    return ordered


def ordered_by_id(batch: EventBatch) -> EventBatch:
    """Sort the events by their records, as if they had arrived so: shorter ids first, then by bytes, then by view."""
    records, views = batch.event_id, np.zeros(len(batch), np.int64)
    if batch.order is not None:
        views = batch.order[:, ORDER_ORIGIN] >> VIEW_TAIL_BITS
        tails = batch.order[:, ORDER_ORIGIN] & ((1 << VIEW_TAIL_BITS) - 1)
        for tail in np.unique(tails[tails > 0]).tolist():
            records = pc.if_else(pa.array(tails == tail), pc.utf8_slice_codeunits(records, 0, -tail), records)
    table = pa.table({"length": pc.binary_length(records), "record": records, "view": views})
    by_id = pc.sort_indices(table, [(name, "ascending") for name in table.column_names])
    return batch.take(np.asarray(by_id).astype(np.int64))


def rows_in_order(batch: EventBatch) -> Int64:
    """Return the rows of the batch in event order, independent of keys: int64[N]."""
    return arranged_rows(batch, np.zeros(len(batch), np.int32), 1)
