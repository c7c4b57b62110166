"""Source events of derived events: a text stored with each derived event, and a column of alerts.

    made of = for each source event:  mark | variables | mark | event id | mark | time (ms)      c.t  t12  1700…

The variables belong to the matches in between, the latest first: the match that became the event bound as c bound `c.t`
as t. A derived event carries the texts of the events that its match has bound, so an alert can list them without other
events, in any process. The state of an earlier build has no such texts. There a derived event stands for its origins,
and an alert that binds it lists no source events.

Tested by: tests/engine/test_origins.py, tests/api/test_alerts.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import ORIGINS_MAX
from cep.columnar.batch import TEXT
from cep.kernels.layout import Int32, Int64

_TIMESTAMP = pa.timestamp("ms", tz="UTC")
ORIGIN = pa.struct(
    [
        ("place", pa.int32()),  # index of the bound event that was made of it
        ("level", pa.int32()),  # number of names in `variable`: 2 for an event that the bound event's match has bound
        ("variable", pa.string()),
        ("event_id", pa.string()),
        ("event_time", _TIMESTAMP),
    ]
)
ORIGINS = pa.list_(ORIGIN)
_RECORD, _PART, _ESCAPE, _LEVEL = "\x1e", "\x1f", "\x1d", "."
# An id may have any character. A mark in an id is replaced by an escape that begins with another mark.
_ESCAPED = ((_ESCAPE, f"{_ESCAPE}0"), (_RECORD, f"{_ESCAPE}1"), (_PART, f"{_ESCAPE}2"))


def made_of(offsets: Int32, names: pa.Array, ids: pa.Array, time_ms: Int64, inner: pa.Array) -> tuple[pa.Array, int]:
    """Return the source events of each of M derived events, as text[M], and the number of dropped source events.

    Match m has the bound events offsets[m] to offsets[m + 1], with their variables, ids and times; `inner` has the
    origins of bound events that are derived, null for the others.
    """
    for mark, escaped in _ESCAPED:
        ids = pc.replace_substring(ids, mark, escaped)
    times = pa.array(time_ms).cast(TEXT)
    lead = pa.scalar(_RECORD, TEXT)
    part = pa.scalar(_PART, TEXT)
    records = pc.binary_join_element_wise(lead, names.cast(TEXT), part, ids, part, times, pa.scalar("", TEXT))
    texts = pc.coalesce(_through(names, inner), records)
    whole = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts), pa.scalar("", TEXT))
    counts = pc.count_substring(whole, _RECORD).to_numpy()
    if not (counts > ORIGINS_MAX).any():
        return whole, 0
    is_over = pa.array(counts > ORIGINS_MAX)
    cut = [_RECORD.join(text.split(_RECORD)[: ORIGINS_MAX + 1]) for text in whole.filter(is_over).to_pylist()]
    return pc.replace_with_mask(whole, is_over, pa.array(cut, TEXT)), int(np.maximum(counts - ORIGINS_MAX, 0).sum())


def origin_lists(offsets: Int32, names: pa.Array, inner: pa.Array) -> tuple[pa.Array, int]:
    """List the source events of each alert's derived events, null without derived events; and count the dropped ones.

    The arguments are as in `made_of`.
    """
    count = len(offsets) - 1
    bound = np.flatnonzero(np.asarray(pc.is_valid(inner)))
    if not len(bound):
        return pa.nulls(count, ORIGINS), 0
    positions = pa.array(bound)
    texts = _through(names.take(positions), inner.take(positions))
    records = pc.split_pattern(pc.utf8_slice_codeunits(texts, 1), _RECORD)
    event = bound[np.asarray(pc.list_parent_indices(records))]
    alert = np.searchsorted(offsets, event, side="right") - 1
    before = np.searchsorted(alert, np.arange(count))
    stays = np.arange(len(alert)) - before[alert] < ORIGINS_MAX
    dropped = len(alert) - int(np.count_nonzero(stays))
    parts = pc.split_pattern(records.flatten().filter(pa.array(stays)), _PART).flatten()
    event, alert = event[stays], alert[stays]
    variables, ids, times = (parts.take(pa.array(np.arange(first, len(parts), 3))) for first in range(3))
    for mark, escaped in reversed(_ESCAPED):
        ids = pc.replace_substring(ids, escaped, mark)
    columns: Sequence[pa.Array] = [
        pa.array((event - offsets[alert]).astype(np.int32)),
        pc.add(pc.count_substring(variables, _LEVEL).cast(pa.int32()), pa.scalar(1, pa.int32())),
        variables.cast(pa.string()),
        ids.cast(pa.string()),
        times.cast(pa.int64()).cast(_TIMESTAMP),
    ]
    ends = np.searchsorted(alert, np.arange(count + 1)).astype(np.int32)
    values = pa.StructArray.from_arrays(columns, fields=list(ORIGIN))
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=pa.array(ends[1:] == ends[:-1])), dropped


def _through(names: pa.Array, inner: pa.Array) -> pa.Array:
    """Put the variable of a derived event before the variables of its origins; null stays null."""
    texts = inner
    for name in pc.unique(names).to_pylist():
        longer = pc.replace_substring(inner, _RECORD, f"{_RECORD}{name}{_LEVEL}")
        texts = pc.if_else(pc.equal(names, name), longer, texts)
    return texts
