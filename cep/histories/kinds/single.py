"""last, exists, first_seen and first: one event decides. It is pinned, or is the first of its window.

Tested by: tests/histories/test_values.py, tests/histories/test_remembered.py
"""

import numpy as np

from cep.histories.context import Context
from cep.histories.kinds.kind import Column, carry_nothing
from cep.histories.numbers.folds import EventWindows
from cep.kernels.histories import windows as kernels
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn


def values(context: Context, history: HistoryColumn, windows: EventWindows) -> Column:
    """Return the value of `exists`, `first_seen`, `first` or `last` for each window, windows.rows[low:high]."""
    has_event = windows.highs > windows.lows
    match history.expr.fn:
        case "exists":
            return Column(has_event.astype(np.int64), np.zeros(len(has_event), np.uint8))
        case "first_seen":
            return Column(_since_first(context, windows), (~has_event).astype(np.uint8))
    positions = windows.lows if history.expr.fn == "first" else windows.highs - 1
    rows = windows.rows[np.where(has_event, positions, 0)] if len(windows.rows) else np.zeros(len(positions), np.int64)
    nulls = np.where(has_event, context.table.nulls[history.value, rows], 1).astype(np.uint8)
    return Column(context.table.columns[history.value, rows], nulls)


carry_tallies = carry_nothing  # because the deciding events are pinned


def pin_events(context: Context, history: HistoryColumn, starts_ms: Int64) -> UInt8 | None:
    """Pin the newest or the oldest event; nothing for the `first` of a window."""
    if not history.is_single:
        return None
    windows, pinned = context.windows.windows_of(history), np.zeros(len(context.table.time), np.uint8)
    kernels.mark_retained(windows.rows, windows.segment, context.table.time, starts_ms, 1, history.is_first, pinned)
    return pinned


def values_with_panes(context: Context, history: HistoryColumn, _windows: EventWindows) -> Column:
    """Read the first event of windows whose far edge is at a pane."""
    return values(context, history, context.rounded_windows(history))


def _since_first(context: Context, windows: EventWindows) -> Int64:
    """Return the time since the first event of each window; undefined where the window is empty."""
    event_times = context.table.time[context.new_rows][windows.events]
    if not len(windows.rows):
        return np.zeros(len(event_times), np.int64)
    first = windows.rows[np.minimum(windows.lows, len(windows.rows) - 1)]
    since: Int64 = event_times - context.table.time[first]
    return since
