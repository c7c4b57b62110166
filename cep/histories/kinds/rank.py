"""median and percentile: carry the values around the rank, in a band that moves with the window.

Tested by: tests/histories/test_classes.py, tests/histories/test_values.py
"""

import numpy as np

from cep.base.schema import Type
from cep.histories.context import Context
from cep.histories.kinds.kind import Column, pin_nothing
from cep.histories.numbers.bands import bands_of_entries, clear_bands, entries_of_bands, moved_bands, ranks_in_bands
from cep.histories.numbers.folds import EventWindows, as_floats, of_rank, sortable
from cep.histories.numbers.panes import argument_type, values_from_panes
from cep.histories.numbers.tally import NO_TALLIES, Tallies
from cep.kernels.histories.records import Bands
from cep.kernels.layout import Int64
from cep.nfa.histories import HistoryColumn


def values(context: Context, history: HistoryColumn, windows: EventWindows) -> Column:
    """Find the rank in the carried band, or in whole windows."""
    type_ = argument_type(history)
    if context.windows.has_carried_rank(history):
        counts, chosen = _rank_windows(context, history, windows, type_)
    else:
        counts = windows.highs - windows.lows
        ordered = sortable(context.table.columns[history.value, windows.rows], type_)
        chosen = of_rank(ordered, history.percent, windows.lows, windows.highs)
    return Column(as_floats(sortable(chosen, type_), type_).view(np.int64), (counts == 0).astype(np.uint8))


def carry_tallies(context: Context, history: HistoryColumn, clock_ms: int) -> Tallies:
    """Move the bands to the clock."""
    if not context.windows.has_carried_rank(history):
        return NO_TALLIES
    moves = context.windows.moves(history, clock_ms)
    moves = moves._replace(values=sortable(moves.values, argument_type(history)))
    bands = moved_bands(_carried_bands(context, history)[0], moves, history.percent)
    return Tallies({history.ranked: bands.counts}, {history.band: entries_of_bands(bands)})


pin_events = pin_nothing  # because the band is enough


def values_with_panes(context: Context, history: HistoryColumn, _windows: EventWindows) -> Column:
    """Find the rank among the buckets of events and panes."""
    return Column(*values_from_panes(history, context.panes_and_events(history)))


def _carried_bands(context: Context, history: HistoryColumn) -> tuple[Bands, np.ndarray]:
    """Return the bands of the previous batch, and the keys bool[K] whose bands start again."""
    restarted, before = context.windows.restarted_keys(history.ranked), context.windows.tallies_before
    counts, entries = before.by_key.get(history.ranked), before.by_sub_key.get(history.band)
    return clear_bands(bands_of_entries(counts, entries, context.table.keys_count), restarted), restarted


def _rank_windows(context: Context, history: HistoryColumn, windows: EventWindows, type_: Type) -> tuple[Int64, Int64]:
    """Return each window's event count, and the value at its rank as a `sortable` integer.

    A band has the sorted values of a key around the rank. It changes with each event that enters or leaves the window
    (`moves`). If the rank may leave the band, the key is *restarted*: its whole windows are read.
    """
    bands, restarted = _carried_bands(context, history)  # restarted: bool by key
    key = context.table.key[context.new_rows][windows.events]
    moves = context.windows.moves(history, clock_ms=None)  # None: up to each new event, not to the end of the batch
    ordered = sortable(moves.values, type_)  # integers in the order of the values
    counts, chosen_values = np.empty(len(key), np.int64), np.empty(len(key), np.int64)
    whole_windows, in_bands = np.flatnonzero(restarted[key]), np.flatnonzero(~restarted[key])
    lows, highs = windows.lows[whole_windows], windows.highs[whole_windows]
    counts[whole_windows], chosen_values[whole_windows] = highs - lows, of_rank(ordered, history.percent, lows, highs)
    windows_in_bands = key[in_bands], windows.lows[in_bands], windows.highs[in_bands]
    moves = moves._replace(values=ordered)
    counts[in_bands], chosen_values[in_bands] = ranks_in_bands(bands, moves, history.percent, windows_in_bands)
    return counts, chosen_values
