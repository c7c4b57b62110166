"""The reach of a rule's windows back from its matches, beside the time since when the job has seen events.

A window that reaches back before the job's first event holds less than its length says: an average of 30 days on the
third day is one of three days. A condition without a window looks at all of the past, so it always reaches back
further: on the first day of a history each device is seen for the first time. The same holds of a rule that came to a
running job for what nobody had kept. The alert then tells from when on the events of its window are known; and so where
it was found because an event was *not* produced, by a rule of which the same holds (rulebook/producer_gaps.py).
Tested by: tests/engine/test_reach.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cep.base.limits import TIME_MS_MIN
from cep.functions.calendar import unit_starts
from cep.kernels.layout import Int64
from cep.lang.ir import HistoryWindow
from cep.nfa.deployed import ProducerGap

# A window, None for all of the past, and since when its events are kept.
RetainedWindow = tuple[HistoryWindow | None, int]


def reaches_ms(windows: Sequence[HistoryWindow | None], time_ms: Int64) -> Int64:
    """Return for each time the earliest one that lies in a window of an event then. `windows` are one or more; None is
    all of the past, and reaches TIME_MS_MIN."""
    earliest_ms = time_ms.copy()
    for window in windows:
        if window is None:
            return np.full(len(time_ms), TIME_MS_MIN, np.int64)
        if window.calendar is not None:
            first = unit_starts(window.calendar, window.zone, time_ms)
        else:
            assert isinstance(window.ms, int), "parameters are bound before compilation"
            first = time_ms - window.ms + 1
        earliest_ms = np.minimum(earliest_ms, first)
    return earliest_ms


def history_from_ms(
    windows: Sequence[HistoryWindow | None],
    first_ms: Int64,
    since_ms: int,
    retained: Sequence[RetainedWindow] = (),
    made_ms: Int64 | None = None,
) -> Int64:
    """Return since when events are complete, for matches whose windows reach back further; TIME_MS_MIN for the others.

    Shapes: first_ms int64[M] is the time of the first event of each match; the result is int64[M]. A job that does not
    know since when it has seen events has a `since_ms` of TIME_MS_MIN. `retained` are the windows of a rule that came
    later, with since when their events are kept; None is a window over all of the past. made_ms int64[M] is the time
    that the derived events of a match bring along. The latest of these times counts.
    """
    from_ms = np.full(len(first_ms), TIME_MS_MIN, np.int64) if made_ms is None else made_ms.copy()
    if windows and since_ms > TIME_MS_MIN:
        lacks = reaches_ms(windows, first_ms) < since_ms
        from_ms[lacks] = np.maximum(from_ms[lacks], since_ms)
    np.maximum(from_ms, retained_from_ms(retained, first_ms), out=from_ms)
    return from_ms


def retained_from_ms(retained: Sequence[RetainedWindow], first_ms: Int64) -> Int64:
    """Return int64[M]: the latest time since when a window's events are kept, of windows that reach back further.

    TIME_MS_MIN for matches in which no window does. `retained` and first_ms as in `history_from_ms`.
    """
    from_ms = np.full(len(first_ms), TIME_MS_MIN, np.int64)
    for window, retained_ms in retained:
        lacks = reaches_ms([window], first_ms) < retained_ms
        from_ms[lacks] = np.maximum(from_ms[lacks], retained_ms)
    return from_ms


def gaps_from_ms(gaps: Sequence[ProducerGap], first_ms: Int64, detected_ms: Int64, since_ms: int) -> Int64:
    """Return since when the derived events are complete that matches were found without, the latest such time.

    Shapes: first_ms int64[M] the time of the first event of each match, detected_ms int64[M] when it was detected.
    Returns: int64[M], TIME_MS_MIN for matches that lack none.
    """
    latest_ms = np.full(len(first_ms), TIME_MS_MIN, np.int64)
    for gap in gaps:
        from_ms = since_ms if gap.since_ms is None else gap.since_ms
        lacks = (gap.from_ms <= detected_ms) & (detected_ms < gap.until_ms) & (first_ms < from_ms + gap.reach_ms)
        latest_ms[lacks] = np.maximum(latest_ms[lacks], from_ms)
    return latest_ms
