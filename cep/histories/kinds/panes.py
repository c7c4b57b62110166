"""approx_distinct and approx_percentile: panes with hashes or buckets are retained instead of events.

Tested by: tests/histories/test_panes.py
"""

from __future__ import annotations

from cep.histories.call import Call
from cep.histories.kinds.kind import NOTHING, Carry, Column
from cep.histories.numbers.folds import Members
from cep.histories.numbers.panes import values_of
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn


def values(call: Call, history: HistoryColumn, _windows: Members) -> Column:
    """Read the panes of each window."""
    return Column(*values_of(history, call.woven(history)))


def carry(_call: Call, _history: HistoryColumn, _clock_ms: int) -> Carry:
    """Carry no numbers, because panes are segments."""
    return NOTHING


def pin(_call: Call, _history: HistoryColumn, _opens: Int64) -> UInt8 | None:
    """Pin nothing, because panes are segments."""
    return None


def folded_values(call: Call, history: HistoryColumn, windows: Members) -> Column:
    """Read the panes, because no event is retained."""
    return values(call, history, windows)
