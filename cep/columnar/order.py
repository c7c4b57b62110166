"""The order of events of one key: by time, and within one millisecond by the order table of their batch.

    event time, ms │ µs in that ms │ declared field │ id of the record │ position of the view │ id
    time_ms          order[:, 0]     order[:, 1]      in order[:, 2]: the number of id bytes that belong to the view

The id of a record, and each id, is compared by its length first: integers written as text keep their numeric order. An
event without a value in the declared field precedes events that have one. A batch whose events have only milliseconds
and ids has no order table and no cost. kernels/arrange.py has the one function that compares two events; all code that
orders events calls it.
Tested by: tests/columnar/test_order.py, tests/kernels/test_arrange.py
"""

from __future__ import annotations

import numpy as np

from cep.columnar.batch import (
    NO_VALUE,
    ORDER_COLUMNS,
    ORDER_FIELD,
    ORDER_US,
    ORDER_VIEW,
    EventBatch,
    no_order,
    read_only,
    text_buffers,
)
from cep.kernels.arrange import VIEW_TAIL_BITS, arrange_events
from cep.kernels.layout import Int32, Int64
from cep.kernels.records import Arrivals

DERIVED_US = 1_000  # greater than each microsecond of a millisecond
_NO_ORDER = np.empty((0, ORDER_COLUMNS), np.int64)


def order_table(us: Int64 | None, declared: Int64 | None, view: str, position: int, count: int) -> Int64 | None:
    """Return the order table of `count` decoded events, None if milliseconds and ids order them.

    Shapes: `us` int64[N] are the microseconds inside the millisecond; `declared` int64[N] the values of the declared
    field, NO_VALUE without one. `view` and `position` name the view that the events are of, if there is one.
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
        table[:, ORDER_VIEW] = (position << VIEW_TAIL_BITS) + 1 + len(view)
    return table


def order_behind(sources: Int64, tail_bytes: int) -> Int64:
    """Return the order of derived events, given the order of the events that completed them: int64[N, 3] both.

    They follow all source events of their millisecond. Their ids have `tail_bytes` more bytes than the id of the source
    event; an event that was completed by a derived event has the order of that event.
    """
    table = sources.copy()
    is_source = table[:, ORDER_US] < DERIVED_US
    table[is_source, ORDER_US] += DERIVED_US
    table[is_source, ORDER_VIEW] += tail_bytes
    return table


def arranged_rows(batch: EventBatch, key: Int32, keys_count: int) -> Int64:
    """Return the rows of the batch in the order of (key, event order): int64[N]. `key` int32[N] is below keys_count.

    Cost: a sort by time if the batch is not sorted yet, otherwise O(N).
    """
    ordered = np.empty(len(batch), np.int64)
    if len(batch) == 0:
        return ordered
    time = batch.time_ms
    is_sorted = np.count_nonzero(time[1:] < time[:-1]) == 0
    by_time = np.arange(len(batch)) if is_sorted else np.argsort(time, kind="stable")
    order = _NO_ORDER if batch.order is None else np.ascontiguousarray(batch.order)
    new = Arrivals(key, read_only(time), read_only(order), *text_buffers(batch.event_id))
    arrange_events(by_time, new, keys_count, ordered)
    return ordered


def rows_in_order(batch: EventBatch) -> Int64:
    """Return the rows of the batch in event order, independent of keys: int64[N]."""
    return arranged_rows(batch, np.zeros(len(batch), np.int32), 1)
