"""How far a rule's windows reach back from its matches, compared with the time from which the job has seen events.

A window that reaches back before the job's first event has fewer events than its length suggests: an average of 30 days
on the third day is one of three days. A condition without a window reads the whole past: on the first day of a history
every device is seen for the first time. The same holds for a rule that was added to a running job, if its past was not
stored, and for a match that depends on the *absence* of a derived event whose producer has an incomplete past
(rulebook/completeness.py). The alert then gives the time from which the events are complete.
Tested by: tests/engine/test_alerts.py
"""

from collections.abc import Sequence

import numpy as np

from cep.base.limits import TIME_MS_MIN
from cep.functions.calendar import unit_starts
from cep.kernels.layout import Int64
from cep.lang.ir import HistoryWindow
from cep.nfa.deployed import ProducerGap

# A window, None for the whole past, and the time from which its events are stored.
RetainedWindow = tuple[HistoryWindow | None, int]


def reaches_ms(windows: Sequence[HistoryWindow | None], time_ms: Int64) -> Int64:
    """Return for each event time the earliest time that the windows of an event at that time cover.

    A window of None covers the whole past, from TIME_MS_MIN. Without windows, the result is the event time itself."""
    earliest_ms = time_ms.copy()
    for window in windows:
        if window is None:
            return np.full(len(time_ms), TIME_MS_MIN, np.int64)
        if window.calendar is not None:
            first = unit_starts(window.calendar, window.zone, time_ms)  # such as the start of the day
        else:
            assert isinstance(window.ms, int), "parameters are bound before compilation"
            first = time_ms - window.ms + 1  # the window is (t - ms, t]
        earliest_ms = np.minimum(earliest_ms, first)
    return earliest_ms


def history_from_ms(
    windows: Sequence[HistoryWindow | None],
    first_ms: Int64,
    since_ms: int,
    retained: Sequence[RetainedWindow] = (),
    derived_from_ms: Int64 | None = None,
) -> Int64:
    """Return for each match the time from which its past is complete, int64[M]: TIME_MS_MIN if nothing is missing.

    first_ms int64[M] is the time of the first event of each match. The result is the latest of three times:
    - since_ms, from which on the job has seen all events, if one of the `windows` or the match begins before it
    - for each of the `retained` windows that begins before it, the time from which its events are stored
    - derived_from_ms, int64[M]: the past of the match's derived events (made by other rules) is complete from then on
    """
    from_ms = np.full(len(first_ms), TIME_MS_MIN, np.int64) if derived_from_ms is None else derived_from_ms.copy()
    if since_ms > TIME_MS_MIN:
        lacks = reaches_ms(windows, first_ms) < since_ms
        from_ms[lacks] = np.maximum(from_ms[lacks], since_ms)
    np.maximum(from_ms, retained_from_ms(retained, first_ms), out=from_ms)
    return from_ms


def retained_from_ms(retained: Sequence[RetainedWindow], first_ms: Int64) -> Int64:
    """Return the latest time from which a window's events are stored, of windows that reach back further: int64[M]."""
    from_ms = np.full(len(first_ms), TIME_MS_MIN, np.int64)
    for window, retained_ms in retained:
        lacks = reaches_ms([window], first_ms) < retained_ms
        from_ms[lacks] = np.maximum(from_ms[lacks], retained_ms)
    return from_ms


def gaps_from_ms(gaps: Sequence[ProducerGap], first_ms: Int64, detected_ms: Int64, since_ms: int) -> Int64:
    """Return for each match the latest time from which its absent derived events are complete: int64[M]."""
    latest_ms = np.full(len(first_ms), TIME_MS_MIN, np.int64)
    for gap in gaps:
        from_ms = since_ms if gap.since_ms is None else gap.since_ms
        lacks = (gap.from_ms <= detected_ms) & (detected_ms < gap.until_ms) & (first_ms < from_ms + gap.reach_ms)
        latest_ms[lacks] = np.maximum(latest_ms[lacks], from_ms)
    return latest_ms
