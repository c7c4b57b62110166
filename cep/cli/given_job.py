"""Settings and rules → the job of a live verb, the sinks of its alerts, and the way to stop it.

Tested by: tests/cli/test_live.py, tests/cli/test_run.py
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cep.api.live_job import live_job
from cep.base.addresses import without_user
from cep.base.errors import UsageError
from cep.base.limits import WATCH_MS
from cep.cli.given_events import mapping_of_settings
from cep.cli.job_flags import KAFKA, URLS, kafka_topics
from cep.cli.job_lines import tell_rules_differ
from cep.columnar.mapping import check_fields
from cep.lists.store import ListStore
from cep.model.rule import ControlRecord, parse_control
from cep.model.settings import ControlSettings, JobSettings, Settings
from cep.rulebook.changes import with_signatures
from cep.rulebook.deploy import Deployment, first_lists
from cep.rulebook.files import read_lists, read_rules
from cep.rulebook.signers import given_trust
from cep.rulebook.trust import Trust
from cep.runners.handover.warm_start import WarmStart, open_warm_start
from cep.runners.live_checkpoint import open_checkpoint, read_job
from cep.runners.observe import Log, Observed
from cep.runners.rule_output import AUDIT_FOLDER
from cep.runners.watch import Watch, Watched
from cep.sinks.base import DEAD_LETTERS, AlertSink, DeadLetterSink
from cep.sinks.console import ConsoleSink
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.files import FileSink
from cep.sinks.kafka import KafkaDeadLettersAtOnce
from cep.sinks.lake import LakeSink
from cep.sinks.postgres import SCHEMES, PostgresSink
from cep.sinks.refused import RefusedAlerts
from cep.sinks.webhook import WebhookSink, WebhookTarget
from cep.sources.kafka import KafkaSettings
from cep.step.job import Job

_PARQUET, _DELTA = "parquet:", "delta:"
_DIGEST_CHARS = 8


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first control records of a job, the problems of rule files, and the state of a replay if there is one.

    `lists` has the entries of the lists that the records name. `trust` says who must have signed the records.
    """

    records: tuple[ControlRecord, ...]
    problems: tuple[str, ...]
    warm: WarmStart | None
    lists: ListStore
    trust: Trust | None = None

    @property
    def initial(self) -> tuple[bytes, ...]:
        """The records as a job has them in its checkpoint."""
        return tuple(record.to_json() for record in self.records) if self.warm is None else self.warm.about.rules


def beginning_of(given_settings: Settings, log: Log) -> Beginning:
    """Read the rules of the folder, or the rules of the warm start. Raises: UsageError, StateError."""
    settings, trust = given_settings.job, trust_of(given_settings.control)
    if settings.rules is None and settings.warm_start is None:
        raise UsageError("give --rules, or the same in a settings file (`cep settings` prints one)")
    lists = ListStore()
    records: list[ControlRecord] = []
    problems: list[str] = []
    if settings.rules is not None:
        files, problems = read_rules(settings.rules)
        if trust is not None:
            files = with_signatures(settings.rules, files)
        list_records, more = read_lists(settings.rules, lists)
        if trust is not None:
            list_records = first_lists(settings.rules, list_records, files)
        records += [*list_records, *files]
        problems += more
    if settings.warm_start is None:
        return Beginning(tuple(records), tuple(problems), None, lists, trust)
    warm = open_warm_start(settings.warm_start)
    begun = [record for record, _ in map(parse_control, warm.about.rules) if record is not None]
    if settings.rules is not None and records != begun:
        tell_rules_differ(settings, log)
    warm.copy_lists(lists)
    return Beginning(tuple(begun), tuple(problems), warm, lists, trust)


def trust_of(settings: ControlSettings) -> Trust | None:
    """Read who may sign changes; None if changes need no signature. Raises: UsageError."""
    return given_trust(settings.signers, settings.root_key)


def opened(
    settings: JobSettings, checkpoint: Path, job: Job, begins: Beginning, log: Log
) -> tuple[Job, tuple[bytes, ...], bool]:
    """Open a checkpoint folder.

    Returns: its job, the rules that it began with, and True if the job goes on. Raises: UsageError.
    """
    initial, goes_on = open_checkpoint(checkpoint, job, begins.initial)
    if goes_on and initial != begins.initial:
        tell_rules_differ(settings, log)
    stored = read_job(checkpoint)
    assert stored is not None, "open_checkpoint has written it"
    if begins.warm is not None and stored.begins_ms != job.begins_ms:
        raise UsageError(
            f"the job of {checkpoint} did not begin from {settings.warm_start}; give a new checkpoint folder"
        )
    return replace(job, begins_ms=stored.begins_ms, digest_key=stored.digest_key), initial, goes_on


def webhook_target(settings: Settings, url: str) -> WebhookTarget:
    """Return the target of a webhook, checked. Raises: UsageError."""
    is_insecure = settings.output.webhook is not None and settings.output.webhook.insecure
    return WebhookTarget(url, settings.output.webhook_secret(), is_insecure=is_insecure)


def webhook_of(settings: Settings, url: str, observed: Observed) -> WebhookSink:
    """Return the sink for a webhook. Alerts that it refuses go to the dead letters of the job. Raises: UsageError."""
    target, output, checkpoint = webhook_target(settings, url), settings.output, settings.job.checkpoint
    if checkpoint is None:
        raise UsageError(f"alerts to {target.shown} need --checkpoint, where those that are refused are kept")
    dead_letters: DeadLetterSink
    if output.dead_letter_topic is not None and settings.kafka.bootstrap_servers is not None:
        client = settings.kafka.client_settings()
        dead_letters = KafkaDeadLettersAtOnce(settings.kafka.bootstrap_servers, output.dead_letter_topic, client)
    else:
        # A name for each webhook: two of them may refuse alerts of one micro-batch.
        digest = hashlib.sha256(url.encode()).hexdigest()[:_DIGEST_CHARS]
        dead_letters = DeadLetterFiles(output.dead_letters or checkpoint / "dead_letters", f"refused-{digest}")
    return WebhookSink(target, RefusedAlerts(target.shown, dead_letters, observed.refused))


def refusals_of(sinks: Sequence[AlertSink]) -> list[RefusedAlerts]:
    """Return the refusals of the sinks that set alerts aside."""
    return [sink.refused for sink in sinks if isinstance(sink, WebhookSink)]


def refusals_target(settings: Settings, name: str, dead_letters: DeadLetterSink) -> tuple[WebhookTarget, RefusedAlerts]:
    """Return the webhook of this name in the settings, and refusals that go to `dead_letters`. Raises: UsageError."""
    targets = [webhook_target(settings, where) for where in settings.output.alerts if where.startswith(URLS)]
    target = next((target for target in targets if target.shown == name), None)
    if target is None:
        raise UsageError(f"[output] alerts has no webhook {name}, which has refused alerts; name the job's --conf")
    return target, RefusedAlerts(name, dead_letters)


def job_of(settings: Settings, deployment: Deployment, warm: WarmStart | None = None) -> Job:
    """Describe the job of these rules, which is audited if they can change while it runs.

    Raises: UsageError, also if the mapping speaks of fields that no event has.
    """
    check_fields(mapping_of_settings(settings.events), deployment.schema)
    is_audited = settings.control.topic is not None or settings.control.folder is not None
    return replace(live_job(settings.job, deployment, warm), is_audited=is_audited)


def watch_of(settings: Settings, observed: Observed, first_positions: Callable[[], Mapping[str, int]] = dict) -> Watch:
    """Watch the surroundings of a job: its brokers, registry, topic of events, sinks and disk."""
    servers = settings.kafka.bootstrap_servers
    kafka = None if servers is None else KafkaSettings(servers, tuple(settings.kafka.client_settings().items()))
    events, control, output = settings.events.topic, settings.control.topic, settings.output
    topics = [topic for topic in (events, control, *kafka_topics(settings), output.dead_letter_topic) if topic]
    observed.ready_lag_ms = None if events is None else settings.observe.ready_lag
    watched = Watched(
        kafka, topics[0] if topics else None, events, settings.job.checkpoint, first_positions,
        tuple(settings.events.registry_settings().items()),
    )  # fmt: skip
    return Watch(watched, observed, WATCH_MS)


def range_of(text: str) -> range:
    """Read `0-15` as key groups. Raises: UsageError."""
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise UsageError(f"--groups {text}: give first-last, as 0-15")
    return range(int(first), int(last) + 1)


def audit_copy(settings: Settings) -> DeadLetterSink | None:
    """Return the sink for the copy of the audit. None without a folder, or if the dead letters are files themselves."""
    folder, topic = settings.job.checkpoint, settings.output.dead_letter_topic
    return None if folder is None or topic is None else DeadLetterFiles(folder / AUDIT_FOLDER)


def sinks_of(
    settings: Settings, topic_sink: Callable[[str], AlertSink], observed: Observed
) -> dict[str, AlertSink]:  # fmt: skip
    """Make the sinks of the alerts, by name, in the order of `--alerts`; the console is the default.

    `observed` reports refused alerts. Raises: UsageError, SinkError.
    """
    places = dict.fromkeys(settings.output.alerts or ("console",))
    sinks: dict[str, AlertSink] = {}
    for where in places:
        name = _name_of(settings, where)
        if name in sinks:
            raise UsageError(
                f"two sinks of alerts are {name}; nothing tells them apart in health and metrics, so name one"
            )
        sinks[name] = _sink_of(settings, where, topic_sink, observed)
    return sinks


def addresses_of(settings: Settings) -> dict[str, str]:
    """Return the addresses of sinks whose names do not say them: the brokers of topics, the place of dead letters."""
    servers, output, checkpoint = settings.kafka.bootstrap_servers or "", settings.output, settings.job.checkpoint
    topics = [where for where in output.alerts if where.startswith(KAFKA)]
    addresses = dict.fromkeys([*topics, *filter(None, [settings.control.status_topic])], servers)
    folder = output.dead_letters or (None if checkpoint is None else checkpoint / "dead_letters")
    letters = str(folder) if output.dead_letter_topic is None else f"{KAFKA}{output.dead_letter_topic} at {servers}"
    return {**addresses, DEAD_LETTERS: letters}


def _name_of(settings: Settings, where: str) -> str:
    """Return the address of a sink without a user, a password or a token."""
    return webhook_target(settings, where).shown if where.startswith(URLS) else without_user(where) or where


def _sink_of(
    settings: Settings, where: str, topic_sink: Callable[[str], AlertSink], observed: Observed
) -> AlertSink:  # fmt: skip
    if where == "console":
        return ConsoleSink()
    if where.startswith(KAFKA):
        return topic_sink(where.removeprefix(KAFKA))
    if where.startswith(_DELTA):
        return _lake_of(settings, where.removeprefix(_DELTA))
    return webhook_of(settings, where, observed) if where.startswith(URLS) else store_of(where)


def _lake_of(settings: Settings, place: str) -> AlertSink:
    """Open a table, in which the job's numbers go by the name of its checkpoint folder. Raises: UsageError."""
    checkpoint = settings.job.checkpoint
    if checkpoint is None:
        raise UsageError("--alerts delta: needs --checkpoint: the table has the numbers of its micro-batches")
    return LakeSink(place, f"{checkpoint.resolve().name}-{settings.embedded.groups or 'all'}")


def store_of(where: str) -> AlertSink:
    """Make the sink of `--alerts postgresql://…`, `--alerts parquet:FOLDER` and `--alerts FOLDER`.

    Raises: UsageError for an invalid address, SinkError if the folder cannot be made.
    """
    if where.startswith(SCHEMES):
        return PostgresSink(where)
    if where.startswith(_PARQUET):
        return FileSink(Path(where.removeprefix(_PARQUET)), "parquet")
    return FileSink(Path(where))
