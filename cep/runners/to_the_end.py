"""A replay that closes all windows at the end of a history → its alerts, with a mark on uncertain ones.

    replay up to the last event ─────▶ confirmed alerts ──────────────────────────────┐
                                                                                      ├─▶ both, each alert once
    replay up to the end of time ────▶ more alerts, each with `unconfirmed: true` ────┘

The history is replayed twice. Only the second replay has produced events that were not certain, so the alerts of chains
and histories over such an event are marked too, at every level.
Tested by: tests/runners/test_to_the_end.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from cep.engine.alerts import sort_alerts
from cep.runners.output import Replayed
from cep.step.job import Job

UNCONFIRMED = "unconfirmed"


def replay_to_the_end(job: Job, replay: Callable[[Job], Replayed]) -> Replayed:
    """Replay the history of a job, twice if the job goes on to the end. Raises: the errors of `replay`."""
    if not job.to_the_end:
        return replay(job)
    confirmed, whole = replay(replace(job, to_the_end=False)), replay(job)
    alerts = with_unconfirmed(confirmed.alerts, whole.alerts)
    counters = Counter({name: count for name, count in whole.counters.items() if not name.startswith("alerts[")})
    rules = alerts.group_by(["rule_id", "version"]).aggregate([([], "count_all")]).to_pylist()
    counters.update({f"alerts[{row['rule_id']}@{row['version']}]": row["count_all"] for row in rules})
    seconds = confirmed.seconds + whole.seconds
    return replace(whole, alerts=alerts, counters=counters, seconds=seconds, watermark_ms=confirmed.watermark_ms)


def with_unconfirmed(confirmed: pa.Table, whole: pa.Table) -> pa.Table:
    """Return the confirmed alerts, and the others of the whole with their mark."""
    is_more = pc.invert(pc.is_in(whole["alert_id"], confirmed["alert_id"].combine_chunks()))
    more = whole.filter(is_more)
    index = more.schema.get_field_index(UNCONFIRMED)
    marked = more.set_column(index, more.schema.field(index), pa.repeat(pa.scalar(True), more.num_rows))
    return sort_alerts(pa.concat_tables([confirmed, marked]))
