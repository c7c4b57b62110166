"""Events in the order of arrival → those that are due, while the others wait (event_time.py).

Tested by: tests/runners/test_waiting.py, tests/runners/embedded/test_engine.py, tests/runners/spark/test_live.py
"""

from __future__ import annotations

from collections.abc import Iterable

from cep.columnar.batch import EventBatch, concat_batches


def part_due(held: Iterable[EventBatch], bound_ms: int) -> tuple[EventBatch | None, list[EventBatch]]:
    """(the events before the bound, None if there are none; the others, in batches that are not empty)."""
    due: list[EventBatch] = []
    rest: list[EventBatch] = []
    for batch in held:
        if not len(batch):
            continue
        ready = batch.time_ms < bound_ms
        if ready.all():
            due.append(batch)
        elif ready.any():
            due.append(batch.take(ready))
            rest.append(batch.take(~ready))
        else:
            rest.append(batch)
    return concat_batches(due) if due else None, rest
