"""Events of the source behind derived ones: a text that goes with each derived event, and a column of alerts.

    made of = for each event of the source:  mark | variables | mark | event id | mark | time (ms)      c.t  t12  1700…

The variables are those of the matches between, the latest first: `c.t` was bound as t by the match that became the
event bound as c. A derived event hands on the text of those that its match has bound. So an alert needs no other event
to list them, in whichever process it is made. State of an earlier build has no such texts. There a derived event stands
for what it was made of, and an alert that binds it lists nothing behind it.
Tested by: tests/engine/test_origins.py, tests/api/test_levels.py
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
        ("place", pa.int32()),  # of the bound event that was made of it, from 0
        ("level", pa.int32()),  # how many names `variable` has: 2 for what the bound event's match has bound
        ("variable", pa.string()),
        ("event_id", pa.string()),
        ("event_time", _TIMESTAMP),
    ]
)
ORIGINS = pa.list_(ORIGIN)
_RECORD, _PART, _ESCAPE, _LEVEL = "\x1e", "\x1f", "\x1d", "."
# An id may have any character. What stands for a mark in it begins with a mark of its own: first in, last out.
_ESCAPED = ((_ESCAPE, f"{_ESCAPE}0"), (_RECORD, f"{_ESCAPE}1"), (_PART, f"{_ESCAPE}2"))


def made_of(offsets: Int32, names: pa.Array, ids: pa.Array, time_ms: Int64, inner: pa.Array) -> tuple[pa.Array, int]:
    """Return what each of M derived events is made of, text[M], and how many events of the source are left out.

    Match m has the bound events offsets[m] to offsets[m + 1], with their variables, ids and times; `inner` has what
    those are made of that are derived, null for the others.
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
    """Return for each of M alerts the events of the source behind its derived ones, null without any; and how many
    are left out.

    The arguments are as of `made_of`.
    """
    count = len(offsets) - 1
    bound = np.flatnonzero(np.asarray(pc.is_valid(inner)))
    if not len(bound):
        return pa.nulls(count, ORIGINS), 0
    at = pa.array(bound)
    texts = _through(names.take(at), inner.take(at))
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
    """Put the variable by which a derived event is bound before those of what it is made of; null stays null."""
    texts = inner
    for name in pc.unique(names).to_pylist():
        longer = pc.replace_substring(inner, _RECORD, f"{_RECORD}{name}{_LEVEL}")
        texts = pc.if_else(pc.equal(names, name), longer, texts)
    return texts
