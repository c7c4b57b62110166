"""A checked job → the job in this process: its sources, sinks and store, opened, used until the end, and closed.

With `--standby` a process first waits for the lease of the job (kafka.py), and keeps a nearly current store:

    lease elsewhere   follow the changelog into FOLDER/store.partial, a few times a second
    lease here        end; opening.py fences the previous owner, reads the rest of the changelog, and the job continues

If the brokers are unreachable, the standby waits: then no process works, and none takes over.
Tested by: tests/cli/test_run.py, tests/cli/test_outage.py, tests/runners/embedded/test_changelog.py.
"""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from cep.base.errors import SourceError, UsageError
from cep.base.limits import TIME_MS_MIN
from cep.base.schema import Schema
from cep.base.text import utc_text
from cep.columnar.decode import Decoded
from cep.engine.advance import MATCHERS
from cep.model.setting_types import range_of
from cep.model.settings import Settings
from cep.rulebook.kafka import StatusTopic
from cep.runners.ahead import compiled_ahead
from cep.runners.assembly import JobRunner, JobStart, audit_copy, tell_end, tell_start
from cep.runners.control_topic import made_topics
from cep.runners.embedded.changelog import Changelog, changelog_of, client_of
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.kafka import Lease
from cep.runners.embedded.opening import STORE_PART, StoreSettings, followed_folder
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.reports import JobReports, KeyAnswers
from cep.runners.embedded.run import RECORDS_MAX, Listener, Pace, Runner, shorten_pauses
from cep.runners.handover.warm_start import WarmStart
from cep.runners.http import Answers
from cep.runners.job import open_folder
from cep.runners.live_checkpoint import is_live_folder, lock_checkpoint
from cep.runners.observe import Log, Observed
from cep.runners.patience import Patience
from cep.runners.rule_output import SUPPRESSED_FOLDER
from cep.runners.warm import Warming
from cep.sinks import kinds as sink_kinds
from cep.sinks.files import DeadLetterFiles
from cep.sinks.kafka import KafkaSink, KafkaTransactionSink
from cep.sources.live import kinds as source_kinds
from cep.sources.registry.kafka import decode
from cep.state.checkpoints import LISTS_FOLDER
from cep.step.job import Job

_FOLLOW_S = 0.25
_AT_ONCE_S = 5.0  # A first process has the lease by then; preparing later work would only delay it.
_POLL_S = 0.05


@contextmanager
def wait_for_turn(
    settings: Settings, store: StoreSettings, changelog: Changelog | None, observed: Observed, log: Log,
    stop: threading.Event,
) -> Iterator[Callable[[], bool]]:  # fmt: skip
    """Wait until this process may work on the job, or `stop` is set. Give the lease up after the block.

    Yields: a function that says whether it may send, and raises SinkError once another process has taken over. Without
    `--standby` that is always. Raises: UsageError without a changelog; the errors of `stand_by`.
    """
    if not settings.embedded.standby:
        yield lambda: True
        return
    if changelog is None or store.folder is None:
        raise UsageError("--standby needs --changelog TOPIC: a standby takes the state of the job from there")
    waiting = _StandbyReport(observed, log)
    with Lease(source_kinds.kafka_client(settings), changelog.topic, stop.set) as lease:
        if not _gets_lease_soon(lease, stop):
            waiting.begin(changelog.topic)
            warming = Warming()  # compiles the kernels in another process; the state need not wait for them
            try:
                stand_by(store, store.folder, changelog, lease.is_here, stop, waiting.follow)
            finally:
                warming.close()
        if not stop.is_set():
            waiting.end()
        yield lease.is_here
        lease.is_here()  # the lease may have stopped this process: then its end is an error


def _gets_lease_soon(lease: Lease, stop: threading.Event) -> bool:
    deadline_s = time.monotonic() + _AT_ONCE_S
    while time.monotonic() < deadline_s and not (stop.is_set() or lease.is_elsewhere):
        if lease.is_here():
            return True
        stop.wait(_POLL_S)
    return False


@dataclass
class _StandbyReport:
    """The log lines and health of a standby: a process that follows the changelog topic until it may take over."""

    observed: Observed
    log: Log
    since_s: float | None = None  # when it began to stand by (monotonic); None: it had the lease at once
    offset: int = field(default=-1, init=False)  # in the topic; -1: not at its end yet

    def begin(self, topic: str) -> None:
        self.since_s = time.monotonic()
        self.observed.measured({"standby": 1.0}, {})
        self.log.tell("standby", f"stands by: another process works; topic {topic} has its state", topic=topic)

    def follow(self, offset: int) -> None:
        """Note that all up to an offset is here: the process is ready to take over."""
        if self.offset < 0:
            self.observed.begin()  # health: ready, because it has the state of the job
            self.log.tell("standby_ready", f"ready to take over: has the state up to offset {offset:,}", offset=offset)
        self.offset = offset
        self.observed.idle()  # it is alive

    def end(self) -> None:
        self.observed.measured({"standby": 0.0}, {})
        self.observed.has_begun = False  # health: not ready until it has read its sources
        if self.since_s is not None:
            seconds = round(time.monotonic() - self.since_s, 1)
            self.log.tell("took_over", f"takes over the job, after {seconds:.0f} s of standing by", seconds=seconds)


def stand_by(
    settings: StoreSettings, folder: Path, changelog: Changelog, has_lease: Callable[[], bool], stop: threading.Event,
    followed: Callable[[int], None] = lambda _: None,
) -> None:  # fmt: skip
    """Keep copying the changelog to a local store until this process has the lease (right to work) or `stop` is set.

    `followed` receives the offset up to which the store is complete. Raises: UsageError, SinkError, StateError.
    """
    copied = followed_folder(folder)  # gets a store and the files of lists
    with lock_checkpoint(folder):  # no other process may use the folder
        shutil.rmtree(copied, ignore_errors=True)
        with settings.open(copied / STORE_PART) as store:
            while not (has_lease() or stop.is_set()):
                with suppress(SourceError):  # no broker answers: the health watch (runners/watch.py) reports it
                    followed(changelog.follow(store, lists_folder=copied / LISTS_FOLDER))
                stop.wait(_FOLLOW_S)


_KAFKA_SINKS = KafkaSink, KafkaTransactionSink
_FLAGS = "either --events PATH (`-` is standard input), or --topic"


@dataclass(frozen=True, slots=True)
class EmbeddedRunner(JobRunner):
    """The runner in this process. `accepts_gap`: the job goes on without events that are gone."""

    key_answers: KeyAnswers
    accepts_gap: bool = False

    def check(self, settings: Settings, *, until_end: bool) -> None:
        checkpoint = settings.job.checkpoint
        if checkpoint is not None and is_live_folder(checkpoint):
            raise UsageError(
                f"{checkpoint} is of `cep live`; start that, or move the job with `cep job savepoint --portable` and "
                "`cep job restore` (`cep docs guides/move`)"
            )
        source_kinds.check_ending(settings, until_end=until_end)
        topics = *sink_kinds.alert_topics(settings), settings.output.dead_letter_topic
        source_kinds.check_sources(settings, topics, _FLAGS)
        sink_kinds.check_dead_letters(settings)

    @contextmanager
    def locked(self, settings: Settings) -> Iterator[None]:
        checkpoint = settings.job.checkpoint
        if checkpoint is not None and not settings.embedded.standby:
            with lock_checkpoint(checkpoint):  # commit.py keeps the lock later
                pass
        yield

    def answers(self, settings: Settings) -> Answers:
        return {"/key": self.key_answers.answer} if settings.observe.answer_keys else {}

    def run(self, start: JobStart) -> None:
        """Open the sources and sinks of the job, wait for the lease if this is a standby, work, and close them."""
        settings, beginning, checkpoint = start.settings, start.beginning, start.settings.job.checkpoint
        job, initial, workers = start.job, beginning.initial, _workers(settings, start.job)  # initial: the first rules
        if checkpoint is not None:
            job, initial, _ = open_folder(settings.job, checkpoint, job, beginning, start.log)  # as the folder has them
        with compiled_ahead(MATCHERS):  # compiles kernels in the background
            status = made_topics(settings)
            sources = _sources(settings, start.until_end, accepts_gap=self.accepts_gap)
            outlets = _outlets(start)
            try:
                changelog = changelog_of(settings, outlets.sinks, start.log)
                embedded, observed, stop = settings.embedded, start.observed, start.stop.event
                cache_bytes = (embedded.cache_mb << 20) // 2  # the other half is for pages (`_workers`)
                store = StoreSettings(
                    checkpoint, embedded.store, embedded.target, embedded.kept, cache_bytes, embedded.checkpoints
                )
                with wait_for_turn(settings, store, changelog, observed, start.log, stop) as may_send:
                    if not stop.is_set():
                        outlets = replace(outlets, may_send=may_send)
                        engine_of = partial(Engine, job, initial, workers=workers)
                        _work(start, engine_of, sources, outlets, store, changelog, status, self.key_answers)
            finally:
                outlets.close()
                sources.close()


def _work(
    start: JobStart, engine_of: Callable[..., Engine], sources: Sources, outlets: Outlets, store: StoreSettings,
    changelog: Changelog | None, status: StatusTopic | None, key_answers: KeyAnswers,
) -> None:  # fmt: skip
    """Go on from the last commit until the end. `engine_of` takes the store and its lists. Raises: CepError."""
    settings, log, stop, checkpoint = start.settings, start.log, start.stop, start.settings.job.checkpoint
    commits = Commits(
        store,
        on_step=(lambda _: None) if start.traces is None else start.traces.commit_step,
        on_failed=lambda error: log.tell(
            "checkpoint_failed", f"no checkpoint: {error}; the job goes on without", reason=str(error)
        ),
        changelog=changelog,
    )
    for refused in commits.refused:
        log.tell("checkpoint_refused", f"passed over: {refused}", reason=refused)
    start.beginning.lists.copy_into(commits.lists)
    engine = engine_of(store=commits.store, lists=commits.lists)
    if commits.head is None:
        commits.totals.update(_begin(engine, start.beginning.warm))
    reports = JobReports(start, engine, commits, sources, status, outlets.patience)
    pace = Pace(
        _interval_ms(settings), _sends_at_once(settings), settings.job.trigger,
        settings.events.max_records or RECORDS_MAX,
    )  # fmt: skip
    listener = Listener(reports.report, reports.idle)
    runner = Runner(engine, sources, outlets, commits, pace, listener)
    key_answers.runner = runner
    stop.report = partial(_report_end, reports, commits, log)
    try:
        tell_start(log, checkpoint, start.address, start.paths, goes_on=commits.head is not None)
        shorten_pauses()
        runner.run(stop.event, until_end=start.until_end)
        reports.settle(stop.event)
        reports.write_totals()
    finally:
        stop.event.set()  # a delivery that waits for a sink gives up
        engine.close()
        commits.close()
        waiting_count = commits.deliveries.undelivered_count if checkpoint is not None else 0
        stop.report = partial(tell_end, commits.totals, log, waiting_count)
        stop.tell()


def _report_end(reports: JobReports, commits: Commits, log: Log) -> None:
    """Report the end of a job that waits for another machine, and note the waiting alerts for the next start."""
    reports.write_totals()
    tell_end(commits.totals, log, commits.deliveries.undelivered_count)


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


def _sources(settings: Settings, until_end: bool, *, accepts_gap: bool) -> Sources:
    events = settings.events
    if events.format != "json" and events.topic is None:
        raise UsageError(f"{events.format} is read from a topic only; files hold Parquet, CSV or JSON")
    form = source_kinds.record_format(events)

    def read(schema: Schema, values: pa.Array) -> Decoded:
        return decode(form, schema, values, events.topic or "")

    source = source_kinds.open_events(source_kinds.SourceJob(settings, form.mapping, until_end, accepts_gap))
    return Sources(source, source_kinds.open_control(settings), read, form.mapping)


def _outlets(start: JobStart) -> Outlets:
    """Open the sinks of alerts, dead letters, suppressed alerts and the audit. Raises: UsageError, SinkError."""
    settings, observed = start.settings, start.observed
    folder = settings.job.checkpoint or settings.output.dead_letters  # without a folder, suppressed alerts are dropped
    sends_at_once = _sends_at_once(settings)
    # Gives the name of Kafka's transactions. Alerts that do not wait for commits are sent without one.
    name_in_topic = None if sends_at_once else partial(_name_in, settings)
    job = sink_kinds.SinkJob(settings, observed.refused, name_in_topic, client_of(settings))
    # Kafka comes last (True after False): its transaction also has the changelog, a copy of the store.
    sinks = dict(sorted(sink_kinds.open_sinks(job).items(), key=lambda named: isinstance(named[1], _KAFKA_SINKS)))
    observed.sink_names, observed.sink_addresses = tuple(sinks), sink_kinds.sink_addresses(settings)
    return Outlets(
        list(sinks.values()),
        sink_kinds.open_dead_letters(job),
        None if folder is None else DeadLetterFiles(folder / SUPPRESSED_FOLDER),
        observed.sending if start.traces is None else start.traces.around(observed.sending),
        patience=Patience(start.stop.event, observed.away, refusals=sink_kinds.refusals_of(list(sinks.values()))),
        audit=audit_copy(settings),
        names=tuple(sinks),
        abandoned=observed.abandon,
    )


def _name_in(settings: Settings, topic: str) -> str:
    """Name the job in a topic: the same after a restart, another name for each process of a job."""
    assert settings.job.checkpoint is not None, "or records go out at once"
    return f"{settings.job.checkpoint.resolve().name}-{topic}-{settings.embedded.groups or 'all'}"


def _sends_at_once(settings: Settings) -> bool:
    return settings.job.checkpoint is None or settings.embedded.delivery == "at-least-once"


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
    embedded, kinds = settings.embedded, map(sink_kinds.kind_of, settings.output.alerts)
    if embedded.interval is not None:
        return embedded.interval
    return 0 if embedded.store != "memory" and all(kind.is_quick for kind in kinds) else 1_000
