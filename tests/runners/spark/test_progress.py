"""Gauges of Spark's report about a micro-batch."""

from __future__ import annotations

from cep.runners.spark.progress import measures, positions


def test_measures() -> None:
    operator = {"numRowsTotal": 3, "memoryUsedBytes": 100, "customMetrics": {"rocksdbSstFileSize": 1_000}}
    progress = {
        "stateOperators": [operator, operator],
        "processedRowsPerSecond": 5.0,
        "durationMs": {"addBatch": 10, "walCommit": 2},
    }
    gauges, phases = measures(progress)
    assert gauges == {"state_bytes": 2_200}
    assert phases == {"addBatch": 10.0, "walCommit": 2.0}
    assert measures({"stateOperators": []}) == ({"state_bytes": 0}, {})


def test_positions_are_those_of_topics() -> None:
    ours = {"offsets": {"payments": {"0": 7, "1": 9}}, "behind": {}, "topic_ids": {}}
    sources = [{"endOffset": ours}, {"endOffset": {"jvm": {"0": 3}}}, {"endOffset": {"logOffset": 4}}, {}]
    assert positions({"sources": sources}) == {"payments[0]": 7, "payments[1]": 9, "jvm[0]": 3}
    assert positions({}) == {}
