"""A checked job → the job on Spark: its sources, sinks and session, opened, used until the end, and closed.

The embedded engine brings in a warm start, so this module stands above the rooms of the runners.
Tested by: tests/cli/test_main.py, tests/runners/spark/test_live_process.py
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

from cep.base.errors import CepError, UsageError
from cep.base.terminal import Terminal
from cep.columnar.mapping import mapping_of_settings
from cep.lists.store import ListStore
from cep.model.settings import Settings, SparkSettings
from cep.rulebook.saved import RulebookStore
from cep.runners import live_checkpoint
from cep.runners.assembly import JobRunner, JobStart, RuleNews, audit_copy, tell_end, tell_start
from cep.runners.control_topic import made_topics
from cep.runners.embedded.opening import is_embedded
from cep.runners.embedded.warm_to_spark import begin_warm
from cep.runners.handover.beginning import read_beginning
from cep.runners.job import Beginning, open_folder
from cep.runners.meanings import is_in_lines
from cep.runners.observe import Log
from cep.runners.output import BatchReport
from cep.runners.patience import Patience
from cep.runners.spark.live import (
    JAVA_OPTIONS,
    SPARK_SETTINGS,
    LiveSettings,
    keep_serving,
    observe_queues,
    start_live,
)
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.savepoint import read_positions
from cep.runners.spark.session import create_session
from cep.runners.spark.sources import FolderSource, Source, TopicSource
from cep.runners.spark.state import last_batch
from cep.runners.warm import Warming
from cep.sinks import kinds as sink_kinds
from cep.sources.kafka import offsets_of
from cep.sources.live.kinds import check_ending, check_sources, kafka_client, record_format
from cep.sources.offsets import by_lane

_READABLE = "topic", "folder"  # the settings that name a source
_FLAGS = "either --events FOLDER, or --bootstrap-servers and --topic"


class SparkRunner(JobRunner):
    """The runner on Spark."""

    def check(self, settings: Settings, *, until_end: bool) -> None:
        """Refuse settings that this runner cannot use, before Spark starts. Raises: UsageError."""
        path = settings.job.checkpoint
        if path is None:
            raise UsageError("give --checkpoint, or the same in a settings file (`cep settings` prints one)")
        if is_embedded(path):
            raise UsageError(
                f"{path} is of `cep run`; start that, or move the job with `cep job savepoint` and "
                "`cep job restore --engine spark` (`cep docs guides/move`)"
            )
        check_ending(settings, until_end=until_end)
        topics = *sink_kinds.alert_topics(settings), settings.output.dead_letter_topic
        check_sources(settings, topics, _FLAGS, _READABLE)
        sink_kinds.sink_names(settings)  # an address that may not be used is refused before Spark starts
        sink_kinds.check_dead_letters(settings)
        _events(settings)  # for its errors

    def lists(self, settings: Settings, beginning: Beginning) -> ListStore:
        lists = RulebookStore((_checkpoint(settings) / live_checkpoint.RULEBOOKS_FOLDER).resolve()).lists
        beginning.lists.copy_into(lists)
        return lists

    def locked(self, settings: Settings) -> AbstractContextManager[None]:
        return live_checkpoint.lock_checkpoint(_checkpoint(settings))

    def first_positions(self, settings: Settings) -> Mapping[str, int]:
        checkpoint, events = _checkpoint(settings), settings.events
        if events.topic is None or settings.kafka.bootstrap_servers is None:
            return {}
        if (batch_id := last_batch(checkpoint)) is not None:
            return read_positions(checkpoint / live_checkpoint.QUERY_FOLDER, 0, batch_id)
        beginning = read_beginning(checkpoint)
        starting = None if beginning is None else beginning.starting_offsets("events", events.topic)
        return by_lane(offsets_of(kafka_client(settings), [events.topic], starting or events.starting, "earliest"))

    def run(self, start: JobStart) -> None:
        settings, log, stop, observed, traces = start.settings, start.log, start.stop, start.observed, start.traces
        checkpoint, beginning = _checkpoint(settings), start.beginning
        if beginning.warm is not None and live_checkpoint.read_job(checkpoint) is None:
            begin_warm(beginning.warm, start.job, start.deployment.rulebook, checkpoint)
        job, initial, goes_on = open_folder(settings.job, checkpoint, start.job, beginning, log)
        spark = open_session(settings.spark, log)
        stop.listen()  # Spark has set its own handler for interrupts
        news = RuleNews(log)

        def report(batch: BatchReport) -> None:
            news.tell(output.status)
            observed.finished(batch.batch_id, batch.totals, batch.watermark_ms, batch.phases_ms)
            if traces is not None:
                traces.micro_batch(batch.batch_id, batch.phases_ms, batch.counters)
            _tell_batch(batch, log)
            start.rejections.add(batch.counters, batch.dead_letters)

        output = _output(start, report)
        stop.report = lambda: _tell_end(output, settings, log)
        observed.finished(output.batch_id, output.totals)
        for name, count in output.abandoned.items():
            observed.abandon(name, count)
        try:
            live = LiveSettings(
                job, initial, _events(settings), _control(settings), checkpoint / live_checkpoint.QUERY_FOLDER,
                settings.job.trigger, start.until_end, settings.spark.cores, made_topics(settings),
            )  # fmt: skip

            def begin() -> Any:
                query = start_live(spark, live, output)
                if news.accepted_versions is None:
                    news.tell(output.status)
                    tell_start(log, checkpoint, start.address, start.paths, goes_on=goes_on, checkpoint=str(checkpoint))
                return query

            keep_serving(begin, output, stop.event, observed, partial(_tell_restart, log))
            output.drain(partial(observe_queues, output, observed))
            if output.refused_batch_id is not None:
                live_checkpoint.forget_planned(live.checkpoint, output.refused_batch_id)
        except CepError as error:
            observed.failure = type(error).__name__  # before its last lines
            raise
        finally:
            output.close()
            spark.stop()
            stop.tell()
            start.rejections.end()


def _checkpoint(settings: Settings) -> Path:
    assert settings.job.checkpoint is not None, "`check` has refused a job without one"
    return settings.job.checkpoint


def _output(start: JobStart, report: Callable[[BatchReport], None]) -> LiveOutput:
    """Open the sinks of alerts and dead letters. Patience tries a sink again; refusals count what it never takes."""
    settings, observed, checkpoint = start.settings, start.observed, _checkpoint(start.settings)
    job_name = live_checkpoint.job_id(checkpoint)  # by which sinks know whose micro-batches they have
    job = sink_kinds.SinkJob(settings, observed.refused, lambda _: job_name, settings.kafka.client_settings())
    dead_letters, sinks = sink_kinds.open_dead_letters(job), sink_kinds.open_sinks(job)
    assert dead_letters is not None, "the job has a folder"
    observed.sink_names, observed.sink_addresses = tuple(sinks), sink_kinds.sink_addresses(settings)
    alert_sinks = list(sinks.values())
    patience = Patience(start.stop.event, observed.away, refusals=sink_kinds.refusals_of(alert_sinks))
    return LiveOutput(
        checkpoint, dead_letters, alert_sinks, report, observed.sending, audit_copy(settings), patience, tuple(sinks)
    )


def open_session(settings: SparkSettings, log: Log) -> Any:
    """Start Spark, and return its session once another process has compiled the kernels (numba functions)."""
    console = Terminal(stderr=True, highlight=False)
    # Only the first start of a job uses the number of partitions: later, Spark takes it from its checkpoint.
    partitions = {} if settings.partitions is None else {"spark.sql.shuffle.partitions": str(settings.partitions)}
    with closing(Warming()) as warming:
        with console.status("starting Spark"):
            options = {**SPARK_SETTINGS, **partitions, **settings.conf}
            spark = create_session("cep live", settings.cores, options, JAVA_OPTIONS)
        # Compiled in the first micro-batch instead, the kernels would hold its events up for as long.
        if not warming.wait_until_done():
            log.tell("compiling", "compiling the kernels, once after an installation or a change: about half a minute")
            with console.status("compiling the kernels"):
                while not warming.wait_until_done():  # some seconds at a time
                    pass
    return spark


def _events(settings: Settings) -> Source:
    """Describe the source of Spark's tasks. sources/live/kinds.py has the sources of `cep run`."""
    events = settings.events
    if events.folder is not None:
        return FolderSource(events.folder, events.max_files, mapping=mapping_of_settings(events))
    kafka = kafka_client(settings)
    assert events.topic is not None, "`check_sources` has found one of the two"
    return TopicSource(
        kafka.bootstrap_servers, events.topic, events.max_records, events.starting, kafka.client_options,
        record_format(events), events.max_bytes, events.ending,
    )  # fmt: skip


def _control(settings: Settings) -> Source | None:
    control, kafka = settings.control, kafka_client(settings)
    if control.topic is not None:
        return TopicSource(kafka.bootstrap_servers, control.topic, settings=kafka.client_options)
    return None if control.folder is None else FolderSource(control.folder)


def _tell_batch(report: BatchReport, log: Log) -> None:
    if not report.counters:
        return
    parts = [f"{report.counters['events']:,} events", f"{report.alerts.num_rows:,} alerts"]
    aside = {name: n for name, n in report.counters.items() if is_in_lines(name) and n > 0}
    parts += [f"{count:,} {name}" for name, count in sorted(aside.items())]
    sentence = f"micro-batch {report.batch_id}: {', '.join(parts)}; {report.totals['events']:,} events so far"
    log.tell("micro_batch", sentence, batch_id=report.batch_id, **dict(sorted(report.counters.items())))


def _tell_restart(log: Log, error: CepError, pause_s: float) -> None:
    log.tell(
        "query_restarts", f"the query has ended, and starts again in {pause_s:.0f} s: {error}", reason=str(error),
        seconds=pause_s,
    )  # fmt: skip


def _tell_end(output: LiveOutput, settings: Settings, log: Log) -> None:
    tell_end(output.totals, log, output.undelivered_count, batch_id=output.batch_id)
    folder = sink_kinds.dead_letters_folder(settings)
    if log.form == "text" and folder is not None and folder.is_dir() and any(folder.iterdir()):
        log.tell("letters", f"records set aside, and the audit of changes: {folder}")
