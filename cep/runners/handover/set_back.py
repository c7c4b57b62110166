"""A savepoint whose watermark is in the future → the same payload with an earlier watermark, and the consequences.

An event from the future that an earlier build took, or a wrong heartbeat, sets the watermark so far ahead that every
later event is late. Windows that the watermark has closed stay closed, and the operator has to know that.
Tested by: tests/runners/handover/test_handover.py
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from cep.base.errors import UsageError
from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN, TIME_MS_MIN
from cep.base.utc import utc_text
from cep.runners.handover.payload import Payload, payload_in
from cep.state.savepoints import open_savepoint
from cep.state.target import Target
from cep.step.event_time import PartitionTime, times_from_json, times_json
from cep.step.job import Job


def read_payload(target: Target) -> Payload:
    """Read the payload of a savepoint in the portable form. Raises: StateError, StoreError."""
    with tempfile.TemporaryDirectory(prefix="cep-payload-") as scratch:
        savepoint = open_savepoint(target, Path(scratch) / "payload")
        return payload_in(savepoint)


def set_back(payload: Payload, to_ms: int, now_ms: int) -> Payload:
    """Set the watermark of a job back to `to_ms`, so that earlier events are matched again.

    Events before the clock `now_ms` may have been set aside as late, so the job has certainly seen all events only from
    then on. Raises: UsageError if the watermark is not later than `to_ms`.
    """
    progress, lateness_ms = payload.engine, Job.from_json(payload.job).lateness_ms
    if progress["watermark_ms"] <= to_ms:
        raise UsageError(f"the watermark is {_shown(progress['watermark_ms'])}: {utc_text(to_ms)} is not back from it")
    times = {
        name: PartitionTime(min(time.last_ms, to_ms + lateness_ms), time.is_behind)
        for name, time in times_from_json(progress["times"]).items()
    }
    gap_ms = max(progress.get("gap_ms", TIME_MS_MIN), min(progress["watermark_ms"], now_ms))
    # A heartbeat that waits may be the wrong one.
    engine = {
        **progress, "watermark_ms": to_ms, "gap_ms": gap_ms, "times": times_json(times),
        "heartbeat_ms": TIME_MS_MIN, "last_event": None,
    }  # fmt: skip
    return replace(payload, engine=engine)


def consequences(payload: Payload, to_ms: int) -> list[str]:
    """Return sentences that explain the consequences of a watermark at `to_ms`."""
    before, after = _shown(payload.engine["watermark_ms"]), utc_text(to_ms)
    over = "partial matches, past events, versions of rules, pauses, snoozes and times of suppression"
    return [
        f"The watermark goes back from {before} to {after}. Events from {after} on are matched again.",
        "Events that were late stay set aside. Their dead letters name them; a replay of the history has their alerts.",
        f"What was over at the old watermark stays over: {over}.",
        "Alerts say in `history_from` that the past before now may lack events.",
        "A key of an event from the future may give a wrong alert.",
    ]


def _shown(watermark_ms: int) -> str:
    return utc_text(watermark_ms) if EVENT_TIME_MS_MIN <= watermark_ms <= EVENT_TIME_MS_MAX else "no time"
