"""median and percentile: carry the values around the rank, in a band that moves with the window.

Tested by: tests/histories/test_classes.py, tests/histories/test_values.py
"""

import numpy as np

from cep.base.schema import Type
from cep.histories.call import Call
from cep.histories.kinds.kind import Column, pin_nothing
from cep.histories.numbers.bands import after, bands_of, entries_of, ranked, without_begun
from cep.histories.numbers.folds import Members, as_floats, of_rank, sortable
from cep.histories.numbers.panes import argument_type, values_of
from cep.histories.numbers.tally import NOTHING_TALLIED, Tallied
from cep.kernels.histories.records import Bands
from cep.kernels.layout import Int64
from cep.nfa.histories import HistoryColumn


def values(call: Call, history: HistoryColumn, windows: Members) -> Column:
    """Find the rank in the carried band, or in whole windows."""
    type_ = argument_type(history)
    if call.windows.is_ranked(history):
        counts, chosen = _ranked(call, history, windows, type_)
    else:
        counts = windows.highs - windows.lows
        ordered = sortable(call.table.columns[history.value, windows.rows], type_)
        chosen = of_rank(ordered, history.percent, windows.lows, windows.highs)
    return Column(as_floats(sortable(chosen, type_), type_).view(np.int64), (counts == 0).astype(np.uint8))


def carry(call: Call, history: HistoryColumn, clock_ms: int) -> Tallied:
    """Move the bands to the clock."""
    if not call.windows.is_ranked(history):
        return NOTHING_TALLIED
    moves = call.windows.moves(history, clock_ms)
    moves = moves._replace(values=sortable(moves.values, argument_type(history)))
    bands = after(_begin(call, history)[0], moves, history.percent)
    return Tallied({history.ranked: bands.counts}, {history.band: entries_of(bands)})


pin = pin_nothing  # because the band is enough


def folded_values(call: Call, history: HistoryColumn, _windows: Members) -> Column:
    """Find the rank among the buckets of events and panes."""
    return Column(*values_of(history, call.woven(history)))


def _begin(call: Call, history: HistoryColumn) -> tuple[Bands, np.ndarray]:
    """Return the bands of the previous call, and the keys bool[K] whose bands start again."""
    begun, before = call.windows.begun(history.ranked), call.windows.before
    counts, entries = before.by_key.get(history.ranked), before.by_sub_key.get(history.band)
    return without_begun(bands_of(counts, entries, call.table.keys_count), begun), begun


def _ranked(call: Call, history: HistoryColumn, windows: Members, type_: Type) -> tuple[Int64, Int64]:
    """Return each window's event count, and the value at its rank as a `sortable` integer."""
    bands, begun = _begin(call, history)
    key = call.table.key[call.new_rows][windows.events]
    moves = call.windows.moves(history, None)
    ordered = sortable(moves.values, type_)
    counts, chosen_values = np.empty(len(key), np.int64), np.empty(len(key), np.int64)
    whole_windows, in_bands = np.flatnonzero(begun[key]), np.flatnonzero(~begun[key])
    lows, highs = windows.lows[whole_windows], windows.highs[whole_windows]
    counts[whole_windows], chosen_values[whole_windows] = highs - lows, of_rank(ordered, history.percent, lows, highs)
    windows_in_bands = key[in_bands], windows.lows[in_bands], windows.highs[in_bands]
    moves = moves._replace(values=ordered)
    counts[in_bands], chosen_values[in_bands] = ranked(bands, moves, history.percent, windows_in_bands)
    return counts, chosen_values
