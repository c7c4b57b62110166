"""Gauges of what Spark tells about a micro-batch."""

from __future__ import annotations

from cep.runners.spark.progress import measures


def test_measures() -> None:
    operator = {"numRowsTotal": 3, "memoryUsedBytes": 100, "customMetrics": {"rocksdbSstFileSize": 1_000}}
    progress = {
        "stateOperators": [operator, operator],
        "processedRowsPerSecond": 5.0,
        "durationMs": {"addBatch": 10, "walCommit": 2},
    }
    gauges, phases = measures(progress)
    assert gauges == {"state_entries": 6, "state_bytes": 2_200, "records_per_second": 5.0}
    assert phases == {"addBatch": 10.0, "walCommit": 2.0}
    assert measures({"stateOperators": []}) == ({"state_entries": 0, "state_bytes": 0, "records_per_second": 0.0}, {})
