"""approx_distinct and approx_percentile: panes with hashes or buckets are retained instead of events.

Tested by: tests/histories/test_panes.py
"""

from cep.histories.call import Call
from cep.histories.kinds.kind import Column, carry_nothing, pin_nothing
from cep.histories.numbers.folds import Members
from cep.histories.numbers.panes import values_of
from cep.nfa.histories import HistoryColumn


def values(call: Call, history: HistoryColumn, _windows: Members) -> Column:
    """Read the panes of each window."""
    return Column(*values_of(history, call.woven(history)))


carry, pin = carry_nothing, pin_nothing  # because panes are segments


def folded_values(call: Call, history: HistoryColumn, windows: Members) -> Column:
    """Read the panes, because no event is retained."""
    return values(call, history, windows)
