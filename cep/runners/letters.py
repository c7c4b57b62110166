"""What is set aside → letters: records that cannot be decoded, control records refused, events behind the watermark.

Tested by: tests/runners/test_letters.py, tests/runners/spark/test_packed.py, tests/runners/spark/test_live.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow.compute as pc

from cep.columnar.batch import EventBatch, concat_batches
from cep.columnar.decode import Poison
from cep.runners.job import Job, StepOutput

_RECORD_TEXT_MAX = 2_000


def dead_letter(poison: Poison, more: Mapping[str, Any] | None = None) -> bytes:
    """A record that was set aside, as a JSON object: code, reason, the record itself, cut to a limit, and `more`."""
    letter = {"code": poison.code, "reason": poison.reason, "record": poison.record[:_RECORD_TEXT_MAX], **(more or {})}
    return json.dumps(letter, ensure_ascii=False).encode()


def under_rules(letters: Iterable[bytes], epoch: int, content_hash: str) -> list[bytes]:
    """The letters, JSON objects, each with what the rules were when its event or record was set aside."""
    rules = orjson.dumps({"epoch": epoch, "rulebook": content_hash})[1:]
    return [letter.rstrip()[:-1] + b"," + rules for letter in letters]


def on_time(
    job: Job, batches: Mapping[int, Sequence[EventBatch]], watermark_ms: int, output: StepOutput
) -> tuple[dict[int, EventBatch], list[dict[str, Any]]]:
    """The events not behind the watermark, by the number of their key domain, and what to tell of the others."""
    late: list[dict[str, Any]] = []
    fresh: dict[int, EventBatch] = {}
    for number, parts in batches.items():
        batch = concat_batches(parts)
        if len(batch) and batch.time_ms.min() < watermark_ms:
            is_on_time = batch.time_ms >= watermark_ms
            behind = batch.take(~is_on_time)
            late += _late_letters(job, number, behind)
            output.counters["late_events"] += first_seen(job, number, behind)
            batch = batch.take(is_on_time)
        if len(batch):
            fresh[number] = batch
    return fresh, late


def first_seen(job: Job, number: int, batch: EventBatch) -> int:
    """How many of these events no earlier key domain has: an event that is late is late by each of its keys."""
    seen = np.zeros(len(batch), bool)
    for domain in job.domains[:number]:
        has_key = np.ones(len(batch), bool)
        for name in domain:
            has_key &= np.asarray(pc.is_valid(batch.columns[name]))
        seen |= has_key
    return len(batch) - int(seen.sum())


def _late_letters(job: Job, number: int, batch: EventBatch) -> list[dict[str, Any]]:
    """What is told of an event that came behind the watermark."""
    names = [e.name for e in job.schema.event_types]
    domain = ",".join(job.domains[number])
    return [
        {"event_id": i, "event_type": names[t], "event_time_ms": ms, "key_domain": domain, "key": k}
        for i, t, ms, k in zip(
            batch.event_id.to_pylist(),
            batch.event_type.tolist(),
            batch.time_ms.tolist(),
            batch.key.to_pylist(),
            strict=True,
        )
    ]
