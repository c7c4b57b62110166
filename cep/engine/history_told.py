"""Which values of histories are less than they say → what the events that have them tell of it (columns.TOLD).

A value is *folded* where its window has more events than are kept one by one (folds.py). It may be *cut* where a key
has more values of a sub-key than are known (history_kept.py, known_values.py), and the one that is asked for is not
among them, or was not at a time that its window reaches back to.
Tested by: tests/engine/test_folds.py, tests/engine/test_histories.py, tests/engine/test_known_values.py
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from cep.base.limits import HISTORY_VALUES_MAX
from cep.columnar.batch import TEXT
from cep.engine.calendar import opens_ms
from cep.engine.history_table import HistoryTable
from cep.engine.history_values import Members
from cep.kernels.layout import UInt8
from cep.nfa.histories import HistoryColumn


def told_texts(flags: Mapping[str, UInt8], count: int) -> pa.Array:
    """text[Q], null for nothing: the identities of histories, each with flags uint8[Q], of which `count` is Q."""
    if not flags:
        return pa.nulls(count, TEXT)
    names = sorted(flags)
    rows = np.stack([flags[name] for name in names], axis=1)
    different, which = np.unique(rows, axis=0, return_inverse=True)
    texts = [" ".join(name for name, has in zip(names, row, strict=True) if has) for row in different.tolist()]
    return pa.array([text or None for text in texts], TEXT).take(pa.array(which.reshape(-1)))


def forgotten(history: HistoryColumn, table: HistoryTable, windows: Members, member: UInt8) -> UInt8:
    """In the order of the windows 1 where what is asked for may have been forgotten: nothing is known of the sub-key,
    but the window has as many of its values from earlier calls as are kept. `member` are the rows that count."""
    found = np.zeros(len(windows.at), np.uint8)
    old = np.flatnonzero((member != 0) & (table.new_at < 0))
    if np.bincount(table.key[old], minlength=1).max() < HISTORY_VALUES_MAX:
        return found
    segment, _ = table.segments(history.by)
    latest = np.full(int(segment.max()) + 1, -1, np.int64)
    latest[segment[old]] = old  # of rows of the same one the last one stays
    rows = latest[latest >= 0]
    new = table.new_rows[windows.at]
    opens = opens_ms(history.expr.window, table.time[new])
    first = windows.rows[np.minimum(windows.lows, len(windows.rows) - 1)]
    is_unknown = (windows.lows == windows.highs) | (first == new)
    for column in history.by:
        is_unknown &= table.nulls[column][new] == 0
    for key in np.flatnonzero(np.bincount(table.key[rows]) >= HISTORY_VALUES_MAX).tolist():
        times = np.sort(table.time[rows[table.key[rows] == key]])
        found |= is_unknown & (table.key[new] == key) & (times[-HISTORY_VALUES_MAX] > opens)
    return found
