"""What the live verbs have in common: settings and rules → the job, what is told of rules, and the way to stop.

Tested by: tests/cli/test_live.py, tests/cli/test_run.py
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence

from cep.base.errors import UsageError
from cep.lang.render import render_text
from cep.model.settings import JobSettings, Settings
from cep.rulebook.deploy import Deployment
from cep.rulebook.levels import by_level
from cep.runners.job import Job
from cep.runners.observe import Log
from cep.sinks.letters import LetterFiles
from cep.sinks.webhook import WebhookSink, WebhookTarget

URLS = ("http://", "https://")


def webhook_of(settings: Settings, url: str) -> WebhookSink:
    """The sink for a webhook. What its receiver refuses goes to files in the checkpoint. Raises: UsageError."""
    if settings.job.checkpoint is None:
        raise UsageError(f"alerts to {url} need --checkpoint, where those that are refused are kept")
    letters = LetterFiles(settings.job.checkpoint / "webhook_refused")
    return WebhookSink(WebhookTarget(url, settings.output.webhook_secret()), letters)


def job_of(settings: JobSettings, deployment: Deployment) -> Job:
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
    return Job(
        deployment.schema,
        domains,
        settings.key_groups,
        settings.pages,
        settings.lateness,
        settings.order,
        settings.idle,
        settings.dedup,
        levels_count=len(by_level(deployment.rulebook.deployed())),
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
