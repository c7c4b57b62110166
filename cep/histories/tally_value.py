"""The carried tally of one key → the number that a report shows.

Tested by: tests/report/test_keyed_state.py
"""

from __future__ import annotations

import numpy as np

from cep.histories.numbers.float_tally import float_values
from cep.histories.numbers.spreads import quotients
from cep.histories.numbers.tally import averages, spreads, whole_sums
from cep.kernels.layout import Int64
from cep.nfa.histories import HistoryColumn


def tally_value(history: HistoryColumn, tally: Int64) -> int | float:
    """Compute the value of a history from one tally, int64[1, W]."""
    count = int(tally[0, 0])
    if history.expr.fn == "count" or history.expr.argument is None:
        return count
    if history.has_float_tally:
        is_average = history.expr.fn == "avg" and count > 0
        values, rests = float_values(tally)
        return (
            float(quotients((values, rests), tally[:, 0].astype(np.float64))[0][0]) if is_average else float(values[0])
        )
    scale: int = 10**history.expr.argument.type.scale
    if history.expr.fn == "stddev":
        return float(spreads(tally)[0]) / scale
    if history.expr.fn == "sum":
        return int(whole_sums(tally)[0][0]) / scale
    return float(averages(tally, tally[:, 0], history.expr.argument.type.scale)[0][0]) if count else 0
