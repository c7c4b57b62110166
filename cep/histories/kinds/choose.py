"""A history → the kind that carries its value. README.md has the same table in words.

Tested by: tests/histories/test_values.py
"""

from cep.histories.kinds import distinct, extreme, float_tally, panes, rank, single, tally
from cep.histories.kinds.kind import Kind
from cep.nfa.histories import HistoryColumn

_BY_FUNCTION: dict[str, Kind] = {
    "last": single, "exists": single, "first": single, "first_seen": single, "min": extreme, "max": extreme,
    "distinct": distinct, "median": rank, "percentile": rank, "approx_distinct": panes, "approx_percentile": panes,
}  # fmt: skip


def kind_of(history: HistoryColumn) -> Kind:
    """Return the kind of a history. count, sum, avg and stddev have a tally, of floats or of whole numbers."""
    if history.expr.fn in _BY_FUNCTION:
        return _BY_FUNCTION[history.expr.fn]
    is_of_floats = history.has_float_tally or history.is_float_sum or history.is_float_spread
    return float_tally if is_of_floats else tally
