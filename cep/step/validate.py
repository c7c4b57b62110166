"""Decoded records → the events of each key domain, dead letters and counters; step 1 of every runner.

Tested by: tests/runners/spark/test_packed.py, tests/runners/embedded/test_replay.py
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import EventBatch
from cep.columnar.decode import Decoded
from cep.columnar.route import route
from cep.kernels.layout import Int64
from cep.step.dead_letters import dead_letter
from cep.step.job import Job


@dataclass(frozen=True, slots=True)
class ValidEvents:
    """Events by the number of their key domain, dead letters (JSON), counters by name."""

    batches: tuple[EventBatch, ...]
    dead_letters: tuple[bytes, ...]
    counters: Counter[str]


def first_ms(job: Job, decoded: Decoded) -> int:
    """Return the time of the first event that the job takes, TIME_MS_MAX without one."""
    inside = _times_inside(job, decoded)
    return int(np.minimum.reduce(inside)) if len(inside) else TIME_MS_MAX


def span_ms(job: Job, decoded: Decoded) -> tuple[int, int]:
    """Return the times of the first and the last event that the job takes; (TIME_MS_MAX, TIME_MS_MIN) without one."""
    inside = _times_inside(job, decoded)
    return (int(inside.min()), int(inside.max())) if len(inside) else (TIME_MS_MAX, TIME_MS_MIN)


def _times_inside(job: Job, decoded: Decoded) -> Int64:
    inside = decoded.time_ms
    if job.begins_ms > TIME_MS_MIN or job.ends_ms < TIME_MS_MAX:
        inside = inside[(inside >= job.begins_ms) & (inside < job.ends_ms)]
    return inside


def validate_events(job: Job, decoded: Decoded) -> ValidEvents:
    """Route each event once to every key domain of the job, and count what became of the records."""
    counters = Counter({"records": len(decoded) + len(decoded.poison), "events": len(decoded)})
    if len(decoded) and (job.begins_ms > TIME_MS_MIN or job.ends_ms < TIME_MS_MAX):
        counters["events_before_start"] = int((decoded.time_ms < job.begins_ms).sum())
        counters["events_after_end"] = int((decoded.time_ms >= job.ends_ms).sum())
        decoded = decoded.between(job.begins_ms, job.ends_ms)
    types = job.schema.columns()
    batches = []
    for domain in job.domains:
        batch, without_key = route(decoded, domain, types)
        if without_key:
            counters[f"unkeyed[{','.join(domain)}]"] += without_key
        batches.append(batch)
    for poison in decoded.poison:
        counters[f"poison[{poison.code}]"] += 1
    return ValidEvents(tuple(batches), tuple(dead_letter(poison) for poison in decoded.poison), counters)
