"""The four functions of every kind of history. A kind is a module with these functions.

Tested by: tests/histories/test_values.py
"""

from typing import NamedTuple, Protocol

from cep.histories.context import Context
from cep.histories.numbers.folds import EventWindows
from cep.histories.numbers.tally import NO_TALLIES, Tallies
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn


class Column(NamedTuple):
    """Values of windows. Shapes: slots int64[Q], nulls uint8[Q]. `overflows` counts sums that exceeded 64 bits.

    `rounding_errors` int64[Q] are the slots of the rounding errors of averages; None for other functions.
    """

    slots: Int64
    nulls: UInt8
    overflows: int = 0
    rounding_errors: Int64 | None = None


def carry_nothing(_context: Context, _history: HistoryColumn, _clock_ms: int) -> Tallies:
    """Carry no numbers: of a kind whose events or panes are enough."""
    return NO_TALLIES


def pin_nothing(_context: Context, _history: HistoryColumn, _opens: Int64) -> UInt8 | None:
    """Pin no events: of a kind whose numbers are enough."""
    return None


class Kind(Protocol):
    """A group of functions over a key's past events that are computed in the same way, such as `sum` and `avg`."""

    def values(self, context: Context, history: HistoryColumn, windows: EventWindows, /) -> Column:
        """Return the value at each new event, in window order."""

    def carry_tallies(self, context: Context, history: HistoryColumn, clock_ms: int, /) -> Tallies:
        """Return the tallies (running counts and sums) at the end of the batch, with which the next batch begins."""

    def pin_events(self, context: Context, history: HistoryColumn, starts_ms: Int64, /) -> UInt8 | None:
        """Return 1 for the rows to pin: to store one by one, because they can decide the value at a later event.

        None: the kind pins no events. Shapes: starts_ms int64[N], the earliest time in later windows of the row's key.
        """

    def values_with_panes(self, context: Context, history: HistoryColumn, windows: EventWindows, /) -> Column:
        """Return the value of each window with panes (partial aggregates of time slices) in place of its older events.

        The caller uses only the results of windows that have more events than the limit (folded windows).
        """
