"""The settings of a live job → the job at work, until it is stopped or its events end, and its exit code.

    1. read the rules, check the settings, deploy the rules, describe the job        job.py
    2. lock the folder, serve metrics and health, watch brokers, sinks and disk       http.py, watch.py
    3. the runner opens sources, sinks and state, and matches                         embedded/job.py, spark_job.py

`cep run` and `cep live` start their jobs here.
Tested by: tests/cli/test_run.py, tests/cli/test_main.py
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from cep.base.errors import CepError
from cep.base.limits import WATCH_MS
from cep.lists.store import ListStore
from cep.model.settings import Settings
from cep.rulebook.deploy import Deployment, deploy
from cep.runners.http import Answers, served
from cep.runners.job import Beginning, describe_job, read_beginning
from cep.runners.job_lines import PATHS, Address, JobRejections, check_in_force, tell_end, tell_problems
from cep.runners.live_checkpoint import read_undelivered
from cep.runners.observe import Log, Observed
from cep.runners.rule_output import AUDIT_FOLDER
from cep.runners.stopping import Stopping
from cep.runners.traces import Traces, traces_of
from cep.runners.watch import Watch, Watched
from cep.sinks.base import DeadLetterSink
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.kinds import alert_topics
from cep.sources.live.kinds import kafka_client
from cep.step.job import Job


@dataclass(frozen=True, slots=True)
class JobStart:
    """A checked job that is about to run: its rules and terms, its log, and its metrics and health.

    `until_end`: it ends once it has read everything that exists. `address` is where `paths` are served.
    """

    settings: Settings
    begins: Beginning
    deployment: Deployment
    job: Job
    until_end: bool
    log: Log
    stop: Stopping
    observed: Observed
    rejections: JobRejections
    traces: Traces | None = None
    address: Address | None = None
    paths: str = PATHS


class JobRunner(Protocol):
    """The runner of a job: its part of a start."""

    def check(self, settings: Settings, *, until_end: bool) -> None:
        """Refuse settings that this runner cannot use, before anything is opened. Raises: UsageError."""
        ...

    def lists(self, settings: Settings, begins: Beginning) -> ListStore:
        """Return the store with the lists that the first rules name."""
        return begins.lists

    def locked(self, settings: Settings) -> AbstractContextManager[None]:
        """Return the lock of the job's folder. Raises: UsageError if another process has it."""
        ...

    def answers(self, settings: Settings) -> Answers:
        """Return the answers to requests for more paths than PATHS, by path."""
        return {}

    def first_positions(self, settings: Settings) -> Mapping[str, int]:
        """Return where the job begins to read its topic of events; empty if it reports that itself."""
        return {}

    def run(self, start: JobStart) -> None:
        """Open the sources, the sinks and the state, match until the end, and close everything. Raises: CepError."""
        ...


def run_job(settings: Settings, runner: JobRunner, log: Log, *, until_end: bool) -> int:
    """Run the job of these settings until it ends or is stopped.

    Returns: 0, or 1 if a rule of the folder or too many records were set aside. Raises: UsageError and other CepErrors.
    """
    undelivered = read_undelivered(settings.job.checkpoint)
    with Stopping(partial(tell_end, {}, log, undelivered), log.close) as stop:
        code = _start(settings, runner, log, stop, until_end=until_end)
        stop.tell()  # the last lines of a job that was stopped before it had its state
        return code


def _start(settings: Settings, runner: JobRunner, log: Log, stop: Stopping, *, until_end: bool) -> int:
    begins = read_beginning(settings, log)
    runner.check(settings, until_end=until_end)
    deployment = deploy(begins.records, runner.lists(settings, begins), begins.trust)
    tell_problems(begins.problems, deployment, log)
    check_in_force(begins.problems, deployment, settings.job)
    job = describe_job(settings, deployment, begins.warm)
    observe, answers = settings.observe, runner.answers(settings)
    observed = Observed(observe.stalled, log)
    rejections = JobRejections(observed, log, observe.rejected_max, until_end)
    with (
        runner.locked(settings),  # before its port: a second process is told of the job, not of the port
        served(observe.listen, observed, answers, observe.bearer_token(), observe.hosts) as address,
        _watch(settings, runner, observed),
        ExitStack() as stack,
    ):
        try:
            traces = traces_of(log, stack, is_asked=observe.traces)
            paths = ", ".join([PATHS, *(f"{path}?key=…" for path in answers)])
            runner.run(
                JobStart(
                    settings, begins, deployment, job, until_end, log, stop, observed, rejections, traces, address,
                    paths,
                )
            )  # fmt: skip
        except CepError as error:
            observed.failure = type(error).__name__
            if not stop.ends(error):
                raise
        rejected = rejections.end()
    return 1 if begins.problems or deployment.set_aside else rejected


def _watch(settings: Settings, runner: JobRunner, observed: Observed) -> Watch:
    """Watch the surroundings of a job: its brokers, registry, topic of events, sinks and disk."""
    kafka = None if settings.kafka.bootstrap_servers is None else kafka_client(settings)
    events, control, output = settings.events.topic, settings.control.topic, settings.output
    topics = [topic for topic in (events, control, *alert_topics(settings), output.dead_letter_topic) if topic]
    observed.ready_lag_ms = None if events is None else settings.observe.ready_lag
    watched = Watched(
        kafka, topics[0] if topics else None, events, settings.job.checkpoint,
        partial(runner.first_positions, settings), tuple(settings.events.registry_settings().items()),
    )  # fmt: skip
    return Watch(watched, observed, WATCH_MS)


def audit_copy(settings: Settings) -> DeadLetterSink | None:
    """Return the sink for the copy of the audit. None without a folder, or if the dead letters are files themselves."""
    folder, topic = settings.job.checkpoint, settings.output.dead_letter_topic
    return None if folder is None or topic is None else DeadLetterFiles(folder / AUDIT_FOLDER)
