"""Limit windows by sub-key to remembered values, for functions whose value one event decides.

A key remembers `HISTORY_VALUES_MAX` values of a sub-key. `last` and `exists` remember the values that came last, in the
order (time, id) of events; `first` and `first_seen` the values that came first. A forgotten value has no past: `last`
is null, and `first_seen` begins with the event under test. The order of events alone decides which values are
remembered. After each call, the deciding events of all remembered values are pinned (retained.py). So the result is the
same in a replay and for every split of the events into micro-batches.
Tested by: tests/histories/test_remembered.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cep.base.limits import HISTORY_VALUES_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.functions.calendar import opens_ms
from cep.histories.numbers.whole_window import Members
from cep.histories.table import HistoryTable, dense_codes
from cep.kernels.histories import records
from cep.kernels.histories.known_values import follow_values
from cep.kernels.layout import Int64, UInt8
from cep.nfa.histories import HistoryColumn

NEVER = TIME_MS_MIN


@dataclass(frozen=True, slots=True)
class Remembered:
    """Windows of remembered values. Shapes, by window: cut, dropped uint8[Q].

    `cut` is 1 where the window may lack forgotten events. `dropped` is 1 where the event made its key forget a value.
    """

    windows: Members
    cut: UInt8
    dropped: UInt8


@dataclass(frozen=True, slots=True)
class _ValueRows:
    """Rows that read or add to a value of a sub-key, sorted by key and event order. Only keys at their limit of values.

    Shapes: rows, key int64[M]; member uint8[M], 1 for rows that count; value int64[M], the number of each row's value,
    below `values_count`.
    """

    rows: Int64
    key: Int64
    member: UInt8
    value: Int64
    values_count: int


def remembered(history: HistoryColumn, table: HistoryTable, windows: Members, member: UInt8) -> Remembered:
    """Shorten the windows of a history by sub-key so that they contain only values that the key still remembers.

    Shapes: member uint8[N], 1 for rows that count. Cost: O(members) if no key has reached its limit of values,
    otherwise O(rows · log rows) for the rows of such keys.
    """
    no_windows = np.zeros(len(windows.events), np.uint8)
    is_full = _full_keys(table, windows)
    if not is_full.any():
        return Remembered(windows, no_windows, no_windows)
    value_rows = _rows_of_values(history, table, windows, member, is_full)
    is_unknown, lacking_ms = (
        _not_first(value_rows) if history.is_first else _not_last(value_rows, table.time[value_rows.rows])
    )
    lacking_ms_by_row = np.full(len(table.time), NEVER, np.int64)  # NEVER: the value is remembered
    lacking_ms_by_row[value_rows.rows[is_unknown]] = lacking_ms[is_unknown]
    is_unknown_row = np.zeros(len(table.time), bool)
    is_unknown_row[value_rows.rows] = is_unknown
    new_event_rows = table.new_rows[windows.events]
    last_members = np.maximum(windows.highs - 1, 0)
    has_itself = (windows.highs > windows.lows) & (windows.rows[last_members] == new_event_rows)
    lows = np.where(is_unknown_row[new_event_rows], windows.highs - has_itself, windows.lows)
    may_lack = lacking_ms_by_row[new_event_rows] > opens_ms(history.expr.window, table.time[new_event_rows])
    # The last event of a window that includes the event itself is never missing.
    cut = may_lack & (history.is_first | ~has_itself)
    dropped = may_lack & (member[new_event_rows] != 0)
    return Remembered(replace(windows, lows=lows), cut.astype(np.uint8), dropped.astype(np.uint8))


def _full_keys(table: HistoryTable, windows: Members) -> np.ndarray:
    """Mark the keys that have reached their limit of remembered values. Returns: bool[K]."""
    is_full = np.zeros(table.keys_count, bool)
    if len(windows.rows) < HISTORY_VALUES_MAX:
        return is_full
    key = table.key[windows.rows]
    if np.bincount(key).max() < HISTORY_VALUES_MAX:
        return is_full
    key_of_segment = np.full(int(windows.segment.max()) + 1, -1, np.int64)
    key_of_segment[windows.segment[windows.rows]] = key
    is_full[:] = np.bincount(key_of_segment[key_of_segment >= 0], minlength=table.keys_count) >= HISTORY_VALUES_MAX
    return is_full


def _rows_of_values(
    history: HistoryColumn, table: HistoryTable, windows: Members, member: UInt8, is_full: np.ndarray
) -> _ValueRows:
    asks = ((member != 0) | (table.new_at >= 0)) & is_full[table.key]
    for column in history.by:
        asks &= table.nulls[column] == 0
    rows = np.flatnonzero(asks)
    value, count = dense_codes(windows.segment[rows])
    return _ValueRows(rows, table.key[rows], member[rows], value, count)


def _not_last(value_rows: _ValueRows, time_ms: Int64) -> tuple[np.ndarray, Int64]:
    """Mark the rows whose value is not among the values that came last for its key, so that the key has forgotten it.

    Returns: bool[M], and int64[M]: the time of the last event of the value that is forgotten next, NEVER if no value
    is.
    """
    count, place = len(value_rows.rows), np.arange(len(value_rows.rows))
    key_of = np.empty(value_rows.values_count, np.int64)
    key_of[value_rows.value] = value_rows.key
    starts, ends = (np.searchsorted(value_rows.key, key_of, side) for side in ("left", "right"))
    last, since, lacks = (np.full(value_rows.values_count, number, np.int64) for number in (-1, 0, NEVER))
    is_lasting, is_remembered = np.zeros(value_rows.values_count, np.uint8), np.zeros(value_rows.values_count, np.uint8)
    begins, lacking, forgotten = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint8)
    follow_values(
        records.ValueRows(value_rows.value, place, time_ms, value_rows.member),
        records.Places(time_ms, starts, ends),
        HISTORY_VALUES_MAX,
        NEVER,
        records.Memory(last, since, lacks, is_lasting, is_remembered),
        records.RowAnswers(begins, lacking, forgotten),
    )
    return begins == place, lacking


def _not_first(value_rows: _ValueRows) -> tuple[np.ndarray, Int64]:
    """Mark the rows whose value is not among the first values of its key, so that the full key never remembered it.

    Returns: bool[M], and int64[M] of TIME_MS_MAX, because there is no window.
    """
    count = len(value_rows.rows)
    members = np.flatnonzero(value_rows.member)
    first_row = np.full(value_rows.values_count, count, np.int64)
    first_row[value_rows.value[members[::-1]]] = members[::-1]  # the first row of each value wins
    firsts = np.sort(first_row[first_row < count])
    key = value_rows.key[firsts]
    rank = np.arange(len(firsts)) - np.searchsorted(key, key)
    is_remembered = np.zeros(count + 1, bool)
    is_remembered[firsts[rank < HISTORY_VALUES_MAX]] = True
    is_full = firsts[rank == HISTORY_VALUES_MAX - 1]  # for each key, the row that fills its memory
    full_at = np.full(int(value_rows.key.max(initial=-1)) + 1, count, np.int64)
    full_at[value_rows.key[is_full]] = is_full
    is_unknown: np.ndarray = ~is_remembered[first_row][value_rows.value] & (np.arange(count) > full_at[value_rows.key])
    return is_unknown, np.full(count, TIME_MS_MAX, np.int64)
