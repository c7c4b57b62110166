"""How far back the windows of a rule reach from its matches, beside since when the job has seen events.

A window that reaches back before the job's first event holds less than its length says: an average of 30 days on the
third day is one of three days. The same holds of a rule that came to a running job for what nobody had kept. The alert
then tells from when on the events of its window are known; and so where it was found because an event was *not*
produced, by a rule of which the same holds (rulebook/made_past.py).
Tested by: tests/engine/test_reach.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cep.base.limits import TIME_MS_MIN
from cep.engine.calendar import unit_starts
from cep.kernels.layout import Int64
from cep.lang.ir import HistoryWindow
from cep.nfa.deployed import MadePast

# A window, None for all of the past, and since when its events are kept.
KeptWindow = tuple[HistoryWindow | None, int]


def reaches_ms(windows: Sequence[HistoryWindow], time_ms: Int64) -> Int64:
    """For each time the earliest one that lies in a window of an event then. `windows` are one or more."""
    found = time_ms.copy()
    for window in windows:
        if window.calendar is not None:
            first = unit_starts(window.calendar, window.zone, time_ms)
        else:
            assert isinstance(window.ms, int), "parameters are bound before compilation"
            first = time_ms - window.ms + 1
        found = np.minimum(found, first)
    return found


def known_from(
    windows: Sequence[HistoryWindow],
    first_ms: Int64,
    since_ms: int,
    kept: Sequence[KeptWindow] = (),
    made_ms: Int64 | None = None,
) -> Int64:
    """Since when events are known for the matches whose windows reach back before that, TIME_MS_MIN for the others.

    Shapes: first_ms int64[M] is the time of the first event of each match; the result is int64[M]. A job that does not
    know since when it has seen events has a `since_ms` of TIME_MS_MIN. `kept`: of windows of a rule that came later,
    None for all of the past, since when their events are kept. made_ms int64[M]: what the derived events of a match
    say themselves. The latest of what a match lacks is told.
    """
    found = np.full(len(first_ms), TIME_MS_MIN, np.int64) if made_ms is None else made_ms.copy()
    if windows and since_ms > TIME_MS_MIN:
        lacks = reaches_ms(windows, first_ms) < since_ms
        found[lacks] = np.maximum(found[lacks], since_ms)
    np.maximum(found, kept_known_ms(kept, first_ms), out=found)
    return found


def kept_known_ms(kept: Sequence[KeptWindow], first_ms: Int64) -> Int64:
    """int64[M]: since when what the windows ask for is kept, of those that reach back before that the latest time;
    TIME_MS_MIN for matches in which none does. `kept` and first_ms as in `known_from`."""
    found = np.full(len(first_ms), TIME_MS_MIN, np.int64)
    for window, kept_ms in kept:
        lacks = np.full(len(first_ms), kept_ms > TIME_MS_MIN)
        if window is not None:
            lacks &= reaches_ms([window], first_ms) < kept_ms
        found[lacks] = np.maximum(found[lacks], kept_ms)
    return found


def made_known_ms(made: Sequence[MadePast], first_ms: Int64, detected_ms: Int64, since_ms: int) -> Int64:
    """int64[M]: since when the derived events are known that matches were found without, the latest of them;
    TIME_MS_MIN for those that lack none.

    Shapes: first_ms int64[M] the time of the first event of each match, detected_ms int64[M] when it was detected.
    """
    found = np.full(len(first_ms), TIME_MS_MIN, np.int64)
    for one in made:
        known_ms = since_ms if one.since_ms is None else one.since_ms
        lacks = (one.from_ms <= detected_ms) & (detected_ms < one.until_ms)
        if one.windows is not None:
            back_ms = first_ms
            for window in one.windows:
                back_ms = reaches_ms([window], back_ms)
            lacks &= back_ms < known_ms
        found[lacks] = np.maximum(found[lacks], known_ms)
    return found
