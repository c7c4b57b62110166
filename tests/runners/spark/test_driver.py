"""The driver of a job on Spark: its Java, Python and session, and the restarts of a query whose brokers are away.

Java's standard error loses its noise and no other line, for every cut. A page of Spark's words about a failure becomes
one line, ours. Files that Spark creates locally have Hadoop's permissions and checksums, and start no process.
Rows of a micro-batch end in the same place if the micro-batch is repeated.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import orjson
import pyarrow as pa
import pyspark
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cep.base import errors
from cep.base.errors import SinkAwayError, SinkError, UsageError
from cep.base.files import private_files
from cep.rulebook.meaning import content_hash
from cep.runners.java import check_java
from cep.runners.live_checkpoint import read_progress
from cep.runners.observe import Observed
from cep.runners.output import BatchReport, encode_alerts
from cep.runners.patience import Patience
from cep.runners.rule_output import RuleOutput
from cep.runners.spark import live, session, sink_queue
from cep.runners.spark.live import set_permissions_in_java
from cep.runners.spark.live_output import LiveOutput, RetainedRulebooks
from cep.runners.spark.packed import ALERTS, COUNTERS, DEAD, LATE, REFUSED, STATUS
from cep.runners.spark.progress import failure_of, measures, positions
from cep.runners.spark.session import _PYTHON, _pass_on, _python_of_workers
from cep.runners.spark.sink_queue import FOLDER, digest_of, refuse_waiting
from cep.sinks.base import AlertSink, RefusedAlerts
from cep.sinks.durable import write_durably
from cep.sinks.files import DeadLetterFiles, FileSink, read_alerts
from cep.sinks.kafka import KafkaDeadLetters, KafkaTarget
from cep.sinks.webhook import WebhookSink, WebhookTarget
from cep.step.rules import apply_records, rule_status
from tests.base.test_durable import readable_by_others
from tests.cli.test_run import Judge
from tests.real_kafka import KafkaCluster, new_topic
from tests.rulebook.records import SOURCE, new_book, upsert
from tests.sinks.alerts import alert_table
from tests.sinks.test_kafka import consumed
from tests.webhook import url_of

DAEMON = b'  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager\n'
NOISE = [
    b"Traceback (most recent call last):\n" + DAEMON + DAEMON + b"BrokenPipeError: [Errno 32] Broken pipe\n",
    b"Starting Streaming TransformWithStateInPandas Python worker.\n\n",
    b"Streaming TransformWithStateInPandas Python worker received parameters for UDF. State server port: 45251\n\n",
    b"WARNING: Using incubator modules: jdk.incubator.vector\n",
]
TRACEBACKS = [
    b"Traceback (most recent call last):\n" + DAEMON + b"OSError: [Errno 28] No space left on device\n",
    b'Traceback (most recent call last):\n  File "/x/a.py", line 1, in a\n    a()\nBrokenPipeError: [Errno 32]\n',
    b"Traceback (most recent call last):\n" + DAEMON,
]
TOLD = [
    *TRACEBACKS,
    b"2026-03-01 ERROR something: failed\n",
    b"\tat some.Class.method(Some.java:1)\n",
    b"\n",
    b"last words",
]


def passed_on(data: bytes) -> bytes:
    """Return the bytes that come out at the other end."""
    reading, writing = os.pipe()
    out, into = os.pipe()
    os.write(writing, data)
    os.close(writing)
    _pass_on(reading, into)
    with os.fdopen(out, "rb") as file:
        return file.read()


@given(st.lists(st.sampled_from(NOISE)), st.lists(st.sampled_from(TOLD[-4:-2])))
def test_noise_goes(noise: list[bytes], messages: list[bytes]) -> None:
    mixed = b"".join(part for pair in zip(messages, noise, strict=False) for part in pair)
    assert passed_on(mixed) == b"".join(messages[: len(noise)])


@given(st.lists(st.sampled_from(TOLD)))
def test_everything_else_comes_through(messages: list[bytes]) -> None:
    assert passed_on(b"".join(messages)) == b"".join(messages)


ARCHIVES = ["/a/python/lib/pyspark.zip", "/a/python/lib/py4j-0.10.9.9-src.zip", "/a/jars/spark-core_2.13-4.3.0.jar"]


@pytest.mark.parametrize(
    ("path", "rest"),
    [
        ([*ARCHIVES, "/b", "/c d"], ["/b", "/c d"]),
        ([*ARCHIVES, *ARCHIVES, "/b"], ["/b"]),
        (["/b", *ARCHIVES], ["/b", *ARCHIVES]),
        ([ARCHIVES[0], "/b", ARCHIVES[1]], ["/b", ARCHIVES[1]]),
        ([ARCHIVES[0]], [ARCHIVES[0]]),
        (["/b"], ["/b"]),
        ([], []),
    ],
)
def test_python_has_no_archives_in_front(path: list[str], rest: list[str]) -> None:
    """The launcher keeps the arguments and the exit code."""
    program = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:]); sys.exit(7)"
    environment = {"CEP_WORKER_PYTHON": sys.executable, "PYTHONPATH": ":".join(path)}
    words = [str(_PYTHON), "-c", program, "-m", "two words"]
    process = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert process.stdout == f"{':'.join(rest)} {['-m', 'two words']}\n", process.stderr
    assert process.returncode == 7


def test_it_is_for_the_package_that_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The launcher is not for another Spark, a Java of another caller, or a folder where it cannot run."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("CEP_WORKER_PYTHON", "")
    assert _python_of_workers() == str(_PYTHON)
    assert os.environ["CEP_WORKER_PYTHON"] == sys.executable
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    assert _python_of_workers() == str(_PYTHON)
    with monkeypatch.context() as patched:
        patched.setenv("SPARK_HOME", str(tmp_path))
        assert _python_of_workers() == sys.executable
    with monkeypatch.context() as patched:
        patched.setattr(SparkContext, "_gateway", object())
        assert _python_of_workers() == sys.executable
    (tmp_path / "python.sh").touch(0o644)
    monkeypatch.setattr(session, "_PYTHON", tmp_path / "python.sh")
    assert _python_of_workers() == sys.executable


def test_workers_get_the_folders_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [f"{sys.base_prefix}-jobs/rules", f"{sys.base_prefix}/lib", "/jobs"])
    assert session._import_path()[1:] == [f"{sys.base_prefix}-jobs/rules", "/jobs"]


_PROGRAM = """
import os
import sys
import pyspark
from cep.base.errors import UsageError
from cep.runners.spark.session import create_session
try:
    session = create_session("start", 1, java_options=sys.argv[1])
    of_worker = session.range(1).rdd.map(lambda _: pyspark.__file__).first()
    assert "PYTHONSAFEPATH" not in os.environ
    print(session.range(3).count(), "rows", "the same" if of_worker == pyspark.__file__ else of_worker)
except UsageError as error:
    print("refused:", error)
"""


def _start(java_options: str = "", **environment: str) -> str:
    """Return the output of a new process, which starts its own Java."""
    command = [sys.executable, "-c", _PROGRAM, java_options]
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    return subprocess.run(
        command, env={**inherited, **environment}, capture_output=True, text=True, timeout=120, check=True
    ).stdout


@pytest.mark.spark
def test_a_machine_that_does_not_know_its_own_name(tmp_path: Path) -> None:
    """The workers load the compiled package of this process, in place of Spark's archive."""
    nobody = tmp_path / "hosts"
    nobody.touch()
    assert _start(JAVA_TOOL_OPTIONS=f"-Djdk.net.hosts.file={nobody}") == "3 rows the same\n"


@pytest.mark.spark
def test_workers_run_no_module_of_the_current_folder(tmp_path: Path) -> None:
    """The ports of Java refuse a client without its secret."""
    for name in ("numpy", "pandas", "json", "cep"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').write({name!r})\n")
    program = _PROGRAM.replace("print(session", "print(session.conf.get('spark.authenticate'), session")
    command = [sys.executable, "-P", "-c", program, ""]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]))
    process = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240,
        check=True,
    )  # fmt: skip
    assert process.stdout.startswith("true 3 rows")
    assert not (tmp_path / "ran").exists()


@pytest.mark.spark
def test_a_java_that_ends_at_once_is_no_bug_of_ours() -> None:
    output = _start("-agentlib:nothing")
    assert "Could not find agent library" in output
    assert "\nrefused: Java has ended before Spark was there; its own lines stand above." in output


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
        (errors.SourceError, "topic payments was deleted and created again; start with a new checkpoint directory"),
        (errors.UsageError, "cep-kafka needs option topic"),
        (errors.StateFormatError, "a page has format 9\n  this build reads 8"),
        (errors.LimitError, "a page: 9 is over the limit of 8; give more pages"),
    ],
)
def test_our_error_is_what_is_raised(page: str, kind: type[errors.CepError], message: str) -> None:
    before = "cep.base.errors.SourceError: no answer\n\nThe above exception was the direct cause of the following:\n\n"
    for text in (f"cep.base.errors.{kind.__name__}: {message}", f"{before}cep.base.errors.{kind.__name__}: {message}"):
        error = failure_of(page.format(text))
        assert (type(error), str(error)) == (kind, message)


def test_of_another_failure_spark_says_why() -> None:
    error = failure_of(TASK.format("java.io.EOFException: the worker crashed"))
    assert isinstance(error, errors.SourceError)
    assert "goes on from its checkpoint when started again: [STREAM_FAILED]" in str(error)
    assert "the worker crashed" in str(error)
    assert "PythonRunner.scala" not in str(error)
    assert "Logical Plan" not in str(failure_of(PAGE.format("cep.base.errors.NoSuchError: what")))


AWAY = errors.SourceAwayError("no answer")


class Driver:
    """A driver whose queries end as in `ends`, one after another; None is an end without an error."""

    def __init__(self, ends: Sequence[errors.CepError | None], *, has_begun: bool = True) -> None:
        self.ends, self.observed, self.stop = list(ends), Observed(300_000), threading.Event()
        self.output: Any = SimpleNamespace(failure=None)
        self.pauses_s: list[float] = []
        self.starts = 0
        if has_begun:
            self.observed.begin()

    def start(self) -> Any:
        self.starts += 1

    def serve(self, *_: object) -> None:
        end = self.ends.pop(0)
        if end is not None:
            raise end

    def run(self) -> None:
        """Serve as `cep live` does, without its pauses."""
        with patch.object(live, "serve", self.serve), patch.object(self.stop, "wait", lambda _: self.stop.is_set()):
            live.keep_serving(
                self.start, self.output, self.stop, self.observed, lambda _, pause_s: self.pauses_s.append(pause_s)
            )


def test_pauses_grow_to_a_bound_and_the_query_goes_on() -> None:
    driver = Driver([AWAY, errors.SinkAwayError("the status topic is away"), *[AWAY] * 6, None])
    driver.run()
    assert driver.starts == 9
    assert driver.pauses_s == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]


def test_a_query_that_has_worked_meanwhile_begins_with_a_short_pause() -> None:
    driver = Driver([AWAY, AWAY, AWAY, None])

    def serve(*_: object) -> None:
        if len(driver.ends) == 2:
            driver.observed.finished(7, {})
        Driver.serve(driver)

    driver.serve = serve  # type: ignore[method-assign]
    driver.run()
    assert driver.pauses_s == [2.0, 4.0, 1.0]


@pytest.mark.parametrize("error", [errors.SourceError("a topic is gone"), errors.SourceGoneError("created again")])
def test_another_fault_ends_the_job(error: errors.CepError) -> None:
    driver = Driver([AWAY, error])
    with pytest.raises(type(error)):
        driver.run()
    assert driver.starts == 2


def test_a_first_start_ends_with_the_reason() -> None:
    driver = Driver([AWAY], has_begun=False)
    with pytest.raises(errors.SourceAwayError):
        driver.run()


def test_a_stop_request_ends_the_waiting() -> None:
    driver = Driver([AWAY, AWAY])
    driver.stop.set()
    driver.run()
    assert driver.starts == 1


CONTENT = b"offsets"


@pytest.mark.spark
def test_files_are_made_as_before(spark: SparkSession, tmp_path: Path) -> None:
    assert set_permissions_in_java(spark)
    assert set_permissions_in_java(spark), "once more changes nothing"
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path((tmp_path / "deep" / "file").as_uri())
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def put() -> None:
        stream = files.create(path)
        stream.write(bytearray(CONTENT))
        stream.close()

    put()
    created = tmp_path / "deep" / "file"
    assert created.read_bytes() == CONTENT
    with private_files():
        (tmp_path / "plain").touch()
    assert created.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert not readable_by_others(tmp_path / "deep")
    for text, mode in (("600", 0o600), ("755", 0o755), ("444", 0o444), ("1777", 0o1777)):
        files.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission(text))
        assert created.stat().st_mode & 0o7777 == mode
    files.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission("600"))
    created.write_bytes(b"Offsets")
    with pytest.raises(Py4JJavaError, match="ChecksumException"):
        files.open(path).read()


@pytest.mark.spark
def test_no_process_is_started_for_a_file(spark: SparkSession, tmp_path: Path) -> None:
    """Linux counts the processes that a process has waited for in the page faults of its children."""
    assert set_permissions_in_java(spark)
    jvm: Any = spark.sparkContext._jvm
    stat = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat")

    def of_children() -> int:
        return int(stat.read_text().rpartition(")")[2].split()[8])

    def create_files(attempt: int) -> None:
        for number in range(20):
            path = jvm.org.apache.hadoop.fs.Path((tmp_path / f"{attempt} {number}").as_uri())
            path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).create(path).close()

    def starts_processes(attempt: int) -> bool:
        before = of_children()
        create_files(attempt)
        return of_children() != before

    # Spark may wait for a Python worker that ends during an attempt, but hardly during each.
    assert not all(map(starts_processes, range(5)))


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ('openjdk version "1.8.0_402"', "is Java 1;"),
        ('openjdk version "11.0.2"', "is Java 11;"),
        ("", "unknown version"),
    ],
)
def test_an_old_java_is_refused(version: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(errors.UsageError, match=re.escape(message)):
        check_java()
    java.unlink()
    with pytest.raises(errors.UsageError, match="no Java found"):
        check_java()


def micro_batch(first: int) -> pa.Table:
    """Return two alerts from two tasks, a dead letter, two late events, and counters."""
    kinds_and_payloads = [
        (ALERTS, encode_alerts(alert_table(first + 1, 1))),
        (COUNTERS, b'{"events": 5, "alerts[x@1]": 1}'),
        (LATE, json.dumps([{"event_id": "b"}, {"event_id": "a"}]).encode()),
        (DEAD, b'{"code": "unreadable"}'),
        (ALERTS, encode_alerts(alert_table(first, 1))),
        (COUNTERS, b'{"events": 2}'),
    ]
    kinds, payloads = zip(*kinds_and_payloads, strict=True)
    return pa.table({"kind": pa.array(kinds), "payload": pa.array(payloads, pa.binary())})


def test_a_micro_batch_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    reports: list[BatchReport] = []

    def output() -> LiveOutput:
        return LiveOutput(
            tmp_path, DeadLetterFiles(tmp_path / "letters"), [FileSink(tmp_path / "alerts")], reports.append
        )

    assert read_progress(tmp_path)[0] == -1
    output().take_table(micro_batch(0), 0)
    second = output()
    second.take_table(micro_batch(10), 1)
    second.take_table(micro_batch(10), 1)
    third = output()
    third.take_table(micro_batch(10), 1)
    third.close()
    assert read_progress(tmp_path) == (1, {"events": 14, "alerts[x@1]": 2, "alerts_delivered[sink 0]": 4})
    assert reports[-1].counters == {"events": 7, "alerts[x@1]": 1, "alerts_delivered[sink 0]": 2}
    assert len(list(read_alerts(tmp_path / "alerts"))) == 4
    letters = [orjson.loads(line) for line in (tmp_path / "letters" / f"batch-{1:019}.jsonl").read_bytes().splitlines()]
    assert letters == [{"code": "unreadable"}, {"code": "late", "event_id": "a"}, {"code": "late", "event_id": "b"}]


def test_a_bad_control_record_goes_to_a_topic_with_its_diagnostics(tmp_path: Path, kafka_broker: KafkaCluster) -> None:
    """The letters include the rules: epoch and hash explain an event or a record that was set aside."""
    topic = new_topic(kafka_broker, 1)
    book = new_book()
    broken = upsert(2, source=SOURCE.replace("card_id     string", "card         string"))
    letters, _, _ = apply_records(book, (upsert(1).to_json(), broken.to_json(), b"{nothing"), None)
    rows = [(STATUS, orjson.dumps(rule_status(book))), *((REFUSED, letter) for letter in letters)]
    rows.append((LATE, json.dumps([{"event_id": "a"}]).encode()))
    kinds, payloads = zip(*rows, strict=True)
    table = pa.table({"kind": pa.array(kinds), "payload": pa.array(payloads, pa.binary())})
    for _ in range(2):  # a repeated micro-batch brings no letter a second time
        output = LiveOutput(tmp_path, KafkaDeadLetters(KafkaTarget(kafka_broker.address, topic, "job")), [])
        output.rules = RuleOutput(tmp_path, rule_status(new_book()))
        output.take_table(table, 7)
        output.close()
    letters_in_topic = [orjson.loads(record.value() or b"") for record in consumed(kafka_broker, topic, 3)]
    letters_by_code = {letter["code"]: letter for letter in letters_in_topic}
    assert sorted(letter["code"] for letter in letters_in_topic) == ["control_refused", "control_unreadable", "late"]
    refused = letters_by_code["control_refused"]
    assert (refused["rule_id"], refused["version"], refused["content_hash"]) == ("r", 2, content_hash(broken))
    assert [diagnostic["code"] for diagnostic in refused["diagnostics"]] == ["CEP417"]
    assert {(letter["epoch"], letter["rulebook"]) for letter in letters_by_code.values()} == {(1, book.content_hash)}


def test_a_rulebook_is_noted_by_the_repeated_micro_batch_if_the_job_ended_just_before(tmp_path: Path) -> None:
    status = rule_status(new_book())
    rows = pa.table({"kind": [STATUS], "payload": pa.array([orjson.dumps(status)], pa.binary())})

    def take() -> None:
        output = LiveOutput(tmp_path, DeadLetterFiles(tmp_path / "letters"), [])
        output.rules = RuleOutput(tmp_path, status)
        output.take_table(rows, 7)

    with patch.object(RetainedRulebooks, "note_end", side_effect=SinkError("killed")), pytest.raises(SinkError):
        take()
    assert read_progress(tmp_path)[0] == 7
    take()
    kept = orjson.loads((tmp_path / "rulebooks" / "kept.json").read_bytes())
    assert kept["rulebooks"] == [[7, status["digest"]]]


def test_a_micro_batch_without_rows(tmp_path: Path) -> None:
    rows = pa.table({"kind": pa.array([], pa.string()), "payload": pa.array([], pa.binary())})
    LiveOutput(tmp_path, DeadLetterFiles(tmp_path / "letters"), []).take_table(rows, 3)
    assert read_progress(tmp_path) == (3, {})
    assert not (tmp_path / "letters").exists()


def test_a_sink_that_is_away_delays_no_micro_batch_and_gets_all_in_their_order(tmp_path: Path) -> None:
    """A webhook refuses access, then one alert. A folder gets the alerts at once; a stop leaves the rest in files."""
    reports: list[tuple[str, str]] = []
    is_back, is_away_again = threading.Event(), threading.Event()
    receiver = Judge(lambda names: 403 if not is_back.is_set() else 422 if "a1" in names else 204)
    url, letters = url_of(receiver.server), DeadLetterFiles(tmp_path / "letters", "refused")

    def away(name: str, error: SinkAwayError | None) -> None:
        reports.append((name, "" if error is None else error.reason))
        if error is not None and is_back.is_set():
            is_away_again.set()

    def output() -> LiveOutput:
        hook = WebhookSink(WebhookTarget(url, b"secret"), RefusedAlerts("hook", letters))
        sinks: list[AlertSink] = [hook, FileSink(tmp_path / "alerts")]
        patience = Patience(threading.Event(), away, 0.01, refusals=(hook.refused,))
        letters_sink = DeadLetterFiles(tmp_path / "letters")
        return LiveOutput(tmp_path, letters_sink, sinks, patience=patience, names=("hook", "file"))

    first = output()
    assert first.totals == {"alerts_refused[hook]": 0}, "the metric is there before the first refusal"
    for number in range(3):
        first.take_table(micro_batch(2 * number), number)
    assert len(list(read_alerts(tmp_path / "alerts"))) == 6
    assert read_progress(tmp_path)[0] == 2, "no micro-batch waits for the webhook"
    assert receiver.taken == []
    (count, since_ms), others = first.backlogs["hook"], first.backlogs["file"]
    assert (count, others) == (6, (0, None))
    assert since_ms is not None
    assert first.undelivered_count == 6
    assert first.totals["alerts_delivered[file]"] == 6
    with pytest.raises(UsageError, match="3 micro-batches wait for hook"):
        refuse_waiting(tmp_path)
    is_back.set()
    first.drain(lambda: None)
    assert receiver.taken == ["a0", "a2", "a3", "a4", "a5"]
    assert first.totals["alerts_refused[hook]"] == 1
    assert first.totals["alerts_delivered[hook]"] == 6
    assert (reports[0], reports[-1]) == (("hook", "access"), ("hook", ""))
    (letter,) = [
        orjson.loads(line) for line in (tmp_path / "letters" / f"refused-{0:019}.jsonl").read_bytes().splitlines()
    ]
    assert orjson.loads(letter["record"])["alert_id"] == "a1"
    receiver.judge = lambda _: 403
    first.take_table(micro_batch(6), 3)
    assert is_away_again.wait(30)
    first._retries.stop.set()
    first.drain(lambda: None)
    first.close()
    receiver.judge = lambda _: 204
    second = output()
    second.take_table(micro_batch(6), 3)  # as after a crash
    second.take_table(micro_batch(8), 4)
    second.drain(lambda: None)
    second.close()
    refuse_waiting(tmp_path)
    assert receiver.taken == ["a0", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"]
    receiver.server.shutdown()
    receiver.server.server_close()


def test_the_alerts_of_a_sink_that_is_gone_go_to_a_new_one_or_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def output(*names: str) -> LiveOutput:
        sinks = [FileSink(tmp_path / name) for name in names]
        return LiveOutput(tmp_path, DeadLetterFiles(tmp_path / "letters"), sinks, names=names)

    class Away(FileSink):
        def write(self, alerts: pa.Table, batch_id: int) -> None:
            raise SinkAwayError("nobody answers")

    first = LiveOutput(tmp_path, DeadLetterFiles(tmp_path / "letters"), [Away(tmp_path / "old")], names=("old",))
    first.take_table(micro_batch(0), 0)
    first.take_table(micro_batch(4), 1)
    first._retries.stop.set()
    first.close()

    def full(path: Path, data: bytes) -> None:
        if path.name.endswith("1"):
            raise SinkError("no space")
        write_durably(path, data)

    monkeypatch.setattr(sink_queue, "write_durably", full)
    with pytest.raises(SinkError, match="no space"):
        output("new")
    monkeypatch.undo()
    second = output("new")
    assert second.abandoned == {}
    second.drain(lambda: None)
    second.close()
    assert [alert["alert_id"] for alert in read_alerts(tmp_path / "new")] == ["a0", "a1", "a4", "a5"]
    third = LiveOutput(tmp_path, DeadLetterFiles(tmp_path / "letters"), [Away(tmp_path / "old")], names=("new",))
    third.take_table(micro_batch(2), 2)
    third._retries.stop.set()
    third.close()
    (tmp_path / FOLDER / digest_of("other")).mkdir()
    (tmp_path / FOLDER / digest_of("other") / "name").touch()
    assert output("other").abandoned == {"new": 2}


def test_a_disk_that_takes_no_file_ends_the_micro_batch(tmp_path: Path) -> None:
    class Broken(FileSink):
        def write(self, alerts: pa.Table, batch_id: int) -> None:
            raise SinkError("no space")

    output = LiveOutput(tmp_path, DeadLetterFiles(tmp_path / "letters"), [Broken(tmp_path / "alerts")])
    for _ in range(2):
        with pytest.raises(SinkError, match="no space"):
            output.take_table(micro_batch(0), 0)
    assert read_progress(tmp_path)[0] == -1
