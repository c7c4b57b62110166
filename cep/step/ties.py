"""Events of one millisecond in several micro-batches → how many of them came out of their order; step 6.

Where one partition brings events without lateness, no event waits: the last millisecond of a micro-batch is matched
before the next micro-batch may bring another event of it. A replay has both events together, in the order of events. So
live and replay can differ only by an event that stands before one which is matched already. Each of these counts as
`ties_out_of_order`; none does where the source brings its events in the order of events (columnar/order.py). With a
lateness, or several partitions, events wait until the watermark is past them, and nothing is counted.
Tested by: tests/step/test_ties.py
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cep.columnar.batch import TEXT, EventBatch, concat_batches, no_order, text_buffers
from cep.columnar.order import rows_in_order
from cep.kernels.arrange import VIEW_TAIL_BITS
from cep.kernels.layout import Int64

_FEW_ROWS = 64  # so many are compared one by one, which is quicker than to make columns of them
_NO_ORDER = no_order(1)[0].tolist()
_Place = tuple[int, int, int, bytes, int, bytes, int]
_TAIL_MASK = (1 << VIEW_TAIL_BITS) - 1


class LastEvent(NamedTuple):
    """The last event, in the order of events, that was matched in the millisecond of the watermark."""

    event_id: str
    us: int
    declared: int
    view: int

    @staticmethod
    def to_json(event: LastEvent | None) -> list[Any] | None:
        """Return an event for JSON."""
        return None if event is None else list(event)

    @staticmethod
    def from_json(data: list[Any] | None) -> LastEvent | None:
        """Read an event that `to_json` made."""
        return None if data is None else LastEvent(*data)


def last_matched(events: Iterable[EventBatch], watermark_ms: int, earlier: LastEvent | None) -> LastEvent | None:
    """Return the last event of the watermark's millisecond, among these events and the `earlier` one."""
    places = [] if earlier is None else [_place(earlier.event_id.encode(), earlier[1:])]
    for batch in events:
        rows: Int64 = (batch.time_ms == watermark_ms).nonzero()[0]
        if len(rows) > _FEW_ROWS:
            rows = rows[rows_in_order(_identities(batch, rows))[-1:]]
        places += _places(batch, rows)
    if not places:
        return None
    us, declared, _, _, _, event_id, position = max(places)
    return LastEvent(event_id.decode(), us, declared, position)


def out_of_order(batch: EventBatch, before_ms: int, last: LastEvent) -> Int64:
    """Return the rows of the batch that have the time `before_ms` and stand before the last event: int64[T]."""
    rows: Int64 = (batch.time_ms == before_ms).nonzero()[0]
    if len(rows) <= _FEW_ROWS:
        last_place = _place(last.event_id.encode(), last[1:])
        is_before = np.array([place < last_place for place in _places(batch, rows)], np.bool_)
        return rows[is_before]
    joined = concat_batches([_batch_of(last), _identities(batch, rows)])
    ordered = rows_in_order(joined)
    before = ordered[: int(np.flatnonzero(ordered == 0)[0])]
    return rows[before - 1]


def _places(batch: EventBatch, rows: Int64) -> list[_Place]:
    """Return a tuple for each of a few events."""
    if not len(rows):
        return []
    offsets, data = text_buffers(batch.event_id)
    orders = [_NO_ORDER] * len(rows) if batch.order is None else batch.order[rows].tolist()
    bounds = zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), orders, strict=True)
    return [_place(data[start:end].tobytes(), order) for start, end, order in bounds]


def _place(event_id: bytes, order: Sequence[int]) -> _Place:
    """Return a tuple that compares like `is_before` of kernels/arrange.py, for a few events."""
    us, declared, position = order
    record = event_id[: len(event_id) - (position & _TAIL_MASK)]
    return us, declared, len(record), record, position >> VIEW_TAIL_BITS, event_id, position


def _identities(batch: EventBatch, rows: Int64) -> EventBatch:
    """Return the ids and the order of these events, all of one time."""
    ids = batch.event_id.take(pa.array(rows))
    nothing = np.zeros(len(rows), np.int64)
    order = None if batch.order is None else batch.order[rows]
    return EventBatch(ids, ids, nothing.astype(np.int16), nothing, {}, order)


def _batch_of(event: LastEvent) -> EventBatch:
    ids, nothing = pa.array([event.event_id], TEXT), np.zeros(1, np.int64)
    return EventBatch(ids, ids, nothing.astype(np.int16), nothing, {}, np.array([event[1:]], np.int64))
