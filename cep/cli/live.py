"""`cep live`: rules and streams → the live job, until it is stopped, and a table of its results.

Tested by: tests/cli/test_live.py, tests/runners/spark/test_live_process.py
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cep.base.errors import CepError, UsageError
from cep.base.terminal import Terminal
from cep.cli.configured import settings_of
from cep.cli.given_events import mapping_of_settings
from cep.cli.given_job import (
    addresses_of,
    audit_copy,
    beginning_of,
    job_of,
    opened,
    refusals_of,
    sinks_of,
    watch_of,
    webhook_target,
)
from cep.cli.job_flags import URLS, add_job_arguments, check_dead_letters, check_ending, check_sources, record_format
from cep.cli.job_lines import (
    PATHS,
    check_in_force,
    tell_changes,
    tell_end,
    tell_problems,
    tell_runs,
    tell_start,
)
from cep.cli.job_rejections import JobRejections
from cep.cli.stopping import Stopping
from cep.cli.topics import made_topics
from cep.model.settings import Settings, SparkSettings
from cep.rulebook.deploy import deploy
from cep.rulebook.saved import RulebookStore
from cep.runners.embedded.targets import is_embedded
from cep.runners.embedded.warm_to_spark import begin_warm
from cep.runners.handover.beginning import read_beginning
from cep.runners.http import served
from cep.runners.live_checkpoint import (
    QUERY_FOLDER,
    RULEBOOKS_FOLDER,
    forget_planned,
    job_id,
    lock_checkpoint,
    read_job,
)
from cep.runners.live_progress import read_undelivered
from cep.runners.meanings import is_in_lines
from cep.runners.observe import Log, Observed
from cep.runners.patience import Patience
from cep.runners.traces import Traces, traces_of
from cep.runners.warm import Warming
from cep.sinks.base import AlertSink, DeadLetterSink
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.kafka import KafkaDeadLetters, KafkaTransactionSink
from cep.sinks.transactions.kafka import KafkaTarget
from cep.sources.kafka import KafkaSettings, offsets_of
from cep.step.job import Job

if TYPE_CHECKING:
    from cep.runners.spark.live import LiveSettings
    from cep.runners.spark.live_output import BatchReport, LiveOutput
    from cep.runners.spark.sources import Source

HELP = """\
Match a stream as it comes, with Spark Structured Streaming, until it is stopped. A job that starts again with the same
checkpoint directory continues where it stopped.

examples:
  cep live --rules rules --bootstrap-servers kafka:9092 --topic payments --checkpoint /var/lib/cep/job
  cep replay --rules rules --events history/ --out past.jsonl --savepoint warm/
  cep live --from warm/ --bootstrap-servers kafka:9092 --topic payments --checkpoint /var/lib/cep/job
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    add_job_arguments(parser, "spark")
    parser.add_argument(
        "--accept-gap", action="store_true",
        help="refused: Spark cannot go on after deleted events; the message names the way, over `cep run --accept-gap`",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run the job; returns 0, or 1 if a rule of the folder or too many records were set aside.

    Raises: UsageError and other CepErrors.
    """
    if options.accept_gap:
        raise UsageError(
            "Spark cannot go on after events that its topic has deleted; move the job with `cep job savepoint` and "
            "`cep job restore` to `cep run`, start that once with --accept-gap --available-now, and move it back "
            "(`cep docs guides/move`)"
        )
    settings = settings_of(options)
    log = Log(settings.observe.log, sys.stderr)
    with Stopping(partial(tell_end, {}, log, read_undelivered(settings.job.checkpoint)), log.close) as stop:
        code = _start(options, settings, log, stop)
        stop.tell()  # of a job that was stopped before it had its state
        return code


def _start(options: argparse.Namespace, settings: Settings, log: Log, stop: Stopping) -> int:
    """Check everything that can be checked before Spark starts, and run the job. Returns and raises: as `run`."""
    # Loaded here because Spark takes a second to import, and `cep check` does without.
    from cep.runners.spark.live import keep_serving, observe_queues, start_live  # noqa: PLC0415

    console = Terminal(stderr=True, highlight=False)
    begins_with = beginning_of(settings, log)
    checkpoint = _checkpoint_of(settings)
    check_ending(settings, available_now=options.available_now)
    events, control = _sources(settings)
    lists = RulebookStore((checkpoint / RULEBOOKS_FOLDER).resolve()).lists
    begins_with.lists.copy_into(lists)
    deployment = deploy(begins_with.records, lists, begins_with.trust)
    tell_problems(begins_with.problems, deployment, log)
    check_in_force(begins_with.problems, deployment, settings.job)
    job = job_of(settings, deployment, begins_with.warm)
    dead_letters_path = settings.output.dead_letters or checkpoint / "dead_letters"
    observe = settings.observe
    observed = Observed(observe.stalled, log)
    with (
        lock_checkpoint(checkpoint),
        served(observe.listen, observed, token=observe.bearer_token(), hosts=observe.hosts) as address,
        watch_of(settings, observed, partial(_first_positions, settings, checkpoint)),
        ExitStack() as stack,
    ):
        traces = traces_of(log, stack, is_asked=settings.observe.traces)
        if begins_with.warm is not None and read_job(checkpoint) is None:
            begin_warm(begins_with.warm, job, deployment.rulebook, checkpoint)
        job, initial, goes_on = opened(settings.job, checkpoint, job, begins_with, log)
        spark = _session(settings.spark, log, console)
        stop.listen()  # Spark has set its own handler for interrupts

        changes = _Changes(log)
        rejections = JobRejections(observed, log, settings.observe.rejected_max, options.available_now)

        def report(batch: BatchReport) -> None:
            changes.tell(output)
            _report(batch, observed, traces, log)
            rejections.add(batch.counters, batch.dead_letters)

        output = _output(settings, checkpoint, dead_letters_path, observed, stop.event, report)
        stop.report = lambda: _tell_end(output, dead_letters_path, log)
        observed.finished(output.batch_id, output.totals)
        for name, count in output.abandoned.items():
            observed.abandon(name, count)
        try:
            live = _live(settings, checkpoint, job, initial, events, control, options.available_now)

            def start() -> Any:
                query = start_live(spark, live, output)
                if changes.begin(output):
                    tell_start(log, checkpoint, address, PATHS, goes_on=goes_on, checkpoint=str(checkpoint))
                return query

            keep_serving(start, output, stop.event, observed, partial(_tell_restart, log))
            output.drain(partial(observe_queues, output, observed))
            if output.refused_batch_id is not None:
                forget_planned(live.checkpoint, output.refused_batch_id)
        except CepError as error:
            observed.failure = type(error).__name__
            if not stop.ends(error):
                raise
        finally:
            output.close()
            spark.stop()
            stop.tell()
            rejected = rejections.end()
    return 1 if begins_with.problems or deployment.set_aside else rejected


def _output(
    settings: Settings, checkpoint: Path, dead_letters_path: Path, observed: Observed, stop: threading.Event,
    report: Callable[[BatchReport], None],
) -> LiveOutput:  # fmt: skip
    """Open the sinks and the output that delivers micro-batches to them."""
    from cep.runners.spark.live_output import LiveOutput  # noqa: PLC0415

    job_name = job_id(checkpoint)
    dead_letters = _dead_letters(settings, dead_letters_path, job_name)
    sinks = _sinks(settings, job_name, observed)
    observed.sink_names, observed.sink_addresses, outlets = tuple(sinks), addresses_of(settings), list(sinks.values())
    patience = Patience(stop, observed.away, refusals=refusals_of(outlets))
    return LiveOutput(
        checkpoint, dead_letters, outlets, report, observed.sending, audit_copy(settings), patience, tuple(sinks)
    )


def _session(settings: SparkSettings, log: Log, console: Console) -> Any:
    """Spark's session, once the kernels are compiled."""
    from cep.runners.spark.live import JAVA_OPTIONS  # noqa: PLC0415
    from cep.runners.spark.session import create_session  # noqa: PLC0415

    with closing(Warming()) as warming:
        with console.status("starting Spark"):
            spark = create_session("cep live", settings.cores, _spark_settings(settings), JAVA_OPTIONS)
        _wait_for_kernels(warming, log, console)
    return spark


def _wait_for_kernels(warming: Warming, log: Log, console: Console) -> None:
    """Compiled in the first micro-batch instead, they would hold its events up for as long."""
    if warming.is_done():
        return
    log.tell("compiling", "compiling the kernels, once after an installation or a change: about half a minute")
    with console.status("compiling the kernels"):
        while not warming.is_done():
            pass


def _checkpoint_of(settings: Settings) -> Path:
    """Return the checkpoint folder of a job on Spark. Raises: UsageError."""
    path = settings.job.checkpoint
    if path is None:
        raise UsageError("give --checkpoint, or the same in a settings file (`cep settings` prints one)")
    if is_embedded(path):
        raise UsageError(
            f"{path} is of `cep run`; start that, or move the job with `cep job savepoint` and "
            "`cep job restore --engine spark` (`cep docs guides/move`)"
        )
    return path


# ---------------------------------------------------------------------------------------------------- what to run


def _sources(settings: Settings) -> tuple[Source, Source | None]:
    from cep.runners.spark.sources import FolderSource, TopicSource  # noqa: PLC0415

    servers, client = settings.kafka.bootstrap_servers, tuple(settings.kafka.client_settings().items())
    topic, control_topic, output = settings.events.topic, settings.control.topic, settings.output
    check_sources(settings, "either --events FOLDER, or --bootstrap-servers and --topic", output.dead_letter_topic)
    for where in output.alerts:
        if where.startswith(URLS):
            webhook_target(settings, where)  # refused before Spark starts
    check_dead_letters(settings)
    events: Source
    if topic is not None and servers is not None:
        event_settings = settings.events
        events = TopicSource(
            servers, topic, event_settings.max_records, event_settings.starting, client, record_format(settings),
            event_settings.max_bytes, event_settings.ending,
        )  # fmt: skip
    else:
        assert settings.events.folder is not None, "asked for above"
        events = FolderSource(
            settings.events.folder, settings.events.max_files, mapping=mapping_of_settings(settings.events)
        )
    control: Source | None = None
    if control_topic is not None and servers is not None:
        control = TopicSource(servers, control_topic, settings=client)
    elif settings.control.folder is not None:
        control = FolderSource(settings.control.folder)
    return events, control


def _live(
    settings: Settings, checkpoint: Path, job: Job, initial: tuple[bytes, ...], events: Source, control: Source | None,
    available_now: bool,
) -> LiveSettings:  # fmt: skip
    from cep.runners.spark.live import LiveSettings  # noqa: PLC0415

    query = checkpoint / QUERY_FOLDER
    trigger_ms, cores = settings.job.trigger, settings.spark.cores
    status = made_topics(settings)
    return LiveSettings(job, initial, events, control, query, trigger_ms, available_now, cores, status)


def _spark_settings(settings: SparkSettings) -> dict[str, str]:
    from cep.runners.spark.live import SPARK_SETTINGS  # noqa: PLC0415

    # The number of partitions counts at a job's first start: Spark keeps it in its checkpoint.
    partitions = {} if settings.partitions is None else {"spark.sql.shuffle.partitions": str(settings.partitions)}
    return {**SPARK_SETTINGS, **partitions, **settings.conf}


def _sinks(settings: Settings, job_name: str, observed: Observed) -> dict[str, AlertSink]:
    return sinks_of(settings, lambda topic: KafkaTransactionSink(_target(settings, topic, job_name)), observed)


def _first_positions(settings: Settings, checkpoint: Path) -> Mapping[str, int]:
    """Return where a query begins to read the topic of events, as its checkpoint or the settings say."""
    from cep.runners.spark.state import last_batch  # noqa: PLC0415
    from cep.runners.spark.to_savepoint import read_positions  # noqa: PLC0415

    kafka, events = settings.kafka, settings.events
    if events.topic is None or kafka.bootstrap_servers is None:
        return {}
    if (batch_id := last_batch(checkpoint)) is not None:
        return read_positions(checkpoint / QUERY_FOLDER, 0, batch_id)
    client = KafkaSettings(kafka.bootstrap_servers, tuple(kafka.client_settings().items()))
    begins = read_beginning(checkpoint)
    starting = None if begins is None else begins.starting("events", events.topic)
    offsets = offsets_of(client, [events.topic], starting or events.starting, "earliest")
    return {f"{events.topic}[{partition}]": offset for partition, offset in offsets[events.topic].items()}


def _dead_letters(settings: Settings, folder: Path, job_name: str) -> DeadLetterSink:
    topic = settings.output.dead_letter_topic
    return DeadLetterFiles(folder) if topic is None else KafkaDeadLetters(_target(settings, topic, job_name))


def _target(settings: Settings, topic: str, job_name: str) -> KafkaTarget:
    servers = settings.kafka.bootstrap_servers
    assert servers is not None, "asked for with the sources"
    return KafkaTarget(servers, topic, job_name, settings.kafka.client_settings())


# --------------------------------------------------------------------------------------------------------- telling


def _report(batch: BatchReport, observed: Observed, traces: Traces | None, log: Log) -> None:
    observed.finished(batch.batch_id, batch.totals, batch.watermark_ms, batch.phases_ms)
    if traces is not None:
        traces.micro_batch(batch.batch_id, batch.phases_ms, batch.counters)
    _tell_batch(batch, log)


def _tell_batch(report: BatchReport, log: Log) -> None:
    """One line for a micro-batch in which something happened."""
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


@dataclass(slots=True)
class _Changes:
    """The changes of rules that a job has taken, and those that the log has already. None: the job has not begun."""

    log: Log
    taken: dict[str, Any] | None = None
    rules: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, output: LiveOutput) -> bool:
        """Take what the job begins with, which is no news; return False if it has begun before."""
        if self.taken is not None:
            return False
        self._take(output)
        return True

    def tell(self, output: LiveOutput) -> None:
        """Log what is new since the last call."""
        status = {} if output.rules is None else output.rules.status
        if self.taken is not None:
            tell_changes(self.taken, status.get("taken", {}), self.log)
            tell_runs(self.rules, {"rules": [], "open_runs": {}, **status}, self.log)
        self._take(output)

    def _take(self, output: LiveOutput) -> None:
        status = {} if output.rules is None else output.rules.status
        self.taken, self.rules = dict(status.get("taken", {})), list(status.get("rules", ()))


def _tell_end(output: LiveOutput, dead_letters_path: Path, log: Log) -> None:
    tell_end(output.totals, log, output.undelivered_count, batch_id=output.batch_id)
    if log.form == "text" and dead_letters_path.is_dir() and any(dead_letters_path.iterdir()):
        log.tell("letters", f"records set aside, and the audit of changes: {dead_letters_path}")
