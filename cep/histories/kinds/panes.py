"""approx_distinct and approx_percentile: panes with hashes or buckets are retained instead of events.

Tested by: tests/histories/test_panes.py
"""

from cep.histories.context import Context
from cep.histories.kinds.kind import Column, carry_nothing, pin_nothing
from cep.histories.numbers.folds import EventWindows
from cep.histories.numbers.panes import values_from_panes
from cep.nfa.histories import HistoryColumn


def values(context: Context, history: HistoryColumn, _windows: EventWindows) -> Column:
    """Read the panes of each window."""
    return Column(*values_from_panes(history, context.panes_and_events(history)))


carry_tallies, pin_events = carry_nothing, pin_nothing  # because panes are segments


def values_with_panes(context: Context, history: HistoryColumn, windows: EventWindows) -> Column:
    """Read the panes, because no event is retained."""
    return values(context, history, windows)
