"""What the live verbs have in common: settings and rules → the job, what is told of rules, and the way to stop.

Tested by: tests/cli/test_live.py, tests/cli/test_run.py
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cep.base.errors import UsageError
from cep.base.limits import TIME_MS_MIN
from cep.lang.render import render_text
from cep.lists.store import ListStore
from cep.model.rule import ControlRecord, parse_control
from cep.model.settings import JobSettings, Settings
from cep.rulebook.deploy import Deployment
from cep.rulebook.files import read_lists, read_rules
from cep.rulebook.levels import levels_needed
from cep.runners.job import Job
from cep.runners.live_checkpoint import open_checkpoint, read_job
from cep.runners.observe import Log
from cep.runners.warm_start import WarmStart, open_warm_start
from cep.sinks.base import AlertSink
from cep.sinks.files import FileSink
from cep.sinks.letters import LetterFiles
from cep.sinks.postgres import SCHEMES, PostgresSink
from cep.sinks.webhook import WebhookSink, WebhookTarget

URLS = ("http://", "https://")
_PARQUET = "parquet:"


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a job begins with: its first control records, problems of rule files, and the state of a replay if any.
    `lists` has the entries of the lists that the records name."""

    records: tuple[ControlRecord, ...]
    problems: tuple[str, ...]
    warm: WarmStart | None
    lists: ListStore

    @property
    def initial(self) -> tuple[bytes, ...]:
        """The records as a job keeps them."""
        return tuple(record.to_json() for record in self.records) if self.warm is None else self.warm.about.rules


def beginning_of(settings: JobSettings, log: Log) -> Beginning:
    """The rules of the folder, or those of the warm start. Raises: UsageError, StateError."""
    if settings.rules is None and settings.warm_start is None:
        raise UsageError("give --rules, or the same in a settings file (`cep settings` prints one)")
    lists = ListStore()
    records: list[ControlRecord] = []
    problems: list[str] = []
    if settings.rules is not None:
        files, problems = read_rules(settings.rules)
        given, more = read_lists(settings.rules, lists)
        records += [*given, *files]
        problems += more
    if settings.warm_start is None:
        return Beginning(tuple(records), tuple(problems), None, lists)
    warm = open_warm_start(settings.warm_start)
    kept = [record for record, _ in map(parse_control, warm.about.rules) if record is not None]
    if settings.rules is not None and records != kept:
        tell_rules_differ(settings, log)
    warm.copy_lists(lists)
    return Beginning(tuple(kept), tuple(problems), warm, lists)


def tell_rules_differ(settings: JobSettings, log: Log) -> None:
    """The folder of rules is not what the job has."""
    told = f"publish changes of {settings.rules} as control records"
    log.tell("rules_differ", f"the job goes on with the rules it began with; {told}")


def opened(
    settings: JobSettings, checkpoint: Path, job: Job, begins: Beginning, log: Log
) -> tuple[Job, tuple[bytes, ...], bool]:
    """The job of a checkpoint folder, the rules that it began with, and whether it goes on. Raises: UsageError."""
    kept, goes_on = open_checkpoint(checkpoint, job, begins.initial)
    if goes_on and kept != begins.initial:
        tell_rules_differ(settings, log)
    known = read_job(checkpoint)
    assert known is not None, "open_checkpoint has written it"
    if begins.warm is not None and known.begins_ms != job.begins_ms:
        raise UsageError(
            f"the job of {checkpoint} did not begin from {settings.warm_start}; give a new checkpoint folder"
        )
    return replace(job, begins_ms=known.begins_ms), kept, goes_on


def check_ending(settings: Settings, *, available_now: bool) -> None:
    """Raises: UsageError if the job is to end at a place of a topic, and has none or would wait there for ever."""
    if settings.events.ending is not None and settings.events.topic is None:
        raise UsageError("--ending is a place in a topic; give --topic, or leave it out")
    if settings.events.ending is not None and not available_now:
        raise UsageError("--ending needs --available-now: without it a job waits for what comes next")


def webhook_of(settings: Settings, url: str) -> WebhookSink:
    """The sink for a webhook. What its receiver refuses goes to files in the checkpoint. Raises: UsageError."""
    if settings.job.checkpoint is None:
        raise UsageError(f"alerts to {url} need --checkpoint, where those that are refused are kept")
    letters = LetterFiles(settings.job.checkpoint / "webhook_refused")
    return WebhookSink(WebhookTarget(url, settings.output.webhook_secret()), letters)


def job_of(settings: JobSettings, deployment: Deployment, warm: WarmStart | None = None) -> Job:
    """The job of these rules, also routed by the keys that later rules may use. Raises: UsageError."""
    known = deployment.schema.columns()
    extra = [tuple(field.strip() for field in text.split(",")) for text in settings.keys]
    for domain in extra:
        for field in domain:
            if field not in known:
                raise UsageError(
                    f"--key {','.join(domain)}: the events have no field `{field}`, only {', '.join(known)}"
                )
    domains = tuple(sorted({*deployment.key_domains, *extra}))
    begun = 1 if warm is None else warm.about.job.levels_count
    return Job(
        deployment.schema,
        domains,
        settings.key_groups,
        settings.pages,
        settings.lateness,
        settings.order,
        settings.idle,
        settings.dedup,
        levels_count=max(settings.levels, begun, levels_needed(deployment.rulebook.deployed())),
        begins_ms=TIME_MS_MIN if warm is None else warm.about.until_ms,
    )


def range_of(text: str) -> range:
    """`0-15` as key groups. Raises: UsageError."""
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise UsageError(f"--groups {text}: give first-last, as 0-15")
    return range(int(first), int(last) + 1)


def stop_on_signals(stop: threading.Event | None = None) -> threading.Event:
    """An event that SIGINT and SIGTERM set, so that the job ends between two micro-batches. The second one ends it at
    once, which costs a micro-batch done again and nothing else.
    """
    chosen = stop or threading.Event()

    def asked(number: int, _: object) -> None:
        chosen.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, asked)
    return chosen


def tell_problems(problems: Sequence[str], deployment: Deployment, log: Log) -> None:
    """What is wrong with rule files, and which rules are not in force."""
    for problem in problems:
        log.tell("rule_file_refused", problem, reason=problem)
    for rule in deployment.set_aside:
        sentence = f"rule {rule.rule_id} version {rule.version} is set aside: {rule.reason}"
        if rule.diagnostics:
            sentence += "\n" + render_text(rule.diagnostics, {rule.rule_id: rule.source})
        log.tell("rule_set_aside", sentence, rule=rule.rule_id, version=rule.version, reason=rule.reason)


def store_of(where: str) -> AlertSink:
    """The sink of `--alerts postgresql://…`, `--alerts parquet:FOLDER` and `--alerts FOLDER`.

    Raises: UsageError for an address that is none, SinkError if there can be no such folder.
    """
    if where.startswith(SCHEMES):
        return PostgresSink(where)
    if where.startswith(_PARQUET):
        return FileSink(Path(where.removeprefix(_PARQUET)), "parquet")
    return FileSink(Path(where))
