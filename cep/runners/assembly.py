"""The settings of a live job → the job at work, until it is stopped or its events end, and its exit code.

    1. read the rules, check the settings, deploy the rules, describe the job        job.py
    2. lock the folder, serve metrics and health, watch brokers, sinks and disk       http.py, watch.py
    3. the runner opens sources, sinks and state, and matches                         embedded/job.py, spark_job.py

It also writes the log lines that both runners share.
Tested by: tests/cli/test_run.py, tests/cli/test_main.py, tests/cli/test_rejected.py.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cep.base.errors import CepError, SetAsideError
from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN, PROGRESS_LINES_MS, WATCH_MS
from cep.base.terminal import Terminal
from cep.base.text import utc_text
from cep.lang.explain.render import render_text
from cep.lists.store import ListStore
from cep.model.settings import JobSettings, Settings
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.ledger import news
from cep.runners.http import Answers, served
from cep.runners.job import Beginning, describe_job, read_beginning
from cep.runners.live_checkpoint import read_undelivered
from cep.runners.observe import RECORDS, Log, Observed
from cep.runners.rule_output import AUDIT_FOLDER
from cep.runners.stopping import Stopping
from cep.runners.traces import Traces, open_traces
from cep.runners.watch import Watch, Watched
from cep.sinks.base import DeadLetterSink
from cep.sinks.files import DeadLetterFiles
from cep.sinks.kinds import alert_topics
from cep.sources.live.kinds import kafka_client
from cep.step.job import Job, add_counts
from cep.step.rejections import REJECTED_MAX, Examples, Rejections

Address = tuple[str, int]
PATHS = "/metrics, /live, /ready and /health"
_RECORDS_MIN = 100  # before the share of bad records says something about a source


def tell_problems(problems: Sequence[str], deployment: Deployment, log: Log) -> None:
    """Print the problems of rule files, and which rules are not in force."""
    for problem in problems:
        log.tell("rule_file_refused", problem, reason=problem)
    for rule in deployment.set_aside:
        sentence = f"rule {rule.rule_id} version {rule.version} is set aside: {rule.reason}"
        if rule.diagnostics:
            sentence += "\n" + render_text(rule.diagnostics, {rule.rule_id: rule.source})
        log.tell("rule_set_aside", sentence, rule=rule.rule_id, version=rule.version, reason=rule.reason)


def check_in_force(problems: Sequence[str], deployment: Deployment, settings: JobSettings) -> None:
    """Raise SetAsideError if a live rule is not in force, unless the settings allow an incomplete start."""
    live = [f"{rule.rule_id} version {rule.version}" for rule in deployment.set_aside if rule.status == "live"]
    if settings.start_incomplete or not (live or problems):
        return
    missing = [f"live rules are set aside: {', '.join(live)}"] if live else []
    missing += [f"{len(problems)} problem(s) in rule files"] if problems else []
    raise SetAsideError(
        f"the job does not start: {'; '.join(missing)}. Mend them (`cep rules list` shows each), or start without "
        "them with --start-incomplete"
    )


def tell_changes(before: Mapping[str, Any], after: Mapping[str, Any], log: Log) -> None:
    """Print the changes that a job took between two reports of its chains: the change, its sender and the reason."""
    for name, change in news(before, after):
        log.tell(
            "change_taken", f"{name}: {change.text}", chain=name, version=change.version, hash=change.hash,
            by=change.by, reason=change.reason,
        )  # fmt: skip


def tell_runs(before: Sequence[Mapping[str, Any]], status: Mapping[str, Any], log: Log) -> None:
    """Print what becomes of the open runs of each version with a new successor. `before` are the rules until now."""
    rules_with_runs = {(rule["rule_id"], rule["version"]) for rule in before if rule.get("runs")}
    for rule in status["rules"]:
        if rule.get("runs") and (rule["rule_id"], rule["version"]) not in rules_with_runs:
            count = status["open_runs"].get(f"{rule['rule_id']}@{rule['runs']['version']}", 0)
            log.tell(
                "runs_of_before", runs_text(rule, count), rule=rule["rule_id"], version=rule["version"],
                version_before=rule["runs"]["version"], count=count, outcome=rule["runs"]["outcome"],
                reason=rule["runs"]["why"],
            )  # fmt: skip


@dataclass(slots=True)
class RuleNews:
    """Logs changes of a job's rules. `rules` and `accepted_versions`: of the last status; None: there is none yet."""

    log: Log
    accepted_versions: Mapping[str, Any] | None = None
    rules: Sequence[Mapping[str, Any]] = ()

    def tell(self, status: Mapping[str, Any]) -> None:
        """Log the changes since the last status of the rules. The first status is not news."""
        taken, rules = status.get("taken", {}), status.get("rules", ())
        if self.accepted_versions is not None:
            tell_changes(self.accepted_versions, taken, self.log)
            tell_runs(self.rules, {"rules": rules, "open_runs": status.get("open_runs", {})}, self.log)
        self.accepted_versions, self.rules = taken, rules


def runs_text(rule: Mapping[str, Any], count: int | None) -> str:
    """Return a sentence about the runs of the version before, as a status has the rule. None: not counted."""
    runs, from_ms = rule["runs"], rule.get("from_ms")
    begins = "" if from_ms is None or not EVENT_TIME_MS_MIN <= from_ms <= EVENT_TIME_MS_MAX else utc_text(from_ms)
    starts = f"{rule['rule_id']} version {rule['version']} begins {f'at {begins}' if begins else 'at once'}"
    shown = "" if count is None else f" ({count:,} are open now)"
    return f"{starts}: the runs of version {runs['version']} are {runs['outcome']}{shown}: {runs['why']}"


def tell_start(
    log: Log, folder: Path | None, address: Address | None, paths: str, *, goes_on: bool, **facts: str
) -> None:
    """Print if the job begins or goes on, and where `paths` are served. `facts` are for a machine that reads it."""
    begins = "goes on" if goes_on else "begins"
    keeps = "nothing is kept" if folder is None else f"{folder} keeps its progress"
    where = "" if address is None else f"; {paths} at {address[0]}:{address[1]}"
    port = None if address is None else address[1]
    log.tell("started", f"the job {begins}; {keeps}{where}", begins=begins, **facts, port=port)


def print_counts(rows: Iterable[tuple[str, int]], console: Console) -> None:
    """Print names and counts as a table."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name, count in rows:
        table.add_row(Text(name), f"{count:,}")
    console.print(table)


def tell_end(totals: Mapping[str, int], log: Log, undelivered_count: int = 0, **facts: int) -> None:
    """Print how many alerts and dead letters the next start sends, if any, and the totals."""
    if undelivered_count:
        log.tell(
            "undelivered",
            f"{undelivered_count:,} alerts and dead letters wait for their sinks; the next start sends them",
            count=undelivered_count,
        )
    tell_totals(totals, "the job has ended", log, Terminal(stderr=True, highlight=False), **facts)


def tell_totals(totals: Mapping[str, int], sentence: str, log: Log, console: Console, **facts: int) -> None:
    """Print the totals when a job has ended: a line for a machine, or a table for a person."""
    if log.form == "json":
        log.tell("ended", sentence, **facts, **dict(sorted(totals.items())))
    else:
        with suppress(OSError, SystemExit):  # as in `Log.tell`; rich ends the process for a reader that has gone
            print_counts(sorted(totals.items()), console)


@dataclass(slots=True)
class _Span:
    counters: Counter[str] = field(default_factory=Counter)
    examples: Examples = field(default_factory=Examples)

    @property
    def rejections(self) -> Rejections:
        return Rejections.of(self.counters, self.examples)


@dataclass(slots=True)
class JobRejections:
    """Counts the records that a process of a job rejects, and decides, once a minute at most, whether too many are."""

    observed: Observed
    log: Log
    share_max: float  # of the records since the last look
    until_end: bool = False  # the job ends once it has read everything
    every_ms: int = PROGRESS_LINES_MS
    _totals: _Span = field(default_factory=_Span)  # of the process, up to the last report
    _latest: _Span = field(default_factory=_Span)  # since the last report
    _reported_s: float = float("-inf")  # when that was (monotonic)
    _exit_code: int | None = None

    def add(self, counters: Counter[str], dead_letters: Sequence[bytes]) -> None:
        """Count the records of a micro-batch. After `every_ms`, report the rejected ones since the last report."""
        add_counts(self._latest.counters, counters)  # _latest: everything since the last report
        self._latest.examples.add(dead_letters)
        now_s = time.monotonic()
        if self._latest.counters["records"] >= _RECORDS_MIN and (now_s - self._reported_s) * 1_000 >= self.every_ms:
            self._reported_s = now_s
            rejections = self._end_span().rejections  # since the last report
            is_above = rejections.is_above(self.share_max)
            if rejections.rejected_count and not is_above:
                self._log_counts(rejections)
            trouble = f"more than {self.share_max:g} of them are rejected" if is_above else None  # None: well
            self.observed.note(RECORDS, trouble, self._sentence(rejections))

    def end(self) -> int:
        """Print the report of the whole process, once. Return 1 if too many records were rejected, otherwise 0."""
        if self._exit_code is None:
            self._exit_code = self._report()
        return self._exit_code

    def _report(self) -> int:
        """Log the rejected records of the whole process. Return the exit code: 1 if they are more than `share_max`."""
        self._end_span()  # adds the latest micro-batches to the totals
        rejections = self._totals.rejections
        if not rejections.records and self.until_end:
            self.log.tell("nothing_read", *rejections.lines(REJECTED_MAX, self.share_max))
        if not rejections.rejected_count:
            return 0
        if self.log.form == "text" and self.until_end:
            for line in rejections.lines(REJECTED_MAX, self.share_max):
                self.log.tell("rejected", line)
        else:
            self._log_counts(rejections)
        return int(rejections.is_above(self.share_max))

    def _end_span(self) -> _Span:
        """Add the micro-batches since the last report (a span) to the totals. Return them, and begin the next span."""
        ended, self._latest = self._latest, _Span()
        add_counts(self._totals.counters, ended.counters)
        self._totals.examples.join(ended.examples)
        return ended

    def _log_counts(self, rejections: Rejections) -> None:
        facts: Mapping[str, int] = {"records": rejections.records, "rejected": rejections.rejected_count}
        self.log.tell("rejected", self._sentence(rejections), **facts, reasons=rejections.code_counts())

    def _sentence(self, rejections: Rejections) -> str:
        return f"{rejections.verdict(REJECTED_MAX, self.share_max)}: {rejections.code_counts()}"


@dataclass(frozen=True, slots=True)
class JobStart:
    """A checked job that is about to run: its rules and terms, its log, and its metrics and health."""

    settings: Settings
    beginning: Beginning  # the rules, lists and state that it begins with
    deployment: Deployment
    job: Job  # event types, keys and other terms that keyed state depends on
    until_end: bool  # it ends once it has read everything that exists
    log: Log
    stop: Stopping
    observed: Observed  # for metrics and health
    rejections: JobRejections
    traces: Traces | None = None
    address: Address | None = None  # where `paths` are served
    paths: str = PATHS


class JobRunner(Protocol):
    """The part of a job's start that differs between `cep run` and Spark."""

    def check(self, settings: Settings, *, until_end: bool) -> None:
        """Refuse settings that this runner cannot use, before anything is opened. Raises: UsageError."""
        ...

    def lists(self, settings: Settings, beginning: Beginning) -> ListStore:
        """Return the store with the lists that the first rules name."""
        return beginning.lists

    def locked(self, settings: Settings) -> AbstractContextManager[None]:
        """Return the lock of the job's folder. Raises: UsageError if another process has it."""
        ...

    def answers(self, settings: Settings) -> Answers:
        """Return functions that answer HTTP requests, by path, in addition to PATHS (metrics and health)."""
        return {}

    def first_positions(self, settings: Settings) -> Mapping[str, int]:
        """Return where the job begins to read its topic of events; empty if the runner reports that itself."""
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
    """Check rules and job; lock its folder, serve HTTP, watch its surroundings, and run it. Return the exit code."""
    beginning = read_beginning(settings, log)  # the first rules and lists
    runner.check(settings, until_end=until_end)
    deployment = deploy(beginning.records, runner.lists(settings, beginning), beginning.trust)
    tell_problems(beginning.problems, deployment, log)
    check_in_force(beginning.problems, deployment, settings.job)
    job = describe_job(settings, deployment, beginning.warm)  # warm: the state at the end of a replay
    observe, answers = settings.observe, runner.answers(settings)  # answers: functions by HTTP path
    observed = Observed(observe.stalled, log)
    rejections = JobRejections(observed, log, observe.rejected_max, until_end)
    with (
        runner.locked(settings),  # first: a second process hears that the job runs, not that its port is taken
        served(observe.listen, observed, answers, observe.bearer_token(), observe.hosts) as address,
        _watch(settings, runner, observed),  # looks at brokers, sinks and disk
        ExitStack() as stack,
    ):
        try:
            traces = stack.enter_context(open_traces(log)) if observe.traces else None
            paths = ", ".join([PATHS, *(f"{path}?key=…" for path in answers)])
            runner.run(
                JobStart(
                    settings, beginning, deployment, job, until_end, log, stop, observed, rejections, traces, address,
                    paths,
                )
            )  # fmt: skip
        except CepError as error:
            observed.failure = type(error).__name__
            if not stop.ends(error):  # a service that is away does not matter to a job that is to stop
                raise
        rejected = rejections.end()
    return 1 if beginning.problems or deployment.set_aside else rejected  # 1: rules or records were set aside


def _watch(settings: Settings, runner: JobRunner, observed: Observed) -> Watch:
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
