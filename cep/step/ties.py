"""Events of one millisecond in several micro-batches → how many of them came out of their order; step 6.

Where one partition brings events without lateness, no event waits: the last millisecond of a micro-batch is matched
before the next micro-batch may bring another event of it. A replay has both events together, in the order of events
(columnar/order.py). Arrival is the last part of that order, and a later micro-batch arrives later. So live and replay
can differ only by an event with fewer microseconds, or a lower value in the declared field, than one which is matched
already. Each of these counts as `ties_out_of_order`. With a lateness, or several partitions, events wait until the
watermark is past them, and nothing is counted.
Tested by: tests/step/test_step.py
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cep.columnar.batch import NO_VALUE, ORDER_FIELD, ORDER_US, EventBatch
from cep.kernels.layout import Int64


class LastEvent(NamedTuple):
    """The position of the last matched event within its millisecond, which is the millisecond of the watermark.

    `us` are its microseconds, `declared` the value of the declared order field. It is the last event in the order of
    events.
    """

    us: int
    declared: int

    @staticmethod
    def to_json(event: LastEvent | None) -> list[Any] | None:
        """Return an event for JSON."""
        return None if event is None else list(event)

    @staticmethod
    def from_json(data: list[Any] | None) -> LastEvent | None:
        """Read an event that `to_json` made. An earlier build also wrote its id and its view, first and last."""
        if data is None:
            return None
        us, declared = data if len(data) == len(LastEvent._fields) else data[1:3]
        return LastEvent(int(us), int(declared))


def last_matched(events: Iterable[EventBatch], watermark_ms: int, earlier: LastEvent | None) -> LastEvent | None:
    """Return the last event of the watermark's millisecond, among these events and the `earlier` one."""
    last = earlier
    for batch in events:
        us, declared = _places(batch, (batch.time_ms == watermark_ms).nonzero()[0])
        if len(us):
            us_max = int(us.max())
            place = LastEvent(us_max, int(declared[us == us_max].max()))
            last = place if last is None else max(last, place)
    return last


def out_of_order(batch: EventBatch, before_ms: int, last: LastEvent) -> Int64:
    """Return the rows of the batch that have the time `before_ms` and stand before the last event: int64[T]."""
    rows: Int64 = (batch.time_ms == before_ms).nonzero()[0]
    us, declared = _places(batch, rows)
    is_before: NDArray[np.bool_] = (us < last.us) | ((us == last.us) & (declared < last.declared))
    return rows[is_before]


def _places(batch: EventBatch, rows: Int64) -> tuple[Int64, Int64]:
    """Return the microseconds and the declared fields of some events: int64[N] each."""
    if batch.order is None:
        return np.zeros(len(rows), np.int64), np.full(len(rows), NO_VALUE, np.int64)
    return batch.order[rows, ORDER_US], batch.order[rows, ORDER_FIELD]
