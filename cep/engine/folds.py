"""Windows with more events than the limit: exact up to the limit, and what is older folded into panes (panes.py).

A window of more than `events_max` events has its far edge rounded outwards to a pane. So it says the same whether its
older events are still there one by one, as in a replay, or only as rows of panes:

    count, sum, avg, stddev   a row for each part of a tally (tallies.py): its weight is their sum; nothing is rounded
    sum, avg of floats        few floats with the same sum, their bits as codes; nothing is rounded
    min, max                  the least one of a pane, as a code
    distinct                  hashes, like approx_distinct; median, percentile: buckets, like approx_percentile

Spreads of floats, sub-keys, units of the calendar, and the first event of a window have no panes: of those windows the
oldest events are left out.
Tested by: tests/engine/test_folds.py
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from cep.base.schema import Type
from cep.engine.history_values import Members, float_sums, sortable
from cep.engine.panes import PaneRows, Woven, codes_of, concat_panes, pane_of
from cep.engine.tallies import of_parts, parts_of, tally_width
from cep.kernels import histories as kernels
from cep.kernels.layout import Int64
from cep.nfa.histories import HistoryColumn


def members_of(history: HistoryColumn, key: Int64, time_ms: Int64, values: Int64, texts: pa.Array) -> PaneRows:
    """A row for each event, to be laid behind a history's panes. Of tallies its code means nothing."""
    ones = np.ones(len(key), np.int64)
    return PaneRows(key, pane_of(history, time_ms), _codes(history, values, texts), ones)


def folded(history: HistoryColumn, key: Int64, time_ms: Int64, values: Int64, texts: pa.Array) -> PaneRows:
    """The rows of panes that stand for these events."""
    rows = members_of(history, key, time_ms, values, texts)
    if history.is_float_sum:  # all the weight is with a zero
        ones = np.ones(len(key), np.int64)
        return concat_panes([replace(rows, weight=0 * ones), replace(rows, code=0 * ones)])
    if not history.tally:
        return rows
    parts = parts_of(values, tally_width(history.tally))
    ones = np.ones(len(key), np.int64)
    return concat_panes(
        [PaneRows(key, rows.pane_ms, ones * at, parts[:, at]) for at in range(parts.shape[1])],
    )


def tallies_in(history: HistoryColumn, found: Woven, values: Int64) -> Int64:
    """int64[Q, W]: the tally of each window; `values` are those of the members."""
    width = tally_width(history.tally)
    rows = found.rows
    parts = np.zeros((len(rows), width), np.int64)
    old = np.ones(len(rows), bool)
    old[found.members] = False
    parts[found.members] = parts_of(values, width)
    at = np.flatnonzero(old)
    parts[at, rows.code[at]] = rows.weight[at]
    return of_parts(parts, found.lows, found.highs)


def float_sums_in(found: Woven, windows: Members) -> tuple[np.ndarray, Int64]:
    """float64[Q] sums of windows, rounded once, and int64[Q] how many events they are of."""
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(found.rows.weight)])
    wide = replace(windows, lows=found.lows, highs=found.highs)
    return float_sums(found.rows.code, wide), running[found.highs] - running[found.lows]


def extreme_in(history: HistoryColumn, found: Woven) -> Int64:
    """The least or greatest value of each window; any where it is empty."""
    at = np.empty(len(found.lows), np.int64)
    kernels.least(found.rows.code, found.lows, found.highs, at)
    chosen = found.rows.code[np.maximum(at, 0)] if len(found.rows) else at
    return sortable(chosen if history.expr.fn == "min" else ~chosen, _type(history))


def _codes(history: HistoryColumn, values: Int64, texts: pa.Array) -> Int64:
    if history.is_float_sum:
        return values
    if history.tally:
        return np.zeros(len(values), np.int64)
    if history.is_extreme:
        ordered = sortable(values, _type(history))
        return ordered if history.expr.fn == "min" else ~ordered
    return codes_of(history, values, texts)


def _type(history: HistoryColumn) -> Type:
    assert history.expr.argument is not None, "they have a field"
    return history.expr.argument.type
