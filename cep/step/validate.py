"""Decoded records → the events of each key domain, dead letters and counters; step 1 of every runner.

Tested by: tests/step/contract.py, tests/runners/spark/test_tasks.py, tests/runners/test_replay.py
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import EventBatch
from cep.columnar.decode import Decoded, route
from cep.columnar.redact import redact, shown_keys
from cep.kernels.layout import Int64
from cep.step.dead_letters import ahead_dead_letters, bounded_equals, dead_letter
from cep.step.duplicates import ensure_digests
from cep.step.job import Job, add_counts
from cep.step.marks import Marks, keys_of_flawed, marks_of
from cep.step.rejections import poison_counts


@dataclass(frozen=True, slots=True)
class ValidEvents:
    """The valid events of a micro-batch, a batch for each key domain, and dead letters (JSON) of the other records.

    `marks`: by key, the times of events with unreadable values, to flag the key's next alerts. time_ms int64[N]: of all
    valid events."""

    batches: tuple[EventBatch, ...]
    dead_letters: tuple[bytes, ...]
    counters: Counter[str]
    time_ms: Int64
    marks: Marks = field(default_factory=dict)

    @property
    def first_ms(self) -> int:
        return int(np.minimum.reduce(self.time_ms)) if len(self.time_ms) else TIME_MS_MAX

    @property
    def last_ms(self) -> int:
        return int(np.maximum.reduce(self.time_ms)) if len(self.time_ms) else TIME_MS_MIN


def validate_events(job: Job, decoded: Decoded, now_ms: int = TIME_MS_MAX) -> ValidEvents:
    """Check decoded events, and assign each to its key in every key domain of the job. `now_ms` is the clock."""
    counters = Counter(records=decoded.records_count, events=len(decoded))
    if decoded.skipped_times:
        counters["times_skipped"] = decoded.skipped_times
    dead_letters: list[bytes] = []
    latest_ms = job.latest_ms(now_ms)
    if len(decoded) and np.maximum.reduce(decoded.time_ms) > latest_ms:
        dead_letters = ahead_dead_letters(job, decoded.between(latest_ms + 1, TIME_MS_MAX), now_ms)
        counters["events_ahead"] = int((decoded.time_ms > latest_ms).sum())
        decoded = decoded.between(TIME_MS_MIN, latest_ms + 1)
    if len(decoded) and (job.begins_ms > TIME_MS_MIN or job.ends_ms < TIME_MS_MAX):
        counters["events_before_start"] = int((decoded.time_ms < job.begins_ms).sum())
        counters["events_after_end"] = int((decoded.time_ms >= job.ends_ms).sum())
        decoded = decoded.between(job.begins_ms, job.ends_ms)
    decoded = ensure_digests(job, decoded)  # of id and content, to find duplicates
    types = job.schema.columns()
    batches = []
    for domain in job.domains:
        batch, without_key = route(decoded, domain, types)
        if without_key:
            counters[f"unkeyed[{','.join(domain)}]"] += without_key
        batches.append(batch)
    keys = keys_of_flawed(decoded, job.domains, batches)  # the keys of events with unreadable values, by event
    for poison in decoded.poison:  # records that are unreadable, or events with unreadable values (bad_values)
        more = {"keys": shown_keys(job.schema, keys[poison.event_id, poison.time_ms])} if poison.bad_values else None
        dead_letters.append(dead_letter(redact(job.schema, poison), more))
    add_counts(counters, poison_counts(decoded.poison))
    letters = tuple(bounded_equals(dead_letters, counters))  # of equal letters only the first ones
    times_of_flawed = marks_of(keys)  # by key, to flag the key's next alerts
    return ValidEvents(tuple(batches), letters, counters, decoded.time_ms, times_of_flawed)
