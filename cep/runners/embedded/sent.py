"""The alerts that sinks have though the job has forgotten it → what each sink is still to be given.

    delivery ─▶ first sink ─▶ second ─▶ … ─▶ last      one after the other: what a sink has, those before it have

A job that goes back to a checkpoint or a changelog asks its sinks for what they got since. A process that died in the
middle of a delivery has left alerts in the first sinks alone. So each id has a number: so many of the first sinks have
it. A sink that cannot say what it has (a webhook, PostgreSQL) has what a later one has; more it may get twice.
Tested by: tests/runners/embedded/test_sent.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson
import pyarrow as pa

from cep.runners.embedded.commit_entries import SENT
from cep.runners.embedded.outlets import Outlets
from cep.sinks.base import RecallingSink
from cep.state.store import KeyedStore, WriteBatch


@dataclass
class Sent:
    """By alert id, how many of the first sinks have it. `sinks_count` is how many there are."""

    sinks_count: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    is_new: bool = False

    @staticmethod
    def stored(store: KeyedStore, sinks_count: int) -> Sent:
        """Read what `save` wrote. If the job has other sinks now, what not all had goes to all."""
        saved = orjson.loads(store.get(SENT) or b"[]")
        if isinstance(saved, list):  # of an earlier build: ids that count as sent everywhere
            return Sent(sinks_count, dict.fromkeys(saved, sinks_count))
        counts: dict[str, int] = saved["counts"]
        if saved["sinks"] != sinks_count:
            counts = {alert_id: sinks_count for alert_id, count in counts.items() if count == saved["sinks"]}
        return Sent(sinks_count, counts)

    def save(self, batch: WriteBatch) -> None:
        """Keep it, if it has changed."""
        if self.is_new:
            batch.put(SENT, orjson.dumps({"sinks": self.sinks_count, "counts": dict(sorted(self.counts.items()))}))
            self.is_new = False

    def recall(self, outlets: Outlets, after: int, created_ms: int, places: Sequence[str]) -> int:
        """Ask the sinks, as RecallingSink.recall; return the highest number. Raises: SinkError."""
        number = after
        for place, sink in enumerate([*outlets.sinks, outlets.dead_letters], 1):
            if isinstance(sink, RecallingSink):
                recalled = sink.recall(after, created_ms, places)
                number = max(number, recalled.number)
                for alert_id in recalled.alert_ids:
                    self.counts[alert_id] = max(place, self.counts.get(alert_id, 0))
        self.is_new = True
        return number

    def unsent(self, alerts: pa.Table) -> pa.Table:
        """Return the alerts that some sink lacks; forget the others, which come once more and never again."""
        if not self.counts or not alerts.num_rows:
            return alerts
        ids = alerts["alert_id"].to_pylist()
        again = {alert_id for alert_id in ids if self.counts.get(alert_id, -1) >= self.sinks_count}
        for alert_id in again:
            del self.counts[alert_id]
        self.is_new |= bool(again)
        return _chosen(alerts, [alert_id not in again for alert_id in ids])

    def lacking(self, alerts: pa.Table, place: int) -> pa.Table:
        """Return the alerts that the sink at this place, from 0, does not have."""
        if not self.counts or not alerts.num_rows:
            return alerts
        return _chosen(alerts, [self.counts.get(alert_id, 0) <= place for alert_id in alerts["alert_id"].to_pylist()])

    def settle(self, alerts: pa.Table) -> None:
        """Forget alerts that all sinks have by now."""
        if self.counts and alerts.num_rows:
            before = len(self.counts)
            for alert_id in alerts["alert_id"].to_pylist():
                self.counts.pop(alert_id, None)
            self.is_new |= len(self.counts) < before


def _chosen(alerts: pa.Table, is_chosen: list[bool]) -> pa.Table:
    return alerts if all(is_chosen) else alerts.filter(pa.array(is_chosen, pa.bool_()))
