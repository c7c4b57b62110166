"""`cep run`: rules and streams → the job in this process, until it is stopped or its events end.

Tested by: tests/cli/test_run.py
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from cep.base.errors import CepError, UsageError
from cep.base.limits import TIME_MS_MIN
from cep.base.schema import Schema
from cep.base.utc import utc_text
from cep.cli.changelog import changelog_of, client_of
from cep.cli.configured import settings_of
from cep.cli.given_job import (
    Beginning,
    addresses_of,
    audit_copy,
    beginning_of,
    job_of,
    opened,
    range_of,
    refusals_of,
    sinks_of,
    watch_of,
)
from cep.cli.job_flags import (
    KAFKA,
    URLS,
    add_job_arguments,
    check_dead_letters,
    check_ending,
    check_sources,
    record_format,
)
from cep.cli.job_lines import PATHS, check_in_force, tell_end, tell_problems, tell_start
from cep.cli.job_rejections import JobRejections
from cep.cli.job_reports import JobReports, KeyAnswers
from cep.cli.standby import turn_of
from cep.cli.stopping import Stopping
from cep.cli.topics import made_topics
from cep.columnar.decode import Decoded
from cep.engine.advance import CARRIERS
from cep.model.settings import Settings
from cep.rulebook.deploy import deploy
from cep.rulebook.kafka import StatusTopic
from cep.runners.ahead import compiled_ahead
from cep.runners.embedded.changelog import Changelog
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import RECORDS_MAX, BatchReport, Pace, Runner, shorten_pauses
from cep.runners.handover.warm_start import WarmStart
from cep.runners.http import served
from cep.runners.live_checkpoint import is_live_folder, lock_checkpoint
from cep.runners.live_progress import read_undelivered
from cep.runners.observe import Log, Observed
from cep.runners.patience import Patience
from cep.runners.rule_output import SUPPRESSED_FOLDER
from cep.runners.traces import Traces, traces_of
from cep.sinks.base import AlertSink, DeadLetterSink
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.kafka import KafkaDeadLetters, KafkaDeadLettersAtOnce, KafkaSink, KafkaTransactionSink
from cep.sinks.transactions.kafka import KafkaTarget
from cep.sources.headers import headers_of
from cep.sources.kafka import KafkaSettings
from cep.sources.live.base import LiveSource
from cep.sources.live.files import FilesSource
from cep.sources.live.kafka import TopicSource
from cep.sources.live.lines import LinesSource
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import decode
from cep.step.job import Job

HELP = """\
Match a stream in this process, without Java: a topic, files that appear in a folder, or JSON lines on standard input. A
job that starts again with the same checkpoint folder continues where it stopped; without a folder no state is kept.

examples:
  cep run --rules rules --events payments.jsonl --available-now
  generate | cep run --rules rules --events -
  cep replay --rules rules --events history/ --out past.jsonl --savepoint warm/
  cep run --from warm/ --bootstrap-servers kafka:9092 --topic payments --checkpoint /var/lib/cep
  cep run --rules rules --bootstrap-servers kafka:9092 --topic payments --alerts kafka:alerts --checkpoint /var/lib/cep
  cep run … --checkpoint /var/lib/cep --checkpoint-target s3://bucket/job     (pip install 'cep[s3]')
  cep run … --checkpoint /var/lib/cep --changelog payments-state              (state goes to a topic, too)
  cep run … --checkpoint /var/lib/cep --changelog payments-state --standby    (started twice: one works, one waits)
"""
_STDIN = Path("-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    add_job_arguments(parser, "embedded")
    parser.add_argument(
        "--accept-gap", action="store_true",
        help="go on though the topic has deleted events before they were read; alerts that may lack events say so in "
        "`history_from`, and the audit has a line",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run the job; returns 0, or 1 if a rule of the folder or too many records were set aside.

    Raises: UsageError and other CepErrors.
    """
    settings = settings_of(options)
    log = Log(settings.observe.log, sys.stderr)
    with Stopping(partial(tell_end, Counter(), log, read_undelivered(settings.job.checkpoint)), log.close) as stop:
        code = _start(options, settings, log, stop)
        stop.tell()  # of a job that was stopped before it had its state
        return code


def _start(options: argparse.Namespace, settings: Settings, log: Log, stop: Stopping) -> int:
    """Check everything that can be checked before the job begins, and run it. Returns and raises: as `run`."""
    begins_with = beginning_of(settings, log)
    deployment = deploy(begins_with.records, begins_with.lists, begins_with.trust)
    tell_problems(begins_with.problems, deployment, log)
    check_in_force(begins_with.problems, deployment, settings.job)
    job, initial = job_of(settings, deployment, begins_with.warm), begins_with.initial
    workers = _workers(settings, job)
    checkpoint = settings.job.checkpoint
    if checkpoint is not None:
        if is_live_folder(checkpoint):
            raise UsageError(
                f"{checkpoint} is of `cep live`; start that, or move the job with `cep job savepoint --portable` and "
                "`cep job restore` (`cep docs guides/move`)"
            )
        job, initial, _ = opened(settings.job, checkpoint, job, begins_with, log)
    check_ending(settings, available_now=options.available_now)
    check_sources(
        settings, "either --events PATH (`-` is standard input), or --topic", settings.output.dead_letter_topic
    )
    check_dead_letters(settings)
    if checkpoint is not None and not settings.embedded.standby:
        with lock_checkpoint(checkpoint):  # before its port: a second process is told of the job, not of the port
            pass
    observed, key_answers, observe = Observed(settings.observe.stalled, log), KeyAnswers(), settings.observe
    answers = {"/key": key_answers.answer} if observe.answer_keys else {}
    with (
        served(observe.listen, observed, answers, observe.bearer_token(), observe.hosts) as address,
        watch_of(settings, observed),
        compiled_ahead(CARRIERS),
        ExitStack() as stack,
    ):
        paths = PATHS + (", /key?key=…" if answers else "")
        job_inputs = _Given(settings, job, initial, workers, options.available_now, options.accept_gap)
        rejections = JobRejections(observed, log, observe.rejected_max, options.available_now)
        try:
            traces = traces_of(log, stack, is_asked=observe.traces)
            _match(job_inputs, begins_with, _Seen(observed, log, key_answers, address, paths, traces, rejections), stop)
        except CepError as error:
            observed.failure = type(error).__name__
            if not stop.ends(error):
                raise
        rejected = rejections.end()
    return 1 if begins_with.problems or deployment.set_aside else rejected


@dataclass(frozen=True, slots=True)
class _Given:
    """A checked job: its settings, its first control records, its threads; `until_end` if it ends with its sources.

    `accepts_gap`: it goes on without records that are gone.
    """

    settings: Settings
    job: Job
    initial: tuple[bytes, ...]
    workers: Workers
    until_end: bool
    accepts_gap: bool = False


@dataclass(frozen=True, slots=True)
class _Seen:
    """The job as others see it: metrics and health, its log, its answers, and where they are served."""

    observed: Observed
    log: Log
    key_answers: KeyAnswers
    address: tuple[str, int] | None
    paths: str
    traces: Traces | None
    rejections: JobRejections


def _match(job_inputs: _Given, begins_with: Beginning, observation: _Seen, stop: Stopping) -> None:
    """Open everything, match until the end, and close everything. Raises: UsageError and other CepErrors."""
    settings, log, checkpoint = job_inputs.settings, observation.log, job_inputs.settings.job.checkpoint
    status = made_topics(settings)
    sources = _sources(settings, job_inputs.until_end, accepts_gap=job_inputs.accepts_gap)
    embedded = settings.embedded
    cache_bytes = (embedded.cache_mb << 20) // 2
    at_once = _sends_at_once(settings)
    sending = (
        observation.observed.sending
        if observation.traces is None
        else observation.traces.around(observation.observed.sending)
    )
    sinks = _sinks(settings, at_once, observation.observed)
    observation.observed.sink_names, observation.observed.sink_addresses = tuple(sinks), addresses_of(settings)
    outlets = Outlets(
        list(sinks.values()),
        _dead_letters(settings, at_once),
        _suppressed_alerts(settings),
        sending,
        patience=Patience(stop.event, observation.observed.away, refusals=refusals_of(list(sinks.values()))),
        audit=audit_copy(settings),
        names=tuple(sinks),
        abandoned=observation.observed.abandon,
    )
    store = StoreSettings(checkpoint, embedded.store, embedded.target, embedded.kept, cache_bytes, embedded.checkpoints)
    try:
        changelog = changelog_of(settings, outlets.sinks, log)
        with turn_of(settings, store, changelog, observation.observed, log, stop.event) as may_send:
            if not stop.event.is_set():
                surroundings = _Around(sources, replace(outlets, may_send=may_send), store, changelog, status)
                _work(job_inputs, begins_with, observation, surroundings, stop)
    finally:
        outlets.close()
        sources.close()


@dataclass(frozen=True, slots=True)
class _Around:
    """The surroundings of the engine, opened: where records come from and alerts go, and where state is kept."""

    sources: Sources
    outlets: Outlets
    store: StoreSettings
    changelog: Changelog | None
    status: StatusTopic | None


def _work(job_inputs: _Given, begins_with: Beginning, observation: _Seen, around: _Around, stop: Stopping) -> None:
    """Go on from the last commit until the end. Raises: as `_match`."""
    settings, log, checkpoint = job_inputs.settings, observation.log, job_inputs.settings.job.checkpoint
    commits = Commits(
        around.store,
        on_step=(lambda _: None) if observation.traces is None else observation.traces.commit_step,
        on_failed=lambda error: log.tell(
            "checkpoint_failed", f"no checkpoint: {error}; the job goes on without", reason=str(error)
        ),
        changelog=around.changelog,
    )
    for refused in commits.refused:
        log.tell("checkpoint_refused", f"passed over: {refused}", reason=refused)
    begins_with.lists.copy_into(commits.lists)
    engine = Engine(job_inputs.job, job_inputs.initial, commits.store, job_inputs.workers, commits.lists)
    if commits.head is None:
        commits.totals.update(_begin(engine, begins_with.warm))
    reports = JobReports(
        observation.observed, log, engine, commits, around.sources, around.status, checkpoint, around.outlets.patience
    )
    at_once = _sends_at_once(settings)
    pace = Pace(_interval_ms(settings), at_once, settings.job.trigger, settings.events.max_records or RECORDS_MAX)
    runner = Runner(engine, around.sources, around.outlets, commits, pace, _report(reports, observation), reports.idle)
    observation.key_answers.runner = runner
    stop.report = partial(_report_end, reports, commits, log)
    try:
        tell_start(log, checkpoint, observation.address, observation.paths, goes_on=commits.head is not None)
        shorten_pauses()
        runner.run(stop.event, until_end=job_inputs.until_end)
        reports.settle(stop.event)
        reports.write_totals()
    finally:
        stop.event.set()  # a delivery that waits for a sink gives up
        engine.close()
        commits.close()
        waiting_count = commits.undelivered_count if checkpoint is not None else 0
        stop.report = partial(tell_end, commits.totals, log, waiting_count)
        stop.tell()


def _report_end(reports: JobReports, commits: Commits, log: Log) -> None:
    """Report the end of a job that waits for another machine, and note the waiting alerts for the next start."""
    reports.write_totals()
    tell_end(commits.totals, log, commits.undelivered_count)


def _report(reports: JobReports, seen: _Seen) -> Callable[[BatchReport], None]:
    """Return the function that takes the reports of micro-batches: with a span for each, if traces are asked for."""

    def report(batch: BatchReport) -> None:
        seen.rejections.add(batch.counters, batch.dead_letters)
        if seen.traces is not None:
            timed = {phase: batch.phases_ms[phase] for phase in ("decoding", "matching")}
            seen.traces.micro_batch(batch.batch_id, timed, batch.counters)
        reports.report(batch)

    return report


def _sends_at_once(settings: Settings) -> bool:
    """Return True if alerts do not wait for commits."""
    return settings.job.checkpoint is None or settings.embedded.delivery == "at-least-once"


def _begin(engine: Engine, warm: WarmStart | None) -> Counter[str]:
    """Begin from nothing, or where a replay has ended; return the number of runs, in all and by rule."""
    if warm is not None:
        return engine.begin(warm)
    if engine.job.begins_ms > TIME_MS_MIN:
        raise UsageError(
            f"the job began where a replay had ended ({utc_text(engine.job.begins_ms)}) and has no checkpoint since; "
            "give the same --from again"
        )
    return Counter()


# ---------------------------------------------------------------------------------------------------- what to run


def _sources(settings: Settings, until_end: bool, *, accepts_gap: bool) -> Sources:
    kafka = settings.kafka
    client = KafkaSettings(kafka.bootstrap_servers or "", tuple(kafka.client_settings().items()))
    folder, topic, control = settings.events.folder, settings.events.topic, settings.control
    form = _format(settings)
    events: LiveSource
    if topic is not None:
        place = settings.events.starting, settings.events.ending
        events = TopicSource(client, topic, *place, headers_of(form.mapping), accepts_gap=accepts_gap)
    elif folder == _STDIN:
        events = LinesSource(sys.stdin.fileno())
    else:
        assert folder is not None, "asked for above"
        events = FilesSource(folder, follow=not until_end, mapping=form.mapping)
    changes: LiveSource | None = None
    if control.topic is not None:
        changes = TopicSource(client, control.topic)
    elif control.folder is not None:
        changes = FilesSource(control.folder, follow=True, takes_events=False)

    def read(schema: Schema, values: pa.Array) -> Decoded:
        return decode(form, schema, values, topic or "")

    return Sources(events, changes, read, form.mapping)


def _format(settings: Settings) -> RecordFormat:
    """Return how the values of the topic are written. Raises: UsageError for another than JSON without a topic."""
    asked = settings.events
    if asked.format != "json" and asked.topic is None:
        raise UsageError(f"{asked.format} is read from a topic only; files hold Parquet, CSV or JSON")
    return record_format(settings)


def _workers(settings: Settings, job: Job) -> Workers:
    embedded, text = settings.embedded, settings.embedded.groups
    bytes_max = (embedded.cache_mb << 20) // 2 if settings.job.checkpoint and embedded.store == "rocksdb" else None
    if text is None:
        return Workers(embedded.workers, page_bytes_max=bytes_max)
    groups = range_of(text)
    if groups.stop > job.groups_count:
        raise UsageError(f"--groups {text}: they are below the job's {job.groups_count} key groups")
    return Workers(embedded.workers, groups.start, groups.stop, bytes_max)


def _interval_ms(settings: Settings) -> int:
    """Return the time between commits. Where one costs more than a write to the disk, there is one a second."""
    embedded = settings.embedded
    if embedded.interval is not None:
        return embedded.interval
    to_folder = any(_is_folder(where) for where in settings.output.alerts)
    return 1_000 if to_folder or embedded.store == "memory" else 0


def _is_folder(where: str) -> bool:
    return where != "console" and not where.startswith((*URLS, KAFKA))


def _sinks(settings: Settings, at_once: bool, observed: Observed) -> dict[str, AlertSink]:
    servers, client = settings.kafka.bootstrap_servers or "", client_of(settings)

    def topic_sink(topic: str) -> AlertSink:
        if at_once:
            return KafkaSink(servers, topic, client)
        return KafkaTransactionSink(_target(settings, topic, client))

    # With a changelog, Kafka comes last: its copy of the store then belongs to alerts that all other sinks have.
    sinks = sinks_of(settings, topic_sink, observed)
    return dict(sorted(sinks.items(), key=lambda item: isinstance(item[1], KafkaSink | KafkaTransactionSink)))


def _target(settings: Settings, topic: str, client: Mapping[str, str]) -> KafkaTarget:
    """Name the job's place in a topic: the same after a restart, another one for each process of a job."""
    assert settings.job.checkpoint is not None, "or records go out at once"
    name = f"{settings.job.checkpoint.resolve().name}-{topic}-{settings.embedded.groups or 'all'}"
    return KafkaTarget(settings.kafka.bootstrap_servers or "", topic, name, client)


def _dead_letters(settings: Settings, at_once: bool) -> DeadLetterSink | None:
    """Return where records that are set aside go: a topic, or a folder; None without either."""
    topic, client = settings.output.dead_letter_topic, settings.kafka.client_settings()
    if topic is not None and at_once:
        return KafkaDeadLettersAtOnce(settings.kafka.bootstrap_servers or "", topic, client)
    if topic is not None:
        return KafkaDeadLetters(_target(settings, topic, client))
    checkpoint, folder = settings.job.checkpoint, settings.output.dead_letters
    if folder is None and checkpoint is not None:
        folder = checkpoint / "dead_letters"
    return None if folder is None else DeadLetterFiles(folder)


def _suppressed_alerts(settings: Settings) -> DeadLetterSink | None:
    """Return where alerts go that the rules suppress; None for a job that keeps nothing."""
    folder = settings.job.checkpoint or settings.output.dead_letters
    return None if folder is None else DeadLetterFiles(folder / SUPPRESSED_FOLDER)
