"""min and max: pin the events that can still be the least or the greatest.

Tested by: tests/histories/test_values.py, tests/histories/test_reach.py
"""

import numpy as np

from cep.histories.context import Context
from cep.histories.kinds.kind import Column, carry_nothing
from cep.histories.numbers.folds import EventWindows, extreme, extreme_in, sortable
from cep.histories.numbers.panes import argument_type
from cep.kernels.histories import windows as kernels
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn


def values(context: Context, history: HistoryColumn, windows: EventWindows) -> Column:
    """Find the least or the greatest event of each window."""
    events, is_least = context.table.columns[history.value, windows.rows], history.expr.fn == "min"
    empty = (windows.highs == windows.lows).astype(np.uint8)
    return Column(extreme(events, argument_type(history), windows, is_least=is_least), empty)


carry_tallies = carry_nothing  # because the deciding events are pinned


def pin_events(context: Context, history: HistoryColumn, starts_ms: Int64) -> UInt8 | None:
    """Pin each event unless a later event is less (for min) or greater (for max)."""
    if not context.windows.has_carried_value(history):
        return None
    table, windows = context.table, context.windows.windows_of(history)
    pinned = np.zeros(len(table.time), np.uint8)
    ordered = sortable(table.columns[history.value, windows.rows], argument_type(history))
    ordered = ordered if history.expr.fn == "min" else ~ordered
    kernels.mark_least(windows.rows, windows.segment, table.time, starts_ms, ordered, pinned)
    return pinned


def values_with_panes(context: Context, history: HistoryColumn, _windows: EventWindows) -> Column:
    """Find the least or the greatest of events and panes."""
    merged = context.panes_and_events(history)
    return Column(extreme_in(history, merged), (merged.lows == merged.highs).astype(np.uint8))
