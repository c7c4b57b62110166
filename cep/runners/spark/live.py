"""`cep live` on Spark: topics or folders → the streaming job (match_stream.py) → sinks, as a query of its own.

    events ─▶ pack (packed.py) ────────────┐
    control ─▶ once to every key group ────┴─▶ match, level by level ─▶ driver (live_output.py) ─▶ sinks

Without Hadoop's native library, which Spark's Python package lacks, its local file system starts `chmod` for every
file: a tenth of a small micro-batch's time. Java can set permissions itself. Hadoop has no setting for that, but keeps
one file system per process. One that differs in this method alone replaces it, compiled by the compiler that Spark has
for its own queries.
Tested by: tests/runners/spark/test_live.py, tests/runners/spark/test_driver.py.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name that Spark's own documentation uses
from pyspark.sql.streaming.query import StreamingQuery

from cep.base.errors import CepError, SinkAwayError, SourceAwayError, UsageError
from cep.base.text import utc_ms
from cep.rulebook.kafka import StatusTopic
from cep.rulebook.saved import RulebookStore
from cep.runners.handover.beginning import Beginning, read_beginning
from cep.runners.live_checkpoint import RULEBOOKS_FOLDER
from cep.runners.observe import Observed
from cep.runners.rule_output import RuleOutput
from cep.runners.spark import daemon
from cep.runners.spark.admission import HAS_ADMISSION, end_when_done
from cep.runners.spark.group_parts import prepare_query
from cep.runners.spark.kafka import EVENTS_FORMAT, FORMAT, KafkaDataSource, KafkaEventsSource
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.match_stream import control_records, control_rows, match_stages
from cep.runners.spark.packed import CLOCK_COLUMN, PART_COLUMN, WRITTEN_COLUMN, file_packer
from cep.runners.spark.paused_partitions import FILE as PAUSED_FILE
from cep.runners.spark.paused_partitions import PausedPartitions
from cep.runners.spark.place import SharedFolder
from cep.runners.spark.progress import failure_of, measures, positions
from cep.runners.spark.sources import PACKED_SCHEMA, FolderSource, Source, TopicSource, batch_clock
from cep.runners.spark.state import partitions_next
from cep.sources.kafka import KafkaSettings, topic_ids
from cep.sources.live.files import control_values
from cep.sources.offsets import is_time, refuse_new_topics
from cep.step.job import Job
from cep.step.rules import JobRules, rule_status, rulebook_of

_JAVA_CLASS = "cep.PlainLocalFiles"
_JAVA_SOURCE = """\
package cep;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class PlainLocalFiles extends LocalFileSystem {
  public PlainLocalFiles() {
    super(new Raw());
  }

  public static class Raw extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
      if (permission.getStickyBit()) {
        super.setPermission(path, permission);
      } else {
        String text = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL
            + permission.getOtherAction().SYMBOL;
        Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(text));
      }
    }
  }
}
"""


def set_permissions_in_java(spark: SparkSession) -> bool:
    """Replace Hadoop's local file system, which starts the program `chmod` for each new file, by a Java class of ours,
    which sets the permissions itself. Return False if Spark cannot compile or load the class: files are written as
    before, only slower, as on other machines of the job."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001 the one way to Java
    assert jvm is not None, "a session has its Java"
    try:
        conf = jvm.org.apache.hadoop.conf.Configuration(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
        local = jvm.java.net.URI("file:///")
        file_system = jvm.org.apache.hadoop.fs.FileSystem.get(local, conf)
        if file_system.getClass().getName() == _JAVA_CLASS:
            return True
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        compiler.cook(_JAVA_SOURCE)
        conf.setClassLoader(compiler.getClassLoader())
        conf.set("fs.file.impl", _JAVA_CLASS)
        file_system.close()  # only removes it from Hadoop's list of open file systems
        return bool(jvm.org.apache.hadoop.fs.FileSystem.get(local, conf).getClass().getName() == _JAVA_CLASS)
    except Py4JError:
        return False


# For the session of a live job: workers that start warm, and micro-batches that reach them in one piece.
SPARK_SETTINGS = {
    "spark.python.daemon.module": daemon.MODULE,
    "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
    # Tasks that read and tasks that match have the same environment, so that they share workers. Each kind would have
    # its own process that loads everything, and workers of its own.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # Java and its Python workers speak by turns, in small messages. Over TCP some of them wait for the acknowledgement
    # of the one before, tens of milliseconds a micro-batch.
    "spark.python.unix.domain.socket.enabled": "true",
    # A worker that is silent would hold up the job for good. Half-way it prints where it stands, then it is killed, and
    # its task is tried again. A task of a micro-batch takes seconds.
    "spark.python.worker.tracebackDumpIntervalSeconds": "150",
    # A Python process that a busy machine starts slowly has not failed. By default Spark ends the query after 15 s.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.python.worker.idleTimeoutSeconds": "300",
    "spark.python.worker.killOnIdleTimeout": "true",
    "spark.task.maxFailures": "2",
}
# For Java: micro-batches are planned over and over, and Java does little more. The optimising compiler took a third of
# Java's processor time in the first thousand of them, and the parallel collector a tenth.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_JSON_FILES = "*.{jsonl,ndjson,json}"
_POLL_S = 1
_WAITING = "Waiting"  # the start of Spark's message about a query that has planned a micro-batch without work
_PAUSE_S, _PAUSE_S_MAX = 1.0, 30.0  # between two starts of a query whose brokers do not answer: doubled after each
# By default, Spark passes over a file that is a week older than the newest one, as after a copy that keeps its time.
_FILE_AGE_MAX = "36500d"
_FILE_COLUMNS = "path string, modificationTime timestamp, length bigint, content binary"  # of Spark's format


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """A live job: its rules and sources, the folder of its query, and how the query runs."""

    job: Job
    initial: tuple[bytes, ...]  # the rules that the job begins with, as control records
    events: Source
    control: Source | None  # changes of rules
    checkpoint: Path  # of the query, in the job's folder
    trigger_ms: int = 0  # between the beginnings of micro-batches
    available_now: bool = False  # it ends after the records of its start
    tasks: int = 2  # that read events
    status: StatusTopic | None = None  # publishes the rules in force


def start_live(spark: SparkSession, settings: LiveSettings, output: LiveOutput) -> StreamingQuery:
    """Start the query; it runs in threads of its own until it is stopped or fails. A job that begins from the state of
    another one (`begins`) reads on where that one stopped. Raises: SourceError, UsageError."""
    job = settings.job
    prepare_query(settings.checkpoint)
    set_permissions_in_java(spark)
    spark.dataSource.register(KafkaDataSource)
    spark.dataSource.register(KafkaEventsSource)
    directory = settings.checkpoint.parent.resolve()
    begins = read_beginning(directory)
    is_one_task = isinstance(settings.events, TopicSource) and partitions_next(spark, settings.checkpoint.parent) == 1
    # Spark 4.1, without admission control, does not tell our sources that the query ends with the present records.
    has_topic = any(isinstance(source, TopicSource) for source in (settings.events, settings.control))
    ends = settings.available_now and not HAS_ADMISSION and has_topic
    events = _resumed(settings.events, "events", begins, ends=ends)
    if isinstance(events, TopicSource):
        output.paused_partitions = PausedPartitions(directory, job)
    packed = _packed_stream(spark, events, settings, 1 if is_one_task else settings.tasks, directory / PAUSED_FILE)
    store = RulebookStore(directory / RULEBOOKS_FOLDER)
    rules = JobRules(job, settings.initial, store)
    if settings.control is not None:
        control = _resumed(settings.control, "control", begins, ends=ends)
        packed = packed.unionByName(_control_stream(spark, control, job.groups_count, store))
    if is_one_task:
        packed = packed.coalesce(1)  # the task that matches reads too: no shuffle, no second task to start
    publish = None if settings.status is None else output.publisher(settings.status)
    output.rules = RuleOutput(settings.checkpoint.parent, rule_status(rulebook_of(rules, "").rulebook), publish)
    output.rules.announce()
    beginning = None if begins is None else (directory, begins)
    matched = match_stages(packed, rules, SharedFolder.of_driver(directory), beginning)
    writer = (
        matched.select("kind", "payload")
        .writeStream.foreachBatch(output.take)
        .option("checkpointLocation", str(settings.checkpoint))
    )
    if settings.available_now and not ends:
        return writer.trigger(availableNow=True).start()
    query = writer.trigger(processingTime=f"{0 if ends else settings.trigger_ms} milliseconds").start()
    if ends:
        end_when_done(query)
    return query


def keep_serving(
    start: Callable[[], StreamingQuery], output: LiveOutput, stop: threading.Event, observed: Observed,
    restarts: Callable[[CepError, float], None],
) -> None:  # fmt: skip
    """Run the query that `start` returns, and start it again after a pause each time that brokers do not answer.

    If no query of this process has run yet, the error is raised instead, so that the start of the job fails with it.
    `restarts` is called with the error and the seconds until the next start. Raises: as `serve` and `start`.
    """
    pause_s = _PAUSE_S
    while True:
        began = observed.batch_id  # the last micro-batch before this start
        try:
            serve(start(), output, stop, observed)
        except (SourceAwayError, SinkAwayError) as error:
            if stop.is_set():
                return  # the micro-batch counts as not done: the next start does it again
            if not observed.has_begun:
                raise
            pause_s = _PAUSE_S if observed.batch_id != began else min(2 * pause_s, _PAUSE_S_MAX)  # no progress
            output.failure = None
            restarts(error, pause_s)
            observed.idle()
            if stop.wait(pause_s):
                return
        else:
            return


def serve(query: StreamingQuery, output: LiveOutput, stop: threading.Event, observed: Observed | None = None) -> None:
    """Wait until the query ends. Once `stop` is set, it ends after the running micro-batch.

    Raises: the error of a sink, or the error that failure_of makes of Spark's reason for the failure of the query.
    """
    try:
        while not query.awaitTermination(_POLL_S):
            output.check()
            if observed is not None:
                _observe(query, observed)
                observe_queues(output, observed)
            if stop.is_set():
                output.stop()
                if not query.status["isTriggerActive"]:
                    break
    except StreamingQueryException as error:
        if output.refused_batch_id is not None:
            return  # no fault: the job stops, and its next start does this planned micro-batch
        if isinstance(output.failure, SinkAwayError) and stop.is_set():
            return  # the micro-batch counts as not done: the next start does it again and sends its alerts
        if output.failure is not None:
            raise output.failure from error
        raise failure_of(str(error)) from error
    finally:
        query.stop()


def observe_queues(output: LiveOutput, observed: Observed) -> None:
    """Note the alerts that wait for sinks."""
    observed.wait_for(output.backlogs)
    observed.measured({"undelivered_alerts": float(output.undelivered_count)}, {})


def _observe(query: StreamingQuery, observed: Observed) -> None:
    status, progress = query.status, query.lastProgress
    if progress is not None:
        report = json.loads(progress.json)
        observed.measured(*measures(report))
        observed.positions = positions(report) or observed.positions
    if not status["isTriggerActive"]:
        observed.idle()
    if not observed.has_begun and (progress is not None or status["message"].startswith(_WAITING)):
        observed.begin()


def _resumed(source: Source, kind: str, begins: Beginning | None, *, ends: bool) -> Source:
    """Let a source begin where an earlier job stopped, if this job continues one (`begins`). `kind`: events or control.
    `ends`: the query ends after the records that exist at its start. Raises: CepError."""
    if isinstance(source, TopicSource):
        source = replace(source, ends=ends)
    if begins is None:
        return source
    if isinstance(source, FolderSource):
        return replace(source, already_read=begins.files_read(kind))
    starting = begins.starting_offsets(kind, source.topic)
    if starting is None:
        return source  # the earlier job did not have this source
    if source.topic in begins.topic_ids:  # refuse a topic that was deleted and created again
        refuse_new_topics(begins.topic_ids, topic_ids(KafkaSettings(source.servers, source.settings), [source.topic]))
    return replace(source, starting=starting)


def _packed_stream(
    spark: SparkSession, source: Source, settings: LiveSettings, tasks: int, paused_file: Path
) -> DataFrame:
    """Return a stream of packed events (bytes, by key group). The file `paused_file` names partitions to skip."""
    job = settings.job
    if isinstance(source, TopicSource):
        form = source.form
        mapping = None if form.mapping.is_plain else form.mapping.to_json()
        options = {"schemaFile": form.schema_file, "message": form.message, "format": form.name, "mapping": mapping}
        options |= {"job": json.dumps(job.to_json()), "pausedPartitions": str(paused_file)}
        options |= {f"registry.{name}": value for name, value in form.registry}
        return _topic_stream(spark, source, tasks, EVENTS_FORMAT, options)  # the task that reads also packs
    paths = _paths_stream(spark, source, "*").withColumn(CLOCK_COLUMN, batch_clock())
    return paths.mapInArrow(file_packer(job, source.mapping), PACKED_SCHEMA)


def _paths_stream(spark: SparkSession, source: FolderSource, names: str) -> DataFrame:
    """Return a stream of the paths of new files whose names match the pattern `names`. Spark reads no content."""
    if not source.directory.is_dir():
        raise UsageError(f"{source.directory} is no folder; make it first, files may come later")
    reader = spark.readStream.format("binaryFile").schema(_FILE_COLUMNS).option("pathGlobFilter", names)
    reader = reader.option("maxFileAge", _FILE_AGE_MAX)
    if source.files_per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", source.files_per_trigger)
    rows = reader.load(str(source.directory.resolve()))
    if source.already_read:  # `_metadata.file_name` would be encoded as in a URL, `path` is not
        rows = rows.where(~F.element_at(F.split("path", "/"), -1).isin(list(source.already_read)))
    return rows.select(F.regexp_replace("path", "^file:/*", "/").alias(PART_COLUMN), WRITTEN_COLUMN)


def _control_stream(spark: SparkSession, source: Source, groups_count: int, store: RulebookStore) -> DataFrame:
    """Save the control records of a micro-batch in the job's folder, and send only their place to every key group."""
    if isinstance(source, TopicSource):
        # A heartbeat counts for later events: earlier ones must be in the same plan at the latest.
        topic = _topic_stream(spark, source, 1, FORMAT, {"plansLate": "true"})
        return control_rows(control_records(topic), groups_count, store)
    paths = _paths_stream(spark, source, _JSON_FILES)
    name = F.element_at(F.split(PART_COLUMN, "/"), -1).alias("name")
    order = F.unix_micros(WRITTEN_COLUMN).alias("order")
    records = paths.select(order, name, F.col(PART_COLUMN).cast("binary").alias("payload"))
    return control_rows(records, groups_count, store, lambda path: b"\n".join(control_values(Path(path.decode()))))


def _topic_stream(
    spark: SparkSession, source: TopicSource, tasks: int, form: str, more: Mapping[str, str | None]
) -> DataFrame:
    """Return a stream of a topic's records. `form`: the data source of kafka.py that reads it, `more`: its options."""
    options: dict[str, str | int | None] = {
        "bootstrap.servers": source.servers,
        "topic": source.topic,
        "maxTasks": tasks,
        "maxRecordsPerTrigger": source.records_per_trigger,
        "maxBytesPerTrigger": source.bytes_per_trigger,
        "ends": "true" if source.ends else None,
        **{f"kafka.{name}": value for name, value in source.settings},
        **more,
    }
    for side, where in (("starting", source.starting), ("ending", source.ending)):  # a time, or offsets
        if where is not None:
            options |= {f"{side}Timestamp": utc_ms(where)} if is_time(where) else {f"{side}Offsets": where}
    chosen = {name: value for name, value in options.items() if value is not None}
    return spark.readStream.format(form).options(**chosen).load()
