"""The last stage of a user's own query: alerts of a micro-batch → the alerts that the rules let out. In one task.

    part of its state   at       holds
    progress            0        what the rules in force suppress (Policies)
    fired               bucket   when rules last fired on its keys, and for how long that suppresses others

It is step 9 (step/suppress.py). `cep live` does it in its driver and files, because one more stage costs a third of a
micro-batch (docs/inside/decisions/suppression-in-the-driver.md). Here the last alerts are in Spark's state, so that a
repeated micro-batch lets the same alerts out. The stage is left out if the rules cannot suppress an alert.
Tested by: tests/runners/spark/test_match.py
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import Row

from cep.base.limits import FIRED_MAX, TIME_MS_MIN
from cep.engine.alerts import sorted_together
from cep.rulebook.suppression import Fired, LastAlerts, Policies, fired_from_json, fired_json
from cep.runners.output import decode_alerts, encode_alerts
from cep.runners.spark.group_parts import GroupParts
from cep.runners.spark.packed import ALERTS, COUNTERS, NO_ORDER, STATUS, WATERMARK, stage_row
from cep.step.suppress import filter_alerts

# A micro-batch reads and writes those buckets alone whose keys have alerts.
_BUCKETS = 1_024


class SuppressStage:
    """The stage of one query. `first` are the policies that it begins with, as JSON values."""

    def __init__(self, first: dict[str, Any], stored: GroupParts) -> None:
        self._first = first
        self._stored = stored

    def rows(self, _group: int, rows: Iterator[Row]) -> Iterator[Row]:
        """Suppress alerts by the rules' policies, and pass on all other rows."""
        tables: list[pa.Table] = []
        status: bytes | None = None
        watermark_ms = TIME_MS_MIN
        for row in rows:
            if row.kind == ALERTS:
                tables.append(decode_alerts(bytes(row.payload)))
                continue
            if row.kind == STATUS:
                status = bytes(row.payload)
            elif row.kind == WATERMARK:
                watermark_ms = json.loads(bytes(row.payload))["ms"]
            yield row
        policies = self._policies(status)
        alerts = sorted_together(tables)
        if not alerts.num_rows:
            return
        memory, before = self._remembered(alerts, policies)
        sent = filter_alerts(alerts, policies, memory, watermark_ms)
        counters = dict(sent.counters)
        lost_count = self._remember(memory, before, watermark_ms)
        if lost_count:
            counters["fired_forgotten"] = counters.get("fired_forgotten", 0) + lost_count
        if sent.alerts.num_rows:
            yield stage_row((0, ALERTS, 0, NO_ORDER, encode_alerts(sent.alerts)))
        if counters:
            yield stage_row((0, COUNTERS, 0, NO_ORDER, json.dumps(counters).encode()))

    def _policies(self, status: bytes | None) -> Policies:
        """Return the policies in force. A status is there if the rules have changed."""
        if status is not None:
            self._stored.progress.put(0, orjson.dumps(orjson.loads(status)["policies"]))
        stored = self._stored.progress.get(0)
        return Policies.from_json(self._first if stored is None else orjson.loads(stored))

    def _remembered(self, alerts: pa.Table, policies: Policies) -> tuple[LastAlerts, dict[int, Fired]]:
        """Read the last alerts of the keys that have alerts: all entries, and the entries by bucket."""
        if not any(suppress_ms for _, suppress_ms in policies.versions.values()):
            return LastAlerts(), {}
        pairs = zip(alerts["rule_id"].to_pylist(), alerts["key"].to_pylist(), strict=True)
        before: dict[int, Fired] = {}
        for bucket in {_bucket(*rule_and_key) for rule_and_key in set(pairs)}:
            data = self._stored.fired.get(bucket)
            before[bucket] = {} if data is None else fired_from_json(orjson.loads(data))
        return LastAlerts(
            {rule_and_key: times for fired in before.values() for rule_and_key, times in fired.items()}
        ), before

    def _remember(self, memory: LastAlerts, before: dict[int, Fired], watermark_ms: int) -> int:
        """Write the changed buckets. Return the number of entries that were dropped early, at the limit."""
        after: dict[int, Fired] = {bucket: {} for bucket in before}
        for rule_and_key, times in memory.last.items():
            if times[0] + times[1] > watermark_ms:
                after[_bucket(*rule_and_key)][rule_and_key] = times
        lost_count = 0
        for bucket, fired in after.items():
            if fired == before[bucket]:
                continue
            over_first = sorted(fired, key=lambda rule_and_key: fired[rule_and_key][0] + fired[rule_and_key][1])[
                : max(0, len(fired) - FIRED_MAX // _BUCKETS)
            ]
            for rule_and_key in over_first:
                del fired[rule_and_key]
            lost_count += len(over_first)
            if fired:
                self._stored.fired.put(bucket, orjson.dumps(fired_json(fired)))
            else:
                self._stored.fired.remove(bucket)
        return lost_count


def _bucket(rule_id: str, key: str) -> int:
    return zlib.crc32(f"{rule_id}\0{key}".encode()) % _BUCKETS
