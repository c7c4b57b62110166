"""Gauges of Spark's report about a micro-batch; a page of Spark's words about a failure becomes one line, ours."""

from __future__ import annotations

import pytest

from cep.base.errors import CepError, LimitError, SourceError, StateFormatError, UsageError
from cep.runners.spark.progress import failure_of, measures, positions

PAGE = """[STREAM_FAILED] Query [id = 3570c241] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: \
Traceback (most recent call last):
  File "/lib/pyspark/sql/streaming/python_streaming_source_runner.py", line 281, in main
  File "/opt/cep/runners/spark/kafka.py", line 264, in latestOffset
    refuse_new_topics(known.topic_ids, ids)
{}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 3570c241]

Logical Plan:
~WriteToMicroBatchDataSourceV1 ForeachBatchSink
"""
TASK = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure: Task 0 in \
stage 3.0 failed 1 times, most recent failure: Lost task 0.0 in stage 3.0: \
org.apache.spark.api.python.PythonException: Traceback:
{}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
\tat java.base/java.lang.Thread.run(Thread.java:840)
\t... 1 more

Driver stacktrace: SQLSTATE: XXKST"""


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


@pytest.mark.parametrize("page", [PAGE, TASK])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (SourceError, "topic payments was deleted and created again; start with a new checkpoint directory"),
        (UsageError, "cep-kafka needs option topic"),
        (StateFormatError, "a page has format 9\n  this build reads 8"),
        (LimitError, "a page: 9 is over the limit of 8; give more pages"),
    ],
)
def test_our_error_is_what_is_raised(page: str, kind: type[CepError], message: str) -> None:
    before = "cep.base.errors.SourceError: no answer\n\nThe above exception was the direct cause of the following:\n\n"
    for text in (f"cep.base.errors.{kind.__name__}: {message}", f"{before}cep.base.errors.{kind.__name__}: {message}"):
        error = failure_of(page.format(text))
        assert (type(error), str(error)) == (kind, message)


def test_of_another_failure_spark_says_why() -> None:
    error = failure_of(TASK.format("java.io.EOFException: the worker crashed"))
    assert isinstance(error, SourceError)
    assert "goes on from its checkpoint when started again: [STREAM_FAILED]" in str(error)
    assert "the worker crashed" in str(error)
    assert "PythonRunner.scala" not in str(error)
    assert "Logical Plan" not in str(failure_of(PAGE.format("cep.base.errors.NoSuchError: what")))
