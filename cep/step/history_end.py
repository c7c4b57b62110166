"""A finite history → the watermark at its end, for both engines and for the questions about alerts.

    last event ──────────┐
    --until ─────────────┼─▶ watermark at the end ─▶ windows that end by then close, later windows stay open
    the clock ───────────┤
    the cut of a savepoint ┘

The end of the data is not the end of time: a live job that has read the same events still waits for events that could
refute an open absence. So a replay ends at the watermark of that live job. `cep test` goes on to the end of time: its
events are complete.
Tested by: tests/step/test_step.py
"""

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.decode import Decoded
from cep.step.job import Job


def watermark_at_end(job: Job, last_ms: int, now_ms: int, cut_ms: int | None = None) -> int:
    """Return the watermark at the end of a history whose last event is at `last_ms` (TIME_MS_MIN: no event).

    A window covers the times before its deadline. So all windows whose deadline is at or before the last event, or the
    declared end of the history (`job.ends_ms`), are certain. The watermark does not pass the clock `now_ms`, unless the
    job takes events from any distance ahead. `cut_ms`: a live job continues with the events from this time on."""
    if cut_ms is not None:
        return cut_ms - 1  # the live job may get an event of the very time of the cut
    if job.to_the_end:  # all windows close, even if they end after the last event
        return TIME_MS_MAX
    clock_ms = TIME_MS_MAX if job.ahead_ms is None else now_ms  # None: events may be dated any distance ahead
    return min(job.ends_ms if job.ends_ms < TIME_MS_MAX else last_ms, clock_ms)


def within_history(job: Job, produced: Decoded) -> Decoded:
    """Leave out produced events from the end of the history on, as is done with events of the source."""
    if job.to_the_end or not len(produced):
        return produced
    return produced.between(TIME_MS_MIN, job.ends_ms)
