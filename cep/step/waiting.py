"""Events in order of arrival → due events, while the others wait; step 6 of a micro-batch.

Tested by: tests/step/test_step.py, tests/runners/embedded/test_engine.py, tests/runners/spark/test_live.py
"""

from __future__ import annotations

from collections.abc import Iterable

from cep.columnar.batch import EventBatch, concat_batches


def split_due(batches: Iterable[EventBatch], bound_ms: int) -> tuple[EventBatch | None, list[EventBatch]]:
    """Split events at a time: (the events before it or None, batches of the other events)."""
    ready_batches: list[EventBatch] = []
    rest: list[EventBatch] = []
    for batch in batches:
        if not len(batch):
            continue
        ready = batch.time_ms < bound_ms
        if ready.all():
            ready_batches.append(batch)
        elif ready.any():
            ready_batches.append(batch.take(ready))
            rest.append(batch.take(~ready))
        else:
            rest.append(batch)
    return concat_batches(ready_batches) if ready_batches else None, rest
