"""The four functions of every kind of history. A kind is a module with these functions.

Entering and leaving events are columns that are computed once for all kinds (`Windows.moves`).
Tested by: tests/histories/test_values.py
"""

from typing import NamedTuple, Protocol

from cep.histories.call import Call
from cep.histories.numbers.folds import Members
from cep.histories.numbers.tally import NOTHING_TALLIED, Tallied
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn


class Column(NamedTuple):
    """Values of windows. Shapes: slots int64[Q], nulls uint8[Q]. `overflows` counts sums that exceeded 64 bits.

    `rests` int64[Q] are the slots of the rounding errors of averages; None for other functions.
    """

    slots: Int64
    nulls: UInt8
    overflows: int = 0
    rests: Int64 | None = None


def carry_nothing(_call: Call, _history: HistoryColumn, _clock_ms: int) -> Tallied:
    """Carry no numbers: of a kind whose events or panes are enough."""
    return NOTHING_TALLIED


def pin_nothing(_call: Call, _history: HistoryColumn, _opens: Int64) -> UInt8 | None:
    """Pin no events: of a kind whose numbers are enough."""
    return None


class Kind(Protocol):
    """A group of history functions that are computed and carried in the same way, such as `sum` and `avg`."""

    def values(self, call: Call, history: HistoryColumn, windows: Members, /) -> Column:
        """Return the value at each new event, in window order."""

    def carry(self, call: Call, history: HistoryColumn, clock_ms: int, /) -> Tallied:
        """Return the numbers with which the next call begins, as they are at the clock."""

    def pin(self, call: Call, history: HistoryColumn, opens: Int64, /) -> UInt8 | None:
        """Return 1 for the rows that can decide the value at a later event; None for a kind that pins no events.

        Shapes: opens int64[N], how far back the windows of the row's key reach at most.
        """

    def folded_values(self, call: Call, history: HistoryColumn, windows: Members, /) -> Column:
        """Return the value of each window whose older events are panes. Only windows with too many events are read."""
