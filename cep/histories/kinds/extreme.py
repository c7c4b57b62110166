"""min and max: pin the events that can still be the least or the greatest.

Tested by: tests/histories/test_values.py, tests/histories/test_reach.py
"""

import numpy as np

from cep.histories.call import Call
from cep.histories.kinds.kind import Column, carry_nothing
from cep.histories.numbers.folds import Members, extreme, extreme_in, sortable
from cep.histories.numbers.panes import argument_type
from cep.kernels.histories import windows as kernels
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn


def values(call: Call, history: HistoryColumn, windows: Members) -> Column:
    """Find the least or the greatest event of each window."""
    events, is_least = call.table.columns[history.value, windows.rows], history.expr.fn == "min"
    empty = (windows.highs == windows.lows).astype(np.uint8)
    return Column(extreme(events, argument_type(history), windows, is_least=is_least), empty)


carry = carry_nothing  # because the deciding events are pinned


def pin(call: Call, history: HistoryColumn, opens: Int64) -> UInt8 | None:
    """Pin each event unless a later event is less (for min) or greater (for max)."""
    if not call.windows.is_carried(history):
        return None
    table, windows = call.table, call.windows.windows_of(history)
    pinned = np.zeros(len(table.time), np.uint8)
    ordered = sortable(table.columns[history.value, windows.rows], argument_type(history))
    ordered = ordered if history.expr.fn == "min" else ~ordered
    kernels.mark_least(windows.rows, windows.segment, table.time, opens, ordered, pinned)
    return pinned


def folded_values(call: Call, history: HistoryColumn, _windows: Members) -> Column:
    """Find the least or the greatest of events and panes."""
    both = call.woven(history)
    return Column(extreme_in(history, both), (both.lows == both.highs).astype(np.uint8))
