"""The alerts that sinks have though the job has forgotten them → the alerts that each sink still lacks.

A job that goes back to a checkpoint or a changelog asks its sinks for the alerts that they got since then, and sends
each sink the others. A sink that cannot say what it has (a webhook, PostgreSQL, a terminal) gets all of them: some come
twice, with the same ids. PostgreSQL ignores a repeated id.
Tested by: tests/runners/embedded/test_lanes.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import orjson
import pyarrow as pa

from cep.runners.embedded.commit_entries import SENT
from cep.runners.embedded.lanes import Lane
from cep.runners.patience import ask_in_time
from cep.sinks.base import RecallingSink
from cep.state.store import KeyedStore, WriteBatch


@dataclass
class Sent:
    """The ids of the alerts that a sink has, by the name of the sink."""

    ids: dict[str, set[str]] = field(default_factory=dict)
    is_new: bool = False

    @staticmethod
    def stored(store: KeyedStore, names: Sequence[str]) -> Sent:
        """Read what `save` wrote. `names` are those of the sinks of alerts, in their order."""
        saved = orjson.loads(store.get(SENT) or b"{}")
        if isinstance(saved, list):  # an earlier build: ids that all sinks have
            return Sent({name: set(saved) for name in names})
        if "counts" in saved:  # a later one: by id, how many of the first sinks have it
            counts, sinks_count = saved["counts"], saved["sinks"]
            places = {name: place if len(names) == sinks_count else sinks_count - 1 for place, name in enumerate(names)}
            return Sent({name: {i for i, count in counts.items() if count > place} for name, place in places.items()})
        return Sent({name: set(ids) for name, ids in saved.items()})

    def save(self, batch: WriteBatch) -> None:
        """Store the ids, if they have changed."""
        if self.is_new:
            batch.put(SENT, orjson.dumps({name: sorted(ids) for name, ids in sorted(self.ids.items())}))
            self.is_new = False

    def recall(self, lanes: Sequence[Lane], after: dict[str, int], created_ms: int) -> int:
        """Ask each sink for the alerts that it got after a number (RecallingSink.recall). Return the highest number.

        Raises: SinkError.
        """
        newest = -1
        places = [place for lane in lanes for place in lane.places if place]
        for lane in lanes:
            if isinstance(lane.outlet.sink, RecallingSink):
                recalled = ask_in_time(partial(lane.outlet.sink.recall, after[lane.name], created_ms, places))
                newest = max(newest, recalled.number)
                self.ids.setdefault(lane.name, set()).update(recalled.alert_ids)
        self.is_new = True
        return newest

    def lacking(self, name: str, alerts: pa.Table) -> pa.Table:
        """Return the alerts that the sink of this name does not have."""
        ids = self.ids.get(name)
        if not ids or not alerts.num_rows:
            return alerts
        return alerts.filter(pa.array([alert_id not in ids for alert_id in alerts["alert_id"].to_pylist()], pa.bool_()))

    def settle(self, name: str, alerts: pa.Table) -> None:
        """Forget alerts that the sink has by now: they come no more."""
        ids = self.ids.get(name)
        if ids and alerts.num_rows:
            before = len(ids)
            ids.difference_update(alerts["alert_id"].to_pylist())
            self.is_new |= len(ids) < before
